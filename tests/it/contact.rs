//! The first contact with a file or folder: what it is, whether it runs here, and what is reported if it does not.

use std::path::{Path, PathBuf};

use lab_base::weights;
use lab_base::weights::gguf::{NewTensor, write};
use lab_base::weights::{Metadata, Value as Meta, Weights};
use serde_json::{Value, json};

use crate::support::command::{Ran, bench, made_up, printed, scratch, text};
use crate::support::server::Server;

/// The model built into the program, as a file.
fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-chat.gguf")
}

/// The same model with further metadata, and without tensors if that is wanted.
pub(crate) fn changed(
    folder: &Path,
    name: &str,
    keys: &[(&str, Meta)],
    has_tensors: bool,
) -> PathBuf {
    let weights = weights::open(&shipped()).expect("it is there");
    let mut metadata = weights.metadata().clone();
    for (key, value) in keys {
        metadata.insert(*key, value.clone());
    }
    let path = folder.join(name);
    let n = if has_tensors { usize::MAX } else { 0 };
    rewritten(&path, &weights, &metadata, n);
    path
}

/// Writes the first `n` tensors of a model with other metadata.
pub(crate) fn rewritten(path: &Path, weights: &Weights, metadata: &Metadata, n: usize) {
    let all = weights.tensors();
    let all = &all[..n.min(all.len())];
    let new: Vec<NewTensor> = all
        .iter()
        .map(|t| NewTensor {
            name: t.name.clone(),
            ty: t.ty,
            shape: t.shape.clone(),
        })
        .collect();
    let data = |i: usize| weights.data(&all[i]).map_err(std::io::Error::other);
    write(path, metadata, &new, data).expect("a writable folder");
}

pub(crate) fn string(text: &str) -> Meta {
    Meta::Str(text.to_owned())
}

/// The same model under the definition of another that has a scale of scores: one that overflows.
fn overflowing(folder: &Path) -> PathBuf {
    let weights = weights::open(&shipped()).expect("it is there");
    let mut keys = vec![("general.architecture".to_owned(), string("granite"))];
    for (key, value) in weights.metadata().iter() {
        if let Some(key) = key.strip_prefix("llama.") {
            keys.push((format!("granite.{key}"), value.clone()));
        }
    }
    keys.push(("granite.attention.scale".into(), Meta::F32(-3.4e38)));
    let keys: Vec<(&str, Meta)> = keys
        .iter()
        .map(|(key, value)| (key.as_str(), value.clone()))
        .collect();
    changed(folder, "overflowing.gguf", &keys, true)
}

#[test]
fn logits_that_are_not_finite_end_the_answer_with_the_first_value() {
    let folder = scratch();
    let model = overflowing(folder.path());
    let first = "is the first value that is not finite: ";
    let out = folder.path().join("out.npy");
    for arguments in [
        &["run", "-m", text(&model), "2+2=?"][..],
        &["run", "-m", text(&model), "2+2=?", "--temperature", "1"],
        &["run", "-m", text(&model), "2+2=?", "--stateless"],
        &[
            "logits",
            "-m",
            text(&model),
            "--tokens",
            "1,2,3",
            "-o",
            text(&out),
        ],
        &[
            "logits",
            "-m",
            text(&model),
            "--tokens",
            "1,2,3",
            "--flash-attn",
            "on",
            "-o",
            text(&out),
        ],
    ] {
        let ran = bench(arguments);
        assert_eq!(ran.code, 1, "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(first), "{arguments:?}: {}", ran.err);
        assert!(
            ran.err.contains("`layers.0.attn."),
            "{arguments:?}: {}",
            ran.err
        );
    }
    assert!(!out.exists(), "what is not a number is not written");
}

#[test]
fn an_error_is_a_status_before_the_first_byte_and_an_event_after_it() {
    let folder = scratch();
    let server = Server::start(&["-m", text(&overflowing(folder.path()))]).expecting_errors();
    let messages = json!([{ "role": "user", "content": "2+2=?" }]);
    let (status, body) =
        server.chat(json!({ "model": "overflowing", "messages": messages.clone() }));
    assert_eq!(status, 500, "{body}");
    assert_eq!(body["error"]["code"], "non_finite_logits", "{body}");
    let message = body["error"]["message"]
        .as_str()
        .expect("a text")
        .to_owned();
    assert!(message.contains("`layers.0.attn."), "{message}");
    let events = server.stream(json!({ "model": "overflowing", "messages": messages }));
    let last: Value =
        serde_json::from_str(events.last().expect("an event")).expect("nothing follows an error");
    assert_eq!(last["error"]["code"], "non_finite_logits", "{events:?}");
    // What is known before is told by the status, streamed or not.
    let long = json!([{ "role": "user", "content": "2+2=".repeat(1000) }]);
    let long = json!({ "model": "overflowing", "messages": long, "stream": true });
    server.refused(long, 400, "context_length_exceeded", "messages");
}

#[test]
fn the_template_for_tools_is_used_where_tools_are_on_offer() {
    let folder = scratch();
    let own = |name: &str| string(&format!("{name}:{{{{ messages[0].content }}}}"));
    let keys = [
        ("tokenizer.chat_template", own("plain")),
        ("tokenizer.chat_template.tool_use", own("tools")),
        ("tokenizer.chat_template.rag", own("rag")),
    ];
    let model = changed(folder.path(), "several.gguf", &keys, true);
    let file = |name: &str, json: Value| {
        let path = folder.path().join(name);
        std::fs::write(&path, json.to_string()).expect("a writable folder");
        path
    };
    let messages = file(
        "messages.json",
        json!([{ "role": "user", "content": "hi" }]),
    );
    let tools = file(
        "tools.json",
        json!([{ "type": "function", "function": { "name": "f" } }]),
    );
    let none = file("none.json", json!([]));
    let rendered = |more: &[&str]| {
        printed(&[&["template", "-m", text(&model), text(&messages)], more].concat())
    };
    assert_eq!(rendered(&[]), "plain:hi");
    assert_eq!(rendered(&["--tools", text(&none)]), "plain:hi");
    assert_eq!(rendered(&["--tools", text(&tools)]), "tools:hi");
    assert_eq!(
        rendered(&["--tools", text(&tools), "--name", "rag"]),
        "rag:hi"
    );
    assert_eq!(
        rendered(&["--tools", text(&tools), "--name", "default"]),
        "plain:hi"
    );
    let refused = bench(&["run", "-m", text(&model), "hi", "--chat-template", "rga"]);
    assert!(
        refused
            .err
            .contains("no chat template is named `rga`; there are `default`, `tool_use`, `rag`"),
        "{}",
        refused.err
    );
    assert!(
        bench(&[
            "run",
            "-m",
            text(&model),
            "hi",
            "-n",
            "1",
            "--chat-template",
            "rag"
        ])
        .is_fine()
    );
}

#[test]
fn experts_one_by_one_are_those_of_one_tensor() {
    let folder = scratch();
    let (stacked, single) = (
        folder.path().join("stacked.gguf"),
        folder.path().join("single.gguf"),
    );
    let set = ["block_count=2", "n_expert=4", "n_expert_used=2"];
    let mut arguments = vec!["synth", "llama", "-o", text(&stacked)];
    set.iter()
        .for_each(|pair| arguments.extend(["--set", pair]));
    let made = bench(&arguments);
    assert!(made.is_fine(), "{}", made.err);
    let weights = weights::open(&stacked).expect("a sound file");
    let (mut new, mut data) = (Vec::new(), Vec::new());
    let mut n_split = 0;
    for tensor in weights.tensors() {
        let bytes = weights.data(tensor).expect("in place").into_owned();
        let stem = tensor.name.strip_suffix("_exps.weight");
        let Some(stem) = stem else {
            new.push(NewTensor {
                name: tensor.name.clone(),
                ty: tensor.ty,
                shape: tensor.shape.clone(),
            });
            data.push(bytes);
            continue;
        };
        n_split += 1;
        let size = bytes.len() / tensor.shape[2] as usize;
        for (expert, part) in bytes.chunks_exact(size).enumerate() {
            let name = format!("{stem}.{expert}.weight");
            new.push(NewTensor {
                name,
                ty: tensor.ty,
                shape: tensor.shape[..2].to_vec(),
            });
            data.push(part.to_vec());
        }
    }
    assert_eq!(n_split, 6, "three projections in two layers");
    write(&single, weights.metadata(), &new, |i| Ok(data[i].clone())).expect("a writable folder");
    let logits = |model: &Path, name: &str| {
        let out = folder.path().join(name);
        printed(&[
            "logits",
            "-m",
            text(model),
            "--tokens",
            "1,2,3",
            "-o",
            text(&out),
        ]);
        std::fs::read(out).expect("it was written")
    };
    assert_eq!(
        logits(&single, "single.npy"),
        logits(&stacked, "stacked.npy")
    );
}

#[track_caller]
fn refused(path: &Path, expected: &str) {
    for ran in [
        bench(&["plan", "-m", text(path)]),
        bench(&["doctor", text(path)]),
    ] {
        assert_eq!(ran.code, 1, "{}", ran.err);
        let said = format!("{}{}", ran.out, ran.err);
        assert!(said.contains(expected), "expected {expected}\nfound {said}");
        assert!(said.lines().count() <= 12, "{said}");
    }
}

#[test]
fn paths_that_are_no_models_are_described() {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name);
    for (name, ty, expected) in [
        (
            "lora.gguf",
            "adapter",
            "this is a LoRA adapter; run it with its base model",
        ),
        (
            "mmproj.gguf",
            "mmproj",
            "this is a multimodal projector (mmproj)",
        ),
        ("imatrix.gguf", "imatrix", "this is an importance matrix"),
        ("vector.gguf", "controlvector", "this is a control vector"),
    ] {
        let path = changed(folder.path(), name, &[("general.type", string(ty))], true);
        refused(&path, expected);
    }
    let clip = [("general.architecture", string("clip"))];
    refused(
        &changed(folder.path(), "clip.gguf", &clip, true),
        "this is a multimodal projector",
    );
    let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 99\n";
    for (name, content, expected) in [
        ("lfs.gguf", lfs, "this is a Git LFS pointer"),
        (
            "page.gguf",
            "<!DOCTYPE html><html></html>",
            "this is an HTML page",
        ),
        ("empty.gguf", "", "the file is empty"),
    ] {
        std::fs::write(at(name), content).expect("a writable folder");
        refused(&at(name), expected);
    }
    let whole = std::fs::read(shipped()).expect("it is there");
    std::fs::write(at("cut.gguf"), &whole[..whole.len() / 2]).expect("a writable folder");
    refused(&at("cut.gguf"), "the file was cut off: download it again");
    refused(&at("cut.guff"), "did you mean `");
    refused(
        folder.path(),
        "this folder holds GGUF files and is not a model itself",
    );
}

#[test]
fn folders_that_lack_something_say_what() {
    let folder = scratch();
    let write_all = |name: &str, files: &[(&str, &str)]| {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).expect("a writable folder");
        for (name, content) in files {
            std::fs::write(path.join(name), content).expect("a writable folder");
        }
        path
    };
    let config = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}"#;
    let audio = r#"{"architectures": ["CanaryForConditionalGeneration"]}"#;
    let disentangled = r#"{"architectures": ["DebertaV2ForSequenceClassification"]}"#;
    let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 99\n";
    let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors"}}"#;
    let adapter = r#"{"base_model_name_or_path": "some/base"}"#;
    for (name, files, expected) in [
        (
            "lfs",
            &[("config.json", config), ("model.safetensors", lfs)][..],
            "this is a Git LFS pointer",
        ),
        (
            "page",
            &[("config.json", config), ("model.safetensors", "<html>")],
            "this is an HTML page",
        ),
        (
            "bin",
            &[("config.json", config), ("pytorch_model.bin", "x")],
            "PyTorch files only (`pytorch_model.bin`)",
        ),
        (
            "no-weights",
            &[("config.json", config)],
            "download its `.safetensors` files (the map `llama` is for its class)",
        ),
        (
            "no-map",
            &[("config.json", audio)],
            "no map is for `CanaryForConditionalGeneration` yet, which needs audio input",
        ),
        (
            "reranker",
            &[("config.json", disentangled)],
            "which needs attention scores between contents and relative positions",
        ),
        (
            "lora",
            &[("adapter_config.json", adapter)],
            "this is a LoRA adapter and not a model",
        ),
        (
            "shard",
            &[
                ("config.json", config),
                ("model.safetensors.index.json", index),
            ],
            "`a` is listed in `model-00001-of-00002.safetensors`: that file is missing",
        ),
        (
            "mistral",
            &[("params.json", "{}"), ("consolidated.safetensors", "x")],
            "the layout of the model's publisher",
        ),
    ] {
        refused(&write_all(name, files), expected);
    }
}

#[test]
fn folders_list_only_models() {
    let folder = scratch();
    std::fs::copy(shipped(), folder.path().join("model.gguf")).expect("a writable folder");
    changed(
        folder.path(),
        "mmproj.gguf",
        &[("general.type", string("mmproj"))],
        true,
    );
    let found = lab_core::models::list(folder.path()).expect("a folder");
    let names: Vec<String> = found
        .iter()
        .map(lab_core::models::ModelSource::name)
        .collect();
    assert_eq!(names, ["model"]);
}

fn doctor(arguments: &[&str]) -> (Ran, Value) {
    let ran = bench(&[&["doctor", "--json"], arguments].concat());
    let json = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}{}", ran.out, ran.err));
    (ran, json)
}

#[test]
fn doctor_reports_in_ten_lines_what_runs() {
    let page = printed(&["doctor"]);
    assert!(page.lines().count() <= 10, "{page}");
    for part in [
        "llama",
        "parameters",
        "of weights",
        "chat and completion",
        "bench run -m",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let (ran, json) = doctor(&[]);
    assert_eq!((ran.code, &json["runs"]), (0, &json!(true)));
    assert_eq!(json["architecture"], "llama");
    assert_eq!(json["uses"], json!(["chat", "completion"]));
    assert!(
        json["cache_bytes_per_1024"]
            .as_u64()
            .is_some_and(|bytes| bytes > 0),
        "{json}"
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (ran, json) = doctor(&[text(&root.join("models/tiny-chat"))]);
    assert_eq!((ran.code, &json["runs"]), (0, &json!(true)), "{json}");
    // A command that works for the model.
    let folder = scratch();
    let encoder = made_up(folder.path(), "bert", &[]);
    let page = printed(&["doctor", text(&encoder)]);
    assert!(page.contains("embeddings (`bench serve -m"), "{page}");
    let bare = made_up(folder.path(), "llama", &[]);
    let page = printed(&["doctor", text(&bare)]);
    assert!(page.contains("logits (`bench logits -m"), "{page}");
}

#[test]
fn doctor_reports_why_a_model_does_not_run() {
    let folder = scratch();
    let unknown = [("general.architecture", string("somethingelse"))];
    let path = changed(folder.path(), "unknown.gguf", &unknown, true);
    let (ran, json) = doctor(&[text(&path)]);
    assert_eq!((ran.code, &json["runs"]), (1, &json!(false)));
    assert_eq!(json["architecture"], "somethingelse");
    let problem = json["problem"].as_str().expect("a problem");
    assert!(
        problem.contains("unknown architecture `somethingelse`"),
        "{problem}"
    );
    // More than any machine has.
    let path = shipped();
    let (ran, json) = doctor(&[text(&path), "--ctx", "2000000000"]);
    assert_eq!(ran.code, 1, "{json}");
    assert!(
        json["problem"]
            .as_str()
            .is_some_and(|why| why.contains("memory")),
        "{json}"
    );
}

#[test]
fn problems_of_all_layers_are_reported_once() {
    let folder = scratch();
    let weights = weights::open(&shipped()).expect("it is there");
    let path = folder.path().join("bare.gguf");
    // The embedding alone.
    rewritten(&path, &weights, weights.metadata(), 1);
    let ran = bench(&["plan", "-m", text(&path)]);
    assert_eq!(ran.code, 1);
    assert_eq!(ran.err.matches("attn_q.weight").count(), 1, "{}", ran.err);
    assert!(ran.err.contains("(the same in layer"), "{}", ran.err);
}
