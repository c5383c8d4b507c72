//! `GET` and `POST /lora-adapters`: the LoRA adapters of a model and their scales, in llama-server's shapes.
//!
//! Where more than one model is served, `?model=NAME` selects one.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, Request, State};
use axum::http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::served::ServedModel;

use crate::Pool;
use crate::http::error::{Error, invalid};
use crate::http::json::Json;
use crate::request::adapter_scales::{ADAPTER_SCALE, AdapterScale, distinct_scales};
use crate::request::fields::{plain_message, read_body};
use crate::request::object_fields;

pub(crate) const ROUTE: &str = "/lora-adapters";

/// The model that the query of a path selects.
#[derive(Debug, Deserialize)]
pub(crate) struct ModelQuery {
    model: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for ModelQuery {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let query = Query::from_request_parts(parts, state).await;
        let fault =
            |rejection: QueryRejection| Error::invalid_value("model", rejection.body_text());
        query.map(|Query(which)| which).map_err(fault)
    }
}

impl ModelQuery {
    /// The name of the selected model, or the alias of the only one.
    pub(crate) fn name(&self) -> &str {
        self.model
            .as_deref()
            .unwrap_or(crate::served::DEFAULT_MODEL)
    }
}

pub(crate) fn scales(body: &[u8]) -> Result<Vec<(usize, f32)>, Error> {
    let wrong = |error: serde_json::Error| {
        let error = plain_message(&error.to_string());
        Error::Body(format!(
            "expected a list such as [{{\"id\": 0, \"scale\": 0.5}}]: {error}"
        ))
    };
    let mut list: Value = serde_json::from_slice(body).map_err(wrong)?;
    object_fields::prune(&mut list, "", &ADAPTER_SCALE)?;
    let list: Vec<AdapterScale> = serde_json::from_value(list).map_err(wrong)?;
    distinct_scales(&list)
}

async fn served(pool: &Arc<Pool>, which: &ModelQuery) -> Result<Arc<ServedModel>, Error> {
    match (&which.model, pool.names().as_slice()) {
        (Some(name), _) => pool.get(name).await,
        (None, [only]) => pool.get(only).await,
        _ => invalid(
            "model",
            "`model`: more than one is served, and adapters belong to one: `?model=NAME` names it",
        ),
    }
}

pub(crate) async fn list(State(pool): State<Arc<Pool>>, which: ModelQuery) -> Result<Json, Error> {
    let served = served(&pool, &which).await?;
    let all = served.handle.adapters().all();
    let entry = |(id, (path, scale)): (usize, (&std::path::Path, f32))| json!({ "id": id, "path": path.display().to_string(), "scale": scale });
    Ok(Json(all.into_iter().enumerate().map(entry).collect()))
}

pub(crate) async fn set(
    State(pool): State<Arc<Pool>>,
    which: ModelQuery,
    request: Request,
) -> Result<Json, Error> {
    let scales = scales(&read_body(request.into_body()).await?)?;
    let served = served(&pool, &which).await?;
    let _turn = pool.scaling.lock().await;
    served.handle.adapters().set(&scales)?;
    pool.keep_scales(&served.name, scales);
    Ok(Json(json!({ "success": true })))
}
