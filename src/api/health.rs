//! `GET /health`: the server's state, and the loaded models.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::Pool;

pub(super) async fn health(State(pool): State<Arc<Pool>>) -> Json<Value> {
    Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION"), "loaded": pool.loaded() }))
}
