//! A stream whose model is being loaded. Comments report how much is loaded, so that no proxy or client takes the
//! silence for the end of the connection; then the answer follows.
//!
//! A short load delays only the head: the answer keeps its own status. After a longer one the status has been sent, and
//! a refusal is an event of the stream.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, to_bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::http::context::RequestContext;
use crate::http::error::Error;
use crate::http::error_format::ErrorFormat;
use crate::http::transport::MAX_BODY_BYTES;
use crate::pool::Load;

use super::{RoutedRequest, is_stream};

/// Maximum delay of the head of an answer by a load.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two comments, while a model is loaded and afterwards.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// A running call, which is aborted when this is dropped.
struct RequestTask(JoinHandle<Response>);

impl Drop for RequestTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RequestTask {
    async fn response(&mut self) -> Response {
        let ended = || Error::Engine {
            detail: "a handler ended without a response".into(),
        };
        let response = (&mut self.0).await;
        response.unwrap_or_else(|_| ended().into_response())
    }
}

/// The state of a stream to the client.
enum StreamState {
    /// No part of the answer has arrived.
    Waiting {
        task: RequestTask,
        load: Load,
        dialect: ErrorFormat,
        record: Arc<RequestContext>,
        /// Time until the next comment.
        pause: Duration,
    },
    Answering(BodyDataStream),
}

/// Answers a call whose model is not loaded.
pub(super) async fn answer(call: RoutedRequest) -> Response {
    let (dialect, record) = (
        ErrorFormat::of(call.head.uri.path()),
        RequestContext::current(),
    );
    let (pool, name) = (Arc::clone(&call.server.pool), call.name.clone());
    let work = Arc::clone(&record).scope(call.run());
    let mut task = RequestTask(tokio::spawn(work));
    if let Ok(response) = tokio::time::timeout(PATIENCE, task.response()).await {
        return response;
    }
    let Some(load) = name.and_then(|name| pool.loading(&name)) else {
        return task.response().await;
    };
    let state = StreamState::Waiting {
        task,
        load,
        dialect,
        record,
        pause: Duration::ZERO,
    };
    let parts = stream::unfold(Some(state), |state| async { next(state?).await });
    let body = Body::from_stream(parts.map(Ok::<_, Infallible>));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, body).into_response()
}

/// The next part of the stream, and its state afterwards.
async fn next(state: StreamState) -> Option<(Bytes, Option<StreamState>)> {
    match state {
        StreamState::Answering(mut data) => {
            // A stream that breaks has written its own error event.
            let part = data.next().await?.ok()?;
            Some((part, Some(StreamState::Answering(data))))
        }
        StreamState::Waiting {
            mut task,
            load,
            dialect,
            record,
            pause,
        } => {
            let response = tokio::time::timeout(pause, task.response()).await;
            if let Ok(response) = response {
                return Some(begun(response, dialect, &record).await);
            }
            let [often, rarely] = PAUSES;
            let (comment, pause) = match load.is_over() {
                true => (": loaded\n\n".to_owned(), rarely),
                false => match load.progress().percent() {
                    Some(percent) => (format!(": loading, {percent} %\n\n"), often),
                    None => (": loading\n\n".to_owned(), often),
                },
            };
            let state = StreamState::Waiting {
                task,
                load,
                dialect,
                record,
                pause,
            };
            Some((comment.into(), Some(state)))
        }
    }
}

/// The start of an answer after the head was sent: its events, or an error event if it is refused.
async fn begun(
    response: Response,
    dialect: ErrorFormat,
    record: &RequestContext,
) -> (Bytes, Option<StreamState>) {
    let (head, body) = response.into_parts();
    if head.status == StatusCode::OK && is_stream(&head.headers) {
        return (
            Bytes::new(),
            Some(StreamState::Answering(body.into_data_stream())),
        );
    }
    record.fail();
    let body = to_bytes(body, MAX_BODY_BYTES).await.unwrap_or_default();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    (dialect.error_event(head.status, &body, 0), None)
}
