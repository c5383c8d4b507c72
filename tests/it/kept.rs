//! What is stored between passes: windows, states of sequences, keys shared between layers. Long
//! texts, one token at a time, equal one pass that keeps nothing; windows do not grow with them.

use lab_core::model::Options;

use crate::goldens::{EXACT, golden, model as load, options, run};
use crate::support::nmse;

/// Goldens whose windows hold 8 positions, or whose layers keep a state or another layer's keys.
const KEPT: [&str; 17] = [
    "cohere2",
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4-small",
    "gpt-oss",
    "olmo2",
    "falcon-h1",
    "lfm2",
    "mamba",
    "mamba2",
    "qwen35",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
    "minimax-01",
    "plamo2",
];
const WINDOW: u32 = 8;
const N_TOKENS: u32 = 4 * WINDOW + 5;

fn text() -> Vec<u32> {
    (0..N_TOKENS).map(|i| (i * 37 + i / 5) % 96).collect()
}

/// Room for less than the text in a window, for all of it elsewhere.
fn narrow() -> Options {
    Options {
        n_ctx: 128,
        n_seqs: 1,
        n_batch: 4,
        ..options()
    }
}

#[test]
fn four_windows_one_by_one_equal_the_pass_that_keeps_nothing() {
    let tokens = text();
    for golden in KEPT.map(golden) {
        let stateless = Options {
            n_ctx: 0,
            ..options()
        };
        let whole = run(&mut load(golden, stateless), &tokens, 0, 0);
        let whole: Vec<f64> = whole.into_iter().map(f64::from).collect();
        let mut model = load(golden, narrow());
        let mut steps = Vec::new();
        for (position, token) in (0..).zip(&tokens) {
            steps.extend(run(&mut model, &[*token], 0, position));
        }
        let error = nmse(&steps, &whole);
        println!("{:14} NMSE {error:.1e}", golden.name);
        assert!(error <= EXACT, "{}: NMSE {error:.1e}", golden.name);
    }
}

#[test]
fn the_cache_of_a_window_does_not_grow_with_the_context() {
    for golden in ["gemma3", "gpt-oss"].map(golden) {
        let bytes = |n_ctx| {
            let room = Options { n_ctx, ..narrow() };
            load(golden, room).memory().cache
        };
        let model = load(golden, narrow());
        let plan = model.plan();
        let n_full = plan
            .key_values()
            .filter(|(_, rows)| plan.caches[rows.cache].window().is_none())
            .map(|(_, rows)| rows.k + rows.v)
            .sum::<u64>();
        let n_all = plan
            .key_values()
            .map(|(_, rows)| rows.k + rows.v)
            .sum::<u64>();
        assert!(0 < n_full && n_full < n_all);
        assert_eq!(
            bytes(4096) - bytes(1024),
            3072 * n_full * 4,
            "{}",
            golden.name
        );
    }
}

#[test]
fn a_text_is_not_continued_where_its_window_has_been_left() {
    let golden = golden("gemma3");
    let mut model = load(golden, narrow());
    let tokens = text();
    let mut whole = Vec::new();
    for (position, token) in (0..).zip(&tokens) {
        whole.extend(run(&mut model, &[*token], 0, position));
    }
    let free = model.free_slots();
    let mut batch = lab_core::model::Batch::default();
    batch.push(1, 0, 12, true);
    assert_eq!(
        model.forward(&batch).expect_err("refused").to_string(),
        "a pass: found position 12 of sequence 0, expected position 37"
    );
    assert_eq!(model.free_slots(), free);
    assert_eq!(model.forget(0, N_TOKENS - 1), N_TOKENS - 1);
    // Rows outside the window are copied from the prefix cache, except the last token's.
    assert_eq!(model.forget(0, 12), 11);
    let again = run(&mut model, &tokens[11..14], 0, 11);
    let n = again.len();
    let expected: Vec<f64> = whole[11 * n / 3..][..n]
        .iter()
        .map(|v| f64::from(*v))
        .collect();
    assert!(nmse(&again, &expected) <= EXACT);
}
