//! Logits to token: a chain of small stages whose order is data, then one pick.
//!
//! A [`Sampler`] serves one choice of one request: it holds the chain that [`Params`] describe,
//! the tokens so far, and the buffers that a step needs. Log-probabilities for users come from
//! [`Logprobs`], which reads the raw logits and never sees the chain. Not here: stop strings,
//! grammars (they hand in a mask) and anything that runs the model. Called by the engine.
//!
//! Invariant: [`Sampler::sample`] is a pure function of its arguments, the parameters, the
//! choice number and the accepted tokens; with mirostat, also of how probable those were when they
//! were sampled. There is no clock and no shared generator, and a call that is not followed by
//! [`Sampler::accept`] changes nothing, so a sequence does not depend on its neighbours in a batch.

mod candidates;
mod history;
mod logprobs;
mod params;
mod pick;
mod random;
mod select;
mod softmax;
mod stage;

mod contrastive;
mod dry;
mod logit_bias;
mod min_p;
mod mirostat;
mod penalties;
mod temperature;
mod tfs_z;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical_p;
mod xtc;

#[cfg(test)]
mod twin;

use candidates::{Candidates, Store};
use history::{History, Origin};
use random::Random;
use stage::{Stage, Step};

pub use contrastive::{Candidate, Contrastive};
pub use dry::DRY_BREAKERS;
pub use logprobs::{LOGPROB_FLOOR, Logprobs, TokenLogprob};
pub use params::{ParamError, Params};
pub use stage::StageName;

/// Why no token could be sampled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A logit is NaN: the forward pass went wrong.
    #[error("the logit of token {index} is not a number")]
    NotANumber {
        /// The first such token.
        index: usize,
    },
    /// A logit is plus infinity: the forward pass overflowed. (Minus infinity is a banned token.)
    #[error("the logit of token {index} is infinite")]
    Infinite {
        /// The first such token.
        index: usize,
    },
    /// Every token is banned, by the logits, the mask or a bias, or was removed by a stage.
    #[error("no token is left to sample: each of {n_vocab} is banned or removed")]
    NothingLeft {
        /// Number of logits that came in.
        n_vocab: usize,
    },
    /// `logit_bias` names a token that the model does not have.
    #[error("`logit_bias`: found token {id}, expected an id below {n_vocab}")]
    UnknownToken {
        /// The token of the bias.
        id: u32,
        /// Number of logits that came in.
        n_vocab: usize,
    },
    /// Hidden states are not one row for each token.
    #[error("hidden states: found {found} numbers, expected {expected}")]
    HiddenLength {
        /// Numbers in them.
        found: usize,
        /// Numbers that the tokens ask for.
        expected: usize,
    },
    /// A hidden state is NaN or infinite: the forward pass went wrong.
    #[error("number {index} of the hidden states is not finite")]
    HiddenNotFinite {
        /// The first such number.
        index: usize,
    },
    /// The constraint mask is not one bit per token, rounded up to whole words.
    #[error("constraint mask: found {found} words of 32 bits, expected {expected}")]
    MaskLength {
        /// Words in the mask.
        found: usize,
        /// Words that the logits ask for.
        expected: usize,
    },
}

impl SampleError {
    /// Whether the numbers that came in are at fault: they are not finite.
    pub fn is_not_finite(&self) -> bool {
        matches!(
            self,
            Self::NotANumber { .. } | Self::Infinite { .. } | Self::HiddenNotFinite { .. }
        )
    }
}

/// Picks the tokens of one choice of one request.
#[derive(Debug)]
pub struct Sampler {
    chain: Vec<Box<dyn Stage>>,
    is_greedy: bool,
    rng: Random,
    history: History,
    store: Store,
}

impl Sampler {
    /// Builds the chain for choice number `choice` of a request (0 unless it asks for several).
    pub fn new(params: &Params, choice: u32) -> Result<Self, ParamError> {
        let mut chain = params.chain()?;
        ParamError::unless(
            params.penalty_alpha == 0.0,
            "penalty_alpha",
            &params.penalty_alpha,
            "0: contrastive search needs the hidden states of its candidates, not their logits alone",
        )?;
        let is_greedy = params.temperature == 0.0;
        if is_greedy {
            while chain.last().is_some_and(|stage| stage.keeps_best()) {
                chain.pop();
            }
        }

        Ok(Self {
            chain,
            is_greedy,
            rng: Random::new(params.seed, choice),
            history: History::default(),
            store: Store::default(),
        })
    }

    /// Takes in tokens that the model was given. May be called for parts of a prompt.
    pub fn accept_prompt(&mut self, tokens: &[u32]) {
        self.take_in(tokens, Origin::Given);
    }

    /// Takes in the token that follows: as a rule the one just sampled, but any may be forced.
    pub fn accept(&mut self, token: u32) {
        self.take_in(&[token], Origin::Generated);
    }

    /// The next token. Without [`Sampler::accept`] in between, it stays the same.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        self.sample_masked(logits, None)
    }

    /// [`Sampler::sample`] among the tokens that `mask` allows: bit `i % 32` of word `i / 32`
    /// is set for token `i`. It acts before every stage, so no bias can bring a token back.
    pub fn sample_masked(
        &mut self,
        logits: &[f32],
        mask: Option<&[u32]>,
    ) -> Result<u32, SampleError> {
        self.sample_draw(self.history.n_generated(), logits, mask)
    }

    /// [`Sampler::sample_masked`] with the random numbers of number `draw` in place of those that
    /// belong to the next token, for answers that do not grow token by token.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn sample_draw(
        &mut self,
        draw: u64,
        logits: &[f32],
        mask: Option<&[u32]>,
    ) -> Result<u32, SampleError> {
        let step = Step {
            history: &self.history,
            rng: &self.rng,
            draw,
        };
        let mut candidates = run(&mut self.chain, &step, logits, mask, &mut self.store)?;
        if self.is_greedy {
            return pick::greedy(&mut candidates);
        }
        let (token, probability) = pick::draw(&mut candidates, &step)?;
        for stage in &mut self.chain {
            stage.drawn(token, probability);
        }
        Ok(token)
    }

    /// A number in `[0, 1)` of number `draw` that no stage looks at.
    pub fn uniform(&self, draw: u64) -> f64 {
        const LANE: u32 = 2;
        self.rng.uniform(draw, LANE)
    }

    fn take_in(&mut self, tokens: &[u32], origin: Origin) {
        self.history.extend(tokens, origin);
        for stage in &mut self.chain {
            stage.accept(&self.history, tokens.len(), origin);
        }
    }
}

/// What the stages of a chain leave.
fn run<'a>(
    chain: &mut [Box<dyn Stage>],
    step: &Step<'_>,
    logits: &'a [f32],
    mask: Option<&[u32]>,
    store: &'a mut Store,
) -> Result<Candidates<'a>, SampleError> {
    let mut candidates = Candidates::new(logits, mask, store)?;
    for stage in chain {
        stage.apply(&mut candidates, step)?;
    }
    Ok(candidates)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            dry_breakers: vec![3],
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
        let params = Params {
            temperature: 0.0,
            ..Params::default()
        };
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
    fn the_order_of_stages_is_data() {
        // At temperature 1 the best token alone holds 0.9; at 3 four tokens share that.
        let logits: Vec<f32> = [0.91f32, 0.03, 0.03, 0.03].map(f32::ln).to_vec();
        let mut params = Params {
            temperature: 3.0,
            top_p: 0.9,
            order: vec![StageName::TopP, StageName::Temperature],
            ..Params::default()
        };
        let kept = |params: &Params| twin::run(params, &[], &[], &logits).expect("something stays");
        assert_eq!(kept(&params).len(), 1);
        params.order.reverse();
        assert_eq!(kept(&params).len(), 4);
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
            let before = sampler.store.capacities();
            for salt in 1..50 {
                sampler.sample(&row(5000, salt)).expect("good logits");
                // A flat row makes every cut as long as it can be.
                sampler.sample(&[0.5; 5000]).expect("good logits");
            }
            assert_eq!(sampler.store.capacities(), before);
        }
    }

    /// Draws under `params` against the probabilities of the naive chain.
    fn draws_follow(params: &Params, logits: &[f32]) {
        const DRAWS: u32 = 100_000;
        let kept = twin::allowed(twin::chain(params, &[], &[], logits));
        let kept_logits: Vec<f32> = kept.iter().map(|&(_, logit)| logit).collect();
        let expected = twin::softmax(&kept_logits);

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
        let neutral = Params {
            seed: 3,
            ..Params::default()
        };
        draws_follow(&neutral, &logits);
        draws_follow(
            &Params {
                temperature: 0.7,
                top_k: 30,
                top_p: 0.9,
                min_p: 0.05,
                logit_bias: vec![(4, 2.0), (8, -1.0)],
                ..neutral.clone()
            },
            &logits,
        );
        draws_follow(
            &Params {
                temperature: 1.8,
                top_p: 0.6,
                order: vec![StageName::Temperature, StageName::TopP],
                ..neutral.clone()
            },
            &logits,
        );
        draws_follow(
            &Params {
                tfs_z: 0.95,
                typical_p: 0.9,
                ..neutral.clone()
            },
            &logits,
        );
        for mirostat in [1, 2] {
            let steady = Params {
                mirostat,
                mirostat_tau: 3.0,
                mirostat_eta: 0.0,
                ..neutral.clone()
            };
            draws_follow(&steady, &logits);
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
            // The twin acts in every step.
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
            dry_last_n: -1,
            dry_breakers: vec![3],
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
        fn every_chain_in_every_order_equals_its_twin(
            params in params(),
            logits in twin::logits(30..300),
            prompt in prop::collection::vec(0..30u32, 0..20),
            generated in prop::collection::vec(0..30u32, 0..20),
        ) {
            let expected = twin::allowed(twin::chain(&params, &prompt, &generated, &logits));
            prop_assume!(!expected.is_empty());
            let kept = twin::run(&params, &prompt, &generated, &logits)?;
            prop_assert_eq!(twin::allowed(kept), expected.clone());

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
}
