//! What sequences share: a text that was read before is not read again, and nothing of the result
//! changes by that.

use std::collections::BTreeSet;

use lab_core::arch::Mode;
use lab_core::model::{Batch, Model, Options};
use lab_core::plan::Plan;

use crate::goldens::{EXACT, Turns, all_goldens, golden, model as load, options};
use crate::support::nmse;

const N_TOKENS: usize = 75;
/// Not whole blocks.
const N_SHARED: usize = 53;
/// Draft tokens after a text.
const DRAFT: [u32; 4] = [1, 2, 3, 4];

/// Number of tokens of a text, and of those that are the same in all texts: fewer where the model has few positions.
fn lengths(plan: &Plan) -> [usize; 2] {
    let most = plan.n_positions();
    let most = most.map_or(N_TOKENS, |most| most as usize - DRAFT.len());
    let n_tokens = N_TOKENS.min(most);
    [n_tokens, n_tokens * N_SHARED / N_TOKENS]
}

/// A text whose begin is the same for every `kind`.
fn text(kind: u32, [n_tokens, n_shared]: [usize; 2]) -> Vec<u32> {
    (0..n_tokens as u32)
        .map(|i| {
            let own = if i < n_shared as u32 { 0 } else { kind * 7 };
            (i * 37 + i / 5 + own) % 96
        })
        .collect()
}

/// Logits of the tokens of a text from where the model goes on with it, in passes of at most `step`
/// tokens.
pub(crate) fn read(model: &mut Model, sequence: u32, tokens: &[u32], step: usize) -> Vec<f64> {
    let first = model.next(sequence) as usize;
    let mut out = Vec::new();
    for (begin, chunk) in (first..).step_by(step).zip(tokens[first..].chunks(step)) {
        let mut batch = Batch::default();
        for (position, token) in (begin as u32..).zip(chunk) {
            batch.push(*token, sequence, position, true);
        }
        let logits = model.forward(&batch).expect("the pass runs");
        out.extend(logits.iter().map(|v| f64::from(*v)));
    }
    out
}

/// The rows of `all` that belong to the last tokens, as many as `found` has.
fn error(found: &[f64], all: &[f64]) -> f64 {
    let found: Vec<f32> = found.iter().map(|v| *v as f32).collect();
    nmse(&found, &all[all.len() - found.len()..])
}

fn is_causal(model: &Model) -> bool {
    model.plan().mode == Mode::Causal
}

#[test]
fn a_shared_prefix_is_read_once_and_changes_nothing() {
    let mut n_causal = 0;
    for golden in all_goldens() {
        let [n_tokens, n_shared] = lengths(&golden.plan);
        let text = |kind: u32| text(kind, [n_tokens, n_shared]);
        let shared = Options {
            // Two texts and half of a third.
            n_ctx: (n_tokens * 192 / N_TOKENS).next_multiple_of(48),
            n_checkpoints: 8,
            n_seqs: 3,
            n_batch: 16,
            ..options()
        };
        let mut model = load(golden, shared.clone());
        if !is_causal(&model) {
            continue;
        }
        n_causal += 1;
        let name = &golden.name;
        let first = read(&mut model, 0, &text(0), 16);
        let second = read(&mut load(golden, shared), 0, &text(1), 16);
        // Beside the first, which still runs.
        let resumed = model.resume(1, &text(1));
        // A state is only known where a block ends.
        let [n_shared, n_all] = match model.has_states() {
            true => [n_shared, n_tokens - 1].map(|n| n / 16 * 16),
            false => [n_shared, n_tokens - 1],
        };
        assert_eq!(resumed.n_cached, n_shared, "{name}: {}", resumed.miss);
        let found = error(&read(&mut model, 1, &text(1), 5), &second);
        assert!(found <= EXACT, "{name}: NMSE {found:.1e}");
        // A follow-up of the first, when both have ended.
        model.release(0);
        model.release(1);
        let resumed = model.resume(2, &text(0));
        assert_eq!(resumed.n_cached, n_all, "{name}: {}", resumed.miss);
        let found = error(&read(&mut model, 2, &text(0), 1), &first);
        assert!(found <= EXACT, "{name}: NMSE {found:.1e}");
        model.release(2);
        // Other texts until nothing of it is left: computed anew, it is the same.
        let other = |kind: u32| {
            text(0)
                .iter()
                .map(|t| (t + kind) % 96)
                .collect::<Vec<u32>>()
        };
        for kind in 10..13 {
            read(&mut model, 3, &other(kind), 16);
            model.release(3);
        }
        // As many at once as there may be, so that no place of a sequence is left to it.
        for id in 3..6 {
            read(&mut model, id, &other(10 * id)[..n_tokens / 2], 16);
        }
        (3..6).for_each(|id| model.release(id));
        let resumed = model.resume(4, &text(0));
        assert_eq!(resumed.n_cached, 0, "{name}");
        let found = error(&read(&mut model, 4, &text(0), 16), &first);
        assert!(found <= EXACT, "{name}: NMSE {found:.1e}");
    }
    println!("{n_causal} models");
    assert!(n_causal > 50, "{n_causal}");
}

#[test]
fn rejected_draft_tokens_leave_no_trace() {
    for golden in all_goldens() {
        let mut model = load(
            golden,
            Options {
                n_checkpoints: 8,
                ..options()
            },
        );
        if !is_causal(&model) {
            continue;
        }
        let tokens = text(0, lengths(&golden.plan));
        let whole = read(&mut model, 0, &tokens, 16);
        model.release(0);
        // Draft tokens after every few tokens, all of which are rejected.
        let mut found = Vec::new();
        let mut n_again = 0;
        while (model.next(1) as usize) < tokens.len() {
            let next = model.next(1) as usize;
            let end = (next + 5).min(tokens.len());
            found.truncate(next * whole.len() / tokens.len());
            found.extend(read(&mut model, 1, &tokens[..end], 5));
            let wrong: Vec<u32> = tokens[..end].iter().copied().chain(DRAFT).collect();
            read(&mut model, 1, &wrong, 4);
            let kept = model.forget(1, end as u32) as usize;
            n_again += end - kept;
            // Where nothing can be rolled back, what was read is known at whole blocks.
            if kept < end {
                found.truncate(kept * whole.len() / tokens.len());
                found.extend(read(&mut model, 1, &tokens[..end], 16));
            }
        }
        let has_states = model.plan().recurrent().next().is_some();
        assert_eq!(n_again > 0, has_states, "{}", golden.name);
        let found = error(&found, &whole);
        assert!(found <= EXACT, "{}: NMSE {found:.1e}", golden.name);
    }
}

#[test]
fn texts_of_many_lengths_together_are_as_each_alone() {
    const COUNTS: [usize; 3] = [2, 5, 8];
    let mut turns = Turns::new(COUNTS.len());
    for golden in all_goldens() {
        let many = Options {
            n_ctx: 1024,
            n_seqs: 8,
            ..options()
        };
        let mut model = load(golden, many.clone());
        if !is_causal(&model) {
            continue;
        }
        // Each its own text, so that nothing is shared.
        let texts: Vec<Vec<u32>> = (0..8u32)
            .map(|s| (0..3 + 3 * s).map(|i| (i * 31 + s * 13 + 7) % 96).collect())
            .collect();
        let alone: Vec<Vec<f64>> = texts
            .iter()
            .zip(100..)
            .map(|(text, id)| {
                let logits = read(&mut model, id, text, 64);
                model.release(id);
                logits
            })
            .collect();
        let mut model = load(golden, many);
        for n in turns.of(golden).into_iter().map(|at| COUNTS[at]) {
            // Shares of each pass: prompts in parts and single tokens, side by side.
            let mut found = vec![Vec::new(); n];
            for step in 0.. {
                let mut batch = Batch::default();
                let mut rows = Vec::new();
                for (s, text) in texts.iter().enumerate().take(n) {
                    let id = (10 * n + s) as u32;
                    let first = model.next(id) as usize;
                    let share = 1 + (s + step) % 4 * usize::from(step < 3) * 2;
                    for (at, token) in text.iter().enumerate().skip(first).take(share) {
                        batch.push(*token, id, at as u32, true);
                        rows.push(s);
                    }
                }
                if batch.is_empty() {
                    break;
                }
                let n_vocab = model.row_width();
                let logits = model.forward(&batch).expect("the pass runs");
                for (row, s) in logits.chunks_exact(n_vocab).zip(rows) {
                    found[s].extend(row);
                }
            }
            for (s, (found, alone)) in found.iter().zip(&alone).enumerate() {
                let error = nmse(found, alone);
                let name = &golden.name;
                assert!(error <= EXACT, "{name}: text {s} of {n}: NMSE {error:.1e}");
                model.release((10 * n + s) as u32);
            }
        }
    }
}

/// Adds tokens of a text to a batch, all of which want logits.
fn push(batch: &mut Batch, sequence: u32, text: &[u32], positions: std::ops::Range<usize>) {
    for at in positions {
        batch.push(text[at], sequence, at as u32, true);
    }
}

#[test]
fn sequences_with_states_run_in_one_pass_whatever_their_lengths() {
    const RECURRENT: [&str; 15] = [
        "mamba",
        "mamba2",
        "falcon-h1",
        "qwen35",
        "qwen3next",
        "kimi-linear",
        "kimi-k3",
        "qwen4exp",
        "lfm2",
        "rwkv6",
        "rwkv6qwen2",
        "rwkv7",
        "arwkv7",
        "minimax-01",
        "plamo2",
    ];
    const N_DECODING: u32 = 7;
    const N_PROMPT: usize = 12;
    for golden in RECURRENT.map(golden) {
        let name = &golden.name;
        let many = Options {
            n_ctx: 1024,
            n_seqs: 8,
            ..options()
        };
        let mut model = load(golden, many);
        assert!(model.has_states(), "{name}");
        let text = |s: u32| -> Vec<u32> {
            let tokens = 0..N_PROMPT as u32 + 2;
            tokens.map(|i| (i * 31 + s * 13 + 7) % 96).collect()
        };
        let texts: Vec<Vec<u32>> = (0..N_DECODING + 2).map(text).collect();
        let alone: Vec<Vec<f64>> = (100..)
            .zip(&texts)
            .map(|(id, text)| {
                let logits = read(&mut model, id, text, 64);
                model.release(id);
                logits
            })
            .collect();
        for s in 0..N_DECODING {
            read(&mut model, s, &texts[s as usize][..N_PROMPT], 64);
        }
        let n_built = model.n_graphs();
        // Seven sequences decode while an eighth is read, which comes first, in the middle and last.
        for step in 0..2 {
            let (prompt, at) = (N_DECODING + step as u32, N_PROMPT + step);
            let of_prompt = &texts[prompt as usize];
            let mut batch = Batch::default();
            push(&mut batch, prompt, of_prompt, 0..2);
            for s in 0..N_DECODING {
                push(&mut batch, s, &texts[s as usize], at..at + 1);
                if s == 3 {
                    push(&mut batch, prompt, of_prompt, 2..7);
                }
            }
            push(&mut batch, prompt, of_prompt, 7..N_PROMPT);
            let width = model.row_width();
            let logits = model.forward(&batch).expect("the pass runs");
            for (row, (s, at)) in logits.chunks_exact(width).zip(&batch.positions) {
                let first = *at as usize * width;
                let error = nmse(row, &alone[*s as usize][first..first + width]);
                assert!(
                    error <= EXACT,
                    "{name}: token {at} of {s}: NMSE {error:.1e}"
                );
            }
            assert_eq!(
                model.n_graphs() - n_built,
                1,
                "{name}: one pass, then the same"
            );
            model.release(prompt);
        }
    }
}

/// Bits of the logits of a sequence, in batches with `n` others whose numbers of tokens differ.
fn alongside(model: &mut Model, text: &[u32], n: u32) -> Vec<u32> {
    let most = model.plan().n_positions().unwrap_or(40).min(40) as u32;
    let neighbours: Vec<Vec<u32>> = (0..n)
        .map(|s| (0..most).map(|i| (i * 29 + s * 17 + 5) % 96).collect())
        .collect();
    let mut bits = Vec::new();
    while (model.next(0) as usize) < text.len() {
        let mut batch = Batch::default();
        let mut rows = Vec::new();
        for (s, other) in neighbours.iter().enumerate() {
            let first = model.next(s as u32 + 1) as usize;
            let share = 1 + (s + first) % 3;
            for (at, token) in other.iter().enumerate().skip(first).take(share) {
                batch.push(*token, s as u32 + 1, at as u32, at.is_multiple_of(2));
                rows.extend(at.is_multiple_of(2).then_some(false));
            }
        }
        let first = model.next(0) as usize;
        let share = if first == 0 { 5 + n as usize } else { 1 };
        for (at, token) in text.iter().enumerate().skip(first).take(share) {
            batch.push(*token, 0, at as u32, true);
            rows.push(true);
        }
        let width = model.row_width();
        let logits = model.forward(&batch).expect("the pass runs");
        let own = logits.chunks_exact(width).zip(rows).filter(|(_, own)| *own);
        bits.extend(own.flat_map(|(row, _)| row.iter().map(|v| v.to_bits())));
    }
    (0..=n).for_each(|id| model.release(id));
    bits
}

#[test]
fn deterministic_bits_do_not_depend_on_neighbours_or_threads() {
    const NEIGHBOURS: [u32; 4] = [1, 2, 5, 8];
    let (mut known, mut turns) = (BTreeSet::new(), Turns::new(NEIGHBOURS.len()));
    for golden in all_goldens() {
        let text = &text(0, [24; 2]);
        let with_threads = |n_threads| {
            let options = Options {
                n_ctx: 1024,
                n_seqs: 9,
                n_threads,
                flash_attn: true,
                deterministic: true,
                ..options()
            };
            load(golden, options)
        };
        let mut model = with_threads(1);
        if !is_causal(&model) {
            continue;
        }
        let expected = alongside(&mut model, text, 0);
        let check = |model: &mut Model, n_tokens: usize, n: u32, n_threads: usize| {
            let bits = alongside(model, &text[..n_tokens], n);
            let differing = bits.iter().zip(&expected).filter(|(a, b)| a != b).count();
            let name = &golden.name;
            assert_eq!(differing, 0, "{name}: {n} neighbours, {n_threads} threads");
            assert_eq!(bits.len() * text.len(), expected.len() * n_tokens);
        };
        for at in turns.of(golden) {
            check(&mut model, text.len(), NEIGHBOURS[at], 1);
        }
        // What threads divide among themselves depends on the block and on the types of its weights.
        let plan = model.plan();
        let kinds = plan.units().map(|unit| {
            let weights = unit.weights.iter().flatten();
            let types: BTreeSet<_> = weights.map(|at| plan.tensors[*at].ty).collect();
            (unit.contract.0.name, types)
        });
        let n_known = known.len();
        known.extend(kinds);
        if known.len() > n_known {
            let mut model = with_threads(2);
            // A prompt and a few steps: threads wait for each other in loops, which takes long where they are more
            // than there are processors.
            for n in [0, 3] {
                check(&mut model, 10, n, 2);
            }
        }
    }
    assert!(known.len() > 10, "{known:?}");
}
