//! `GET /health`: the server's state, and which models are loaded or being loaded.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::Pool;

pub(super) async fn health(State(pool): State<Arc<Pool>>) -> Json<Value> {
    let infos = pool.infos();
    let names = |state: &str| -> Vec<&str> {
        let of_state = infos.iter().filter(|info| info.state == state);
        of_state.map(|info| info.name.as_str()).collect()
    };
    Json(json!({
        "status": "ok", "version": env!("CARGO_PKG_VERSION"),
        "loaded": names("loaded"), "loading": names("loading"),
    }))
}
