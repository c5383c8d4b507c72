//! Streams of events: their text, and responses that consist of them, of this process or of another.
//!
//! An event is a server-sent event, or a line of JSON where the dialect of the route has such streams.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::exchange::AnswerBody;

/// Maximum time without an event, after which a stream sends a comment.
const PING: Duration = Duration::from_secs(15);

/// How the events of a response are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFraming {
    /// Server-sent events.
    Sse,
    /// One line of JSON for each event (NDJSON). There are no comments.
    Lines,
}

impl StreamFraming {
    const ALL: [Self; 2] = [Self::Sse, Self::Lines];

    fn content_type(self) -> &'static str {
        match self {
            Self::Sse => "text/event-stream",
            Self::Lines => "application/x-ndjson",
        }
    }

    /// The bytes that end an event and are nowhere within it.
    fn end(self) -> &'static [u8] {
        match self {
            Self::Sse => b"\n\n",
            Self::Lines => b"\n",
        }
    }

    /// The framing of a response with these headers, if it consists of events.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(header::CONTENT_TYPE)?.as_bytes();
        let is_own = |framing: &Self| kind.starts_with(framing.content_type().as_bytes());
        Self::ALL.into_iter().find(is_own)
    }
}

/// The text of events, none or several.
#[derive(Debug, Default)]
pub struct SseEvents(Vec<u8>);

impl SseEvents {
    /// Adds an event with this data.
    pub fn push(&mut self, data: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        // JSON is one line: it escapes line breaks.
        serde_json::to_writer(&mut self.0, data).expect("our own types are JSON");
        self.0.extend_from_slice(b"\n\n");
    }

    /// Adds an event that is a line.
    pub fn push_line(&mut self, data: &impl Serialize) {
        serde_json::to_writer(&mut self.0, data).expect("our own types are JSON");
        self.0.push(b'\n');
    }

    /// Adds an event that is named by the `type` of its data.
    pub fn push_named(&mut self, data: &Value) {
        match data["type"].as_str() {
            Some(name) => self.push_as(name, data),
            None => self.push(data),
        }
    }

    /// Adds an event of this name.
    pub fn push_as(&mut self, name: &str, data: &impl Serialize) {
        let line = ["event: ", name, "\n"].concat();
        self.0.extend_from_slice(line.as_bytes());
        self.push(data);
    }

    /// Adds OpenAI's last event.
    pub fn finish(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}

impl From<SseEvents> for Bytes {
    fn from(events: SseEvents) -> Self {
        Self::from(events.0)
    }
}

/// A response of these events. After each `PING` without an event it sends a comment, if the framing has comments, so
/// that the connection is not taken for dead.
pub fn event_stream(framing: StreamFraming, events: BoxStream<'static, SseEvents>) -> Response {
    match framing {
        StreamFraming::Sse => with_pings(events, PING),
        StreamFraming::Lines => {
            let parts = events.map(Bytes::from);
            let parts = parts.filter(|part| std::future::ready(!part.is_empty()));
            event_response(framing, parts.map(Ok::<_, Infallible>))
        }
    }
}

fn with_pings(events: BoxStream<'static, SseEvents>, ping: Duration) -> Response {
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
    event_response(StreamFraming::Sse, parts.map(Ok::<_, Infallible>))
}

pub(crate) fn event_response(
    framing: StreamFraming,
    parts: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
) -> Response {
    let headers = [
        (header::CONTENT_TYPE, framing.content_type()),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(parts)).into_response()
}

/// Whether a response with these headers consists of server-sent events.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    StreamFraming::of(headers) == Some(StreamFraming::Sse)
}

/// Makes the last event of an answer that breaks off after this many events.
pub type FailureEvent = Box<dyn FnOnce(usize) -> BoxFuture<'static, Bytes> + Send>;

/// The events of another process's answer as they arrive, each in one piece. If the answer breaks off, or `lost`
/// completes before its end, the event that `failed` makes is the last one.
pub fn relay(
    framing: StreamFraming,
    answer: AnswerBody,
    lost: BoxFuture<'static, ()>,
    failed: FailureEvent,
) -> Body {
    let relay = Relay {
        framing,
        answer,
        lost,
        held: Vec::new(),
        n_events: 0,
        failed,
    };
    let parts = stream::unfold(Some(Box::new(relay)), |relay| async {
        let mut relay = relay?;
        loop {
            let part = tokio::select! {
                biased;
                part = relay.answer.next() => part?.ok(),
                () = &mut relay.lost => None,
            };
            let Some(bytes) = part else {
                let last = (relay.failed)(relay.n_events).await;
                return Some((last, None));
            };
            let whole = whole_events(relay.framing.end(), &mut relay.held, bytes);
            if !whole.is_empty() {
                let lines = whole.split(|byte| *byte == b'\n');
                relay.n_events += lines.filter(|line| line.starts_with(b"data:")).count();
                return Some((whole, Some(relay)));
            }
        }
    });
    Body::from_stream(parts.map(Ok::<_, Infallible>))
}

struct Relay {
    framing: StreamFraming,
    answer: AnswerBody,
    lost: BoxFuture<'static, ()>,
    /// The start of an event that is not complete.
    held: Vec<u8>,
    n_events: usize,
    failed: FailureEvent,
}

/// The whole events in `held` and the new bytes, each of which ends in `end`; the rest stays in `held`, which never
/// contains a complete event.
fn whole_events(end: &[u8], held: &mut Vec<u8>, bytes: Bytes) -> Bytes {
    if held.is_empty() && bytes.ends_with(end) {
        return bytes;
    }
    // An end of an event lies within the new bytes, or starts before them.
    let new = held.len().saturating_sub(end.len() - 1);
    held.extend_from_slice(&bytes);
    let unread = &held[new..];
    // An event may be one line of many megabytes, so the cheaper search comes first.
    let may_end = unread.contains(&b'\n');
    let mut ends = unread.windows(end.len());
    let last = may_end.then(|| ends.rposition(|part| part == end));
    let Some(last) = last.flatten() else {
        // The held bytes stay in place: moving them with each part would copy them each time.
        return Bytes::new();
    };
    let rest = held.split_off(new + last + end.len());
    Bytes::from(std::mem::replace(held, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines() {
        let mut events = SseEvents::default();
        events.push(&"two\nlines");
        events.push_named(&serde_json::json!({ "type": "ping" }));
        events.finish();
        let text = String::from_utf8(events.0).expect("UTF-8");
        let expected =
            "data: \"two\\nlines\"\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\ndata: [DONE]\n\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn parts_are_sent_on_as_whole_events_wherever_they_are_cut() {
        let events =
            b"data: {}\n\ndata: a long one of several parts\n\n\n\n: a comment\n\ndata: cut";
        let n_whole = events.len() - b"data: cut".len();
        for size in 1..events.len() {
            let (mut held, mut sent) = (Vec::new(), Vec::new());
            for part in events.chunks(size) {
                let whole = whole_events(b"\n\n", &mut held, Bytes::copy_from_slice(part));
                assert!(whole.is_empty() || whole.ends_with(b"\n\n"), "{size}");
                sent.extend_from_slice(&whole);
            }
            assert_eq!(sent, events[..n_whole], "{size}");
            assert_eq!(held, b"data: cut", "{size}");
        }
        let lines = b"{}\n{\"a\":1}\ncut";
        for size in 1..lines.len() {
            let (mut held, mut sent) = (Vec::new(), Vec::new());
            for part in lines.chunks(size) {
                let part = Bytes::copy_from_slice(part);
                sent.extend_from_slice(&whole_events(b"\n", &mut held, part));
            }
            assert_eq!(
                (sent.as_slice(), held.as_slice()),
                (&lines[..11], &b"cut"[..])
            );
        }
    }

    #[tokio::test]
    async fn a_waiting_stream_sends_comments() {
        let mut first = SseEvents::default();
        first.push(&serde_json::json!({}));
        let first = stream::iter([first, SseEvents::default()]);
        let events = first.chain(stream::pending()).boxed();
        let response = with_pings(events, Duration::from_millis(5));
        let mut body = response.into_body().into_data_stream();
        let mut text = String::new();
        for _ in 0..3 {
            let part = body.next().await.expect("more").expect("no failure");
            text += std::str::from_utf8(&part).expect("UTF-8");
        }
        assert_eq!(text, "data: {}\n\n:\n\n:\n\n");
    }
}
