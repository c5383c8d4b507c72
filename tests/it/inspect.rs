//! `bench inspect`: what it says is what a loaded model takes, and hostile files do not keep it from
//! speaking.

use std::path::Path;

use lab_bench::model::{Batch, Estimator, Model, Options};
use lab_bench::plan::Plan;
use lab_bench::weights::{TensorType, Weights};
use serde_json::Value;

use crate::command::{Ran, bench, made_up, printed, scratch, text};
use crate::goldens::{Golden, goldens, library, options};

fn inspect(arguments: &[&str]) -> Ran {
    bench(&[&["inspect"], arguments].concat())
}

fn page(arguments: &[&str]) -> String {
    printed(&[&["inspect"], arguments].concat())
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&page(&[text(path), "--json"])).expect("JSON")
}

fn plan(golden: &Golden) -> Plan {
    let def = library().get(&golden.arch).expect("built in");
    Plan::new(&def, golden.weights.metadata(), &golden.weights).expect("it fits")
}

/// What rounding its parts up to the machine's boundaries may add to a cache.
fn padding(plan: &Plan) -> u64 {
    let parts = plan
        .recurrent()
        .map(|(_, parts)| parts.len())
        .sum::<usize>();
    128 * (2 * plan.key_values().count() + parts + 1) as u64
}

/// Ways of running a model whose memory differs.
fn ways() -> [Options; 5] {
    let f16 = Options {
        k_type: TensorType::F16,
        v_type: TensorType::F16,
        flash_attn: true,
        ..options()
    };
    [
        options(),
        f16.clone(),
        Options {
            n_ctx: 0,
            ..options()
        },
        Options {
            n_ctx: 2000,
            n_seqs: 3,
            n_checkpoints: 2,
            n_batch: 100,
            ..f16.clone()
        },
        Options {
            embeddings: true,
            flash_attn: false,
            ..f16
        },
    ]
}

/// The memory of a loaded model and of one that is laid out, and what one token reads.
fn compare(name: &str, plan: &Plan, weights: &Weights, token: u32, options: Options) {
    let mut estimator = Estimator::new(plan, weights).expect("it can be laid out");
    let estimate = estimator.memory(&options).expect("it can be run");
    let read = estimator.weight_bytes_read(&options).expect("a graph");
    let shares = options.shares(plan);
    let of = format!("{name} with {options:?}");
    let mut model = Model::load(plan.clone(), weights, options, &mut |_, _| {}).expect("loads");
    let loaded = model.memory();
    assert_eq!(estimate.mapped, loaded.mapped, "{of}");
    assert_eq!(estimate.copied, loaded.copied, "{of}");
    assert_eq!(estimate.compute, loaded.compute, "{of}");
    let rounded = loaded.cache.checked_sub(estimate.cache);
    assert!(
        rounded.is_some_and(|rounded| rounded <= padding(plan)),
        "{of}: {} and {}",
        estimate.cache,
        loaded.cache
    );
    assert_eq!(shares, model.is_shared(), "{of}");
    let mut batch = Batch::default();
    batch.push(token, 0, 0, true);
    model.forward(&batch).expect("the pass runs");
    assert_eq!(read, model.weight_bytes_read(), "{of}");
}

#[test]
fn what_a_model_takes_is_what_is_said_before_it_is_loaded() {
    let scratch = scratch();
    for golden in goldens(scratch.path(), |_| true) {
        let plan = plan(&golden);
        for options in ways() {
            // States of some sizes fit no quantised row; such a refusal is the loader's, see below.
            compare(
                &golden.name,
                &plan,
                &golden.weights,
                golden.tokens[0],
                options,
            );
        }
    }
}

#[test]
fn what_the_loader_refuses_is_refused_without_loading() {
    let scratch = scratch();
    let golden = goldens(scratch.path(), |name| name == "llama").remove(0);
    let plan = plan(&golden);
    let mut estimator = Estimator::new(&plan, &golden.weights).expect("it can be laid out");
    let q4_k = Options {
        k_type: TensorType::Q4_K,
        v_type: TensorType::Q4_K,
        ..options()
    };
    let through_masks = Options {
        deterministic: true,
        ..options()
    };
    for options in [q4_k, through_masks] {
        let said = estimator.memory(&options).expect_err("refused").to_string();
        let loaded = Model::load(plan.clone(), &golden.weights, options, &mut |_, _| {});
        let Err(error) = loaded else {
            panic!("it loads, although: {said}");
        };
        assert_eq!(error.to_string(), said);
    }
}

#[test]
fn the_page_of_every_golden_is_short_and_whole() {
    let scratch = scratch();
    let names: Vec<String> = goldens(scratch.path(), |_| true)
        .into_iter()
        .map(|golden| golden.name)
        .collect();
    for name in names {
        let path = scratch.path().join(format!("{name}.gguf"));
        let page = page(&[text(&path)]);
        let lines = page.lines().count();
        assert!((20..=60).contains(&lines), "{name}: {lines} lines\n{page}");
        for part in [
            "architecture: ",
            "\ntensors\n",
            "\ntext\n",
            "\nmemory ",
            "\nhere\n",
        ] {
            assert!(page.contains(part), "{name}: no {part:?} in\n{page}");
        }
        let long = page.lines().skip(1).find(|line| line.chars().count() > 140);
        assert_eq!(long, None, "{name}");
    }
}

#[test]
fn pages_are_as_they_were_when_somebody_looked_at_them() {
    let scratch = scratch();
    let folder = scratch.path().to_owned();
    let wanted = [
        "gemma4-moe",
        "falcon-h1",
        "bert",
        "llada",
        "deepseek2",
        "gpt-oss",
    ];
    let made = goldens(&folder, |name| wanted.contains(&name));
    for golden in made {
        let path = folder.join(format!("{}.gguf", golden.name));
        let page = page(&[text(&path)]).replace(text(&folder), "FOLDER");
        insta::assert_snapshot!(format!("inspect_{}", golden.name), page);
    }
    insta::assert_snapshot!("inspect_tiny-chat", page(&[]));
}

/// Scripts rely on names, so all of them are here; of long lists the begin, and no number of this machine.
#[test]
fn scripts_find_what_they_found() {
    let mut found: Value = serde_json::from_str(&page(&["--json"])).expect("JSON");
    let shown = |key: &str| key.starts_with("general.") && !key.contains("description");
    let metadata = found["metadata"].as_object_mut().expect("keys");
    metadata.retain(|key, _| shown(key));
    for list in ["tensors", "shares", "capabilities"] {
        let list = found[list].as_array_mut().expect("a list");
        list.truncate(2);
    }
    let contexts = found["memory"]["contexts"].as_array_mut().expect("a list");
    contexts.truncate(1);
    let scratch = contexts[0]["scratch"].take();
    assert!(scratch.as_u64() > Some(0), "{scratch}");
    let refusal = found["template"]["parts"].take();
    assert!(refusal.is_string(), "{refusal}");
    insta::assert_snapshot!(
        "inspect_json",
        serde_json::to_string_pretty(&found).unwrap()
    );
}

/// The row of the page's last table that begins so.
fn ability(page: &str, what: &str) -> String {
    let rows = page.split("\nhere\n").nth(1).expect("the table");
    let row = rows.lines().find(|row| row.trim_start().starts_with(what));
    row.unwrap_or_else(|| panic!("no {what} in\n{page}"))
        .to_owned()
}

#[test]
fn what_cannot_run_is_said_with_the_reason() {
    let scratch = scratch();
    let path = made_up(scratch.path(), "bert", &[]);
    let refused = |page: &str, what: &str, why: &str| {
        let row = ability(page, what);
        assert!(row.contains(" no ") && row.contains(why), "{row}");
    };
    let encoder = page(&[text(&path)]);
    refused(&encoder, "text ", "ends in vectors");
    refused(&encoder, "prefix cache", "later ones");
    assert!(ability(&encoder, "embeddings").contains(" yes "));

    let vocab = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-chat.gguf");
    let path = made_up(scratch.path(), "mamba2", &["--vocab", vocab]);
    refused(&page(&[text(&path)]), "speculative decoding", "taken back");

    // Without a context no token can be rejected and no prefix shared.
    let without = page(&["tiny-chat", "--ctx", "0"]);
    for what in ["speculative decoding", "prefix cache"] {
        refused(&without, what, "context");
    }
    let chat = page(&["tiny-chat"]);
    for what in ["text ", "chat ", "memory ", "speculative decoding"] {
        assert!(ability(&chat, what).contains(" yes "), "{chat}");
    }
    // A context that no machine has room for: the loader's own words.
    let huge = page(&["tiny-chat", "--ctx", "100000000000"]);
    refused(&huge, "memory ", "not enough memory");
}

#[test]
fn broken_files_are_told_as_far_as_they_go() {
    let scratch = scratch();
    let whole = std::fs::read(made_up(scratch.path(), "llama", &[])).expect("readable");
    let path = scratch.path().join("broken.gguf");
    std::fs::write(&path, &whole[..whole.len() - 100]).expect("writable");
    let ran = inspect(&[text(&path)]);
    let cut = &ran.out;
    assert!(ran.is_fine(), "{cut}");
    for part in [
        "architecture: not known",
        "ends at byte",
        "\ntensors\n",
        "f32",
    ] {
        assert!(cut.contains(part), "no `{part}` in\n{cut}");
    }
    let found = json(&path);
    let error = found["error"].as_str().expect("an error");
    assert!(error.contains("ends at byte"), "{error}");

    let at = whole
        .windows(5)
        .position(|w| w == b"llama")
        .expect("the name");
    let mut unknown = whole.clone();
    unknown[at..at + 5].copy_from_slice(b"llamo");
    std::fs::write(&path, &unknown).expect("writable");
    let unknown = page(&[text(&path)]);
    assert!(
        unknown.contains("unknown architecture `llamo`"),
        "{unknown}"
    );

    std::fs::write(&path, b"no model").expect("writable");
    let ran = inspect(&[text(&path)]);
    let said = &ran.err;
    assert!(!ran.is_fine() && said.contains("not a GGUF file"), "{said}");
}

/// The page of a model whose definition gives a tap, which the paragraph names, a hostile name.
fn page_by_hostile_definition(folder: &Path) -> String {
    let mut source = include_str!("../../archs/llama.arch.toml").to_owned();
    for (own, other) in [
        ("name = \"llama\"", "name = \"hostile\""),
        ("'full')\" }]", "'full')\", save = \"\\u001b[31m\" }]"),
        (
            "block   = \"ffn\"\nact     = \"silu\"",
            "block = \"ffn\"\nact = \"silu\"\nside = \"\\u001b[31m\"\nwidth = \"n_embd\"\nweights = { up = false }",
        ),
    ] {
        assert!(source.contains(own), "{own}");
        source = source.replace(own, other);
    }
    std::fs::write(folder.join("hostile.arch.toml"), source).expect("writable");
    let path = made_up(folder, "hostile", &["--archs", text(folder)]);
    page(&[text(&path), "--archs", text(folder)])
}

#[test]
fn hostile_values_neither_fill_the_page_nor_speak_to_the_terminal() {
    let scratch = scratch();
    let name = format!(
        "general.name=\u{1b}[31mred\u{202e}\n{}",
        "x".repeat(100_000)
    );
    let licence = format!("general.license={}", "\u{7}".repeat(5000));
    let path = made_up(
        scratch.path(),
        "llama",
        &["--meta", &name, "--meta", &licence],
    );
    for arguments in [vec![text(&path)], vec![text(&path), "--all"]] {
        let page = page(&arguments);
        let foreign = page
            .chars()
            .find(|c| c.is_control() && *c != '\n' || *c == '\u{202e}');
        assert_eq!(foreign, None, "{page}");
        let longest = page.lines().map(|line| line.chars().count()).max();
        assert!(longest < Some(600), "{longest:?}");
    }
    assert!(page(&[text(&path)]).contains("\\u{1b}[31mred"));
    let page_of_definition = page_by_hostile_definition(scratch.path());
    assert!(
        page_of_definition.contains("`\\u{1b}[31m`"),
        "{page_of_definition}"
    );
    assert!(!page_of_definition.contains('\u{1b}'));
    assert!(page(&[text(&path), "--all"]).contains("blk.0.attn_q.weight"));
}
