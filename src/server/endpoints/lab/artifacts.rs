//! Results that are kept as files: `GET /v1/lab/artifacts` lists them, `GET` and `DELETE /v1/lab/artifacts/{id}` return
//! and remove one.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};

use crate::Pool;
use crate::http::error::Error;
use crate::http::json::Json;
use crate::response::lab::{ARTIFACTS_ROUTE as ROUTE, artifact_json};
use lab_core::artifacts::store::ArtifactStore;

/// Number of bytes of a file that are sent at a time.
const PIECE: usize = 256 << 10;

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
    let all = store(&pool)?.list();
    let data: Value = all.iter().map(artifact_json).collect();
    Ok(Json(json!({ "object": "list", "data": data })))
}

pub(crate) async fn get(
    State(pool): State<Arc<Pool>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Error> {
    let id = id_of(id);
    let (kept, file) = store(&pool)?.open(&id).ok_or_else(|| unknown(&id))?;
    let name = format!("attachment; filename=\"{}.{}\"", kept.id, kept.format);
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, kept.bytes.to_string()),
        (header::CONTENT_DISPOSITION, name),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    let pieces = stream::iter(Pieces(file.take(kept.bytes)));
    Ok((headers, Body::from_stream(pieces)).into_response())
}

pub(crate) async fn delete(
    State(pool): State<Arc<Pool>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json, Error> {
    let id = id_of(id);
    match store(&pool)?.remove(&id) {
        true => Ok(Json(
            json!({ "id": id, "object": "lab.artifact", "deleted": true }),
        )),
        false => Err(unknown(&id)),
    }
}

/// The bytes of a file as a stream of pieces.
struct Pieces(std::io::Take<File>);

impl Iterator for Pieces {
    type Item = std::io::Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut piece = Vec::with_capacity(PIECE);
        match (&mut self.0).take(PIECE as u64).read_to_end(&mut piece) {
            Ok(0) => None,
            Ok(_) => Some(Ok(piece.into())),
            Err(error) => Some(Err(error)),
        }
    }
}
