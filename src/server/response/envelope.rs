//! The fields that all objects of a response share: id, time, model, fingerprint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde_json::Value;

use crate::http::transport::SseEvents;
use crate::served::ServedModel;
use lab_base::util::clock::unix_seconds;
use lab_core::engine::Usage;

use super::running_completions::{DenoisingStep, cache_json, step_json, timings_json, usage_json};
use crate::http::json::{JsonObject, JsonText};
use crate::request::generation::ReportOptions;

/// The shared fields of a response, whole or in chunks.
pub(crate) struct Envelope {
    pub(crate) served: Arc<ServedModel>,
    pub(crate) id: String,
    pub(crate) created: u64,
    reports: ReportOptions,
    /// For each completion, the usage so far, where chunks report it.
    so_far: Vec<Usage>,
}

/// An object of a response, in the order in which its fields are written.
#[derive(Serialize)]
pub(crate) struct ResponseObject<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: C,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

impl<C: Serialize> ResponseObject<'_, C> {
    /// The same as a value that can be changed.
    pub(crate) fn json(&self) -> Value {
        serde_json::to_value(self).expect("our own types are JSON")
    }
}

impl Envelope {
    /// A new response whose id starts with `prefix`.
    pub(crate) fn new(served: Arc<ServedModel>, prefix: &str, reports: ReportOptions) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (now, count) = (unix_seconds(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self {
            served,
            // Each engine process has its own counter, so the id includes the process id.
            id: format!("{prefix}{now:x}{:x}{count:08x}", std::process::id()),
            created: now,
            reports,
            so_far: Vec::new(),
        }
    }

    /// The same envelope for completions of prompts with these numbers of tokens.
    pub(crate) fn with_prompts(mut self, n_tokens: impl Iterator<Item = usize>) -> Self {
        if self.reports.usage && self.reports.continuous {
            let of_prompt = |prompt_tokens| Usage {
                prompt_tokens,
                ..Usage::default()
            };
            self.so_far = n_tokens.map(of_prompt).collect();
        }
        self
    }

    /// Counts tokens of a completion that the next chunks have.
    pub(crate) fn count(&mut self, choice: u32, n: usize) {
        if let Some(usage) = self.so_far.get_mut(choice as usize) {
            usage.completion_tokens += n;
        }
    }

    pub(crate) fn record_usage(&mut self, choice: u32, usage: &Usage) {
        if let Some(so_far) = self.so_far.get_mut(choice as usize) {
            *so_far = *usage;
        }
    }

    pub(crate) fn object<C: Serialize>(
        &self,
        object: &'static str,
        choices: C,
    ) -> ResponseObject<'_, C> {
        ResponseObject {
            id: &self.id,
            object,
            created: self.created,
            model: &self.served.name,
            system_fingerprint: &self.served.fingerprint,
            choices,
            usage: None,
        }
    }

    /// A chunk of a stream, of one completion. If usage is requested, that of the chunk is null, because only the last
    /// one has it, or that of the completion so far.
    pub(crate) fn chunk<C: Serialize>(
        &self,
        object: &'static str,
        choice: u32,
        choices: C,
    ) -> ResponseObject<'_, C> {
        let so_far = || self.so_far.get(choice as usize).map(usage_json);
        let usage = self.reports.usage.then(|| so_far().unwrap_or_default());
        ResponseObject {
            usage,
            ..self.object(object, choices)
        }
    }

    pub(crate) fn whole(
        &self,
        object: &'static str,
        choices: Vec<JsonObject>,
        usage: &Usage,
    ) -> JsonObject {
        let mut whole = JsonObject::from(self.object(object, [(); 0]).json());
        whole.put("choices", choices);
        let mut usage_object = usage_json(usage);
        if self.reports.cache {
            usage_object["cache"] = cache_json(usage);
        }
        whole.put("usage", usage_object);
        if self.reports.timings {
            whole.put("timings", timings_json(usage));
        }
        whole
    }

    /// Writes a denoising step, in a chunk without choices.
    pub(crate) fn step(
        &self,
        object: &'static str,
        choice: u32,
        step: &DenoisingStep<'_>,
        out: &mut SseEvents,
    ) {
        let mut chunk = self.chunk(object, choice, [(); 0]).json();
        chunk["diffusion"] = step_json(choice, step, self.served.handle.tokenizer());
        out.push(&chunk);
    }

    /// Writes a lab result into the choice of an empty chunk.
    pub(crate) fn lab(
        &self,
        object: &'static str,
        choice: u32,
        mut empty: Value,
        result: JsonText,
        out: &mut SseEvents,
    ) {
        let mut own = JsonObject::from(empty["choices"][0].take());
        own.put("lab", result);
        out.push(&self.chunk(object, choice, [own]));
    }

    pub(crate) fn done(&self, object: &'static str, usage: &Usage, out: &mut SseEvents) {
        let mut last = self.whole(object, Vec::new(), usage);
        if !self.reports.usage {
            last.remove("usage");
        }
        if self.reports.usage || self.reports.timings {
            out.push(&last);
        }
    }
}
