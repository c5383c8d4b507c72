//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::Pool;
use super::error::Error;

fn entry(pool: &Pool, name: &str) -> Value {
    json!({ "id": name, "object": "model", "created": pool.created(), "owned_by": "bench" })
}

pub(super) async fn list(State(pool): State<Arc<Pool>>) -> Json<Value> {
    let models: Vec<Value> = pool.names().map(|name| entry(&pool, name)).collect();
    Json(json!({ "object": "list", "data": models }))
}

pub(super) async fn one(
    State(pool): State<Arc<Pool>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Error> {
    // A name that is not UTF-8 names no model.
    let id = id.map_or_else(|rejection| rejection.to_string(), |Path(id)| id);
    let name = pool.resolve(&id)?;
    Ok(Json(entry(&pool, name)))
}
