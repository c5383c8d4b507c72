//! The dialect of a route: in which shape it writes errors, and in which words those that clients match.

use axum::body::Bytes;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::http::transport::SseEvents;

use crate::endpoints::{anthropic, responses};

/// The dialect of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorFormat {
    /// OpenAI's chat and completions, and all that have no dialect of their own.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// OpenAI's responses.
    Responses,
    /// llama-server's own completions.
    LlamaServer,
}

impl ErrorFormat {
    /// The dialect of the route at a path.
    pub(crate) fn of(path: &str) -> Self {
        match path {
            _ if path.starts_with(anthropic::ROUTE) => Self::Anthropic,
            _ if responses::ROUTES.contains(&path) => Self::Responses,
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
                out.push_named(&anthropic::error_body(status, message, None));
            }
            Self::Responses => out.push_named(&json!({
                "type": "error", "code": error["code"], "message": error["message"],
                "param": error["param"], "sequence_number": n_events,
            })),
        }
        out.into()
    }
}
