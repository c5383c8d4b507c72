//! `GET /health`: the state of the server, and the models that are loaded or being loaded.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde_json::json;

use crate::Pool;
use crate::http::json::Json;
use crate::pool::ModelSnapshot;

/// Status 503 if a step of a model in this process exceeds its time limit.
pub(crate) async fn health(State(pool): State<Arc<Pool>>) -> (StatusCode, Json) {
    let infos = pool.infos();
    let names = |is_meant: &dyn Fn(&ModelSnapshot) -> bool| -> Vec<String> {
        let meant = infos.iter().filter(|info| is_meant(info));
        meant.map(|info| info.name.clone()).collect()
    };
    let served = |info: &ModelSnapshot| info.served.clone();
    let stalled = names(&|info| served(info).is_some_and(|served| served.handle.is_stalled()));
    let (status, word) = match stalled.is_empty() {
        true => (StatusCode::OK, "ok"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "stalled"),
    };
    let body = json!({
        "status": word, "version": env!("CARGO_PKG_VERSION"), "stalled": stalled,
        "loaded": names(&|info| info.state == "loaded"), "loading": names(&|info| info.state == "loading"),
    });
    (status, Json(body))
}
