//! The sampler of one choice: the chain of stages, then one pick.
//!
//! Invariant: [`Sampler::sample`] is a pure function of its arguments, the parameters, the choice number and the
//! accepted tokens; with mirostat, also of the probabilities of these when they were sampled. There is no clock and no
//! shared generator, and a call without a following [`Sampler::accept`] changes nothing, so a sequence does not depend
//! on its neighbours in a batch.

use super::candidates::{Candidates, Store};
use super::error::SampleError;
use super::history::{History, TokenOrigin};
use super::parameter::ParamError;
use super::params::Params;
use super::pick;
use super::random::Random;
use super::row_logits::{Allowed, RowLogits};
use super::stage::{Stage, StageInput};

/// Picks the tokens of one choice of one request.
#[derive(Debug)]
pub struct Sampler {
    pub(super) chain: Vec<Box<dyn Stage>>,
    pub(super) is_greedy: bool,
    pub(super) rng: Random,
    pub(super) history: History,
}

impl Sampler {
    /// Builds the chain for choice number `choice` of a request (0 for a request with one choice).
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
        })
    }

    /// Appends tokens of the prompt. May be called for parts of a prompt.
    pub fn accept_prompt(&mut self, tokens: &[u32]) {
        self.take_in(tokens, TokenOrigin::Given);
    }

    /// Appends the next token: usually the one just sampled, but any token may be forced.
    pub fn accept(&mut self, token: u32) {
        self.take_in(&[token], TokenOrigin::Generated);
    }

    /// Samples the next token. Without [`Sampler::accept`] in between, the result stays the same.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        self.sample_masked(logits, None)
    }

    /// [`Sampler::sample`] among the tokens that `mask` allows: bit `i % 32` of word `i / 32` is set for token `i`. The
    /// mask acts before every stage, so no bias can restore a token.
    pub fn sample_masked(
        &mut self,
        logits: &[f32],
        mask: Option<&[u32]>,
    ) -> Result<u32, SampleError> {
        self.sample_row(RowLogits::All(logits), mask.into())
    }

    /// [`Sampler::sample`] among the allowed tokens of a row of which perhaps the highest logits alone are known. What is not
    /// allowed is out before every stage, so no bias can restore a token.
    ///
    /// # Errors
    /// [`SampleError::Undecided`] if the step needs all logits.
    pub fn sample_row(
        &mut self,
        row: RowLogits<'_>,
        allowed: Allowed<'_>,
    ) -> Result<u32, SampleError> {
        self.draw(self.history.n_generated(), row, allowed)
    }

    /// Whether the `n` highest logits of a row are worth a try before all are read.
    pub fn decides_by(&self, n: usize) -> bool {
        self.chain.iter().all(|stage| stage.decides_by(n))
    }

    /// The tokens that are banned, if the next token always is that with the highest logit of all others.
    pub fn banned(&self) -> Option<Vec<u32>> {
        let lists = self.chain.iter().map(|stage| stage.banned());
        let lists = lists.collect::<Option<Vec<_>>>();
        lists.filter(|_| self.is_greedy).map(|lists| lists.concat())
    }

    /// [`Sampler::sample`] with the random numbers of index `draw` instead of those of the next token, for
    /// completions that do not grow token by token.
    pub fn sample_draw(&mut self, draw: u64, logits: &[f32]) -> Result<u32, SampleError> {
        self.draw(draw, RowLogits::All(logits), Allowed::default())
    }

    fn draw(
        &mut self,
        draw: u64,
        row: RowLogits<'_>,
        allowed: Allowed<'_>,
    ) -> Result<u32, SampleError> {
        let step = StageInput {
            history: &self.history,
            rng: &self.rng,
            draw,
        };
        if self.is_greedy {
            return run(&mut self.chain, &step, row, allowed, pick::greedy);
        }
        let pick = |candidates: &mut Candidates<'_>| pick::draw(candidates, &step);
        let (token, probability) = run(&mut self.chain, &step, row, allowed, pick)?;
        for stage in &mut self.chain {
            stage.drawn(token, probability);
        }
        Ok(token)
    }

    /// A random number in `[0, 1)` for index `draw`, which no stage uses.
    pub fn uniform(&self, draw: u64) -> f64 {
        const LANE: u32 = 2;
        self.rng.uniform(draw, LANE)
    }

    pub(super) fn take_in(&mut self, tokens: &[u32], origin: TokenOrigin) {
        self.history.extend(tokens, origin);
        for stage in &mut self.chain {
            stage.accept(&self.history, tokens.len(), origin);
        }
    }
}

/// What `then` makes of the candidates that the stages of a chain leave.
pub(super) fn run<R>(
    chain: &mut [Box<dyn Stage>],
    step: &StageInput<'_>,
    row: RowLogits<'_>,
    allowed: Allowed<'_>,
    then: impl FnOnce(&mut Candidates<'_>) -> Result<R, SampleError>,
) -> Result<R, SampleError> {
    Store::lend(|store| {
        let mut candidates = Candidates::new(row, allowed, store)?;
        for stage in chain {
            stage.apply(&mut candidates, step)?;
        }
        then(&mut candidates)
    })
}
