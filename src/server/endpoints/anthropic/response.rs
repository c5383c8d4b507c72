//! The response to a message request: its blocks, whole or as the events of a stream.

use serde_json::{Value, json};

use crate::http::json::{JsonObject, JsonText};
use crate::http::transport::SseEvents;
use crate::response::completion_parser::CompletionDelta;
use crate::response::envelope::Envelope;
use crate::response::running_completions::{Completion, StreamEvent, StreamWriter};
use lab_base::chat::tool_calls::completed_arguments;
use lab_core::engine::{FinishReason, StopMatch, Usage};

use crate::http::error_format::anthropic_error;

pub(super) struct MessageWriter {
    envelope: Envelope,
    n_prompt: usize,
    n_blocks: usize,
    /// The type of the deltas of the open block, which is the last one.
    open: Option<&'static str>,
    /// `stop_reason` and `stop_sequence`, once the completion has ended.
    ending: Value,
    calls: bool,
    lab: Option<JsonText>,
}

const TEXT: &str = "text_delta";
const THINKING: &str = "thinking_delta";
const INPUT: &str = "input_json_delta";

impl MessageWriter {
    pub(super) fn new(envelope: Envelope, n_prompt: usize) -> Self {
        Self {
            envelope,
            n_prompt,
            n_blocks: 0,
            open: None,
            ending: Value::Null,
            calls: false,
            lab: None,
        }
    }

    fn object(&self, content: &[Value], usage: &Value) -> Value {
        json!({
            "id": self.envelope.id, "type": "message", "role": "assistant",
            "model": self.envelope.served.name, "content": content,
            "stop_reason": null, "stop_sequence": null, "usage": usage,
        })
    }

    pub(super) fn message(&self, one: &Completion, usage: &Usage) -> JsonObject {
        let mut blocks = Vec::new();
        if !one.reasoning.is_empty() {
            blocks.push(json!({ "type": "thinking", "thinking": one.reasoning, "signature": "" }));
        }
        if !one.text.is_empty() || (blocks.is_empty() && one.calls.is_empty()) {
            blocks.push(json!({ "type": "text", "text": one.text }));
        }
        for (id, name, arguments) in &one.calls {
            // The arguments of a call that was cut off are not valid JSON.
            let input: Value = serde_json::from_str(arguments)
                .or_else(|_| serde_json::from_str(&completed_arguments(arguments)))
                .unwrap_or_else(|_| json!({}));
            blocks.push(json!({ "type": "tool_use", "id": id, "name": name, "input": input }));
        }
        let mut message = JsonObject::from(self.object(&blocks, &usage_json(usage)));
        if let Some(report) = &one.report {
            message.put("lab", report);
        }
        if let Some(reason) = one.reason {
            let ending = ending(reason, one.stopped.as_ref(), !one.calls.is_empty());
            for (name, value) in ending.as_object().into_iter().flatten() {
                message.put(name, value);
            }
        }
        message
    }

    fn close(&mut self, out: &mut SseEvents) {
        if self.open.take().is_some() {
            out.push_named(&json!({ "type": "content_block_stop", "index": self.n_blocks - 1 }));
        }
    }

    /// Begins a block whose deltas have the type `delta`.
    fn begin(&mut self, delta: &'static str, block: &Value, out: &mut SseEvents) {
        self.close(out);
        out.push_named(&json!({
            "type": "content_block_start", "index": self.n_blocks, "content_block": block,
        }));
        self.open = Some(delta);
        self.n_blocks += 1;
    }

    /// A text delta: type `delta`, text in `field`. `block` begins a new block if the open one has another type.
    fn delta(
        &mut self,
        delta: &'static str,
        field: &str,
        text: &str,
        block: &Value,
        out: &mut SseEvents,
    ) {
        if self.open != Some(delta) {
            self.begin(delta, block, out);
        }
        if !text.is_empty() {
            out.push_named(&json!({
                "type": "content_block_delta", "index": self.n_blocks - 1,
                "delta": { "type": delta, field: text },
            }));
        }
    }
}

fn ending(reason: FinishReason, stopped: Option<&StopMatch>, calls: bool) -> Value {
    let (reason, stop) = match (reason, stopped) {
        (FinishReason::Length, _) => ("max_tokens", None),
        (FinishReason::Stop, Some(StopMatch::Text(text))) => ("stop_sequence", Some(text)),
        (FinishReason::Stop, _) if calls => ("tool_use", None),
        (FinishReason::Stop, _) => ("end_turn", None),
    };
    json!({ "stop_reason": reason, "stop_sequence": stop })
}

/// Tokens that are read from the prefix cache do not count as input.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    })
}

impl StreamWriter for MessageWriter {
    const HAS_DONE: bool = false;

    fn write(&mut self, _choice: u32, event: StreamEvent<'_>, out: &mut SseEvents) {
        match event {
            StreamEvent::Start => {
                let read = Usage {
                    prompt_tokens: self.n_prompt,
                    ..Usage::default()
                };
                let message = self.object(&[], &usage_json(&read));
                out.push_named(&json!({ "type": "message_start", "message": message }));
            }
            StreamEvent::Piece(CompletionDelta::Content(text, _)) => {
                if !text.is_empty() {
                    let block = json!({ "type": "text", "text": "" });
                    self.delta(TEXT, "text", &text, &block, out);
                }
            }
            StreamEvent::Piece(CompletionDelta::Reasoning(text)) => {
                let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.delta(THINKING, "thinking", &text, &block, out);
            }
            StreamEvent::Piece(CompletionDelta::Call(_, id, name)) => {
                self.calls = true;
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.begin(INPUT, &block, out);
            }
            StreamEvent::Piece(CompletionDelta::Arguments(_, text)) => {
                self.delta(INPUT, "partial_json", &text, &Value::Null, out);
            }
            // The event with the usage carries it.
            StreamEvent::Lab(result) => self.lab = Some(result),
            StreamEvent::End(reason, stopped) => {
                self.ending = ending(reason, stopped.as_ref(), self.calls);
                if self.n_blocks == 0 {
                    self.begin(TEXT, &json!({ "type": "text", "text": "" }), out);
                }
                self.close(out);
            }
            StreamEvent::Done(usage) => {
                const KIND: &str = "message_delta";
                let usage = usage_json(usage);
                let delta = json!({ "type": KIND, "delta": self.ending, "usage": usage });
                let mut delta = JsonObject::from(delta);
                if let Some(lab) = self.lab.take() {
                    delta.put("lab", lab);
                }
                out.push_as(KIND, &delta);
                out.push_named(&json!({ "type": "message_stop" }));
            }
            StreamEvent::Failed(error) => {
                out.push_named(&anthropic_error(error.status(), &error.message(), None));
            }
            // Steps of text diffusion have no event in this shape, and neither have tokens.
            StreamEvent::Prompt(_)
            | StreamEvent::Count(_)
            | StreamEvent::Progress(_)
            | StreamEvent::Ended(_)
            | StreamEvent::Step(_)
            | StreamEvent::Values(_)
            | StreamEvent::Usage(_) => {}
        }
    }
}
