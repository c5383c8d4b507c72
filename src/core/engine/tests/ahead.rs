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
