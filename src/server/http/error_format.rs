//! The dialect of a route: in which shape it writes errors, and in which words those that clients match.

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::json::Json;
use super::transport::SseEvents;

/// The routes of Anthropic's messages start with this.
const ANTHROPIC: &str = "/v1/messages";
/// The routes of Ollama's API start with this.
const OLLAMA: &str = "/api/";
/// The routes of OpenAI's responses, with or without counting their tokens.
const RESPONSES: &[&str] = &["/v1/responses", "/responses"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorFormat {
    /// OpenAI's chat and completions, and all that have no dialect of their own.
    OpenAi,
    Anthropic,
    Responses,
    LlamaServer,
    Ollama,
}

impl ErrorFormat {
    pub(crate) fn of(path: &str) -> Self {
        match path {
            _ if path.starts_with(ANTHROPIC) => Self::Anthropic,
            _ if path.starts_with(OLLAMA) => Self::Ollama,
            _ if RESPONSES.contains(&path) => Self::Responses,
            "/completion" | "/completions" | "/infill" => Self::LlamaServer,
            _ => Self::OpenAi,
        }
    }

    /// The event of an error with this body, after `n_events` events.
    pub(crate) fn error_event(self, status: StatusCode, body: &Value, n_events: usize) -> Bytes {
        let (error, mut out) = (&body["error"], SseEvents::default());
        match self {
            Self::OpenAi | Self::LlamaServer => out.push(body),
            // An engine process has already written it in Anthropic's shape.
            Self::Anthropic if body["type"] == "error" => out.push_named(body),
            Self::Anthropic => {
                let message = error["message"].as_str().unwrap_or_default();
                out.push_named(&anthropic_error(status, message, None));
            }
            Self::Ollama => {
                // An engine process has already written it in Ollama's shape.
                let message = error["message"].as_str().or(error.as_str());
                out.push_line(&ollama_error(message.unwrap_or_default()));
            }
            Self::Responses => out.push_named(&json!({
                "type": "error", "code": error["code"], "message": error["message"],
                "param": error["param"], "sequence_number": n_events,
            })),
        }
        out.into()
    }
}

/// An error response, for routes that write errors in another shape.
#[derive(Clone, Debug)]
pub(crate) struct ErrorMessage {
    pub(crate) message: String,
    pub(crate) details: Option<Value>,
}

pub(crate) fn anthropic_error(status: StatusCode, message: &str, details: Option<&Value>) -> Value {
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

pub(crate) fn ollama_error(message: &str) -> Value {
    json!({ "error": message })
}

/// Writes errors in the shape of the route's dialect, whichever layer refused the request.
pub(crate) async fn dialect_errors<F: Future<Output = Response>>(
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let format = ErrorFormat::of(request.uri().path());
    let mut response = next(request).await;
    let refusal = response.extensions_mut().remove::<ErrorMessage>();
    let Some(ErrorMessage { message, details }) = refusal else {
        return response;
    };
    let body = match format {
        ErrorFormat::Anthropic => anthropic_error(response.status(), &message, details.as_ref()),
        ErrorFormat::Ollama => ollama_error(&message),
        ErrorFormat::OpenAi | ErrorFormat::Responses | ErrorFormat::LlamaServer => return response,
    };
    let (mut parts, _) = response.into_parts();
    let body = Json(body).into_response();
    for (name, value) in body.headers() {
        parts.headers.insert(name, value.clone());
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, body.into_body())
}

#[cfg(test)]
mod tests {
    use super::super::error::Error;
    use super::*;
    use crate::http::context::RequestContext;

    #[test]
    fn an_error_ends_a_stream_in_its_dialect() {
        let error = Error::EngineDied {
            name: "m".into(),
            how: "SIGKILL".into(),
        };
        let failed = |path: &str| {
            let body = RequestContext::detached().enter(|| error.body());
            let text = ErrorFormat::of(path).error_event(error.status(), &body, 7);
            let text = std::str::from_utf8(&text).expect("UTF-8");
            let data = text.split_once("data: ").map_or(text, |(_, data)| data);
            let is_named = text.starts_with("event: error\n");
            let data: Value = serde_json::from_str(data).expect("JSON");
            (is_named, data)
        };
        let (is_named, data) = failed("/v1/chat/completions");
        assert!(!is_named);
        assert_eq!(data["error"]["code"], "engine_died");
        let (is_named, data) = failed("/v1/messages");
        assert!(is_named);
        assert_eq!(data["error"]["type"], "api_error");
        let (_, data) = failed("/api/chat");
        assert_eq!(data["error"], error.to_string());
        let (is_named, data) = failed("/v1/responses");
        assert!(is_named);
        assert_eq!(
            (&data["code"], &data["sequence_number"]),
            (&json!("engine_died"), &json!(7))
        );
    }
}
