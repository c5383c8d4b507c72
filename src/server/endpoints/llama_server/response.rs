//! A completion in llama-server's own shape, whole or as the events of a stream. The stream has no `[DONE]` at its end.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use crate::http::json::{self, JsonObject, JsonText};
use crate::http::transport::SseEvents;
use crate::response::completion_parser::CompletionDelta;
use crate::response::logprobs;
use crate::response::running_completions::{
    Completion, StreamEvent, StreamWriter, progress_json, step_json, timings_json,
};
use crate::served::ServedModel;
use lab_core::engine::{AnswerToken, FinishReason, StopMatch, TokenLogprob, Usage};

/// The data that all completions of a response share.
pub(super) struct ResponseData {
    pub(super) served: Arc<ServedModel>,
    pub(super) prompts: Vec<Vec<u32>>,
    pub(super) n_choices: u32,
    /// The value of `generation_settings`.
    pub(super) settings: Value,
    pub(super) post_sampling: bool,
    pub(super) has_probs: bool,
    pub(super) has_tokens: bool,
    pub(super) has_prompt_logprobs: bool,
    /// The names of the response's fields; empty for all fields.
    pub(super) fields: Vec<String>,
}

/// The part of a completion that a stream has sent.
#[derive(Clone, Default)]
struct Sent {
    n_tokens: usize,
    has_new_line: bool,
    usage: Usage,
}

/// Requests have no slots here.
const NO_SLOT: i32 = -1;

pub(super) struct NativeWriter {
    of: ResponseData,
    sent: Vec<Sent>,
}

struct Ending<'a> {
    reason: Option<FinishReason>,
    stopped: Option<&'a StopMatch>,
    has_new_line: bool,
    usage: &'a Usage,
}

impl NativeWriter {
    pub(super) fn new(of: ResponseData) -> Self {
        let n = of.prompts.len() * of.n_choices as usize;
        let sent = vec![Sent::default(); n];
        Self { of, sent }
    }

    fn prompt_of(&self, choice: u32) -> &[u32] {
        &self.of.prompts[(choice / self.of.n_choices) as usize]
    }

    pub(super) fn whole(&self, choice: u32, one: &Completion) -> JsonObject {
        let all = one.tokens.iter().chain(&one.ended);
        let ids = all.clone().filter(|_| self.of.has_tokens);
        let ids: Vec<u32> = ids.map(|token| token.id).collect();
        let mut out = JsonObject::from(self.last(
            choice,
            (&one.text, &ids),
            &Ending {
                reason: one.reason,
                stopped: one.stopped.as_ref(),
                has_new_line: one.text.contains('\n'),
                usage: &one.usage,
            },
        ));
        if self.of.has_probs {
            let all: Vec<JsonText> = all.filter_map(|one| self.probability(one)).collect();
            out.put("completion_probabilities", all);
        }
        if self.of.has_prompt_logprobs {
            let tokenizer = self.of.served.handle.tokenizer();
            out.put(
                "prompt_logprobs",
                logprobs::of_prompt(&one.prompt, tokenizer),
            );
        }
        if let Some(report) = &one.report {
            out.put("lab", report);
        }
        self.reduced(out)
    }

    /// The JSON object that ends a completion.
    fn last(&self, choice: u32, (content, ids): (&str, &[u32]), ending: &Ending<'_>) -> Value {
        let (served, usage) = (&self.of.served, ending.usage);
        let tokenizer = served.handle.tokenizer();
        let n_all = usage.prompt_tokens + usage.completion_tokens;
        let is_full = n_all >= served.handle.limits().n_ctx;
        let (kind, word) = match (ending.reason, ending.stopped) {
            (Some(FinishReason::Length), _) => ("limit", String::new()),
            (None, _) => ("none", String::new()),
            (Some(FinishReason::Stop), None) => ("eos", String::new()),
            (Some(FinishReason::Stop), Some(StopMatch::Text(text))) => ("word", text.clone()),
            (Some(FinishReason::Stop), Some(StopMatch::Token(id))) => {
                let piece = String::from_utf8_lossy(tokenizer.piece(*id));
                ("word", piece.into_owned())
            }
        };
        let prompt = tokenizer.decode(self.prompt_of(choice));
        json!({
            "index": choice, "content": content, "tokens": ids,
            "id_slot": NO_SLOT,
            "stop": true, "model": served.name,
            "tokens_predicted": usage.completion_tokens, "tokens_evaluated": usage.prompt_tokens,
            "generation_settings": self.of.settings,
            "prompt": String::from_utf8_lossy(&prompt),
            "has_new_line": ending.has_new_line,
            "truncated": kind == "limit" && is_full,
            "stop_type": kind, "stopping_word": word,
            "tokens_cached": n_all.saturating_sub(1),
            "timings": timings_json(usage),
        })
    }

    /// The requested fields only. A nested field is named by its path.
    fn reduced(&self, whole: JsonObject) -> JsonObject {
        if self.of.fields.is_empty() {
            return whole;
        }
        let paths = self.of.fields.iter();
        paths
            .filter_map(|path| Some((path.clone(), whole.at(path)?)))
            .collect()
    }

    /// A token with its probability, and those of the most probable tokens.
    fn probability(&self, token: &AnswerToken) -> Option<JsonText> {
        let tokenizer = self.of.served.handle.tokenizer();
        let entry = |bytes: &[u8], one: &TokenLogprob| {
            let mut out = json!({
                "id": one.id, "token": String::from_utf8_lossy(bytes), "bytes": bytes,
            });
            match self.of.post_sampling {
                true => out["prob"] = one.logprob.exp().into(),
                false => out["logprob"] = one.logprob.into(),
            }
            out
        };
        let mut out = entry(&token.bytes, token.chosen.as_ref()?);
        let top = token.top.iter();
        let top = top.map(|one| entry(tokenizer.piece(one.id), one)).collect();
        let name = match self.of.post_sampling {
            true => "top_probs",
            false => "top_logprobs",
        };
        out[name] = top;
        Some(json::json_text(&out))
    }

    fn chunk<'a>(&mut self, index: u32, content: &'a str, tokens: &[AnswerToken]) -> Chunk<'a> {
        let n_prompt = self.prompt_of(index).len();
        let sent = &mut self.sent[index as usize];
        sent.n_tokens += tokens.len();
        sent.has_new_line |= content.contains('\n');
        let (n_tokens, has_probs) = (sent.n_tokens, self.of.has_probs && !tokens.is_empty());
        let all = tokens.iter().filter_map(|token| self.probability(token));
        Chunk {
            index,
            content,
            tokens: tokens.iter().map(|token| token.id).collect(),
            stop: false,
            id_slot: NO_SLOT,
            tokens_predicted: n_tokens,
            tokens_evaluated: n_prompt,
            completion_probabilities: has_probs.then(|| all.collect()),
        }
    }

    /// A chunk without text, to which fields are added.
    fn empty(&mut self, choice: u32) -> Value {
        let chunk = self.chunk(choice, "", &[]);
        serde_json::to_value(chunk).expect("our own types are JSON")
    }
}

#[derive(Serialize)]
struct Chunk<'a> {
    index: u32,
    content: &'a str,
    tokens: Vec<u32>,
    stop: bool,
    id_slot: i32,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_probabilities: Option<Vec<JsonText>>,
}

impl StreamWriter for NativeWriter {
    const HAS_DONE: bool = false;

    fn write(&mut self, choice: u32, event: StreamEvent<'_>, out: &mut SseEvents) {
        match event {
            StreamEvent::Piece(CompletionDelta::Content(text, tokens)) => {
                out.push(&self.chunk(choice, &text, &tokens));
            }
            StreamEvent::Ended(token) => out.push(&self.chunk(choice, "", &[token])),
            StreamEvent::Progress(progress) => {
                let mut chunk = self.empty(choice);
                chunk["prompt_progress"] = progress_json(&progress);
                out.push(&chunk);
            }
            StreamEvent::Step(step) => {
                let mut chunk = self.empty(choice);
                chunk["diffusion"] = step_json(choice, step, self.of.served.handle.tokenizer());
                out.push(&chunk);
            }
            StreamEvent::Lab(result) => {
                let mut chunk = JsonObject::from(self.empty(choice));
                chunk.put("lab", result);
                out.push(&chunk);
            }
            StreamEvent::Usage(usage) => self.sent[choice as usize].usage = usage,
            StreamEvent::End(reason, stopped) => {
                let sent = &self.sent[choice as usize];
                let ending = Ending {
                    reason: Some(reason),
                    stopped: stopped.as_ref(),
                    has_new_line: sent.has_new_line,
                    usage: &sent.usage,
                };
                out.push(&self.reduced(self.last(choice, ("", &[]), &ending).into()));
            }
            StreamEvent::Failed(error) => out.push(&error.body()),
            StreamEvent::Start
            | StreamEvent::Prompt(_)
            | StreamEvent::Count(_)
            | StreamEvent::Piece(_)
            | StreamEvent::Values(_)
            | StreamEvent::Done(_) => {}
        }
    }
}
