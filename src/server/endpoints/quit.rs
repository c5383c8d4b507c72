//! `POST /quit`: the server shuts down as on SIGTERM, after running requests are complete.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde_json::json;

use super::models::ManagedPool;
use crate::http::error::Error;
use crate::http::json::Json;
use crate::request::fields::{BodyFields, read_body};

pub(crate) async fn quit(
    ManagedPool(pool): ManagedPool,
    request: Request,
) -> Result<impl IntoResponse, Error> {
    let (head, body) = request.into_parts();
    let body = read_body(body).await?;
    // The request has no fields, so an empty body is accepted.
    if !body.is_empty() {
        BodyFields::read(&head.headers, &body)?.closed().finish()?;
    }
    pool.ask_to_quit();
    Ok((StatusCode::ACCEPTED, Json(json!({ "success": true }))))
}
