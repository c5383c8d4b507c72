//! Hugging Face folders run as they are: what transformers computes of them, we compute.
//!
//! The folders are made anew from `tests/hf`; the maps are those of `stmaps/`.

use std::path::{Path, PathBuf};

use lab_base::weights;
use lab_base::weights::TensorType;
use lab_core::model::Model;
use lab_core::models;
use lab_core::models::convert::to_gguf;
use lab_core::models::{Definitions, ModelSource};
use serde_json::{Value, json};

use crate::goldens::{EXACT, HALF, Q8, golden, options};
use crate::support::command::{self, scratch};
use crate::support::hf;
use crate::support::{Output, PATHS, logits, nmse, results};

/// The maps as they lie in the source tree, or in the folder that MAPS names. What a map gives and
/// nothing reads is an error.
pub(crate) fn definitions() -> Definitions {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("stmaps");
    let maps = std::env::var_os("MAPS").map_or(here, PathBuf::from);
    Definitions {
        strict: true,
        ..Definitions::open(&[maps]).expect("maps and definitions")
    }
}

/// Maximum NMSE of a folder: what remains where every operation and constant is that of transformers.
const SAME: f64 = 1e-9;

/// Folders with another bound, each with the reason.
const ROUNDED: [(&str, f64, &str); 3] = [
    (
        "gpt-oss-mxfp4",
        Q8,
        "products of 4-bit weights round their columns to 8 bits",
    ),
    (
        "llama-bf16",
        HALF,
        "products of bf16 weights round their columns to bf16",
    ),
    (
        "llama-f16",
        HALF,
        "products of f16 weights round their columns to f16",
    ),
];

/// NMSE of a folder's logits, or why it does not run. The file that it is converted to gives the
/// same bits.
fn error_of(name: &str, with: &Definitions, scratch: &Path) -> Result<f64, String> {
    let folder = hf::open(name);
    let into: PathBuf = scratch.join(name);
    std::fs::create_dir_all(&into).expect("the scratch folder can be written");
    folder.write(&into);
    let opened =
        models::open(&ModelSource::File(into.clone()), with).map_err(|error| error.to_string())?;
    // 8-bit floats become bf16 unless another type is requested.
    let opened = match folder.has(&["F8_E4M3"]) {
        true => opened
            .quantised(&TensorType::F32.into())
            .map_err(|error| error.to_string())?,
        false => opened,
    };
    let path = PATHS.iter().find(|path| path.stateless).expect("a path");
    let (def, weights) = (&opened.def, &opened.weights);
    let found = results(def, weights, folder.text(), path, folder.output).ok_or("no path")??;
    let file = scratch.join(format!("{name}.gguf"));
    to_gguf(&opened, None, &file, false, &mut |_, _| {}).map_err(|error| error.to_string())?;
    let file = weights::open(&file).map_err(|error| error.to_string())?;
    let again = results(def, &file, folder.text(), path, folder.output).ok_or("no path")??;
    let is_same = found
        .iter()
        .zip(&again)
        .all(|(a, b)| a.to_bits() == b.to_bits());
    if !is_same || found.len() != again.len() {
        return Err("the file it is converted to gives other logits".into());
    }
    if found.len() != folder.expected.len() {
        return Err(format!(
            "{} values, expected {}",
            found.len(),
            folder.expected.len()
        ));
    }
    Ok(nmse(&found, &folder.expected))
}

#[test]
fn folders_reproduce_transformers() {
    let with = definitions();
    let (classes, broken) = with.maps.classes();
    assert!(broken.is_empty(), "{}", broken[0].render(false));
    let scratch = scratch();
    let only = std::env::var("FOLDERS").unwrap_or_default();
    let (mut n_good, mut without, mut faults) = (0, Vec::new(), Vec::new());
    for name in hf::names().iter().filter(|name| name.starts_with(&only)) {
        let class = hf::open(name).class;
        if !classes.iter().any(|(known, _)| *known == class) {
            without.push(format!("{name} ({class})"));
            continue;
        }
        match error_of(name, &with, scratch.path()) {
            Ok(error) => {
                println!("{name:24} NMSE {error:.1e}");
                let other = ROUNDED.iter().find(|(other, ..)| other == name);
                match error <= other.map_or(SAME, |(_, bound, _)| *bound) {
                    true => n_good += 1,
                    false => faults.push(format!("{name}: NMSE {error:.1e}")),
                }
            }
            Err(message) => faults.push(format!("{name}: {message}")),
        }
    }
    println!("{n_good} folders; without a map: {}", without.join(", "));
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn tensors_that_are_stored_as_they_are_needed_stay_in_the_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-chat");
    let definitions = command::definitions();
    let opened =
        models::open(&ModelSource::File(folder), &definitions).expect("the shipped folder");
    let all = opened.plan.weight_bytes();
    let tensors = &opened.plan.tensors;
    // Rows of queries and keys change places, gains become f32.
    let is_made =
        |name: &str| name.contains("attn_q.") || name.contains("attn_k.") || name.contains("norm");
    let made = tensors.iter().filter(|t| is_made(&t.name)).map(|t| t.bytes);
    let made: u64 = made.sum();
    let loaded = Model::load(opened.plan, &opened.weights, options(), &mut |_, _| {});
    let memory = loaded.expect("it loads").memory();
    assert!(
        made > 0 && memory.mapped == all - made,
        "{memory:?}, {made} of {all} made"
    );
}

#[test]
fn vectors_of_an_encoder_are_of_the_states_before_its_head() {
    let folder = hf::open("bert-masked");
    let scratch = scratch();
    folder.write(scratch.path());
    let path = PATHS.iter().find(|path| path.stateless).expect("a path");
    let run = |output: Output| {
        let source = ModelSource::File(scratch.path().to_owned());
        let opened = models::open(&source, &definitions()).expect("a model");
        let found = results(&opened.def, &opened.weights, folder.text(), path, output);
        found.expect("a path").expect("results")
    };
    let hidden = run(Output::Hidden);
    assert!(nmse(&run(Output::Logits), &folder.expected) <= SAME);
    // The class without a head has the same states, and nothing else.
    let config = scratch.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("a configuration");
    std::fs::write(&config, text.replace("BertForMaskedLM", "BertModel")).expect("written");
    assert_eq!(run(Output::Logits), hidden);
    assert_eq!(run(Output::Hidden), hidden);
}

/// The rows that a head lacks belong to tokens that are never written.
#[test]
fn a_head_of_the_first_tokens_excludes_the_others() {
    const N: usize = 60;
    let folder = hf::open("apertus1p5").with_rows(N, |name| name == "lm_head.weight");
    let scratch = scratch();
    folder.write(scratch.path());
    let path = scratch.path().join("config.json");
    let config = std::fs::read(&path).expect("there");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["output_vocab_size"] = json!(N);
    std::fs::write(path, config.to_string()).expect("written");
    let source = ModelSource::File(scratch.path().to_owned());
    let opened = models::open(&source, &definitions()).expect("a model");
    let path = PATHS.iter().find(|path| path.stateless).expect("a path");
    let found = logits(&opened.def, &opened.weights, folder.text(), path);
    let found = found.expect("a path").expect("it runs");
    let width = folder.shape[1];
    let rows = || found.chunks(width).zip(folder.expected.chunks(width));
    let first: Vec<f32> = rows().flat_map(|(row, _)| row[..N].to_vec()).collect();
    let expected: Vec<f64> = rows().flat_map(|(_, row)| row[..N].to_vec()).collect();
    let error = nmse(&first, &expected);
    assert!(error <= EXACT, "{error:.1e}");
    assert!(rows().all(|(row, _)| row[N..].iter().all(|logit| *logit < -1e29)));
}

/// Ten numbers of a generator, none of them equal.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

/// A safetensors file with f32 matrices.
fn tensor_file(tensors: &[(&str, [usize; 2], &[f32])]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        let shape: Vec<usize> = shape.iter().copied().filter(|n| *n > 0).collect();
        let row = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert((*name).to_owned(), row);
    }
    let text = serde_json::to_vec(&header).expect("JSON");
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text);
    file.extend(data);
    file
}

/// `modules.json` of these types, each module in a folder of its own with this configuration.
fn write_modules(folder: &Path, modules: &[(&str, Value)]) {
    let list: Vec<Value> = std::iter::once(json!({
        "idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"
    }))
    .chain(modules.iter().enumerate().map(|(i, (kind, config))| {
        let path = format!("{}_{kind}", i + 1);
        std::fs::create_dir_all(folder.join(&path)).expect("a folder");
        let text = serde_json::to_vec(config).expect("JSON");
        std::fs::write(folder.join(&path).join("config.json"), text).expect("a file");
        json!({"idx": i + 1, "name": (i + 1).to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}")})
    }))
    .collect();
    let text = serde_json::to_vec(&list).expect("JSON");
    std::fs::write(folder.join("modules.json"), text).expect("a file");
}

/// The vector of a folder's sequence, and that of the file it is converted to.
fn vectors(folder: &hf::Folder, into: &Path) -> [Vec<f32>; 2] {
    let opened =
        models::open(&ModelSource::File(into.to_owned()), &definitions()).expect("a model");
    let path = PATHS.iter().find(|path| path.stateless).expect("a path");
    let of = |weights| {
        let found = results(&opened.def, weights, &folder.tokens, path, Output::Pooled);
        found.expect("a path").expect("a vector")
    };
    let file = into.with_extension("gguf");
    to_gguf(&opened, None, &file, false, &mut |_, _| {}).expect("a file");
    let again = weights::open(&file).expect("a file");
    [of(&opened.weights), of(&again)]
}

#[test]
fn embedding_models_follow_their_modules() {
    let folder = hf::open("bert");
    let width = folder.shape[1];
    let rows: Vec<&[f64]> = folder.expected.chunks(width).collect();
    let n = rows.len() as f64;
    let sum = |i: usize| rows.iter().map(|row| row[i]).sum::<f64>();
    let each = |of: &dyn Fn(usize) -> f64| (0..width).map(of).collect::<Vec<f64>>();
    let flag = |name: &str| {
        let mut config = json!({
            "word_embedding_dimension": width, "include_prompt": true,
            "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": false,
            "pooling_mode_max_tokens": false, "pooling_mode_mean_sqrt_len_tokens": false,
        });
        config[name] = json!(true);
        config
    };
    let max = |i: usize| rows.iter().map(|row| row[i]).fold(f64::MIN, f64::max);
    let weighted = |i: usize| {
        let terms = rows.iter().zip(1..).map(|(row, at)| row[i] * f64::from(at));
        terms.sum::<f64>() / (n * (n + 1.0) / 2.0)
    };
    let cases = [
        (flag("pooling_mode_cls_token"), rows[0].to_vec()),
        (flag("pooling_mode_mean_tokens"), each(&|i| sum(i) / n)),
        (
            flag("pooling_mode_lasttoken"),
            rows[rows.len() - 1].to_vec(),
        ),
        (flag("pooling_mode_max_tokens"), each(&max)),
        (
            flag("pooling_mode_mean_sqrt_len_tokens"),
            each(&|i| sum(i) / n.sqrt()),
        ),
        (flag("pooling_mode_weightedmean_tokens"), each(&weighted)),
        (
            json!({"pooling_mode": "cls", "embedding_dimension": width}),
            rows[0].to_vec(),
        ),
    ];
    let scratch = scratch();
    for (i, (config, expected)) in cases.iter().enumerate() {
        let into = scratch.path().join(i.to_string());
        std::fs::create_dir_all(&into).expect("a folder");
        folder.write(&into);
        write_modules(&into, &[("Pooling", config.clone())]);
        for found in vectors(&folder, &into) {
            let error = nmse(&found, expected);
            assert!(error <= EXACT, "{config}: NMSE {error:.1e}");
        }
    }
    // The first token, two dense layers with tanh, then length 1.
    let into = scratch.path().join("dense");
    std::fs::create_dir_all(&into).expect("a folder");
    folder.write(&into);
    let dense = |rows: usize, columns: usize| {
        json!({"in_features": columns, "out_features": rows, "bias": true,
            "activation_function": "torch.nn.modules.activation.Tanh"})
    };
    write_modules(
        &into,
        &[
            ("Pooling", flag("pooling_mode_cls_token")),
            ("Dense", dense(24, width)),
            ("Dense", dense(10, 24)),
            ("Normalize", json!({})),
        ],
    );
    let mut expected = rows[0].to_vec();
    for (module, n_rows, seed) in [("2_Dense", 24, 1), ("3_Dense", 10, 7)] {
        let n = expected.len();
        let (matrix, bias) = (numbers(n_rows * n, seed), numbers(n_rows, seed + 1));
        let tensors = tensor_file(&[
            ("linear.weight", [n_rows, n], &matrix),
            ("linear.bias", [n_rows, 0], &bias),
        ]);
        std::fs::write(into.join(module).join("model.safetensors"), tensors).expect("a file");
        let products = matrix.chunks(n).zip(&bias).map(|(row, bias)| {
            let terms = row.iter().zip(&expected).map(|(w, x)| f64::from(*w) * x);
            (terms.sum::<f64>() + f64::from(*bias)).tanh()
        });
        expected = products.collect();
    }
    let length = expected.iter().map(|v| v * v).sum::<f64>().sqrt();
    expected.iter_mut().for_each(|v| *v /= length);
    for found in vectors(&folder, &into) {
        let error = nmse(&found, &expected);
        assert!(error <= EXACT, "dense: NMSE {error:.1e}");
    }
    // What cannot be run is refused by name.
    let mut both = flag("pooling_mode_cls_token");
    both["pooling_mode_mean_tokens"] = json!(true);
    for (kind, config, found) in [("Pooling", both, "n_poolings"), ("LSTM", json!({}), "LSTM")] {
        write_modules(&into, &[(kind, config)]);
        let error = models::open(&ModelSource::File(into.clone()), &definitions());
        let error = error.expect_err("refused").to_string();
        assert!(error.contains(found), "{error}");
    }
}

/// What a published folder of an encoder-decoder calls a tensor of llama.cpp's.
fn published_name(name: &str, has_gate: bool) -> String {
    let (half, rest) = match name.split_once('.') {
        Some(("enc", rest)) => ("encoder", rest),
        Some(("dec", rest)) => ("decoder", rest),
        Some(("token_embd", _)) => return "shared.weight".to_owned(),
        _ => return name.replace("output.", "lm_head."),
    };
    let Some((layer, part)) = rest
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
    else {
        return format!("{half}.{}", rest.replace("output_norm", "final_layer_norm"));
    };
    let mlp = if half == "encoder" { 1 } else { 2 };
    let part = match part.trim_end_matches(".weight") {
        "attn_norm" => "0.layer_norm".to_owned(),
        "attn_rel_b" => "0.SelfAttention.relative_attention_bias".to_owned(),
        "cross_attn_norm" => "1.layer_norm".to_owned(),
        "ffn_norm" => format!("{mlp}.layer_norm"),
        "ffn_gate" => format!("{mlp}.DenseReluDense.wi_0"),
        "ffn_up" if has_gate => format!("{mlp}.DenseReluDense.wi_1"),
        "ffn_up" => format!("{mlp}.DenseReluDense.wi"),
        "ffn_down" => format!("{mlp}.DenseReluDense.wo"),
        part => match part.strip_prefix("cross_attn_") {
            Some(part) => format!("1.EncDecAttention.{part}"),
            None => part.replace("attn_", "0.SelfAttention."),
        },
    };
    format!("{half}.block.{layer}.layer.{part}.weight")
}

/// Encoder-decoders as published folders have them, against logits of llama.cpp: the same tensors under other names.
#[test]
fn encoder_decoder_folders_equal_their_files() {
    let common = json!({
        "d_model": 64, "d_ff": 88, "num_heads": 4, "vocab_size": 96, "n_positions": 256, "layer_norm_epsilon": 0.001,
        "is_encoder_decoder": true, "dropout_rate": 0.1, "model_type": "t5", "pad_token_id": 0, "eos_token_id": 1,
    });
    let cases = [
        (
            "t5",
            json!({
                "architectures": ["T5ForConditionalGeneration"], "d_kv": 8, "num_layers": 2, "num_decoder_layers": 1,
                "relative_attention_num_buckets": 16, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
                "decoder_start_token_id": 3,
            }),
            1.0,
        ),
        // The token table is the head, and the hidden states before it are scaled, which files do not say.
        (
            "t5-relu",
            json!({
                "architectures": ["T5ForConditionalGeneration"], "d_kv": 16, "num_layers": 3, "num_decoder_layers": 2,
                "decoder_start_token_id": 0,
            }),
            0.125,
        ),
        // With what its configuration may leave out.
        (
            "t5",
            json!({
                "architectures": ["MT5ForConditionalGeneration"], "model_type": "mt5", "d_kv": 8, "num_layers": 2,
                "num_decoder_layers": 1, "relative_attention_num_buckets": 16, "decoder_start_token_id": 3,
            }),
            1.0,
        ),
        (
            "t5encoder",
            json!({
                "architectures": ["T5EncoderModel"], "d_kv": 12, "num_layers": 2, "relative_attention_num_buckets": 16,
                "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
            }),
            1.0,
        ),
    ];
    let (scratch, with) = (scratch(), definitions());
    for (name, own, scale) in cases {
        let golden = golden(name);
        let weights = &golden.weights;
        let has_gate = weights
            .tensors()
            .iter()
            .any(|tensor| tensor.name.contains("ffn_gate"));
        let stored: Vec<(String, [usize; 2], Vec<f32>)> = weights
            .tensors()
            .iter()
            .map(|tensor| {
                let data = weights.data(tensor).expect("its data");
                let values = data
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                let shape = match tensor.shape[..] {
                    [n] => [n as usize, 0],
                    [width, rows] => [rows as usize, width as usize],
                    ref other => panic!("{}: {other:?}", tensor.name),
                };
                (
                    published_name(&tensor.name, has_gate),
                    shape,
                    values.collect(),
                )
            })
            .collect();
        let all: Vec<(&str, [usize; 2], &[f32])> = stored
            .iter()
            .map(|(name, shape, values)| (name.as_str(), *shape, &values[..]))
            .collect();
        let folder = scratch.path().join(format!("folder-{name}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("model.safetensors"), tensor_file(&all)).expect("written");
        let mut config = common.as_object().expect("an object").clone();
        config.extend(own.as_object().expect("an object").clone());
        let text = serde_json::to_vec(&config).expect("JSON");
        std::fs::write(folder.join("config.json"), text).expect("written");
        let opened = models::open(&ModelSource::File(folder), &with)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let expected: Vec<f64> = golden.expected.iter().map(|v| v * scale).collect();
        for path in &PATHS[..6] {
            let Some(found) = logits(&opened.def, &opened.weights, golden.text(), path) else {
                continue;
            };
            let error = nmse(&found.expect("it runs"), &expected);
            assert!(error <= EXACT, "{name} along {}: {error:.1e}", path.name);
        }
    }
}
