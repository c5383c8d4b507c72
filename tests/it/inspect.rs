//! `bench inspect`: what it says is what a loaded model takes, and hostile files do not keep it from
//! speaking.

use std::path::Path;

use lab_base::weights::TensorType;
use lab_core::model::{Batch, Estimator, MemoryUse, Model, Options};
use serde_json::Value;

use crate::goldens::{Golden, Turns, all_goldens, golden, options};
use crate::support::command::{Ran, bench, made_up, printed, scratch, text};

fn page(arguments: &[&str]) -> String {
    printed(&[&["inspect"], arguments].concat())
}

/// Settings whose memory differs.
fn settings() -> [Options; 5] {
    let f16 = Options {
        k_type: TensorType::F16,
        v_type: TensorType::F16,
        flash_attn: true,
        ..options()
    };
    let stateless = Options {
        n_ctx: 0,
        ..options()
    };
    let several = Options {
        n_ctx: 2000,
        n_seqs: 3,
        n_checkpoints: 2,
        n_batch: 100,
        ..f16.clone()
    };
    let embeddings = Options {
        embeddings: true,
        flash_attn: false,
        ..f16.clone()
    };
    [options(), f16, stateless, several, embeddings]
}

/// The memory of a loaded model and of one that is laid out, and what one token reads.
fn compare(golden: &Golden, options: Options) {
    let (plan, weights, token) = (&golden.plan, &golden.weights, golden.tokens[0]);
    let mut estimator = Estimator::new(plan, weights).expect("it can be laid out");
    let estimate = estimator.memory(&options).expect("it can be run");
    let read = estimator.weight_bytes_read(&options).expect("a graph");
    let shares = options.shares(plan);
    let of = format!("{} with {options:?}", golden.name);
    let mut model = Model::load(plan.clone(), weights, options, &mut |_, _| {}).expect("loads");
    let loaded = model.memory();
    let known = |memory: &MemoryUse| (memory.mapped, memory.copied, memory.compute);
    assert_eq!(known(&estimate), known(&loaded), "{of}");
    // Each part of a cache is rounded up to the machine's boundaries.
    let parts = plan.recurrent().map(|(_, parts)| parts.len());
    let n_parts = 3 * plan.key_values().count() + parts.sum::<usize>() + 1;
    let rounded = loaded.cache.checked_sub(estimate.cache);
    let is_near = rounded.is_some_and(|rounded| rounded <= 128 * n_parts as u64);
    assert!(is_near, "{of}: {} and {}", estimate.cache, loaded.cache);
    assert_eq!(shares, model.is_shared(), "{of}");
    if model.reads_source() {
        // Without a cache the pass reads the source too: as many tokens as it has of the text.
        let source = &golden.source[..1];
        model.set_source(0, source).expect("the source is sound");
    }
    let mut batch = Batch::default();
    batch.push(token, 0, 0, true);
    model.forward(&batch).expect("the pass runs");
    assert_eq!(read, model.weight_bytes_read(), "{of}");
}

#[test]
fn memory_of_a_loaded_model_equals_the_estimate() {
    let mut turns = Turns::new(settings().len());
    for golden in all_goldens() {
        for at in turns.of(golden) {
            // States of some sizes fit no quantised row; such a refusal is the loader's, see below.
            compare(golden, settings()[at].clone());
        }
    }
}

#[test]
fn models_that_the_loader_refuses_are_refused_without_loading() {
    let golden = golden("llama");
    let plan = &golden.plan;
    let mut estimator = Estimator::new(plan, &golden.weights).expect("it can be laid out");
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
        let refusal = loaded.err().map(|error| error.to_string());
        assert_eq!(refusal, Some(said));
    }
}

/// Models whose pages were looked at.
const SHOWN: &str = "gemma4-moe falcon-h1 bert llada deepseek2 gpt-oss";

#[test]
fn pages_are_short_and_whole_and_as_they_were_when_somebody_looked_at_them() {
    let scratch = scratch();
    for (at, golden) in all_goldens().enumerate() {
        let name = &golden.name;
        let is_shown = SHOWN.split(' ').any(|shown| shown == name);
        // A program is started for each page, so every third golden has one.
        if at % 3 != 0 && !is_shown {
            continue;
        }
        let page = page(&[text(&golden.write(scratch.path()))]);
        let page = page.replace(text(scratch.path()), "FOLDER");
        let lines = page.lines().count();
        assert!((20..=60).contains(&lines), "{name}: {lines} lines\n{page}");
        for title in ["architecture: ", "tensors\n", "text\n", "memory ", "here\n"] {
            let is_titled = page.contains(&format!("\n{title}"));
            assert!(is_titled, "{name}: {title}\n{page}");
        }
        let long = page.lines().find(|line| line.chars().count() > 140);
        assert_eq!(long, None, "{name}");
        if is_shown {
            insta::assert_snapshot!(format!("inspect_{name}"), page);
        }
    }
    insta::assert_snapshot!("inspect_tiny-chat", page(&[]));
}

/// Scripts rely on names, so all of them are here; of long lists the begin, and no number of this machine.
#[test]
fn scripts_produce_the_stored_results() {
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
    let found = serde_json::to_string_pretty(&found).unwrap();
    insta::assert_snapshot!("inspect_json", found);
}

/// What the capability that begins so is told to be; that it is can be seen in the pages above.
fn refused(page: &str, what: &str, why: &str) {
    let (_, rows) = page.split_once("\nhere\n").expect("the table");
    let mut rows = rows.lines();
    let row = rows.find(|row| row.trim_start().starts_with(what));
    let is_refused = row.is_some_and(|row| row.contains(" no ") && row.contains(why));
    assert!(is_refused, "{row:?} of\n{page}");
}

#[test]
fn models_that_cannot_run_are_reported_with_the_reason() {
    let scratch = scratch();
    let vocab = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-chat.gguf");
    let path = made_up(scratch.path(), "mamba2", &["--vocab", vocab]);
    let here = page(&[text(&path)]);
    assert!(
        here.contains("the states before a draft are kept"),
        "{here}"
    );
    refused(&here, "8-bit cache", "no KV cache");
    // A context of 0 is that of the model.
    let whole = page(&["tiny-chat", "--ctx", "0"]);
    assert!(whole.contains("a context of 512 tokens fits"), "{whole}");
    // A context for which no machine has memory: the loader's own words.
    let huge = page(&["tiny-chat", "--ctx", "100000000000"]);
    refused(&huge, "memory ", "not enough memory");
}

#[test]
fn broken_files_are_described_as_far_as_possible() {
    let scratch = scratch();
    let whole = std::fs::read(made_up(scratch.path(), "llama", &[])).expect("readable");
    let path = scratch.path().join("broken.gguf");
    let of = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("writable");
        bench(&["inspect", text(&path)])
    };
    let cut = of(&whole[..whole.len() - 100]).out;
    for part in ["architecture: not known", "ends at byte", "f32 100"] {
        assert!(cut.contains(part), "no `{part}` in\n{cut}");
    }
    let found: Value = serde_json::from_str(&page(&[text(&path), "--json"])).expect("JSON");
    let error = found["error"].as_str().expect("an error");
    assert!(error.contains("ends at byte"), "{error}");

    let mut unknown = whole.clone();
    let at = whole.windows(5).position(|w| w == b"llama");
    unknown[at.expect("the name")..][..5].copy_from_slice(b"llamo");
    let unknown = of(&unknown);
    let is_told = unknown.is_fine() && unknown.out.contains("unknown architecture `llamo`");
    assert!(is_told, "{}", unknown.out);

    let Ran { code, err, .. } = of(b"no model");
    assert!(code != 0 && err.contains("not a GGUF file"), "{err}");
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
    let name = "general.name=\u{1b}[31mred\u{202e}\n".to_owned() + &"x".repeat(100_000);
    let licence = format!("general.license={}", "\u{7}".repeat(5000));
    let meta = ["--meta", &name, "--meta", &licence];
    let path = made_up(scratch.path(), "llama", &meta);
    let own = page_by_hostile_definition(scratch.path());
    let pages = [page(&[text(&path)]), page(&[text(&path), "--all"]), own];
    for page in &pages {
        let is_obeyed = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!page.contains(is_obeyed), "{page}");
        let longest = page.lines().map(|line| line.chars().count()).max();
        assert!(longest < Some(600), "{longest:?}");
    }
    let shown = ["\\u{1b}[31mred", "blk.0.attn_q.weight", "`\\u{1b}[31m`"];
    for (page, part) in pages.iter().zip(shown) {
        assert!(page.contains(part), "no `{part}` in {page}");
    }
}
