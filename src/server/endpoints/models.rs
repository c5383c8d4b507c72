//! The models: `GET /v1/models` and `GET /v1/models/{id}`, which load nothing; `POST /models/load`,
//! `POST /models/unload` and `POST /models/rescan`.
//!
//! Shapes: OpenAI's, with vLLM's `max_model_len` and llama-server's `meta`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};

use lab_hub::CachedModel;

use crate::http::transport::{self, SseEvents, StreamFraming};
use crate::served::ModelInfo;

use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::Error;
use crate::http::json::Json;
use crate::pool::{HostMode, Load, LoadProgress, ModelSnapshot, NamedAdapter, Pull};
use crate::request::fields::{BodyFields, Fields, fields};

fields! {
    pub(crate) struct UnloadFields {
        model: String,
    }
}

fields! {
    pub(crate) struct LoadFields {
        model: String,
        /// Whether events tell how much is loaded; default: whether `Accept` is `text/event-stream`
        stream: Option<bool>,
    }
}

fields! {
    pub(crate) struct PullFields {
        /// `OWNER/REPO[:QUANT][@REVISION]`
        model: String,
        /// Whether events tell how much is downloaded; default: whether `Accept` is `text/event-stream`
        stream: Option<bool>,
    }
}

/// Minimum time between two progress events of a load or a download.
const PAUSE: Duration = Duration::from_millis(100);

/// The list entry of a model under one of its names.
fn entry(pool: &Pool, id: &str, info: &ModelSnapshot) -> Value {
    let n_ctx = info.description.as_ref().map(|of_model| of_model.n_ctx);
    let is_own = |(_, name): &(&String, &String)| **name == info.name;
    let aliases = pool.config.aliases.iter().filter(is_own);
    let mut entry = json!({
        "id": id, "object": "model", "created": pool.created, "owned_by": "bench",
        "root": info.name, "aliases": aliases.map(|(alias, _)| alias).collect::<Vec<_>>(),
        "state": info.state, "max_model_len": n_ctx, "context_length": n_ctx,
        "architecture": info.description.as_ref().map(|of_model| json!({
            "input_modalities": of_model.modalities.inputs(), "output_modalities": ["text"],
        })),
        "meta": info.description.as_ref().map(|of_model| meta(&of_model.info)),
    });
    if let Some(adapter) = adapter_of(info, id) {
        entry["root"] = json!(adapter.path);
        entry["parent"] = json!(info.name);
    }
    if let Some(share) = info.progress {
        entry["progress"] = progress(share);
    }
    // How a process died reveals nothing about files.
    let is_told = pool.config.is_managed || info.state == "failed";
    if let Some(fault) = info.fault.as_ref().filter(|_| is_told) {
        entry["error"] = json!(fault);
    }
    let loaded = match (&info.served, &info.process) {
        (Some(served), _) => served.properties(),
        (_, Some(process)) => process.about.clone(),
        _ => {
            let sampling = info.description.as_ref().map(|of_model| &of_model.sampling);
            json!({ "sampling_defaults": sampling })
        }
    };
    for (key, value) in loaded.as_object().into_iter().flatten() {
        match key.as_str() {
            "memory" => entry["meta"][key] = value.clone(),
            _ => entry[key] = value.clone(),
        }
    }
    entry
}

/// The adapter of a model that has this name.
fn adapter_of<'a>(info: &'a ModelSnapshot, name: &str) -> Option<&'a NamedAdapter> {
    info.adapters.iter().find(|adapter| adapter.name == name)
}

/// The numbers of a model under llama-server's names.
fn meta(info: &ModelInfo) -> Value {
    json!({
        "arch": info.arch, "mode": info.mode.name(), "n_vocab": info.n_vocab, "n_ctx_train": info.n_ctx_train,
        "n_embd": info.n_embd, "n_params": info.n_params, "size": info.n_bytes,
    })
}

pub(crate) async fn list(State(pool): State<Arc<Pool>>) -> Json {
    let infos = pool.described().await;
    let own = infos.iter().map(|info| (info.name.as_str(), info));
    let aliases = pool.config.aliases.iter().filter_map(|(alias, name)| {
        let info = infos.iter().find(|info| info.name == *name)?;
        Some((alias.as_str(), info))
    });
    let adapters = infos.iter().flat_map(|info| {
        let names = info.adapters.iter().map(|adapter| adapter.name.as_str());
        names.map(move |name| (name, info))
    });
    let mut named: Vec<(&str, &ModelSnapshot)> = own.chain(aliases).chain(adapters).collect();
    named.sort_by_key(|(id, _)| *id);
    let entries = named.into_iter().map(|(id, info)| entry(&pool, id, info));
    let entries: Value = entries.collect();
    Json(json!({ "object": "list", "data": entries }))
}

/// The name of a model in a path: `NAME`, or `OWNER/REPO` where clients do not encode the slash.
pub(crate) fn name_in_path(parts: Result<Path<Vec<String>>, PathRejection>) -> String {
    // A name that is not UTF-8 names no model.
    parts.map_or_else(
        |rejection| rejection.to_string(),
        |Path(parts)| parts.join("/"),
    )
}

pub(crate) async fn one(
    State(pool): State<Arc<Pool>>,
    id: Result<Path<Vec<String>>, PathRejection>,
) -> Result<Json, Error> {
    let id = name_in_path(id);
    let info = pool.info(&id).await?;
    let is_other = pool.config.aliases.contains_key(&id) || adapter_of(&info, &id).is_some();
    let id = if is_other { &id } else { &info.name };
    Ok(Json(entry(&pool, id, &info)))
}

/// The pool, for a request that manages models or the server: refused where that is not allowed.
pub(crate) struct ManagedPool(pub(crate) Arc<Pool>);

impl FromRequestParts<Arc<Pool>> for ManagedPool {
    type Rejection = Error;

    async fn from_request_parts(_: &mut Parts, pool: &Arc<Pool>) -> Result<Self, Error> {
        // An engine process has the server as its only client, which has checked the request.
        match pool.config.is_managed || pool.config.mode == HostMode::EngineProcess {
            true => Ok(Self(Arc::clone(pool))),
            false => Err(Error::Forbidden {
                code: "management_not_allowed",
                message: "models and the server are managed by clients with a key only, where the address is not loopback; set `--admin-key`".into(),
            }),
        }
    }
}

fn progress(share: LoadProgress) -> Value {
    let LoadProgress { loaded, total } = share;
    let fraction = (total > 0).then(|| loaded as f64 / total as f64);
    json!({ "loaded_bytes": loaded, "total_bytes": total, "fraction": fraction })
}

fn loaded(name: &str) -> Value {
    json!({ "success": true, "model": name, "state": "loaded" })
}

pub(crate) async fn load(
    ManagedPool(pool): ManagedPool,
    headers: HeaderMap,
    Fields(order): Fields<LoadFields>,
) -> Result<Response, Error> {
    let name = pool.own_name(&order.model)?;
    if order.stream.unwrap_or(is_event_stream(&headers)) {
        let load = pool.start_load(&name)?.err();
        return Ok(reported(name, load));
    }
    pool.engine(&name).await?;
    Ok(Json(loaded(&name)).into_response())
}

/// Downloads a model by its name. Who does not wait for the end cancels the download.
pub(crate) async fn pull(
    ManagedPool(pool): ManagedPool,
    headers: HeaderMap,
    Fields(order): Fields<PullFields>,
) -> Result<Response, Error> {
    let mut pull = pool.start_pull(&order.model)?;
    if !order.stream.unwrap_or(is_event_stream(&headers)) {
        let model = pull.ended().await?;
        return Ok(Json(pulled(&pool, model)).into_response());
    }
    let record = RequestContext::current();
    let events = stream::unfold(Some((pool, pull)), move |state| {
        let record = Arc::clone(&record);
        record.scope(next_of_pull(state))
    });
    Ok(transport::event_stream(StreamFraming::Sse, events.boxed()))
}

/// A pool and a download for it, until that has ended.
type Pulling = (Arc<Pool>, Pull);

async fn next_of_pull(state: Option<Pulling>) -> Option<(SseEvents, Option<Pulling>)> {
    let (pool, mut pull) = state?;
    let mut out = SseEvents::default();
    match tokio::time::timeout(PAUSE, pull.ended()).await {
        Err(_) => {
            out.push(&json!({ "state": "downloading", "progress": progress(pull.progress()) }));
            return Some((out, Some((pool, pull))));
        }
        Ok(Ok(model)) => {
            out.push(&pulled(&pool, model));
            out.finish();
        }
        Ok(Err(error)) => {
            error.log();
            out.push(&error.body());
        }
    }
    Some((out, None))
}

/// The end of a download; `served`: under which name the server has it, if it serves it.
fn pulled(pool: &Pool, model: CachedModel) -> Value {
    let (name, commit, bytes) = (model.name.to_string(), model.commit.clone(), model.bytes);
    json!({
        "success": true, "state": "downloaded", "model": name, "commit": commit, "size": bytes,
        "served": pool.add_pulled(model),
    })
}

/// Whether a client asks for events.
fn is_event_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).map(HeaderValue::as_bytes);
    accept.is_some_and(|accept| accept.starts_with(b"text/event-stream"))
}

/// The events of a load: its progress, then its end. Without a load the model is loaded already.
fn reported(name: String, load: Option<Load>) -> Response {
    let mut first = SseEvents::default();
    if let Some(load) = &load {
        first.push(&loading(&name, load.progress()));
    }
    let record = RequestContext::current();
    let rest = stream::unfold(Some((name, load)), move |state| {
        let record = Arc::clone(&record);
        record.scope(next_report(state))
    });
    let first = stream::once(std::future::ready(first));
    transport::event_stream(StreamFraming::Sse, first.chain(rest).boxed())
}

/// A model that is loaded, and its load unless that has ended.
type Reported = (String, Option<Load>);

/// The next events of a load, and what is left to be reported.
async fn next_report(state: Option<Reported>) -> Option<(SseEvents, Option<Reported>)> {
    let (name, load) = state?;
    let mut out = SseEvents::default();
    let Some(mut load) = load else {
        out.push(&loaded(&name));
        out.finish();
        return Some((out, None));
    };
    tokio::time::sleep(PAUSE).await;
    let next = match load.next().await {
        Ok(Some(share)) => {
            out.push(&loading(&name, share));
            Some((name, Some(load)))
        }
        Ok(None) => Some((name, None)),
        Err(error) => {
            error.log();
            out.push(&error.body());
            None
        }
    };
    Some((out, next))
}

fn loading(name: &str, share: LoadProgress) -> Value {
    let mut event = json!({ "model": name, "state": "loading" });
    event["progress"] = progress(share);
    event
}

pub(crate) async fn unload(
    ManagedPool(pool): ManagedPool,
    Fields(which): Fields<UnloadFields>,
) -> Result<Json, Error> {
    let was_loaded = pool.unload(&which.model).await?;
    Ok(Json(json!({ "success": true, "was_loaded": was_loaded })))
}

pub(crate) async fn rescan(
    ManagedPool(pool): ManagedPool,
    body: BodyFields,
) -> Result<Json, Error> {
    body.closed().finish()?;
    let (new, gone) = pool.rescan().await?;
    Ok(Json(json!({ "success": true, "new": new, "gone": gone })))
}
