//! `GET /health` and its like: the state of the server, and the models that are loaded or being loaded.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde_json::json;

use crate::Pool;
use crate::http::json::Json;
use crate::pool::ModelSnapshot;

/// Status 503 while the first models are loaded, while the server ends, and if a step of a model in this process exceeds its time limit.
pub(crate) async fn health(State(pool): State<Arc<Pool>>) -> (StatusCode, Json) {
    let infos = pool.infos();
    let names = |is_meant: &dyn Fn(&ModelSnapshot) -> bool| -> Vec<String> {
        let meant = infos.iter().filter(|info| is_meant(info));
        meant.map(|info| info.name.clone()).collect()
    };
    let served = |info: &ModelSnapshot| info.served.clone();
    let stalled = names(&|info| served(info).is_some_and(|served| served.handle.is_stalled()));
    let (status, word) = match (stalled.is_empty(), pool.unready()) {
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "stalled"),
        (true, Some(why)) => (StatusCode::SERVICE_UNAVAILABLE, why),
        (true, None) => (StatusCode::OK, "ok"),
    };
    let body = json!({
        "status": word, "version": env!("CARGO_PKG_VERSION"), "stalled": stalled,
        "loaded": names(&|info| info.state == "loaded"), "loading": names(&|info| info.state == "loading"),
    });
    (status, Json(body))
}

/// Status 503 if a step of a model in this process exceeds its time limit: then the process should be started again.
pub(crate) async fn live(State(pool): State<Arc<Pool>>) -> (StatusCode, Json) {
    let infos = pool.infos();
    let served = infos.iter().filter_map(|info| info.served.as_ref());
    let mut stalled = served.filter(|served| served.handle.is_stalled());
    match stalled.next() {
        None => (StatusCode::OK, Json(json!({ "status": "ok" }))),
        Some(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({ "status": "stalled" })),
        ),
    }
}

/// The version of the program.
pub(crate) async fn version() -> Json {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}
