//! The way in: a body is read whole within a time, and its handler runs off the threads that serve
//! connections, so that templates, tokenizers and checks of large requests delay nobody.
//!
//! Handlers run on threads of their own. Those of large bodies take turns on some of them; the others are
//! always free for small ones.

use std::error::Error as _;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::ggml;

use super::MAX_BODY_BYTES;
use super::error::Error;
use super::record::Record;

/// Size from which a body is large, in bytes.
const LARGE: usize = 64 << 10;
/// Size from which the memory that a body took is given back to the system, in bytes.
const HUGE: usize = 1 << 20;
/// Number of threads for handlers, at least.
const MIN_THREADS: usize = 4;

/// The threads on which handlers run.
#[derive(Debug)]
pub(super) struct Workers {
    runtime: Option<Runtime>,
    /// Turns of large requests.
    turns: Arc<Semaphore>,
    read_time: Duration,
    /// Whether memory will be given back soon.
    is_releasing: Arc<AtomicBool>,
}

impl Workers {
    /// Threads for as many requests as there are cores; bodies must be there after `read_time`.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(super) fn new(read_time: Duration) -> std::io::Result<Self> {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let n_threads = n_cores.max(MIN_THREADS);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(n_threads)
            .thread_name("handler")
            .enable_all()
            .build()?;
        Ok(Self {
            runtime: Some(runtime),
            turns: Arc::new(Semaphore::new(n_threads / 2)),
            read_time,
            is_releasing: Arc::default(),
        })
    }

    /// Runs a handler on these threads, in turns with others if its body is large.
    fn start(
        &self,
        is_large: bool,
        handler: impl Future<Output = Response> + Send + 'static,
    ) -> Option<Task> {
        let runtime = self.runtime.as_ref()?;
        let handler = Record::current().scope(handler);
        Some(Task(match is_large {
            true => runtime.spawn(in_turns(Arc::clone(&self.turns), handler)),
            false => runtime.spawn(handler),
        }))
    }

    /// Gives memory that nobody uses back to the system, a little later.
    fn release(&self) {
        let is_due = self.is_releasing.swap(true, Ordering::AcqRel);
        let Some(runtime) = self.runtime.as_ref().filter(|_| !is_due) else {
            return;
        };
        let is_releasing = Arc::clone(&self.is_releasing);
        runtime.spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            is_releasing.store(false, Ordering::Release);
            let _ = tokio::task::spawn_blocking(ggml::release_memory).await;
        });
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting is not possible everywhere this may be dropped.
            runtime.shutdown_background();
        }
    }
}

/// A handler that ends when nobody waits for it any more.
struct Task(JoinHandle<Response>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs a future that holds a turn only while it works, not while it waits.
async fn in_turns<F: Future>(turns: Arc<Semaphore>, work: F) -> F::Output {
    let mut work = pin!(work);
    loop {
        let turn = turns.acquire().await;
        let polled = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
        drop(turn);
        if let Poll::Ready(output) = polled {
            return output;
        }
        // Until what it waits for wakes this task.
        let mut is_woken = false;
        poll_fn(|_| match std::mem::replace(&mut is_woken, true) {
            false => Poll::Pending,
            true => Poll::Ready(()),
        })
        .await;
    }
}

/// Reads the body of a request, and runs the rest where it delays nobody.
pub(super) async fn layer(
    State(workers): State<Arc<Workers>>,
    request: Request,
    next: Next,
) -> Response {
    if matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    ) {
        return next.run(request).await;
    }
    let (mut head, body) = request.into_parts();
    // What a handler opens for its answer belongs where the answer is sent.
    head.extensions.insert(tokio::runtime::Handle::current());
    let limit = MAX_BODY_BYTES;
    if body.size_hint().lower() > limit as u64 {
        return Error::TooLarge { limit }.into_response();
    }
    let read = tokio::time::timeout(workers.read_time, to_bytes(body, limit));
    let body = match read.await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            let is_limit = error
                .source()
                .is_some_and(|s| s.to_string().contains("length limit"));
            return match is_limit {
                true => Error::TooLarge { limit }.into_response(),
                false => Error::Body("the body could not be read".into()).into_response(),
            };
        }
        Err(_) => return Error::BodyTime(workers.read_time).into_response(),
    };
    let n_bytes = body.len();
    let handler = next.run(Request::from_parts(head, Body::from(body)));
    let ended = || Error::Engine {
        detail: "a handler ended without a response".into(),
    };
    let Some(mut task) = workers.start(n_bytes > LARGE, handler) else {
        return ended().into_response();
    };
    let response = (&mut task.0).await;
    if n_bytes > HUGE {
        workers.release();
    }
    response.unwrap_or_else(|_| ended().into_response())
}
