//! The body of a request: the first byte is the route, the rest the body. The built-in model answers.
#![no_main]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use lab_core::engine::{DiffusionOptions, Limits};
use lab_core::model::Options;
use lab_core::models::ModelSource;
use lab_server::served::ServedModel;
use lab_server::{Access, LoadError, Loader, Pool, PoolConfig, StartedEngine};
use tokio::runtime::Runtime;
use tower::ServiceExt;

const ROUTES: [&str; 16] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/completion",
    "/infill",
    "/lora-adapters",
    "/v1/lab/run",
    "/v1/lab/patch",
    "/v1/lab/lens",
];

/// A context of a few tokens, so that no completion is long.
const N_CTX: usize = 64;

static SERVER: LazyLock<(Runtime, Router)> = LazyLock::new(|| {
    let options = Options {
        n_ctx_seq: N_CTX,
        n_threads: 1,
        ..Options::plain(N_CTX, 16)
    };
    let limits = Limits {
        lab_bytes: 1 << 20,
        n_ctx: N_CTX,
        n_parallel: 1,
        n_queue: 8,
        n_prefill: 16,
        n_drafted: 0,
        diffusion: DiffusionOptions::default(),
        queue_time: None,
        answer_time: Some(Duration::from_secs(5)),
        step_time: None,
    };
    let loader: Loader = Arc::new(move |_| {
        let served = ServedModel::start(fuzz::model(), options.clone(), limits, Box::new(|_, _| {}));
        served
            .map(StartedEngine::from)
            .map_err(|error| LoadError::new(error.to_string()))
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let entered = runtime.enter();
    let pool = Pool::new(vec![ModelSource::of(None)], loader, PoolConfig::default());
    let pool = Arc::new(pool.expect("no aliases"));
    let app = lab_server::app(pool, Access::default(), Duration::from_secs(5)).expect("threads");
    drop(entered);
    (runtime, app)
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((first, body)) = bytes.split_first() else {
        return;
    };
    let (runtime, app) = &*SERVER;
    let request = Request::post(ROUTES[usize::from(*first) % ROUTES.len()])
        .header("content-type", "application/json")
        .body(Body::from(body.to_vec()))
        .expect("a request");
    runtime.block_on(async {
        let response = app.clone().oneshot(request).await.expect("an answer");
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 24)
            .await
            .expect("a body");
        let is_fine = !status.is_server_error() || status == 503 || status == 504;
        assert!(is_fine, "{status}: {}", String::from_utf8_lossy(&body));
    });
});
