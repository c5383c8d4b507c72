//! Models that see or hear open as the text models in them, and what is left out is reported once.

use serde_json::json;

use crate::bad_folders::{CONFIG, Folder};
use crate::support::command::{Ran, bench, text};

fn logits(folder: &Folder) -> Ran {
    let out = folder.0.path().join("logits.npy");
    bench(&[
        "logits",
        "-m",
        text(folder.0.path()),
        "--tokens",
        "1,2",
        "-o",
        text(&out),
    ])
}

/// The folder with another configuration is refused with a message that has all these parts.
#[track_caller]
fn check(change: impl FnOnce(&mut serde_json::Value), parts: &[&str]) {
    let folder = Folder::new("internvl-chat");
    let mut config = serde_json::from_slice(&folder.read(CONFIG)).expect("JSON");
    change(&mut config);
    folder.write(CONFIG, config.to_string());
    let ran = logits(&folder);
    let has_all = parts.iter().all(|part| ran.err.contains(part));
    assert!(!ran.is_fine() && has_all, "{parts:?}: {}", ran.err);
}

#[test]
fn parts_that_no_text_needs_are_named_in_one_line() {
    let ran = logits(&Folder::new("internvl-chat"));
    assert!(ran.is_fine(), "{}", ran.err);
    let lines: Vec<&str> = ran
        .err
        .lines()
        .filter(|line| line.contains("opened as a text model"))
        .collect();
    let [line] = lines.as_slice() else {
        panic!("one line expected: {}", ran.err);
    };
    assert!(
        line.contains("without its projector, vision tower (3 tensors)"),
        "{line}"
    );
}

#[test]
fn a_text_model_that_no_map_is_for_is_named_with_its_object() {
    let unknown = |config: &mut serde_json::Value| {
        config["llm_config"]["architectures"] = json!(["NoSuchForCausalLM"]);
        config["llm_config"]["model_type"] = json!("no_such");
    };
    check(unknown, &["llm_config", "NoSuchForCausalLM"]);
    let unnamed = |config: &mut serde_json::Value| {
        config["llm_config"]["architectures"] = json!(null);
        config["llm_config"]["model_type"] = json!(null);
    };
    check(unnamed, &["llm_config", "no class"]);
}

#[test]
fn a_class_without_a_map_is_refused_with_its_requirements() {
    let class = |name: &'static str| {
        move |config: &mut serde_json::Value| config["architectures"] = json!([name])
    };
    check(class("ZambaForCausalLM"), &["ZambaForCausalLM", "needs"]);
    check(class("NoSuchForCausalLM"), &["NoSuchForCausalLM"]);
}
