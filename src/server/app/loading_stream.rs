//! A stream whose model is being loaded. Comments report how much is loaded, so that no proxy or client takes the
//! silence for the end of the connection; then the answer follows.
//!
//! A short load delays only the head: the answer keeps its own status. After a longer one the status has been sent, and
//! a refusal is an event of the stream.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{BodyDataStream, Bytes, to_bytes};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream::{self, StreamExt};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::http::body::response_of;
use crate::http::context::RequestContext;
use crate::http::error_format::ErrorFormat;
use crate::http::transport::{MAX_BODY_BYTES, StreamFraming, event_response, is_event_stream};
use crate::pool::Load;

/// Maximum delay of the head of an answer by a load.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two comments, while a model is loaded and afterwards.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

enum StreamState {
    /// No part of the answer has arrived.
    Waiting {
        task: JoinSet<Response>,
        load: Load,
        format: ErrorFormat,
        context: Arc<RequestContext>,
        pause: Duration,
    },
    Answering(BodyDataStream),
}

/// The response of `work`, the request at a path whose model is not loaded. `load` finds the load once it has begun.
pub(super) async fn answer(
    path: &str,
    work: impl Future<Output = Response> + Send + 'static,
    load: impl FnOnce() -> Option<Load>,
) -> Response {
    let (format, context) = (ErrorFormat::of(path), RequestContext::current());
    let mut task = JoinSet::new();
    task.spawn(Arc::clone(&context).scope(work));
    if let Ok(response) = tokio::time::timeout(PATIENCE, response_of(&mut task)).await {
        return response;
    }
    let Some(load) = load() else {
        return response_of(&mut task).await;
    };
    let state = StreamState::Waiting {
        task,
        load,
        format,
        context,
        pause: Duration::ZERO,
    };
    let parts = stream::unfold(Some(state), |state| async { next(state?).await });
    event_response(StreamFraming::Sse, parts.map(Ok::<_, Infallible>))
}

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
            format,
            context,
            pause,
        } => {
            let response = tokio::time::timeout(pause, response_of(&mut task)).await;
            if let Ok(response) = response {
                return Some(begun(response, format, &context).await);
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
                format,
                context,
                pause,
            };
            Some((comment.into(), Some(state)))
        }
    }
}

/// The start of an answer after the head was sent: its events, or an error event if it is refused.
async fn begun(
    response: Response,
    format: ErrorFormat,
    context: &RequestContext,
) -> (Bytes, Option<StreamState>) {
    let (head, body) = response.into_parts();
    if head.status == StatusCode::OK && is_event_stream(&head.headers) {
        return (
            Bytes::new(),
            Some(StreamState::Answering(body.into_data_stream())),
        );
    }
    context.fail();
    let body = to_bytes(body, MAX_BODY_BYTES).await.unwrap_or_default();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    (format.error_event(head.status, &body, 0), None)
}
