//! Options of text diffusion as a request or an engine sets them, and the report of a step.

use super::remasking::Remasking;

/// Options of text diffusion. Unset ones are those of the engine and the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiffusionOptions {
    /// Denoising steps for the whole completion, at least 1. Each block takes at least one step, and at most one
    /// for each position. Default: one for each position.
    pub steps: Option<usize>,
    /// Positions of a block, at least 1; the last one may be shorter. Default: 32.
    pub block_length: Option<usize>,
    /// Which masked positions a step fixes. Default: see [`Remasking::usual`].
    pub remasking: Option<Remasking>,
    /// Scale of classifier-free guidance, 0 to 100: how far the logits move away from those of the same sequence
    /// with a masked prompt. Default: 0 = off.
    pub cfg_scale: Option<f64>,
    /// Probability above 0, up to 1, from which a step fixes further tokens beyond its number. Default: off.
    pub threshold: Option<f64>,
    /// Whether keys and values before a block stay those of the block's first step, which is faster and gives other
    /// completions. Default: no.
    pub approximate_cache: Option<bool>,
}

impl Default for DiffusionOptions {
    fn default() -> Self {
        Self::UNSET
    }
}

impl DiffusionOptions {
    /// No option set.
    pub const UNSET: Self = Self {
        steps: None,
        block_length: None,
        remasking: None,
        cfg_scale: None,
        threshold: None,
        approximate_cache: None,
    };

    /// These options; those that are unset are as in `other`.
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

/// A position whose token a step fixed.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedToken {
    /// Position within the completion, from 0.
    pub position: usize,
    pub token: u32,
    /// Natural logarithm of the token's probability when it was fixed.
    pub logprob: f64,
}
