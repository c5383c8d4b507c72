//! Assembles the router: the routes with the layers around them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{from_fn, from_fn_with_state, map_request};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};

use super::{Access, Pool, access, anthropic, chat, error, forward, intake, record, routes};

/// Maximum size of a request body in bytes: a long conversation without images.
pub(super) const MAX_BODY_BYTES: usize = 16 << 20;

/// Why a chat request with this body is refused by every model; `None` if it is not.
pub fn refusal(body: &serde_json::Value) -> Option<String> {
    chat::refusal(body.as_object().cloned().unwrap_or_default())
}

/// Removes a client's request id that is not an identifier: it would go into headers and logs.
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

/// The router over a pool of models. A body must arrive within `read_time`.
///
/// # Errors
/// The operating system cannot start threads for handlers.
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
