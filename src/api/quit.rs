//! `POST /quit`: the server shuts down as on SIGTERM, after running requests are complete.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use serde_json::json;

use super::Pool;
use super::error::Error;
use super::fields::Body;
use super::models::check_managed;

pub(super) async fn quit(
    State(pool): State<Arc<Pool>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<impl IntoResponse, Error> {
    check_managed(&pool)?;
    // The request has no fields, so an empty body is accepted.
    if !body.as_ref().is_ok_and(Bytes::is_empty) {
        Body::read(&headers, body)?.finish()?;
    }
    pool.ask_to_quit();
    Ok((StatusCode::ACCEPTED, Json(json!({ "success": true }))))
}
