//! Text diffusion: logits and order against loops that ran on llama.cpp's logits.

use std::path::Path;
use std::sync::Arc;

use lab_base::tokenizer::Tokenizer;
use lab_base::weights::Value as MetadataValue;
use lab_core::engine;
use lab_core::engine::{DiffusionOptions, DraftOptions, Event, Handle, Limits, Request};
use lab_core::model::{Batch, Model, Options};
use lab_core::models;
use lab_core::models::ModelSource;
use lab_sampling::Params;
use serde_json::Value;

use crate::goldens::{self, Golden};
use crate::support::command::definitions;
use crate::support::{nmse, parse_npy};

/// Equality with the reference, as for every exact path.
const EXACT: f64 = 1e-6;

fn folder() -> &'static Path {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/goldens/diffusion"
    ))
}

fn cases() -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join("diffusion.json")).expect("it is there");
    let cases: Vec<Value> = serde_json::from_str(&text).expect("it is JSON");
    assert!(!cases.is_empty(), "a gate that compares nothing fails");
    cases
}

fn number(value: &Value) -> usize {
    value.as_u64().expect("a whole number") as usize
}

fn tokens(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list").iter();
    list.map(|t| number(t) as u32).collect()
}

/// Ways in which a whole text is computed.
fn paths() -> [(&'static str, Options); 4] {
    let base = Options {
        n_batch: 256,
        ..goldens::options()
    };
    [
        ("kept", base.clone()),
        (
            "in pages",
            Options {
                flash_attn: true,
                ..base.clone()
            },
        ),
        (
            "nothing kept",
            Options {
                n_ctx: 0,
                ..base.clone()
            },
        ),
        (
            "rows by threes",
            Options {
                n_outputs: 3,
                flash_attn: true,
                ..base
            },
        ),
    ]
}

/// The rows of a text at `positions`.
fn rows(model: &mut Model, text: &[u32], positions: &[usize]) -> Vec<f32> {
    let mut batch = Batch::default();
    for (at, token) in text.iter().enumerate() {
        batch.push(*token, 0, at as u32, positions.contains(&at));
    }
    let mut out = Vec::new();
    let mut next = 0;
    let each = &mut |first: usize, rows: &[f32]| {
        assert_eq!(first, next, "in order");
        next += rows.len() / 96;
        out.extend_from_slice(rows);
    };
    model.forward_each(&batch, each).expect("the pass runs");
    model.release(0);
    out
}

#[test]
fn every_step_has_the_logits_of_the_reference() {
    for case in cases() {
        let name = case["name"].as_str().expect("a name");
        let golden = goldens::golden(case["model"].as_str().expect("a model"));
        let stored = std::fs::read(folder().join(format!("{name}.npy"))).expect("it is there");
        let expected = parse_npy(&stored).values;
        let prompt = tokens(&case["prompt"]);
        let mask = number(&case["mask"]) as u32;
        let is_shifted = ["dream", "rnd1"].contains(&golden.arch.as_str());
        for (path, options) in paths() {
            let mut model = goldens::model(golden, options);
            let mut answer = vec![mask; number(&case["length"])];
            let mut found = Vec::new();
            for step in case["filled"].as_array().expect("steps") {
                let masked = tokens(&step["masked"]);
                let at = |i: &u32| prompt.len() + *i as usize - usize::from(is_shifted);
                let positions: Vec<usize> = masked.iter().map(at).collect();
                let mut step_rows = rows(&mut model, &[&prompt[..], &answer].concat(), &positions);
                if let Some(scale) = case["cfg_scale"].as_f64() {
                    let blind = [&vec![mask; prompt.len()][..], &answer].concat();
                    let blind = rows(&mut model, &blind, &positions);
                    for (z, u) in step_rows.iter_mut().zip(blind) {
                        *z = u + (1.0 + scale as f32) * (*z - u);
                    }
                }
                found.extend(step_rows);
                for pair in step["fixed"].as_array().expect("pairs") {
                    answer[number(&pair[0])] = number(&pair[1]) as u32;
                }
            }
            let error = nmse(&found, &expected);
            println!("{name:16} {path:14} {error:8.1e}");
            assert!(error <= EXACT, "{name}, {path}: NMSE {error:.2e}");
        }
    }
}

/// The shipped vocabulary, in which one token stands for what is masked.
fn tokenizer(mask: u32) -> Tokenizer {
    let definitions = definitions();
    let opened = models::open(&ModelSource::of(None), &definitions).expect("the shipped model");
    let mut metadata = opened.weights.metadata().clone();
    metadata.insert("tokenizer.ggml.mask_token_id", MetadataValue::U32(mask));
    Tokenizer::from_metadata(&metadata).expect("a vocabulary")
}

fn start(golden: &'static Golden, options: Options, mask: u32) -> Handle {
    let limits = Limits {
        lab_bytes: 1 << 20,
        n_ctx: 128,
        n_parallel: 4,
        n_queue: 32,
        n_prefill: 16,
        drafts: DraftOptions::OFF,
        diffusion: DiffusionOptions::UNSET,
        queue_time: None,
        answer_time: None,
        step_time: None,
    };
    let load = move || {
        let plan = golden.plan.clone();
        Model::load(plan, &golden.weights, options, &mut |_, _| {})
    };
    let (handle, _thread, _) =
        engine::start(Arc::new(tokenizer(mask)), limits, Default::default(), load).expect("starts");
    handle
}

fn request(case: &Value) -> Request {
    let rule = case["remasking"].as_str();
    Request {
        sampling: Params {
            temperature: 0.0,
            ..Params::default()
        },
        diffusion: Some(DiffusionOptions {
            steps: Some(number(&case["steps"])),
            block_length: Some(number(&case["block_length"])),
            remasking: rule.map(|rule| rule.parse().expect("a rule")),
            cfg_scale: case["cfg_scale"].as_f64(),
            ..DiffusionOptions::UNSET
        }),
        trace: true,
        ..Request::new(tokens(&case["prompt"]), number(&case["length"]))
    }
}

/// What a step fixed: within a step the order decides nothing.
fn sorted(fixed: impl Iterator<Item = (usize, u32)>) -> Vec<(usize, u32)> {
    let mut fixed: Vec<_> = fixed.collect();
    fixed.sort_unstable();
    fixed
}

#[test]
fn denoising_steps_equal_the_reference() {
    let cases = cases();
    let mut models: Vec<&str> = cases.iter().filter_map(|c| c["model"].as_str()).collect();
    models.sort_unstable();
    models.dedup();
    for model in models {
        let golden = goldens::golden(model);
        for (path, options) in paths() {
            let of_model: Vec<&Value> = cases.iter().filter(|c| c["model"] == model).collect();
            let handle = start(golden, options, number(&of_model[0]["mask"]) as u32);
            // All at once, each twice: other sequences of a batch change nothing.
            let asked: Vec<_> = of_model
                .iter()
                .chain(&of_model)
                .map(|case| (case, handle.submit(request(case)).expect("taken")))
                .collect();
            for (case, mut events) in asked {
                let mut found: Vec<Vec<(usize, u32)>> = Vec::new();
                let mut passes = None;
                while let Some(event) = events.blocking_recv() {
                    match event {
                        Event::DenoisingStep { fixed, .. } => {
                            found.push(sorted(fixed.iter().map(|f| (f.position, f.token))));
                        }
                        Event::Done { usage, .. } => passes = Some(usage.passes),
                        Event::Failed(failure) => panic!("{failure}"),
                        Event::Text { .. }
                        | Event::Prompt(_)
                        | Event::Progress(_)
                        | Event::Ended(_)
                        | Event::Pooled(_)
                        | Event::Lab(_) => {}
                    }
                }
                let pair = |p: &Value| (number(&p[0]), number(&p[1]) as u32);
                let steps = case["filled"].as_array().expect("steps").iter();
                let fixed = |step: &Value| {
                    sorted(step["fixed"].as_array().expect("pairs").iter().map(pair))
                };
                let expected: Vec<_> = steps.map(fixed).collect();
                assert_eq!(found, expected, "{}, {path}", case["name"]);
                assert_eq!(passes, Some(expected.len()));
            }
        }
    }
}

#[test]
fn a_vocabulary_without_a_mask_is_refused() {
    let golden = goldens::golden("llada");
    let definitions = definitions();
    let opened = models::open(&ModelSource::of(None), &definitions).expect("the shipped model");
    let tokenizer = Tokenizer::from_metadata(opened.weights.metadata()).expect("a vocabulary");
    let limits = Limits {
        lab_bytes: 1 << 20,
        n_ctx: 64,
        n_parallel: 1,
        n_queue: 1,
        n_prefill: 1,
        drafts: DraftOptions::OFF,
        diffusion: DiffusionOptions::UNSET,
        queue_time: None,
        answer_time: None,
        step_time: None,
    };
    let load = move || {
        let plan = golden.plan.clone();
        Model::load(plan, &golden.weights, goldens::options(), &mut |_, _| {})
    };
    let error = engine::start(Arc::new(tokenizer), limits, Default::default(), load)
        .err()
        .expect("refused");
    assert!(
        error.to_string().contains("tokenizer.ggml.mask_token_id"),
        "{error}"
    );
}
