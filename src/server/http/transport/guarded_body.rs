//! A body that tells a guard what was read of it. The guard is dropped with the body.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// What accompanies a body.
pub(crate) trait BodyGuard: Send + Unpin + 'static {
    /// Called after each part of the body with its size, and with 0 at the end.
    fn read(&mut self, _n_bytes: usize, _is_end: bool) {}
}

struct GuardedBody<G> {
    body: Body,
    guard: G,
}

/// The same body, with a guard.
pub(crate) fn guarded(body: Body, guard: impl BodyGuard) -> Body {
    Body::new(GuardedBody { body, guard })
}

impl<G: BodyGuard> HttpBody for GuardedBody<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let data = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref());
        let is_end = frame.is_none() || self.body.is_end_stream();
        self.guard.read(data.map_or(0, Bytes::len), is_end);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
