//! Folders with the configuration that publishers ship: what has no effect passes, what could change
//! the result is refused by its name, and the head of a tied model is the one that was trained.
//!
//! The folders as published lie outside the repository, in the folder that `BENCH_SHARED` names (or
//! `shared` in the folder above); the others are made of `tests/hf`.

use std::collections::BTreeSet;
use std::path::Path;

use lab_core::models;
use lab_core::models::{ModelSource, OpenedModel};
use serde_json::{Map, Value, json};

use crate::bad_folders::{CONFIG, Folder};
use crate::goldens::EXACT;
use crate::support::command::{bench, definitions, scratch, text};
use crate::support::hf;
use crate::support::{Output, PATHS, nmse, parse_npy, results, shared};

const TOKENS: &str = "1,2,3,17,5,200,33,8,99,4,7,301";
/// Eight- and four-bit weights are rounded by the reference too.
const PACKED: f64 = 2e-5;

/// Folders with a reference. There may be more, and never fewer.
const FOLDERS: usize = 47;

#[test]
fn published_folders_reproduce_transformers() {
    let Some(root) = shared("published") else {
        return;
    };
    let scratch = scratch();
    let mut faults = Vec::new();
    let mut n_compared = 0;
    for entry in std::fs::read_dir(root).expect("a readable folder") {
        let folder = entry.expect("a readable folder").path();
        let reference = std::path::PathBuf::from(format!("{}.ref.npy", text(&folder)));
        let name = text(&folder).rsplit('/').next().unwrap_or_default();
        if !reference.is_file() {
            continue;
        }
        n_compared += 1;
        let out = scratch.path().join("logits.npy");
        let ran = bench(&[
            "logits",
            "--force",
            "-m",
            text(&folder),
            "--tokens",
            TOKENS,
            "--type",
            "f32",
            "-o",
            text(&out),
        ]);
        if ran.code != 0 {
            faults.push(format!("{name}: {}", ran.err));
            continue;
        }
        let read = |path: &Path| parse_npy(&std::fs::read(path).expect("a readable file"));
        let (found, expected) = (read(&out), read(&reference));
        let found: Vec<f32> = found.values.iter().map(|v| *v as f32).collect();
        let error = nmse(&found, &expected.values);
        let is_packed = name.contains("fp8") || name.contains("mxfp4");
        if error.is_nan() || error > if is_packed { PACKED } else { EXACT } {
            faults.push(format!("{name}: NMSE {error:.1e}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(n_compared >= FOLDERS, "{n_compared} of {FOLDERS} folders");
}

pub(crate) fn open(folder: &Folder) -> Result<OpenedModel, String> {
    let source = ModelSource::File(folder.0.path().to_owned());
    models::open(&source, &definitions()).map_err(|error| error.to_string())
}

fn config(folder: &Folder) -> Map<String, Value> {
    serde_json::from_slice(&folder.read(CONFIG)).expect("an object")
}

pub(crate) fn set(folder: &Folder, key: &str, value: Value) {
    let mut config = config(folder);
    config.insert(key.to_owned(), value);
    folder.write(CONFIG, Value::Object(config).to_string());
}

/// Metadata and tensors, but for what they hold.
pub(crate) fn outline(opened: &OpenedModel) -> String {
    let weights = &opened.weights;
    let tensors = weights
        .tensors()
        .iter()
        .map(|t| format!("{} {:?}", t.name, t.shape));
    let metadata = format!("{:?}", weights.metadata());
    // Where each key lies has no order.
    let entries = metadata.split(", index: ").next().unwrap_or_default();
    format!("{entries} {:?}", tensors.collect::<Vec<_>>())
}

#[test]
fn keys_without_effect_pass() {
    let plain = outline(&open(&Folder::new("llama")).expect("a sound folder"));
    for (key, value) in [
        ("unknown_feature", json!(false)),
        ("unknown_table", json!({})),
        ("unknown_list", json!([])),
        ("unknown_text", json!("")),
        ("unknown_object", json!({ "a": null, "b": { "c": false } })),
        ("is_causal", json!(true)),
        ("is_causal", json!(null)),
        ("norm_topk_prob", json!(true)),
        ("residual_multiplier", json!(1)),
        ("embedding_multiplier", json!(1.0)),
        ("transformers_version", json!("4.31.0")),
        ("_name_or_path", json!("somewhere/else")),
        ("_attn_implementation_autoset", json!(true)),
        ("unsloth_version", json!("2025.1")),
        ("auto_map", json!({ "AutoConfig": "configuration.Config" })),
        ("embd_dropout", json!(0.1)),
        ("pad_token_id", json!(-1)),
        ("rope_scaling", json!(null)),
    ] {
        let folder = Folder::new("llama");
        set(&folder, key, value);
        let opened = open(&folder).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!(outline(&opened), plain, "{key}");
    }
}

#[test]
fn keys_that_could_change_the_result_are_refused_by_name_and_meaning() {
    for (key, value, meaning) in [
        (
            "is_causal",
            json!(false),
            "is_causal = false (if it is false, every token also attends to later ones)",
        ),
        (
            "norm_topk_prob",
            json!(false),
            "norm_topk_prob = false (whether the weights",
        ),
        (
            "residual_multiplier",
            json!(0.5),
            "residual_multiplier = 0.5 (the result of each sublayer would be",
        ),
        (
            "use_qk_norm",
            json!(true),
            "use_qk_norm = true (queries and keys would be normalised (q/k norm))",
        ),
        (
            "final_logit_softcapping",
            json!(30.0),
            "final_logit_softcapping = 30.0 (the logits",
        ),
        ("unknown_feature", json!(true), "unknown_feature = true"),
        ("unknown_number", json!(3), "unknown_number = 3"),
        (
            "unknown_object",
            json!({ "a": { "b": true } }),
            "unknown_object",
        ),
    ] {
        let folder = Folder::new("llama");
        set(&folder, key, value);
        let error = open(&folder)
            .err()
            .unwrap_or_else(|| panic!("{key} passes"));
        assert!(error.contains(meaning), "{key}: {error}");
        assert!(bench(&["plan", "--allow-unmapped", "-m", text(folder.0.path())]).is_fine());
    }
}

/// Patterns of keys that a map ignores, with those of all maps.
fn ignored(map: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("stmaps");
    let mut out = Vec::new();
    for file in ["common.toml".to_owned(), format!("{map}.arch.stmap.toml")] {
        let text = std::fs::read_to_string(root.join(file)).expect("a readable map");
        let map: toml::Table = text.parse().expect("TOML");
        let keys = map.get("ignore").and_then(|ignore| ignore.get("config"));
        let keys = keys.and_then(toml::Value::as_array).into_iter().flatten();
        out.extend(keys.filter_map(|key| Some(key.as_str()?.to_owned())));
    }
    out
}

fn fits(pattern: &str, key: &str) -> bool {
    match pattern.split_once('*') {
        Some((head, tail)) => {
            key.len() >= pattern.len() - 1 && key.starts_with(head) && key.ends_with(tail)
        }
        None => pattern == key,
    }
}

/// Another value of the same kind.
fn changed(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Bool(flag) => json!(!flag),
        Value::Number(n) if n.is_f64() => json!(2.0 * n.as_f64()? + 1.0),
        Value::Number(n) => json!(n.as_i64()? + 2),
        _ => return None,
    })
}

/// Folders of maps in which much can be stated.
const CHANGED: [(&str, &str); 8] = [
    ("llama", "llama"),
    ("qwen3moe", "qwen3moe"),
    ("gemma2", "gemma2"),
    ("granitemoe", "granitemoe"),
    ("deepseek-v3", "deepseek2"),
    ("gptneox", "gptneox"),
    ("mamba", "mamba"),
    ("bert", "bert"),
];

#[test]
fn no_key_is_read_over() {
    let mut silent = BTreeSet::new();
    for (name, map) in CHANGED {
        let folder = Folder::new(name);
        let whole = config(&folder);
        let plain = outline(&open(&folder).expect("a sound folder"));
        let ignored = ignored(map);
        for (key, value) in &whole {
            // A stored head is used, tied or not; a warning says so.
            let is_ignored =
                key == "tie_word_embeddings" || ignored.iter().any(|pattern| fits(pattern, key));
            let (Some(value), false) = (changed(value), is_ignored) else {
                continue;
            };
            set(&folder, key, value);
            if open(&folder).is_ok_and(|opened| outline(&opened) == plain) {
                silent.insert(format!("{name}: {key}"));
            }
            folder.write(CONFIG, Value::Object(whole.clone()).to_string());
        }
    }
    assert_eq!(silent, BTreeSet::new());
}

/// The folder's tensors under other names.
fn rename(folder: &Folder, name_of: &dyn Fn(&str) -> String) {
    let files: Vec<String> = std::fs::read_dir(folder.0.path())
        .expect("a readable folder")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".safetensors"))
        .collect();
    for file in files {
        folder.edit(&file, |header| {
            let old = std::mem::take(header);
            let renamed = |name: String| match name.as_str() {
                "__metadata__" => name,
                name => name_of(name),
            };
            header.extend(old.into_iter().map(|(name, line)| (renamed(name), line)));
        });
    }
}

#[test]
fn names_of_other_versions_are_found() {
    for (body, head) in [
        ("", ""),
        ("model.language_model.", ""),
        ("language_model.model.", "language_model."),
        ("model.", "model."),
        ("module.model.", "module."),
    ] {
        let folder = Folder::new("llama");
        rename(&folder, &|name| match name.strip_prefix("model.") {
            Some(name) => format!("{body}{name}"),
            None => format!("{head}{name}"),
        });
        let expected = hf::open("llama");
        let opened = open(&folder).unwrap_or_else(|error| panic!("{body}: {error}"));
        let path = PATHS.iter().find(|path| path.stateless).expect("a path");
        let found = results(
            &opened.def,
            &opened.weights,
            &expected.tokens,
            path,
            Output::Logits,
        );
        let found = found.expect("a path").expect("it runs");
        assert!(nmse(&found, &expected.expected) <= EXACT, "{body}");
    }
}

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

#[test]
fn the_head_of_tied_embeddings_is_the_one_that_was_trained() {
    // Stored, and not tied.
    let folder = Folder::new("llama");
    let untied = outline(&open(&folder).expect("a sound folder"));
    assert!(untied.contains("\"output.weight"));
    // Stored, tied, and another: it is used, with a warning.
    set(&folder, "tie_word_embeddings", json!(true));
    let ran = bench(&["plan", "-m", text(folder.0.path())]);
    assert!(
        ran.code == 0 && ran.out.contains(" output.weight"),
        "{}",
        ran.err
    );
    assert!(
        ran.err
            .contains("`lm_head.weight` differs from `model.embed_tokens.weight`"),
        "{}",
        ran.err
    );
    // Neither stored nor tied.
    let folder = Folder::new("qwen2-tied");
    assert!(!outline(&open(&folder).expect("a sound folder")).contains("\"output.weight"));
    set(&folder, "tie_word_embeddings", json!(false));
    let error = open(&folder).expect_err("no head");
    assert!(
        error.contains("tie_word_embeddings is `false`") && error.contains("lm_head"),
        "{error}"
    );
}

/// Where models that see say whether the embedding is the head: at the top of the configuration, in the
/// object of the text model, or in either.
#[test]
fn the_heads_of_models_that_see_follow_the_same_rule() {
    let tied = |folder: &Folder, top: Value, inner: Value| {
        let mut config = config(folder);
        config.insert("tie_word_embeddings".into(), top);
        let text = config.get_mut("text_config").and_then(Value::as_object_mut);
        text.expect("an object")
            .insert("tie_word_embeddings".into(), inner);
        folder.write(CONFIG, Value::Object(config).to_string());
    };
    // A head that is stored: used, with a warning where the configuration ties it.
    for (name, top, inner) in [
        ("qwen3vl", true, false),
        ("qwen3vlmoe", true, false),
        ("qwen35-vision", true, false),
        ("qwen35moe-vision", true, false),
        ("llama4-vision", false, true),
    ] {
        let folder = Folder::new(name);
        tied(&folder, json!(top), json!(inner));
        let ran = bench(&["plan", "-m", text(folder.0.path())]);
        assert!(
            ran.code == 0 && ran.out.contains(" output.weight"),
            "{name}: {}",
            ran.err
        );
        assert!(
            ran.err.contains("which the configuration ties it to"),
            "{name}: {}",
            ran.err
        );
        tied(&folder, json!(!top), json!(!inner));
        let ran = bench(&["plan", "-m", text(folder.0.path())]);
        assert!(!ran.err.contains("ties it to"), "{name}: {}", ran.err);
    }
    // None is stored.
    for (name, top, inner, is_tied) in [
        ("qwen3vl-tied", true, false, true),
        ("qwen3vl-tied", false, true, false),
        ("mistral3", true, false, true),
        ("mistral3", false, true, false),
        ("qwen2vl-2.5", true, false, true),
        ("qwen2vl-2.5", false, true, true),
        ("qwen2vl-2.5", false, false, false),
    ] {
        let folder = Folder::new(name);
        tied(&folder, json!(top), json!(inner));
        match open(&folder) {
            Ok(opened) => assert!(
                is_tied && !outline(&opened).contains("\"output.weight"),
                "{name}, {top}, {inner}"
            ),
            Err(error) => assert!(!is_tied && error.contains("lm_head"), "{name}: {error}"),
        }
    }
}

#[test]
fn a_head_that_equals_the_embeddings_is_left_out() {
    let folder = Folder::new("qwen2-tied");
    let tied = outline(&open(&folder).expect("a sound folder"));
    let bytes = folder.read("model.safetensors");
    let (length, rest) = bytes.split_first_chunk().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: Map<String, Value> = serde_json::from_slice(header).expect("an object");
    let line = header[EMBEDDING].clone();
    let [begin, end] =
        [0, 1].map(|i| line["data_offsets"][i].as_u64().expect("an offset") as usize);
    let mut line = line;
    line["data_offsets"] = json!([data.len(), data.len() + end - begin]);
    header.insert(HEAD.into(), line);
    let header = serde_json::to_vec(&header).expect("JSON");
    let with = |copied: &[u8]| {
        let length = (header.len() as u64).to_le_bytes();
        folder.write(
            "model.safetensors",
            [&length, &header[..], data, copied].concat(),
        );
    };
    with(&data[begin..end]);
    assert_eq!(outline(&open(&folder).expect("the head is equal")), tied);
    let mut other = data[begin..end].to_vec();
    *other.last_mut().expect("bytes") ^= 1;
    with(&other);
    assert!(outline(&open(&folder).expect("the head wins")).contains("\"output.weight"));
}

/// Which of two places counts is that of transformers: `rope_scaling` before `rope_parameters`, what is in
/// either before what is at the top, but for the original context.
#[test]
fn conflicting_settings_are_reported_with_the_one_that_counts() {
    let yarn = |context: u64| json!({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": context});
    let in_object = json!({"rope_type": "default", "rope_theta": 500000.0});
    for (name, keys, used, others) in [
        (
            "llama",
            json!({"rope_theta": 10000.0, "rope_parameters": in_object}),
            &["500000", "`rope_parameters.rope_theta` is used"][..],
            &["`rope_theta` is 10000.0"][..],
        ),
        (
            "llama",
            json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": in_object}),
            &["`rope_scaling.rope_type` is used"],
            &["`rope_parameters.rope_type` is \"default\""],
        ),
        (
            "llama",
            json!({"rope_scaling": yarn(64), "original_max_position_embeddings": 32}),
            &["`original_max_position_embeddings` is used"],
            &["is 64"],
        ),
        (
            "qwen3moe",
            json!({"num_experts": 4, "num_local_experts": 7}),
            &["`num_experts` is used"],
            &["`num_local_experts` is 7"],
        ),
    ] {
        let folder = Folder::new(name);
        let Value::Object(keys) = keys else { continue };
        for key in ["rope_theta", "rope_parameters", "rope_scaling"] {
            let mut config = config(&folder);
            if keys.contains_key("rope_scaling") || keys.contains_key(key) {
                config.remove(key);
            }
            folder.write(CONFIG, Value::Object(config).to_string());
        }
        let mut again = keys.clone();
        for (key, value) in keys {
            set(&folder, &key, value);
        }
        let ran = bench(&["plan", "-m", text(folder.0.path())]);
        let found = used.iter().chain(others).all(|part| ran.err.contains(part));
        assert!(
            ran.code == 0 && found,
            "{name}, {used:?}: {}{}",
            ran.out,
            ran.err
        );
        // The same value at both places is nothing to speak of.
        let Some(scaling) = again
            .remove("rope_scaling")
            .filter(|v| v.get("type").is_some())
        else {
            continue;
        };
        let context = scaling["original_max_position_embeddings"].clone();
        set(&folder, "original_max_position_embeddings", context);
        let ran = bench(&["plan", "-m", text(folder.0.path())]);
        assert!(ran.code == 0 && !ran.err.contains("twice"), "{}", ran.err);
    }
}

#[test]
fn what_a_sparse_configuration_leaves_out_is_the_class_default() {
    let folder = Folder::new("mistral");
    let mut sparse = config(&folder);
    for (key, default) in [
        ("sliding_window", json!(4096)),
        ("max_position_embeddings", json!(131_072)),
    ] {
        sparse.insert(key.into(), default);
    }
    folder.write(CONFIG, Value::Object(sparse.clone()).to_string());
    let stated = outline(&open(&folder).expect("a sound folder"));
    for key in [
        "sliding_window",
        "max_position_embeddings",
        "rms_norm_eps",
        "hidden_act",
    ] {
        sparse.remove(key);
    }
    folder.write(CONFIG, Value::Object(sparse.clone()).to_string());
    assert_eq!(outline(&open(&folder).expect("the defaults hold")), stated);
    // A window that is null is none.
    sparse.insert("sliding_window".into(), json!(null));
    folder.write(CONFIG, Value::Object(sparse).to_string());
    let none = outline(&open(&folder).expect("no window"));
    assert!(
        stated.contains("sliding_window") && !none.contains("sliding_window"),
        "{none}"
    );
}

#[test]
fn factors_of_a_rope_without_a_middle_are_computed() {
    let folder = Folder::new("llama-llama3");
    let mut config = config(&folder);
    let rope = config.get_mut("rope_scaling").expect("a rope");
    rope["low_freq_factor"] = rope["high_freq_factor"].clone();
    folder.write(CONFIG, Value::Object(config).to_string());
    let opened = open(&folder).expect("every pair is kept or divided");
    assert!(outline(&opened).contains("rope_freqs.weight"));
}

/// Within the original context these scalings change nothing; beyond it they are not computed.
#[test]
fn scalings_that_only_longer_contexts_have_are_named_with_where_they_begin() {
    for (name, parts) in [
        ("internlm2", &["beyond 256", "dynamic", "by 2"][..]),
        ("qwen", &["beyond 256", "use_dynamic_ntk"]),
        ("qwen", &["beyond 256", "use_logn_attn"]),
        ("llama", &["beyond 64", "by 4"]),
    ] {
        let folder = Folder::new(name);
        if name == "llama" {
            let mut config = config(&folder);
            config.remove("rope_parameters");
            let scaling = json!({"type": "dynamic", "factor": 4.0});
            config.insert("rope_scaling".into(), scaling);
            config.insert("max_position_embeddings".into(), json!(64));
            folder.write(CONFIG, Value::Object(config).to_string());
        }
        let ran = bench(&["plan", "-m", text(folder.0.path())]);
        assert_eq!(ran.code, 0, "{name}: {}", ran.err);
        let mut lines = ran.err.lines();
        let is_told = lines.any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(is_told, "{name}: {}", ran.err);
        let context = parts[0].replace("beyond", "trained on");
        assert!(ran.out.contains(&context), "{name}: {}", ran.out);
    }
}
