//! `generation_settings` of a response and the defaults of `/props`: the effective parameters under llama-server's
//! names.
//!
//! A parameter that is not supported has the value that turns it off, which is the effective one.

use serde_json::{Map, Value, json};

use lab_core::engine::Request;
use lab_sampling::{NumberKind, PARAMETERS, Params};

use crate::request::generation::GenerationParams;

use super::NativeFields;

fn sampling(params: &Params) -> Map<String, Value> {
    let number = |value: f64, kind: NumberKind| match kind {
        NumberKind::Real => json!(value),
        NumberKind::Count | NumberKind::Integer => json!(value as i64),
    };
    let numbers = PARAMETERS.iter().map(|parameter| {
        let value = number(parameter.get(params), parameter.kind);
        (parameter.name.to_owned(), value)
    });
    let mut out: Map<String, Value> = numbers.collect();
    let stages = params.order.iter().map(|stage| stage.as_str());
    out.insert("samplers".into(), stages.collect());
    out.insert("seed".into(), params.seed.into());
    let off = json!({
        "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "adaptive_target": -1.0,
        "adaptive_decay": 0.0, "min_keep": 0, "n_keep": 0, "n_discard": 0,
    });
    add(&mut out, off);
    out
}

fn add(out: &mut Map<String, Value>, fields: Value) {
    if let Value::Object(fields) = fields {
        out.extend(fields);
    }
}

pub(crate) fn defaults(params: &Params) -> Value {
    let mut out = sampling(params);
    let others = json!({
        // A new seed is drawn for each request.
        "seed": -1, "max_tokens": -1, "n_predict": -1, "ignore_eos": false, "stream": false,
        "stop": [], "logit_bias": [], "n_probs": 0, "timings_per_token": false,
        "post_sampling_probs": false, "return_progress": false, "cache_prompt": true, "lora": [],
    });
    add(&mut out, others);
    out.into()
}

/// The effective parameters of a request.
pub(super) fn of(request: &Request, generation: &GenerationParams, native: &NativeFields) -> Value {
    let mut out = sampling(&request.sampling);
    let most = request.max_tokens.and_then(|n| i64::try_from(n).ok());
    let most = most.unwrap_or(-1);
    let biases = request.sampling.logit_bias.iter();
    // A ban is null: JSON has no minus infinity.
    let biases = biases.map(|(id, bias)| json!({ "token": id, "bias": bias }));
    let stops = request.stops.iter();
    let adapters = request.adapters.iter().flatten();
    let others = json!({
        "max_tokens": most, "n_predict": most, "ignore_eos": generation.ignores_eos(),
        "stream": generation.is_streamed(),
        "stop": stops.map(|stop| String::from_utf8_lossy(stop)).collect::<Vec<_>>(),
        "logit_bias": biases.collect::<Vec<_>>(),
        "n_probs": native.n_probs.unwrap_or(0),
        "timings_per_token": generation.reports().timings,
        "post_sampling_probs": request.post_sampling,
        "return_progress": request.progress, "cache_prompt": request.cache_prompt,
        "lora": adapters.map(|(id, scale)| json!({ "id": id, "scale": scale })).collect::<Vec<_>>(),
    });
    add(&mut out, others);
    out.into()
}
