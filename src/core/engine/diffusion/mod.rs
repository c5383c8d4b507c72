//! Text diffusion: a buffer of masked tokens, some of which each denoising step fixes.
//!
//! The loop is that of Nie et al. (arXiv 2502.09992, algorithms 4 and 5, with the blocks of its appendix). The
//! buffer is divided into blocks from left to right. A step reads the whole sequence, chooses a token for each
//! masked position of the block, and fixes some of them. The steps left determine their number, the remasking rule
//! determines their positions. Two options are from Fast-dLLM (Wu et al., arXiv 2505.22618): a probability
//! threshold above which tokens are fixed too, and a cache for keys and values of earlier blocks although they
//! would change.

mod settings;
mod strategy;
#[cfg(test)]
mod tests;

pub(super) use settings::{DiffusionModel, DiffusionSettings};
pub(super) use strategy::DiffusionStrategy;
