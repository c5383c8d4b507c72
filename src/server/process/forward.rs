//! Passes a request on to an engine process and its answer back, unchanged.
//!
//! When the process dies, a request without an answer gets an error; a stream gets the error event of its route after its
//! last whole event. Not here: which requests go to which process (`app::routing`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::runtime::Handle;

use super::EngineProcess;
use crate::http::context::{CLIENT_HEADER, RequestContext};
use crate::http::error::Error;
use crate::http::error_format::ErrorFormat;
use crate::http::proxies::ADDRESS_HEADER;
use crate::http::transport::{self, MAX_BODY_BYTES, StreamFraming, send};

/// Headers that belong to one connection, and those that only the server reads.
static OWN_HEADERS: &str = "connection keep-alive transfer-encoding content-length expect upgrade host origin \
    authorization x-api-key api-key content-encoding";
/// Maximum number of bytes of an answer that are held before the first of them is sent.
const MAX_HELD: usize = 1 << 20;
const METRICS_TIME: Duration = Duration::from_secs(2);

/// A request that was not sent because the process was dead, with how it died.
pub(crate) struct EngineGone(pub(crate) String);

pub(crate) async fn forwarded(
    process: Arc<EngineProcess>,
    request: Request,
) -> Result<Response, EngineGone> {
    let record = RequestContext::current();
    let format = ErrorFormat::of(request.uri().path());
    let runtime = request.extensions().get::<Handle>().cloned();
    let (head, body) = request.into_parts();
    let mut sent = Request::new(body);
    *sent.method_mut() = head.method;
    *sent.uri_mut() = head.uri;
    *sent.headers_mut() = head.headers;
    for name in OWN_HEADERS.split(' ') {
        sent.headers_mut().remove(name);
    }
    let host = HeaderValue::from_static("localhost");
    sent.headers_mut().insert(header::HOST, host);
    if let Some(client) = record.client_header() {
        sent.headers_mut().insert(CLIENT_HEADER, client);
    }
    if let Some(address) = record.address_header() {
        sent.headers_mut().insert(ADDRESS_HEADER, address);
    }
    let runtime = runtime.unwrap_or_else(Handle::current);
    let connections = Arc::clone(&process.connections);
    let Ok(channel) = connections.open(&runtime).await else {
        return Err(EngineGone(process.death().await));
    };
    record.leave_log_to_engine();
    let begun = unless(process.lost(), send(connections, channel, sent)).await;
    let Some(Ok((mut head, answer))) = begun else {
        return Ok(died(&process, &record).await.into_response());
    };
    let framing = StreamFraming::of(&head.headers);
    let length = head.headers.remove(header::CONTENT_LENGTH);
    let length = length.map(|length| (header::CONTENT_LENGTH, length));
    for name in OWN_HEADERS.split(' ') {
        head.headers.remove(name);
    }
    let body = match framing {
        Some(framing) => {
            let lost = Box::pin(process.lost());
            let failed = move |n| last(process, record, format, n).boxed();
            transport::relay(framing, answer, lost, Box::new(failed))
        }
        // The start of an answer that is not a stream is awaited, so that a small one is sent whole or not at all.
        None => match unless(process.lost(), start(answer)).await {
            Some(Ok((held, None))) => Body::from(held),
            Some(Ok((held, Some(rest)))) => {
                head.headers.extend(length);
                rest_of(process, record, held, rest)
            }
            _ => return Ok(died(&process, &record).await.into_response()),
        },
    };
    Ok(Response::from_parts(head, body))
}

/// The parts of an answer as they arrive.
type Rest = BoxStream<'static, Result<Bytes, hyper::Error>>;

/// The start of an answer, and the rest of a longer one.
async fn start(answer: transport::AnswerBody) -> Result<(Bytes, Option<Rest>), hyper::Error> {
    let (mut parts, mut held) = (answer.into_stream(), Vec::new());
    while held.len() < MAX_HELD {
        match parts.next().await {
            Some(part) => held.extend_from_slice(&part?),
            None => return Ok((held.into(), None)),
        }
    }
    Ok((held.into(), Some(parts)))
}

/// The body of an answer that is longer than what is held. If the process is lost, the connection breaks, so that no
/// client takes the answer for complete.
fn rest_of(
    process: Arc<EngineProcess>,
    record: Arc<RequestContext>,
    held: Bytes,
    rest: Rest,
) -> Body {
    let lost = Box::pin(process.lost());
    let rest = stream::unfold(Some((process, record, lost, rest)), |state| async {
        let (process, record, mut lost, mut rest) = state?;
        let broken: io::Error = match unless(&mut lost, rest.next()).await {
            Some(None) => return None,
            Some(Some(Ok(part))) => return Some((Ok(part), Some((process, record, lost, rest)))),
            Some(Some(Err(error))) => io::Error::other(error),
            None => io::ErrorKind::ConnectionAborted.into(),
        };
        died(&process, &record).await.log();
        Some((Err(broken), None))
    });
    Body::from_stream(stream::once(std::future::ready(Ok(held))).chain(rest))
}

/// The result of `work`; `None` if its process is lost first. The connections of that process then stay open.
async fn unless<T>(lost: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = lost => None,
    }
}

async fn died(process: &EngineProcess, record: &RequestContext) -> Error {
    let (name, how) = (process.name.clone(), process.death().await);
    record.engine_died(&name);
    Error::EngineDied { name, how }
}

/// The last event of a stream whose process died or was lost after `n_events` events.
async fn last(
    process: Arc<EngineProcess>,
    record: Arc<RequestContext>,
    format: ErrorFormat,
    n: usize,
) -> Bytes {
    let error = died(&process, &record).await;
    error.log();
    record.enter(|| format.error_event(error.status(), &error.body(), n))
}

/// A request of the server's own to an engine process.
pub(super) fn local_request(method: Method, path: &'static str) -> Request {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_static(path);
    let host = HeaderValue::from_static("localhost");
    request.headers_mut().insert(header::HOST, host);
    request
}

/// The metrics of an engine process; `None` if it does not report them in time. Does not count as use of the model.
pub(crate) async fn metrics(process: Arc<EngineProcess>) -> Option<String> {
    let connections = Arc::clone(&process.connections);
    drop(process);
    let request = local_request(Method::GET, "/metrics");
    let asked = async {
        let channel = connections.open(&Handle::current()).await.ok()?;
        let (_, answer) = send(connections, channel, request).await.ok()?;
        let body = to_bytes(Body::from_stream(answer.into_stream()), MAX_BODY_BYTES);
        String::from_utf8(body.await.ok()?.to_vec()).ok()
    };
    tokio::time::timeout(METRICS_TIME, asked).await.ok()?
}
