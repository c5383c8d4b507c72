//! Logits to token: a chain of small stages whose order is data, then one pick.
//!
//! A [`Sampler`] serves one choice of one request: it holds the chain that [`Params`] describe, the tokens so far, and
//! the buffers for a step. Log-probabilities for responses come from [`Logprobs`], which reads the raw logits and never
//! sees the chain. Not here: stop sequences, grammars (they pass a mask) and anything that runs the model. Called by
//! the engine.

mod candidates;
mod chain;
mod drawn;
mod error;
mod history;
mod logprobs;
mod parameter;
mod params;
mod pick;
mod random;
mod row_logits;
mod sampler;
mod select;
mod softmax;
mod stage;
mod table;
mod token_rules;
mod unlisted;

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
#[doc(hidden)]
pub mod toy;
mod typical_p;
mod xtc;

#[cfg(test)]
mod reference_chain;
#[cfg(test)]
mod tests;

pub use contrastive::{ContrastiveCandidate, ContrastiveSearch};
pub use drawn::Drawn;
pub use error::SampleError;
pub use logprobs::{LOGPROB_FLOOR, Logprobs, TokenLogprob};
pub use parameter::{
    GlobalKind, GlobalParameter, ListKind, ListParameter, NumberKind, ParamError, Parameter,
    ValueRange,
};
pub use params::{LISTS, OTHERS, PARAMETERS, Params, StageName, reference};
pub use row_logits::{Allowed, RowLogits, TopLogits};
pub use sampler::Sampler;
pub use token_rules::{Timestamps, TokenRules, TranscriptRules};
