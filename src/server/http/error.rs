//! Every error of the API: its message and its status.
//!
//! The body has OpenAI's shape: `message`, `type`, `param` and `code`, all four always present; `code` is a word, never
//! the status. A client's mistake is 4xx with the field's name; a fault of the server is 5xx, and its details go to the
//! log.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::served::{PromptError, ServedModel};
use lab_base::chat::template::RenderError;
use lab_core::engine::{Failure, Rejected};

use super::error_format::{ErrorFormat, ErrorMessage};
use super::json::Json;
pub(crate) use super::quoted::quoted;
use crate::http::context::RequestContext;
use crate::rate_limits::Exceeded;
use crate::served::DEFAULT_MODEL;

fn content_type(kind: Option<&str>) -> String {
    match kind {
        Some(kind) => format!("the content type is `{}`", quoted(kind)),
        None => "there is no content type".into(),
    }
}

/// A duration in whole seconds, at least one.
fn seconds(time: Duration) -> u64 {
    time.as_millis().div_ceil(1000).max(1) as u64
}

fn no_model(name: &str, near: Option<&str>, n_models: usize) -> String {
    match (name, near) {
        (DEFAULT_MODEL, _) if n_models > 1 => {
            "several models are served, so `model` must name one".into()
        }
        (DEFAULT_MODEL, _) => "the request names no model".into(),
        (name, None) => format!("the model `{}` does not exist", quoted(name)),
        (name, Some(near)) => {
            let name = quoted(name);
            format!("the model `{name}` does not exist; did you mean `{near}`?")
        }
    }
}

const MESSAGES: &str = "messages";

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{message}")]
    Field {
        param: String,
        message: String,
        code: &'static str,
    },
    #[error("{0}")]
    Body(String),
    #[error("the request is malformed: {0}")]
    Malformed(&'static str),
    #[error("the transfer coding of the body is not supported, expected `chunked` or none")]
    TransferCoding,
    #[error(
        "{}, expected `application/json`; curl sends it with `-H 'content-type: application/json'`",
        content_type(.0.as_deref())
    )]
    ContentType(Option<String>),
    #[error(
        "the content encoding `{}` is not supported, expected `gzip`, `deflate` or none",
        quoted(.0)
    )]
    ContentEncoding(String),
    #[error("timed out after {0:?} reading the request body")]
    BodyTimeout(Duration),
    #[error(
        "{}; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
        if *is_missing { "an API key is required" } else { "the API key is not known" }
    )]
    ApiKey { is_missing: bool },
    #[error("{message}")]
    Forbidden { code: &'static str, message: String },
    #[error("the body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("{}; {models}", no_model(name, near.as_deref(), *n_models))]
    UnknownModel {
        name: String,
        near: Option<String>,
        n_models: usize,
        /// The models that exist, in words.
        models: String,
    },
    #[error("the prompt has {found} tokens, and the context holds {limit}; shorten `{param}`{}", longer(*most))]
    ContextLength {
        found: usize,
        limit: usize,
        param: &'static str,
        /// The context length that the model was trained with, if it is longer.
        most: Option<u64>,
    },
    /// A conversation is to be kept. Anthropic's clients send it whole after this error.
    #[error("`thread` is not supported: conversations are not kept, send all messages")]
    ThreadUnsupported,
    #[error(
        "Item with id '{}' not found: the items of recent stored responses are kept; send the item itself",
        quoted(id)
    )]
    ItemNotFound { param: String, id: String },
    #[error(
        "{} may use {} {} a minute; try again in {} seconds",
        .0.client,
        .0.limit,
        .0.what,
        seconds(.0.after)
    )]
    RateLimit(Exceeded),
    #[error("{limit} requests are waiting already; try again later")]
    Busy { limit: usize },
    /// The model could not be loaded. `is_told`: the client may know why.
    #[error("the model `{name}` could not be loaded{}", if *is_told { format!(": {detail}") } else { String::new() })]
    LoadFailed {
        name: String,
        detail: String,
        is_told: bool,
    },
    #[error("the model `{name}` cannot be served{}", .why.as_deref().map(|why| format!(": {why}")).unwrap_or_default())]
    NotServable { name: String, why: Option<String> },
    #[error("the download failed: {0}")]
    DownloadFailed(String),
    #[error("the model `{name}` could not be drawn")]
    DrawingFailed { name: String, detail: String },
    /// The checks of this process passed. The model's engine process has to answer the request.
    #[error("the request did not go to the model's engine process")]
    ForEngineProcess,
    #[error(
        "the engine process of the model `{name}` died: {how}; the next request starts it again"
    )]
    EngineDied { name: String, how: String },
    #[error(
        "the engine process of the model `{name}` died {n} times within a minute, the last time: {how}; \
         requests start it again in {} seconds",
        seconds(*after)
    )]
    EngineSuspended {
        name: String,
        how: String,
        n: usize,
        after: Duration,
    },
    #[error("{}", of_failure(.0))]
    Failed(Failure),
    #[error("the request failed inside the server; the cause is in the server's log")]
    Engine { detail: String },
    #[error("there is no `{}`; `GET /docs` lists the endpoints", quoted(.0))]
    NoRoute(String),
    #[error("there is no {what} `{}`", quoted(id))]
    NotFound { what: &'static str, id: String },
    #[error("Response with id '{}' not found: {why}", quoted(id))]
    ResponseNotFound { id: String, why: &'static str },
    #[error("this method is not allowed here")]
    Method,
}

impl Error {
    pub(crate) fn invalid_value(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Field {
            param: param.into(),
            message: message.into(),
            code: "invalid_value",
        }
    }

    pub(crate) fn missing(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::Field {
            message: format!("missing required parameter: `{param}`"),
            param,
            code: "missing_required_parameter",
        }
    }

    pub(crate) fn wrong_type(param: impl Into<String>, message: &str) -> Self {
        let param = param.into();
        Self::Field {
            message: format!("`{param}`: {message}"),
            param,
            code: "invalid_type",
        }
    }

    pub(crate) fn unknown(param: String, near: Option<String>) -> Self {
        let hint = near.map(|near| format!("; did you mean `{near}`?"));
        Self::Field {
            message: format!("unknown parameter: `{param}`{}", hint.unwrap_or_default()),
            param,
            code: "unknown_parameter",
        }
    }

    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Field {
            param: param.into(),
            message: message.into(),
            code: "unsupported_parameter",
        }
    }

    /// A failure of the server, whose cause goes to the log.
    #[expect(clippy::needless_pass_by_value, reason = "errors are mapped by it")]
    pub(crate) fn engine(detail: impl ToString) -> Self {
        let detail = detail.to_string();
        Self::Engine { detail }
    }

    /// The same error, with `field` as the field of the prompt.
    pub(crate) fn with_prompt_field(mut self, field: &'static str) -> Self {
        match &mut self {
            Self::Field { param, .. } if param == MESSAGES => *param = field.into(),
            Self::ContextLength { param, .. } => *param = field,
            _ => {}
        }
        self
    }

    /// The same error, of a request to a model: one that is too long for the server may fit the model.
    pub(crate) fn with_trained_length(mut self, served: &ServedModel) -> Self {
        if let Self::ContextLength { limit, most, .. } = &mut self {
            let trained = served.info.n_ctx_train;
            *most = (trained > *limit as u64).then_some(trained);
        }
        self
    }

    /// The message, in the words that clients of the requested route know, with the fields that they sent.
    pub(crate) fn message(&self) -> String {
        RequestContext::current().with_sent(&self.format_message())
    }

    fn format_message(&self) -> String {
        let Self::ContextLength {
            found,
            limit,
            param,
            most,
        } = self
        else {
            return self.to_string();
        };
        let longer = longer(*most);
        match ErrorFormat::of(RequestContext::current().path()) {
            ErrorFormat::Anthropic => {
                let shorter = if longer.is_empty() {
                    ""
                } else {
                    "; shorten it"
                };
                format!("prompt is too long: {found} tokens > {limit} maximum{shorter}{longer}")
            }
            ErrorFormat::LlamaServer | ErrorFormat::Ollama => format!(
                "the request has {found} tokens and exceeds the available context size of {limit} tokens; shorten `{param}`{longer}"
            ),
            ErrorFormat::OpenAi | ErrorFormat::Responses => format!(
                "This model's maximum context length is {limit} tokens. However, your `{param}` resulted in {found} tokens. \
                 Please reduce the length of `{param}`{longer}"
            ),
        }
    }

    fn class(&self) -> (StatusCode, &'static str) {
        use StatusCode as S;
        match self {
            Self::Field { code, .. } => (S::BAD_REQUEST, *code),
            Self::Body(_) => (S::BAD_REQUEST, "invalid_json"),
            Self::Malformed(_) => (S::BAD_REQUEST, "malformed_request"),
            Self::ContextLength { .. } => (S::BAD_REQUEST, "context_length_exceeded"),
            Self::ThreadUnsupported => (S::BAD_REQUEST, "thread_unsupported_request"),
            Self::ApiKey { .. } => (S::UNAUTHORIZED, "invalid_api_key"),
            Self::Forbidden { code, .. } => (S::FORBIDDEN, *code),
            Self::UnknownModel { .. } => (S::NOT_FOUND, "model_not_found"),
            Self::NotServable { .. } => (S::NOT_FOUND, "model_not_servable"),
            Self::NotFound { .. } | Self::ItemNotFound { .. } | Self::ResponseNotFound { .. } => {
                (S::NOT_FOUND, "not_found")
            }
            Self::NoRoute(_) => (S::NOT_FOUND, "unknown_url"),
            Self::Method => (S::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::BodyTimeout(_) => (S::REQUEST_TIMEOUT, "request_timeout"),
            Self::TooLarge { .. } => (S::PAYLOAD_TOO_LARGE, "request_too_large"),
            Self::ContentType(_) => (S::UNSUPPORTED_MEDIA_TYPE, "unsupported_content_type"),
            Self::ContentEncoding(_) => (S::UNSUPPORTED_MEDIA_TYPE, "unsupported_content_encoding"),
            Self::Busy { .. } | Self::RateLimit(_) => (S::TOO_MANY_REQUESTS, "rate_limit_exceeded"),
            Self::EngineDied { .. } => (S::INTERNAL_SERVER_ERROR, "engine_died"),
            Self::DownloadFailed(_) => (S::BAD_GATEWAY, "download_failed"),
            Self::Engine { .. } | Self::DrawingFailed { .. } | Self::ForEngineProcess => {
                (S::INTERNAL_SERVER_ERROR, "internal_error")
            }
            Self::TransferCoding => (S::NOT_IMPLEMENTED, "unsupported_transfer_coding"),
            Self::LoadFailed { .. } => (S::SERVICE_UNAVAILABLE, "model_not_available"),
            Self::EngineSuspended { .. } => (S::SERVICE_UNAVAILABLE, "engine_restarting"),
            Self::Failed(failure) => match failure {
                Failure::Constraint(_) | Failure::NothingLeft(_) => {
                    (S::BAD_REQUEST, "invalid_value")
                }
                Failure::NotFinite { is_changed, .. } if *is_changed => {
                    (S::BAD_REQUEST, "non_finite_logits")
                }
                Failure::NotFinite { .. } => (S::INTERNAL_SERVER_ERROR, "non_finite_logits"),
                Failure::Computation(_) => (S::INTERNAL_SERVER_ERROR, "internal_error"),
                Failure::Changed(_) => (S::SERVICE_UNAVAILABLE, "model_changed"),
                Failure::Lost(_) => (S::SERVICE_UNAVAILABLE, "worker_lost"),
                Failure::QueueTime(_) => (S::SERVICE_UNAVAILABLE, "timeout"),
                Failure::AnswerTime(_) => (S::GATEWAY_TIMEOUT, "timeout"),
            },
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.class().0
    }

    fn code(&self) -> &'static str {
        self.class().1
    }

    /// Seconds after which a retry of the request may succeed; `None` if it cannot.
    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Busy { .. }
            | Self::Failed(Failure::Changed(_) | Failure::Lost(_) | Failure::QueueTime(_)) => {
                Some(1)
            }
            Self::EngineSuspended { after, .. } | Self::RateLimit(Exceeded { after, .. }) => {
                Some(seconds(*after))
            }
            _ => None,
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            Self::Field { param, .. } | Self::ItemNotFound { param, .. } => Some(param),
            Self::ThreadUnsupported => Some("thread"),
            Self::UnknownModel { .. }
            | Self::NotServable { .. }
            | Self::LoadFailed { .. }
            | Self::EngineSuspended { .. } => Some("model"),
            Self::ContextLength { param, .. } => Some(param),
            _ => None,
        }
    }

    /// Logs the error. Faults of the server are logged as errors, all others as information.
    pub(crate) fn log(&self) {
        match self {
            Self::LoadFailed { name, detail, .. } => {
                tracing::error!(model = name, detail, "a model could not be loaded");
            }
            Self::DrawingFailed { name, detail } => {
                tracing::error!(model = name, detail, "a model could not be drawn");
            }
            Self::Engine { detail } => tracing::error!(detail, "a completion failed"),
            Self::EngineDied { name, how } => {
                tracing::error!(model = name, how, "a request ended with its engine process");
            }
            Self::Failed(
                failure @ (Failure::NotFinite {
                    is_changed: false, ..
                }
                | Failure::Changed(_)
                | Failure::Lost(_)),
            ) => tracing::error!(%failure, "a completion failed"),
            Self::ForEngineProcess => {}
            other => tracing::info!(error = %other, "refused"),
        }
    }

    pub(crate) fn body(&self) -> Value {
        let kind = match self.status() {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let param = self
            .param()
            .map(|param| RequestContext::current().as_sent(param));
        let mut body = json!({ "error": {
            "message": self.message(), "type": kind, "param": param, "code": self.code(),
        } });
        // llama-server's field names, so that clients can shorten a prompt by the right amount.
        if let Self::ContextLength { found, limit, .. } = self {
            body["error"]["n_prompt_tokens"] = (*found).into();
            body["error"]["n_ctx"] = (*limit).into();
            if ErrorFormat::of(RequestContext::current().path()) == ErrorFormat::LlamaServer {
                body["error"]["type"] = "exceed_context_size_error".into();
            }
        }
        body
    }

    /// What Anthropic's clients read besides the message.
    fn details(&self) -> Option<Value> {
        let details = json!({ "error_code": self.code(), "unsupported": ["thread"] });
        matches!(self, Self::ThreadUnsupported).then_some(details)
    }
}

/// Refuses the value of a field. The message is the name of the field and `rest`.
pub(crate) fn refuse<T>(param: impl Into<String>, rest: impl fmt::Display) -> Result<T, Error> {
    let param = param.into();
    let message = format!("`{param}`{rest}");
    invalid(param, message)
}

/// Refuses the value of a field, with this message.
pub(crate) fn invalid<T>(param: impl Into<String>, message: impl Into<String>) -> Result<T, Error> {
    Err(Error::invalid_value(param, message))
}

fn of_failure(failure: &Failure) -> String {
    const NOT_FINITE: &str = "the model's results are not finite numbers";
    match failure {
        Failure::NotFinite { is_changed, .. } if *is_changed => {
            format!("with the edits or adapter scales of the request, {NOT_FINITE}: {failure}")
        }
        Failure::NotFinite { .. } => format!("{NOT_FINITE}: {failure}"),
        Failure::Changed(_) => format!("{failure}; the next request loads it again"),
        Failure::Lost(_) => format!("{failure}; the next request loads the model again"),
        _ => failure.to_string(),
    }
}

/// Advice where the model could read more than the server lets it.
fn longer(most: Option<u64>) -> String {
    most.map_or_else(String::new, |most| {
        format!(
            ", or start the server with a larger `--ctx`: the model was trained with {most} tokens"
        )
    })
}

/// Marks the response of [`Error::ForEngineProcess`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForEngineProcess;

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        self.log();
        let status = self.status();
        let mut response = (status, Json(self.body())).into_response();
        response.extensions_mut().insert(ErrorMessage {
            message: self.message(),
            details: self.details(),
        });
        if matches!(self, Self::ForEngineProcess) {
            response.extensions_mut().insert(ForEngineProcess);
        }
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"bench\"");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        // Clients retry 408, 409, 429 and 5xx unless a header says whether a retry helps.
        if let Some(seconds) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            headers.insert("x-should-retry", HeaderValue::from_static("true"));
        } else if status.is_server_error() {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        response
    }
}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::EmptyPrompt | Rejected::NoSource => {
                Self::invalid_value(MESSAGES, rejected.to_string())
            }
            Rejected::TooLong { found, limit } => Self::ContextLength {
                found,
                limit,
                param: MESSAGES,
                most: None,
            },
            Rejected::Params(error) => Self::invalid_value(error.field, error.to_string()),
            Rejected::Lists { .. } => Self::invalid_value("logprobs", rejected.to_string()),
            Rejected::NoSearch(_) => Self::unsupported("penalty_alpha", rejected.to_string()),
            Rejected::NotPooled(_) | Rejected::NoText(_) => Self::Field {
                param: "model".into(),
                message: rejected.to_string(),
                code: "unsupported_model",
            },
            Rejected::Field { field, .. } => Self::unsupported(field, rejected.to_string()),
            Rejected::QueueFull { limit } => Self::Busy { limit },
            Rejected::Ended => Self::engine(rejected),
        }
    }
}

impl From<Exceeded> for Error {
    fn from(exceeded: Exceeded) -> Self {
        Self::RateLimit(exceeded)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Computation(detail) => Self::Engine { detail },
            Failure::NothingLeft(_) => Self::invalid_value("logit_bias", failure.to_string()),
            failure => Self::Failed(failure),
        }
    }
}

impl From<PromptError> for Error {
    fn from(error: PromptError) -> Self {
        match error {
            // The template's own error message about the conversation.
            PromptError::Render(RenderError::Raised(message)) => {
                Self::invalid_value(MESSAGES, message)
            }
            other => Self::invalid_value(MESSAGES, other.to_string()),
        }
    }
}

pub(crate) async fn no_route(uri: Uri) -> Error {
    Error::NoRoute(uri.path().to_owned())
}

pub(crate) async fn wrong_method() -> Error {
    Error::Method
}

/// The response to a panic of a handler. The server continues.
pub(crate) fn panicked(cause: &(dyn Any + Send)) -> Response {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| cause.downcast_ref::<&str>().copied());
    Error::engine(text.unwrap_or("a handler panicked")).into_response()
}
