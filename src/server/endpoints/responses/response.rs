//! The response object: its items, whole or as the events of a stream.

use serde_json::{Map, Value, json};

use crate::http::json::{JsonObject, JsonText};
use crate::http::transport::SseEvents;
use crate::response::completion_parser::CompletionDelta;
use crate::response::envelope::Envelope;
use crate::response::logprobs::{self, TokenNames};
use crate::response::running_completions::{Completion, StreamEvent, StreamWriter, input_details};
use lab_base::util::clock::unix_seconds;
use lab_core::engine::{AnswerToken, FinishReason, Usage};

use super::tools::{ClientTools, ToolKind, free_text};

pub(super) struct ResponseWriter {
    envelope: Envelope,
    echo: Map<String, Value>,
    callees: ClientTools,
    wants_logprobs: bool,
    items: Vec<Value>,
    open: Option<OpenItem>,
    n_events: usize,
    reason: Option<FinishReason>,
    lab: Option<JsonText>,
}

enum OpenItem {
    Reasoning(String),
    Text(String, Vec<Value>),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
}

const IN_PROGRESS: &str = "in_progress";
const COMPLETED: &str = "completed";
const INCOMPLETE: &str = "incomplete";

impl ResponseWriter {
    pub(super) fn new(
        envelope: Envelope,
        echo: Map<String, Value>,
        callees: ClientTools,
        wants_logprobs: bool,
    ) -> Self {
        Self {
            envelope,
            echo,
            callees,
            wants_logprobs,
            items: Vec::new(),
            open: None,
            n_events: 0,
            reason: None,
            lab: None,
        }
    }

    /// How the open call is made; functions if no call is open.
    fn kind(&self, name: &str) -> ToolKind {
        self.callees.of(name).kind
    }

    pub(super) fn response(&mut self, one: &Completion, usage: &Usage) -> JsonObject {
        let mut items = Vec::new();
        if !one.reasoning.is_empty() {
            items.push(OpenItem::Reasoning(one.reasoning.clone()));
        }
        if !one.text.is_empty() || (items.is_empty() && one.calls.is_empty()) {
            items.push(OpenItem::Text(one.text.clone(), self.logprobs(&one.tokens)));
        }
        items.extend(
            one.calls
                .iter()
                .cloned()
                .map(|(id, name, arguments)| OpenItem::Call {
                    id,
                    name,
                    arguments,
                }),
        );
        self.reason = one.reason;
        self.lab.clone_from(&one.report);
        let last = items.len() - 1;
        for (i, item) in items.iter().enumerate() {
            let status = if i == last { self.status() } else { COMPLETED };
            let item = self.item(item, i, status);
            self.items.push(item);
        }
        self.object(self.status(), Some(usage), &Value::Null)
    }

    fn status(&self) -> &'static str {
        match self.reason {
            Some(FinishReason::Length) => INCOMPLETE,
            _ => COMPLETED,
        }
    }

    fn object(&self, status: &str, usage: Option<&Usage>, error: &Value) -> JsonObject {
        let details = (status == INCOMPLETE).then(|| json!({ "reason": "max_output_tokens" }));
        let mut out = json!({
            "id": self.envelope.id, "object": "response", "created_at": self.envelope.created,
            "status": status,
            "completed_at": (status == COMPLETED).then(unix_seconds),
            "error": error, "incomplete_details": details,
            "model": self.envelope.served.name, "output": self.items,
        });
        for (name, value) in &self.echo {
            out[name.as_str()] = value.clone();
        }
        out["usage"] = usage.map(usage_json).unwrap_or_default();
        let mut out = JsonObject::from(out);
        if let Some(lab) = &self.lab {
            out.put("lab", lab);
        }
        out
    }

    /// The id of an item, by its index `place` in the output.
    fn id(&self, item: &OpenItem, place: usize) -> String {
        let kind = match item {
            OpenItem::Reasoning(_) => "rs",
            OpenItem::Text(..) => "msg",
            OpenItem::Call { name, .. } => match self.kind(name) {
                ToolKind::Function => "fc",
                ToolKind::Custom => "ctc",
                ToolKind::Search => "tsc",
            },
        };
        let own = self.envelope.id.trim_start_matches("resp_");
        format!("{kind}_{own}_{place}")
    }

    /// The JSON of an item, by its index `place` in the output.
    fn item(&self, item: &OpenItem, place: usize, status: &str) -> Value {
        let id = self.id(item, place);
        let is_begun = status == IN_PROGRESS;
        match item {
            OpenItem::Reasoning(text) => {
                let content = json!([{ "type": "reasoning_text", "text": text }]);
                json!({
                    "id": id, "type": "reasoning", "summary": [],
                    "content": if is_begun { json!([]) } else { content }, "status": status,
                })
            }
            OpenItem::Text(text, logprobs) => {
                let content = json!([part(text, logprobs)]);
                json!({
                    "id": id, "type": "message", "role": "assistant", "status": status,
                    "content": if is_begun { json!([]) } else { content },
                })
            }
            OpenItem::Call {
                id: call,
                name,
                arguments,
            } => {
                let callee = self.callees.of(name);
                let mut item = json!({ "id": id, "type": "function_call", "call_id": call });
                match callee.kind {
                    ToolKind::Function => item["arguments"] = arguments.as_str().into(),
                    ToolKind::Custom => {
                        item["type"] = "custom_tool_call".into();
                        item["input"] = free_text(arguments).into();
                    }
                    ToolKind::Search => {
                        let arguments: Option<Value> = serde_json::from_str(arguments).ok();
                        item["type"] = "tool_search_call".into();
                        item["execution"] = "client".into();
                        item["arguments"] = arguments.unwrap_or_else(|| json!({}));
                    }
                }
                if callee.kind != ToolKind::Search {
                    item["name"] = callee.name.into();
                }
                if let Some(namespace) = callee.namespace {
                    item["namespace"] = namespace.into();
                }
                item["status"] = status.into();
                item
            }
        }
    }

    fn logprobs(&self, tokens: &[AnswerToken]) -> Vec<Value> {
        match self.wants_logprobs {
            true => logprobs::entries(
                tokens,
                TokenNames::Texts,
                self.envelope.served.handle.tokenizer(),
            )
            .collect(),
            false => Vec::new(),
        }
    }

    fn event(&mut self, kind: &str, fields: &Value, out: &mut SseEvents) {
        let mut event = json!({ "type": kind, "sequence_number": self.n_events });
        self.n_events += 1;
        for (name, value) in fields.as_object().into_iter().flatten() {
            event[name.as_str()] = value.clone();
        }
        out.push_named(&event);
    }

    /// Writes an event with its sequence number and the response.
    fn of_response(&mut self, kind: &str, response: JsonObject, out: &mut SseEvents) {
        let event = json!({ "type": kind, "sequence_number": self.n_events });
        self.n_events += 1;
        let mut event = JsonObject::from(event);
        event.put("response", response);
        out.push_as(kind, &event);
    }

    /// Writes an event of an item, with additional `fields`.
    fn of_item(&mut self, kind: &str, item: &OpenItem, fields: &Value, out: &mut SseEvents) {
        let place = self.items.len();
        let mut all = json!({ "item_id": self.id(item, place), "output_index": place });
        for (name, value) in fields.as_object().into_iter().flatten() {
            all[name.as_str()] = value.clone();
        }
        self.event(kind, &all, out);
    }

    /// Begins an item and closes the open one.
    fn begin(&mut self, item: OpenItem, out: &mut SseEvents) {
        self.close(COMPLETED, out);
        let value = self.item(&item, self.items.len(), IN_PROGRESS);
        let fields = json!({ "output_index": self.items.len(), "item": value });
        self.event("response.output_item.added", &fields, out);
        let part = match &item {
            OpenItem::Reasoning(_) => Some(json!({ "type": "reasoning_text", "text": "" })),
            OpenItem::Text(..) => Some(part("", &[])),
            OpenItem::Call { .. } => None,
        };
        if let Some(part) = part {
            let fields = json!({ "content_index": 0, "part": part });
            self.of_item("response.content_part.added", &item, &fields, out);
        }
        self.open = Some(item);
    }

    fn close(&mut self, status: &str, out: &mut SseEvents) {
        let Some(open) = self.open.take() else {
            return;
        };
        let item = self.item(&open, self.items.len(), status);
        match &open {
            OpenItem::Reasoning(text) => {
                let fields = json!({ "content_index": 0, "text": text });
                self.of_item("response.reasoning_text.done", &open, &fields, out);
            }
            OpenItem::Text(text, logprobs) => {
                let fields = json!({ "content_index": 0, "text": text, "logprobs": logprobs });
                self.of_item("response.output_text.done", &open, &fields, out);
            }
            OpenItem::Call {
                name, arguments, ..
            } => match self.kind(name) {
                ToolKind::Function => {
                    let name = self.callees.of(name).name;
                    let fields = json!({ "name": name, "arguments": arguments });
                    self.of_item("response.function_call_arguments.done", &open, &fields, out);
                }
                ToolKind::Custom => {
                    let input = free_text(arguments);
                    let delta = json!({ "delta": input });
                    self.of_item("response.custom_tool_call_input.delta", &open, &delta, out);
                    let fields = json!({ "input": input });
                    self.of_item("response.custom_tool_call_input.done", &open, &fields, out);
                }
                // Its arguments are an object, which the whole item has.
                ToolKind::Search => {}
            },
        }
        if let Some(part) = item["content"].get(0).cloned() {
            let fields = json!({ "content_index": 0, "part": part });
            self.of_item("response.content_part.done", &open, &fields, out);
        }
        let fields = json!({ "output_index": self.items.len(), "item": item });
        self.event("response.output_item.done", &fields, out);
        self.items.push(item);
    }

    /// Writes an event of new text of the open item.
    fn delta(&mut self, kind: &str, fields: &Value, out: &mut SseEvents) {
        if let Some(open) = self.open.take() {
            self.of_item(kind, &open, fields, out);
            self.open = Some(open);
        }
    }

    fn piece(&mut self, piece: CompletionDelta, out: &mut SseEvents) {
        match piece {
            CompletionDelta::Content(text, _) if text.is_empty() => {}
            CompletionDelta::Content(text, tokens) => {
                let logprobs = self.logprobs(&tokens);
                if !matches!(self.open, Some(OpenItem::Text(..))) {
                    self.begin(OpenItem::Text(String::new(), Vec::new()), out);
                }
                let fields = json!({ "content_index": 0, "delta": text, "logprobs": logprobs });
                self.delta("response.output_text.delta", &fields, out);
                if let Some(OpenItem::Text(all, entries)) = &mut self.open {
                    all.push_str(&text);
                    entries.extend(logprobs);
                }
            }
            CompletionDelta::Reasoning(text) => {
                if !matches!(self.open, Some(OpenItem::Reasoning(_))) {
                    self.begin(OpenItem::Reasoning(String::new()), out);
                }
                let fields = json!({ "content_index": 0, "delta": text });
                self.delta("response.reasoning_text.delta", &fields, out);
                if let Some(OpenItem::Reasoning(all)) = &mut self.open {
                    all.push_str(&text);
                }
            }
            CompletionDelta::Call(_, id, name) => {
                let arguments = String::new();
                let call = OpenItem::Call {
                    id,
                    name,
                    arguments,
                };
                self.begin(call, out);
            }
            CompletionDelta::Arguments(_, text) => {
                if let Some(OpenItem::Call {
                    name, arguments, ..
                }) = &mut self.open
                {
                    arguments.push_str(&text);
                    // Those of the others are known only when they are complete.
                    if self.callees.of(name).kind == ToolKind::Function {
                        let fields = json!({ "delta": text });
                        self.delta("response.function_call_arguments.delta", &fields, out);
                    }
                }
            }
        }
    }
}

fn part(text: &str, logprobs: &[Value]) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}

fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": input_details(usage),
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

impl StreamWriter for ResponseWriter {
    const HAS_DONE: bool = false;

    fn write(&mut self, _choice: u32, event: StreamEvent<'_>, out: &mut SseEvents) {
        match event {
            StreamEvent::Start => {
                let response = self.object(IN_PROGRESS, None, &Value::Null);
                self.of_response("response.created", response.clone(), out);
                self.of_response("response.in_progress", response, out);
            }
            StreamEvent::Piece(piece) => self.piece(piece, out),
            // The last event carries it, with the whole response.
            StreamEvent::Lab(result) => self.lab = Some(result),
            StreamEvent::End(reason, _) => {
                self.reason = Some(reason);
                if self.items.is_empty() && self.open.is_none() {
                    self.begin(OpenItem::Text(String::new(), Vec::new()), out);
                }
                self.close(self.status(), out);
            }
            StreamEvent::Done(usage) => {
                let status = self.status();
                let response = self.object(status, Some(usage), &Value::Null);
                self.of_response(&format!("response.{status}"), response, out);
            }
            StreamEvent::Failed(error) => {
                let error = &error.body()["error"];
                let error = json!({ "code": error["code"], "message": error["message"] });
                let response = self.object("failed", None, &error);
                self.of_response("response.failed", response, out);
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
