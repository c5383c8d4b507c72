//! What every request passes on its way to its handler.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderName, HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use tower_service::Service;

use super::{access, error, framing, routes};
use crate::endpoints::anthropic;
use crate::http::context::RequestContext;
use crate::http::{body, context};
use crate::process::forward;
use crate::response::envelope::random;
use crate::{Access, Pool};

/// The header that names a request, in the request and in its response.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The header by which the server tells an engine process which of the clients with API keys sent a request.
pub(crate) const OWNER_HEADER: HeaderName = HeaderName::from_static("x-bench-owner");

/// The id of a request: the client's if it is an identifier, since it goes into headers and logs, otherwise a new one.
fn request_id(request: &Request) -> HeaderValue {
    const MAX: usize = 128;
    let is_sound = |id: &&HeaderValue| {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
        (1..=MAX).contains(&id.len()) && id.as_bytes().iter().all(is_plain)
    };
    let given = request.headers().get(REQUEST_ID).filter(is_sound);
    given.cloned().unwrap_or_else(|| {
        let id = format!("{:016x}{:016x}", random(), random());
        HeaderValue::from_str(&id).expect("hexadecimal digits")
    })
}

/// Removes a slash at the end of a path: some clients write one.
fn without_slash(uri: &mut Uri) {
    let Some(path) = uri.path().strip_suffix('/').filter(|path| !path.is_empty()) else {
        return;
    };
    let text = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    // A part of a valid path is one too, unless it starts as an authority does.
    if let Ok(shorter) = text.parse::<PathAndQuery>() {
        let mut parts = std::mem::take(uri).into_parts();
        parts.path_and_query = Some(shorter);
        *uri = Uri::from_parts(parts).unwrap_or_default();
    }
}

/// The routes, and what their requests pass before.
pub(crate) struct AppState {
    pub(crate) pool: Arc<Pool>,
    access: Access,
    workers: body::HandlerThreads,
    routes: Router,
}

/// The router over a pool of models. A body must arrive within `read_time`.
///
/// # Errors
/// The operating system cannot start threads for handlers.
pub fn app(pool: Arc<Pool>, access: Access, read_time: Duration) -> std::io::Result<Router> {
    pool.watch_idle()?;
    let routes = routes::router()
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::wrong_method);
    let server = AppState {
        access,
        workers: body::HandlerThreads::new(read_time, pool.upload_bytes())?,
        routes: routes.with_state(Arc::clone(&pool)),
        pool,
    };
    // One service around all routes: a layer of the router would be one around each of them.
    Ok(Router::new().fallback(handle).with_state(Arc::new(server)))
}

/// Answers a request: identifies and records it, checks access, reads its body, and sends it on.
async fn handle(State(server): State<Arc<AppState>>, mut request: Request) -> Response {
    let id = request_id(&request);
    request.headers_mut().insert(REQUEST_ID, id.clone());
    without_slash(request.uri_mut());
    // Only the server tells an engine process which client sent a request.
    let owner = request.headers_mut().remove(OWNER_HEADER);
    let owner = owner.filter(|_| server.pool.is_engine());
    // In a box, since unoptimised code copies a future into each one that waits for it.
    let work = |request| caught(Box::pin(forward::layer(Arc::clone(&server), request)));
    let admitted = |request| {
        if let Some(owner) = owner.as_ref().and_then(|owner| owner.to_str().ok()) {
            RequestContext::current().set_owner(owner.to_owned());
        }
        body::layer(&server.workers, request, work)
    };
    let checked = async |request: Request| match framing::check(&request) {
        Ok(()) => access::layer(&server.access, request, admitted).await,
        Err(error) => error.into_response(),
    };
    let is_strict = server.pool.has_strict_fields();
    let answered = |request| anthropic::layer(request, checked);
    let mut response = context::layer(request, is_strict, answered).await;
    response.headers_mut().insert(REQUEST_ID, id);
    server.workers.releasing_memory(response)
}

impl AppState {
    /// The answer of this process's own handler.
    pub(crate) async fn handled(self: Arc<Self>, request: Request) -> Response {
        let mut routes = self.routes.clone();
        body::run_handler(&self.workers, request, |request| {
            caught(async move {
                let Ok(response) = routes.call(request).await;
                response
            })
        })
        .await
    }
}

/// Runs a handler. A panic becomes an error, and the server continues.
async fn caught(work: impl Future<Output = Response>) -> Response {
    let mut work = pin!(work);
    std::future::poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        polled.unwrap_or_else(|cause| Poll::Ready(error::panicked(cause.as_ref())))
    })
    .await
}
