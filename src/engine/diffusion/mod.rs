//! Answers that are filled in: a buffer of masked tokens, some of which are fixed in every step.
//!
//! The loop is that of Nie et al. (arXiv 2502.09992, algorithms 4 and 5, with the blocks of
//! its appendix): the buffer is cut into blocks from left to right; a step reads the whole text,
//! chooses a token for every masked position of the block and keeps some of them. How many follows
//! from the steps that are left, which ones from the rule. Beside it: fixing all that is more
//! probable than a threshold, and keys and values of earlier blocks that are kept although they
//! would change (both of Fast-dLLM, Wu et al., arXiv 2505.22618).

mod filling;
mod runner;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub(super) use runner::Runner;

use crate::blocks::Remasking;
use crate::blocks::diffusion::Config;
use crate::plan::{BLOCK_LEN, Plan};
use crate::sampling::ParamError;

use super::{Limits, Rejected, Request};

/// Cells that are taken together.
const BLOCK: usize = BLOCK_LEN as usize;

/// Positions of an answer whose request does not say how long it may be.
const LENGTH: usize = 128;

/// Positions that are filled in together if a request does not say.
const BLOCK_LENGTH: usize = 32;

/// How an answer is filled in; what is not said is as the engine and the model have it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Diffusion {
    /// Steps for the whole answer; at least one for each block is taken, and at most one for each
    /// position. Not said: one for each position.
    pub steps: Option<usize>,
    /// Positions of a block; the last one may be shorter. Not said: 32.
    pub block_length: Option<usize>,
    /// Which masked positions are fixed. Not said: as the definition has it.
    pub remasking: Option<Remasking>,
    /// Weight of classifier-free guidance, 0 to 100: logits are those of the text moved away from those
    /// of the same text with a masked prompt. Not said: 0, none.
    pub cfg_scale: Option<f64>,
    /// Probability from which a token is fixed beyond the number that a step fixes, above 0 up to 1.
    /// Not said: none is.
    pub threshold: Option<f64>,
    /// Whether keys and values from before a block are those of the block's first step, which is
    /// quicker and not the same. Not said: no.
    pub approximate_cache: Option<bool>,
}

impl Default for Diffusion {
    fn default() -> Self {
        Self::UNSAID
    }
}

impl Diffusion {
    /// Nothing said.
    pub const UNSAID: Self = Self {
        steps: None,
        block_length: None,
        remasking: None,
        cfg_scale: None,
        threshold: None,
        approximate_cache: None,
    };

    /// What this says, and `other` where it says nothing.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            steps: self.steps.or(other.steps),
            block_length: self.block_length.or(other.block_length),
            remasking: self.remasking.or(other.remasking),
            cfg_scale: self.cfg_scale.or(other.cfg_scale),
            threshold: self.threshold.or(other.threshold),
            approximate_cache: self.approximate_cache.or(other.approximate_cache),
        }
    }
}

/// A position that a step fixed.
#[derive(Clone, Debug, PartialEq)]
pub struct Fixed {
    /// Place within the answer, from 0.
    pub position: usize,
    /// Its token.
    pub token: u32,
    /// Natural logarithm of the probability it was fixed with.
    pub logprob: f64,
}

/// What a model says about being filled in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// The token that stands for a masked one.
    pub(super) mask: u32,
    /// Whether the logits at a position are those of the token behind it.
    shift: usize,
    remasking: Remasking,
    /// Most tokens of a pass.
    n_batch: usize,
    /// Whether anything is kept between passes.
    is_kept: bool,
}

impl Facts {
    /// Those of a model that fills in `mask`; none if it does not fill in.
    pub(super) fn of(plan: &Plan, mask: u32, n_batch: usize, is_kept: bool) -> Option<Self> {
        let config = Config::read(&plan.diffusion.as_ref()?.options);
        Some(Self {
            mask,
            shift: usize::from(config.shift_logits),
            remasking: config.remasking,
            n_batch,
            is_kept,
        })
    }

    /// How a request's answer is filled in.
    ///
    /// # Errors
    /// What the model cannot do, by the name of the field.
    pub(super) fn settings(
        &self,
        request: &Request,
        limits: &Limits,
    ) -> Result<Settings, Rejected> {
        let asked = request.diffusion.unwrap_or_default().or(&limits.diffusion);
        self.check(request, &asked)?;
        let n_prompt = request.prompt.len();
        let is_guided = asked.cfg_scale.is_some_and(|scale| scale > 0.0);
        let room = match is_guided {
            // Each of the two takes whole blocks of the cache.
            true => (limits.n_ctx.min(self.n_batch) / 2) / BLOCK * BLOCK,
            false => limits.n_ctx.min(self.n_batch),
        };
        if n_prompt >= room {
            return Err(match is_guided {
                true => Rejected::Field {
                    field: "diffusion.cfg_scale",
                    message: format!(
                        "guidance reads the text twice: the prompt has {n_prompt} tokens, and there \
                         is room for {room}"
                    ),
                },
                false => Rejected::TooLong {
                    found: n_prompt,
                    limit: room,
                },
            });
        }
        let length = request.max_tokens.unwrap_or(LENGTH).max(1);
        let length = length.min(room - n_prompt);
        Ok(Settings {
            length,
            steps: asked.steps.unwrap_or(length).min(length),
            block_length: asked.block_length.unwrap_or(BLOCK_LENGTH).min(length),
            remasking: asked.remasking.unwrap_or(self.remasking),
            cfg_scale: is_guided.then_some(asked.cfg_scale).flatten(),
            threshold: asked.threshold,
            approximate_cache: asked.approximate_cache.unwrap_or(false),
            shift: self.shift,
            mask: self.mask,
        })
    }

    fn check(&self, request: &Request, asked: &Diffusion) -> Result<(), Rejected> {
        let remasking = asked.remasking.unwrap_or(self.remasking);
        let (steps, block_length) = (asked.steps.unwrap_or(1), asked.block_length.unwrap_or(1));
        let (scale, threshold) = (
            asked.cfg_scale.unwrap_or(0.0),
            asked.threshold.unwrap_or(1.0),
        );
        let has_rule = asked.threshold.is_none() || remasking != Remasking::None;
        let (guided, sure) = ("diffusion.cfg_scale", "diffusion.threshold");
        ParamError::unless(steps > 0, "diffusion.steps", &steps, "at least 1")?;
        ParamError::unless(
            block_length > 0,
            "diffusion.block_length",
            &block_length,
            "at least 1",
        )?;
        ParamError::unless(
            (0.0..=100.0).contains(&scale),
            guided,
            &scale,
            "a number from 0 to 100",
        )?;
        let is_probability = threshold > 0.0 && threshold <= 1.0;
        ParamError::unless(
            is_probability,
            sure,
            &threshold,
            "a probability above 0, up to 1",
        )?;
        ParamError::unless(has_rule, sure, &threshold, "none: `remasking` is `none`")?;
        request.sampling.check_memoryless()?;
        let refuse = |field, message: &str| {
            let message = message.to_owned();
            Err(Rejected::Field { field, message })
        };
        if asked.approximate_cache == Some(true) && !self.is_kept {
            return refuse("diffusion.approximate_cache", "nothing is kept here");
        }
        if request.constraint.is_some() {
            let message = "this model fills answers in, which cannot be held to a grammar";
            return refuse("response_format", message);
        }
        Ok(())
    }
}

/// How an answer is filled in, with everything said.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    /// Positions of the answer.
    pub(super) length: usize,
    /// Steps for all of them.
    steps: usize,
    block_length: usize,
    remasking: Remasking,
    cfg_scale: Option<f64>,
    threshold: Option<f64>,
    approximate_cache: bool,
    shift: usize,
    mask: u32,
}

impl Settings {
    /// Texts that are read in each pass: with guidance, one with a masked prompt too.
    pub(super) fn n_texts(&self) -> usize {
        1 + usize::from(self.cfg_scale.is_some())
    }

    /// The block that begins at a position of the answer.
    fn block(&self, begin: usize) -> Range<usize> {
        begin..begin.saturating_add(self.block_length).min(self.length)
    }

    /// Steps of a block: its share of all, at least one, and none in which nothing is fixed.
    fn steps_of(&self, block: &Range<usize>) -> usize {
        let until = |at: usize| self.steps * at / self.length;
        (until(block.end) - until(block.start)).clamp(1, block.len())
    }
}
