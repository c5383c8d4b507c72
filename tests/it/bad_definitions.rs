//! Every mistake in a definition has the message that a person would see: each file of
//! `fixtures/bad_arch` is one mistake (or several), its message is a snapshot.

use lab_base::weights::{Array, Metadata, Value, Weights};
use lab_core::arch::{Library, parse_common};
use lab_core::blocks::REGISTRY;
use lab_core::models::synth::{SynthRequest, design};
use lab_core::plan::Plan;

#[test]
fn mistakes_are_reported_with_line_and_advice() {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures/bad_arch");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the fixtures are there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let mut report = String::new();
    for file in files {
        let name = file
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let text = std::fs::read_to_string(&file).expect("readable");
        let problems = library.check(&name, &text).expect_err(&name);
        report.push_str(&format!("==== {name}\n{problems}\n\n"));
    }
    insta::assert_snapshot!(report);
}

#[test]
fn built_in_definitions_are_sound() {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    for (name, _) in library.sources() {
        library.get(name).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn mistakes_in_shared_parameters_are_reported_with_their_file() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("archs/common.toml");
    let common = std::fs::read_to_string(path).expect("readable");
    let told = |text: &str| parse_common("archs/common.toml", text, &REGISTRY);
    told(&common).expect("sound");
    // A mistake, and where in it the message points.
    let cases = [
        (
            "[cache.new]\nsize = \"n_sw\"",
            "n_sw",
            "unknown parameter `n_sw`",
        ),
        ("[norm.new]\nkind = \"rms\"", "new", "missing key `eps`"),
        (
            "[act.silu]\nkind = \"gelu\"",
            "silu",
            "`silu` is a kind that needs no declaration",
        ),
        (
            "[cache.new]\nrope = \"neox\"",
            "rope",
            "unknown key `rope` in `cache`",
        ),
        (
            "[selection.new]\nrope = \"std\"",
            "\"std",
            "unknown rope `std`",
        ),
    ];
    for (mistake, at, message) in cases {
        let text = format!("{common}\n{mistake}\n");
        let problems = told(&text).expect_err(message).to_string();
        let begin = text.len() - mistake.len() - 1 + mistake.find(at).expect("there");
        let before = &text[..begin];
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        let line = before.matches('\n').count() + 1;
        let place = format!("--> archs/common.toml:{line}:{column}\n");
        assert!(problems.contains(message), "{problems}");
        assert!(problems.contains(&place), "{place} {problems}");
    }
}

#[test]
fn a_definition_has_the_common_resources_that_it_names() {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let text = &library.source("llama").expect("built in").text;
    let stack = |more: &str| text.replacen("[[stack]]", &format!("{more}\n[[stack]]"), 1);
    let printed = |text: &str| library.check("mine.toml", text).expect("sound").to_toml();
    let declared = |text: &str| -> Vec<String> {
        let page = printed(text);
        let lines = page.lines().filter(|line| line.starts_with('['));
        lines
            .filter(|line| line.contains('.') && !line.starts_with("[["))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(
        declared(text),
        ["[norm.default]", "[cache.full]", "[cache.local]"]
    );
    let full = text.replacen("if(windowed, 'local', 'full')", "full", 1);
    let full = full
        .replacen("windowed =", "#", 1)
        .replacen("n_swa ", "#", 1);
    assert_eq!(declared(&full), ["[norm.default]", "[cache.full]"]);
    // One of its own is another, as a whole.
    let page = printed(&stack("[cache.local]\nsize = 7\nwindow = \"chunked\"\n"));
    assert!(
        page.contains("size = \"7\"") && !page.contains("size = \"n_swa\""),
        "{page}"
    );
    assert_eq!(planned(&[]).expect("sound").caches.len(), 1);
    // What only a common resource that is not named would use is used by nothing.
    let unused = [
        (
            "[params]\n",
            "[params]\nclamp_exp = 1.0\n",
            "parameter `clamp_exp` is never used",
        ),
        (
            "[[stack]]",
            "[act.expert]\nkind = \"silu\"\n\n[[stack]]",
            "act `expert` is never used",
        ),
        (
            "[[stack]]",
            "[norm.attn]\nkind = \"rms\"\neps = 1e-5\n\n[[stack]]",
            "norm `attn` is never used",
        ),
    ];
    for (old, new, message) in unused {
        let text = text.replacen(old, new, 1);
        let problems = library.check("mine.toml", &text).expect_err(message);
        assert!(problems.to_string().contains(message), "{problems}");
    }
}

#[test]
fn hostile_text_is_refused_in_time() {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let texts = [
        String::new(),
        "[".repeat(100_000),
        format!("name = {}1{}", "[".repeat(5_000), "]".repeat(5_000)),
        format!("name = \"x\"\n[params]\na = \"{}1\"", "(".repeat(50_000)),
        "a.".repeat(50_000),
        "\u{0}\u{feff}".into(),
    ];
    for text in texts {
        let start = std::time::Instant::now();
        assert!(library.check("hostile", &text).is_err());
        assert!(start.elapsed().as_secs() < 10);
    }
}

#[test]
fn a_printed_definition_means_the_same() {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    for (name, _) in library.sources() {
        let def = library.get(name).expect("sound");
        let text = def.to_toml();
        let again = library
            .check(name, &text)
            .unwrap_or_else(|problems| panic!("{name}: {problems}\n{text}"));
        assert_eq!(again.to_toml(), text, "{name}");
        let request = SynthRequest::default();
        let plan = |def| {
            let (_, plan) = design(def, &request).expect("random weights can be made");
            format!(
                "{:?}{:?}{:?}{:?}",
                plan.embed, plan.layers, plan.head, plan.tensors
            )
        };
        assert_eq!(plan(&again), plan(&def), "{name}");
    }
}

#[test]
fn a_value_that_means_not_set_is_told_from_one_that_is_missing() {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let def = library.get("llama").expect("sound");
    let (sound, _) = design(&def, &SynthRequest::default()).expect("random weights can be made");
    let key = "llama.attention.head_count";
    let problem = |value: Option<Value>| {
        let mut metadata = Metadata::default();
        for (known, value) in sound.iter().filter(|(known, _)| *known != key) {
            metadata.insert(known, value.clone());
        }
        if let Some(value) = value {
            metadata.insert(key, value);
        }
        let weights = Weights::of("no heads".into(), metadata, Vec::new()).expect("sound");
        let plan = Plan::new(&def, weights.metadata(), &weights);
        plan.expect_err("a model without heads").to_string()
    };
    let set = |found: &str| format!("the file has `{key}` (parameter `n_head`) as {found}");
    let cases = [
        (
            None,
            format!("missing metadata key `{key}` (parameter `n_head`)"),
        ),
        (Some(Value::U32(0)), set("0, which means not set")),
        (
            Some(Value::Array(Array::U32(vec![0, 0]))),
            set("a list of 0, which means not set"),
        ),
        (
            Some(Value::Array(Array::U32(Vec::new()))),
            set("an empty list, which means not set"),
        ),
        (
            Some(Value::U64(u64::MAX)),
            set("a value that no parameter can have"),
        ),
    ];
    for (value, expected) in cases {
        let message = problem(value.clone());
        assert!(message.contains(&expected), "{value:?}: {message}");
        let is_missing = message.contains("missing metadata key `llama.attention.head_count`");
        assert_eq!(is_missing, value.is_none(), "{message}");
    }
}

/// The result of planning a random model, with this text in place of that one of `llama`.
fn planned(replaced: &[(&str, &str)]) -> Result<Plan, String> {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let source = library.source("llama").expect("built in");
    let mut text = source.text.clone();
    for (old, new) in replaced {
        assert!(text.contains(old), "{old}");
        text = text.replacen(old, new, 1);
    }
    let def = library.check("mine.toml", &text).expect("sound in itself");
    match design(&def, &SynthRequest::default()) {
        Ok((_, plan)) => Ok(plan),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn results_are_as_wide_as_what_they_meet() {
    const HEAD: &str = "[head]";
    // A further input of 16 elements.
    const PARAMS: (&str, &str) = ("[params]", "[params]\nn_ple = 16");
    const STACK: (&str, &str) = ("[[stack]]", "[per_layer_input]\n\n[[stack]]");
    let slot = |branch: &str| format!("[[stack.slot]]\nbranch = [{{ {branch} }}]\n\n{HEAD}");
    let cases = [
        // A result that ggml would repeat, and one that reads too little.
        (
            "block = 'identity', from = 'ple'",
            "the result has 16 elements, and the hidden state that it meets 64",
        ),
        (
            "block = 'linear', from = 'ple'",
            "reads rows of 16 elements, and `linear` takes 64 (n_embd)",
        ),
        (
            "block = 'ffn', act = 'silu', side = 'h', weights = { up = false }",
            "reads rows of 64 elements, and `ffn` takes 96 (width)",
        ),
    ];
    for (branch, expected) in cases {
        let text = slot(&branch.replace('\'', "\""));
        let message = planned(&[(HEAD, &text), PARAMS, STACK]).expect_err(branch);
        assert!(message.contains(expected), "{branch}: {message}");
        assert!(
            message.contains("--> mine.toml:") && message.contains('^'),
            "{message}"
        );
        assert_eq!(
            message.matches(expected).count(),
            1,
            "once for all layers: {message}"
        );
    }
    let fits = slot("block = \"linear\"");
    planned(&[(HEAD, &fits)]).expect("as wide as the hidden state");
    // What is saved later in the layers than it is read.
    let early = slot("block = \"linear\", from = \"low\"").replace(HEAD, "");
    let late = slot("block = \"linear\", save = \"low\"");
    let message = planned(&[(HEAD, &(early + &late))]).expect_err("nothing is there in layer 0");
    assert!(
        message.contains("the tap `low` is read before it is saved"),
        "{message}"
    );
}

#[test]
fn a_hidden_layer_has_an_activation() {
    let act = ("act     = \"silu\"", "act     = \"none\"");
    let message = planned(&[act]).expect_err("none");
    let expected = "a hidden layer has an activation (act is not true)";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn a_missing_metadata_key_is_reported_once() {
    let missing = "d_head = { key = \"attention.key_length\" }";
    let message = planned(&[("[params]", &format!("[params]\n{missing}"))]).expect_err("no size");
    assert_eq!(
        message.matches("missing metadata key").count(),
        1,
        "{message}"
    );
}
