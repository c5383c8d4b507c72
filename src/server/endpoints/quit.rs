//! `POST /quit`: the server shuts down as on SIGTERM, after running requests are complete.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde_json::json;

use super::models::Managed;
use crate::http::error::Error;
use crate::http::json::Json;
use crate::request::fields::{Body, whole};

pub(crate) async fn quit(
    Managed(pool): Managed,
    request: Request,
) -> Result<impl IntoResponse, Error> {
    let (head, body) = request.into_parts();
    let body = whole(body).await?;
    // The request has no fields, so an empty body is accepted.
    if !body.is_empty() {
        Body::read(&head.headers, &body)?.own().finish()?;
    }
    pool.ask_to_quit();
    Ok((StatusCode::ACCEPTED, Json(json!({ "success": true }))))
}
