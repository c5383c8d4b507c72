//! `POST /v1/chat/completions`: the messages, and the form of the response.
//!
//! Shapes: OpenAI's API reference, chat completions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::engine::serving::{self, Conversation, Served};
use crate::engine::{AnswerToken, FinishReason, Fixed, Usage};

use super::Pool;
use super::answers::{Answers, Format, finish_reason, usage_json};
use super::diffusion::step_json;
use super::error::Error;
use super::fields::{Body, fields};
use super::generation::Generation;
use super::logprobs;

/// Maximum length of the list of most probable tokens.
const MAX_TOP_LOGPROBS: u32 = 20;

fields! {
    struct Chat {
        messages: Vec<Value>,
        logprobs: Option<bool>,
        top_logprobs: Option<u32>,
        tools: Option<Value>,
        tool_choice: Option<Value>,
        chat_template_kwargs: Option<Map<String, Value>>,
        add_generation_prompt: Option<bool>,
        continue_final_message: Option<bool>,
    }
}

/// The request in a body.
///
/// # Errors
/// Checks that do not depend on the model.
fn parse(mut body: Body) -> Result<(Chat, Generation), Error> {
    let generation = Generation::take(&mut body)?;
    let chat: Chat = body.take()?;
    body.finish()?;
    chat.check()?;
    Ok((chat, generation))
}

/// Why a request with these fields is refused whatever the model; none if it is not.
pub(super) fn refusal(fields: Map<String, Value>) -> Option<String> {
    let parsed = parse(Body::of(fields));
    parsed.err().map(|error| error.to_string())
}

pub(super) async fn completions(
    State(pool): State<Arc<Pool>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Error> {
    let (chat, generation) = parse(Body::read(&headers, body)?)?;
    let wanted = generation.constraint()?;
    let served = pool.get(generation.model()).await?;
    let prompt = served.chat_prompt(&chat.conversation())?;
    let constraint = match wanted {
        Some(wanted) => Some(wanted.compile(&served).await?),
        None => None,
    };
    let requests =
        generation.requests(&served, &prompt, chat.n_top_logprobs(), constraint.as_ref())?;
    let answers = Answers::submit(&served, requests)?;
    let shape = Shape::new(Arc::clone(&served), &chat, &generation);
    if generation.is_streamed() {
        return Ok(answers.stream(shape));
    }
    let (all, usage) = answers.collect().await?;
    let choices = all.iter().enumerate().map(|(i, one)| {
        json!({
            "index": i,
            "message": { "role": "assistant", "content": one.text, "refusal": null },
            "logprobs": shape.logprobs(&one.tokens),
            "finish_reason": one.finish_reason(),
        })
    });
    let mut answer = shape.object("chat.completion", &choices.collect());
    answer["usage"] = usage_json(&usage);
    Ok(Json(answer).into_response())
}

impl Chat {
    fn check(&self) -> Result<(), Error> {
        self.check_messages()?;
        let is_set = |v: &&Value| v.as_array().is_none_or(|a| !a.is_empty());
        if self.tools.as_ref().filter(is_set).is_some() {
            return Err(Error::unsupported("tools", "`tools` are not served yet"));
        }
        let is_free = |choice: &Value| choice == "none" || choice == "auto";
        if self.tool_choice.as_ref().is_some_and(|c| !is_free(c)) {
            let message = "`tool_choice` is not served yet";
            return Err(Error::unsupported("tool_choice", message));
        }
        if let Some(top) = self.top_logprobs {
            let message = if top > MAX_TOP_LOGPROBS {
                format!("`top_logprobs` is {top}, expected 0 to {MAX_TOP_LOGPROBS}")
            } else if self.logprobs != Some(true) {
                "`top_logprobs` needs `logprobs` to be true".into()
            } else {
                String::new()
            };
            if !message.is_empty() {
                return Err(Error::value("top_logprobs", message));
            }
        }
        if self.continue_final_message == Some(true) && self.add_generation_prompt == Some(true) {
            let message =
                "`continue_final_message` and `add_generation_prompt` cannot both be true";
            return Err(Error::value("continue_final_message", message));
        }
        Ok(())
    }

    fn check_messages(&self) -> Result<(), Error> {
        if self.messages.is_empty() {
            let message = "`messages` is empty, expected at least one message";
            return Err(Error::value("messages", message));
        }
        for (i, message) in self.messages.iter().enumerate() {
            let param = format!("messages[{i}]");
            let Some(fields) = message.as_object() else {
                return Err(Error::value(&param, format!("`{param}` is not an object")));
            };
            if !fields.get("role").is_some_and(Value::is_string) {
                let param = format!("{param}.role");
                return Err(Error::value(
                    &param,
                    format!("`{param}` is missing or no text"),
                ));
            }
            match fields.get("content") {
                None | Some(Value::Null | Value::String(_)) => {}
                Some(Value::Array(parts)) => check_parts(&param, parts)?,
                Some(_) => {
                    let param = format!("{param}.content");
                    let message = format!("`{param}` is neither text nor an array of parts");
                    return Err(Error::value(&param, message));
                }
            }
        }
        Ok(())
    }

    /// Length of the list of most probable tokens, if log-probabilities are wanted.
    fn n_top_logprobs(&self) -> Option<usize> {
        let is_wanted = self.logprobs == Some(true);
        is_wanted.then(|| self.top_logprobs.unwrap_or(0) as usize)
    }

    /// The input of the template.
    fn conversation(&self) -> Conversation {
        let messages = self.messages.iter().map(with_plain_content).collect();
        Conversation {
            messages: Value::Array(messages),
            tools: Value::Null,
            continue_final_message: self.continue_final_message == Some(true),
            kwargs: self.chat_template_kwargs.clone().unwrap_or_default(),
        }
    }
}

fn check_parts(message: &str, parts: &[Value]) -> Result<(), Error> {
    for (k, part) in parts.iter().enumerate() {
        let is_text = part.get("type").and_then(Value::as_str) == Some("text");
        if !is_text || !part.get("text").is_some_and(Value::is_string) {
            let param = format!("{message}.content[{k}]");
            let message = format!("`{param}`: only parts of type `text` are served");
            return Err(Error::unsupported(&param, message));
        }
    }
    Ok(())
}

/// A message whose text parts are joined: templates expect one text.
fn with_plain_content(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(parts) = message.get("content").and_then(Value::as_array) {
        let texts = parts.iter().filter_map(|part| part.get("text"));
        let text: String = texts.filter_map(Value::as_str).collect();
        message["content"] = Value::String(text);
    }
    message
}

/// The fields that all chunks of a response share, and how they are written.
struct Shape {
    served: Arc<Served>,
    id: String,
    created: u64,
    fingerprint: String,
    wants_usage: bool,
    wants_logprobs: bool,
}

impl Shape {
    fn new(served: Arc<Served>, chat: &Chat, generation: &Generation) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (now, count) = (serving::now(), COUNT.fetch_add(1, Ordering::Relaxed));
        let (version, ggml) = (env!("CARGO_PKG_VERSION"), crate::ggml::version());
        Self {
            served,
            id: format!("chatcmpl-{now:x}{count:08x}"),
            created: now,
            fingerprint: format!("bench-{version}-ggml-{ggml}"),
            wants_usage: generation.wants_usage(),
            wants_logprobs: chat.n_top_logprobs().is_some(),
        }
    }

    fn object(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.served.name,
            "system_fingerprint": self.fingerprint, "choices": choices,
        })
    }

    fn logprobs(&self, tokens: &[AnswerToken]) -> Option<Value> {
        let tokenizer = self.served.handle.tokenizer();
        let entries = || logprobs::entries(tokens, tokenizer);
        self.wants_logprobs
            .then(|| json!({ "content": entries(), "refusal": null }))
    }

    fn chunk(&self, choices: &Value) -> Value {
        let mut chunk = self.object("chat.completion.chunk", choices);
        if self.wants_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(
        &self,
        i: u32,
        delta: &Value,
        logprobs: Option<&Value>,
        reason: Option<&str>,
    ) -> String {
        let choice =
            json!([{ "index": i, "delta": delta, "logprobs": logprobs, "finish_reason": reason }]);
        self.chunk(&choice).to_string()
    }
}

impl Format for Shape {
    fn start(&self, choice: u32) -> Vec<String> {
        let delta = json!({ "role": "assistant", "content": "" });
        vec![self.delta(choice, &delta, None, None)]
    }

    fn text(&self, choice: u32, text: &str, tokens: &[AnswerToken]) -> String {
        let delta = json!({ "content": text });
        self.delta(choice, &delta, self.logprobs(tokens).as_ref(), None)
    }

    fn step(&self, choice: u32, step: usize, fixed: &[Fixed], n_masked: usize) -> String {
        let mut chunk = self.chunk(&json!([]));
        let tokenizer = self.served.handle.tokenizer();
        chunk["diffusion"] = step_json(choice, step, n_masked, fixed, tokenizer);
        chunk.to_string()
    }

    fn end(&self, choice: u32, reason: FinishReason) -> String {
        self.delta(choice, &json!({}), None, Some(finish_reason(reason)))
    }

    fn done(&self, usage: &Usage) -> Vec<String> {
        let mut out = Vec::new();
        if self.wants_usage {
            let mut last = self.chunk(&json!([]));
            last["usage"] = usage_json(usage);
            out.push(last.to_string());
        }
        out.push("[DONE]".into());
        out
    }
}
