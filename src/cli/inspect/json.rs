//! The findings about a model as JSON. Scripts rely on the names: fields are added, never changed.

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use lab_base::tokenizer::Tokenizer;
use lab_base::weights::{Array, TensorInfo, TensorType, Value};

use lab_inspect::towers::TowerReport;

use super::findings::{
    CONTEXTS, ContextMemory, Findings, PlanFindings, cache_bytes, special_tokens,
};

pub(super) fn of(found: &Findings) -> Json {
    let metadata = found.metadata.iter();
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value_of(value)));
    let planned = found.planned.as_ref().ok();
    let plan = planned.map(|planned| &planned.plan);
    json!({
        "file": found.label,
        "metadata": metadata.collect::<Map<String, Json>>(),
        "tensors": found.tensors.iter().map(tensor).collect::<Vec<Json>>(),
        "architecture": plan.map(|plan| json!({
            "name": plan.arch,
            "mode": plan.mode.name(),
            "layers": plan.layers.len(),
            "weights": plan.n_weights(),
        })),
        "description": planned.map(|planned| &planned.description),
        "shares": planned.map(|planned| &planned.shares),
        "tokenizer": or_error(found.tokenizer.as_ref().map(tokenizer)),
        "template": found.template.as_ref().map(|probe| or_error(probe.as_ref())),
        "drafter": found.drafter,
        "towers": found.towers.iter().map(tower).collect::<Vec<Json>>(),
        "memory": planned.map(memory),
        "capabilities": planned.map(|planned| &planned.capabilities),
        "unused": plan.map(|plan| &plan.unclaimed),
        "unread": planned.map(|_| &found.unread),
        "templates": found.templates,
        "error": found.planned.as_ref().err(),
    })
}

pub(super) fn value_of(value: &Value) -> Json {
    match value {
        Value::Bool(v) => json!(v),
        Value::Str(v) => json!(v),
        // The shortest decimal that parses to the same bits.
        Value::F32(v) => json!(v.to_string().parse::<f64>().unwrap_or(f64::from(*v))),
        Value::F64(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::Array(Array::Str(v)) => v.iter().map(|s| String::from_utf8_lossy(s)).collect(),
        Value::Array(v) => {
            let all = (0..v.len()).filter_map(|i| v.get(i));
            all.map(|v| value_of(&v)).collect()
        }
        integer => json!(integer.as_i64()),
    }
}

fn tensor(t: &TensorInfo) -> Json {
    json!({ "name": t.name, "type": t.ty.name(), "shape": t.shape, "bytes": t.bytes })
}

/// A finding, or the reason why it is missing.
fn or_error(found: Result<impl Serialize, &String>) -> Json {
    match found {
        Ok(found) => json!(found),
        Err(error) => json!({ "error": error }),
    }
}

fn tower(tower: &TowerReport) -> Json {
    let mut fields = json!(tower);
    fields["sample"] = or_error(tower.sample.as_ref());
    fields
}

fn tokenizer(tokenizer: &Tokenizer) -> Json {
    let special = special_tokens(tokenizer).into_iter();
    let special = special.map(|(role, id)| (role.to_owned(), json!(id)));
    json!({
        "kind": tokenizer.kind(),
        "tokens": tokenizer.vocab_len(),
        "special": special.collect::<Map<String, Json>>(),
        "ends": tokenizer.ends_of_generation().collect::<Vec<u32>>(),
        "adds_bos": tokenizer.adds_bos(),
        "adds_eos": tokenizer.adds_eos(),
    })
}

fn memory(planned: &PlanFindings) -> Json {
    let plan = &planned.plan;
    let caches = CONTEXTS.map(|n| {
        (
            n.to_string(),
            json!(cache_bytes(plan, n, [TensorType::F16; 2])),
        )
    });
    json!({
        "weights": plan.weight_bytes(),
        "cache_f16": Map::from_iter(caches),
        "weights_read": planned.weights_read,
        "k_type": planned.options.k_type.name(),
        "v_type": planned.options.v_type.name(),
        "devices": planned.devices,
        "contexts": planned.contexts.iter().map(context).collect::<Vec<Json>>(),
    })
}

fn context(context: &ContextMemory) -> Json {
    let memory = context.memory.as_ref();
    json!({
        "n_ctx": context.n_ctx,
        "mapped": memory.map(|memory| memory.mapped),
        "copied": memory.map(|memory| memory.copied),
        "cache": memory.map(|memory| memory.cache),
        "states": context.states,
        "scratch": memory.map(|memory| memory.compute),
        "cache_read": context.read,
        "refusal": context.refusal,
    })
}
