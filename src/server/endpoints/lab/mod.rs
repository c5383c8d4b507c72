//! `lab` of a request: values that are captured and edited. `GET /v1/lab/points` lists the points, `POST /v1/lab/run`
//! reads a prompt only for its values.
//!
//! Rows of numbers are base64 of little-endian f32 or f16 with `shape` and `dtype`, slowest dimension first as in
//! NumPy, or JSON numbers. docs/lab.md describes the plan.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use lab_core::engine::FinishReason;

use super::adapters::ModelQuery;
use crate::Pool;
use crate::endpoints::chat_request::{self, ChatRequest, RunningChat};
use crate::http::error::{Error, invalid, refuse};
use crate::http::json::{Json, JsonObject};
use crate::request::fields::{BodyFields, FieldDoc, fields};
use crate::request::generation::{GenerationParams, choice_requests};
use crate::request::input::{TextOrTokens, check_ids, texts_or_tokens};
use crate::request::lab::{FIELD, LabRequest};
use crate::response::running_completions::{RunningCompletions, usage_json};
use crate::served::ServedModel;

pub(crate) mod artifacts;
pub(crate) mod patch;
pub(crate) mod pictures;
pub(crate) mod vectors;

pub use patch::patched;

fields! {
    /// A prompt that is read for its values. Messages can take its place.
    struct RunFields {
        /// A text or token ids.
        prompt: Option<Value>,
        /// Whether a text gets the special tokens that the vocabulary asks for; default: true.
        add_special_tokens: Option<bool>,
    }
}

/// The documented fields of `/v1/lab/run`, which reads a text, tokens or messages.
pub(crate) fn run_fields() -> Vec<FieldDoc> {
    let mut fields = chat_request::fields_with::<RunFields>();
    // Messages are optional: a prompt can take their place.
    let messages = fields.iter_mut().filter(|field| field.name == "messages");
    messages.for_each(|field| field.ty = format!("Option<{}>", field.ty));
    fields
}

/// The text of each token, with a replacement character for bytes that are not UTF-8.
pub fn pieces(tokens: &[u32], served: &ServedModel) -> Value {
    let tokenizer = served.handle.tokenizer();
    let piece = |id: &u32| String::from_utf8_lossy(tokenizer.piece(*id));
    tokens.iter().map(piece).collect()
}

/// The tokens of the one prompt in a field. A text gets the special tokens that the vocabulary asks for if `adds_special`.
fn prompt_tokens(
    served: &ServedModel,
    param: &'static str,
    prompt: &Value,
    adds_special: bool,
) -> Result<Vec<u32>, Error> {
    let mut all = texts_or_tokens(param, prompt)?;
    let (Some(one), true) = (all.pop(), all.is_empty()) else {
        let message = format!(
            "`{param}` has more than one prompt, expected one string or one array of token ids"
        );
        return invalid(param, message);
    };
    match one {
        TextOrTokens::Text(text) => {
            let tokens = served.handle.tokenizer().encode(&text, adds_special, true);
            tokens.map_err(|error| Error::invalid_value(param, error.to_string()))
        }
        TextOrTokens::Tokens(tokens) => {
            check_ids(param, &tokens, served)?;
            Ok(tokens)
        }
    }
}

/// Lists the points of a model, which can be captured and edited.
pub(crate) async fn points(
    State(pool): State<Arc<Pool>>,
    which: ModelQuery,
) -> Result<Json, Error> {
    let served = pool.get(which.name()).await?;
    let points = &served.handle.points().all;
    Ok(Json(
        json!({ "object": "list", "model": served.name, "data": points }),
    ))
}

/// The plan of a request, whose answer is not a stream.
fn check(generation: &GenerationParams) -> Result<Arc<LabRequest>, Error> {
    if generation.is_streamed() {
        let message = "`stream` is not possible here; see `/v1/completions`";
        return invalid("stream", message);
    }
    generation.lab.clone().ok_or_else(|| Error::missing(FIELD))
}

/// Reads a prompt. Generates nothing unless `max_tokens` is set.
pub(crate) async fn run(
    State(pool): State<Arc<Pool>>,
    body: BodyFields,
) -> Result<Json<JsonObject>, Error> {
    let mut body = body.closed();
    let run: RunFields = body.take()?;
    let running = match run.prompt {
        None if body.has("messages") => {
            if run.add_special_tokens.is_some() {
                return refuse(
                    "add_special_tokens",
                    " and `messages` are mutually exclusive",
                );
            }
            let chat: ChatRequest = body.take()?;
            body.finish()?;
            chat.check_for(0)?;
            check(&chat.generation)?;
            let served = pool.get(chat.generation.model()).await?;
            let ready = chat.prepare(served, None).await?;
            ready.for_values().submit(chat.generation.n_choices())?
        }
        None => return Err(Error::missing("prompt")),
        Some(prompt) => {
            let generation: GenerationParams = body.take()?;
            if body.has("messages") {
                return refuse("messages", " and `prompt` are mutually exclusive");
            }
            body.finish()?;
            generation.check(0)?;
            let lab = check(&generation)?;
            let constraint = generation.constraint()?;
            let served = pool.get(generation.model()).await?;
            let adds_special = run.add_special_tokens != Some(false);
            let tokens = prompt_tokens(&served, "prompt", &prompt, adds_special)?;
            let constraint = generation.compile(constraint, &served).await?;
            let first = generation.request(&served, &tokens, None, constraint.as_ref());
            let mut first = first.map_err(|error| error.with_prompt_field("prompt"))?;
            first.max_tokens.get_or_insert(0);
            let n = generation.n_choices();
            let requests = choice_requests(&first, n).collect();
            let answers = RunningCompletions::submit(&served, requests, n);
            let answers = answers.map_err(|error| error.with_prompt_field("prompt"))?;
            let answers = answers.with_lab(Some(lab), &served);
            RunningChat {
                served,
                answers,
                first,
            }
        }
    };
    let (served, tokens) = (running.served, running.first.prompt);
    let (all, usage) = running.answers.collect().await?;
    let results = all.into_iter().enumerate().map(|(index, one)| {
        let mut result = JsonObject::from(json!({
            "index": index, "text": one.text, "lab": null,
            "finish_reason": one.reason.map(FinishReason::as_str),
        }));
        if let Some(report) = one.report {
            result.put("lab", report);
        }
        result
    });
    let mut out = JsonObject::from(json!({
        "object": "lab.run", "model": served.name, "tokens": tokens,
        "pieces": pieces(&tokens, &served), "results": null, "usage": usage_json(&usage),
    }));
    out.put("results", results.collect::<Vec<JsonObject>>());
    Ok(Json(out))
}
