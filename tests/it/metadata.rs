//! One piece of a golden's metadata changed: the logits are those that llama.cpp computes then.
//!
//! `make metadata-vs-llama` stored them in `tests/goldens/metadata`, as digests. A sample is compared
//! here, and all changes that once were silently different; `scripts/metadata_vs_llama.py` compares all.

use std::collections::BTreeSet;

use lab_base::weights::{Array, Metadata, Value as Meta};
use lab_core::model::{Batch, Model, Options};
use lab_core::plan::Plan;
use serde_json::Value;

use crate::goldens::{EXACT, Golden, goldens, options, sourced};
use crate::support::{nmse, parse_npy};

/// Sums in a digest.
const N_DIGEST: usize = 8;
/// One change of so many is compared.
const SAMPLE: usize = 64;

/// Sums of the logits with signs of their own. Value `i` has in sum `k` the sign of bit `k` of
/// splitmix64(i), positive if it is set.
fn digest(logits: &[f32]) -> Vec<f32> {
    let mut sums = [0.0; N_DIGEST];
    for (i, logit) in (1u64..).zip(logits) {
        let mut z = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        for (k, sum) in sums.iter_mut().enumerate() {
            let sign = if z >> k & 1 == 1 { 1.0 } else { -1.0 };
            *sum += sign * f64::from(*logit);
        }
    }
    let root = (logits.len() as f64).sqrt();
    sums.map(|sum| (sum / root) as f32).to_vec()
}

/// A value as a model file has it: integers as u32, numbers with a point as f32.
fn meta(value: &Value) -> Meta {
    let float = |v: &Value| v.as_f64().expect("a number") as f32;
    let integer = |v: &Value| v.as_u64().expect("an integer") as u32;
    match value {
        Value::Bool(v) => Meta::Bool(*v),
        Value::String(v) => Meta::Str(v.clone()),
        Value::Number(n) if n.is_f64() => Meta::F32(float(value)),
        Value::Number(_) => Meta::U32(integer(value)),
        Value::Array(items) => Meta::Array(match &items[0] {
            Value::Bool(_) => Array::Bool(items.iter().filter_map(Value::as_bool).collect()),
            Value::Number(n) if n.is_f64() => Array::F32(items.iter().map(float).collect()),
            _ => Array::U32(items.iter().map(integer).collect()),
        }),
        other => panic!("no value of a model file: {other}"),
    }
}

/// The metadata with a change `key=JSON key=JSON`; `null` removes a key.
fn changed(metadata: &Metadata, arch: &str, change: &str) -> Metadata {
    let parts = change.split(' ').map(|part| {
        let (key, value) = part.split_once('=').expect("key=value");
        let value: Value = serde_json::from_str(value).expect("the value is JSON");
        (format!("{arch}.{key}"), value)
    });
    let mut removed = BTreeSet::new();
    let mut set = Vec::new();
    for (key, value) in parts {
        if value.is_null() {
            removed.insert(key);
        } else {
            set.push((key, meta(&value)));
        }
    }
    let kept = metadata.iter().filter(|(key, _)| !removed.contains(*key));
    let mut out: Metadata = kept
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    for (key, value) in set {
        out.insert(key, value);
    }
    out
}

/// What is stored of a model: numbers of changes by kind.
struct Stored<'a> {
    entry: &'a Value,
}

impl Stored<'_> {
    fn numbers(&self, kind: &str) -> Vec<usize> {
        let items = self.entry[kind].as_array().expect("a list");
        items
            .iter()
            .map(|n| n.as_u64().expect("a number") as usize)
            .collect()
    }

    /// Every change that ours computes as llama.cpp does, with the row of its digest; `None` where
    /// it refuses although llama.cpp computes something.
    fn expected(&self) -> Vec<(usize, Option<usize>)> {
        let row = self.entry["row"].as_u64().expect("a row") as usize;
        let same = self.numbers("same").into_iter().map(|n| (n, row));
        let other = self.numbers("other").into_iter().zip(row + 1..);
        let refused: BTreeSet<usize> = self.numbers("ours_refused").into_iter().collect();
        let differs: BTreeSet<usize> = self.numbers("ours_other").into_iter().collect();
        same.chain(other)
            .filter(|(n, _)| !differs.contains(n))
            .map(|(n, row)| (n, (!refused.contains(&n)).then_some(row)))
            .collect()
    }
}

/// The digest of a golden with other metadata, or why it is refused.
fn run(golden: &Golden, metadata: &Metadata) -> Result<Vec<f32>, String> {
    let plan = Plan::new(&golden.def, metadata, &golden.weights).map_err(|e| e.to_string())?;
    let options = Options {
        n_ctx: 256,
        n_seqs: 1,
        ..options()
    };
    let model = Model::load(plan, &golden.weights, options, &mut |_, _| {});
    let mut model = sourced(model.map_err(|e| e.to_string())?, golden);
    let mut batch = Batch::default();
    for (position, token) in (0..).zip(&golden.tokens) {
        batch.push(*token, 0, position, true);
    }
    let logits = model.forward(&batch).map_err(|e| e.to_string())?;
    Ok(digest(logits))
}

#[test]
fn changed_metadata_has_the_meaning_that_llama_cpp_gives_it() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/metadata");
    let text = std::fs::read_to_string(format!("{folder}/results.json")).expect("it is there");
    let results: Value = serde_json::from_str(&text).expect("the results are JSON");
    let rows = parse_npy(&std::fs::read(format!("{folder}/digests.npy")).expect("it is there"));
    let names: Vec<&str> = results["changes"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let models = results["models"].as_object().expect("models by name");
    let (mut failures, mut compared) = (Vec::new(), 0);
    for (at, golden) in goldens(|name| models.contains_key(name)).enumerate() {
        let stored = Stored {
            entry: &models[&golden.name],
        };
        let mended: BTreeSet<usize> = stored.numbers("mended").into_iter().collect();
        for (n, row) in stored.expected() {
            if (at + n) % SAMPLE != 0 && !mended.contains(&n) {
                continue;
            }
            compared += 1;
            let metadata = changed(golden.weights.metadata(), &golden.arch, names[n]);
            match (run(golden, &metadata), row) {
                (Ok(found), Some(row)) => {
                    let expected = &rows.values[row * N_DIGEST..(row + 1) * N_DIGEST];
                    let error = nmse(&found, expected);
                    if error > EXACT {
                        failures.push(format!("{} {}: NMSE {error:.1e}", golden.name, names[n]));
                    }
                }
                (Err(_), None) => {}
                (Err(e), Some(_)) => failures.push(format!("{} {}: {e}", golden.name, names[n])),
                (Ok(_), None) => {
                    failures.push(format!("{} {} is computed now", golden.name, names[n]));
                }
            }
        }
    }
    println!("{compared} changes");
    assert!(compared > 600, "{compared}");
    assert!(failures.is_empty(), "{failures:#?}");
}
