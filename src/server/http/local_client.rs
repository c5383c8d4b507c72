//! Requests of the process to itself, which take the way of those over HTTP, without connection and API key.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;

type Send = dyn Fn(String, Request) -> BoxFuture<'static, Response> + std::marker::Send + Sync;

/// Sends requests to the handlers of this process.
#[derive(Clone)]
pub struct LocalClient(Arc<Send>);

impl LocalClient {
    pub(crate) fn new(
        send: impl Fn(String, Request) -> BoxFuture<'static, Response>
        + std::marker::Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(send))
    }

    /// The response to a request of the client `owner`.
    pub(crate) fn send(&self, owner: &str, request: Request) -> BoxFuture<'static, Response> {
        (self.0)(owner.to_owned(), request)
    }
}
