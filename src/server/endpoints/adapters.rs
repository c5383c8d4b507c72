//! `GET` and `POST /lora-adapters`: the LoRA adapters of a model and their scales, in llama-server's shapes.
//!
//! Where more than one model is served, `?model=NAME` selects one.
//!
//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`, in vLLM's shapes: adapters that requests choose by
//! their names. The server checks names and paths, and its engine process has the same routes for what it has to do.

use std::path::Path;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, Request, State};
use axum::http::header;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::served::{DEFAULT_MODEL, ServedModel};

use super::models::ManagedPool;
use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid};
use crate::http::json::Json;
use crate::pool::{HostMode, LoadedEngine, NamedAdapter};
use crate::process::EngineProcess;
use crate::process::forward::{EngineGone, forwarded};
use crate::request::adapter_scales::{ADAPTER_SCALE, AdapterScale, distinct_scales};
use crate::request::fields::{Fields, fields, plain_message, read_body};
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
    let all = all.into_iter().enumerate();
    let entries = all
        .filter(|(_, adapter)| !adapter.is_unloaded)
        .map(|(id, adapter)| {
            let path = adapter.path.display().to_string();
            let mut entry = json!({ "id": id, "path": path, "scale": adapter.scale });
            if let Some(name) = adapter.name {
                entry["name"] = json!(name);
            }
            entry
        });
    Ok(Json(entries.collect()))
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

const LOAD_ROUTE: &str = "/v1/load_lora_adapter";
const UNLOAD_ROUTE: &str = "/v1/unload_lora_adapter";

fields! {
    pub(crate) struct LoadAdapterFields {
        /// The name by which requests choose the adapter, as their `model`
        lora_name: String,
        /// A GGUF file or a PEFT folder below the folder of `--lora-dir`
        lora_path: String,
        /// The model of the adapter; default: the only one
        model: Option<String>,
    }
}

fields! {
    pub(crate) struct UnloadAdapterFields {
        lora_name: String,
    }
}

/// Completes work, also if the client leaves: the pool knows what its engines have loaded.
async fn completed(
    work: impl Future<Output = Result<Response, Error>> + Send + 'static,
) -> Result<Response, Error> {
    let task = tokio::spawn(RequestContext::current().scope(work));
    let failed = |_| Err(Error::engine("an adapter was not loaded or unloaded"));
    task.await.unwrap_or_else(failed)
}

pub(crate) async fn load(
    ManagedPool(pool): ManagedPool,
    Fields(order): Fields<LoadAdapterFields>,
) -> Result<Response, Error> {
    completed(async move {
        let _turn = pool.scaling.lock().await;
        let (name, model) = (order.lora_name, order.model);
        let done = format!("Success: LoRA adapter '{name}' added successfully.");
        if pool.config.mode == HostMode::EngineProcess {
            let served = pool.get(DEFAULT_MODEL).await?;
            return load_here(served, name, order.lora_path, done).await;
        }
        let model = pool.own_name(model.as_deref().unwrap_or(DEFAULT_MODEL))?;
        pool.check_adapter_name(&name)?;
        let path = pool.adapter_path(order.lora_path).await?;
        let engine = pool.engine(&model).await?;
        let answer = match &engine {
            LoadedEngine::InProcess(served) => {
                load_here(Arc::clone(served), name.clone(), path.clone(), done).await?
            }
            LoadedEngine::Process(process) => {
                let body = json!({ "lora_name": name, "lora_path": path });
                told(process, LOAD_ROUTE, &body).await?
            }
        };
        if answer.status().is_success() {
            pool.keep_adapter(&model, &engine, NamedAdapter { name, path })?;
        }
        Ok(answer)
    })
    .await
}

async fn load_here(
    served: Arc<ServedModel>,
    name: String,
    path: String,
    done: String,
) -> Result<Response, Error> {
    let work = move || served.load_adapter(&name, Path::new(&path));
    let loaded = tokio::task::spawn_blocking(work).await;
    match loaded.unwrap_or_else(|_| Err("loading the adapter panicked".into())) {
        Ok(()) => Ok(done.into_response()),
        Err(message) => invalid("lora_path", message),
    }
}

pub(crate) async fn unload(
    ManagedPool(pool): ManagedPool,
    Fields(order): Fields<UnloadAdapterFields>,
) -> Result<Response, Error> {
    completed(async move {
        let _turn = pool.scaling.lock().await;
        let name = order.lora_name;
        let engine = match pool.config.mode {
            HostMode::EngineProcess => Some(pool.engine(DEFAULT_MODEL).await?),
            _ => pool.forget_adapter(&name).await?,
        };
        match &engine {
            Some(LoadedEngine::InProcess(served)) => served.handle.unload_adapter(&name)?,
            Some(LoadedEngine::Process(process)) => {
                return told(process, UNLOAD_ROUTE, &json!({ "lora_name": name })).await;
            }
            None => {}
        }
        Ok(format!("Success: LoRA adapter '{name}' removed successfully.").into_response())
    })
    .await
}

/// The answer of an engine process to a request of the server's own.
async fn told(
    process: &Arc<EngineProcess>,
    path: &'static str,
    body: &Value,
) -> Result<Response, Error> {
    let name = process.name.clone();
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    let request = request.body(body.to_string().into());
    let request = request.map_err(|error| Error::engine(error.to_string()))?;
    let answer = forwarded(Arc::clone(process), request).await;
    answer.map_err(|EngineGone(how)| Error::EngineDied { name, how })
}
