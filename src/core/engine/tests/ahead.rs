//! What the engine expects of the next pass while devices compute.

use super::*;

/// Completions of different lengths, prompts that come at any step, ends by tokens, cancelled ones, and few blocks.
#[test]
fn the_next_pass_is_the_predicted_one_unless_a_sequence_begins() {
    for n_blocks in [100, 12] {
        let mut engine = EngineLoop::new(fake(64, n_blocks), tokenizer(), LIMITS);
        let mut all = Vec::new();
        for i in 0..12u32 {
            let text = prompt(20 + i);
            let own = Request {
                stop: StopConditions {
                    stop_tokens: if i == 3 { vec![FIRST + 2] } else { Vec::new() },
                    ..StopConditions::default()
                },
                ..request(&text, 5 + 7 * i as usize % 40)
            };
            all.push((submit(&mut engine, own), Answer::default()));
            (0..3 * i).for_each(|_| engine.step());
        }
        // The client of one that runs leaves.
        let at = all.iter_mut().position(|(events, answer)| {
            take(events, answer);
            answer.end.is_none()
        });
        drop(all.remove(at.expect("one runs")));
        finish(&mut engine, &mut all);
        let model = engine.model();
        assert!(model.n_predicted > 40, "{n_blocks}: {}", model.n_predicted);
        assert_eq!(model.n_right, model.n_predicted, "{n_blocks}");
    }
}

/// Of completions with one length none is left, so no pass is expected, and none is where one that waits starts.
#[test]
fn nothing_is_predicted_for_the_last_step() {
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS);
    let text = prompt(20);
    let ask =
        |engine: &mut EngineLoop<Fake>, n| (submit(engine, request(&text, n)), Answer::default());
    let mut all = vec![ask(&mut engine, 4)];
    (0..4).for_each(|_| engine.step());
    finish(&mut engine, &mut all);
    assert!(engine.model().predicted.is_empty());
    // Four of which three run.
    let mut all: Vec<_> = (0..4).map(|i| ask(&mut engine, 8 + i)).collect();
    (0..10).for_each(|_| engine.step());
    finish(&mut engine, &mut all);
    assert_eq!(engine.model().n_right, engine.model().n_predicted);
}

/// A greedy request without log-probabilities.
fn greedy(text: &[u32], n: usize) -> Request {
    Request {
        top_logprobs: None,
        ..request(text, n)
    }
}

/// The text of a completion that runs by itself.
fn alone(own: Request) -> String {
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS);
    let mut all = vec![(submit(&mut engine, own), Answer::default())];
    finish(&mut engine, &mut all);
    all.remove(0).1.text
}

/// Passes of which the engine expects the best tokens may begin before these are read. Completions that begin, end by a token, by their
/// length or with their client do not change the texts of others.
#[test]
fn greedy_completions_read_the_best_tokens() {
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS);
    let own = |i: u32| {
        let text = prompt(20 + i);
        let n_most = 5 + 7 * i as usize % 40;
        let mut own = greedy(&text, n_most);
        if i.is_multiple_of(3) {
            own.stop.stop_tokens = vec![FIRST + 2];
            own.stop.min_tokens = i as usize % 2 * n_most / 2;
        }
        if i % 4 == 1 {
            own.sampling.logit_bias = vec![(FIRST + i, f32::NEG_INFINITY)];
        }
        own
    };
    let mut all = Vec::new();
    for i in 0..12u32 {
        all.push((submit(&mut engine, own(i)), Answer::default()));
        if i == 7 {
            // Its client leaves at once or in the middle.
            let leaves = submit(&mut engine, greedy(&prompt(50), 40));
            (0..4).for_each(|_| engine.step());
            drop(leaves);
        }
        (0..3 * i).for_each(|_| engine.step());
    }
    finish(&mut engine, &mut all);
    let n_ahead = engine.model().n_ahead;
    assert!(n_ahead > 40, "{n_ahead}");
    for (i, (_, answer)) in (0..).zip(&all) {
        assert_eq!(answer.text, alone(own(i)), "{i}");
        assert!(!answer.text.is_empty(), "{i}");
    }
}

/// What the host decides about a token may make it another than the best.
#[test]
fn a_completion_that_may_choose_another_token_keeps_passes_from_beginning() {
    let text = prompt(20);
    let mut others: Vec<Request> = (0..3).map(|_| greedy(&text, 12)).collect();
    others[0].sampling.temperature = 1.0;
    others[1].sampling.repeat_penalty = 1.3;
    others[2].top_logprobs = Some(0);
    for (i, other) in others.into_iter().enumerate() {
        let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS);
        let both = [greedy(&text, 12), other];
        let mut all: Vec<_> = both
            .into_iter()
            .map(|own| (submit(&mut engine, own), Answer::default()))
            .collect();
        (0..8).for_each(|_| engine.step());
        assert!(engine.model().n_predicted > 2, "{i}");
        assert_eq!(engine.model().n_ahead, 0, "{i}");
        finish(&mut engine, &mut all);
    }
}

/// A request that comes while a pass is under way starts after it.
#[test]
fn a_request_starts_after_the_pass_that_has_begun() {
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS);
    let mut all = vec![(
        submit(&mut engine, greedy(&prompt(20), 30)),
        Answer::default(),
    )];
    (0..5).for_each(|_| engine.step());
    let n_ahead = engine.model().n_ahead;
    assert!(n_ahead > 2, "{n_ahead}");
    all.push((
        submit(&mut engine, greedy(&prompt(21), 30)),
        Answer::default(),
    ));
    engine.step();
    assert_eq!(engine.model().n_ahead, n_ahead + 1);
    assert_eq!(engine.model().texts.len(), 1);
    engine.step();
    assert_eq!(engine.model().texts.len(), 2);
    finish(&mut engine, &mut all);
}
