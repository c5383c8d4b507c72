//! Quantised folders: what each method's formula gives, in its ggml type and as f32.
//!
//! The folders of `tests/quant` were packed by the packages of the methods
//! (`scripts/make_quant_goldens.py`); their logits are of matrices dequantised there.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use lab_base::ggml;
use lab_base::weights::{TensorInfo, TensorType};
use lab_core::models;
use lab_core::models::{Definitions, ModelSource, OpenedModel};
use serde_json::{Value, json};

use crate::bad_folders::Folder;
use crate::goldens::{EXACT, HALF, Q8};
use crate::support::command::{bench, definitions, scratch, text};
use crate::support::{PATHS, logits, nmse, parse_npy};

use TensorType::{BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

static DEFINITIONS: LazyLock<Definitions> = LazyLock::new(definitions);
const TOKENS: [u32; 7] = [3, 17, 5, 40, 2, 31, 9];
const FILE: &str = "model.safetensors";

/// Every folder with the types that its matrices get, and whether these hold all numbers.
const CASES: [(&str, &[TensorType], bool); 23] = [
    ("awq", &[Q5_0], true),
    ("awq-experts", &[Q5_0], true),
    ("awq-gemv", &[Q5_0], true),
    ("bnb-fp4", &[Q8_0], false),
    ("bnb-int8", &[Q8_0], false),
    ("bnb-nf4", &[Q8_0], false),
    ("ct-fp8", &[BF16], false),
    ("ct-int4", &[Q4_0], true),
    ("ct-int4-zeros", &[Q5_0], true),
    ("ct-int8", &[Q8_0], true),
    ("ct-nvfp4", &[Q8_0], false),
    ("ct-w8a8", &[Q8_0], true),
    ("gptq", &[Q5_0], true),
    ("gptq-2bit", &[Q4_0], true),
    ("gptq-3bit", &[Q4_0], true),
    ("gptq-8bit", &[Q8_0], true),
    ("gptq-act-order", &[Q8_0], false),
    ("gptq-fused", &[Q4_0], true),
    ("gptq-v2", &[Q5_0], true),
    ("mlx-4bit", &[Q4_1], true),
    ("mlx-8bit", &[Q8_0], false),
    ("mlx-mixed", &[Q4_1, Q5_1, Q8_0], false),
    ("modelopt-nvfp4", &[Q8_0], false),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quant")
}

fn open(path: &Path, with: &Definitions) -> Result<OpenedModel, String> {
    models::open(&ModelSource::File(path.to_owned()), with).map_err(|error| error.to_string())
}

fn error_of(model: &OpenedModel, name: &str) -> f64 {
    let found = logits(&model.def, &model.weights, &TOKENS, &PATHS[0]);
    let found = found.expect("an exact path").expect("the model runs");
    let golden = std::fs::read(root().join(name).join("logits.npy")).expect("a golden");
    nmse(&found, &parse_npy(&golden).values)
}

/// The matrices that are made of codes.
fn packed(model: &OpenedModel) -> Vec<(&TensorInfo, Vec<f32>)> {
    let weights = &model.weights;
    let values = |tensor| {
        let mut values = vec![0.0; TensorInfo::elements(tensor) as usize];
        let is_packed = weights.values(tensor, 0, &mut values).expect("numbers");
        is_packed.then_some((tensor, values))
    };
    weights.tensors().iter().filter_map(values).collect()
}

/// What the type of a tensor costs of its numbers.
fn rounding(model: &OpenedModel, tensor: &TensorInfo, values: &[f32]) -> f64 {
    let data = model.weights.data(tensor).expect("data");
    let mut found = vec![0.0; values.len()];
    ggml::dequantize(&data, tensor.ty, &mut found).expect("a type with values");
    let values: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
    nmse(&found, &values)
}

#[test]
fn quantised_folders_equal_their_formulas() {
    let with = &DEFINITIONS;
    let mut faults = Vec::new();
    let mut stored: Vec<String> = std::fs::read_dir(root())
        .expect("tests/quant")
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    stored.sort();
    assert_eq!(stored, CASES.map(|(name, ..)| name));
    for (name, types, is_exact) in CASES {
        let model = open(&root().join(name), with).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut found = Vec::new();
        for (tensor, values) in packed(&model) {
            // The largest of 32 numbers is 2.3 standard deviations; four of eight bits for bf16.
            let bound = if is_exact { 1e-15 } else { 4e-5 };
            let error = rounding(&model, tensor, &values);
            if error > bound {
                faults.push(format!(
                    "{name}: `{}` {} {error:.1e}",
                    tensor.name, tensor.ty
                ));
            }
            found.push(tensor.ty);
        }
        found.sort_unstable();
        found.dedup();
        if found != types {
            faults.push(format!("{name}: types {found:?}, expected {types:?}"));
        }
        let error = error_of(&model, name);
        // Columns are rounded to 8 bits with blocks, to bf16 with bf16.
        let bound = if types == [BF16] { HALF } else { Q8 };
        if error > bound {
            faults.push(format!("{name}: NMSE {error:.1e} in its own types"));
        }
        let plain = model
            .quantised(&TensorType::F32.into())
            .expect("any folder becomes f32");
        let exact = error_of(&plain, name);
        if exact > EXACT {
            faults.push(format!("{name}: NMSE {exact:.1e} as f32"));
        }
        println!("{name:16} {types:?} NMSE {error:.1e}, as f32 {exact:.1e}");
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn exponents_next_to_small_floats_are_found_by_their_name() {
    let golden = crate::support::hf::open("deepseek4-packed");
    let folder = Folder(scratch());
    golden.write(folder.0.path());
    let model = open(folder.0.path(), &DEFINITIONS).expect("a stored folder");
    let mut found: Vec<_> = packed(&model)
        .iter()
        .map(|(tensor, values)| {
            assert!(rounding(&model, tensor, values) <= 1e-15, "{}", tensor.name);
            (tensor.name.contains("_exps"), tensor.ty)
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, [(false, BF16), (true, TensorType::MXFP4)]);
    // As many numbers in another shape.
    let changes = [
        (
            "layers.1.ffn.experts.2.w1.scale",
            [2, 32],
            "w1.scale` in model.safetensors",
        ),
        (
            "layers.0.attn.wq_b.scale",
            [2, 4],
            "wq_b.scale has the shape",
        ),
    ];
    for (name, shape, said) in changes {
        let folder = Folder(scratch());
        golden.write(folder.0.path());
        folder.edit(FILE, |header| {
            header[name]["shape"] = json!(shape);
        });
        let message = refused(&folder);
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn codes_that_change_places_within_rows_become_numbers() {
    // Hidden units in another order: rows on the way in, columns on the way out.
    let map = include_str!("../../stmaps/llama.arch.stmap.toml");
    let sizes = "sizes = { two = 2 }";
    let mut turned = map.to_owned();
    for (ours, stored, pattern) in [
        ("ffn_gate    =", "mlp.gate_proj", "(two i) k -> (i two) k"),
        ("ffn_up      =", "mlp.up_proj", "(two i) k -> (i two) k"),
        ("ffn_down    =", "mlp.down_proj", "k (two i) -> k (i two)"),
    ] {
        let line = format!("{ours} \"{stored}\"");
        assert!(turned.contains(&line), "{line}");
        let with = format!("{ours} {{ from = \"{stored}\", rearrange = \"{pattern}\", {sizes} }}");
        turned = turned.replace(&line, &with);
    }
    let scratch = scratch();
    std::fs::write(scratch.path().join("llama.arch.stmap.toml"), turned).expect("a folder");
    let with = Definitions::open(&[scratch.path().to_owned()]).expect("a map");
    let model = open(&root().join("awq"), &with).expect("the map fits");
    let ty = |name: &str| model.weights.tensor(name).expect("a tensor").ty;
    assert_eq!(
        ["gate", "up", "down"].map(|name| ty(&format!("blk.0.ffn_{name}.weight"))),
        [Q5_0, Q5_0, Q8_0]
    );
    for (tensor, values) in packed(&model) {
        assert!(rounding(&model, tensor, &values) <= 4e-5, "{}", tensor.name);
    }
    assert!(error_of(&model, "awq") <= Q8);
    let plain = model.quantised(&TensorType::F32.into()).expect("f32");
    assert!(error_of(&plain, "awq") <= EXACT);
}

/// A folder of `tests/quant` that can be changed.
fn copy(name: &str) -> Folder {
    let folder = Folder(scratch());
    for file in ["config.json", FILE] {
        let bytes = std::fs::read(root().join(name).join(file)).expect("a stored folder");
        folder.write(file, bytes);
    }
    folder
}

fn set(folder: &Folder, change: impl FnOnce(&mut Value)) {
    let mut config = serde_json::from_slice(&folder.read("config.json")).expect("JSON");
    change(&mut config);
    folder.write("config.json", config.to_string());
}

/// The message with which a folder is refused.
#[track_caller]
fn refused(folder: &Folder) -> String {
    let message = open(folder.0.path(), &DEFINITIONS).expect_err("no sound folder");
    assert!(message.len() < 1500, "{message}");
    message
}

#[test]
fn damaged_packings_name_tensor_and_file() {
    const Q: &str = "model.layers.0.self_attn.q_proj";
    // Folder, tensor, its new type and shape (none: it is gone), parts of the message.
    type Change = (
        &'static str,
        &'static str,
        Option<(&'static str, &'static [u64])>,
        &'static [&'static str],
    );
    let changes: [Change; 14] = [
        ("awq", "qzeros", None, &["q_proj.qzeros` is missing"]),
        ("awq", "scales", None, &["q_proj.scales` is missing"]),
        (
            "awq",
            "qzeros",
            Some(("I32", &[8, 2])),
            &["q_proj.qzeros` in model.safetensors", "[8, 2]", "[2, 8]"],
        ),
        (
            "awq",
            "scales",
            Some(("F16", &[64, 2])),
            &["q_proj.scales` in model.safetensors", "[64, 2]"],
        ),
        (
            "awq",
            "qweight",
            Some(("F32", &[64, 8])),
            &["q_proj.qweight` in model.safetensors", "F32"],
        ),
        (
            "awq-gemv",
            "scales",
            Some(("F16", &[32, 16])),
            &["q_proj.scales` in model.safetensors"],
        ),
        (
            "gptq",
            "qweight",
            Some(("I32", &[4, 128])),
            &["q_proj.scales` in model.safetensors", "[.., 128]"],
        ),
        (
            "gptq",
            "g_idx",
            Some(("I32", &[8, 8])),
            &["q_proj.qweight` in model.safetensors", "8 columns"],
        ),
        (
            "ct-int4",
            "weight_scale",
            None,
            &["q_proj.weight_scale` is missing"],
        ),
        (
            "ct-int4",
            "weight_packed",
            Some(("I32", &[128, 4])),
            &["q_proj.weight_packed` in model.safetensors", "[128, 4]"],
        ),
        (
            "ct-int4-zeros",
            "weight_zero_point",
            Some(("I32", &[16])),
            &["q_proj.weight_zero_point` in model.safetensors"],
        ),
        (
            "bnb-nf4",
            "weight.absmax",
            None,
            &["q_proj.weight.absmax` is missing"],
        ),
        (
            "bnb-nf4",
            "weight",
            Some(("U8", &[64, 31])),
            &["q_proj.weight` in model.safetensors", "[64, 64]"],
        ),
        ("mlx-4bit", "biases", None, &["q_proj.biases` is missing"]),
    ];
    for (name, part, change, parts) in changes {
        let folder = copy(name);
        let tensor = format!("{Q}.{part}");
        folder.edit(FILE, |header| match change {
            Some((dtype, shape)) => {
                let line = header.get_mut(&tensor).expect("the tensor is there");
                line["dtype"] = json!(dtype);
                line["shape"] = json!(shape);
                let begin = line["data_offsets"][0].as_u64().expect("an offset");
                let bits = if dtype.ends_with("32") {
                    32
                } else if dtype == "F16" {
                    16
                } else {
                    8
                };
                let bytes = shape.iter().product::<u64>() * bits / 8;
                if line["data_offsets"][1] != begin + bytes {
                    line["data_offsets"] = json!([begin, begin + bytes]);
                }
            }
            None => {
                header.remove(&tensor).expect("the tensor is there");
            }
        });
        let message = refused(&folder);
        // What the data does not cover is refused sooner, which is as well.
        if message.contains("no sound safetensors file") {
            continue;
        }
        for part in parts {
            assert!(
                message.contains(part),
                "{name} {tensor}: `{part}` is not in: {message}"
            );
        }
    }
}

#[test]
fn numbers_that_mean_nothing_are_refused() {
    let put = |folder: &Folder, name: &str, bytes: &[u8]| {
        let mut file = folder.read(FILE);
        let length = u64::from_le_bytes(file[..8].try_into().expect("a length")) as usize;
        let header: Value = serde_json::from_slice(&file[8..8 + length]).expect("JSON");
        let begin = header[name]["data_offsets"][0].as_u64().expect("an offset") as usize;
        file[8 + length + begin..][..bytes.len()].copy_from_slice(bytes);
        folder.write(FILE, file);
    };
    for bad in [2i32, -1, i32::MAX] {
        let folder = copy("gptq-act-order");
        let name = "model.layers.0.self_attn.q_proj.g_idx";
        put(&folder, name, &bad.to_le_bytes());
        let message = refused(&folder);
        for part in [name, FILE, "column 0", "below 2"] {
            assert!(message.contains(part), "`{part}` is not in: {message}");
        }
    }
    let folder = copy("bnb-nf4");
    let name = "model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4";
    put(&folder, name, b"[");
    let message = refused(&folder);
    assert!(
        message.contains(name) && message.contains(FILE),
        "{message}"
    );
    // Bits that are not number of bits, for all matrices: one message, not one for each.
    for bits in [
        json!(0),
        json!(9),
        json!(7),
        json!(u64::MAX),
        json!("four"),
        json!(-4),
    ] {
        let folder = copy("mlx-4bit");
        set(&folder, |config| {
            config["quantization"]["bits"] = bits.clone()
        });
        let message = refused(&folder);
        assert!(
            message.contains("MLX") && message.contains("none of"),
            "{bits}: {message}"
        );
        assert_eq!(
            message.matches("bits of").count() + message.matches("how many bits").count(),
            1,
            "{message}"
        );
    }
    // The words hold 8 codes each. A number of bits that does not fit them is not replaced by one that does.
    for bits in [2, 3, 7, 8] {
        let folder = copy("ct-int4");
        set(&folder, |config| {
            for group in config["quantization_config"]["config_groups"]
                .as_object_mut()
                .expect("groups")
                .values_mut()
            {
                group["weights"]["num_bits"] = json!(bits);
            }
        });
        let message = refused(&folder);
        assert!(
            message.contains("codes of 2 to 8 bits of "),
            "{bits}: {message}"
        );
    }
    for group in [json!(0), json!(u64::MAX), json!(48)] {
        let folder = copy("mlx-4bit");
        set(&folder, |config| {
            config["quantization"]["group_size"] = group.clone()
        });
        refused(&folder);
    }
}

#[test]
fn methods_are_named_in_one_line() {
    // Unknown, with codes that nothing reads: refused by name, with those that open.
    let folder = copy("gptq");
    folder.edit(FILE, |header| {
        for (name, line) in std::mem::take(header) {
            header.insert(name.replace(".qweight", ".W_q"), line);
        }
    });
    set(&folder, |config| {
        config["quantization_config"]["quant_method"] = json!("hqq")
    });
    let message = refused(&folder);
    for part in ["`hqq`", "W_q", "AWQ, GPTQ", "bitsandbytes", "MLX", "GGUF"] {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    // A form of a known method that lies otherwise.
    let folder = copy("awq");
    set(&folder, |config| {
        config["quantization_config"]["version"] = json!("gemv_fast")
    });
    assert!(refused(&folder).contains("AWQ in the form `gemv_fast`"));
    // The quantisation config may be in a file of its own, or name an unknown method: the tensors decide.
    let folder = copy("gptq");
    let mut record = json!(null);
    set(&folder, |config| {
        record = config
            .as_object_mut()
            .and_then(|c| c.remove("quantization_config"))
            .expect("a record");
    });
    record
        .as_object_mut()
        .expect("an object")
        .remove("quant_method");
    folder.write("quantize_config.json", record.to_string());
    let model = open(folder.0.path(), &DEFINITIONS).expect("a config in a file of its own");
    assert!(error_of(&model, "gptq") <= Q8);

    // One line about what is rounded, however many matrices there are; none where nothing is.
    let line = |name: &str| {
        let ran = bench(&["plan", "-m", text(&root().join(name))]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.err
    };
    let found = line("bnb-nf4");
    assert_eq!(found.lines().count(), 1, "{found}");
    for part in ["bitsandbytes", "7 become q8_0 (rounded)", "--type f32"] {
        assert!(found.contains(part), "`{part}` is not in: {found}");
    }
    assert_eq!(line("gptq"), "");
}
