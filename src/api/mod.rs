//! HTTP in the shapes of OpenAI's API: one endpoint per file, one error table.
//!
//! The only module that knows HTTP and its JSON. Handlers extract, validate, submit to the engine
//! and write its events; every refusal goes through `error`. What endpoints share: `fields` and `known`
//! (bodies), `messages` and `dialogue` (conversations), `generation` and `sampling` (parameters), `answers` and `envelope`
//! (responses, streamed or not), `parts` (reasoning and calls in them), `logprobs`, `places` (values within a body). Around them: `listener`
//! (connections), `access` (who may), `intake` (bodies, threads), `forward` and `exchange` (requests to engine
//! processes, whose life is `process`), `record` (the log). Called by `bench serve`
//! and by tests, which use the same [`app`]. `local` answers a chat request without HTTP, for `bench chat`.

mod access;
mod adapters;
mod answers;
mod anthropic;
mod biases;
mod chat;
mod completions;
mod diagram;
mod dialogue;
mod diffusion;
mod embeddings;
mod envelope;
mod error;
mod exchange;
mod fields;
mod forward;
mod generation;
mod health;
mod infill;
mod input;
mod intake;
mod known;
mod lab;
mod listener;
mod local;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod native;
mod openapi;
mod page;
mod parts;
mod passages;
mod places;
mod pool;
mod pooled;
mod process;
mod props;
mod quit;
mod reading;
mod record;
mod rerank;
mod response_format;
mod responses;
mod routes;
mod sampling;
mod settings;
#[cfg(test)]
mod tests;
mod tokens;
mod tools;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{from_fn, from_fn_with_state, map_request};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};

pub use access::Access;
pub use diagram::View;
pub use lab::{
    Array as LabArray, Painter, Picture as LabPicture, Wanted as LabRequest, patched as lab_patch,
    pieces as lab_pieces,
};
pub use listener::serve;
pub use local::{Reply, Said, check, n_tokens, reply};
pub use parts::Piece;
pub use pool::{
    Describer, Description, Drawer, Finder, LoadFault, Loader, Pool, Residency, Started, Wanted,
};
pub use process::{CHANGED, LOST, Launch, OnLine, Process, Report, serve_socket};

/// Largest request body: a long conversation, no images.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Why a chat request with this body is refused whatever the model; none if it is not.
pub fn refusal(body: &serde_json::Value) -> Option<String> {
    chat::refusal(body.as_object().cloned().unwrap_or_default())
}

/// Drops a request id of the client's that is not an identifier: it would go into headers and logs.
fn well_formed_id(mut request: Request, name: &HeaderName) -> Request {
    const MAX: usize = 128;
    let is_sound = |id: &HeaderValue| {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
        (1..=MAX).contains(&id.len()) && id.as_bytes().iter().all(is_plain)
    };
    if request.headers().get(name).is_some_and(|id| !is_sound(id)) {
        request.headers_mut().remove(name);
    }
    request
}

/// The routes over a pool of models. Bodies must be there after `read_time`.
///
/// # Errors
/// The operating system gives no thread for handlers.
pub fn app(pool: Arc<Pool>, access: Access, read_time: Duration) -> std::io::Result<Router> {
    pool.watch_idle()?;
    let workers = Arc::new(intake::Workers::new(read_time)?);
    let request_id = HeaderName::from_static("x-request-id");
    Ok(routes::router()
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(from_fn_with_state(Arc::clone(&workers), intake::handlers))
        .layer(from_fn_with_state(Arc::clone(&pool), forward::layer))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(from_fn_with_state(workers, intake::layer))
        .layer(from_fn_with_state(Arc::new(access), access::layer))
        .layer(from_fn(anthropic::layer))
        .layer(from_fn(record::layer))
        .layer(PropagateRequestIdLayer::new(request_id.clone()))
        .layer(SetRequestIdLayer::new(request_id.clone(), MakeRequestUuid))
        .layer(map_request(move |request| {
            let request = well_formed_id(request, &request_id);
            async { request }
        }))
        .with_state(pool))
}
