//! Models on a device, many sequences at once, compared with each sequence alone on the processor.
//!
//! The device is the processor under the number of another, so its passes are those of a device.

use std::collections::HashMap;

use super::draft::DraftModel;
use super::drafter::Drafter;
use super::{Batch, DraftRequest, Model, Options};
use crate::arch::Library;
use crate::blocks::REGISTRY;
use crate::models::synth::{SynthRequest, synth};
use crate::models::{self, Definitions, DrafterChoice, ModelSource};
use crate::plan::{DeviceShare, Plan};
use lab_base::ggml::Device;
use lab_base::weights::{self, TensorType, Weights};

/// Slots of the home of a sequence.
const HOME: usize = 512;

fn options(n_seqs: usize) -> Options {
    Options {
        n_seqs,
        n_ctx: n_seqs * HOME,
        n_ctx_seq: HOME,
        n_batch: 128.max(n_seqs),
        n_threads: 2,
        k_type: TensorType::F32,
        v_type: TensorType::F32,
        ..Options::plain(0, 0)
    }
}

/// A plan with all layers on the device.
fn placed(plan: &Plan) -> Plan {
    let mut placed = plan.clone();
    placed.place(&[DeviceShare {
        device: Device::cpu().expect("the processor").name(),
        n_layers: plan.n_placeable(),
    }]);
    placed
}

/// Models whose passes are padded on a device: with a window, and without.
fn models() -> Vec<(Plan, Weights)> {
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let scratch = tempfile::tempdir().expect("a folder");
    let (mut found, mut kinds) = (Vec::new(), Vec::new());
    for (name, _) in library.sources() {
        let def = library.get(name).expect("it is built in");
        let path = scratch.path().join(format!("{name}.gguf"));
        let size = [("n_ctx_train", 2048), ("vocab_size", 96)];
        let request = SynthRequest {
            set: size.map(|(key, n)| (key.to_owned(), n.to_string())).into(),
            ..SynthRequest::default()
        };
        if synth(&def, &request, &path).is_err() {
            continue;
        }
        let weights = weights::open(&path).expect("synth writes what we read");
        let plan = Plan::new(&def, weights.metadata(), &weights).expect("it fits");
        let has_window = plan.caches.iter().any(|group| group.window().is_some());
        if !kinds.contains(&has_window) && options(4).pads(&placed(&plan)) {
            kinds.push(has_window);
            found.push((plan, weights));
        }
        if kinds.len() == 2 {
            break;
        }
    }
    assert_eq!(found.len(), 2);
    found
}

fn load(plan: Plan, weights: &Weights, options: Options) -> Model {
    Model::load(plan, weights, options, &mut |_, _| {}).expect("it loads")
}

/// The mean square of the differences, relative to that of what is expected.
fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = expected.iter().map(|x| square(*x)).sum();
    error / norm
}

const BOUND: f64 = 1e-6;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1);
        (self.0 >> 33) as usize % n
    }

    fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(96) as u32).collect()
    }
}

/// The logits of each token of a text, alone.
fn alone(model: &mut Model, tokens: &[u32]) -> Vec<f32> {
    let (id, mut out) = (7, Vec::new());
    for (at, part) in tokens.chunks(64).enumerate() {
        let mut batch = Batch::default();
        for (i, token) in part.iter().enumerate() {
            batch.push(*token, id, (at * 64 + i) as u32, true);
        }
        out.extend_from_slice(model.forward(&batch).expect("the pass runs"));
    }
    model.release(id);
    out
}

struct ChurnRequest {
    tokens: Vec<u32>,
    n_prompt: usize,
    n_read: usize,
    expected: Vec<f32>,
}

/// Steps of an engine: every request that decodes reads a token, and one prompt some more. Ended requests make place for
/// others, which may start with the text of an earlier one.
struct Churn<'m> {
    model: Model,
    reference: &'m mut Model,
    random: Random,
    active: HashMap<u32, ChurnRequest>,
    n_seqs: usize,
    last: Vec<u32>,
}

impl Churn<'_> {
    fn arrive(&mut self) {
        for id in 0..self.n_seqs as u32 {
            if self.active.contains_key(&id) {
                continue;
            }
            // Some texts are longer than the keys that a view has at least.
            let longer = if self.random.below(8) == 0 { 230 } else { 0 };
            let (n_prompt, n_more) = (
                2 + longer + self.random.below(60),
                1 + self.random.below(40),
            );
            let mut tokens = self.random.tokens(n_prompt + n_more);
            if self.random.below(3) == 0 {
                let n = self.last.len().min(n_prompt);
                tokens[..n].copy_from_slice(&self.last[..n]);
            }
            let n_read = self.model.resume(id, &tokens[..n_prompt]).n_cached;
            let expected = alone(self.reference, &tokens);
            let request = ChurnRequest {
                tokens,
                n_prompt,
                n_read,
                expected,
            };
            self.active.insert(id, request);
        }
    }

    fn step(&mut self) {
        self.arrive();
        let mut batch = Batch::default();
        let mut ids: Vec<u32> = self.active.keys().copied().collect();
        ids.sort_unstable();
        let prompt = ids.iter().copied().find(|id| {
            let request = &self.active[id];
            request.n_read + 1 < request.n_prompt
        });
        for id in ids {
            let request = &self.active[&id];
            let n = match request.n_read + 1 < request.n_prompt {
                true if prompt == Some(id) => (request.n_prompt - request.n_read).min(64),
                true => continue,
                false => 1,
            };
            for at in request.n_read..request.n_read + n {
                let is_last = at + 1 == request.n_read + n;
                batch.push(request.tokens[at], id, at as u32, is_last);
            }
        }
        let width = self.model.row_width();
        let logits = self.model.forward(&batch).expect("the pass runs").to_vec();
        let places = batch.positions.iter().zip(&batch.outputs);
        let places = places
            .filter(|(_, wanted)| **wanted)
            .map(|(place, _)| *place);
        for ((id, at), row) in places.zip(logits.chunks_exact(width)) {
            let request = self.active.get_mut(&id).expect("it is active");
            let error = nmse(row, &request.expected[at as usize * width..][..width]);
            assert!(error <= BOUND, "token {at} of {id}: NMSE {error:.1e}");
            request.n_read = at as usize + 1;
            if request.n_read == request.tokens.len() {
                self.model.release(id);
                self.last = self.active.remove(&id).expect("it is active").tokens;
            }
        }
    }
}

/// Without flash attention the processor reads runs too, without rows of nobody.
#[test]
fn runs_on_the_processor_give_the_results_of_each_text_alone() {
    for (plan, weights) in models() {
        let plain = Options {
            flash_attn: false,
            ..options(4)
        };
        let mut reference = load(plan.clone(), &weights, options(1));
        let mut churn = Churn {
            model: load(plan, &weights, plain),
            reference: &mut reference,
            random: Random(2),
            active: HashMap::new(),
            n_seqs: 4,
            last: Vec::new(),
        };
        (0..300).for_each(|_| churn.step());
    }
}

#[test]
fn a_thousand_steps_of_arrivals_and_ends_build_no_graph_after_warm_up() {
    const N_SEQS: usize = 8;
    for (plan, weights) in models() {
        let device = placed(&plan);
        let mut reference = load(plan, &weights, options(1));
        let mut churn = Churn {
            model: load(device, &weights, options(N_SEQS)),
            reference: &mut reference,
            random: Random(1),
            active: HashMap::new(),
            n_seqs: N_SEQS,
            last: Vec::new(),
        };
        (0..2000).for_each(|_| churn.step());
        let n_warm = churn.model.n_graphs();
        (0..1000).for_each(|_| churn.step());
        assert_eq!(churn.model.n_graphs(), n_warm, "graphs were built");
        assert!(n_warm < 64, "{n_warm} graphs");
    }
}

#[test]
fn the_first_steps_of_short_sequences_build_no_graph_after_the_warm_up() {
    const N_SEQS: usize = 12;
    for (plan, weights) in models() {
        let mut model = load(placed(&plan), &weights, options(N_SEQS));
        let free = model.free_slots();
        model.warm_up().expect("passes run");
        assert_eq!(model.free_slots(), free, "its sequences are gone");
        let n_warm = model.n_graphs();
        assert!((1..8).contains(&n_warm), "{n_warm} graphs");
        // All are there at once, and then one after another ends.
        for n in (1..=N_SEQS as u32).rev() {
            let mut batch = Batch::default();
            (0..n).for_each(|id| batch.push(1, id, model.next(id), true));
            model.forward(&batch).expect("the pass runs");
            model.release(n - 1);
        }
        assert_eq!(model.n_graphs(), n_warm, "graphs were built");
    }
}

/// Sequences `0..n` with a few tokens each, and what each gets alone for a further token.
fn begun(model: &mut Model, reference: &mut Model, n: u32) -> Vec<(Vec<u32>, Vec<f32>)> {
    let mut random = Random(9);
    (0..n)
        .map(|id| {
            let tokens = random.tokens(3 + id as usize % 5);
            let mut batch = Batch::default();
            for (at, token) in (0..).zip(&tokens[..tokens.len() - 1]) {
                batch.push(*token, id, at, false);
            }
            model.forward(&batch).expect("the pass runs");
            let all = alone(reference, &tokens);
            let row = all[all.len() - model.row_width()..].to_vec();
            (tokens, row)
        })
        .collect()
}

/// A pass over the last token of the first `n` sequences, in an order of its own.
fn last_tokens(texts: &[(Vec<u32>, Vec<f32>)], n: usize) -> (Batch, Vec<usize>) {
    let order: Vec<usize> = (0..n).map(|i| i * 37 % n).collect();
    let mut batch = Batch::default();
    for i in &order {
        let tokens = &texts[*i].0;
        let at = tokens.len() - 1;
        batch.push(tokens[at], *i as u32, at as u32, true);
    }
    (batch, order)
}

#[test]
fn two_hundred_and_fifty_six_sequences_are_one_pass_whether_rows_are_kept_or_handed_out() {
    const N: usize = 256;
    let (plan, weights) = models().remove(0);
    let device = placed(&plan);
    let mut reference = load(plan, &weights, options(1));
    let settings = Options {
        n_ctx: N * 256,
        n_ctx_seq: 256,
        ..options(N)
    };
    let mut model = load(device, &weights, settings);
    let texts = begun(&mut model, &mut reference, N as u32);
    let width = model.row_width();
    for n in [64, 65, 96, 256] {
        let (batch, order) = last_tokens(&texts, n);
        let back = |model: &mut Model| {
            for i in 0..n as u32 {
                let len = texts[i as usize].0.len() as u32;
                assert_eq!(model.forget(i, len - 1), len - 1);
            }
        };
        let check = |i: usize, row: &[f32]| {
            let error = nmse(row, &texts[order[i]].1);
            assert!(error <= BOUND, "row {i} of {n}: NMSE {error:.1e}");
        };
        let n_built = model.n_graphs();
        let rows = model.forward(&batch).expect("the pass runs");
        rows.chunks_exact(width)
            .enumerate()
            .for_each(|(i, row)| check(i, row));
        assert!(model.n_graphs() - n_built <= 1, "{n} rows");
        back(&mut model);
        let (n_built, mut seen) = (model.n_graphs(), 0);
        let mut each = |at: usize, rows: &[f32]| {
            for (i, row) in rows.chunks_exact(width).enumerate() {
                check(at + i, row);
                seen += 1;
            }
        };
        model
            .forward_each(&batch, &mut each)
            .expect("the pass runs");
        assert_eq!((seen, model.n_graphs()), (n, n_built), "the same graph");
        back(&mut model);
    }
}

#[test]
fn rows_that_are_too_many_for_the_head_come_in_their_order() {
    let (plan, weights) = models().remove(1);
    let device = placed(&plan);
    let mut reference = load(plan, &weights, options(1));
    let settings = Options {
        n_outputs: 3,
        ..options(8)
    };
    let mut model = load(device, &weights, settings);
    let texts = begun(&mut model, &mut reference, 8);
    let (batch, order) = last_tokens(&texts, 8);
    let (width, mut seen) = (model.row_width(), 0);
    let mut each = |at: usize, rows: &[f32]| {
        for (i, row) in rows.chunks_exact(width).enumerate() {
            let error = nmse(row, &texts[order[at + i]].1);
            assert!(error <= BOUND, "row {}: NMSE {error:.1e}", at + i);
            seen += 1;
        }
    };
    model
        .forward_each(&batch, &mut each)
        .expect("the pass runs");
    assert_eq!(seen, 8);
}

#[test]
fn a_block_builds_a_graph_for_each_number_of_sequences_not_for_each_token() {
    let scratch = tempfile::tempdir().expect("a folder");
    let with = Definitions::open(&[]).expect("the built-in definitions are readable");
    let made = |library: &Library, name: &str, set: &[(&str, &str)], tensors: &[&str]| {
        let set = set
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()));
        let request = SynthRequest {
            set: set.collect(),
            with: tensors.iter().map(|name| name.to_string()).collect(),
            ..SynthRequest::default()
        };
        let path = scratch.path().join(format!("{name}.gguf"));
        synth(&library.get(name).expect("it is built in"), &request, &path).expect("it is made");
        ModelSource::File(path)
    };
    let target = made(&with.archs, "llama", &[("block_count", "4")], &["output"]);
    let sizes = [("target_layers", "1,2,4"), ("block_size", "6")];
    let chained = ["output", "markov_w1", "markov_w2", "conf_proj"];
    let drafter = made(&with.drafters, "dflash", &sizes, &chained);
    let with = Definitions {
        drafter: DrafterChoice::Named(drafter),
        ..with
    };
    let opened = models::open(&target, &with).expect("it opens");
    let drafter = opened.drafter.expect("a drafter");
    let width = drafter
        .plan
        .target
        .as_ref()
        .expect("it reads a target")
        .row_width() as usize;
    let target = load(opened.plan, &opened.weights, options(2));
    let mut drafter = Drafter::load(drafter, &target, false).expect("it loads");
    let mut random = Random(5);
    let texts = [random.tokens(9), random.tokens(9)];
    for (first, end) in [(0, 4), (4, 8)] {
        let before = drafter.n_after_graphs();
        for sequence in 0..2 {
            let places: Vec<(u32, u32)> = (first..end).map(|at| (sequence, at)).collect();
            let rows = (0..places.len() * width).map(|_| random.below(100) as f32 / 50.0 - 1.0);
            drafter.keep(&places, &rows.collect::<Vec<f32>>());
        }
        let wanted = |sequence: u32, most| DraftRequest {
            sequence,
            tokens: &texts[sequence as usize][..=end as usize],
            most,
        };
        let drafts = drafter
            .draft(&[wanted(0, 6), wanted(1, 3)])
            .expect("it drafts");
        let lens: Vec<usize> = drafts.iter().map(|draft| draft.tokens.len()).collect();
        assert_eq!(lens, [6, 3]);
        // Three tokens of two sequences, then three of one.
        assert_eq!(drafter.n_after_graphs() - before, 2);
    }
}
