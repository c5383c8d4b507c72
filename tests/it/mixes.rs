//! Mixes of types: those of llama-quantize, those of files, and the search for one.
//!
//! tests/quant/mixes.json has what llama.cpp gives (scripts/make_mix_goldens.py).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lab_base::ggml::ColumnSums;
use lab_base::weights::{TensorType, Weights};
use lab_core::models;
use lab_core::models::quantise::{Importance, Mix, quantise};
use lab_core::models::synth::synth;
use lab_core::models::{ModelSource, OpenedModel};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::goldens::request;
use crate::support::command::{bench, check_refused, definitions, printed, scratch, text};

/// Tensors that llama-quantize quantises and this program does not: small weights that connect streams, are used elementwise, or
/// stand for positions.
const KEPT: [&str; 4] = ["hc_", "_compressor_ape.", "ple_conv1d.", "ple_norm_"];

fn goldens() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quant/mixes.json");
    let text = std::fs::read_to_string(path).expect("readable");
    serde_json::from_str(&text).expect("JSON")
}

/// The model of an entry.
fn made(name: &str, entry: &Value, folder: &Path) -> OpenedModel {
    let definitions = definitions();
    let (arch, request) = request(name, entry);
    let def = definitions.archs.get(&arch).expect("it is built in");
    let path = folder.join(format!("{name}.gguf"));
    synth(&def, &request, &path).expect("the model can be made");
    models::open(&ModelSource::File(path), &definitions).expect("it opens")
}

/// What scripts/make_mix_goldens.py takes for the importance of columns.
fn importance(weights: &Weights) -> Arc<Importance> {
    let matrices = weights.tensors().iter().filter(|t| t.shape.len() > 1);
    let of = |name: &str, n: u64| {
        let salt: u64 = name.bytes().map(u64::from).sum();
        let sums = (0..n).map(|i| 1.0 + ((i * 7 + salt) % 25) as f32 / 8.0);
        ColumnSums {
            sums: sums.collect(),
            counts: vec![1.0],
        }
    };
    let tensors = matrices.map(|tensor| {
        let n = tensor.shape[0] * tensor.shape.get(2).copied().unwrap_or(1);
        (tensor.name.clone(), of(&tensor.name, n))
    });
    Arc::new(Importance {
        tensors: tensors.collect(),
        ..Importance::default()
    })
}

/// A mix by the key of an entry, which may end in `+imatrix`.
fn mix_of(key: &str, weights: &Weights) -> Mix {
    let (name, with) = key
        .split_once('+')
        .map_or((key, false), |(name, _)| (name, true));
    let mix: Mix = name.parse().expect("a mix");
    mix.with_importance(with.then(|| importance(weights)))
}

#[test]
fn types_of_all_tensors_are_those_of_llama_quantize() {
    let (scratch, goldens) = (scratch(), goldens());
    let letters = goldens["types"].as_object().expect("an object");
    let ty = |letter: char| -> TensorType {
        let name = letters[&letter.to_string()].as_str().expect("a name");
        name.parse().expect("a type")
    };
    let (mut faults, mut n_compared, mut archs) = (Vec::new(), 0, BTreeMap::new());
    for (name, entry) in goldens["cases"].as_object().expect("an object") {
        let model = made(name, entry, scratch.path());
        let names: Vec<&str> = entry["tensors"]
            .as_array()
            .expect("names")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        for (key, types) in entry["mixes"].as_object().expect("an object") {
            let mix = mix_of(key, &model.weights);
            let found = model.quantised_types(&mix).expect("conditions hold or not");
            let types = types.as_str().expect("letters").chars();
            for (tensor, expected) in names.iter().zip(types.map(ty)) {
                // Tensors that only llama.cpp insists on are not in this model.
                let Some(stored) = model.weights.tensor(tensor) else {
                    continue;
                };
                let found = found.get(*tensor).copied().unwrap_or(stored.ty);
                n_compared += 1;
                let is_kept = KEPT.iter().any(|part| tensor.contains(part));
                if found != expected && !(is_kept && found == stored.ty) {
                    faults.push(format!(
                        "{name} {key} {tensor}: {found}, expected {expected}"
                    ));
                }
            }
            *archs.entry(model.plan.arch.clone()).or_insert(0) += 1;
        }
        std::fs::remove_file(scratch.path().join(format!("{name}.gguf"))).expect("it is there");
    }
    assert!(
        faults.is_empty(),
        "{} of {n_compared}: {:#?}",
        faults.len(),
        &faults[..faults.len().min(60)]
    );
    assert!(
        n_compared > 50_000 && archs.len() > 50,
        "{n_compared} types of {} architectures",
        archs.len()
    );
}

#[test]
fn rows_are_those_of_llama_quantize_bit_for_bit() {
    let (scratch, goldens) = (scratch(), goldens());
    let entry = &goldens["rows"];
    let model = made("rows", entry, scratch.path());
    let expected = entry["mixes"].as_object().expect("an object");
    for name in Mix::names() {
        for key in [name.to_owned(), format!("{name}+imatrix")] {
            if !expected.contains_key(&format!("{name}+imatrix")) {
                continue;
            }
            let made = quantise(&model.weights, &model.plan, &mix_of(&key, &model.weights));
            let Some(expected) = expected.get(&key) else {
                // llama-quantize refuses what would be of no use.
                let message = made.expect_err("an importance is needed").to_string();
                assert!(
                    message.contains("needs the importance of the columns"),
                    "{message}"
                );
                continue;
            };
            let made = made.expect("a mix that can be made");
            let mut tensors: Vec<_> = made.tensors().iter().collect();
            tensors.sort_by_key(|tensor| &tensor.name);
            let mut hash = Sha256::new();
            for tensor in tensors {
                hash.update(&tensor.name);
                hash.update(made.data(tensor).expect("rows"));
            }
            let found: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(Some(found.as_str()), expected.as_str(), "{key}");
        }
    }
}

#[test]
fn every_type_is_made_of_any_values_and_importances() {
    use lab_base::ggml::{IMPORTANCE_LIMIT, MADE_TYPES, dequantize, quantize_into};
    use lab_base::util::random::{normals, scatter};
    const ROW: usize = 512;
    let value = |kind: u64, normal: f32, at: usize| match kind {
        0 => normal,
        1 => normal * 1e-20,
        2 => normal * 1e6,
        3 => 0.0,
        4 => f32::from(at.is_multiple_of(97)),
        5 => normal * f32::MIN_POSITIVE,
        _ => {
            if at < 256 {
                0.0
            } else {
                normal.abs()
            }
        }
    };
    let weight = |kind: u64, at: usize| match kind {
        0 => 1.0,
        1 => 0.0,
        2 => IMPORTANCE_LIMIT,
        3 => f32::MIN_POSITIVE,
        4 => {
            if at.is_multiple_of(3) {
                0.0
            } else {
                IMPORTANCE_LIMIT
            }
        }
        _ => (scatter(at as u64) % 1000) as f32 * 1e-6,
    };
    for ty in MADE_TYPES {
        for kinds in 0..42u64 {
            let normals = normals(kinds, 0..ROW as u64, 0.0, 0.5);
            let values = normals.iter().enumerate();
            let values: Vec<f32> = values.map(|(at, v)| value(kinds % 7, *v, at)).collect();
            let weights: Vec<f32> = (0..ROW).map(|at| weight(kinds / 7, at)).collect();
            let mut out = vec![0; ty.row_bytes(ROW as u64).expect("whole blocks") as usize];
            let made = quantize_into(&values, ROW, ty, Some(&weights), &mut out);
            made.unwrap_or_else(|error| panic!("{ty}: {error}"));
            let mut again = vec![0.0; ROW];
            dequantize(&out, ty, &mut again).expect("a type with values");
        }
        let mut out = vec![0; ty.row_bytes(ROW as u64).expect("whole blocks") as usize];
        let values = [0.0; ROW];
        for wrong in [f32::NAN, -1.0, f32::INFINITY] {
            let weights = [wrong; ROW];
            assert!(quantize_into(&values, ROW, ty, Some(&weights), &mut out).is_err());
        }
        assert!(quantize_into(&values, ROW, ty, Some(&[1.0; 8]), &mut out).is_err());
    }
}

/// The built-in model as a file in f32.
fn built_in(folder: &Path) -> PathBuf {
    let path = folder.join("model.gguf");
    let ran = bench(&["convert", "models/tiny-chat.gguf", text(&path)]);
    assert!(ran.is_fine(), "{}", ran.err);
    path
}

/// A text of the kind that the built-in model was trained with, and another one.
fn texts(folder: &Path) -> [PathBuf; 2] {
    let line = |a: u32, b: u32| {
        format!(
            "<|im_start|>user\nWhat is {a} plus {b}?<|im_end|>\n<|im_start|>assistant\n{a}+{b}={}<|im_end|>\n",
            a + b
        )
    };
    [("calibration", 1), ("held-out", 2)].map(|(name, salt)| {
        let path = folder.join(format!("{name}.txt"));
        let lines = (0..60).map(|i| line((i * 7 + salt) % 50, (i * 13 + 3 * salt) % 49));
        std::fs::write(&path, lines.collect::<String>()).expect("a writable folder");
        path
    })
}

#[test]
fn a_searched_mix_diverges_less_than_named_mixes_of_its_size_or_more() {
    let scratch = scratch();
    let [calibration, held_out] = texts(scratch.path());
    let model = built_in(scratch.path());
    let rules = scratch.path().join("found.toml");
    for budget in [4.9, 6.0] {
        let out = printed(&[
            "quantise",
            text(&model),
            text(&rules),
            "--force",
            "--budget",
            &budget.to_string(),
            "--calibrate",
            text(&calibration),
            "--text",
            text(&held_out),
            "--windows",
            "4",
            "--rounds",
            "1",
            "--named-mixes",
            "--parse-special",
            "--threads",
            "1",
            "--json",
        ]);
        let found: Value = serde_json::from_str(&out).expect("JSON");
        assert!(found["bits_per_weight"].as_f64().expect("a number") <= budget);
        let kl = |of: &Value| of["evaluation"]["against"]["kl_mean"]["value"].as_f64();
        let own = kl(&found).expect("a number");
        let named = found["named_mixes"].as_array().expect("mixes");
        let mut n_compared = 0;
        for mix in named {
            let bits = mix["bits_per_weight"].as_f64().expect("a number");
            println!(
                "{budget} bits {own:.5}, {} {bits:.3} {:.5}",
                mix["mix"],
                kl(mix).expect("a number")
            );
            if bits <= budget {
                n_compared += 1;
                assert!(own < kl(mix).expect("a number"), "{mix}");
            }
        }
        assert!(n_compared > 3, "{found}");
    }
    // The rules give the types that were found.
    let small = scratch.path().join("small.gguf");
    let ran = bench(&[
        "convert",
        text(&model),
        text(&small),
        "--mix",
        text(&rules),
        "--calibrate",
        text(&calibration),
    ]);
    assert!(ran.is_fine(), "{}", ran.err);
    let weights = lab_base::weights::open(&small).expect("a file");
    let bits = weights.tensors().iter().map(|t| t.bytes).sum::<u64>() as f64 * 8.0
        / weights
            .tensors()
            .iter()
            .map(lab_base::weights::TensorInfo::elements)
            .sum::<u64>() as f64;
    assert!(bits <= 6.0, "{bits}");
    let out = printed(&[
        "eval",
        text(&small),
        "--text",
        text(&held_out),
        "--against",
        text(&model),
        "--json",
    ]);
    let found: Value = serde_json::from_str(&out).expect("JSON");
    let against = &found["against"];
    assert!(
        against["kl_mean"]["value"].as_f64().expect("a number") < 0.5,
        "{found}"
    );
    assert!(
        against["kl_99"]["value"].as_f64() >= against["kl_mean"]["value"].as_f64(),
        "{found}"
    );
    assert!(
        found["perplexity"]["error"].as_f64().expect("a number") > 0.0,
        "{found}"
    );
}

#[test]
fn a_model_does_not_diverge_from_itself() {
    let scratch = scratch();
    let [calibration, _] = texts(scratch.path());
    let model = built_in(scratch.path());
    let out = printed(&[
        "eval",
        text(&model),
        "--text",
        text(&calibration),
        "--against",
        text(&model),
        "--json",
    ]);
    let found: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(found["against"]["kl_max"].as_f64(), Some(0.0), "{found}");
    assert_eq!(found["against"]["same_top"]["value"].as_f64(), Some(1.0));
    assert_eq!(found["perplexity"], found["against"]["perplexity"]);
}

#[test]
fn an_importance_that_was_measured_is_read_again() {
    let scratch = scratch();
    let [calibration, _] = texts(scratch.path());
    let model = built_in(scratch.path());
    let saved = scratch.path().join("importance.gguf");
    let (a, b) = (scratch.path().join("a.gguf"), scratch.path().join("b.gguf"));
    let ran = bench(&[
        "convert",
        text(&model),
        text(&a),
        "--type",
        "q4_0",
        "--calibrate",
        text(&calibration),
        "--save-imatrix",
        text(&saved),
    ]);
    assert!(ran.is_fine(), "{}", ran.err);
    let ran = bench(&[
        "convert",
        text(&model),
        text(&b),
        "--type",
        "q4_0",
        "--imatrix",
        text(&saved),
    ]);
    assert!(ran.is_fine(), "{}", ran.err);
    let [a, b] = [&a, &b].map(|path| lab_base::weights::open(path).expect("a file"));
    for tensor in a.tensors() {
        let other = b.tensor(&tensor.name).expect("the same names");
        assert_eq!(
            a.data(tensor).expect("data"),
            b.data(other).expect("data"),
            "{}",
            tensor.name
        );
    }
    // Every matrix of a layer was met by as many rows as there are tokens in the windows.
    let importance = Importance::read(&saved).expect("a file");
    let counts: Vec<f32> = importance.tensors.values().map(|of| of.counts[0]).collect();
    assert!(
        counts.len() > 10 && counts.iter().all(|n| *n == counts[0] && *n > 100.0),
        "{counts:?}"
    );
}

#[test]
fn faults_of_mixes_and_importances_are_named() {
    let scratch = scratch();
    let out = scratch.path().join("out.gguf");
    let file = scratch.path().join("rules.toml");
    let refused = |rules: &str, parts: &[&str]| {
        std::fs::write(&file, rules).expect("a writable folder");
        let args = [
            "convert",
            "models/tiny-chat.gguf",
            text(&out),
            "--mix",
            text(&file),
        ];
        check_refused(&args, 1, parts);
    };
    refused(
        "type = \"q4_k\"\nbase = \"Q4_K_M\"",
        &["either `type` or `base`"],
    );
    refused("base = \"Q4_X\"", &["there is no mix `Q4_X`", "Q4_K_M"]);
    refused("type = \"q8_k\"", &["q8_k cannot be made of values"]);
    refused(
        "type = \"q4_0\"\n[[rule]]\nclas = \"down\"\ntype = \"q8_0\"",
        &["unknown field `clas`"],
    );
    refused(
        "type = \"q4_0\"\n[[rule]]\nclass = \"donw\"\ntype = \"q8_0\"",
        &["rule 1: there is no class `donw`"],
    );
    refused(
        "type = \"q4_0\"\n[[rule]]\nwhen = \"il <\"\ntype = \"q8_0\"",
        &["rule 1: `il <`"],
    );
    refused(
        "type = \"q4_0\"\n[[rule]]\nwhen = \"depht < 3\"\ntype = \"q8_0\"",
        &["rule 1", "there is no name `depht`"],
    );
    refused(
        "type = \"q4_0\"\n[names]\na = \"a\"\n[[rule]]\nwhen = \"a\"\ntype = \"q8_0\"",
        &["`a` is defined by itself"],
    );
    refused(
        "type = \"q4_0\"\n[[rule]]\nwhen = \"il\"\ntype = \"q8_0\"",
        &["expected true or false"],
    );
    let low = [
        "convert",
        "models/tiny-chat.gguf",
        text(&out),
        "--type",
        "q2_k_s",
    ];
    let ran = bench(&low);
    assert!(
        ran.is_fine() || ran.err.contains("needs the importance"),
        "{}",
        ran.err
    );
    std::fs::write(&file, "no importance").expect("a writable folder");
    let args = [
        "convert",
        "models/tiny-chat.gguf",
        text(&out),
        "--force",
        "--type",
        "q4_0",
        "--imatrix",
        text(&file),
    ];
    check_refused(&args, 1, &["not an importance matrix"]);
    let budget = [
        "quantise",
        "models/tiny-chat.gguf",
        text(&out),
        "--force",
        "--budget",
        "0.6",
        "--calibrate",
        "README.md",
    ];
    check_refused(&budget, 1, &["--budget 0.6: the smallest types take"]);
}
