//! HTTP in the shapes of OpenAI's API: one endpoint per file, one error table.
//!
//! The only module that knows HTTP and its JSON. Handlers extract, validate, submit to the engine
//! and map its events; every refusal goes through `error`. Called by `bench serve` and by tests,
//! which use the same [`app`].

mod adapters;
mod chat;
mod chat_request;
mod diffusion;
mod error;
mod health;
mod models;
mod pool;
mod response_format;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, HeaderName};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::trace::TraceLayer;

pub use pool::{Loader, Pool};

use chat_request::ChatRequest;

/// Largest request body: a long conversation, no images.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Why a chat request with this body is refused whatever the model; none if it is not.
pub fn refusal(body: &serde_json::Value) -> Option<String> {
    let body = Bytes::from(body.to_string());
    let parsed = ChatRequest::parse(&HeaderMap::new(), &body);
    parsed.err().map(|error| error.to_string())
}

/// The routes over a pool of models.
pub fn app(pool: Arc<Pool>) -> Router {
    let request_id = HeaderName::from_static("x-request-id");
    Router::new()
        .route("/health", get(health::health))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{id}", get(models::one))
        .route("/lora-adapters", get(adapters::list).post(adapters::set))
        .route("/v1/chat/completions", post(chat::completions))
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(TraceLayer::new_for_http())
        .layer(PropagateRequestIdLayer::new(request_id.clone()))
        .layer(SetRequestIdLayer::new(request_id, MakeRequestUuid))
        .with_state(pool)
}
