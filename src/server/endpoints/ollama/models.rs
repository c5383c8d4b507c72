//! What Ollama's clients ask of the models: `GET /api/tags`, `GET /api/ps`, `POST /api/show`, `POST /api/pull`,
//! `DELETE /api/delete` and `GET /api/version`. None of them loads a model.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::Pool;
use crate::endpoints::models::ManagedPool;
use crate::http::context::RequestContext;
use crate::http::error::Error;
use crate::http::error_format::ollama_error;
use crate::http::json::Json;
use crate::http::transport::{self, SseEvents, StreamFraming};
use crate::pool::{LATEST, ModelCard, ModelSnapshot, Pull};
use crate::request::fields::{Fields, fields};
use crate::served::DEFAULT_MODEL;
use lab_base::util::clock::rfc3339;
use lab_base::util::wording::count;
use lab_core::plan::{Media, PROCESSOR};

/// The version of Ollama whose API this is: clients ask for it to know what they may send.
const API_VERSION: &str = "0.12.11";
/// Minimum time between two progress lines of a download.
const PAUSE: Duration = Duration::from_millis(100);

fields! {
    pub(crate) struct ShowFields {
        model: Option<String>,
        /// `model`, as older clients call it.
        name: Option<String>,
        /// Without effect: arrays of the metadata are null.
        verbose: Option<bool>,
    }
}

fields! {
    pub(crate) struct PullFields {
        /// `OWNER/REPO[:QUANT]`, also after `hf.co/`.
        model: Option<String>,
        /// `model`, as older clients call it.
        name: Option<String>,
        /// Without effect: `HF_ENDPOINT` says where the Hub is.
        insecure: Option<bool>,
        /// Default: true.
        stream: Option<bool>,
    }
}

pub(crate) async fn version() -> Json {
    let bench = env!("CARGO_PKG_VERSION");
    Json(json!({ "version": API_VERSION, "bench": bench }))
}

/// A name as Ollama's clients expect it, with a tag.
fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    let tag = if last.contains(':') { "" } else { LATEST };
    format!("{name}{tag}")
}

fn details(info: &ModelSnapshot) -> Value {
    let format = match info.source.file().is_some_and(Path::is_dir) {
        true => "safetensors",
        false => "gguf",
    };
    let own = info.description.as_ref().map(|of_model| &of_model.info);
    let family = own.map_or("", |own| own.arch.as_str());
    json!({
        "parent_model": "", "format": format, "family": family, "families": [family],
        "parameter_size": own.map_or_else(String::new, |own| count(own.n_params).replace(' ', "")),
        "quantization_level": own.map_or_else(String::new, |own| own.ty.to_uppercase()),
    })
}

/// When the files of a model were changed; the start of the server for a built-in one.
fn modified(pool: &Pool, info: &ModelSnapshot) -> String {
    let time = info.source.stamp().and_then(|stamp| stamp.modified());
    rfc3339(time.unwrap_or(UNIX_EPOCH + Duration::from_secs(pool.created)))
}

/// What tags and processes have in common. The digest identifies the state of the files; their contents are not read.
fn entry(name: &str, info: &ModelSnapshot) -> Value {
    let name = tagged(name);
    let stamp = format!("{} {:?}", info.name, info.source.stamp());
    let digest = Sha256::digest(stamp)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    let size = info
        .description
        .as_ref()
        .map_or(0, |of_model| of_model.info.n_bytes);
    json!({ "name": name, "model": name, "size": size, "digest": digest, "details": details(info) })
}

/// The models that can be served, under their own names and their aliases.
fn named<'a>(pool: &'a Pool, infos: &'a [ModelSnapshot]) -> Vec<(&'a str, &'a ModelSnapshot)> {
    let can_run = infos.iter().filter(|info| info.state != "not servable");
    let own = can_run.map(|info| (info.name.as_str(), info));
    let own: Vec<_> = own.collect();
    let aliases = pool.config.aliases.iter().filter_map(|(alias, name)| {
        let (_, info) = own.iter().find(|(own, _)| own == name)?;
        Some((alias.as_str(), *info))
    });
    let mut all: Vec<_> = aliases.chain(own.iter().copied()).collect();
    all.sort_by_key(|(name, _)| *name);
    all
}

pub(crate) async fn tags(State(pool): State<Arc<Pool>>) -> Json {
    let infos = pool.described().await;
    let models = named(&pool, &infos).into_iter().map(|(name, info)| {
        let mut entry = entry(name, info);
        entry["modified_at"] = modified(&pool, info).into();
        entry
    });
    Json(json!({ "models": models.collect::<Value>() }))
}

pub(crate) async fn ps(State(pool): State<Arc<Pool>>) -> Json {
    /// What stays loaded expires after some centuries, as with Ollama.
    const FOREVER: Duration = Duration::from_nanos(i64::MAX as u64);
    let infos = pool.described().await;
    let loaded = infos.iter().filter(|info| info.state == "loaded");
    let models = loaded.map(|info| {
        let about = match (&info.served, &info.process) {
            (Some(served), _) => served.properties(),
            (_, Some(process)) => process.about.clone(),
            _ => Value::Null,
        };
        let bytes = |of: fn(&Value) -> bool| -> u64 {
            let devices = about["memory"].as_array().into_iter().flatten();
            let parts = devices.filter(|device| of(device)).flat_map(|device| {
                let parts = ["mapped", "weights", "cache", "compute"].into_iter();
                parts.filter_map(|part| device[part].as_u64())
            });
            parts.sum()
        };
        let idle = info.keep_alive.or(pool.config.limits.idle);
        let left = idle.map_or(FOREVER, |idle| {
            idle.saturating_sub(info.idle_for).min(FOREVER)
        });
        let mut entry = entry(&info.name, info);
        entry["size"] = bytes(|_| true).into();
        entry["size_vram"] = bytes(|device| device["device"] != PROCESSOR).into();
        entry["expires_at"] = rfc3339(SystemTime::now() + left).into();
        entry["context_length"] = info
            .description
            .as_ref()
            .map(|of_model| of_model.n_ctx)
            .into();
        entry
    });
    Json(json!({ "models": models.collect::<Value>() }))
}

pub(crate) async fn show(
    State(pool): State<Arc<Pool>>,
    Fields(asked): Fields<ShowFields>,
) -> Result<Json, Error> {
    if asked.verbose == Some(true) {
        RequestContext::current().ignore("verbose");
    }
    let name = asked.model.or(asked.name);
    let name = pool.serving_name(name.as_deref().unwrap_or(DEFAULT_MODEL))?;
    let card = pool.card(&name).await?;
    let info = pool.info(&name).await?;
    let described = info.description.iter();
    let parameters = described.flat_map(|of_model| of_model.sampling.iter());
    let parameters = parameters.map(|(own, value)| format!("{} {value}", own.name));
    let parameters: Vec<String> = parameters.collect();
    Ok(Json(json!({
        "modelfile": format!("FROM {name}\n"),
        "parameters": parameters.join("\n"),
        "license": card.metadata.get("general.license"),
        "template": card.template.as_deref().unwrap_or("{{ .Prompt }}"),
        "details": details(&info),
        "capabilities": capabilities(&card),
        "modified_at": modified(&pool, &info),
        "model_info": model_info(&name, card, &info),
    })))
}

fn capabilities(card: &ModelCard) -> Vec<&'static str> {
    let all = [
        ("completion", card.writes_text),
        ("tools", card.calls_tools),
        ("insert", card.fills_gaps),
        ("thinking", card.thinks),
        ("embedding", card.embeds),
        ("vision", card.media.contains(&Media::Image)),
        ("audio", card.media.contains(&Media::Audio)),
    ];
    let own = all.into_iter().filter(|(_, is_own)| *is_own);
    own.map(|(name, _)| name).collect()
}

/// The metadata of the file, with what clients read and some files do not say.
fn model_info(name: &str, card: ModelCard, info: &ModelSnapshot) -> Value {
    let mut all = card.metadata;
    if let Some(of_model) = &info.description {
        let own = &of_model.info;
        let arch = all
            .entry("general.architecture")
            .or_insert_with(|| own.arch.as_str().into());
        let arch = arch.as_str().unwrap_or_default().to_owned();
        all.insert("general.parameter_count".into(), own.n_params.into());
        for (key, value) in [
            ("context_length", own.n_ctx_train),
            ("embedding_length", own.n_embd),
        ] {
            if value > 0 {
                all.entry(format!("{arch}.{key}"))
                    .or_insert_with(|| value.into());
            }
        }
    }
    all.entry("general.basename").or_insert_with(|| name.into());
    all.into()
}

pub(crate) async fn pull(
    ManagedPool(pool): ManagedPool,
    Fields(order): Fields<PullFields>,
) -> Result<Response, Error> {
    if order.insecure == Some(true) {
        RequestContext::current().ignore("insecure");
    }
    let name = order
        .model
        .or(order.name)
        .ok_or_else(|| Error::missing("model"))?;
    let name = name.strip_suffix(LATEST).unwrap_or(&name).to_owned();
    let is_streamed = order.stream != Some(false);
    // A model that has no name on the Hub and is there is as new as it can be.
    let is_there = !name.contains('/') && pool.own_name(&name).is_ok();
    let mut pull = if is_there {
        None
    } else {
        Some(pool.start_pull(&name)?)
    };
    if !is_streamed {
        if let Some(pull) = &mut pull {
            pool.add_pulled(pull.ended().await?);
        }
        return Ok(Json(status("success")).into_response());
    }
    let mut first = SseEvents::default();
    first.push_line(&status("pulling manifest"));
    let record = RequestContext::current();
    let state = Some(Pulling { pool, name, pull });
    let rest = stream::unfold(state, move |state| {
        let record = Arc::clone(&record);
        record.scope(next_of_pull(state))
    });
    let lines = stream::once(std::future::ready(first)).chain(rest);
    Ok(transport::event_stream(StreamFraming::Lines, lines.boxed()))
}

fn status(text: &str) -> Value {
    json!({ "status": text })
}

/// A download whose lines are written.
struct Pulling {
    pool: Arc<Pool>,
    name: String,
    pull: Option<Pull>,
}

async fn next_of_pull(state: Option<Pulling>) -> Option<(SseEvents, Option<Pulling>)> {
    let mut state = state?;
    let mut out = SseEvents::default();
    let ended = match &mut state.pull {
        None => Ok(None),
        Some(pull) => match tokio::time::timeout(PAUSE, pull.ended()).await {
            Err(_) => {
                let share = pull.progress();
                if share.total > 0 {
                    out.push_line(&json!({
                        "status": format!("pulling {}", state.name), "digest": state.name,
                        "total": share.total, "completed": share.loaded,
                    }));
                }
                return Some((out, Some(state)));
            }
            Ok(ended) => ended.map(Some),
        },
    };
    match ended {
        Ok(model) => {
            model.map(|model| state.pool.add_pulled(model));
            out.push_line(&status("success"));
        }
        Err(error) => {
            error.log();
            out.push_line(&ollama_error(&error.message()));
        }
    }
    Some((out, None))
}

pub(crate) async fn delete(ManagedPool(_): ManagedPool) -> Error {
    let message =
        "models are not removed over HTTP; `bench rm NAME` removes one that was downloaded";
    Error::unsupported("model", message)
}
