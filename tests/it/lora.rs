//! Adapters equal weights into which they were merged, and are refused where they do not fit.
//!
//! The merged weights are made here, in f32, from the definition `w + s * b . a`; nothing of the
//! program takes part in that.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lab_base::ggml;
use lab_base::util::atomic_file::OutputPath;
use lab_base::weights::gguf;
use lab_base::weights::gguf::NewTensor;
use lab_base::weights::{Metadata, TensorData, TensorEntry, TensorType, Value, Weights};
use lab_core::arch::WeightRole;
use lab_core::model::{Batch, Model, Options};
use lab_core::models;
use lab_core::models::convert::to_gguf;
use lab_core::models::lora::{AdaptedModel, Adapter, AdapterSource};
use lab_core::models::{Definitions, OpenedModel};
use lab_core::plan::{Plan, TensorPlan};
use serde_json::{Value as Json, json};

use crate::goldens::{EXACT, Golden, golden, goldens, options, run};
use crate::support::command::{definitions, scratch, text};
use crate::support::hf;
use crate::support::memory_tensor::MemoryTensor;
use crate::support::refusals::Refusals;
use crate::support::server::Server;
use crate::support::{nmse, parse_npy};

/// Numbers of about `scale`, the same for the same name.
fn numbers(name: &str, n: usize, scale: f32) -> Vec<f32> {
    let seed = name.bytes().fold(0x811c_9dc5u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next() * scale).collect()
}

/// An update of a weight `[n_in, n_out, n]`: `a [n_in, rank, n]` and `b [rank, n_out, n]`; of a table
/// `a [rank, rows]` and `b [rank, width]`.
#[derive(Clone)]
struct Low {
    target: String,
    is_table: bool,
    shape: [usize; 3],
    rank: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Low {
    fn new(tag: &str, planned: &TensorPlan, rank: usize) -> Self {
        let of = |dim: usize| planned.shape.get(dim).copied().unwrap_or(1) as usize;
        let (shape, is_table) = ([of(0), of(1), of(2)], planned.role == WeightRole::Table);
        let (n_a, n_b) = match is_table {
            true => (rank * shape[1], rank * shape[0]),
            false => (shape[0] * rank * shape[2], rank * shape[1] * shape[2]),
        };
        // So that the update is of the size of a weight.
        let scale = 0.4 / (rank as f32).sqrt();
        Self {
            target: planned.name.clone(),
            is_table,
            shape,
            rank,
            a: numbers(&format!("{tag}.a.{}", planned.name), n_a, scale),
            b: numbers(&format!("{tag}.b.{}", planned.name), n_b, scale),
        }
    }

    /// Adds it to the elements of its weight.
    fn merge(&self, into: &mut [f32], scale: f32) {
        let ([n_in, n_out, n], rank) = (self.shape, self.rank);
        for e in 0..n {
            for o in 0..n_out {
                for i in 0..n_in {
                    let sum: f64 = (0..rank)
                        .map(|k| {
                            let (a, b) = match self.is_table {
                                true => (self.a[o * rank + k], self.b[i * rank + k]),
                                false => (
                                    self.a[(e * rank + k) * n_in + i],
                                    self.b[(e * n_out + o) * rank + k],
                                ),
                            };
                            f64::from(a) * f64::from(b)
                        })
                        .sum();
                    let at = (e * n_out + o) * n_in + i;
                    into[at] = (f64::from(into[at]) + f64::from(scale) * sum) as f32;
                }
            }
        }
    }

    fn tensors(&self) -> [(NewTensor, Vec<u8>); 2] {
        let ([n_in, n_out, n], rank) = (self.shape, self.rank);
        let (a, b) = match self.is_table {
            true => ([rank, n_out, 1], [rank, n_in, 1]),
            false => ([n_in, rank, n], [rank, n_out, n]),
        };
        let new = |ending: &str, shape: [usize; 3], values: &[f32]| {
            let n_dims = if shape[2] == 1 { 2 } else { 3 };
            let tensor = NewTensor {
                name: format!("{}.{ending}", self.target),
                ty: TensorType::F32,
                shape: shape[..n_dims].iter().map(|n| *n as u64).collect(),
            };
            (tensor, bytes(values))
        };
        [new("lora_a", a, &self.a), new("lora_b", b, &self.b)]
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// What an adapter file says of itself.
fn metadata(arch: &str, alpha: f32) -> Metadata {
    let mut metadata = Metadata::default();
    let text = |value: &str| Value::Str(value.to_owned());
    metadata.insert("general.type", text("adapter"));
    metadata.insert("general.architecture", text(arch));
    metadata.insert("adapter.type", text("lora"));
    metadata.insert("adapter.lora.alpha", Value::F32(alpha));
    metadata
}

fn write_adapter(path: &Path, metadata: &Metadata, tensors: &[(NewTensor, Vec<u8>)]) {
    let new: Vec<NewTensor> = tensors.iter().map(|(tensor, _)| tensor.clone()).collect();
    gguf::write(OutputPath::replacing(path), metadata, &new, |i| {
        Ok(&tensors[i].1)
    })
    .expect("it can be written");
}

/// Weights with updates added to them, each with its scale.
fn merged(weights: &Weights, updates: &[(&Low, f32)]) -> Weights {
    let entry = |tensor| {
        let entry = weights.entry(tensor);
        let own = updates.iter().filter(|(low, _)| low.target == entry.name);
        let own: Vec<_> = own.collect();
        if own.is_empty() {
            return entry;
        }
        let stored = weights.data(tensor).expect("it is stored");
        let mut values = vec![0.0; tensor.elements() as usize];
        ggml::dequantize(&stored, tensor.ty, &mut values).expect("numbers");
        for (low, scale) in own {
            low.merge(&mut values, *scale);
        }
        let held = MemoryTensor::new(4 * tensor.shape[0], bytes(&values));
        TensorEntry {
            ty: TensorType::F32,
            data: TensorData::Lazy(Arc::new(held)),
            ..entry
        }
    };
    let entries = weights.tensors().iter().map(entry).collect();
    Weights::of("merged".into(), weights.metadata().clone(), entries).expect("sound")
}

fn plan(golden: &Golden, weights: &Weights) -> Plan {
    Plan::new(&golden.def, weights.metadata(), weights).expect("it fits")
}

fn load(plan: Plan, weights: &Weights, adapters: &[Adapter], options: Options) -> Model {
    Model::load_with(plan, weights, adapters, options, &mut |_, _| {}).expect("it loads")
}

fn logits(plan: Plan, weights: &Weights, adapters: &[Adapter], tokens: &[u32]) -> Vec<f32> {
    let options = Options {
        embeddings: plan.head.is_none(),
        ..options()
    };
    run(&mut load(plan, weights, adapters, options), tokens, 0, 0)
}

fn doubles(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Updates of the weights that products are made with, of a table only where nothing else reads it.
fn updates(tag: &str, plan: &Plan, rank: usize) -> Vec<Low> {
    let is_tied = !plan.tensors.iter().any(|t| t.name == "output.weight");
    let tensors = plan.tensors.iter().filter(|t| match t.role {
        WeightRole::Matrix => true,
        WeightRole::Table => !is_tied,
        _ => false,
    });
    tensors
        .map(|planned| Low::new(tag, planned, rank))
        .collect()
}

/// An adapter file of updates, and the adapter as it is read for a golden.
fn adapter(
    scratch: &Path,
    tag: &str,
    golden: &Golden,
    updates: &[Low],
    alpha: f32,
    scale: f32,
) -> Result<Adapter, String> {
    let path = scratch.join(format!("{}-{tag}.gguf", golden.name));
    let tensors: Vec<_> = updates.iter().flat_map(Low::tensors).collect();
    write_adapter(&path, &metadata(&golden.arch, alpha), &tensors);
    open(&path, scale, &plan(golden, &golden.weights))
}

fn open(path: &Path, scale: f32, plan: &Plan) -> Result<Adapter, String> {
    let source = AdapterSource {
        path: path.to_owned(),
        scale,
    };
    let base = AdaptedModel {
        plan,
        params: &BTreeMap::new(),
        metadata: &Metadata::default(),
        folder: None,
        maps: &definitions().maps,
    };
    Adapter::open(&source, &base).map_err(|error| error.to_string())
}

/// Architectures with what differs in the ways of a weight into a product: in one matrix or several,
/// of half precision, tied, experts, latent rows, recurrent layers, tables, a further input, encoders.
const WAYS: [&str; 14] = [
    "llama",
    "llama-fused-qkv",
    "llama-f16",
    "gemma2",
    "gpt2",
    "qwen3moe",
    "gpt-oss",
    "deepseek2",
    "deepseek2-unsplit",
    "qwen35",
    "mamba2",
    "lfm2",
    "gemma4-small",
    "bert",
];

#[test]
fn an_adapter_equals_merged_weights() {
    let scratch = scratch();
    let all = std::env::var_os("ALL_GOLDENS").is_some();
    let mut faults = Vec::new();
    // Products of quantised weights round their columns, those of the merged ones do not.
    let is_wanted = |name: &str| WAYS.contains(&name) || (all && !name.ends_with("q8_0"));
    for golden in goldens(is_wanted) {
        let base = plan(golden, &golden.weights);
        let lows = updates("one", &base, 2);
        let alpha = 3.0;
        let adapter = match adapter(scratch.path(), "one", golden, &lows, alpha, 0.5) {
            Ok(adapter) => adapter,
            Err(error) => {
                faults.push(format!("{}: {error}", golden.name));
                continue;
            }
        };
        // alpha / rank * scale
        let scaled: Vec<_> = lows.iter().map(|low| (low, 3.0 / 2.0 * 0.5)).collect();
        let merged = merged(&golden.weights, &scaled);
        let model = Model::load_with(base, &golden.weights, &[adapter], options(), &mut |_, _| {});
        let found = match model {
            Ok(mut model) => run(&mut model, &golden.tokens, 0, 0),
            Err(error) => {
                faults.push(format!("{}: {error}", golden.name));
                continue;
            }
        };
        let expected = logits(plan(golden, &merged), &merged, &[], &golden.tokens);
        let error = nmse(&found, &doubles(&expected));
        let effect = nmse(&found, &golden.expected);
        println!("{:18} NMSE {error:.1e}, effect {effect:.1e}", golden.name);
        if error > EXACT || effect < 1e-3 {
            faults.push(format!(
                "{}: NMSE {error:.1e}, effect {effect:.1e}",
                golden.name
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The tensors of a file of safetensors: types, shapes (slowest first) and data, by name.
pub(crate) type Stored = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

pub(crate) fn read_tensors(file: &[u8]) -> Stored {
    let len = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let header: Json = serde_json::from_slice(&file[8..8 + len]).expect("JSON");
    let tensors = header.as_object().expect("an object").iter();
    let tensor = |(name, about): (&String, &Json)| {
        let list = |key: &str| -> Vec<usize> {
            let list = about[key].as_array().expect("a list").iter();
            list.map(|n| n.as_u64().expect("a number") as usize)
                .collect()
        };
        let at = list("data_offsets");
        let data = file[8 + len + at[0]..8 + len + at[1]].to_vec();
        let ty = about["dtype"].as_str().expect("a type").to_owned();
        (name.clone(), (ty, list("shape"), data))
    };
    tensors
        .filter(|(name, _)| *name != "__metadata__")
        .map(tensor)
        .collect()
}

pub(crate) fn write_tensors(path: &Path, tensors: &Stored) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (ty, shape, bytes)) in tensors {
        let begin = data.len();
        data.extend_from_slice(bytes);
        header.insert(
            name.clone(),
            json!({ "dtype": ty, "shape": shape, "data_offsets": [begin, data.len()] }),
        );
    }
    let mut text = serde_json::to_vec(&header).expect("JSON");
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text);
    file.extend(data);
    std::fs::write(path, file).expect("it can be written");
}

/// What of a stored folder PEFT would update.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Modules {
    All,
    /// Those of which a fused matrix has more than one neighbour without an update.
    Attention,
}

const RANK: usize = 3;
const ALPHA: f32 = 4.0;

/// Writes `base`, `merged` and `adapter` of a stored folder; the matrices of its modules are updated.
pub(crate) fn write_folders(name: &str, into: &Path, which: Modules) -> [PathBuf; 3] {
    let places = ["base", "merged", "adapter"].map(|part| into.join(format!("{name}-{part}")));
    for place in &places {
        std::fs::create_dir_all(place).expect("the scratch folder can be written");
    }
    let folder = hf::open(name);
    folder.write(&places[0]);
    let mut adapter = Stored::new();
    let is_conv = folder.class.starts_with("GPT2");
    let files = folder.files();
    let weights = files
        .iter()
        .filter(|(file, _)| file.ends_with(".safetensors"));
    let is_tied = !weights
        .flat_map(|(_, bytes)| read_tensors(bytes).into_keys())
        .any(|name| {
            ["lm_head", "embed_out", "output_layer"]
                .iter()
                .any(|head| name.contains(head))
        });
    for (file, bytes) in files {
        if !file.ends_with(".safetensors") {
            std::fs::write(places[1].join(&file), &bytes).expect("written");
            continue;
        }
        let mut tensors = read_tensors(&bytes);
        for (name, (ty, shape, data)) in &mut tensors {
            let Some(module) = name.strip_suffix(".weight") else {
                continue;
            };
            let is_table = ["embed_tokens", "wte", "embeddings", "embed_in", "embedding"]
                .iter()
                .any(|name| module.ends_with(name));
            let is_wanted = match which {
                Modules::All => !(module.ends_with("wpe") || is_table && is_tied),
                Modules::Attention => module.ends_with("q_proj") || module.ends_with("v_proj"),
            };
            if shape.len() != 2 || ty != "F32" || !is_wanted {
                continue;
            }
            let is_transposed = is_table || is_conv && !module.ends_with("lm_head");
            let (rows, columns) = (shape[0], shape[1]);
            let (n_out, n_in) = if is_transposed {
                (columns, rows)
            } else {
                (rows, columns)
            };
            let a = numbers(&format!("a.{module}"), RANK * n_in, 0.2);
            let b = numbers(&format!("b.{module}"), n_out * RANK, 0.2);
            for (at, element) in data.chunks_exact_mut(4).enumerate() {
                let (row, column) = (at / columns, at % columns);
                let (o, i) = if is_transposed {
                    (column, row)
                } else {
                    (row, column)
                };
                let products =
                    (0..RANK).map(|k| f64::from(b[o * RANK + k]) * f64::from(a[k * n_in + i]));
                let old = f32::from_le_bytes(element.try_into().expect("four bytes"));
                let sum = f64::from(old) + f64::from(ALPHA) / RANK as f64 * products.sum::<f64>();
                element.copy_from_slice(&(sum as f32).to_le_bytes());
            }
            let names = match is_table {
                true => ["lora_embedding_A", "lora_embedding_B"],
                false => ["lora_A.weight", "lora_B.weight"],
            };
            let entries = [(vec![RANK, n_in], a), (vec![n_out, RANK], b)];
            for (half, (shape, values)) in names.iter().zip(entries) {
                let name = format!("base_model.model.{module}.{half}");
                adapter.insert(name, ("F32".into(), shape, bytes_of(&values)));
            }
        }
        write_tensors(&places[1].join(&file), &tensors);
    }
    write_tensors(&places[2].join("adapter_model.safetensors"), &adapter);
    let config = json!({
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "use_dora": false,
        "fan_in_fan_out": is_conv, "target_modules": ["q_proj"], "modules_to_save": null,
        "task_type": "CAUSAL_LM", "rank_pattern": {}, "alpha_pattern": {},
    });
    let text = serde_json::to_vec(&config).expect("JSON");
    std::fs::write(places[2].join("adapter_config.json"), text).expect("written");
    places
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    bytes(values)
}

pub(crate) fn opened(path: &Path, with: &Definitions) -> Result<OpenedModel, String> {
    models::open(&models::ModelSource::File(path.to_owned()), with)
        .map_err(|error| error.to_string())
}

/// The model at a path with an adapter.
pub(crate) fn adapted(
    path: &Path,
    adapter: &Path,
    with: &Definitions,
) -> Result<OpenedModel, String> {
    let source = AdapterSource {
        path: adapter.to_owned(),
        scale: 1.0,
    };
    opened(path, with)?
        .adapted(&[source], &models::ModelSource::File(path.to_owned()), with)
        .map_err(|error| error.to_string())
}

pub(crate) fn logits_of(opened: OpenedModel, tokens: &[u32]) -> Vec<f32> {
    logits(opened.plan, &opened.weights, &opened.adapters, tokens)
}

/// NMSE of a PEFT folder on a folder and on the file it is converted to.
fn folder_errors(name: &str, scratch: &Path, which: Modules) -> [Result<f64, String>; 2] {
    let with = definitions();
    let [base, merged, adapter] = write_folders(name, scratch, which);
    let tokens = hf::open(name).tokens;
    let expected = logits_of(opened(&merged, &with).expect("it opens"), &tokens);
    let plain = opened(&base, &with).expect("it opens");
    let file = scratch.join(format!("{name}.gguf"));
    to_gguf(&plain, None, &file, false, &mut |_, _| {}).expect("it converts");
    let without = logits_of(plain, &tokens);
    assert!(
        nmse(&without, &doubles(&expected)) > 1e-3,
        "{name}: no effect"
    );
    [&base, &file].map(|path| {
        let found = logits_of(adapted(path, &adapter, &with)?, &tokens);
        Ok(nmse(&found, &doubles(&expected)))
    })
}

/// Folders with what differs in how maps make tensors, and whether the file that they are converted to
/// must tell enough of the model; the others may be refused, and are never wrong.
const FOLDERS: &[(&str, bool)] = &[
    ("llama", true),
    ("llama-yarn", false),
    ("phi3", true),
    ("gpt2", true),
    ("gptneox", false),
    ("qwen3moe", false),
    ("mixtral", false),
    ("deepseek-v3-yarn", false),
    ("qwen35", false),
    ("mamba-wide", false),
    ("jamba", false),
    ("bailing-hybrid", false),
    ("llama4", false),
    ("nemotron-h-moe", false),
];

#[test]
fn a_peft_folder_equals_merged_weights() {
    let scratch = scratch();
    let only = std::env::var("FOLDERS").ok();
    let mut faults = Vec::new();
    for name in hf::names() {
        let listed = FOLDERS.iter().find(|(folder, _)| *folder == name);
        let is_wanted = match &only {
            Some(only) => name.starts_with(only),
            None => listed.is_some(),
        };
        if !is_wanted || hf::open(&name).has(&["F16", "BF16", "U8", "F8_E4M3"]) {
            continue;
        }
        let [of_folder, of_file] = folder_errors(&name, scratch.path(), Modules::All);
        println!("{name:20} folder {of_folder:?} | file {of_file:?}");
        let is_equal = |error: &Result<f64, String>| matches!(error, Ok(error) if *error <= EXACT);
        let is_told = listed.is_some_and(|(_, is_told)| *is_told);
        let is_file_fine = is_equal(&of_file) || of_file.is_err() && !is_told;
        if !is_equal(&of_folder) || !is_file_fine {
            faults.push(format!("{name}: folder {of_folder:?}, file {of_file:?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn folders_of_peft_reproduce_its_logits() {
    let (scratch, with) = (scratch(), definitions());
    for name in ["llama", "gpt2"] {
        let place = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/lora")
            .join(name);
        let folder = hf::open(name);
        let base = scratch.path().join(name);
        std::fs::create_dir_all(&base).expect("writable");
        folder.write(&base);
        let expected = std::fs::read(place.join("logits.npy")).expect("the golden is there");
        let expected = parse_npy(&expected).values;
        let base_opened = opened(&base, &with).expect("it opens");
        let file = scratch.path().join(format!("{name}.gguf"));
        to_gguf(&base_opened, None, &file, false, &mut |_, _| {}).expect("it converts");
        for path in [&base, &file] {
            let adapted = adapted(path, &place, &with).expect("it fits");
            let found = logits_of(adapted, &folder.tokens);
            let error = nmse(&found, &expected);
            assert!(error <= EXACT, "{}: NMSE {error:.1e}", path.display());
        }
    }
}

/// Goldens of kinds that keep different things: a dense one, experts, latent rows, states.
const KINDS: [&str; 4] = ["llama", "qwen3moe", "deepseek2", "qwen35"];

/// A golden with two adapters, the updates of each, and the weights without them.
fn two(scratch: &Path, name: &str) -> (&'static Golden, Vec<Adapter>, [Vec<Low>; 2]) {
    let golden = golden(name);
    let base = plan(golden, &golden.weights);
    let lows = [updates("one", &base, 2), updates("two", &base, 3)];
    let open = |tag: &str, lows: &[Low]| {
        // Without an alpha the scale stands alone.
        adapter(scratch, tag, golden, lows, 0.0, 0.0).expect("it fits")
    };
    let adapters = vec![open("one", &lows[0]), open("two", &lows[1])];
    (golden, adapters, lows)
}

#[test]
fn several_adapters_add_up_with_their_scales() {
    let scratch = scratch();
    for name in KINDS {
        let (golden, mut adapters, lows) = two(scratch.path(), name);
        let scales = [0.75, -0.5];
        let all: Vec<_> = lows.iter().zip(scales).collect();
        let updates = all
            .iter()
            .flat_map(|(lows, scale)| lows.iter().map(|low| (low, *scale)));
        let merged = merged(&golden.weights, &updates.collect::<Vec<_>>());
        let expected = logits(plan(golden, &merged), &merged, &[], &golden.tokens);
        for (adapter, scale) in adapters.iter_mut().zip(scales) {
            adapter.scale = scale;
        }
        // A head whose logits are made some rows at a time has adapters too.
        for n_outputs in [0, 3] {
            let base = plan(golden, &golden.weights);
            let options = Options {
                n_outputs,
                ..options()
            };
            let mut model = load(base, &golden.weights, &adapters, options);
            let found = run(&mut model, &golden.tokens, 0, 0);
            let error = nmse(&found, &doubles(&expected));
            assert!(error <= EXACT, "{name}, {n_outputs} rows: NMSE {error:.1e}");
        }
    }
}

#[test]
fn sequences_of_a_pass_have_scales_of_their_own() {
    let scratch = scratch();
    for name in KINDS {
        let (golden, adapters, _) = two(scratch.path(), name);
        let all = [[0.0, 0.0], [1.0, 0.0], [0.5, -0.75]];
        let run_with = |scales: &[[f32; 2]]| {
            let base = plan(golden, &golden.weights);
            let options = Options {
                n_seqs: all.len(),
                flash_attn: true,
                n_batch: 256,
                ..options()
            };
            let mut model = load(base, &golden.weights, &adapters, options);
            for (id, scales) in (0..).zip(scales) {
                model.set_scales(id, scales);
            }
            let mut rows = vec![Vec::new(); scales.len()];
            // In two passes, so that the second reads what the first kept.
            let half = golden.tokens.len() / 2;
            for part in [0..half, half..golden.tokens.len()] {
                let mut batch = Batch::default();
                for position in part {
                    for id in 0..scales.len() {
                        batch.push(golden.tokens[position], id as u32, position as u32, true);
                    }
                }
                let found = model.forward(&batch).expect("the pass runs");
                let width = found.len() / batch.len();
                for (i, row) in found.chunks_exact(width).enumerate() {
                    rows[i % scales.len()].extend_from_slice(row);
                }
            }
            rows
        };
        let together = run_with(&all);
        for (scales, found) in all.iter().zip(&together) {
            let alone = run_with(&[*scales]).remove(0);
            let error = nmse(found, &doubles(&alone));
            assert!(error <= EXACT, "{name} {scales:?}: NMSE {error:.1e}");
        }
        let plain = nmse(&together[0], &golden.expected);
        assert!(plain <= EXACT, "{name} without adapters: NMSE {plain:.1e}");
        for pair in together.windows(2) {
            assert!(
                nmse(&pair[0], &doubles(&pair[1])) > 1e-3,
                "{name}: no effect"
            );
        }
    }
}

#[test]
fn a_text_is_shared_among_equal_scales_only() {
    let scratch = scratch();
    for name in ["llama", "qwen35"] {
        let (golden, adapters, _) = two(scratch.path(), name);
        let base = plan(golden, &golden.weights);
        let options = Options {
            n_checkpoints: 8,
            ..options()
        };
        let mut model = load(base, &golden.weights, &adapters, options);
        let tokens: Vec<u32> = golden.tokens.iter().cycle().take(33).copied().collect();
        let mut begin = |scales: &[f32]| {
            model.set_scales(0, scales);
            let n = model.resume(0, &tokens).n_cached;
            let mut last = Vec::new();
            for (part, at) in [(n..32.max(n), n), (32.max(n)..33, 32.max(n))] {
                if !part.is_empty() {
                    last = run(&mut model, &tokens[part], 0, at as u32);
                }
            }
            let width = model.row_width();
            model.release(0);
            (n, last[last.len() - width..].to_vec())
        };
        let all: [&[f32]; 4] = [&[0.0, 0.0], &[1.0, 0.0], &[0.5, 0.0], &[0.0, 1.0]];
        let first: Vec<_> = all.iter().map(|scales| begin(scales)).collect();
        assert!(first.iter().all(|(n, _)| *n == 0), "{name}: shared");
        for (scales, (_, expected)) in all.iter().zip(&first) {
            let (n, found) = begin(scales);
            assert_eq!(n, 32, "{name} {scales:?}");
            let error = nmse(&found, &doubles(expected));
            assert!(error <= EXACT, "{name} {scales:?}: NMSE {error:.1e}");
        }
    }
}

#[test]
fn adapters_that_do_not_fit_are_refused_by_name() {
    let scratch = scratch();
    let golden = golden("llama");
    let base = plan(golden, &golden.weights);
    let q = base
        .tensors
        .iter()
        .find(|t| t.name == "blk.0.attn_q.weight");
    let q = Low::new("q", q.expect("there are queries"), 2);
    let metadata = || metadata("llama", 2.0);
    let path = scratch.path().join("hostile.gguf");
    let mut refusals = Refusals::default();
    let mut refused = |metadata: &Metadata, tensors: &[(NewTensor, Vec<u8>)], expected: &str| {
        write_adapter(&path, metadata, tensors);
        refusals.expect("adapter", open(&path, 1.0, &base), expected);
    };
    let [a, b] = q.tensors();
    let both = [a.clone(), b.clone()];
    let named = |(tensor, bytes): &(NewTensor, Vec<u8>), name: &str| {
        let tensor = NewTensor {
            name: name.into(),
            ..tensor.clone()
        };
        (tensor, bytes.clone())
    };
    let cut = |(tensor, bytes): &(NewTensor, Vec<u8>), shape: &[u64]| {
        let tensor = NewTensor {
            shape: shape.to_vec(),
            ..tensor.clone()
        };
        let n = 4 * shape.iter().product::<u64>() as usize;
        (tensor, bytes[..n].to_vec())
    };

    refused(
        &metadata(),
        std::slice::from_ref(&a),
        "`blk.0.attn_q.weight.lora_b` is missing",
    );
    refused(
        &metadata(),
        std::slice::from_ref(&b),
        "`blk.0.attn_q.weight.lora_a` is missing",
    );
    refused(&metadata(), &[], "it has no tensors");
    let other = [
        named(&a, "blk.7.attn_q.weight.lora_a"),
        named(&b, "blk.7.attn_q.weight.lora_b"),
    ];
    refused(
        &metadata(),
        &other,
        "the model has no weight `blk.7.attn_q.weight`; the nearest is",
    );
    let norm = [
        named(&a, "blk.0.attn_norm.weight.lora_a"),
        named(&b, "blk.0.attn_norm.weight.lora_b"),
    ];
    refused(
        &metadata(),
        &norm,
        "`blk.0.attn_norm.weight` is not a matrix",
    );
    refused(
        &metadata(),
        &[named(&a, "blk.0.attn_norm.weight")],
        "unexpected tensor",
    );
    let shape = [&a.0.shape, &b.0.shape];
    let narrow = [cut(&a, &[shape[0][0] - 1, 2]), b.clone()];
    refused(
        &metadata(),
        &narrow,
        &format!("[{}, 2] and", shape[0][0] - 1),
    );
    let ranks = [cut(&a, &[shape[0][0], 1]), b.clone()];
    refused(&metadata(), &ranks, "do not update `blk.0.attn_q.weight`");
    let mut infinite = both.clone();
    infinite[0].1[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    refused(&metadata(), &infinite, "infinity at row 0");

    let text = |value: &str| Value::Str(value.to_owned());
    let said = |key: &str, value: Value| {
        let mut metadata = metadata();
        metadata.insert(key, value);
        metadata
    };
    let arch = said("general.architecture", text("qwen3"));
    refused(
        &arch,
        &both,
        "for the architecture `qwen3`, the model is of `llama`",
    );
    refused(
        &said("general.type", text("model")),
        &both,
        "`general.type` is `model`",
    );
    refused(
        &said("adapter.type", text("ia3")),
        &both,
        "`adapter.type` is `ia3`",
    );
    let tokens = Value::Array(lab_base::weights::Array::U32(vec![1]));
    let invoked = said("adapter.alora.invocation_tokens", tokens);
    refused(&invoked, &both, "(aLoRA)");
    for alpha in [Value::F32(f32::NAN), Value::F64(1e300)] {
        refused(
            &said("adapter.lora.alpha", alpha),
            &both,
            "not a finite number",
        );
    }

    refusals.check();

    let rank_zero = NewTensor {
        shape: vec![shape[0][0], 0],
        ..a.0.clone()
    };
    let none = gguf::write(&path, &metadata(), &[rank_zero], |_| Ok(Vec::new()));
    assert!(none.is_err(), "no file holds a matrix of rank 0");
}

#[test]
fn peft_settings_that_are_not_supported_are_refused_by_name() {
    let (scratch, with) = (scratch(), definitions());
    let [base, _, adapter] = write_folders("llama", scratch.path(), Modules::Attention);
    let config = adapter.join("adapter_config.json");
    let sound: Json = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    let mut refusals = Refusals::default();
    let mut refused = |case: &str, expected: &str| {
        refusals.expect(case, adapted(&base, &adapter, &with), expected);
    };
    let cases = [
        ("use_dora", json!(true), "`use_dora`: magnitudes"),
        (
            "modules_to_save",
            json!(["lm_head"]),
            "`modules_to_save`: whole modules",
        ),
        (
            "target_parameters",
            json!(["mlp.experts.up"]),
            "`target_parameters`: ",
        ),
        ("bias", json!("all"), "`bias` is \"all\""),
        ("lora_bias", json!(true), "`lora_bias`: biases"),
        (
            "init_lora_weights",
            json!("pissa"),
            "`init_lora_weights` is \"pissa\"",
        ),
        ("alora_invocation_tokens", json!([1, 2]), "(aLoRA)"),
        ("layer_replication", json!([[0, 1]]), "`layer_replication`"),
        (
            "use_bdlora",
            json!({"n": 2}),
            "unknown setting `use_bdlora`",
        ),
        ("peft_type", json!("LOHA"), "`peft_type` is `LOHA`"),
        ("alpha_pattern", json!({"(": 1}), "`alpha_pattern`: `(`"),
        (
            "alpha_pattern",
            json!({"a)|(b": 1}),
            "`alpha_pattern`: `a)|(b`",
        ),
        (
            "alpha_pattern",
            json!({"q_proj": "x"}),
            "`q_proj` is \"x\", expected a number",
        ),
        ("alpha_pattern", json!({"q_proj": null}), "it has no value"),
        (
            "alpha_pattern",
            json!([1]),
            "`alpha_pattern` is [1], expected an object",
        ),
        (
            "alpha_pattern",
            json!({ r"[\w]{1000}{1000}": 1 }),
            "the regular expression is too large",
        ),
        (
            "alpha_pattern",
            (0..300).map(|i| (format!("[{i}]"), json!(1))).collect(),
            "more than 256 regular expressions",
        ),
        (
            "rank_pattern",
            json!("q"),
            "`rank_pattern` is \"q\", expected an object",
        ),
        (
            "rank_pattern",
            json!({"v_proj": 5}),
            "v_proj`: its matrices have the rank 3, adapter_config.json says 5",
        ),
        ("r", json!(0), "have the rank 3, adapter_config.json says 0"),
        (
            "r",
            json!(1e12),
            "have the rank 3, adapter_config.json says",
        ),
        ("r", json!("x"), "`r` is \"x\", expected a number"),
        ("lora_alpha", json!("much"), "`lora_alpha` is \"much\""),
        ("lora_alpha", json!(null), "`lora_alpha` is missing"),
        ("lora_alpha", json!(1e300), "infinity at row"),
        (
            "use_rslora",
            json!("true"),
            "`use_rslora` is \"true\", expected true or false",
        ),
        (
            "use_rslora",
            json!(1),
            "`use_rslora` is 1, expected true or false",
        ),
        (
            "fan_in_fan_out",
            json!([0]),
            "`fan_in_fan_out` is [0], expected true or false",
        ),
        (
            "trainable_token_indices",
            json!([1]),
            "`trainable_token_indices`: ",
        ),
    ];
    for (key, value, expected) in cases {
        let mut changed = sound.clone();
        changed[key] = value;
        std::fs::write(&config, changed.to_string()).expect("writable");
        refused(key, expected);
    }
    // JSON has no such numbers, Python writes them.
    for number in ["NaN", "Infinity", "1e400"] {
        let text = sound.to_string().replace("4.0", number);
        std::fs::write(&config, text).expect("writable");
        refused(number, "adapter_config.json: ");
    }
    refusals.check();
    let mut patterned = sound.clone();
    patterned["r"] = json!(9);
    // The first that fits counts.
    patterned["rank_pattern"] = json!({ r"layers\.[01]\.self_attn.[qv]_proj": 3, "q_proj": 7 });
    std::fs::write(&config, patterned.to_string()).expect("writable");
    adapted(&base, &adapter, &with).expect("its ranks are those of its matrices");
    std::fs::write(&config, sound.to_string()).expect("writable");
    adapted(&base, &adapter, &with).expect("it is sound again");
}

#[test]
fn peft_tensors_that_do_not_fit_are_refused_by_name() {
    let (scratch, with) = (scratch(), definitions());
    let [base, _, adapter] = write_folders("llama", scratch.path(), Modules::Attention);
    let mut refusals = Refusals::default();
    let mut refused = |case: &str, expected: &str| {
        refusals.expect(case, adapted(&base, &adapter, &with), expected);
    };
    let file = adapter.join("adapter_model.safetensors");
    let tensors = read_tensors(&std::fs::read(&file).unwrap());
    let q = "base_model.model.model.layers.0.self_attn.q_proj";
    let with_name = |from: &str, to: &str| {
        let mut changed = tensors.clone();
        let tensor = changed.remove(from).expect("it is there");
        if !to.is_empty() {
            changed.insert(to.to_owned(), tensor);
        }
        write_tensors(&file, &changed);
    };
    let a = format!("{q}.lora_A.weight");
    with_name(&a, "");
    refused(
        "one half",
        "module `model.layers.0.self_attn.q_proj` has no `lora_A`",
    );
    with_name(&a, &format!("{q}.lora_magnitude_vector"));
    refused("another kind", "is not a low-rank update");
    let mut other = tensors.clone();
    for half in ["lora_A", "lora_B"] {
        let tensor = tensors[&format!("{q}.{half}.weight")].clone();
        other.insert(
            format!("base_model.model.model.layers.9.self_attn.q_proj.{half}.weight"),
            tensor,
        );
    }
    write_tensors(&file, &other);
    refused(
        "layer 9",
        "no tensor of the model is made of its module `model.layers.9.self_attn.q_proj`",
    );
    let mut narrow = tensors.clone();
    narrow.insert(a.clone(), ("F32".into(), vec![3, 5], vec![0; 60]));
    write_tensors(&file, &narrow);
    refused(
        "narrow",
        "the update is of [64, 5], the stored matrix of [64, 64]",
    );
    let mut ranks = tensors.clone();
    ranks.insert(a.clone(), ("F32".into(), vec![2, 64], vec![0; 512]));
    write_tensors(&file, &ranks);
    refused("ranks", "have different ranks");
    let mut nothing = tensors.clone();
    nothing.insert(a, ("F32".into(), vec![0, 64], Vec::new()));
    write_tensors(&file, &nothing);
    refused("rank 0", "expected a matrix of floats");
    std::fs::remove_file(&file).expect("it is there");
    refused("no file", "the folder has no adapter_model.safetensors");
    refusals.check();
}

/// Writes an adapter of the built-in model, whose numbers are `factor` times the usual ones.
pub(crate) fn of_shipped(folder: &Path, factor: f32) -> PathBuf {
    let shipped = models::open(&models::ModelSource::of(None), &definitions()).expect("built in");
    let lows = updates("chat", &shipped.plan, 2);
    let mut tensors: Vec<_> = lows.iter().flat_map(Low::tensors).collect();
    for number in tensors
        .iter_mut()
        .flat_map(|(_, bytes)| bytes.chunks_exact_mut(4))
    {
        let scaled = f32::from_le_bytes(number.try_into().expect("four")) * factor;
        number.copy_from_slice(&scaled.to_le_bytes());
    }
    let path = folder.join("chat.gguf");
    write_adapter(&path, &metadata(&shipped.plan.arch, 0.0), &tensors);
    path
}

#[test]
fn a_server_has_scales_for_requests_and_for_all() {
    let scratch = scratch();
    let path = of_shipped(scratch.path(), 1.0);
    let file = path.to_str().expect("UTF-8");
    let server = Server::start(&["--lora", &format!("{file}=0"), "--lora", file]);
    let path = "/lora-adapters";
    let scales = || {
        let (status, list) = server.json("GET", path, &Json::Null);
        assert_eq!(status, 200, "{list}");
        let list = list.as_array().expect("a list").iter();
        list.map(|a| a["scale"].as_f64().expect("a number"))
            .collect::<Vec<_>>()
    };
    assert_eq!(scales(), [0.0, 1.0]);
    let long = json!([{ "id": 0, "scale": "x".repeat(5000) }]);
    let (status, answer) = server.json("POST", path, &long);
    assert_eq!(status, 400);
    assert!(answer.to_string().len() < 500, "{answer}");
    let ask = |lora: Json| {
        let (status, answer) = server.chat(json!({
            "messages": [{ "role": "user", "content": "Please tell me: what is 12+7?" }],
            "logprobs": true, "max_tokens": 6, "temperature": 0, "lora": lora,
        }));
        assert_eq!(status, 200, "{answer}");
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
        let first = answer["choices"][0]["logprobs"]["content"][0].clone();
        (
            cached.as_u64().expect("a number"),
            first["id"].clone(),
            first["logprob"].as_f64(),
        )
    };
    let usual = ask(Json::Null);
    let without = ask(json!([]));
    let half = ask(json!([{ "id": 0, "scale": 0.5 }]));
    assert_eq!([usual.0, without.0, half.0], [0, 0, 0], "nothing is shared");
    assert!(
        usual.2 != without.2 && without.2 != half.2,
        "{usual:?} {without:?} {half:?}"
    );
    // The same file under the other id, named.
    assert_eq!(ask(json!([{ "id": 1, "scale": 1.0 }])).1, usual.1);
    assert!(ask(json!([])).0 > 0, "equal scales share");

    let (status, answer) = server.json("POST", path, &json!([{ "id": 0, "scale": 0.5 }]));
    assert_eq!((status, answer["success"].as_bool()), (200, Some(true)));
    assert_eq!(scales(), [0.5, 0.0]);
    let again = ask(Json::Null);
    assert!(again.0 > 0 && again.1 == half.1, "{again:?} {half:?}");

    let refused = |lora: Json, expected: &str| {
        let (status, answer) = server.chat(json!({
            "messages": [{ "role": "user", "content": "Hi" }], "lora": lora,
        }));
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(status == 400 && message.contains(expected), "{answer}");
    };
    refused(
        json!([{ "id": 2, "scale": 1 }]),
        "there is no adapter 2; the model has 2",
    );
    refused(json!([{ "id": 0, "scale": 1e300 }]), "not a finite number");
    refused(json!([{ "id": 0 }]), "scale");
    refused(
        json!([{ "id": 0, "scale": 1 }, { "id": 0, "scale": 2 }]),
        "named twice",
    );
    let (status, answer) = server.json("POST", path, &json!({ "id": 0 }));
    assert_eq!(status, 400, "{answer}");
}

#[test]
fn scales_that_were_set_outlive_the_engine() {
    let scratch = scratch();
    let shipped = models::open(&models::ModelSource::of(None), &definitions()).expect("built in");
    let lows = updates("chat", &shipped.plan, 2);
    let tensors: Vec<_> = lows.iter().flat_map(Low::tensors).collect();
    let path = scratch.path().join("chat.gguf");
    write_adapter(&path, &metadata(&shipped.plan.arch, 0.0), &tensors);
    let file = path.to_str().expect("UTF-8");
    let options = ["--lora", &format!("{file}=0.25"), "--lora", file];
    let path = "/lora-adapters";
    for server in [Server::start(&options), Server::split(&options)] {
        let scales = || {
            let (_, list) = server.json("GET", path, &Json::Null);
            let list = list.as_array().expect("a list").iter();
            list.map(|a| a["scale"].as_f64().expect("a number"))
                .collect::<Vec<_>>()
        };
        let again = || {
            let which = json!({ "model": "tiny-chat" });
            let (_, answer) = server.json("POST", "/models/unload", &which);
            assert_eq!(answer["was_loaded"], true, "{answer}");
        };
        assert_eq!(scales(), [0.25, 1.0]);
        again();
        assert_eq!(scales(), [0.25, 1.0], "those of the command line");
        let set = |list: Json| server.json("POST", path, &list).0;
        assert_eq!(set(json!([{ "id": 1, "scale": -0.5 }])), 200);
        again();
        assert_eq!(scales(), [0.0, -0.5]);
        // What is refused changes nothing.
        assert_eq!(set(json!([{ "id": 2, "scale": 1 }])), 400);
        again();
        assert_eq!(scales(), [0.0, -0.5]);
        assert_eq!(set(json!([])), 200);
        again();
        assert_eq!(scales(), [0.0, 0.0]);
    }
}

/// The log-probabilities and tokens of an answer by a model, or by one of its adapters.
fn greedy(server: &Server, model: &str, lora: &Json) -> Json {
    let (status, answer) = server.chat(json!({
        "model": model, "messages": [{ "role": "user", "content": "Please tell me: what is 12+7?" }],
        "logprobs": true, "max_tokens": 8, "temperature": 0, "cache_prompt": false, "lora": lora,
    }));
    assert_eq!(status, 200, "{model}: {answer}");
    answer["choices"][0]["logprobs"]["content"].clone()
}

const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

fn order(server: &Server, path: &str, body: &Json) -> (u16, String) {
    let (status, _, answer) = server.raw("POST", path, "application/json", &body.to_string());
    (status, answer)
}

#[test]
fn adapters_are_loaded_chosen_by_name_and_unloaded_while_serving() {
    let scratch = scratch();
    let file = of_shipped(scratch.path(), 1.0);
    let fixed = format!("{}=0", text(&file));
    let of_scale = Server::start(&["--lora", &fixed]);
    let base = greedy(&of_scale, "tiny-chat", &Json::Null);
    let adapted = greedy(&of_scale, "tiny-chat", &json!([{ "id": 0, "scale": 1 }]));
    assert_ne!(base, adapted, "the adapter has an effect");
    let options = ["--lora-dir", text(scratch.path())];
    for server in [Server::start(&options), Server::split(&options)] {
        let is_base = |when: &str| {
            assert_eq!(greedy(&server, "tiny-chat", &Json::Null), base, "{when}");
        };
        is_base("before");
        let load = json!({ "lora_name": "tone", "lora_path": "chat.gguf" });
        let (status, answer) = order(&server, LOAD, &load);
        assert_eq!(status, 200, "{answer}");
        assert!(answer.starts_with("Success"), "{answer}");
        is_base("with the adapter loaded");
        assert_eq!(greedy(&server, "tone", &Json::Null), adapted);
        is_base("after the adapter was used");
        let (_, list) = server.json("GET", "/v1/models", &Json::Null);
        let list = list["data"].as_array().expect("a list");
        let own = list.iter().find(|model| model["id"] == "tone");
        let own = own.expect("it is listed");
        assert_eq!(own["parent"], "tiny-chat", "{own}");
        let (_, one) = server.json("GET", "/v1/models/tone", &Json::Null);
        assert_eq!(
            (&one["id"], &one["parent"]),
            (&json!("tone"), &json!("tiny-chat"))
        );
        let (status, answer) = order(&server, LOAD, &load);
        assert!(
            status == 400 && answer.contains("served already"),
            "{answer}"
        );

        // The model is loaded again with its adapters.
        server.post("/models/unload", &json!({ "model": "tiny-chat" }));
        assert_eq!(greedy(&server, "tone", &Json::Null), adapted);
        is_base("after the model was loaded again");

        // A request that runs keeps its adapter to its end.
        let long = json!({
            "model": "tone", "prompt": "Please tell me a story.", "max_tokens": 120, "temperature": 0,
            "ignore_eos": true, "stream": true, "cache_prompt": false,
        });
        let text_of = |events: &str| -> String {
            let data = events
                .lines()
                .filter_map(|line| line.strip_prefix("data: {"));
            let data = data.map(|data| format!("{{{data}"));
            let chunks = data.filter_map(|data| serde_json::from_str::<Json>(&data).ok());
            let texts = chunks.map(|chunk| chunk["choices"][0]["text"].clone());
            texts
                .filter_map(|text| text.as_str().map(str::to_owned))
                .collect()
        };
        let (_, _, whole) = server.raw(
            "POST",
            "/v1/completions",
            "application/json",
            &long.to_string(),
        );
        let whole = text_of(&whole);
        let mut running = server.send(
            "POST",
            "/v1/completions",
            "application/json",
            &long.to_string(),
        );
        let mut first = [0; 64];
        let n = running.read(&mut first).expect("it runs");
        let gone = json!({ "lora_name": "tone" });
        let (status, answer) = order(&server, UNLOAD, &gone);
        assert_eq!(status, 200, "{answer}");
        let mut rest = first[..n].to_vec();
        running.read_to_end(&mut rest).expect("it ends");
        let rest = String::from_utf8(rest).expect("UTF-8");
        assert!(
            !whole.is_empty() && text_of(&rest) == whole,
            "{rest}\n{whole}"
        );

        is_base("after the adapter was unloaded");
        let (status, answer) = server.chat(json!({
            "model": "tone", "messages": [{ "role": "user", "content": "Hi" }],
        }));
        assert_eq!(status, 404, "{answer}");
        let (status, answer) = order(&server, UNLOAD, &gone);
        assert!(status == 400 && answer.contains("no adapter"), "{answer}");
        let (status, answer) = order(&server, LOAD, &load);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(greedy(&server, "tone", &Json::Null), adapted, "loaded anew");
    }
}

#[test]
fn an_adapter_that_cannot_be_loaded_is_refused_and_the_server_lives() {
    let scratch = scratch();
    let folder = scratch.path().join("adapters");
    std::fs::create_dir_all(folder.join("peft")).expect("a folder");
    let outside = of_shipped(scratch.path(), 1.0);
    let inside = of_shipped(&folder, 1.0);
    let link = |target: &Path, at: &str| std::os::unix::fs::symlink(target, folder.join(at));
    link(&outside, "link.gguf").expect("a link");
    link(&outside, "peft/adapter_model.safetensors").expect("a link");
    std::fs::write(folder.join("text.gguf"), "no adapter").expect("written");
    let strange = metadata("gpt2", 0.0);
    write_adapter(&folder.join("strange.gguf"), &strange, &[]);
    let options = ["--lora-dir", text(&folder)];
    for server in [Server::start(&options), Server::split(&options)] {
        let base = greedy(&server, "tiny-chat", &Json::Null);
        let refused = |name: &str, path: &str, expected: &str| {
            let body = json!({ "lora_name": name, "lora_path": path });
            let (status, answer) = order(&server, LOAD, &body);
            assert!(
                status == 400 && answer.contains(expected),
                "{name} {path}: {status} {answer}"
            );
        };
        for path in [
            "../chat.gguf",
            text(&outside),
            "link.gguf",
            "peft",
            ".",
            "",
            "/",
        ] {
            refused("tone", path, "is not below the folder");
        }
        refused("tone", "missing.gguf", "No such file");
        refused("tone", "text.gguf", "lora_path");
        refused("tone", "strange.gguf", "it is for the architecture");
        refused("tiny-chat", "chat.gguf", "served already");
        refused("default", "chat.gguf", "served already");
        refused("", "chat.gguf", "expected 1 to 256 bytes");
        refused(&"x".repeat(257), "chat.gguf", "expected 1 to 256 bytes");
        assert_eq!(greedy(&server, "tiny-chat", &Json::Null), base);
        // An absolute path below the folder is one.
        let body = json!({ "lora_name": "tone", "lora_path": text(&inside) });
        let (status, answer) = order(&server, LOAD, &body);
        assert_eq!(status, 200, "{answer}");
        assert_ne!(greedy(&server, "tone", &Json::Null), base);
        // Its scale is that of the requests which choose it.
        let (status, answer) =
            server.json("POST", "/lora-adapters", &json!([{ "id": 0, "scale": 1 }]));
        assert_eq!(status, 400, "{answer}");
    }
    let without = Server::start(&[]);
    let body = json!({ "lora_name": "tone", "lora_path": "chat.gguf" });
    let (status, answer) = order(&without, LOAD, &body);
    assert!(status == 400 && answer.contains("--lora-dir"), "{answer}");
    let open = [
        "--host",
        "0.0.0.0",
        "--no-api-key",
        "--lora-dir",
        text(&folder),
    ];
    let unmanaged = Server::start(&open);
    for (path, body) in [(LOAD, &body), (UNLOAD, &json!({ "lora_name": "tone" }))] {
        let (status, answer) = order(&unmanaged, path, body);
        assert!(
            status == 403 && answer.contains("management_not_allowed"),
            "{answer}"
        );
    }
}
