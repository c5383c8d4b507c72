//! Metadata keys that nothing reads are named, and what a definition requires of a file must hold.

use lab_base::weights;
use lab_base::weights::{Array, Value};
use lab_core::arch::Library;
use lab_core::blocks::REGISTRY;
use lab_core::models::synth::{SynthRequest, design};
use lab_core::plan::Plan;

use crate::support::command::{bench, made_up, printed, scratch, text};
use crate::support::shared;

/// What the files of the zoo ask for and their definitions do not read. An indexer picks the keys
/// that a query attends to; no definition has one, and these files no tensors for it.
const ZOO: [&str; 4] = [
    "apertus-dense: apertus.attention.indexer.head_count",
    "bitnet-dense: bitnet.attention.indexer.head_count",
    "plm-dense: plm.attention.indexer.head_count",
    "step35-moe: step35.attention.indexer.head_count",
];

#[test]
fn few_keys_of_the_zoo_are_unread() {
    let Some(folder) = shared("zoo/dev") else {
        return;
    };
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let mut unread = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the zoo is readable") {
        let path = entry.expect("readable").path();
        if path.extension().is_none_or(|ending| ending != "gguf") {
            continue;
        }
        let file = weights::open(&path).expect("the zoo's files are sound");
        let arch = file.metadata().str("general.architecture");
        let Ok(def) = library.get(arch.unwrap_or_default()) else {
            continue;
        };
        let plan = Plan::new(&def, file.metadata(), &file).expect("it fits");
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        unread.extend(plan.unread.iter().map(|key| format!("{name}: {key}")));
    }
    unread.sort();
    assert_eq!(unread, ZOO);
}

/// The plan of a random model of `arch` with these metadata.
fn plan_with(arch: &str, more: &[(&str, Value)]) -> Result<Plan, String> {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let def = library.get(arch).expect("sound");
    let (mut metadata, plan) =
        design(&def, &SynthRequest::default()).expect("random weights can be made");
    for (key, value) in more {
        metadata.insert(*key, value.clone());
    }
    Plan::new(&def, &metadata, &Tensors(&plan)).map_err(|error| error.to_string())
}

/// The tensors of a plan, as a file would have them.
struct Tensors<'a>(&'a Plan);

impl lab_core::plan::TensorSet for Tensors<'_> {
    fn has(&self, name: &str, _required: bool) -> bool {
        self.stored(name).is_some()
    }

    fn stored(&self, name: &str) -> Option<(weights::TensorType, &[u64], u64)> {
        let tensor = self.0.tensors.iter().find(|tensor| tensor.name == name)?;
        Some((weights::TensorType::F32, &tensor.shape, tensor.bytes))
    }

    fn names(&self) -> Vec<&str> {
        self.0.tensors.iter().map(|t| t.name.as_str()).collect()
    }

    fn is_file(&self) -> bool {
        true
    }
}

#[test]
fn a_key_that_nothing_reads_is_named_unless_it_means_nothing() {
    let list = |values: Vec<u32>| Value::Array(Array::U32(values));
    let cases = [
        // A mechanism that the definition does not have.
        ("llama.attention.indexer.top_k", Value::U32(64), true),
        ("llama.attention.indexer.top_k", Value::U32(0), false),
        ("llama.attention.indexer.types", list(vec![0, 1]), true),
        ("llama.attention.indexer.types", list(vec![0, 0]), false),
        ("llama.use_parallel_residual", Value::Bool(true), true),
        ("llama.use_parallel_residual", Value::Bool(false), false),
        // Read only by layers with experts, of which a dense model has none.
        ("llama.expert_used_count", Value::U32(2), true),
        ("llama.expert_used_count", Value::U32(0), false),
        // A parameter that this definition does not use, as it is without the key and otherwise.
        ("llama.final_logit_softcapping", Value::F32(30.0), true),
        ("llama.residual_scale", Value::F32(1.0), false),
        ("llama.residual_scale", Value::F32(0.5), true),
        ("llama.attention.recurrent_layers", list(vec![0, 1]), true),
        // Ignored in all definitions, or of another namespace.
        ("llama.vocab_size", Value::U32(7), false),
        ("llama.vision.block_count", Value::U32(7), false),
        ("general.block_count", Value::U32(7), false),
        ("llamas.block_count", Value::U32(7), false),
    ];
    for (key, value, is_named) in cases {
        let plan = plan_with("llama", &[(key, value.clone())]).expect("it fits");
        let expected: Vec<&str> = is_named.then_some(key).into_iter().collect();
        assert_eq!(plan.unread, expected, "{key} = {value:?}");
    }
    // A definition's own reasons, with and without a star.
    let ignored = ("mamba.attention.head_count", Value::U32(4));
    assert!(
        plan_with("mamba", &[ignored])
            .expect("it fits")
            .unread
            .is_empty()
    );
    // What is evaluated to find this out is not part of the plan.
    let given = ("llama.rope.dimension_count_swa", Value::U32(2));
    let plan = plan_with("llama", &[given]).expect("it fits");
    assert!(!plan.params.contains_key("n_rot_swa"));
    assert!(!plan.keys.contains("llama.rope.dimension_count_swa"));
}

#[test]
fn an_unread_key_is_a_warning_and_an_error_where_that_is_asked_for() {
    let scratch = scratch();
    let meta = [
        "--meta",
        "llama.attention.indexer.top_k=64",
        "--meta",
        "llama.hash_layer_count=3",
    ];
    let path = made_up(scratch.path(), "llama", &meta);
    let names = "llama.attention.indexer.top_k, llama.hash_layer_count";
    for command in ["plan", "logits", "inspect", "diagram"] {
        let out = scratch.path().join(command);
        let arguments: Vec<&str> = match command {
            "plan" => vec!["plan", "-m", text(&path)],
            "logits" => vec![
                "logits",
                "-m",
                text(&path),
                "--tokens",
                "1",
                "--force",
                "-o",
                text(&out),
            ],
            "inspect" => vec!["inspect", text(&path)],
            _ => vec!["diagram", text(&path), "--force", "-o", text(&out)],
        };
        let ran = bench(&arguments);
        assert!(ran.is_fine(), "{command}: {}", ran.err);
        assert_eq!(
            ran.err.matches("that nothing reads").count(),
            1,
            "{}",
            ran.err
        );
        assert!(ran.err.contains(names), "{}", ran.err);
        let ran = bench(&[&arguments[..], &["--strict"]].concat());
        let said = ran.err + &ran.out;
        assert!(
            said.contains(names) && said.contains("does not read"),
            "{said}"
        );
        assert_eq!(ran.code, 1, "{command}: {said}");
    }
}

#[test]
fn unread_keys_of_a_vocabulary_and_unused_tensors_are_named_once() {
    let scratch = scratch();
    let meta = [
        "tokenizer.ggml.suppress=1",
        "tokenizer.ggml.escape_whitespaces=true",
        "tokenizer.ggml.add_sep_token=true",
        "tokenizer.ggml.cls_token_id=1",
        "tokenizer.chat_template.rag=a",
        "tokenizer.chat_template.tool_use=b",
    ];
    let meta: Vec<&str> = meta.iter().flat_map(|meta| ["--meta", meta]).collect();
    let path = made_up(scratch.path(), "llama", &meta);
    let ran = bench(&["inspect", text(&path)]);
    let named = ran.err.lines().filter(|line| line.contains("tokenizer."));
    let named: Vec<&str> = named.collect();
    assert!(
        matches!(named.as_slice(), [line] if line.contains("tokenizer.ggml.suppress\"")),
        "{}",
        ran.err
    );
    for part in [
        "nothing reads the keys: tokenizer.ggml.suppress\n",
        "rag, tool_use\n",
    ] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    let json = printed(&["inspect", text(&path), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        json["unread"],
        serde_json::json!(["tokenizer.ggml.suppress"])
    );
    assert_eq!(json["templates"], serde_json::json!(["rag", "tool_use"]));
    // Tensors: of a file whose head is not the one that its layers are for.
    let path = made_up(scratch.path(), "qwen3", &[]);
    let definitions = scratch.path().join("archs");
    std::fs::create_dir_all(&definitions).expect("a folder");
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/archs/qwen3.arch.toml");
    let own = std::fs::read_to_string(own).expect("readable");
    let without = own.replace(", qk_norm = \"head\"", "");
    std::fs::write(definitions.join("qwen3.arch.toml"), without).expect("writable");
    let ran = bench(&["plan", "-m", text(&path), "--archs", text(&definitions)]);
    let lines: Vec<&str> = ran
        .err
        .lines()
        .filter(|line| line.contains("used by nothing"))
        .collect();
    assert!(
        matches!(lines.as_slice(), [line] if line.contains("blk.0.attn_k_norm.weight (the same in layer")),
        "{}",
        ran.err
    );
    // Nothing is normalised, and nothing says so; with the built-in definition something does.
    assert!(!ran.out.contains(" norm=("), "{}", ran.out);
    let ran = bench(&["plan", "-m", text(&path)]);
    assert!(ran.out.contains(" norm=("), "{}", ran.out);
}

#[test]
fn ropes_of_one_name_say_their_layers() {
    let scratch = scratch();
    let definitions = scratch.path().join("archs");
    std::fs::create_dir_all(&definitions).expect("a folder");
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/archs/llama.arch.toml");
    let own = std::fs::read_to_string(own).expect("readable");
    let rope = "[rope.std]\nkind = \"norm\"\nbase = \"if(il < 1, 10000.0, 500.0)\"\n";
    let two = own
        .replace("rope = \"norm\"", "rope = \"std\"")
        .replace("[[stack]]\n", &format!("{rope}\n[[stack]]\n"));
    std::fs::write(definitions.join("llama.arch.toml"), two).expect("writable");
    let path = made_up(scratch.path(), "llama", &[]);
    let page = printed(&["plan", "-m", text(&path), "--archs", text(&definitions)]);
    for (begin, base) in [
        ("rope.std (layers 0): ", "base=10000.0 "),
        ("rope.std (layers 1", "base=500.0 "),
    ] {
        let mut lines = page.lines();
        let is_there = lines.any(|line| line.starts_with(begin) && line.contains(base));
        assert!(is_there, "{page}");
    }
    let one = made_up(scratch.path(), "llama", &[]);
    assert!(!printed(&["plan", "-m", text(&one)]).contains("(layers"));
}

#[test]
fn unmet_requirements_are_reported_with_expression_and_values() {
    let message = plan_with(
        "bloom",
        &[("bloom.attention.max_alibi_bias", Value::F32(4.0))],
    )
    .expect_err("another bias");
    let parts = [
        "`max_alibi == 8`",
        "found max_alibi = 4.0",
        "archs/bloom.arch.toml:",
        "^^^",
    ];
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    assert_eq!(
        message.matches("max_alibi == 8`").count(),
        1,
        "not for each layer: {message}"
    );
    plan_with(
        "bloom",
        &[("bloom.attention.max_alibi_bias", Value::F32(8.0))],
    )
    .expect("as it is");
}
