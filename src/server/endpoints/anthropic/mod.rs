//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: conversations in Anthropic's shape.
//!
//! A request is rewritten into the fields of chat completions, so that there is one path to a model; the response is a
//! list of blocks. Shapes: Anthropic's API reference, messages. Not here: prompts, sampling, parsing of calls.

mod client_tools;
mod request;
mod response;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::Pool;
use crate::endpoints::chat_request::ChatRequest;
use crate::http::error::Error;
use crate::http::json::Json;
use crate::request::fields::BodyFields;
use crate::request::generation::ReportOptions;
use crate::response::envelope::Envelope;

use response::MessageWriter;

pub(crate) use request::fields;

/// The conversation in a body. `counts`: only the tokens of its prompt are counted.
fn parse(body: BodyFields, counts: bool) -> Result<ChatRequest, Error> {
    let dialogue: ChatRequest = request::rewritten(body, counts)?.whole()?;
    dialogue.check()?;
    dialogue.check_single("message")?;
    Ok(dialogue)
}

pub(crate) async fn messages(
    State(pool): State<Arc<Pool>>,
    body: BodyFields,
) -> Result<Response, Error> {
    let dialogue = parse(body, false)?;
    let begun = dialogue.submit(&pool, None).await?;
    let envelope = Envelope::new(begun.served, "msg_", ReportOptions::default());
    let shape = MessageWriter::new(envelope, begun.first.prompt.len());
    if dialogue.generation.is_streamed() {
        return Ok(begun.answers.stream(shape));
    }
    let (all, usage) = begun.answers.collect().await?;
    let message = all.first().map(|one| shape.message(one, &usage));
    Ok(Json(message).into_response())
}

pub(crate) async fn count_tokens(
    State(pool): State<Arc<Pool>>,
    body: BodyFields,
) -> Result<Json, Error> {
    let dialogue = parse(body, true)?;
    let n = dialogue.prompt(&pool).await?.prompt.tokens.len();
    Ok(Json(json!({ "input_tokens": n })))
}
