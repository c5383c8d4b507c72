//! Whole chains against the reference implementation.

use proptest::prelude::*;

use super::candidates::Store;
use super::random::Random;
use super::{
    Allowed, PARAMETERS, Params, RowLogits, SampleError, Sampler, StageName, TopLogits,
    reference_chain,
};

const BANNED: f32 = f32::NEG_INFINITY;

/// A peaked row over a vocabulary of `n`, shuffled by `salt`.
fn row(n: u32, salt: u32) -> Vec<f32> {
    let rng = Random::new(u64::from(salt), 0);
    let uniforms = (0..u64::from(n)).map(|i| rng.uniform(i, 0));
    uniforms.map(|u| -4.0 * (u + 1e-9).ln() as f32).collect()
}

fn everything() -> Params {
    Params {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.02,
        top_n_sigma: 2.0,
        typical_p: 0.97,
        xtc_probability: 0.4,
        xtc_threshold: 0.1,
        tfs_z: 0.98,
        dry_multiplier: 0.8,
        dry_sequence_breakers: vec![3],
        repeat_penalty: 1.1,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        logit_bias: vec![(5, 1.0), (6, BANNED)],
        seed: 9,
        ..Params::default()
    }
}

fn generate(sampler: &mut Sampler, n: u32) -> Vec<u32> {
    let step = |i| {
        let token = sampler.sample(&row(500, i)).expect("good logits");
        sampler.accept(token);
        token
    };
    (0..n).map(step).collect()
}

#[test]
fn greedy_is_the_argmax_and_the_lowest_id_of_equals() {
    let params = reference_chain::with(|p| p.temperature = 0.0);
    let mut sampler = Sampler::new(&params, 0).expect("valid");
    assert_eq!(sampler.sample(&[1.0, 3.0, BANNED, 3.0]), Ok(1));
    assert_eq!(sampler.sample(&[-0.0, 0.0]), Ok(0));
}

#[test]
fn greedy_needs_no_stage_that_keeps_the_best() {
    let greedy = |params| Sampler::new(&params, 0).expect("valid").chain.len();
    let params = Params {
        temperature: 0.0,
        ..everything()
    };
    assert_eq!(greedy(params.clone()), 10, "the last one may drop the best");
    let params = Params {
        typical_p: 1.0,
        xtc_probability: 0.0,
        ..params
    };
    assert_eq!(greedy(params.clone()), 3, "bias and penalties");
    let mut reordered = params;
    reordered.order.rotate_left(3);
    assert_eq!(greedy(reordered), 8, "what comes before them acts on them");
}

#[test]
fn a_sequence_depends_on_seed_choice_and_nothing_else() {
    let new = |seed, choice| {
        Sampler::new(
            &Params {
                seed,
                ..everything()
            },
            choice,
        )
    };
    let alone = generate(&mut new(1, 0).expect("valid"), 40);
    assert_ne!(generate(&mut new(2, 0).expect("valid"), 40), alone);
    assert_ne!(generate(&mut new(1, 1).expect("valid"), 40), alone);

    let mut sampler = new(1, 0).expect("valid");
    let mut neighbour = new(7, 3).expect("valid");
    for (i, &expected) in (0..).zip(&alone) {
        generate(&mut neighbour, 1 + i % 3);
        let logits = row(500, i);
        assert_eq!(sampler.sample(&logits), Ok(expected));
        assert_eq!(sampler.sample(&logits), Ok(expected), "asked twice");
        sampler.accept(expected);
    }
}

#[test]
fn a_mask_comes_before_everything() {
    let logits = row(70, 3);
    for token in [0, 31, 32, 69] {
        let mut mask = [0u32; 3];
        mask[token as usize / 32] = 1 << (token % 32);
        let params = Params {
            logit_bias: vec![(5, 1000.0)],
            ..everything()
        };
        let mut sampler = Sampler::new(&params, 0).expect("valid");
        assert_eq!(sampler.sample_masked(&logits, Some(&mask)), Ok(token));
    }

    let mut sampler = Sampler::new(&everything(), 0).expect("valid");
    let all = [u32::MAX; 3];
    let free = sampler.sample(&logits);
    assert_eq!(sampler.sample_masked(&logits, Some(&all)), free);
    assert_eq!(
        sampler.sample_masked(&logits, Some(&[0; 3])),
        Err(SampleError::NothingLeft { n_vocab: 70 })
    );
    assert_eq!(
        sampler.sample_masked(&logits, Some(&all[1..])),
        Err(SampleError::MaskLength {
            found: 2,
            expected: 3
        })
    );
}

#[test]
fn bad_logits_are_errors_in_every_chain() {
    for params in [Params::default(), everything()] {
        let mut sampler = Sampler::new(&params, 0).expect("valid");
        let mut logits = row(50, 1);
        logits[20] = f32::NAN;
        let error = Err(SampleError::NotANumber { index: 20 });
        assert_eq!(sampler.sample(&logits), error);
        assert_eq!(sampler.sample_masked(&logits, Some(&[0, 0])), error);
        logits[20] = f32::INFINITY;
        let error = Err(SampleError::Infinite { index: 20 });
        assert_eq!(sampler.sample(&logits), error);
        let error = Err(SampleError::NothingLeft { n_vocab: 50 });
        assert_eq!(sampler.sample(&[BANNED; 50]), error);
    }
    let mut sampler = Sampler::new(&Params::default(), 0).expect("valid");
    assert_eq!(
        sampler.sample(&[]),
        Err(SampleError::NothingLeft { n_vocab: 0 })
    );
}

#[test]
fn steps_after_the_first_allocate_no_buffers() {
    let order = StageName::ALL.to_vec();
    let reversed = order.iter().rev().copied().collect();
    for order in [order, reversed] {
        let params = Params {
            order,
            logit_bias: vec![(5, 1.0)],
            ..everything()
        };
        let mut sampler = Sampler::new(&params, 0).expect("valid");
        sampler.sample(&row(5000, 0)).expect("good logits");
        let capacities = || Store::lend(|store| store.capacities());
        let before = capacities();
        for salt in 1..50 {
            sampler.sample(&row(5000, salt)).expect("good logits");
            // A flat row makes every cut as long as it can be.
            sampler.sample(&[0.5; 5000]).expect("good logits");
        }
        assert_eq!(capacities(), before);
    }
}

/// Draws under `params` against the probabilities of the naive chain.
fn draws_follow(params: &Params, logits: &[f32]) {
    // A probability that is wrong by a twelfth everywhere, or one in ten by a third, is seen.
    const DRAWS: u32 = 10_000;
    let kept = reference_chain::allowed(reference_chain::chain(params, &[], &[], logits));
    let kept_logits: Vec<f32> = kept.iter().map(|&(_, logit)| logit).collect();
    let expected = reference_chain::softmax(&kept_logits);

    let mut counts = vec![0u32; logits.len()];
    let mut sampler = Sampler::new(params, 0).expect("valid");
    for _ in 0..DRAWS {
        let token = sampler.sample(logits).expect("good logits");
        counts[token as usize] += 1;
        sampler.accept(token);
    }

    let mut chi_square = 0.0;
    for (&(id, _), p) in kept.iter().zip(&expected) {
        let mean = p * f64::from(DRAWS);
        assert!(mean > 5.0, "too rare for the test");
        chi_square += (f64::from(counts[id as usize]) - mean).powi(2) / mean;
        counts[id as usize] = 0;
    }
    assert_eq!(counts.iter().sum::<u32>(), 0, "a removed token was drawn");
    // Mean plus four standard deviations.
    let freedom = kept.len() as f64 - 1.0;
    let bound = freedom + 4.0 * (2.0 * freedom).sqrt();
    assert!(chi_square < bound, "{chi_square} of {bound}");
}

#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = (0..60).map(|i| (i * 23 % 60) as f32 * 0.08).collect();
    let changes: [fn(&mut Params); 6] = [
        |_| {},
        |p| {
            (p.temperature, p.top_k, p.top_p, p.min_p) = (0.7, 30, 0.9, 0.05);
            p.logit_bias = vec![(4, 2.0), (8, -1.0)];
        },
        |p| {
            (p.temperature, p.top_p) = (1.8, 0.6);
            p.order = vec![StageName::Temperature, StageName::TopP];
        },
        |p| (p.tfs_z, p.typical_p) = (0.95, 0.9),
        |p| (p.mirostat, p.mirostat_tau, p.mirostat_eta) = (1, 3.0, 0.0),
        |p| (p.mirostat, p.mirostat_tau, p.mirostat_eta) = (2, 3.0, 0.0),
    ];
    for change in changes {
        let mut params = reference_chain::with(change);
        params.seed = 3;
        draws_follow(&params, &logits);
    }
}

/// Parameters of one stage: the one that this parameter belongs to.
fn of_stage(name: &str, value: f64) -> Params {
    let mut params = Params {
        xtc_probability: if name == "xtc_threshold" { 1.0 } else { 0.0 },
        ..Params::default()
    };
    let parameter = PARAMETERS.iter().find(|p| p.name == name).expect(name);
    parameter.set(&mut params, value);
    params
}

fn kept(name: &str, value: f64, logits: &[f32]) -> Vec<u32> {
    let kept = reference_chain::run(&of_stage(name, value), &[], &[], logits);
    let kept = kept.expect("something stays").into_iter();
    kept.map(|(id, _)| id).collect()
}

#[test]
fn each_cut_keeps_the_tokens_of_its_definition() {
    let ln = |ps: &[f32]| -> Vec<f32> { ps.iter().map(|p| p.ln()).collect() };
    let peaked = &ln(&[0.1, 0.6, 0.1, 0.2])[..];
    // Mean 0, standard deviation 2.
    let two = &[-2.0, 2.0, -2.0, 2.0, BANNED];
    // Entropy 1.22: surprisals of 0.69, 1.61, 1.61, 2.30.
    let typical = &ln(&[0.5, 0.2, 0.2, 0.1])[..];
    // Differences of 0.2, 0.15, 0.04, 0.01; second ones of 0.05, 0.11, 0.03: shares of 0.26, 0.84, 1.
    let curved = &ln(&[0.02, 0.42, 0.07, 0.22, 0.03])[..];
    let straight = &ln(&[0.3, 0.25, 0.2, 0.15, 0.1])[..];
    let falling = &ln(&[0.4, 0.3, 0.2, 0.1])[..];
    let (flat, longer) = (vec![-3.5; 40_000], vec![1.5; 40_002]);
    let quarter: Vec<u32> = (0..10_001).collect();
    let cases: &[(&str, f64, &[f32], &[u32])] = &[
        ("top_k", 2.0, &[1.0, 2.0, 1.0, 1.0], &[0, 1]),
        ("min_p", 0.16, peaked, &[0, 1, 2, 3]),
        ("min_p", 0.17, peaked, &[1, 3]),
        ("min_p", 0.34, peaked, &[1]),
        ("min_p", 1.0, &[0.5, 2.0, BANNED, 2.0], &[1, 3]),
        ("min_p", f64::MIN_POSITIVE, &[f32::MIN, BANNED], &[0]),
        ("top_p", 0.0, peaked, &[1]),
        ("top_p", 0.59, peaked, &[1]),
        ("top_p", 0.61, peaked, &[1, 3]),
        ("top_p", 0.81, peaked, &[0, 1, 3]),
        ("top_p", 0.99, peaked, &[0, 1, 2, 3]),
        ("top_p", 0.25, &flat, &quarter[..10_000]),
        ("top_p", 0.999_999, &[BANNED, 1.0, BANNED, 1.0], &[1, 3]),
        ("top_p", 0.999_999, &[f32::MIN, f32::MAX], &[1]),
        ("top_n_sigma", 1.0, two, &[1, 3]),
        ("top_n_sigma", 2.0, two, &[0, 1, 2, 3]),
        ("top_n_sigma", 0.5, &[7.0, 7.0], &[0, 1]),
        ("typical_p", 0.0, typical, &[1]),
        ("typical_p", 0.3, typical, &[1, 2]),
        ("typical_p", 0.6, typical, &[0, 1, 2]),
        ("typical_p", 0.95, typical, &[0, 1, 2, 3]),
        ("tfs_z", 0.0, curved, &[1]),
        ("tfs_z", 0.3, curved, &[1, 3]),
        ("tfs_z", 0.9, curved, &[1, 2, 3]),
        ("tfs_z", 1.0, curved, &[0, 1, 2, 3, 4]),
        ("tfs_z", 0.25, straight, &[0]),
        ("tfs_z", 0.75, straight, &[0, 1, 2]),
        ("tfs_z", 0.25, &longer, &quarter),
        ("tfs_z", 0.0, &[1.0, 9.0], &[0, 1]),
        ("tfs_z", 0.5, &[BANNED, 9.0], &[1]),
        ("tfs_z", 0.5, &[f32::MIN, f32::MAX, f32::MIN], &[1]),
        ("xtc_threshold", 0.15, falling, &[2, 3]),
        ("xtc_threshold", 0.35, falling, &[0, 1, 2, 3]),
        ("xtc_threshold", 0.0, falling, &[3]),
        ("xtc_threshold", 0.2, &[1.0, 1.0, 1.0], &[2]),
    ];
    for (name, value, logits, expected) in cases {
        let shown = &logits[..logits.len().min(5)];
        assert_eq!(
            kept(name, *value, logits),
            *expected,
            "{name} {value} {shown:?}"
        );
    }
}

#[test]
fn the_floor_of_min_p_is_exact_to_the_last_bit() {
    for percent in 1..100 {
        let min_p = f64::from(percent) / 100.0;
        let nearest = min_p.ln() as f32;
        let stays = f64::from(nearest) >= min_p.ln();
        let n = kept("min_p", min_p, &[0.0, nearest]).len();
        assert_eq!(n, 1 + usize::from(stays));
    }
}

fn one_stage() -> impl Strategy<Value = Params> {
    let mirostat = (1..3u32, 0.0..8.0f64, 0.3..2.0f64);
    prop_oneof![
        (1..500u32).prop_map(|k| of_stage("top_k", k.into())),
        (1e-9..1.0f64).prop_map(|p| of_stage("min_p", p)),
        (0.0..1.0f64).prop_map(|p| of_stage("top_p", p)),
        (0.01..3.0f64).prop_map(|n| of_stage("top_n_sigma", n)),
        (0.01..0.99f64).prop_map(|p| of_stage("typical_p", p)),
        (0.0..1.0f64).prop_map(|z| of_stage("tfs_z", z)),
        (0.0..0.5f64).prop_map(|p| of_stage("xtc_threshold", p)),
        mirostat.prop_map(|(mirostat, mirostat_tau, temperature)| Params {
            mirostat,
            mirostat_tau,
            temperature,
            ..Params::default()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2500))]

    #[test]
    fn each_stage_alone_equals_the_reference(
        params in one_stage(),
        // Of flat rows the first few tokens do not decide.
        logits in prop_oneof![
            3 => reference_chain::logits(1..1500),
            1 => prop::collection::vec(-1.0..1.0f32, 300..4000),
        ],
    ) {
        let expected = reference_chain::allowed(reference_chain::chain(&params, &[], &[], &logits));
        prop_assume!(!expected.is_empty());
        let found = reference_chain::run(&params, &[], &[], &logits)?;
        prop_assert_eq!(reference_chain::allowed(found), expected);
    }
}

fn params() -> impl Strategy<Value = Params> {
    let numbers = (
        prop_oneof![Just(0.0), Just(1.0), 0.1..3.0f64],
        prop_oneof![Just(0), 1..60u32],
        prop_oneof![Just(1.0), 0.0..1.0f64],
        prop_oneof![Just(0.0), 1e-6..1.0f64],
        prop_oneof![Just(1.0), 0.5..2.0f64],
        -1..20i32,
        (-2.0..2.0f64, -2.0..2.0f64),
        prop_oneof![Just(0.0), 0.1..3.0f64],
        prop_oneof![Just(1.0), 0.1..1.0f64],
        // The reference acts in every step.
        (prop_oneof![Just(0.0), Just(1.0)], 0.0..0.6f64),
        prop_oneof![Just(1.0), 0.0..1.0f64],
    );
    let bias = prop::collection::btree_map(0..30u32, -5.0..5.0f32, 0..4);
    let order = Just(StageName::ALL.to_vec()).prop_shuffle();
    let dry = (prop_oneof![Just(0.0), 0.1..2.0f64], 1..4u32);
    (numbers, bias, dry, order).prop_map(|(n, bias, dry, order)| Params {
        temperature: n.0,
        top_k: n.1,
        top_p: n.2,
        min_p: n.3,
        repeat_penalty: n.4,
        repeat_last_n: n.5,
        presence_penalty: n.6.0,
        frequency_penalty: n.6.1,
        top_n_sigma: n.7,
        typical_p: n.8,
        xtc_probability: n.9.0,
        xtc_threshold: n.9.1,
        dry_multiplier: dry.0,
        dry_base: 1.4,
        dry_allowed_length: dry.1,
        dry_penalty_last_n: -1,
        dry_sequence_breakers: vec![3],
        tfs_z: n.10,
        logit_bias: bias.into_iter().collect(),
        order,
        ..Params::default()
    })
}

proptest! {
    #[test]
    fn something_always_stays(
        mut params in params(),
        mirostat in (0..3u32, 0.0..100.0f64),
        logits in prop::collection::vec(
            prop_oneof![Just(BANNED), Just(f32::MIN), Just(f32::MAX), Just(0.0), -1e-3..1e3f32],
            1..300,
        ),
    ) {
        prop_assume!(logits.iter().any(|logit| *logit > BANNED));
        params.logit_bias.clear();
        if mirostat.0 > 0 {
            let of_cuts = StageName::ALL.iter().filter(|name| !name.is_cut());
            params = Params {
                mirostat: mirostat.0,
                mirostat_tau: mirostat.1,
                temperature: params.temperature,
                repeat_penalty: params.repeat_penalty,
                order: of_cuts.chain([&StageName::Mirostat]).copied().collect(),
                ..Params::default()
            };
        }
        let mut sampler = Sampler::new(&params, 0).expect("valid");
        for _ in 0..3 {
            let token = sampler.sample(&logits)?;
            prop_assert!(logits[token as usize] > BANNED);
            sampler.accept(token);
        }
    }

    #[test]
    fn every_chain_in_every_order_equals_the_reference(
        params in params(),
        logits in reference_chain::logits(30..300),
        prompt in prop::collection::vec(0..30u32, 0..20),
        generated in prop::collection::vec(0..30u32, 0..20),
    ) {
        let expected = reference_chain::allowed(reference_chain::chain(&params, &prompt, &generated, &logits));
        prop_assume!(!expected.is_empty());
        let kept = reference_chain::run(&params, &prompt, &generated, &logits)?;
        prop_assert_eq!(reference_chain::allowed(kept), expected.clone());

        let mut sampler = Sampler::new(&params, 0).expect("valid");
        sampler.accept_prompt(&prompt);
        for &token in &generated {
            sampler.accept(token);
        }
        let token = sampler.sample(&logits)?;
        if params.temperature == 0.0 {
            let best = expected.iter().fold(expected[0], |best, &k| {
                if k.1 > best.1 { k } else { best }
            });
            prop_assert_eq!(token, best.0);
        } else {
            prop_assert!(expected.iter().any(|&(id, _)| id == token));
        }
    }
}

/// The `k` highest logits of a row as a device may send them: of equal ones at the end those with the highest ids, in no order,
/// with a sum that is wrong by a share.
fn top(logits: &[f32], k: usize, error: f64) -> (Vec<u32>, Vec<f32>, f64) {
    let mut falling: Vec<u32> = (0..logits.len() as u32).rev().collect();
    falling.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    falling.truncate(k);
    let n = falling.len();
    falling.rotate_left(n / 3);
    let values = falling.iter().map(|id| logits[*id as usize]).collect();
    let max = logits.iter().copied().fold(BANNED, f32::max);
    let weights = logits
        .iter()
        .map(|l| (f64::from(*l) - f64::from(max)).exp());
    let sum: f64 = weights.sum::<f64>() * (1.0 + error);
    (falling, values, f64::from(max) + sum.ln())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn what_the_highest_logits_decide_is_what_all_decide(
        params in prop_oneof![params(), one_stage()],
        logits in prop_oneof![
            2 => reference_chain::logits(30..300),
            1 => (200..3000u32, 0..1000u32).prop_map(|(n, salt)| row(n, salt)),
        ],
        prompt in prop::collection::vec(0..30u32, 0..20),
        generated in prop::collection::vec(0..30u32, 0..20),
        (k, error) in (1..70usize, -9e-4..9e-4f64),
        mask in prop::option::of(prop::collection::vec(any::<u32>(), 100)),
        banned in prop::collection::vec(0..30u32, 0..3),
        seed in any::<u64>(),
    ) {
        let mut sampler = Sampler::new(&Params { seed, ..params }, 0).expect("valid");
        sampler.accept_prompt(&prompt);
        for &token in &generated {
            sampler.accept(token);
        }
        let n_words = logits.len().div_ceil(32);
        let mask = mask.as_ref().map(|mask| &mask[..n_words]);
        let allowed = Allowed { mask, banned: &banned };
        let all = sampler.sample_row(RowLogits::All(&logits), allowed);
        let (ids, values, log_sum) = top(&logits, k, error);
        let top = TopLogits { n_vocab: logits.len(), ids: &ids, logits: &values, log_sum };
        match sampler.sample_row(RowLogits::Top(top), allowed) {
            Err(SampleError::Undecided) => {}
            found => prop_assert_eq!(found, all),
        }
    }
}

/// The share of rows that the 64 highest logits decide.
fn decided(change: impl Fn(&mut Params), row_of: impl Fn(u32) -> Vec<f32>) -> f64 {
    const ROWS: u32 = 400;
    let mut sampler = Sampler::new(&reference_chain::with(change), 0).expect("valid");
    let mut n = 0;
    for salt in 0..ROWS {
        let logits = row_of(salt);
        let (ids, values, log_sum) = top(&logits, 64, 1e-6);
        let top = TopLogits {
            n_vocab: logits.len(),
            ids: &ids,
            logits: &values,
            log_sum,
        };
        let found = sampler.sample_row(RowLogits::Top(top), Allowed::default());
        let token = sampler.sample(&logits).expect("good logits");
        n += u32::from(found == Ok(token));
        sampler.accept(token);
    }
    f64::from(n) / f64::from(ROWS)
}

#[test]
fn the_highest_logits_decide_nearly_always() {
    // The best 64 of 5000 have more than 0.97 of the probability.
    let peaked = |salt| row(5000, salt);
    let changes: [fn(&mut Params); 6] = [
        |p| p.temperature = 0.0,
        |p| (p.temperature, p.top_k) = (0.8, 40),
        |p| (p.temperature, p.top_p) = (0.7, 0.9),
        |p| (p.temperature, p.min_p) = (0.9, 0.05),
        |p| (p.temperature, p.repeat_penalty) = (0.6, 1.1),
        |p| (p.temperature, p.top_p, p.xtc_probability) = (0.8, 0.9, 0.5),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let share = decided(change, peaked);
        assert!(share > 0.95, "{at}: {share}");
    }
    let share = decided(|_| {}, peaked);
    assert!(share > 0.8, "without a stage: {share}");
}

#[test]
fn a_row_with_numbers_that_are_none_is_read_whole() {
    let mut sampler = Sampler::new(&Params::default(), 0).expect("valid");
    let ids = [3, 1];
    for (logits, log_sum) in [
        ([1.0, 2.0], f64::NAN),
        ([1.0, 2.0], f64::INFINITY),
        ([1.0, f32::NAN], 2.5),
        ([1.0, f32::INFINITY], 2.5),
        ([BANNED, BANNED], 2.5),
    ] {
        let top = TopLogits {
            n_vocab: 5,
            ids: &ids,
            logits: &logits,
            log_sum,
        };
        let found = sampler.sample_row(RowLogits::Top(top), Allowed::default());
        assert_eq!(found, Err(SampleError::Undecided));
    }
}
