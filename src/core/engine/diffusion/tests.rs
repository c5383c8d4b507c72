//! The loop against a naive one, with a model whose logits are a hash of everything it sees.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;

use super::DiffusionModel;
use crate::engine::Remasking;
use crate::engine::client::{Client, QueuePermit};
use crate::engine::compute::{BLOCK, Compute, LabCompute, PrefixBytes, SequenceCache};
use crate::engine::diffusion_options::DiffusionOptions;
use crate::engine::engine_loop::EngineLoop;
use crate::engine::submission::Decoding;
use crate::engine::tests as shared;
use crate::engine::{Event, Events, Failure, FinishReason, Limits, Request, Usage};
use crate::model::{
    self, Batch, CachedPrefix, CapturedRow, DirectHeads, DirectLogit, EncodedMedia, Lab, PassRow,
    PassSink, SequenceId,
};
use crate::models::lora::Adapter;
use crate::models::media::PromptMedia;
use lab_sampling::Sampler;

const N_VOCAB: usize = 40;
const MASK: u32 = 39;
const ENDS: [u32; 2] = [0, 2];
/// A token that no pass survives.
const POISON: u32 = 50;

fn mix(hash: u64, value: u64) -> u64 {
    let x = (hash ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// What is kept of a position: it depends on the whole text, as in a model that looks both ways.
fn key(text: &[u32], position: usize) -> u64 {
    let all = text.iter().fold(1, |h, t| mix(h, u64::from(*t)));
    mix(all, position as u64)
}

fn logits(keys: &[u64], position: usize) -> Vec<f32> {
    let all = keys.iter().fold(position as u64, |h, k| mix(h, *k));
    let value = |token: usize| (mix(all, token as u64) >> 40) as f32 / (1 << 20) as f32 * 0.4;
    (0..N_VOCAB).map(value).collect()
}

#[derive(Default)]
struct Fake {
    n_batch: usize,
    n_cells: usize,
    /// Tokens and keys of each sequence.
    texts: HashMap<SequenceId, (Vec<u32>, Vec<u64>)>,
    passes: Vec<usize>,
}

impl Fake {
    fn used(&self) -> usize {
        let texts = self.texts.values();
        texts.map(|(t, _)| t.len().next_multiple_of(BLOCK)).sum()
    }
}

impl Compute for Fake {
    fn pool(&mut self, rows: &[f32]) -> model::Result<Vec<f32>> {
        Ok(rows.to_vec())
    }

    fn forward(&mut self, batch: &Batch, sink: &mut dyn PassSink) -> model::Result<()> {
        assert!(!batch.is_empty() && batch.len() <= self.n_batch);
        if batch.tokens.contains(&POISON) {
            return Err(model::Error::Internal("poison".into()));
        }
        self.passes.push(batch.len());
        for (token, (id, position)) in batch.tokens.iter().zip(&batch.positions) {
            let (text, _) = self.texts.entry(*id).or_default();
            assert_eq!(text.len(), *position as usize, "read in order");
            text.push(*token);
        }
        for (text, keys) in self.texts.values_mut() {
            let new = keys.len()..text.len();
            keys.extend(new.map(|position| key(text, position)));
        }
        let used = self.used();
        assert!(used <= self.n_cells, "{used} of {}", self.n_cells);
        let wanted = batch
            .positions
            .iter()
            .zip(&batch.outputs)
            .filter(|(_, wanted)| **wanted);
        let rows = wanted.map(|((id, position), _)| logits(&self.texts[id].1, *position as usize));
        for (at, row) in rows.enumerate() {
            sink.rows(&[(at, PassRow::of(&row))]);
        }
        Ok(())
    }

    fn park_threads(&self) {}

    fn n_batch(&self) -> usize {
        self.n_batch
    }

    fn first_not_finite(&self, _: SequenceId, _: &[u32]) -> Option<String> {
        None
    }
}

impl SequenceCache for Fake {
    fn add_adapter(&mut self, _: &Adapter) -> model::Result<()> {
        Ok(())
    }

    fn remove_adapter(&mut self, _: usize) {}

    fn begin(&mut self, id: SequenceId, _: &[f32], _: Option<&Arc<Lab>>) {
        self.release(id);
    }

    fn resume(&mut self, _: SequenceId, _: &[u32]) -> CachedPrefix {
        CachedPrefix::default()
    }

    fn next(&self, id: SequenceId) -> u32 {
        self.texts.get(&id).map_or(0, |(text, _)| text.len() as u32)
    }

    fn forget(&mut self, id: SequenceId, from: u32) -> u32 {
        let (text, keys) = self.texts.entry(id).or_default();
        text.truncate(from as usize);
        keys.truncate(from as usize);
        text.len() as u32
    }

    fn release(&mut self, id: SequenceId) {
        self.texts.remove(&id);
    }

    fn discard(&mut self, id: SequenceId) {
        self.texts.remove(&id);
    }

    fn set_source(&mut self, _: SequenceId, _: &[u32]) {}

    fn encode_media(
        &mut self,
        _: &PromptMedia,
        _: &mut EncodedMedia,
        _: Instant,
    ) -> model::Result<bool> {
        Ok(true)
    }

    fn set_media(&mut self, _: SequenceId, _: (&PromptMedia, &EncodedMedia), _: &[u32]) {}

    fn n_free_blocks(&self) -> Option<usize> {
        Some((self.n_cells - self.used()) / BLOCK)
    }

    fn has_states(&self) -> bool {
        false
    }

    fn is_shared(&self) -> bool {
        false
    }
}

/// Lab requests are refused for text diffusion before anything runs.
impl PrefixBytes for Fake {}

impl LabCompute for Fake {
    fn captured_rows(&mut self) -> Vec<CapturedRow> {
        Vec::new()
    }

    fn lens(&mut self, _: SequenceId, _: (&[f32], usize)) -> model::Result<Vec<f32>> {
        unreachable!("no lens")
    }

    fn direct_logit(&mut self, _: u32) -> model::Result<DirectLogit> {
        unreachable!("no attribution")
    }

    fn direct_heads(&mut self, _: usize, _: &[f64]) -> model::Result<DirectHeads> {
        unreachable!("no attribution")
    }
}

/// The paper's loop as it stands there, for one text: the tokens, and what each step fixed.
fn naively(request: &Request, config: &DiffusionModel) -> (Vec<u32>, Vec<Vec<usize>>) {
    let asked = request.diffusion.unwrap_or_default();
    let n = request.max_tokens.expect("a length");
    let n_prompt = request.prompt.len();
    let steps = asked.steps.unwrap_or(n).min(n);
    let block = asked.block_length.unwrap_or(32).min(n);
    let rule = asked.remasking.unwrap_or(config.remasking);
    let mut sampler = Sampler::new(&request.sampling, request.choice).expect("sound");
    let mut text = request.prompt.clone();
    text.extend(vec![MASK; n]);
    let mut blind: Vec<u32> = vec![MASK; n_prompt + n];
    let (mut keys, mut blind_keys) = (Vec::new(), Vec::new());
    let mut all = Vec::new();
    for begin in (0..n).step_by(block) {
        let end = (begin + block).min(n);
        let n_steps = (steps * end / n - steps * begin / n).clamp(1, end - begin);
        for step in 0..n_steps {
            let open: Vec<usize> = (begin..end)
                .filter(|i| text[n_prompt + i] == MASK)
                .collect();
            if open.is_empty() {
                break;
            }
            blind[n_prompt..].copy_from_slice(&text[n_prompt..]);
            let kept = match asked.approximate_cache == Some(true) && step > 0 {
                true => (n_prompt + begin).saturating_sub(config.shift),
                false => 0,
            };
            for (text, keys) in [(&text, &mut keys), (&blind, &mut blind_keys)] {
                keys.truncate(kept);
                keys.extend((kept..text.len()).map(|p| key(text, p)));
            }
            let mut found = Vec::new();
            for i in open {
                let position = n_prompt + i - config.shift;
                let mut z = logits(&keys, position);
                let away = logits(&blind_keys, position);
                if let Some(scale) = asked.cfg_scale.filter(|s| *s > 0.0) {
                    for (z, u) in z.iter_mut().zip(away) {
                        *z = u + (1.0 + scale) as f32 * (*z - u);
                    }
                }
                z[MASK as usize] = f32::NEG_INFINITY;
                let draw = (all.len() * n + i) as u64;
                let token = sampler.sample_draw(draw, &z).expect("good logits");
                let max = z.iter().copied().fold(f32::MIN, f32::max);
                let e: Vec<f64> = z.iter().map(|z| f64::from(z - max).exp()).collect();
                let total: f64 = e.iter().sum();
                let p: Vec<f64> = e.iter().map(|e| e / total).collect();
                let mut falling = p.clone();
                falling.sort_by(|a, b| b.total_cmp(a));
                let rank = match rule {
                    Remasking::LowConfidence => p[token as usize],
                    Remasking::Margin => falling[0] - falling[1],
                    Remasking::Entropy => p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum(),
                    Remasking::Random | Remasking::None => sampler.uniform(draw),
                };
                found.push((i, token, rank, p[token as usize]));
            }
            let left = n_steps - step;
            let share = found.len().div_ceil(left);
            if rule != Remasking::None {
                found.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
            }
            let is_fixed = |(at, found): &(usize, &(usize, u32, f64, f64))| match rule {
                Remasking::None => found.2 < 1.0 / left as f64,
                _ => *at < share || asked.threshold.is_some_and(|t| found.3 >= t),
            };
            let fixed: Vec<_> = found
                .iter()
                .enumerate()
                .filter(is_fixed)
                .map(|(_, f)| f)
                .collect();
            for (i, token, ..) in &fixed {
                text[n_prompt + i] = *token;
            }
            all.push(fixed.iter().map(|f| f.0).collect());
            let answer = &text[n_prompt..];
            let complete = answer.iter().take_while(|t| **t != MASK);
            if complete.clone().any(|t| ENDS.contains(t)) {
                let answer: Vec<u32> = complete
                    .copied()
                    .take_while(|t| !ENDS.contains(t))
                    .collect();
                return (answer, all);
            }
        }
    }
    (text.split_off(n_prompt), all)
}

const LIMITS: Limits = Limits {
    lab_bytes: 1 << 20,
    n_ctx: 100,
    ..shared::LIMITS
};

fn config(shift: usize) -> DiffusionModel {
    DiffusionModel {
        mask: MASK,
        shift,
        remasking: Remasking::LowConfidence,
        n_batch: 100,
        is_kept: true,
    }
}

fn engine() -> EngineLoop<Fake> {
    let model = Fake {
        n_batch: 100,
        n_cells: 400,
        ..Fake::default()
    };
    EngineLoop::new(model, shared::tokenizer(), LIMITS)
}

fn request(prompt: &[u32], n: usize, diffusion: DiffusionOptions) -> Request {
    Request {
        diffusion: Some(diffusion),
        trace: true,
        ..shared::request(prompt, n)
    }
}

fn submit(engine: &mut EngineLoop<Fake>, shift: usize, request: Request) -> Events {
    let settings = config(shift).settings(&request, &LIMITS).expect("sound");
    let sampler = Sampler::new(&request.sampling, request.choice).expect("sound");
    let permit = QueuePermit::take(&Arc::default(), &Client::default(), 1).expect("free");
    let decoding = Decoding::Diffusion(sampler, settings);
    let (submitted, receiver) = shared::submitted(request, decoding, &permit);
    engine.enqueue(submitted);
    receiver
}

#[derive(Debug, Default, PartialEq)]
struct Got {
    tokens: Vec<u32>,
    steps: Vec<Vec<usize>>,
    end: Option<Result<(FinishReason, usize, usize), Failure>>,
}

fn got(mut events: Events) -> Got {
    let mut got = Got::default();
    while let Ok(event) = events.try_recv() {
        assert!(got.end.is_none(), "nothing comes after the end");
        match event {
            Event::Text { tokens, .. } => {
                let ids = tokens.iter().map(|t| t.chosen.expect("asked for").id);
                got.tokens.extend(ids);
            }
            Event::Prompt(_) => panic!("prompts are not scored"),
            Event::Pooled(_) | Event::Lab(_) => panic!("nothing is pooled"),
            Event::Progress(_) => panic!("progress is not asked for"),
            Event::Ended(_) => panic!("nothing ends a block of masks"),
            Event::DenoisingStep { step, fixed, .. } => {
                assert_eq!(step, got.steps.len());
                got.steps.push(fixed.iter().map(|f| f.position).collect());
            }
            Event::Done { reason, usage, .. } => {
                let Usage {
                    passes, positions, ..
                } = usage;
                got.end = Some(Ok((reason, passes, positions)));
            }
            Event::Failed(failure) => got.end = Some(Err(failure)),
        }
    }
    got
}

fn run(engine: &mut EngineLoop<Fake>) {
    for _ in 0..10_000 {
        if engine.is_idle() {
            assert!(engine.model().texts.is_empty(), "nothing is left behind");
            return;
        }
        engine.step();
    }
    panic!("somebody starves");
}

fn requests() -> impl Strategy<Value = Request> {
    let rules = [
        Remasking::LowConfidence,
        Remasking::Margin,
        Remasking::Entropy,
        Remasking::Random,
        Remasking::None,
    ];
    (
        prop::collection::vec(3u32..30, 1..12),
        1usize..30,
        prop::option::of(1usize..40),
        prop::option::of(1usize..40),
        prop::sample::select(rules.to_vec()),
        prop::sample::select(vec![None, Some(0.0), Some(1.5)]),
        prop::sample::select(vec![None, Some(0.2)]),
        any::<bool>(),
        prop::sample::select(vec![0.0, 0.9]),
    )
        .prop_map(
            |(prompt, n, steps, block_length, rule, cfg, threshold, cache, temperature)| {
                let mut request = request(
                    &prompt,
                    n,
                    DiffusionOptions {
                        steps,
                        block_length,
                        remasking: Some(rule),
                        cfg_scale: cfg,
                        threshold: threshold.filter(|_| rule != Remasking::None),
                        approximate_cache: Some(cache),
                    },
                );
                request.sampling.temperature = temperature;
                request
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn many_requests_at_once_get_what_the_naive_loop_gives_each(
        requests in prop::collection::vec(requests(), 1..7),
        shift in 0usize..2,
        cancelled in any::<u8>(),
    ) {
        let mut engine = engine();
        let mut waiting = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            let events = submit(&mut engine, shift, request.clone());
            if cancelled >> i & 1 == 1 {
                drop(events);
            } else {
                waiting.push((request, events));
            }
            engine.step();
        }
        run(&mut engine);
        for (request, events) in waiting {
            let got = got(events);
            let (tokens, steps) = naively(request, &config(shift));
            prop_assert_eq!(&got.steps, &steps, "{:?}", got.end);
            let is_whole = tokens.len() == request.max_tokens.unwrap_or(0);
            prop_assert_eq!(&got.tokens, &tokens);
            let (reason, passes, _) = got.end.expect("it ended").expect("well");
            prop_assert_eq!(reason == FinishReason::Length, is_whole);
            prop_assert_eq!(passes, steps.len());
        }
    }
}

#[test]
fn steps_and_blocks_of_any_length() {
    let number_of_steps = |n, steps, block_length| {
        let mut engine = engine();
        let asked = DiffusionOptions {
            steps,
            block_length,
            ..DiffusionOptions::UNSET
        };
        // No end: every position is fixed.
        let mut request = request(&[5, 6], n, asked);
        request.sampling.logit_bias = ENDS.map(|end| (end, f32::NEG_INFINITY)).to_vec();
        let events = submit(&mut engine, 0, request);
        run(&mut engine);
        let got = got(events);
        assert_eq!(got.tokens.len(), n);
        got.steps.iter().map(Vec::len).collect::<Vec<_>>()
    };
    assert_eq!(number_of_steps(6, None, None), [1; 6], "as many as tokens");
    assert_eq!(number_of_steps(6, Some(99), Some(6)), [1; 6], "and no more");
    assert_eq!(number_of_steps(6, Some(1), Some(6)), [6], "all at once");
    assert_eq!(number_of_steps(6, Some(4), Some(6)), [2, 2, 1, 1]);
    assert_eq!(
        number_of_steps(6, Some(6), Some(1)),
        [1; 6],
        "from the left"
    );
    assert_eq!(number_of_steps(10, Some(5), Some(4)), [2, 2, 2, 2, 2]);
    assert_eq!(number_of_steps(10, Some(1), Some(4)), [4, 4, 2], "one each");
    assert_eq!(number_of_steps(1, Some(1), Some(1)), [1]);
}

#[test]
fn duplicate_sequences_are_computed_once() {
    let mut engine = engine();
    let asked = DiffusionOptions {
        steps: Some(4),
        ..DiffusionOptions::UNSET
    };
    let all: Vec<_> = (0..3)
        .map(|choice| {
            let request = Request {
                choice,
                ..request(&[7, 8], 8, asked)
            };
            submit(&mut engine, 0, request)
        })
        .collect();
    run(&mut engine);
    assert_eq!(engine.model().passes, [10; 4]);
    let positions = all
        .into_iter()
        .map(got)
        .map(|got| got.end.expect("it ended").expect("well").2);
    assert_eq!(positions.sum::<usize>(), 40);
}

#[test]
fn a_pass_that_fails_ends_only_those_that_cannot_go_on() {
    let mut engine = engine();
    let good = request(&[5, 6], 8, DiffusionOptions::UNSET);
    let bad = request(&[5, POISON], 8, DiffusionOptions::UNSET);
    let events = [&good, &bad, &good].map(|request| submit(&mut engine, 0, request.clone()));
    run(&mut engine);
    let [first, poisoned, last] = events.map(got);
    assert_eq!(first.tokens, naively(&good, &config(0)).0);
    assert_eq!(last.tokens, first.tokens);
    assert!(
        matches!(poisoned.end, Some(Err(Failure::Computation(_)))),
        "{poisoned:?}"
    );
}

#[test]
fn what_the_model_cannot_do_is_refused_by_the_name_of_the_field() {
    type Change = dyn Fn(&mut Request, &mut DiffusionOptions);
    let refused = |change: &Change| {
        let mut asked = DiffusionOptions::UNSET;
        let mut request = request(&[5; 60], 8, asked);
        change(&mut request, &mut asked);
        request.diffusion = Some(asked);
        let error = config(0).settings(&request, &LIMITS).map(drop);
        error.expect_err("refused").to_string()
    };
    let cases: [(&Change, &str); 8] = [
        (
            &|_, d| d.steps = Some(0),
            "`diffusion.steps`: found `0`, expected at least 1",
        ),
        (
            &|_, d| d.block_length = Some(0),
            "`diffusion.block_length`: found `0`",
        ),
        (
            &|_, d| d.cfg_scale = Some(-1.0),
            "`diffusion.cfg_scale`: found `-1`, expected a number from 0 to 100",
        ),
        (
            &|_, d| d.cfg_scale = Some(1.0),
            "guidance reads the sequence twice: the prompt has 60 tokens",
        ),
        (
            &|_, d| d.threshold = Some(1.5),
            "`diffusion.threshold`: found `1.5`, expected a probability",
        ),
        (
            &|_, d| {
                d.threshold = Some(0.9);
                d.remasking = Some(Remasking::None);
            },
            "`diffusion.threshold`: found `0.9`, expected none",
        ),
        (
            &|r, _| r.sampling.dry_multiplier = 1.0,
            "`dry_multiplier`: found `1`",
        ),
        (&|r, _| r.sampling.mirostat = 2, "`mirostat`: found `2`"),
    ];
    for (change, expected) in cases {
        let found = refused(change);
        assert!(found.contains(expected), "{found}");
    }
}
