//! Text diffusion: a buffer of masked tokens, some of which are fixed in every denoising step.
//!
//! The loop is that of Nie et al. (arXiv 2502.09992, algorithms 4 and 5, with the blocks of
//! its appendix): the buffer is cut into blocks from left to right; a step reads the whole sequence,
//! chooses a token for every masked position of the block and keeps some of them. How many follows
//! from the steps that are left, which ones from the remasking rule. Two options of Fast-dLLM (Wu et al.,
//! arXiv 2505.22618): a threshold of probability above which tokens are fixed too, and keys and values
//! of earlier blocks that are cached although they would change.

mod settings;
mod strategy;
#[cfg(test)]
mod tests;

pub(super) use settings::{ModelConfig, Settings};
pub(super) use strategy::Denoising;
