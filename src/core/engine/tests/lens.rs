//! Lenses over the same model: few hidden states are looked at in a step that others share, and all in the end.

use super::super::lab::{LabPlan, Lens, PositionSelector};
use super::*;
use crate::model::Points;

/// The points of the shipped model, and of its layers the places of their results.
fn layers() -> (Arc<Points>, Vec<usize>) {
    let definitions = Definitions::open(&[]).expect("the built-in definitions");
    let opened = models::open(&ModelSource::of(None), &definitions).expect("the shipped model");
    let points = Points::of(&opened.plan).expect("its points");
    let layers = points.find("layers.*.out").expect("its layers");
    (Arc::new(points), layers)
}

/// A lens on all tokens after each layer.
fn lens(points: &Points, n_prompt: usize, n_more: usize) -> CompiledLab {
    let plan = LabPlan {
        lens: Some(Lens {
            points: vec!["layers.*.out".into()],
            positions: PositionSelector::All,
            top_k: 1,
            targets: Vec::new(),
            translators: None,
        }),
        ..LabPlan::default()
    };
    let compiled = plan.compiled(points, None, (n_prompt, n_more), N_VOCAB as usize, u64::MAX);
    compiled.expect("the plan is sound")
}

#[test]
fn a_lens_looks_at_few_hidden_states_in_a_step_that_others_share() {
    let (points, layers) = layers();
    let prompt = prompt(40);
    let (mut steps, mut sent) = (Vec::new(), Vec::new());
    for with_lens in [false, true] {
        let model = fake(64, 100);
        let mut engine =
            EngineLoop::new(model, tokenizer(), LIMITS).with_points(Arc::clone(&points));
        let lens = with_lens.then(|| lens(&points, prompt.len(), 5));
        let mut looking = submit_with(&mut engine, request(&prompt, 5), lens);
        let mut other = submit(&mut engine, request(&prompt[1..], 60));
        let (mut n, mut answer) = (0, Answer::default());
        while answer.end.is_none() {
            let before = engine.model().looks.len();
            engine.step();
            take(&mut other, &mut answer);
            let rows = engine.model().looks[before..].iter().map(|look| look.1);
            // The first step is that of the prompts, the last one leaves the lens alone.
            assert!(rows.sum::<usize>() <= 8 || answer.end.is_some());
            n += 1;
        }
        assert_eq!(answer.tokens, expected(&prompt[1..], 60));
        steps.push(n);
        while !engine.is_idle() {
            engine.step();
        }
        let mut events = Vec::new();
        while let Ok(event) = looking.try_recv() {
            events.push(event);
        }
        sent.push(events);
        let n_looked: usize = engine.model().looks.iter().map(|look| look.1).sum();
        // The last token is not read.
        assert_eq!(n_looked, if with_lens { layers.len() * 44 } else { 0 });
    }
    assert_eq!(steps[0], steps[1], "the other request waits for no step");
    assert!(matches!(sent[1].last(), Some(Event::Done { .. })));
    let results = sent[1].iter().filter_map(|event| match event {
        Event::Lab(result) => Some(result),
        _ => None,
    });
    let results: Vec<_> = results.collect();
    assert_eq!((results.len(), sent[1].len()), (1, sent[0].len() + 1));
    assert_eq!(results[0].lens.len(), layers.len());
    for (layer, point) in layers.iter().zip(&results[0].lens) {
        let found: Vec<(u32, u32)> = point
            .rows
            .iter()
            .map(|r| (r.position, r.top[0].id))
            .collect();
        let best = |at: u32| (at, (7 * *layer as u32 + at) % N_VOCAB);
        assert_eq!(found, (0..44).map(best).collect::<Vec<_>>());
    }
}

#[test]
fn a_request_whose_lens_still_looks_can_be_cancelled() {
    let prompt = prompt(40);
    let (points, layers) = layers();
    assert!(40 * layers.len() > 64);
    let plan = lens(&points, prompt.len(), 1);
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS).with_points(points);
    let looking = submit_with(&mut engine, request(&prompt, 1), Some(plan));
    engine.step();
    assert!(!engine.is_idle(), "hidden states are left");
    drop(looking);
    engine.step();
    assert!(engine.is_idle());
    let n_looked: usize = engine.model().looks.iter().map(|look| look.1).sum();
    assert_eq!(n_looked, 64);
    // Its id is free again.
    let mut others: Vec<_> = (0..3)
        .map(|_| submit(&mut engine, request(&prompt, 3)))
        .collect();
    while !engine.is_idle() {
        engine.step();
    }
    for events in &mut others {
        let mut answer = Answer::default();
        take(events, &mut answer);
        assert_eq!(answer.tokens, expected(&prompt, 3));
    }
}
