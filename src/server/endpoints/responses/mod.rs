//! `POST /v1/responses`: conversations in the shape of OpenAI's responses.
//!
//! A request is rewritten into the fields of chat completions, so that there is one path to a model; the response is a
//! list of items. Shapes: OpenAI's API reference, responses. What is stored is in the server: `state` resolves it before a
//! request goes to a model, and stores the response. `stored` reads and removes it.

mod conversation;
mod request;
mod response;
pub(crate) mod state;
pub(crate) mod stored;
mod tools;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::Pool;
use crate::endpoints::chat_request::ChatRequest;
use crate::http::error::Error;
use crate::http::json::Json;
use crate::request::fields::BodyFields;
use crate::request::generation::ReportOptions;
use crate::response::envelope::Envelope;

pub(crate) use request::fields;
pub(crate) use tools::{INPUT, free_text, free_text_schema};

use request::Rewritten;
use response::ResponseWriter;

fn dialogue(body: BodyFields) -> Result<ChatRequest, Error> {
    let dialogue: ChatRequest = body.whole()?;
    dialogue.check()?;
    dialogue.check_single("response")?;
    Ok(dialogue)
}

pub(crate) async fn input_tokens(
    State(pool): State<Arc<Pool>>,
    body: BodyFields,
) -> Result<Json, Error> {
    let rewritten = request::rewritten(body)?;
    dialogue(rewritten.body)?.input_tokens(&pool).await
}

pub(crate) async fn responses(
    State(pool): State<Arc<Pool>>,
    body: BodyFields,
) -> Result<Response, Error> {
    let Rewritten {
        body,
        echo,
        callees,
        id,
        top_logprobs,
    } = request::rewritten(body)?;
    let dialogue = dialogue(body)?;
    let begun = dialogue.submit(&pool, top_logprobs).await?;
    let mut envelope = Envelope::new(begun.served, "resp_", ReportOptions::default());
    if let Some(id) = id {
        envelope.id = id;
    }
    let mut shape = ResponseWriter::new(envelope, echo, callees, top_logprobs.is_some());
    if dialogue.generation.is_streamed() {
        return Ok(begun.answers.stream(shape));
    }
    let (all, usage) = begun.answers.collect().await?;
    let response = all.first().map(|one| shape.response(one, &usage));
    Ok(Json(response).into_response())
}
