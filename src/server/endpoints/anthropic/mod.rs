//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: conversations in Anthropic's shape.
//!
//! A request is rewritten into the fields of chat completions, so that there is one path to a model; the response is a
//! list of blocks. Shapes: Anthropic's API reference, messages. Not here: prompts, sampling, parsing of calls.

mod client_tools;
mod request;
mod response;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::Pool;
use crate::endpoints::chat_request::ChatRequest;
use crate::http::error::{Error, ErrorMessage};
use crate::http::json::Json;
use crate::request::fields::BodyFields;
use crate::response::envelope::{Envelope, ReportOptions};

use response::MessageWriter;

/// The route of messages.
pub(crate) const ROUTE: &str = "/v1/messages";

pub(crate) use request::fields;

/// The conversation in a body. `counts`: only the tokens of its prompt are counted.
fn parse(body: BodyFields, counts: bool) -> Result<ChatRequest, Error> {
    let mut body = request::rewritten(body, counts)?;
    let dialogue = ChatRequest::take(&mut body)?;
    body.finish()?;
    dialogue.check()?;
    dialogue.generation.refuse_reports()?;
    if dialogue.generation.n_choices() != 1 {
        return Err(Error::invalid_value(
            "n",
            "`n` is not 1: a message is one completion",
        ));
    }
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
    let n = dialogue.prompt(&pool).await?.tokens.len();
    Ok(Json(json!({ "input_tokens": n })))
}

/// An error in Anthropic's shape.
pub(crate) fn error_body(status: StatusCode, message: &str, details: Option<&Value>) -> Value {
    let kind = match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => "timeout_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    let mut body = json!({ "type": "error", "error": { "type": kind, "message": message } });
    if let Some(details) = details {
        body["error"]["details"] = details.clone();
    }
    body
}

/// Writes errors of these routes in Anthropic's shape, whichever layer refused the request.
pub(crate) async fn layer<F: Future<Output = Response>>(
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let is_own = request.uri().path().starts_with(ROUTE);
    let mut response = next(request).await;
    let refusal = response.extensions_mut().remove::<ErrorMessage>();
    let Some(refusal) = refusal.filter(|_| is_own) else {
        return response;
    };
    let (mut parts, _) = response.into_parts();
    let ErrorMessage { message, details } = refusal;
    let body = Json(error_body(parts.status, &message, details.as_ref())).into_response();
    for (name, value) in body.headers() {
        parts.headers.insert(name, value.clone());
    }
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    Response::from_parts(parts, body.into_body())
}
