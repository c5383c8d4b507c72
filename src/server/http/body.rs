//! Intake of requests: a body is read whole within a time limit, and its handler runs off the threads that serve
//! connections, so that templates, tokenizers and checks of large requests delay no other request.
//!
//! Handlers run on separate threads. Those of large bodies take turns on half of them; the other half is always free
//! for small ones. A small body that is only forwarded to an engine process stays on the thread that read it: each
//! change of threads delays the first byte of an answer.

use std::error::Error as _;
use std::future::poll_fn;
use std::io::Read;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse, Response};
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use lab_base::ggml;

use super::error::Error;
use crate::http::context::RequestContext;
use crate::http::transport::{BodyGuard, MAX_BODY_BYTES, guarded};

/// Size from which a body counts as large, in bytes.
const LARGE: usize = 64 << 10;
/// Size from which the memory of a body is returned to the system afterwards, in bytes.
const HUGE: usize = 1 << 20;
const MIN_THREADS: usize = 4;

#[derive(Debug)]
pub(crate) struct HandlerThreads {
    runtime: Option<Runtime>,
    /// Turns of large requests: half as many as there are threads.
    turns: Arc<Semaphore>,
    read_time: Duration,
    /// Routes whose requests may be larger than others, and their maximum sizes in bytes.
    larger: Vec<(&'static str, usize)>,
    releaser: MemoryReleaser,
}

#[derive(Clone, Debug)]
struct MemoryReleaser {
    runtime: Handle,
    is_due: Arc<AtomicBool>,
}

impl MemoryReleaser {
    fn schedule(&self) {
        if self.is_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let is_due = Arc::clone(&self.is_due);
        self.runtime.spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            is_due.store(false, Ordering::Release);
            let _ = tokio::task::spawn_blocking(ggml::release_memory).await;
        });
    }
}

struct MemoryGuard {
    /// Number of bytes that were sent, or of the whole body if they are known before.
    n_bytes: usize,
    n_sent: usize,
    releaser: MemoryReleaser,
}

impl BodyGuard for MemoryGuard {
    fn read(&mut self, n_bytes: usize, _is_end: bool) {
        self.n_sent += n_bytes;
        self.n_bytes = self.n_bytes.max(self.n_sent);
    }
}

impl Drop for MemoryGuard {
    fn drop(&mut self) {
        if self.n_bytes > HUGE {
            self.releaser.schedule();
        }
    }
}

impl HandlerThreads {
    /// As many threads as cores, but at least `MIN_THREADS`; a body must arrive within `read_time`. Those of the
    /// routes `larger` may have the sizes that it names.
    pub(crate) fn new(
        read_time: Duration,
        larger: Vec<(&'static str, usize)>,
    ) -> std::io::Result<Self> {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let n_threads = n_cores.max(MIN_THREADS);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(n_threads)
            .thread_name("handler")
            .enable_all()
            .build()?;
        let releaser = MemoryReleaser {
            runtime: runtime.handle().clone(),
            is_due: Arc::default(),
        };
        Ok(Self {
            runtime: Some(runtime),
            turns: Arc::new(Semaphore::new(n_threads / 2)),
            read_time,
            larger,
            releaser,
        })
    }

    /// Runs a handler on these threads and returns its response; one with a large body takes turns with others.
    async fn run(
        &self,
        is_large: bool,
        handler: impl Future<Output = Response> + Send + 'static,
    ) -> Response {
        let Some(runtime) = &self.runtime else {
            return no_response().into_response();
        };
        let handler = RequestContext::current().scope(handler);
        let (mut task, handle) = (JoinSet::new(), runtime.handle());
        match is_large {
            true => task.spawn_on(in_turns(Arc::clone(&self.turns), handler), handle),
            false => task.spawn_on(handler, handle),
        };
        response_of(&mut task).await
    }

    /// A response after which memory is returned to the system, if it is large.
    pub(crate) fn releasing_memory(&self, response: Response) -> Response {
        let size = response.body().size_hint();
        if size.upper().is_some_and(|n| n <= HUGE as u64) {
            return response;
        }
        // What is not sent takes memory too.
        let guard = MemoryGuard {
            n_bytes: usize::try_from(size.lower()).unwrap_or(usize::MAX),
            n_sent: 0,
            releaser: self.releaser.clone(),
        };
        response.map(|body| guarded(body, guard))
    }

    fn limit(&self, path: &str) -> usize {
        let larger = self.larger.iter().find(|(route, _)| *route == path);
        larger.map_or(MAX_BODY_BYTES, |(_, limit)| (*limit).max(MAX_BODY_BYTES))
    }

    /// Runs work that belongs to no request, until these threads end.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(RequestContext::detached().scope(work));
        }
    }

    async fn pass_on<F: Future<Output = Response> + Send + 'static>(
        &self,
        head: Parts,
        body: Bytes,
        next: impl FnOnce(Request) -> F,
    ) -> Response {
        let n_bytes = body.len();
        let mut request = Request::from_parts(head, Body::from(body));
        if n_bytes <= LARGE {
            return next(request).await;
        }
        request.extensions_mut().insert(OnHandlerThread);
        let response = self.run(true, next(request)).await;
        if n_bytes > HUGE {
            self.releaser.schedule();
        }
        response
    }
}

impl Drop for HandlerThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // This may be dropped where blocking is not allowed.
            runtime.shutdown_background();
        }
    }
}

/// The response of the only task of a set, which aborts it when it is dropped.
pub(crate) async fn response_of(task: &mut JoinSet<Response>) -> Response {
    let response = task.join_next().await.and_then(Result::ok);
    response.unwrap_or_else(|| no_response().into_response())
}

/// Runs a future that holds a turn only while it is polled, not while it waits.
async fn in_turns<F: Future>(turns: Arc<Semaphore>, work: F) -> F::Output {
    let mut work = pin!(work);
    loop {
        let turn = turns.acquire().await;
        let polled = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
        drop(turn);
        if let Poll::Ready(output) = polled {
            return output;
        }
        // Returns once the future wakes this task.
        let mut is_woken = false;
        poll_fn(|_| match std::mem::replace(&mut is_woken, true) {
            false => Poll::Pending,
            true => Poll::Ready(()),
        })
        .await;
    }
}

/// Marks a request whose handler already runs off the threads that serve connections.
#[derive(Clone, Copy, Debug)]
struct OnHandlerThread;

fn has_body(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn no_response() -> Error {
    Error::engine("a handler ended without a response")
}

/// Reads the body of a request. The rest of a large request runs on the handler threads.
pub(crate) async fn layer<F: Future<Output = Response> + Send + 'static>(
    workers: &HandlerThreads,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    if !has_body(request.method()) {
        return next(request).await;
    }
    let (mut head, body) = request.into_parts();
    // Connections that a handler opens for its answer belong to the runtime that sends the answer.
    head.extensions.insert(tokio::runtime::Handle::current());
    let encoding = match Encoding::of(&head.headers) {
        Ok(encoding) => encoding,
        Err(error) => return error.into_response(),
    };
    let limit = workers.limit(head.uri.path());
    let body = match read(body, limit, workers.read_time).await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    let n_bytes = body.len();
    let Some(encoding) = encoding else {
        return workers.pass_on(head, body, next).await;
    };
    // A small body may become a large one.
    let decoding = tokio::task::spawn_blocking(move || encoding.decoded(&body, limit));
    let body = match decoding.await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => return error.into_response(),
        Err(_) => return no_response().into_response(),
    };
    head.headers.remove(header::CONTENT_ENCODING);
    head.headers
        .insert(header::CONTENT_LENGTH, body.len().into());
    tracing::debug!(n_bytes, n_decoded = body.len(), "a body was decoded");
    workers.pass_on(head, body, next).await
}

#[derive(Clone, Copy, Debug)]
enum Encoding {
    Gzip,
    Deflate,
}

impl Encoding {
    /// The encoding that the headers name, if the body is encoded.
    fn of(headers: &HeaderMap) -> Result<Option<Self>, Error> {
        let mut all = headers.get_all(header::CONTENT_ENCODING).iter();
        let Some(value) = all.next() else {
            return Ok(None);
        };
        let text = value.to_str().unwrap_or("?").trim().to_ascii_lowercase();
        match (text.as_str(), all.next()) {
            ("" | "identity", None) => Ok(None),
            ("gzip" | "x-gzip", None) => Ok(Some(Self::Gzip)),
            ("deflate", None) => Ok(Some(Self::Deflate)),
            _ => Err(Error::ContentEncoding(text)),
        }
    }

    /// The decoded body, of at most `limit` bytes.
    fn decoded(self, body: &[u8], limit: usize) -> Result<Bytes, Error> {
        let all = |decoder: &mut dyn Read| {
            let mut out = Vec::new();
            let read = decoder.take(limit as u64 + 1).read_to_end(&mut out);
            match (read, out.len() > limit) {
                (_, true) => Err(Error::TooLarge { limit }),
                (Ok(_), false) => Ok(Bytes::from(out)),
                (Err(error), false) => {
                    let name = format!("{self:?}").to_lowercase();
                    Err(Error::Body(format!("the body is not {name}: {error}")))
                }
            }
        };
        match self {
            Self::Gzip => all(&mut MultiGzDecoder::new(body)),
            // The name means the format of zlib, but some clients send its bare content.
            Self::Deflate => all(&mut ZlibDecoder::new(body)).or_else(|error| match error {
                Error::Body(_) => all(&mut DeflateDecoder::new(body)).map_err(|_| error),
                error => Err(error),
            }),
        }
    }
}

/// Runs the handlers of this process on the handler threads.
pub(crate) async fn run_handler<F: Future<Output = Response> + Send + 'static>(
    workers: &HandlerThreads,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    match request.extensions().get::<OnHandlerThread>() {
        Some(OnHandlerThread) => next(request).await,
        None => workers.run(false, next(request)).await,
    }
}

async fn read(body: Body, limit: usize, time: Duration) -> Result<Bytes, Error> {
    if body.size_hint().lower() > limit as u64 {
        return Err(Error::TooLarge { limit });
    }
    let read = tokio::time::timeout(time, to_bytes(body, limit)).await;
    read.map_err(|_| Error::BodyTimeout(time))?
        .map_err(|error| {
            let is_limit = error
                .source()
                .is_some_and(|s| s.to_string().contains("length limit"));
            match is_limit {
                true => Error::TooLarge { limit },
                false => Error::Body("the body could not be read".into()),
            }
        })
}
