//! The response to a message request: its blocks, whole or as the events of a stream.

use serde_json::{Value, json};

use crate::api::answers::{Completion, Format};
use crate::api::envelope::Envelope;
use crate::api::error::Error;
use crate::api::parts::Piece;
use crate::engine::{AnswerToken, FinishReason, Fixed, LabResult, Stopped, Usage};

use super::error_body;

/// The writer of a message.
pub(super) struct Shape {
    envelope: Envelope,
    /// Number of tokens of the prompt.
    n_prompt: usize,
    /// Number of blocks that have begun.
    n_blocks: usize,
    /// The type of the deltas of the open block, which is the last one.
    open: Option<&'static str>,
    /// `stop_reason` and `stop_sequence`, once the completion has ended.
    ending: Value,
    calls: bool,
    lab: Option<Value>,
}

const TEXT: &str = "text_delta";
const THINKING: &str = "thinking_delta";
const INPUT: &str = "input_json_delta";

impl Shape {
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

    /// The message of a completion.
    pub(super) fn message(&self, one: &Completion, usage: &Usage) -> Value {
        let mut blocks = Vec::new();
        if !one.reasoning.is_empty() {
            blocks.push(json!({ "type": "thinking", "thinking": one.reasoning, "signature": "" }));
        }
        if !one.text.is_empty() || (blocks.is_empty() && one.calls.is_empty()) {
            blocks.push(json!({ "type": "text", "text": one.text }));
        }
        for (id, name, arguments) in &one.calls {
            // The arguments of a call that was cut off are not valid JSON.
            let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
            blocks.push(json!({ "type": "tool_use", "id": id, "name": name, "input": input }));
        }
        let mut message = self.object(&blocks, &usage_json(usage));
        if let Some(lab) = self.envelope.lab(one.lab.as_deref()) {
            message["lab"] = lab;
        }
        if let Some(reason) = one.reason {
            let ending = ending(reason, one.stopped.as_ref(), !one.calls.is_empty());
            for (name, value) in ending.as_object().into_iter().flatten() {
                message[name] = value.clone();
            }
        }
        message
    }

    fn close(&mut self) -> Option<Value> {
        self.open.take()?;
        Some(json!({ "type": "content_block_stop", "index": self.n_blocks - 1 }))
    }

    /// Begins a block whose deltas have the type `delta`.
    fn begin(&mut self, delta: &'static str, block: &Value) -> Vec<Value> {
        let closed = self.close();
        let start = json!({ "type": "content_block_start", "index": self.n_blocks, "content_block": block });
        self.open = Some(delta);
        self.n_blocks += 1;
        closed.into_iter().chain([start]).collect()
    }

    /// A text delta: type `delta`, text in `field`. `block` begins a new block if the open one has another type.
    fn delta(&mut self, delta: &'static str, field: &str, text: &str, block: &Value) -> Vec<Value> {
        let mut out = match self.open {
            Some(open) if open == delta => Vec::new(),
            _ => self.begin(delta, block),
        };
        if !text.is_empty() {
            out.push(json!({
                "type": "content_block_delta", "index": self.n_blocks - 1,
                "delta": { "type": delta, field: text },
            }));
        }
        out
    }
}

/// The reason why a message ended.
fn ending(reason: FinishReason, stopped: Option<&Stopped>, calls: bool) -> Value {
    let (reason, stop) = match (reason, stopped) {
        (FinishReason::Length, _) => ("max_tokens", None),
        (FinishReason::Stop, Some(Stopped::Text(text))) => ("stop_sequence", Some(text)),
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

impl Format for Shape {
    const IS_NAMED: bool = true;

    fn start(&mut self, _choice: u32) -> Vec<Value> {
        let read = Usage {
            prompt_tokens: self.n_prompt,
            ..Usage::default()
        };
        let message = self.object(&[], &usage_json(&read));
        vec![json!({ "type": "message_start", "message": message })]
    }

    fn text(&mut self, _choice: u32, text: &str, _tokens: &[AnswerToken]) -> Vec<Value> {
        if text.is_empty() {
            return Vec::new();
        }
        self.delta(TEXT, "text", text, &json!({ "type": "text", "text": "" }))
    }

    fn piece(&mut self, choice: u32, piece: &Piece) -> Vec<Value> {
        match piece {
            Piece::Content(text, tokens) => self.text(choice, text, tokens),
            Piece::Reasoning(text) => {
                let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.delta(THINKING, "thinking", text, &block)
            }
            Piece::Call(_, id, name) => {
                self.calls = true;
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.begin(INPUT, &block)
            }
            Piece::Arguments(_, text) => self.delta(INPUT, "partial_json", text, &Value::Null),
        }
    }

    /// Steps of text diffusion have no event in this shape.
    fn step(&mut self, _: u32, _: usize, _: &[Fixed], _: usize) -> Vec<Value> {
        Vec::new()
    }

    /// The event with the usage carries it.
    fn lab(&mut self, _: u32, result: &LabResult) -> Vec<Value> {
        self.lab = self.envelope.lab(Some(result));
        Vec::new()
    }

    fn end(&mut self, _: u32, reason: FinishReason, stopped: Option<&Stopped>) -> Vec<Value> {
        self.ending = ending(reason, stopped, self.calls);
        let mut out = Vec::new();
        if self.n_blocks == 0 {
            out = self.begin(TEXT, &json!({ "type": "text", "text": "" }));
        }
        out.extend(self.close());
        out
    }

    fn done(&mut self, usage: &Usage) -> Vec<Value> {
        let mut delta =
            json!({ "type": "message_delta", "delta": self.ending, "usage": usage_json(usage) });
        if let Some(lab) = self.lab.take() {
            delta["lab"] = lab;
        }
        vec![delta, json!({ "type": "message_stop" })]
    }

    fn failed(&mut self, error: &Error) -> Vec<Value> {
        vec![error_body(error.status(), &error.to_string())]
    }
}
