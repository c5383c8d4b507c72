//! `POST /v1/chat/completions`: the messages, and the shape of the response.
//!
//! Shapes: OpenAI's API reference, chat completions.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::http::transport::SseEvents;
use lab_core::engine::{AnswerToken, FinishReason};

use super::llama_server;
use crate::Pool;
use crate::endpoints::chat_request::ChatRequest;
use crate::endpoints::tool_forms::{self, ToolForms};
use crate::http::error::{Error, refuse};
use crate::http::json::{self, Json, JsonObject, JsonText};
use crate::request::fields::{BodyFields, FieldDoc, RequestPart as _, fields};
use crate::request::generation::check_top_logprobs;
use crate::response::completion_parser::CompletionDelta;
use crate::response::envelope::{Envelope, ResponseObject};
use crate::response::logprobs::{self, TokenNames};
use crate::response::output_parsing::call_json;
use crate::response::running_completions::{
    Completion, StreamEvent, StreamWriter, TOOL_CALLS, progress_json, set_stop_reason,
};

fields! {
    pub(crate) struct ChatFields {
        logprobs: Option<bool>,
        top_logprobs: Option<u32>,
        /// Whether log-probabilities name tokens as `token_id:ID` (vLLM).
        return_tokens_as_token_ids: Option<bool>,
        /// Whether a whole response has `__verbose`: prompt, text and parameters as at `/completion` (llama-server).
        verbose: Option<bool>,
    }
}

pub(crate) fn fields() -> Vec<FieldDoc> {
    let parts = [
        ChatFields::documented(),
        tool_forms::FunctionFields::documented(),
    ];
    [ChatRequest::documented(), parts.concat()].concat()
}

pub(crate) fn parse(body: BodyFields) -> Result<(ChatRequest, ChatFields, ToolForms), Error> {
    let (mut body, forms) = tool_forms::rewritten(body)?;
    let dialogue: ChatRequest = body.take()?;
    let chat: ChatFields = body.whole()?;
    dialogue.check()?;
    chat.check()?;
    Ok((dialogue, chat, forms))
}

pub(crate) async fn completions(
    State(pool): State<Arc<Pool>>,
    body: BodyFields,
) -> Result<Response, Error> {
    let (dialogue, chat, forms) = parse(body)?;
    let top = chat.n_top_logprobs();
    let begun = dialogue.submit(&pool, top).await?;
    let (served, generation) = (begun.served, &dialogue.generation);
    let shape = ChatWriter {
        envelope: Envelope::new(Arc::clone(&served), "chatcmpl-", generation.reports())
            .with_prompts((0..generation.n_choices()).map(|_| begun.first.prompt.len())),
        wants_logprobs: top.is_some(),
        names: TokenNames::of(chat.return_tokens_as_token_ids),
        calling: HashSet::new(),
        forms,
    };
    if generation.is_streamed() {
        return Ok(begun.answers.stream(shape));
    }
    let (all, usage) = begun.answers.collect().await?;
    let verbose = all.first().filter(|_| chat.verbose == Some(true));
    let verbose = verbose.map(|one| llama_server::verbose(&served, begun.first, generation, one));
    Ok(json::block_in_place(|| {
        let choices = all.iter().enumerate().map(|(i, one)| {
            let mut choice = json!({
                "index": i,
                "message": message(one),
                "logprobs": null,
                "finish_reason": one.finish_reason(),
            });
            shape.forms.rewrite_choice(&mut choice);
            set_stop_reason(&mut choice, one.stopped.as_ref());
            let mut choice = JsonObject::from(choice);
            if let Some(logprobs) = shape.logprobs(&one.tokens) {
                choice.put("logprobs", logprobs);
            }
            if let Some(report) = &one.report {
                choice.put("lab", report);
            }
            choice
        });
        let choices = choices.collect();
        let mut answer = shape.envelope.whole("chat.completion", choices, &usage);
        if generation.wants_prompt_logprobs() {
            let prompt = all.first().map_or(&[][..], |one| &one.prompt);
            let scored = logprobs::of_prompt(prompt, served.handle.tokenizer());
            answer.put("prompt_logprobs", scored);
        }
        if let Some(verbose) = verbose {
            answer.put("__verbose", verbose);
        }
        Json(answer).into_response()
    }))
}

pub(crate) async fn input_tokens(
    State(pool): State<Arc<Pool>>,
    body: BodyFields,
) -> Result<Json, Error> {
    let (dialogue, ..) = parse(body)?;
    dialogue.input_tokens(&pool).await
}

impl ChatFields {
    fn check(&self) -> Result<(), Error> {
        if let Some(top) = self.top_logprobs {
            check_top_logprobs("top_logprobs", top)?;
            if top > 0 && self.logprobs != Some(true) {
                return refuse("top_logprobs", " needs `logprobs` to be true");
            }
        }
        Ok(())
    }

    /// The length of the list of most probable tokens, if log-probabilities are requested.
    pub(crate) fn n_top_logprobs(&self) -> Option<usize> {
        let has_logprobs = self.logprobs == Some(true);
        has_logprobs.then(|| self.top_logprobs.unwrap_or(0) as usize)
    }
}

pub(crate) fn message(one: &Completion) -> Value {
    let has_content = !one.text.is_empty() || one.calls.is_empty();
    let content = has_content.then_some(&one.text);
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !one.reasoning.is_empty() {
        // Some clients read one name, some the other.
        message["reasoning_content"] = one.reasoning.as_str().into();
        message["reasoning"] = one.reasoning.as_str().into();
    }
    if !one.calls.is_empty() {
        let calls = one.calls.iter();
        let calls = calls.map(|(id, name, arguments)| call_json(id, name, arguments));
        message["tool_calls"] = calls.collect();
    }
    message
}

struct ChatWriter {
    envelope: Envelope,
    wants_logprobs: bool,
    names: TokenNames,
    /// The completions that call tools.
    calling: HashSet<u32>,
    forms: ToolForms,
}

const CHUNK: &str = "chat.completion.chunk";

impl ChatWriter {
    fn logprobs(&self, tokens: &[AnswerToken]) -> Option<JsonText> {
        let tokenizer = self.envelope.served.handle.tokenizer();
        self.wants_logprobs.then(|| {
            let entries = logprobs::entries(tokens, self.names, tokenizer);
            let entries: Vec<JsonText> = entries.map(|entry| json::json_text(&entry)).collect();
            let mut fields = JsonObject::from(json!({ "content": null, "refusal": null }));
            fields.put("content", entries);
            json::json_text(&fields)
        })
    }

    fn delta<'a, D: Serialize>(
        &'a self,
        index: u32,
        delta: D,
        logprobs: Option<&'a RawValue>,
        finish_reason: Option<&'a str>,
    ) -> ResponseObject<'a, [Choice<'a, D>; 1]> {
        let choice = Choice {
            index,
            delta,
            logprobs,
            finish_reason,
        };
        self.envelope.chunk(CHUNK, index, [choice])
    }

    /// Sends what an open call with free text holds back.
    fn close_call(&mut self, choice: u32, out: &mut SseEvents) {
        if let Some(delta) = self.forms.close(choice) {
            out.push(&self.delta(choice, delta, None, None));
        }
    }

    /// A chunk without a delta, to which fields are added.
    fn empty(&self, choice: u32, reason: Option<&str>) -> Value {
        self.delta(choice, json!({}), None, reason).json()
    }
}

#[derive(Serialize)]
struct Choice<'a, D> {
    index: u32,
    delta: D,
    logprobs: Option<&'a RawValue>,
    finish_reason: Option<&'a str>,
}

#[derive(Serialize)]
struct Delta<'a> {
    content: &'a str,
}

impl StreamWriter for ChatWriter {
    fn write(&mut self, choice: u32, event: StreamEvent<'_>, out: &mut SseEvents) {
        match event {
            StreamEvent::Start => {
                let delta = json!({ "role": "assistant", "content": "" });
                out.push(&self.delta(choice, delta, None, None));
            }
            StreamEvent::Count(n) => self.envelope.count(choice, n),
            StreamEvent::Usage(usage) => self.envelope.record_usage(choice, &usage),
            StreamEvent::Piece(CompletionDelta::Content(text, tokens)) => {
                let logprobs = self.logprobs(&tokens);
                let delta = Delta { content: &text };
                out.push(&self.delta(choice, delta, logprobs.as_deref(), None));
            }
            StreamEvent::Piece(piece) => {
                if !matches!(piece, CompletionDelta::Arguments(..)) {
                    self.close_call(choice, out);
                }
                let delta = match &piece {
                    CompletionDelta::Reasoning(text) => {
                        Some(json!({ "reasoning_content": text, "reasoning": text }))
                    }
                    piece => {
                        self.calling.insert(choice);
                        self.forms.delta(choice, piece)
                    }
                };
                if let Some(delta) = delta {
                    out.push(&self.delta(choice, delta, None, None));
                }
            }
            StreamEvent::Progress(progress) => {
                let mut chunk = self.empty(choice, None);
                chunk["prompt_progress"] = progress_json(&progress);
                out.push(&chunk);
            }
            StreamEvent::Step(step) => self.envelope.step(CHUNK, choice, step, out),
            StreamEvent::Lab(result) => {
                let empty = self.empty(choice, None);
                self.envelope.lab(CHUNK, choice, empty, result, out);
            }
            StreamEvent::End(reason, stopped) => {
                self.close_call(choice, out);
                let reason = match reason {
                    FinishReason::Stop if self.calling.contains(&choice) => {
                        self.forms.finish_reason(TOOL_CALLS)
                    }
                    reason => reason.as_str(),
                };
                let mut chunk = self.empty(choice, Some(reason));
                set_stop_reason(&mut chunk["choices"][0], stopped.as_ref());
                out.push(&chunk);
            }
            StreamEvent::Done(usage) => self.envelope.done(CHUNK, usage, out),
            StreamEvent::Failed(error) => out.push(&error.body()),
            StreamEvent::Prompt(_) | StreamEvent::Ended(_) | StreamEvent::Values(_) => {}
        }
    }
}
