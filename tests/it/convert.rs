//! Models converted between files, folders and types: what they hold, what they compute, and what is
//! left when it goes wrong.

use std::path::{Path, PathBuf};
use std::process::Command;

use lab_base::ggml;
use lab_base::weights::{Metadata, TensorType, Value, Weights};
use lab_core::models;
use lab_core::models::convert::{to_folder, to_gguf};
use lab_core::models::quantise::Mix;
use lab_core::models::synth::{SynthRequest, synth};
use lab_core::models::{ModelSource, OpenedModel};

use crate::support::command::{bench_in, definitions, ended, scratch};
use crate::support::{PATHS, logits, middle_nmse, nmse};

/// Dense with a head of its own and with the token table as head, experts, states of two kinds.
const MODELS: [(&str, &[&str]); 5] = [
    ("llama", &["output", "rope_freqs"]),
    ("qwen3", &[]),
    ("qwen3moe", &["output"]),
    ("mamba2", &[]),
    ("qwen35", &[]),
];
const TOKENS: [u32; 7] = [3, 17, 5, 99, 64, 2, 41];
/// Of several tensors in a file.
const SHARD_BYTES: u64 = 5 << 30;

/// A model whose rows are whole blocks of most types.
fn synthesised(folder: &Path, arch: &str, with: &[&str], ty: TensorType) -> PathBuf {
    let definitions = definitions();
    let def = definitions.archs.get(arch).expect("it is built in");
    let request = SynthRequest {
        seed: 11,
        set: vec![("n_embd".into(), "256".into())],
        meta: vec![],
        with: with.iter().map(|name| (*name).to_owned()).collect(),
        ty,
        vocabulary: None,
        drafter: None,
    };
    let path = folder.join(format!("{arch}-{ty}.gguf"));
    synth(&def, &request, &path).expect("the model can be made");
    path
}

fn open(path: &Path) -> OpenedModel {
    let source = ModelSource::File(path.to_owned());
    models::open(&source, &definitions()).unwrap_or_else(|error| panic!("{error}"))
}

fn compute(model: &OpenedModel) -> Vec<f32> {
    let found = logits(&model.def, &model.weights, &TOKENS, &PATHS[0]);
    found.expect("an exact path").expect("the model runs")
}

/// The metadata without what a conversion adds.
fn lasting(metadata: &Metadata) -> Vec<(String, Value)> {
    let mut all: Vec<_> = metadata
        .iter()
        .filter(|(key, _)| *key != "general.file_type")
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn assert_same(found: &Weights, expected: &Weights, what: &str) {
    assert_eq!(
        lasting(found.metadata()),
        lasting(expected.metadata()),
        "{what}"
    );
    assert_eq!(found.tensors().len(), expected.tensors().len(), "{what}");
    for tensor in expected.tensors() {
        let name = &tensor.name;
        let other = found
            .tensor(name)
            .unwrap_or_else(|| panic!("{what}: {name}"));
        assert_eq!(
            (other.ty, &other.shape),
            (tensor.ty, &tensor.shape),
            "{what}: {name}"
        );
        let (a, b) = (found.data(other), expected.data(tensor));
        assert!(
            a.expect("data") == b.expect("data"),
            "{what}: {name} differs"
        );
    }
}

#[test]
fn a_file_comes_back_from_a_folder_bit_for_bit() {
    let scratch = scratch();
    for (arch, with) in MODELS {
        for (ty, shard_bytes) in [(TensorType::F32, SHARD_BYTES), (TensorType::BF16, 100_000)] {
            let what = format!("{arch} {ty}");
            let path = synthesised(scratch.path(), arch, with, ty);
            let model = open(&path);
            let folder = scratch.path().join(format!("{arch}-{ty}"));
            let (mut done, mut total) = (0, 0);
            to_folder(&model, None, &folder, shard_bytes, false, &mut |d, t| {
                assert!(d >= done, "{what}");
                (done, total) = (d, t);
            })
            .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(done == total && total > 0, "{what}: {done} of {total}");
            let n_files = std::fs::read_dir(&folder).expect("a folder").count();
            assert_eq!(n_files > 2, shard_bytes < SHARD_BYTES, "{what}: {n_files}");

            let edited = open(&folder);
            assert_same(&edited.weights, &model.weights, &what);
            assert!(compute(&edited) == compute(&model), "{what}: other logits");

            let again = scratch.path().join(format!("{arch}-{ty}-again.gguf"));
            to_gguf(&edited, None, &again, false, &mut |_, _| {}).expect("a sound folder");
            assert_same(&open(&again).weights, &model.weights, &what);
        }
    }
}

#[test]
fn quantising_at_load_equals_the_converted_file_and_is_near_f32() {
    // Bounds of the NMSE of a matrix: with a largest value of 2.3 standard deviations in 32, steps of
    // s are an error of s^2 / 12; floats of m significant bits one of
    // at most 4^-m / 3.
    let bounds = [
        (TensorType::F32, 0.0),
        (TensorType::F16, 8e-8),
        (TensorType::BF16, 5.2e-6),
        (TensorType::Q8_0, 4e-5),
        (TensorType::Q6_K, 4e-4),
        (TensorType::Q5_K, 2e-3),
        (TensorType::Q5_1, 2.5e-3),
        (TensorType::Q5_0, 2.5e-3),
        (TensorType::Q4_K, 8e-3),
        (TensorType::Q4_1, 9e-3),
        (TensorType::Q4_0, 9e-3),
    ];
    let scratch = scratch();
    let mut faults = Vec::new();
    for (arch, with) in MODELS {
        let path = synthesised(scratch.path(), arch, with, TensorType::F32);
        let original = open(&path);
        let plain: Vec<f64> = compute(&original).into_iter().map(f64::from).collect();
        for (ty, bound) in bounds {
            let what = format!("{arch} {ty}");
            let model = open(&path)
                .quantised(&ty.into())
                .expect("a type that can be made");
            let found = compute(&model);
            let file = scratch.path().join("converted.gguf");
            to_gguf(&original, Some(&ty.into()), &file, true, &mut |_, _| {}).expect("it fits");
            let converted = open(&file);
            assert_same(&converted.weights, &model.weights, &what);
            assert!(found == compute(&converted), "{what}: other logits");

            let worst = worst_matrix(&model.weights, &original.weights, ty);
            let width = original.plan.n_vocab as usize;
            let error = middle_nmse(&found, &plain, width);
            println!("{what:14} NMSE of matrices {worst:.1e}, of logits {error:.1e}");
            if worst > bound || error > AMPLIFICATION * bound {
                faults.push(format!("{what}: matrices {worst:.1e}, logits {error:.1e}"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// How much larger the error of logits may be than that of matrices: some twenty of them follow each
/// other in these models.
const AMPLIFICATION: f64 = 80.0;

/// The largest NMSE of the tensors of a type.
fn worst_matrix(found: &Weights, original: &Weights, ty: TensorType) -> f64 {
    let values = |weights: &Weights, name: &str| {
        let tensor = weights.tensor(name).expect("the same names");
        let bytes = weights.data(tensor).expect("data");
        let mut values = vec![0.0; tensor.elements() as usize];
        ggml::dequantize(&bytes, tensor.ty, &mut values).expect("a type with values");
        values
    };
    let of_type = found.tensors().iter().filter(|t| t.ty == ty);
    let errors = of_type.map(|tensor| {
        let expected = values(original, &tensor.name).into_iter().map(f64::from);
        let expected: Vec<f64> = expected.collect();
        nmse(&values(found, &tensor.name), &expected)
    });
    errors.fold(0.0, f64::max)
}

#[test]
fn what_weighs_most_gets_more_bits_and_small_things_stay() {
    let scratch = scratch();
    let types = |arch: &str, with: &[&str], ty: TensorType| {
        let path = synthesised(scratch.path(), arch, with, TensorType::F32);
        open(&path)
            .quantised(&ty.into())
            .expect("a type that can be made")
    };
    let check = |model: &OpenedModel, expected: &[(&str, TensorType)]| {
        for (name, ty) in expected {
            let tensor = model
                .weights
                .tensor(name)
                .unwrap_or_else(|| panic!("{name}"));
            assert_eq!(tensor.ty, *ty, "{name}");
        }
        let metadata = model.weights.metadata();
        assert_eq!(metadata.i64("general.quantization_version"), Some(2));
    };
    use TensorType as T;
    let dense = types("llama", &["output"], T::Q4_K);
    check(
        &dense,
        &[
            ("output.weight", T::Q6_K),
            ("token_embd.weight", T::Q4_K),
            ("blk.0.attn_q.weight", T::Q4_K),
            ("blk.0.attn_v.weight", T::Q4_K),
            ("blk.1.attn_v.weight", T::Q6_K),
            ("blk.0.attn_norm.weight", T::F32),
            // Rows of 96: no k-quants.
            ("blk.0.ffn_down.weight", T::Q5_0),
            ("blk.1.ffn_down.weight", T::Q8_0),
        ],
    );
    assert_eq!(dense.weights.metadata().i64("general.file_type"), Some(15));
    check(
        &types("qwen3", &[], T::Q4_0),
        &[
            ("token_embd.weight", T::Q6_K),
            ("blk.0.attn_q.weight", T::Q4_0),
        ],
    );
    check(
        &types("qwen3moe", &["output"], T::Q5_K),
        &[
            ("blk.0.ffn_gate_inp.weight", T::F32),
            ("blk.0.ffn_gate_exps.weight", T::Q5_K),
        ],
    );
    check(
        &types("mamba2", &[], T::Q8_0),
        &[
            ("blk.0.ssm_in.weight", T::Q8_0),
            ("blk.0.ssm_conv1d.weight", T::F32),
        ],
    );
}

#[test]
fn quantised_models_become_floats_in_a_folder() {
    let scratch = scratch();
    let model = open(&synthesised(scratch.path(), "qwen3", &[], TensorType::F32));
    let model = model
        .quantised(&TensorType::Q8_0.into())
        .expect("whole blocks");
    let folder = scratch.path().join("folder");
    to_folder(&model, None, &folder, SHARD_BYTES, false, &mut |_, _| {}).expect("it fits");
    let plain = open(&folder);
    let tensor = model
        .weights
        .tensor("blk.0.attn_q.weight")
        .expect("a tensor");
    assert_eq!(tensor.ty, TensorType::Q8_0);
    let blocks = model.weights.data(tensor).expect("whole blocks");
    let decoded = plain.weights.tensor(&tensor.name).expect("the same names");
    let values = plain.weights.data(decoded).expect("in place");
    // A block is a half float and 32 bytes of whole numbers.
    for (block, values) in blocks.chunks_exact(34).zip(values.chunks_exact(32 * 4)) {
        let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
        for (number, value) in block[2..].iter().zip(values.chunks_exact(4)) {
            let expected = scale * f32::from(number.cast_signed());
            assert_eq!(value, expected.to_le_bytes());
        }
    }
    let halves = scratch.path().join("halves");
    let ty = Mix::from(TensorType::BF16);
    to_folder(
        &model,
        Some(&ty),
        &halves,
        SHARD_BYTES,
        false,
        &mut |_, _| {},
    )
    .expect("it fits");
    let ty_of = |name: &str| open(&halves).weights.tensor(name).map(|t| t.ty);
    assert_eq!(ty_of("blk.0.attn_q.weight"), Some(TensorType::BF16));
    assert_eq!(ty_of("blk.0.attn_norm.weight"), Some(TensorType::F32));
    let ty = Mix::from(TensorType::Q4_0);
    let error = to_folder(
        &model,
        Some(&ty),
        &halves,
        SHARD_BYTES,
        true,
        &mut |_, _| {},
    );
    let message = error.expect_err("no such folder").to_string();
    assert!(
        message.ends_with("a folder holds f32, f16 or bf16, not Q4_0"),
        "{message}"
    );
}

#[test]
fn values_that_a_type_cannot_hold_are_named() {
    let scratch = scratch();
    let path = synthesised(scratch.path(), "qwen3", &[], TensorType::F32);
    let mut bytes = std::fs::read(&path).expect("a file");
    let model = open(&path);
    let tensor = model
        .weights
        .tensor("blk.0.attn_q.weight")
        .expect("a tensor");
    let (_, offset) = model.weights.place(tensor).expect("in place");
    let at = offset + (3 * 256 + 5) * 4;
    let damaged = scratch.path().join("damaged.gguf");
    let target = scratch.path().join("target.gguf");
    for (value, ty) in [
        (f32::NAN, TensorType::Q4_K),
        (f32::INFINITY, TensorType::Q8_0),
        (1e6, TensorType::F16),
    ] {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        std::fs::write(&damaged, &bytes).expect("a writable folder");
        let message = to_gguf(
            &open(&damaged),
            Some(&ty.into()),
            &target,
            false,
            &mut |_, _| {},
        )
        .expect_err("a value that does not fit")
        .to_string();
        assert_eq!(
            message,
            format!("tensor `blk.0.attn_q.weight`: {value} at row 3, column 5 does not fit {ty}")
        );
        assert!(!target.exists());
    }
    for (value, ty, expected) in [
        (
            f32::MAX,
            TensorType::BF16,
            "at row 3, column 5 does not fit bf16",
        ),
        (
            1e9,
            TensorType::Q8_0,
            "values at row 3 from column 0 on do not fit q8_0",
        ),
    ] {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        std::fs::write(&damaged, &bytes).expect("a writable folder");
        let error = to_gguf(
            &open(&damaged),
            Some(&ty.into()),
            &target,
            false,
            &mut |_, _| {},
        );
        let message = error.expect_err("a scale that does not fit").to_string();
        assert!(message.ends_with(expected), "{message}");
        assert!(!target.exists());
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let names = entries.map(|e| {
        e.expect("an entry")
            .file_name()
            .to_string_lossy()
            .into_owned()
    });
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_broken_run_leaves_nothing_behind() {
    let scratch = scratch();
    let source = synthesised(scratch.path(), "qwen3", &[], TensorType::F32);
    let before = names(scratch.path());
    // A disk that is full after some bytes: the largest file a shell allows, in blocks of 512 or
    // 1024 bytes.
    for target in ["full.gguf", "full"] {
        let command = "trap '' XFSZ; ulimit -f 200; exec \"$0\" \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", command, env!("CARGO_BIN_EXE_bench"), "convert"]);
        let ran = ended(shell.args([&source, &scratch.path().join(target)]));
        assert_eq!(ran.code, 1);
        assert!(ran.err.contains("File too large"), "{}", ran.err);
        assert_eq!(names(scratch.path()), before, "{target}");
    }
    let model = open(&source);
    for target in ["missing/m.gguf", "missing/m"] {
        let path = scratch.path().join(target);
        let error = match target.ends_with("gguf") {
            true => to_gguf(&model, None, &path, false, &mut |_, _| {}),
            false => to_folder(&model, None, &path, SHARD_BYTES, false, &mut |_, _| {}),
        };
        let message = error.expect_err("no such folder").to_string();
        assert!(message.contains("there is no folder"), "{message}");
        assert_eq!(names(scratch.path()), before, "{target}");
    }
}

#[test]
fn existing_files_are_replaced_only_on_request() {
    let scratch = scratch();
    let model = open(&synthesised(scratch.path(), "qwen3", &[], TensorType::F32));
    let write = |path: &Path, shard_bytes: u64, replaces: bool| {
        let mix = path.extension().map(|_| Mix::from(TensorType::Q8_0));
        match &mix {
            Some(_) => to_gguf(&model, mix.as_ref(), path, replaces, &mut |_, _| {}),
            None => to_folder(&model, None, path, shard_bytes, replaces, &mut |_, _| {}),
        }
    };
    let file = scratch.path().join("m.gguf");
    std::fs::write(&file, "before").expect("a writable folder");
    let message = write(&file, 0, false).expect_err("it is there").to_string();
    assert!(
        message.ends_with("is there already; --force replaces it"),
        "{message}"
    );
    assert_eq!(std::fs::read(&file).expect("still there"), b"before");
    write(&file, 0, true).expect("it may be replaced");
    open(&file);

    let folder = scratch.path().join("folder");
    std::fs::create_dir(&folder).expect("a writable folder");
    write(&folder, 100_000, false).expect("an empty folder is none");
    std::fs::write(folder.join("notes.txt"), "mine").expect("a writable folder");
    let sharded = names(&folder);
    assert!(sharded.len() > 4, "{sharded:?}");
    let message = write(&folder, SHARD_BYTES, false)
        .expect_err("it is there")
        .to_string();
    assert!(
        message.contains("--force replaces the model in it"),
        "{message}"
    );
    assert_eq!(names(&folder), sharded);
    write(&folder, SHARD_BYTES, true).expect("it may be replaced");
    assert_eq!(
        names(&folder),
        ["config.json", "model.safetensors", "notes.txt"]
    );
    assert_same(&open(&folder).weights, &model.weights, "replaced");
}

#[test]
fn hostile_folders_are_refused_with_their_place() {
    let scratch = scratch();
    let model = open(&synthesised(scratch.path(), "qwen3", &[], TensorType::F32));
    let folder = scratch.path().join("folder");
    to_folder(&model, None, &folder, SHARD_BYTES, false, &mut |_, _| {}).expect("it fits");
    let config = folder.join("config.json");
    let sound = std::fs::read_to_string(&config).expect("a configuration");
    let refused = |text: &str, parts: &[&str]| {
        std::fs::write(&config, text).expect("a writable folder");
        let source = ModelSource::File(folder.clone());
        let message = models::open(&source, &definitions())
            .expect_err("no sound folder")
            .to_string();
        for part in parts {
            assert!(message.contains(part), "`{part}` is not in: {message}");
        }
    };
    let key = "gguf_metadata";
    refused(
        &format!("{{\"{key}\": 7}}"),
        &["folder", "an object of metadata keys"],
    );
    refused(&format!("{{\"{key}\": {{}}}}"), &["general.architecture"]);
    let nested = "[".repeat(100_000);
    refused(
        &format!("{{\"{key}\": {nested}"),
        &["config.json", "recursion limit"],
    );
    let another = |from: &str, to: &str| {
        assert!(sound.contains(from), "{from}");
        sound.replacen(from, to, 1)
    };
    refused(
        &another("\"u32\": 256", "\"u32\": -256"),
        &["config.json", "expected a u32, found -256"],
    );
    refused(
        &another("\"u32\": 256", "\"u33\": 256"),
        &["`u33` is not a metadata type"],
    );
    refused(&another("\"u32\": 256", "\"string\": \"256\""), &["qwen3"]);
    std::fs::write(&config, &sound).expect("a writable folder");
    open(&folder);
    let file = folder.join("model.safetensors");
    let bytes = std::fs::read(&file).expect("tensors");
    std::fs::write(&file, &bytes[..bytes.len() - 1]).expect("a writable folder");
    refused(&sound, &["model.safetensors", "no sound safetensors file"]);
}

#[test]
fn convert_writes_files_that_run() {
    let scratch = scratch();
    let bench = |arguments: &[&str]| {
        let ran = bench_in(scratch.path(), arguments);
        assert!(ran.is_fine(), "{arguments:?}: {}", ran.err);
        ran.out
    };
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-chat.gguf");
    assert!(bench(&["convert", shipped, "folder"]).starts_with("folder: "));
    bench(&["convert", "folder", "again.gguf", "--type", "q8_0"]);
    let sum = |model: &str| bench(&["run", "-m", model, "2+2=?"]);
    assert!(sum("folder").contains('4'));
    assert!(sum("again.gguf").contains('4'));
    let logits = |arguments: &[&str]| {
        let all = [
            "logits", "--tokens", "5,6,7,8", "--force", "-o", "out.npy", "-m",
        ];
        bench(&[&all[..], arguments].concat());
        std::fs::read(scratch.path().join("out.npy")).expect("logits")
    };
    assert_eq!(
        logits(&["again.gguf"]),
        logits(&["folder", "--type", "q8_0"])
    );
    assert_ne!(logits(&["again.gguf"]), logits(&["folder"]));
}
