//! Options of text diffusion as a request or an engine sets them, and what a step reports.

use super::remasking::Remasking;

/// Options of text diffusion; what is not set is as the engine and the model have it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Diffusion {
    /// Denoising steps for the whole completion, at least 1; at least one for each block is taken, and
    /// at most one for each position. Default: one for each position.
    pub steps: Option<usize>,
    /// Positions of a block, at least 1; the last one may be shorter. Default: 32.
    pub block_length: Option<usize>,
    /// Which masked positions a step fixes. Default: see [`Remasking::usual`].
    pub remasking: Option<Remasking>,
    /// Scale of classifier-free guidance, 0 to 100: logits are those of the sequence moved away from
    /// those of the same sequence with a masked prompt. Default: 0 = off.
    pub cfg_scale: Option<f64>,
    /// Probability from which a token is fixed beyond the number that a step fixes, above 0 up to 1.
    /// Default: off.
    pub threshold: Option<f64>,
    /// Whether keys and values from before a block are those of the block's first step, which is
    /// faster and gives other completions. Default: no.
    pub approximate_cache: Option<bool>,
}

impl Default for Diffusion {
    fn default() -> Self {
        Self::UNSET
    }
}

impl Diffusion {
    /// Nothing set.
    pub const UNSET: Self = Self {
        steps: None,
        block_length: None,
        remasking: None,
        cfg_scale: None,
        threshold: None,
        approximate_cache: None,
    };

    /// What this sets, and `other` where it sets nothing.
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
    /// Position within the completion, from 0.
    pub position: usize,
    /// Its token.
    pub token: u32,
    /// Natural logarithm of the probability it was fixed with.
    pub logprob: f64,
}
