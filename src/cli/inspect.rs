//! `bench inspect`: what a model file holds and what running it takes.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde_json::{Value as Json, json};

use crate::model::Options;
use crate::models::{self, Opened, Source};
use crate::plan::{Plan, Room};
use crate::weights::{self, Array, Checked, TensorType, Value, Weights};

use super::options::LoadOptions;
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The file; default: the model built in
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadOptions,
}

/// Array elements shown.
const SHOWN: usize = 6;
/// Context lengths for which the cache is worked out.
const CONTEXTS: [u64; 3] = [2048, 8192, 32768];

/// Tokens of a pass, for which a window has room beside its own positions.
const N_BATCH: u64 = Options::N_BATCH as u64;

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let source = Source::of(args.file.as_deref());
    let definitions = args.load.archs.definitions()?;
    let weights = models::read(&source, &definitions)?.weights;
    // A file of an unknown architecture, or without tensors, is worth looking at too.
    let plan = args.load.open(&source);
    if args.load.check_tensors
        && let Ok(opened) = &plan
    {
        check_tensors(opened)?;
    }
    let plan = plan.map(|opened| opened.plan).map_err(|e| e.to_string());
    if args.json {
        return output::line(serde_json::to_string_pretty(&to_json(
            &weights,
            plan.as_ref(),
        ))?);
    }
    output::bytes(to_text(&weights, plan.as_ref()).as_bytes())
}

/// Refuses weights with NaN or infinity in them.
pub(super) fn check_tensors(opened: &Opened) -> Result<(), Failure> {
    let names: Vec<&str> = opened
        .plan
        .tensors
        .iter()
        .map(|t| t.name.as_str())
        .collect();
    let results = weights::check(&opened.weights, &names)?;
    for (name, _) in names
        .iter()
        .zip(results)
        .filter(|(_, result)| *result == Checked::Missing)
    {
        tracing::warn!(tensor = name, "not in the file, so not checked");
    }
    Ok(())
}

fn cache_bytes(plan: &Plan, n_ctx: u64) -> u64 {
    let room = Room {
        n_ctx,
        n_seqs: 1,
        n_batch: N_BATCH,
    };
    plan.cache_bytes(room, TensorType::F16, TensorType::F16)
        .unwrap_or(0)
}

fn to_text(weights: &Weights, plan: Result<&Plan, &String>) -> String {
    let mut text = format!("{}\n\nmetadata\n", weights.label());
    for (key, value) in weights.metadata().iter() {
        text.push_str(&format!("  {key} = {}\n", shown(value)));
    }
    let total: u64 = weights.tensors().iter().map(|t| t.bytes).sum();
    text.push_str(&format!(
        "\ntensors: {} in {}\n",
        weights.tensors().len(),
        output::size(total)
    ));
    for tensor in weights.tensors() {
        text.push_str(&format!(
            "  {:40} {:8} {:?} {}\n",
            tensor.name,
            tensor.ty.name(),
            tensor.shape,
            output::size(tensor.bytes)
        ));
    }
    match plan {
        Err(error) => text.push_str(&format!("\narchitecture: {error}\n")),
        Ok(plan) => {
            text.push_str(&format!(
                "\narchitecture: {} ({}), {} layers, {} weights\n",
                plan.arch,
                plan.mode.name(),
                plan.layers.len(),
                plan.n_weights()
            ));
            text.push_str(&format!(
                "memory: weights {}",
                output::size(plan.weight_bytes())
            ));
            for n_ctx in CONTEXTS {
                let bytes = output::size(cache_bytes(plan, n_ctx));
                text.push_str(&format!(", f16 cache of {n_ctx} positions {bytes}"));
            }
            text.push('\n');
            for name in &plan.unclaimed {
                text.push_str(&format!("unused tensor: {name}\n"));
            }
        }
    }
    text
}

/// A value in a line.
fn shown(value: &Value) -> String {
    match value {
        Value::Str(text) => {
            let short: String = text.chars().take(80).collect();
            let more = if short.len() < text.len() {
                format!("... ({} bytes)", text.len())
            } else {
                String::new()
            };
            format!("{short:?}{more}")
        }
        Value::Array(array) => {
            let items: Vec<String> = (0..array.len().min(SHOWN))
                .filter_map(|i| array.get(i))
                .map(|v| shown(&v))
                .collect();
            let more = if array.len() > SHOWN {
                format!(", ... ({} in all)", array.len())
            } else {
                String::new()
            };
            format!("[{}{more}]", items.join(", "))
        }
        other => json_value(other).to_string(),
    }
}

fn json_value(value: &Value) -> Json {
    match value {
        Value::Bool(v) => json!(v),
        Value::Str(v) => json!(v),
        // The shortest decimal that reads back as the stored bits.
        Value::F32(v) => json!(v.to_string().parse::<f64>().unwrap_or(f64::from(*v))),
        Value::F64(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::Array(Array::Str(v)) => v
            .iter()
            .map(|s| json!(String::from_utf8_lossy(s)))
            .collect(),
        Value::Array(v) => (0..v.len())
            .filter_map(|i| v.get(i))
            .map(|v| json_value(&v))
            .collect(),
        integer => json!(integer.as_i64()),
    }
}

fn to_json(weights: &Weights, plan: Result<&Plan, &String>) -> Json {
    let metadata: serde_json::Map<String, Json> = weights
        .metadata()
        .iter()
        .map(|(key, value)| (key.to_owned(), json_value(value)))
        .collect();
    let tensors: Vec<Json> = weights
        .tensors()
        .iter()
        .map(|t| json!({ "name": t.name, "type": t.ty.name(), "shape": t.shape, "bytes": t.bytes }))
        .collect();
    let memory = plan.ok().map(|plan| {
        let caches: serde_json::Map<String, Json> = CONTEXTS
            .iter()
            .map(|n| (n.to_string(), json!(cache_bytes(plan, *n))))
            .collect();
        json!({ "weights": plan.weight_bytes(), "cache_f16": caches })
    });
    json!({
        "file": weights.label(),
        "metadata": metadata,
        "tensors": tensors,
        "architecture": plan.ok().map(|plan| json!({
            "name": plan.arch, "mode": plan.mode.name(), "layers": plan.layers.len(), "weights": plan.n_weights(),
        })),
        "memory": memory,
        "unused": plan.ok().map(|plan| &plan.unclaimed),
        "error": plan.err(),
    })
}
