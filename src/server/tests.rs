//! What clients see of loads that take long, fail or lack memory: the router over loaders of these tests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use serde_json::{Value, json};
use tower_service::Service;

use crate::http::context::RequestContext;
use crate::served::ServedModel;
use lab_core::engine::{DiffusionOptions, DraftOptions, Limits};
use lab_core::model::Options;
use lab_core::models;
use lab_core::models::{Definitions, ModelSource};

use super::*;

fn served() -> ServedModel {
    let definitions = Definitions::open(&[]).expect("the built-in definitions");
    let opened = models::open(&ModelSource::of(None), &definitions).expect("the built-in model");
    let options = Options {
        n_ctx_seq: 256,
        ..Options::plain(256, 64)
    };
    let limits = Limits {
        lab_bytes: 1 << 20,
        n_ctx: 256,
        n_parallel: 1,
        n_queue: 8,
        n_prefill: 64,
        drafts: DraftOptions::OFF,
        diffusion: DiffusionOptions::default(),
        queue_time: None,
        answer_time: None,
        step_time: None,
    };
    ServedModel::start(
        opened,
        options,
        limits,
        Default::default(),
        Box::new(|_, _| {}),
    )
    .expect("it starts")
}

fn pool(names: &[&'static str], loader: Loader) -> Arc<Pool> {
    let sources = names
        .iter()
        .map(|name| ModelSource::BuiltIn(name))
        .collect();
    let config = PoolConfig {
        is_managed: true,
        opener: Some(Arc::new(|_, _| Err("not asked".into()))),
        ..PoolConfig::default()
    };
    Arc::new(Pool::new(sources, loader, config).expect("no aliases"))
}

fn router(loader: Loader) -> Router {
    let pool = pool(&["one", "two"], loader);
    app(pool, Access::default(), Duration::from_secs(30)).expect("threads")
}

/// A loader that takes `time` and tells five times how far it is.
fn slow(time: Duration, end: fn() -> Result<StartedEngine, LoadError>) -> Loader {
    Arc::new(move |mut request| {
        for n in 1..=5 {
            std::thread::sleep(time / 5);
            (request.progress)(n * 20, 100);
        }
        end()
    })
}

fn loaded() -> Result<StartedEngine, LoadError> {
    Ok(served().into())
}

fn failed() -> Result<StartedEngine, LoadError> {
    Err(LoadError::new("it is broken"))
}

/// Status, type and text of an answer.
async fn post(router: &Router, path: &str, body: &Value) -> (StatusCode, String, String) {
    let request = Request::post(path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body.to_string())).expect("sound");
    let response = router.clone().call(request).await.expect("infallible");
    let (head, body) = response.into_parts();
    let kind = head.headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let text = to_bytes(body, usize::MAX).await.expect("all of it");
    let text = String::from_utf8(text.to_vec()).expect("UTF-8");
    (head.status, kind.to_owned(), text)
}

fn completion(is_streamed: bool) -> Value {
    json!({ "model": "one", "prompt": "2+2=", "max_tokens": 3, "stream": is_streamed })
}

const LONG: Duration = Duration::from_millis(2600);
const SHORT: Duration = Duration::from_millis(50);

/// The data of the events of a stream, and its comments.
fn parted(text: &str) -> (Vec<Value>, Vec<&str>) {
    let (mut data, mut comments) = (Vec::new(), Vec::new());
    for event in text.split("\n\n").filter(|event| !event.is_empty()) {
        match event.strip_prefix(": ") {
            Some(comment) => comments.push(comment),
            None => {
                let of_event = event.lines().find_map(|line| line.strip_prefix("data: "));
                let of_event = of_event.unwrap_or_else(|| panic!("{event:?}"));
                data.push(serde_json::from_str(of_event).unwrap_or_else(|_| json!(of_event)));
            }
        }
    }
    (data, comments)
}

/// The text of a streamed completion.
fn text_of(data: &[Value]) -> String {
    let texts = data.iter();
    texts
        .filter_map(|data| data["choices"][0]["text"].as_str())
        .collect()
}

#[tokio::test]
async fn a_stream_is_kept_alive_while_its_model_is_loaded() {
    let router = router(slow(LONG, loaded));
    let (status, kind, text) = post(&router, "/v1/completions", &completion(true)).await;
    assert_eq!(
        (status, kind.as_str()),
        (StatusCode::OK, "text/event-stream")
    );
    let (data, comments) = parted(&text);
    assert!(
        comments.iter().all(|comment| comment.starts_with("load")),
        "{comments:?}"
    );
    let percent = |comment: &&str| {
        let percent = comment.strip_prefix("loading, ")?.strip_suffix(" %")?;
        percent.parse().ok()
    };
    let percents: Vec<u64> = comments.iter().filter_map(percent).collect();
    assert!(percents.len() >= 2 && percents.is_sorted(), "{comments:?}");
    assert!(percents[0] < percents[percents.len() - 1], "{comments:?}");
    assert_eq!(data.last(), Some(&json!("[DONE]")), "{text}");
    let written = text_of(&data);

    // It is loaded now: no comment, the same text.
    let (status, _, text) = post(&router, "/v1/completions", &completion(true)).await;
    let (data, comments) = parted(&text);
    assert_eq!((status, comments.len()), (StatusCode::OK, 0), "{text}");
    assert_eq!(text_of(&data).len(), written.len());
}

#[tokio::test]
async fn a_load_that_is_short_or_asked_for_no_stream_has_its_own_status() {
    let router = router(slow(SHORT, failed));
    let (status, kind, text) = post(&router, "/v1/completions", &completion(true)).await;
    assert_eq!(
        (status, kind.as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "application/json"),
        "{text}"
    );
    assert!(text.contains("model_not_available"), "{text}");
    let router = self::router(slow(LONG, failed));
    let (status, _, text) = post(&router, "/v1/completions", &completion(false)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
}

#[tokio::test]
async fn nothing_is_loaded_for_a_request_that_no_model_would_take() {
    let loader: Loader = Arc::new(|_| panic!("nothing is to be loaded"));
    let mut split = pool(&["one"], Arc::clone(&loader));
    Arc::get_mut(&mut split)
        .expect("nobody else has it")
        .config
        .mode = HostMode::Server;
    for pool in [pool(&["one"], loader), split] {
        let of_app = Arc::clone(&pool);
        let router = app(of_app, Access::default(), Duration::from_secs(30)).expect("threads");
        for is_streamed in [false, true] {
            let mut body = completion(is_streamed);
            body["temperature"] = json!(-1);
            let (status, _, text) = post(&router, "/v1/completions", &body).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
            assert!(text.contains("\"param\":\"temperature\""), "{text}");
        }
        assert_eq!(states(&pool), ["not loaded"]);
        assert_eq!(pool.infos()[0].n_failures, 0);
    }
}

#[tokio::test]
async fn a_refusal_after_a_long_load_is_an_event_in_the_dialect_of_the_stream() {
    let body = json!({
        "model": "two", "max_tokens": 3, "stream": true,
        "messages": [{ "role": "user", "content": "1" }],
    });
    let (one, two) = (router(slow(LONG, failed)), router(slow(LONG, failed)));
    let completion = completion(true);
    let ((status, _, text), (_, _, of_messages)) = tokio::join!(
        post(&one, "/v1/completions", &completion),
        post(&two, "/v1/messages", &body)
    );
    let (data, comments) = parted(&text);
    assert_eq!(status, StatusCode::OK);
    assert!(!comments.is_empty() && data.len() == 1, "{text}");
    assert_eq!(data[0]["error"]["code"], "model_not_available", "{text}");

    let text = of_messages;
    let (data, _) = parted(&text);
    assert!(text.contains("event: error\n"), "{text}");
    assert_eq!(data[0]["type"], "error", "{text}");
    assert_eq!(data[0]["error"]["type"], "overloaded_error", "{text}");
}

#[tokio::test]
async fn a_load_tells_how_far_it_is() {
    let router = router(slow(LONG, loaded));
    let order = json!({ "model": "one", "stream": true });
    let (status, kind, text) = post(&router, "/models/load", &order).await;
    assert_eq!(
        (status, kind.as_str()),
        (StatusCode::OK, "text/event-stream")
    );
    let (data, _) = parted(&text);
    assert_eq!(data.last(), Some(&json!("[DONE]")), "{text}");
    let last = &data[data.len() - 2];
    assert_eq!(
        *last,
        json!({ "success": true, "model": "one", "state": "loaded" })
    );
    let (first, rest) = data[..data.len() - 2].split_first().expect("progress");
    assert_eq!(first["progress"]["fraction"], Value::Null, "{text}");
    let shares: Vec<u64> = rest
        .iter()
        .map(|event| {
            assert_eq!(event["state"], "loading", "{event}");
            assert_eq!(event["progress"]["total_bytes"], 100, "{event}");
            event["progress"]["loaded_bytes"].as_u64().expect("bytes")
        })
        .collect();
    assert!(
        shares.len() >= 3 && shares.is_sorted_by(|a, b| a < b),
        "{shares:?}"
    );

    // What is loaded is so at once; without `stream` the answer is one object.
    let (_, _, text) = post(&router, "/models/load", &order).await;
    assert_eq!(parted(&text).0.len(), 2, "{text}");
    let (_, kind, text) = post(&router, "/models/load", &json!({ "model": "one" })).await;
    assert_eq!(kind, "application/json");
    assert!(text.contains("\"state\":\"loaded\""), "{text}");

    let router = self::router(slow(SHORT, failed));
    let (status, _, text) = post(&router, "/models/load", &order).await;
    assert_eq!(status, StatusCode::OK);
    let (data, _) = parted(&text);
    let last = data.last().expect("an event");
    assert_eq!(last["error"]["code"], "model_not_available", "{text}");
    let unknown = json!({ "model": "three", "stream": true });
    let (status, _, _) = post(&router, "/models/load", &unknown).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

fn states(pool: &Pool) -> Vec<&'static str> {
    pool.infos().iter().map(|info| info.state).collect()
}

fn n_loaded(pool: &Pool) -> usize {
    let states = states(pool).into_iter();
    states.filter(|state| *state == "loaded").count()
}

#[tokio::test]
async fn models_give_way_where_memory_is_short_and_those_in_use_never() {
    /// Bytes of memory, and of a model.
    const MEMORY: usize = 25;
    const MODEL: usize = 10;
    let (own, n_tries) = (
        Arc::new(OnceLock::<Weak<Pool>>::new()),
        Arc::new(AtomicUsize::new(0)),
    );
    let (of_loader, counted) = (Arc::clone(&own), Arc::clone(&n_tries));
    let loader: Loader = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let pool = of_loader.get().and_then(Weak::upgrade).expect("the pool");
        match MEMORY - n_loaded(&pool) * MODEL {
            available if available >= MODEL => loaded(),
            _ => Err(LoadError {
                lacks_memory: true,
                ..LoadError::new("not enough memory")
            }),
        }
    });
    let pool = pool(&["a", "b", "c"], loader);
    let get = |name: &'static str| RequestContext::detached().scope(pool.get(name));
    own.set(Arc::downgrade(&pool)).expect("it is not set");
    let n_tries = || n_tries.swap(0, Ordering::Relaxed);
    drop(get("a").await.expect("it fits"));
    drop(get("b").await.expect("it fits"));
    assert_eq!(
        (states(&pool), n_tries()),
        (vec!["loaded", "loaded", "not loaded"], 2)
    );
    // The least recently used one gives way.
    drop(get("a").await.expect("it is loaded"));
    drop(get("c").await.expect("it fits then"));
    assert_eq!(
        (states(&pool), n_tries()),
        (vec!["loaded", "not loaded", "loaded"], 2)
    );
    // In use, none does.
    let held = [get("a").await, get("c").await];
    let started = Instant::now();
    assert!(matches!(
        get("b").await,
        Err(crate::http::error::Error::LoadFailed { .. })
    ));
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "it waits for nothing"
    );
    assert_eq!(
        (states(&pool), n_tries()),
        (vec!["loaded", "not loaded", "loaded"], 1)
    );
    drop(held);
    drop(get("b").await.expect("it fits then"));
    assert_eq!(n_loaded(&pool), 2);
}
