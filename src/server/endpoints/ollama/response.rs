//! Ollama's answers: whole, or as the lines of a stream.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::http::error_format::ollama_error;
use crate::http::json::{JsonObject, JsonText};
use crate::http::transport::{SseEvents, StreamFraming};
use crate::response::completion_parser::CompletionDelta;
use crate::response::logprobs::{self, TokenNames};
use crate::response::running_completions::{Completion, StreamEvent, StreamWriter};
use crate::served::ServedModel;
use lab_base::chat::tool_calls::completed_arguments;
use lab_base::util::clock::rfc3339;
use lab_core::engine::{AnswerToken, FinishReason, Usage};

use super::request::Asked;

/// The route that answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnswerShape {
    Chat,
    Generate,
}

/// What an answer, or a line of it, has of a completion.
#[derive(Debug, Default)]
struct AnswerPart<'a> {
    text: &'a str,
    thinking: &'a str,
    calls: Vec<Value>,
}

impl AnswerShape {
    fn object(self, model: &str, part: AnswerPart<'_>) -> Value {
        let text = match self {
            Self::Chat => "content",
            Self::Generate => "response",
        };
        let mut inner = json!({ text: part.text });
        if !part.thinking.is_empty() {
            inner["thinking"] = part.thinking.into();
        }
        if !part.calls.is_empty() {
            inner["tool_calls"] = part.calls.into();
        }
        let mut answer = json!({ "model": model, "created_at": rfc3339(SystemTime::now()) });
        match self {
            Self::Chat => {
                inner["role"] = "assistant".into();
                answer["message"] = inner;
            }
            Self::Generate => {
                for (name, value) in inner.as_object().into_iter().flatten() {
                    answer[name] = value.clone();
                }
            }
        }
        answer["done"] = false.into();
        answer
    }
}

/// The answer to a request that has nothing to read: the model was loaded or unloaded, as `reason` says.
pub(super) fn state_answer(shape: AnswerShape, model: &str, reason: &str) -> Value {
    let mut answer = shape.object(model, AnswerPart::default());
    answer["done"] = true.into();
    answer["done_reason"] = reason.into();
    answer
}

pub(super) struct AnswerWriter {
    shape: AnswerShape,
    model: String,
    served: Arc<ServedModel>,
    wants_logprobs: bool,
    started: Instant,
    /// How long the request waited for the model.
    load: Duration,
    /// The open call: id, name and arguments so far.
    call: Option<(String, String, String)>,
    reason: Option<FinishReason>,
    lab: Option<JsonText>,
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A call with its arguments as an object. Those of a call that was cut off are not valid JSON.
fn call_json((id, name, arguments): &(String, String, String)) -> Value {
    let arguments: Value = serde_json::from_str(arguments)
        .or_else(|_| serde_json::from_str(&completed_arguments(arguments)))
        .unwrap_or_else(|_| json!({}));
    json!({ "id": id, "function": { "name": name, "arguments": arguments } })
}

impl AnswerWriter {
    pub(super) fn new(
        shape: AnswerShape,
        asked: &Asked,
        served: Arc<ServedModel>,
        started: Instant,
        load: Duration,
    ) -> Self {
        Self {
            shape,
            model: asked.model.clone(),
            served,
            wants_logprobs: asked.top_logprobs.is_some(),
            started,
            load,
            call: None,
            reason: None,
            lab: None,
        }
    }

    /// A part of the answer with these tokens.
    fn part(&self, part: AnswerPart<'_>, tokens: &[AnswerToken]) -> Value {
        let mut answer = self.shape.object(&self.model, part);
        if self.wants_logprobs && !tokens.is_empty() {
            let tokenizer = self.served.handle.tokenizer();
            answer["logprobs"] = logprobs::entries(tokens, TokenNames::Texts, tokenizer).collect();
        }
        answer
    }

    /// The last part of an answer, with what was counted and measured.
    fn end(
        &self,
        mut answer: Value,
        reason: Option<FinishReason>,
        lab: Option<&JsonText>,
        usage: &Usage,
    ) -> JsonObject {
        answer["done"] = true.into();
        answer["done_reason"] = reason.map(FinishReason::as_str).into();
        answer["total_duration"] = nanoseconds(self.started.elapsed()).into();
        answer["load_duration"] = nanoseconds(self.load).into();
        answer["prompt_eval_count"] = usage.prompt_tokens.into();
        answer["prompt_eval_duration"] = nanoseconds(usage.prefill).into();
        answer["eval_count"] = usage.completion_tokens.into();
        answer["eval_duration"] = nanoseconds(usage.decode).into();
        let mut answer = JsonObject::from(answer);
        if let Some(lab) = lab {
            answer.put("lab", lab);
        }
        answer
    }

    pub(super) fn whole(&self, one: &Completion, usage: &Usage) -> JsonObject {
        let part = AnswerPart {
            text: &one.text,
            thinking: &one.reasoning,
            calls: one.calls.iter().map(call_json).collect(),
        };
        let answer = self.part(part, &one.tokens);
        self.end(answer, one.reason, one.report.as_ref(), usage)
    }

    /// Writes the open call, which is complete.
    fn close_call(&mut self, out: &mut SseEvents) {
        if let Some(call) = self.call.take() {
            let calls = vec![call_json(&call)];
            let part = AnswerPart {
                calls,
                ..AnswerPart::default()
            };
            out.push_line(&self.part(part, &[]));
        }
    }
}

impl StreamWriter for AnswerWriter {
    const HAS_DONE: bool = false;
    const FRAMING: StreamFraming = StreamFraming::Lines;

    fn write(&mut self, _choice: u32, event: StreamEvent<'_>, out: &mut SseEvents) {
        match event {
            StreamEvent::Piece(CompletionDelta::Content(text, tokens)) => {
                let part = AnswerPart {
                    text: &text,
                    ..AnswerPart::default()
                };
                out.push_line(&self.part(part, &tokens));
            }
            StreamEvent::Piece(CompletionDelta::Reasoning(thinking)) => {
                let part = AnswerPart {
                    thinking: &thinking,
                    ..AnswerPart::default()
                };
                out.push_line(&self.part(part, &[]));
            }
            StreamEvent::Piece(CompletionDelta::Call(_, id, name)) => {
                self.close_call(out);
                self.call = Some((id, name, String::new()));
            }
            StreamEvent::Piece(CompletionDelta::Arguments(_, text)) => {
                if let Some((_, _, arguments)) = &mut self.call {
                    arguments.push_str(&text);
                }
            }
            StreamEvent::Lab(result) => self.lab = Some(result),
            StreamEvent::End(reason, _) => {
                self.close_call(out);
                self.reason = Some(reason);
            }
            StreamEvent::Done(usage) => {
                let answer = self.part(AnswerPart::default(), &[]);
                out.push_line(&self.end(answer, self.reason, self.lab.as_ref(), usage));
            }
            StreamEvent::Failed(error) => out.push_line(&ollama_error(&error.message())),
            // Steps of text diffusion have no line in this shape.
            StreamEvent::Start
            | StreamEvent::Prompt(_)
            | StreamEvent::Count(_)
            | StreamEvent::Progress(_)
            | StreamEvent::Ended(_)
            | StreamEvent::Step(_)
            | StreamEvent::Values(_)
            | StreamEvent::Usage(_) => {}
        }
    }
}
