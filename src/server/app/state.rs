//! What all requests share: the pool, the handlers, and the threads on which they run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use tower_service::Service;

use crate::Access;
use crate::http::local_client::LocalClient;
use crate::http::request_counts::RequestCounts;
use crate::http::{body, error};
use crate::pool::Pool;

pub(crate) struct AppState {
    pub(crate) pool: Arc<Pool>,
    pub(crate) access: Access,
    pub(crate) threads: body::HandlerThreads,
    pub(crate) routes: Router,
    pub(crate) client: LocalClient,
    pub(crate) counts: RequestCounts,
}

impl AppState {
    pub(crate) async fn handled(self: Arc<Self>, mut request: Request) -> Response {
        request.extensions_mut().insert(self.client.clone());
        request.extensions_mut().insert(self.counts.clone());
        let mut routes = self.routes.clone();
        body::run_handler(&self.threads, request, |request| {
            caught(async move {
                let Ok(response) = routes.call(request).await;
                response
            })
        })
        .await
    }
}

/// Runs a handler. A panic becomes an error, and the server continues.
pub(crate) async fn caught(work: impl Future<Output = Response>) -> Response {
    let mut work = pin!(work);
    std::future::poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        polled.unwrap_or_else(|cause| Poll::Ready(error::panicked(cause.as_ref())))
    })
    .await
}
