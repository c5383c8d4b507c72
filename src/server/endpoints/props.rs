//! `GET /props` and `GET /slots`: the settings and activity of a loaded model, in llama-server's shapes.
//!
//! These routes load no model. If several models are served, `?model=NAME` selects one.

use std::sync::Arc;

use axum::extract::State;
use serde_json::json;

use lab_base::ggml::build_info;
use lab_sampling::Params;

use super::adapters::ModelQuery;
use super::llama_server;
use crate::Pool;
use crate::http::error::Error;
use crate::http::json::Json;
use crate::request::input::MEDIA_MARKER;

pub(crate) async fn props(State(pool): State<Arc<Pool>>, which: ModelQuery) -> Result<Json, Error> {
    let info = pool.info(&pool.serving_name(which.name())?).await?;
    let served = info.served.as_ref();
    let limits = served.map(|served| served.handle.limits());
    let n_ctx = limits.map(|limits| limits.n_ctx);
    let mut params = Params::default();
    if let Some(served) = served {
        served.sampling.apply(&mut params, |_| false);
    }
    Ok(Json(json!({
        "model_alias": info.name,
        "state": info.state,
        "total_slots": limits.map(|limits| limits.n_parallel),
        "model_path": info.source.path(),
        "default_generation_settings": {
            "n_ctx": n_ctx, "params": llama_server::defaults(&params),
        },
        "n_queue": limits.map(|limits| limits.n_queue),
        "chat_template": served.and_then(|served| served.chat_template.as_deref()),
        "modalities": info.description.as_ref().map(|of| of.modalities).unwrap_or_default(),
        "media_marker": MEDIA_MARKER,
        "build_info": format!("bench {}", build_info().version_text()),
        "system_fingerprint": served.map(|served| served.fingerprint.as_str()),
    })))
}

pub(crate) async fn slots(State(pool): State<Arc<Pool>>, which: ModelQuery) -> Result<Json, Error> {
    let info = pool.info(&pool.serving_name(which.name())?).await?;
    let Some(served) = info.served else {
        return Ok(Json(json!([])));
    };
    let (limits, now) = (served.handle.limits(), served.handle.stats().now());
    let slot = |id: usize| match now.active.get(id) {
        None => json!({ "id": id, "n_ctx": limits.n_ctx, "is_processing": false }),
        Some(active) => json!({
            "id": id, "n_ctx": limits.n_ctx, "is_processing": true,
            "n_prompt_tokens": active.n_prompt, "n_cached_tokens": active.n_cached,
            "n_decoded": active.n_decoded, "is_prefill": active.is_prefill,
        }),
    };
    Ok(Json((0..limits.n_parallel).map(slot).collect()))
}
