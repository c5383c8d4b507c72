//! Server-sent events: their text, and responses that consist of them.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

/// Maximum time without an event, after which a stream sends a comment.
const PING: Duration = Duration::from_secs(15);

/// The text of server-sent events, none or several.
#[derive(Debug, Default)]
pub(super) struct Events(Vec<u8>);

impl Events {
    /// Adds an event with this data.
    pub(super) fn push(&mut self, data: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        // JSON is one line: it escapes line breaks.
        serde_json::to_writer(&mut self.0, data).expect("our own types are JSON");
        self.0.extend_from_slice(b"\n\n");
    }

    /// Adds an event that is named by the `type` of its data.
    pub(super) fn push_named(&mut self, data: &Value) {
        if let Some(name) = data["type"].as_str() {
            let line = ["event: ", name, "\n"].concat();
            self.0.extend_from_slice(line.as_bytes());
        }
        self.push(data);
    }

    /// Adds OpenAI's last event.
    pub(super) fn finish(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}

impl From<Events> for Bytes {
    fn from(events: Events) -> Self {
        Self::from(events.0)
    }
}

/// A response of these events. After each `PING` without an event it sends a comment, so that the connection is not
/// taken for dead.
pub(super) fn response(events: impl Stream<Item = Events> + Send + 'static) -> Response {
    of(events.boxed(), PING)
}

fn of(events: stream::BoxStream<'static, Events>, ping: Duration) -> Response {
    let parts = stream::unfold((events, None), move |(mut events, silence)| async move {
        // It belongs to the thread that sends the response, which asks for the first part.
        let mut silence = silence.unwrap_or_else(|| Box::pin(tokio::time::sleep(ping)));
        loop {
            let part = tokio::select! {
                biased;
                new = events.next() => Bytes::from(new?),
                () = silence.as_mut() => Bytes::from_static(b":\n\n"),
            };
            silence.as_mut().reset(Instant::now() + ping);
            if !part.is_empty() {
                return Some((part, (events, Some(silence))));
            }
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    let body = Body::from_stream(parts.map(Ok::<_, Infallible>));
    (headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines() {
        let mut events = Events::default();
        events.push(&"two\nlines");
        events.push_named(&serde_json::json!({ "type": "ping" }));
        events.finish();
        let text = String::from_utf8(events.0).expect("UTF-8");
        let expected =
            "data: \"two\\nlines\"\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\ndata: [DONE]\n\n";
        assert_eq!(text, expected);
    }

    #[tokio::test]
    async fn item_24_a_stream_that_waits_sends_comments() {
        let mut first = Events::default();
        first.push(&serde_json::json!({}));
        let first = stream::iter([first, Events::default()]);
        let events = first.chain(stream::pending()).boxed();
        let response = of(events, Duration::from_millis(5));
        let mut body = response.into_body().into_data_stream();
        let mut text = String::new();
        for _ in 0..3 {
            let part = body.next().await.expect("more").expect("no failure");
            text += std::str::from_utf8(&part).expect("UTF-8");
        }
        assert_eq!(text, "data: {}\n\n:\n\n:\n\n");
    }
}
