//! The router of a server, and what every request passes on its way to its handler.
//!
//! Not here: which process answers a request (`routing`), and the list of routes (`routes`).

mod loading_stream;
mod openapi;
mod route;
mod routes;
mod routing;
mod state;

use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderName, HeaderValue, Uri};
use axum::response::{IntoResponse, Response};

use crate::Access;
use crate::endpoints::{batches, lab, responses, transcriptions};
use crate::http::client::KeyHolder;
use crate::http::context::{CLIENT_HEADER, RequestContext};
use crate::http::error_format::dialect_errors;
use crate::http::local_client::LocalClient;
use crate::http::proxies::{ADDRESS_HEADER, RequestSource};
use crate::http::random::random;
use crate::http::request_counts::{RequestCounts, method_name};
use crate::http::{access, body, context, error, framing};
use crate::pool::{HostMode, Pool};

use state::{AppState, caught};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

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

/// The router over a pool of models. A body must arrive within `read_time`.
///
/// # Errors
/// The operating system cannot start threads for handlers.
pub fn app(pool: Arc<Pool>, access: Access, read_time: Duration) -> std::io::Result<Router> {
    let server = server(pool, access, read_time)?;
    // One service around all routes: a layer of the router would be one around each of them.
    Ok(Router::new().fallback(handle).with_state(server))
}

/// A client of a pool of models in this process.
///
/// # Errors
/// The operating system cannot start threads for handlers.
pub fn local_client(pool: Arc<Pool>) -> std::io::Result<LocalClient> {
    let server = server(pool, Access::default(), Duration::MAX)?;
    Ok(LocalClient::new(move |owner, request| {
        Box::pin(handle_local(Arc::clone(&server), owner, request))
    }))
}

fn server(pool: Arc<Pool>, access: Access, read_time: Duration) -> std::io::Result<Arc<AppState>> {
    pool.watch_idle()?;
    let routes = routes::router()
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::wrong_method);
    // Uploads may be larger than other bodies.
    let mut larger = vec![
        (lab::vectors::ROUTE, pool.config.upload_bytes),
        (batches::files::ROUTE, batches::files::max_upload(&pool)),
    ];
    larger.extend(transcriptions::ROUTES.map(|route| (route, transcriptions::MAX_UPLOAD)));
    let threads = body::HandlerThreads::new(read_time, larger)?;
    let server = Arc::new_cyclic(|server: &Weak<AppState>| {
        let server = Weak::clone(server);
        let client = LocalClient::new(move |owner, request| {
            let server = server.upgrade();
            Box::pin(async move {
                match server {
                    Some(server) => handle_local(server, owner, request).await,
                    None => error::Error::engine("the server has ended").into_response(),
                }
            })
        });
        AppState {
            access,
            threads,
            routes: routes.with_state(Arc::clone(&pool)),
            pool,
            client,
            counts: RequestCounts::new(),
        }
    });
    for work in batches::resumed(&server.pool, &server.client) {
        server.threads.spawn(work);
    }
    Ok(server)
}

/// Answers a request: identifies and records it, checks access, reads its body, and sends it on.
async fn handle(State(server): State<Arc<AppState>>, mut request: Request) -> Response {
    let id = request_id(&request);
    request.headers_mut().insert(REQUEST_ID, id.clone());
    without_slash(request.uri_mut());
    // Only the server tells an engine process which client sent a request.
    let is_engine = server.pool.config.mode == HostMode::EngineProcess;
    let client = request.headers_mut().remove(CLIENT_HEADER);
    let client = client.filter(|_| is_engine);
    let told = request.headers_mut().remove(ADDRESS_HEADER);
    let mut source = server.access.source(&request);
    if is_engine {
        source.address = told.as_ref().and_then(RequestSource::of_header);
    }
    request.extensions_mut().insert(source.clone());
    let method = method_name(request.method());
    let route = routes::pattern(request.uri().path());
    let admitted = |request| {
        if let Some(client) = client.as_ref().and_then(KeyHolder::of_header) {
            RequestContext::current().set_client(client);
        }
        received(&server, request)
    };
    let checked = async |request: Request| match framing::check(&request) {
        Ok(()) => access::layer(&server.access, routes::needs, &source, request, admitted).await,
        Err(error) => error.into_response(),
    };
    let is_strict = server.pool.config.strictness.fields;
    let record = RequestContext::of(&request, is_strict, route, source.address);
    let answered = |request| dialect_errors(request, checked);
    let mut response = context::layer(request, record, answered).await;
    response.headers_mut().insert(REQUEST_ID, id);
    server.counts.add(method, route, response.status());
    server.threads.releasing_memory(response)
}

/// Answers a request of this process itself, for the client `owner`.
async fn handle_local(server: Arc<AppState>, owner: String, mut request: Request) -> Response {
    let id = request_id(&request);
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let is_strict = server.pool.config.strictness.fields;
    let answered = async |request| {
        RequestContext::current().set_client(server.access.holder(&owner));
        received(&server, request).await
    };
    let route = routes::pattern(request.uri().path());
    let record = RequestContext::of(&request, is_strict, route, None);
    let mut response = context::layer(request, record, answered).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Reads the body of a request, and sends the request on.
async fn received(server: &Arc<AppState>, request: Request) -> Response {
    // In a box, since unoptimised code copies a future into each one that waits for it.
    let work = |request| {
        let (pool, server) = (Arc::clone(&server.pool), Arc::clone(server));
        let next = move |request| routing::layer(server, request);
        caught(Box::pin(responses::state::layer(pool, request, next)))
    };
    body::layer(&server.threads, request, work).await
}
