//! Results that are kept as files: `GET /v1/lab/artifacts` lists them, `GET` and `DELETE /v1/lab/artifacts/{id}` return
//! and remove one.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::Error;
use crate::http::file_body::file_body;
use crate::http::json::Json;
use crate::response::lab::{ARTIFACTS_ROUTE as ROUTE, artifact_json};
use lab_core::artifacts::store::ArtifactStore;

fn store(pool: &Pool) -> Result<&ArtifactStore, Error> {
    let missing = || Error::NoRoute(ROUTE.into());
    pool.config.artifacts.as_ref().ok_or_else(missing)
}

fn unknown(id: &str) -> Error {
    Error::NotFound {
        what: "artifact",
        id: id.to_owned(),
    }
}

/// The id in a path. An id that is not UTF-8 names nothing.
pub(super) fn id_of(id: Result<Path<String>, PathRejection>) -> String {
    id.map_or_else(|_| String::new(), |Path(id)| id)
}

pub(crate) async fn list(State(pool): State<Arc<Pool>>) -> Result<Json, Error> {
    let client = RequestContext::current().client();
    let all = store(&pool)?.list(client.viewer());
    let data: Value = all.iter().map(artifact_json).collect();
    Ok(Json(json!({ "object": "list", "data": data })))
}

pub(crate) async fn get(
    State(pool): State<Arc<Pool>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Error> {
    let id = id_of(id);
    let client = RequestContext::current().client();
    let found = store(&pool)?.open(client.viewer(), &id);
    let (kept, file) = found.ok_or_else(|| unknown(&id))?;
    let name = format!("attachment; filename=\"{}.{}\"", kept.id, kept.format);
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, kept.bytes.to_string()),
        (header::CONTENT_DISPOSITION, name),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    Ok((headers, file_body(file, kept.bytes)).into_response())
}

pub(crate) async fn delete(
    State(pool): State<Arc<Pool>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json, Error> {
    let id = id_of(id);
    let client = RequestContext::current().client();
    match store(&pool)?.remove(client.viewer(), &id) {
        true => Ok(Json(
            json!({ "id": id, "object": "lab.artifact", "deleted": true }),
        )),
        false => Err(unknown(&id)),
    }
}
