//! Folders that are damaged, hostile, or not those of their configuration: each is refused with the
//! file and the tensor or key, by the library and by the program.

use std::os::unix::fs::symlink;
use std::path::Path;

use lab_base::tokenizer;
use lab_core::models;
use lab_core::models::{ModelSource, OpenedModel};
use serde_json::{Map, Value, json};

use crate::support::command::{Ran, bench, definitions, scratch, text};
use crate::support::hf;

/// Three layers of width 48 with six heads of 16, nine files with an index.
const SOUND: &str = "llama-llama3";
pub(crate) const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const TOKENIZER: &str = "tokenizer.json";

fn open(folder: &Path) -> Result<OpenedModel, models::Error> {
    models::open(&ModelSource::File(folder.to_owned()), &definitions())
}

/// A folder that opens until something is done to it.
pub(crate) struct Folder(pub(crate) tempfile::TempDir);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = scratch();
        hf::open(name).write(folder.path());
        Self(folder)
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.0.path().join(name), contents).expect("a writable folder");
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.path().join(name)).expect("a readable file")
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.0.path().join(name)).expect("the file is there");
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).expect("JSON")
    }

    /// Sets a key of the configuration.
    fn set(&self, key: &str, value: Value) {
        let mut config = self.json(CONFIG);
        config[key] = value;
        self.write(CONFIG, config.to_string());
    }

    /// Says of a tensor that it is in another file.
    fn point(&self, tensor: &str, file: &str) {
        let mut index = self.json(INDEX);
        index["weight_map"][tensor] = json!(file);
        self.write(INDEX, index.to_string());
    }

    /// The file of a tensor.
    fn file_of(&self, tensor: &str) -> String {
        let index = self.json(INDEX);
        let file = index["weight_map"][tensor].as_str();
        file.expect("the index has it").to_owned()
    }

    /// Changes the header of a file; the data stays.
    pub(crate) fn edit(&self, file: &str, change: impl FnOnce(&mut Map<String, Value>)) {
        let bytes = self.read(file);
        let (length, rest) = bytes.split_first_chunk().expect("a length");
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let mut header = serde_json::from_slice(header).expect("an object");
        change(&mut header);
        let header = serde_json::to_vec(&header).expect("JSON");
        let length = (header.len() as u64).to_le_bytes();
        self.write(file, [&length, &header[..], data].concat());
    }

    /// Changes the line of a tensor in the header of its file, which is returned.
    fn edit_tensor(&self, tensor: &str, dtype: &str, shape: &[u64]) -> String {
        let file = self.file_of(tensor);
        self.edit(&file, |header| {
            header[tensor]["dtype"] = json!(dtype);
            header[tensor]["shape"] = json!(shape);
        });
        file
    }

    fn cut(&self, file: &str, length: impl FnOnce(usize) -> usize) {
        let mut bytes = self.read(file);
        bytes.truncate(length(bytes.len()));
        self.write(file, bytes);
    }

    /// The message with which the library and the program refuse the folder has all these parts.
    #[track_caller]
    fn is_refused(&self, parts: &[&str]) {
        refused(self.0.path(), parts);
    }
}

#[track_caller]
fn refused(path: &Path, parts: &[&str]) {
    let message = open(path).expect_err("no sound folder").to_string();
    let Ran { code, out, err } = bench(&["plan", "-m", text(path)]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    for part in parts.iter().chain([&text(path)]) {
        assert!(message.contains(part), "`{part}` is not in: {message}");
        assert!(err.contains(part), "`{part}` is not in: {err}");
    }
}

/// The message for a sound folder with a change.
#[track_caller]
fn check(change: impl FnOnce(&Folder), parts: &[&str]) {
    let folder = Folder::new(SOUND);
    change(&folder);
    folder.is_refused(parts);
}

const Q: &str = "model.layers.0.self_attn.q_proj.weight";

#[test]
fn the_folder_is_sound_before_it_is_damaged() {
    let folder = Folder::new(SOUND);
    open(folder.0.path()).expect("a sound folder");
}

#[test]
fn files_that_are_missing_or_elsewhere_are_named() {
    let folder = Folder::new(SOUND);
    let file = folder.file_of(Q);
    folder.remove(&file);
    folder.is_refused(&[INDEX, "` is listed in `", &file, "that file is missing"]);

    for outside in [
        "../x.safetensors",
        "/etc/passwd",
        "sub/x.safetensors",
        ".",
        "..",
        "",
    ] {
        check(
            |folder| folder.point(Q, outside),
            &[
                INDEX,
                Q,
                &format!("`{outside}`"),
                "not the name of a file in this folder",
            ],
        );
    }
    check(
        |folder| {
            std::fs::create_dir(folder.0.path().join("sub")).expect("a writable folder");
            folder.point(Q, "sub");
        },
        &[INDEX, Q, "`sub`", "not a regular file"],
    );
    check(
        |folder| folder.point("model.extra.weight", &folder.file_of(Q)),
        &[INDEX, "`model.extra.weight` is not in model-0000"],
    );
    check(
        |folder| folder.point(Q, &folder.file_of("model.norm.weight")),
        &[INDEX, Q, "is listed in", "found in"],
    );
    check(
        |folder| {
            let copy = folder.file_of(Q);
            folder.write("copy.safetensors", folder.read(&copy));
            folder.point("model.copy.weight", "copy.safetensors");
        },
        &["copy.safetensors", "is also in", "model-0000"],
    );
    check(
        |folder| folder.remove(INDEX),
        &["9 files of tensors", INDEX, "expected model.safetensors"],
    );
    check(
        |folder| folder.remove(CONFIG),
        &[CONFIG, "download that as well"],
    );
}

#[test]
fn links_in_a_circle_are_named() {
    for name in [CONFIG, INDEX, TOKENIZER] {
        check(
            |folder| {
                let path = folder.0.path().join(name);
                let _ = std::fs::remove_file(&path);
                symlink(name, &path).expect("a writable folder");
            },
            &[name, "symbolic links"],
        );
    }
    let folder = Folder::new(SOUND);
    let file = folder.file_of(Q);
    folder.remove(&file);
    symlink(&file, folder.0.path().join(&file)).expect("a writable folder");
    folder.is_refused(&[INDEX, &file, "symbolic links"]);

    let around = folder.0.path().join("around");
    symlink("around", &around).expect("a writable folder");
    refused(&around, &["symbolic links"]);
}

#[test]
fn links_to_nothing_are_named() {
    for (name, why) in [(INDEX, "No such file"), (TOKENIZER, "no such file")] {
        check(
            |folder| {
                let path = folder.0.path().join(name);
                let _ = std::fs::remove_file(&path);
                symlink("nothing", &path).expect("a writable folder");
            },
            &[name, why],
        );
    }
}

#[test]
fn files_that_are_cut_off_are_named() {
    for length in [0, 5, 8, 9, 100] {
        let folder = Folder::new(SOUND);
        let file = folder.file_of(Q);
        folder.cut(&file, |_| length);
        let why = match length {
            0 => "the file is empty; download it again",
            _ => "no sound safetensors file: ",
        };
        folder.is_refused(&[&file, why]);
    }
    let folder = Folder::new(SOUND);
    let file = folder.file_of(Q);
    folder.cut(&file, |length| length - 1);
    folder.is_refused(&[&file, "tensor `model.layers.", "cut off"]);

    let folder = Folder::new(SOUND);
    folder.write(&file, [folder.read(&file), vec![0]].concat());
    folder.is_refused(&[&file, "1 bytes after the last tensor"]);
    folder.write(&file, [0xff; 64]);
    folder.is_refused(&[&file, "a header of 18446744073709551615 bytes"]);
}

#[test]
fn tensors_of_another_kind_are_named() {
    // Of one size as bytes.
    for (dtype, shape, why) in [
        ("I32", [96, 48], "is i32, which no weight is"),
        ("I64", [48, 48], "[48, 48], expected [48, 96]"),
        ("U8", [96, 192], "element type U8 is not supported"),
        ("BOOL", [96, 192], "element type BOOL is not supported"),
        ("C64", [96, 24], "element type C64 is not supported"),
        ("F8_E4M3", [96, 192], "8 bits"),
        ("F16", [96, 96], "[96, 96], expected [48, 96]"),
        ("F32", [48, 96], "[96, 48], expected [48, 96]"),
        ("F32", [1, 4608], "an axis of 1 elements is not the product"),
    ] {
        let folder = Folder::new(SOUND);
        let file = folder.edit_tensor(Q, dtype, &shape);
        let is_named = dtype == "F8_E4M3";
        folder.is_refused(&[Q, why, if is_named { Q } else { &file }]);
    }
    check(
        |folder| {
            folder.edit_tensor(Q, "F32", &[96, 49]);
        },
        &[
            "no sound safetensors file",
            Q,
            "F32 of the shape [96, 49] does not take",
        ],
    );
    let folder = Folder::new(SOUND);
    let norm = "model.layers.0.input_layernorm.weight";
    let file = folder.edit_tensor(norm, "F32", &[6, 8]);
    folder.is_refused(&[
        norm,
        &file,
        "blk.0.attn_norm.weight",
        "has the shape [8, 6], expected [48]",
    ]);
    let folder = Folder::new(SOUND);
    let file = folder.edit_tensor(norm, "F32", &[1, 1, 1, 1, 48]);
    folder.is_refused(&[norm, &file, "has 5 axes"]);
    // Dimensions whose product is nothing, whatever the others are.
    let folder = Folder::new(SOUND);
    let empty = |header: &mut Map<String, Value>| {
        let shape = json!([0, 1u64 << 62, 1u64 << 62]);
        let line = json!({ "dtype": "F32", "shape": shape, "data_offsets": [0, 0] });
        header.insert("model.layers.1.self_attn.q_proj.bias".into(), line);
    };
    let file = folder.file_of(Q);
    folder.edit(&file, empty);
    folder.is_refused(&[
        "model.layers.1.self_attn.q_proj.bias",
        "[0, 4611686018427387904,",
    ]);
}

#[test]
fn a_configuration_of_another_size_is_refused_with_the_stored_tensor() {
    let embedding = "model.embed_tokens.weight";
    let cases: [(&str, u64, &[&str]); 9] = [
        (
            "hidden_size",
            128,
            &[embedding, "has the shape [48, 96], expected [128, 96]"],
        ),
        ("vocab_size", 97, &[embedding, "expected [48, 97]"]),
        (
            "num_hidden_layers",
            4,
            &["the folder has no `model.layers.3.input_layernorm.weight`"],
        ),
        (
            "num_hidden_layers",
            2,
            &["does not mention", "model.layers.2.input_layernorm.weight"],
        ),
        (
            "num_hidden_layers",
            1 << 40,
            &["`num_hidden_layers` is 1099511627776", "tensors"],
        ),
        ("num_attention_heads", 8, &[Q, "blk.0.attn_q.weight"]),
        ("num_attention_heads", 0, &["num_attention_heads"]),
        (
            "num_key_value_heads",
            4,
            &[
                "model.layers.0.self_attn.k_proj.weight",
                "blk.0.attn_k.weight",
            ],
        ),
        (
            "intermediate_size",
            73,
            &[
                "model.layers.0.mlp.gate_proj.weight",
                "blk.0.ffn_gate.weight",
            ],
        ),
    ];
    for (key, value, parts) in cases {
        check(|folder| folder.set(key, json!(value)), parts);
    }
}

#[test]
fn experts_that_are_not_there_are_not_looked_for_one_by_one() {
    let folder = Folder::new("mixtral-three");
    folder.set("num_local_experts", json!(1u64 << 40));
    folder.is_refused(&[
        "experts.0.w1.weight` in model-",
        "experts.6.w1.weight` is not",
    ]);
}

#[test]
fn configurations_that_are_none_are_refused() {
    let nested = "[".repeat(200_000);
    let long = format!("{{\"a\": {nested}");
    let cases: [(&[u8], &str); 8] = [
        (b"", "EOF"),
        (b"[]", "expected an object"),
        (b"7", "expected an object"),
        (b"{\"a\": \xff}", "utf-8"),
        (nested.as_bytes(), "recursion limit"),
        (long.as_bytes(), "recursion limit"),
        (b"{}", "`architectures` names no class"),
        (
            b"{\"architectures\": \"LlamaForCausalLM\"}",
            "`architectures` names no class",
        ),
    ];
    for (text, why) in cases {
        check(|folder| folder.write(CONFIG, text), &[CONFIG, why]);
    }
    check(
        |folder| folder.set("architectures", json!(["LlamaForCausalLN"])),
        &["no map is for `LlamaForCausalLN`; the nearest is `LlamaForCausalLM`"],
    );
    check(
        |folder| {
            let file = std::fs::File::create(folder.0.path().join(CONFIG));
            let file = file.expect("a writable folder");
            file.set_len(1 << 33).expect("a file of holes");
        },
        &[CONFIG, "8589934592 bytes, expected at most"],
    );
    check(
        |folder| folder.set("hidden_act", json!("gelu")),
        &[
            "llama.arch.stmap.toml",
            "hidden_act == 'silu'; hidden_act is `gelu`",
        ],
    );
    check(
        |folder| folder.set("new_key", json!(1)),
        &["does not mention", "new_key"],
    );
}

#[test]
fn broken_indices_are_refused() {
    let cases: [(&[u8], &str); 4] = [
        (b"{", "EOF"),
        (b"{}", "missing field `weight_map`"),
        (b"{\"weight_map\": {\"a\": 7}}", "expected a string"),
        (b"[", "EOF"),
    ];
    for (text, why) in cases {
        check(|folder| folder.write(INDEX, text), &[INDEX, why]);
    }
}

#[test]
fn broken_vocabularies_are_refused() {
    for (text, why) in [("{", "EOF"), ("[]", ""), ("{\"model\": 7}", "")] {
        check(|folder| folder.write(TOKENIZER, text), &[TOKENIZER, why]);
    }
    check(
        |folder| {
            std::fs::create_dir(folder.0.path().join(TOKENIZER)).expect("a writable folder");
        },
        &[TOKENIZER, "not a regular file"],
    );
}

#[test]
fn a_kind_of_rope_that_nobody_knows_is_refused_by_its_name() {
    let set = |rope: Value| move |folder: &Folder| folder.set("rope_scaling", rope);
    for key in ["rope_type", "type"] {
        check(
            set(json!({ key: "elastic", "factor": 2.0 })),
            &[
                "rope.norm: scaling: `elastic` is unknown, expected one of none, linear, longrope, yarn",
            ],
        );
    }
    // Its tables are what it is about.
    let rope = json!({ "rope_type": "longrope", "original_max_position_embeddings": 64 });
    check(
        set(rope),
        &["rope.norm: `longrope` has two tables of factors"],
    );
    // A value of a key that nothing asks for may change everything.
    let rope = json!({ "rope_type": "linear", "factor": 2.0, "long_factor": [2.0] });
    check(set(rope), &["does not mention", "rope_scaling.long_factor"]);
    check(set(json!("linear")), &["does not mention", "rope_scaling"]);
}

#[test]
fn keys_of_a_rule_whose_parts_have_their_own_are_refused() {
    let map = include_str!("../../stmaps/llama.arch.stmap.toml");
    let line = "ffn_up      = \"mlp.up_proj\"";
    assert!(map.contains(line), "{line}");
    let rule = "ffn_up = { from = [{ from = \"mlp.up_proj\" }], rearrange = \"a b -> b a\" }";
    let archs = scratch();
    let path = archs.path().join("llama.arch.stmap.toml");
    std::fs::write(path, map.replace(line, rule)).expect("a writable folder");
    let with = models::Definitions::open(&[archs.path().to_owned()]).expect("readable");
    let folder = Folder::new(SOUND);
    let source = ModelSource::File(folder.0.path().to_owned());
    let error = models::open(&source, &with).expect_err("a rule that does nothing");
    let message = error.to_string();
    let expected = "`rearrange` has no effect here: each part has keys of its own";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn what_all_maps_share_is_shown_at_its_own_place() {
    let text = include_str!("../../stmaps/common.toml");
    let line_of = |part: &str| {
        let before = text.split(part).next().expect("a part");
        1 + before.matches('\n').count()
    };
    let folder = Folder::new("mamba2");
    folder.set("time_step_limit", json!([0.0, 0.1]));
    let line = line_of("not has('time_step_limit')");
    let place = format!("stmaps/common.toml:{line}:");
    folder.is_refused(&[&place, "time_step_limit is `[0.0, 0.1]`"]);

    let folder = Folder::new(SOUND);
    folder.set("max_position_embeddings", json!({ "a": 1 }));
    let place = format!("stmaps/common.toml:{}:", line_of("n_ctx_train "));
    folder.is_refused(&[&place, "`max_position_embeddings` is an object"]);

    // And with those of the map.
    folder.set("hidden_act", json!("gelu"));
    folder.is_refused(&[
        &place,
        "stmaps/llama.arch.stmap.toml:",
        "hidden_act is `gelu`",
    ]);
}

#[test]
fn keys_about_generation_change_nothing() {
    let folder = Folder::new(SOUND);
    let mut config = folder.json(CONFIG);
    for (key, value) in [
        ("do_sample", json!(true)),
        ("max_length", json!(20)),
        ("num_beams", json!(1)),
        ("temperature", json!(1.0)),
        ("top_k", json!(50)),
        ("bad_words_ids", json!([[7]])),
        ("task_specific_params", json!({ "a": {} })),
    ] {
        config[key] = value;
    }
    folder.write(CONFIG, config.to_string());
    open(folder.0.path()).expect("they are ignored");
}

/// Files that are larger than their kind may be, of which the disk has next to nothing.
#[test]
fn files_that_are_too_large_are_refused_by_their_size() {
    let grown = |name: &str, bytes: u64| {
        let folder = Folder::new(SOUND);
        let path = folder.0.path().join(name);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        file.expect("a writable folder")
            .set_len(bytes)
            .expect("a sparse file");
        folder
    };
    const MIB: u64 = 1 << 20;
    for (name, limit) in [(CONFIG, 64 * MIB), (INDEX, 64 * MIB)] {
        let limit_text = limit.to_string();
        grown(name, limit + 1).is_refused(&[name, &limit_text]);
    }
    for (name, limit) in [
        (TOKENIZER, 512 * MIB),
        ("tokenizer_config.json", 64 * MIB),
        ("special_tokens_map.json", 64 * MIB),
        ("added_tokens.json", 64 * MIB),
    ] {
        let folder = grown(name, limit + 1);
        if name != TOKENIZER {
            folder.write(TOKENIZER, "{}");
        }
        let message = match tokenizer::folder::read(folder.0.path()) {
            Ok(_) => panic!("{name} is not refused"),
            Err(error) => error.to_string(),
        };
        assert!(message.contains(name), "{message}");
        assert!(message.contains(&limit.to_string()), "{message}");
    }
    let folder = Folder::new(SOUND);
    let file = folder.file_of(Q);
    let mut bytes = folder.read(&file);
    bytes[..8].copy_from_slice(&100_000_001u64.to_le_bytes());
    folder.write(&file, bytes);
    folder.is_refused(&[
        &file,
        "a header of 100000001 bytes, expected at most 100000000",
    ]);
}

#[test]
fn ids_that_name_no_expert_are_refused_with_their_place() {
    const TABLE: &str = "model.layers.0.ffn.gate.tid2eid";
    const FILE: &str = "model.safetensors";
    let refusal = |folder: &Folder| {
        let out = folder.0.path().join("logits.npy");
        let ran = bench(&[
            "logits",
            "-m",
            text(folder.0.path()),
            "--tokens",
            "1,2",
            "-o",
            text(&out),
        ]);
        assert_ne!(ran.code, 0, "{}", ran.out);
        ran.err
    };
    for (id, place) in [
        (
            4,
            "is 4 at row 5, column 1, expected an id from 0 to below 4",
        ),
        (
            -1,
            "is -1 at row 5, column 1, expected an id from 0 to below 4",
        ),
        (1 << 32, "4294967296"),
    ] {
        let folder = Folder::new("deepseek4");
        let mut bytes = folder.read(FILE);
        let length = u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("an object");
        let start = header[TABLE]["data_offsets"][0]
            .as_u64()
            .expect("an offset");
        let at = 8 + length + start as usize + (5 * 2 + 1) * size_of::<i64>();
        bytes[at..at + size_of::<i64>()].copy_from_slice(&i64::to_le_bytes(id));
        folder.write(FILE, bytes);
        let error = refusal(&folder);
        assert!(
            error.contains("`blk.0.ffn_gate_tid2eid.weight`") && error.contains(place),
            "{error}"
        );
    }
    let folder = Folder::new("deepseek4");
    folder.edit(FILE, |header| header[TABLE]["dtype"] = json!("F64"));
    let error = refusal(&folder);
    assert!(
        error.contains("`blk.0.ffn_gate_tid2eid.weight` is f32, which no list of ids is"),
        "{error}"
    );
}
