//! Contrastive search by the engine, and the same by reading every candidate in a pass of its own.

use std::sync::Arc;

use lab_base::tokenizer::Tokenizer;
use lab_core::engine;
use lab_core::engine::{DiffusionOptions, DraftOptions, Event, Limits, Request};
use lab_core::model::{Batch, Model, Options};
use lab_core::models;
use lab_core::models::{ModelSource, OpenedModel};
use lab_sampling::Params;

use crate::goldens::options;
use crate::support::command::definitions;

const K: usize = 4;
const N: usize = 12;

fn open() -> OpenedModel {
    models::open(&ModelSource::of(None), &definitions()).expect("the shipped model")
}

fn load(options: Options) -> Model {
    let opened = open();
    Model::load(opened.plan, &opened.weights, options, &mut |_, _| {}).expect("it loads")
}

/// Rows of all tokens of a text, of a model that keeps nothing.
fn rows(model: &mut Model, text: &[u32]) -> Vec<Vec<f64>> {
    let mut batch = Batch::default();
    for (token, position) in text.iter().zip(0..) {
        batch.push(*token, 0, position, true);
    }
    let width = model.row_width();
    let rows = model.forward(&batch).expect("the pass runs").chunks(width);
    rows.map(|row| row.iter().map(|v| f64::from(*v)).collect())
        .collect()
}

fn likeness(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Su et al. 2022, equation 5, with passes over the whole text.
fn naively(prompt: &[u32], alpha: f64) -> Vec<u32> {
    let alone = Options {
        n_ctx: 0,
        ..options()
    };
    let mut of_logits = load(alone.clone());
    let mut of_vectors = load(Options {
        embeddings: true,
        ..alone
    });
    let mut text = prompt.to_vec();
    for _ in 0..N {
        let logits = rows(&mut of_logits, &text).pop().expect("a row");
        let total: f64 = logits.iter().map(|v| v.exp()).sum();
        let mut ids: Vec<usize> = (0..logits.len()).collect();
        ids.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let score = |id: &usize, of_vectors: &mut Model| {
            let with: Vec<u32> = text.iter().copied().chain([*id as u32]).collect();
            let mut vectors = rows(of_vectors, &with);
            let own = vectors.pop().expect("a row");
            let known = vectors.iter().map(|v| likeness(&own, v));
            (1.0 - alpha) * logits[*id].exp() / total - alpha * known.fold(f64::MIN, f64::max)
        };
        let scores: Vec<f64> = ids[..K]
            .iter()
            .map(|id| score(id, &mut of_vectors))
            .collect();
        let best = (0..K).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        text.push(ids[best.expect("candidates")] as u32);
    }
    text.split_off(prompt.len())
}

#[test]
fn contrastive_search_equals_a_full_search() {
    let opened = open();
    let tokenizer = Tokenizer::from_metadata(opened.weights.metadata()).expect("a vocabulary");
    let prompt = tokenizer.encode("Tell me a little about the sea", true, false);
    let prompt = prompt.expect("tokens");
    let limits = Limits {
        lab_bytes: 1 << 20,
        n_ctx: 128,
        n_parallel: 2,
        n_queue: 4,
        n_prefill: 16,
        drafts: DraftOptions::OFF,
        diffusion: DiffusionOptions::UNSET,
        queue_time: None,
        answer_time: None,
        step_time: None,
    };
    let load = || Ok::<_, String>(load(options()));
    let (handle, _thread, _) =
        engine::start(Arc::new(tokenizer), limits, Default::default(), load).expect("it starts");
    for alpha in [0.3, 0.6] {
        let request = |penalty_alpha| Request {
            sampling: Params {
                temperature: if penalty_alpha > 0.0 { 1.0 } else { 0.0 },
                top_k: if penalty_alpha > 0.0 { K as u32 } else { 0 },
                penalty_alpha,
                ..Params::default()
            },
            top_logprobs: Some(0),
            ..Request::new(prompt.clone(), N)
        };
        // Another completion at the same time.
        let other = handle.submit(request(0.0)).expect("taken");
        let mut events = handle.submit(request(alpha)).expect("taken");
        let mut found = Vec::new();
        while let Some(event) = events.blocking_recv() {
            match event {
                Event::Text { tokens, .. } => {
                    found.extend(
                        tokens
                            .iter()
                            .filter_map(|t| t.chosen.as_ref().map(|c| c.id)),
                    );
                }
                Event::Done { .. } => break,
                Event::Ended(_) => {}
                Event::DenoisingStep { .. }
                | Event::Prompt(_)
                | Event::Progress(_)
                | Event::Pooled(_)
                | Event::Lab(_) => {
                    panic!("not asked for")
                }
                Event::Failed(failure) => panic!("{failure}"),
            }
        }
        drop(other);
        let expected = naively(&prompt, alpha);
        assert!(!found.is_empty());
        assert_eq!(found, expected[..found.len()], "{alpha}");
    }
}
