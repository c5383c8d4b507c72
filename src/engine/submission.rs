//! A checked request on its way from a [`Handle`](super::Handle) to the engine thread.

use crate::sampling::{Contrastive, Sampler};

use super::caller::Caller;
use super::diffusion::Settings;
use super::lab::Compiled;
use super::pooling::PooledModel;
use super::request::Request;

/// A checked request with all that decodes it.
pub(super) struct Submitted {
    pub(super) request: Request,
    /// What is read before the prompt, where the model reads a source.
    pub(super) source: Vec<u32>,
    pub(super) decoding: Decoding,
    /// Scale of each adapter.
    pub(super) scales: Vec<f32>,
    /// What it reads and changes of values.
    pub(super) lab: Option<Compiled>,
    pub(super) caller: Caller,
}

/// How a request is decoded.
pub(super) enum Decoding {
    /// Token by token, with draft tokens or a constraint where the request has them.
    Autoregressive(Sampler),
    /// Token by token, each candidate read before one is chosen.
    Contrastive(Contrastive),
    /// In denoising steps.
    Diffusion(Sampler, Settings),
    /// Nothing is decoded: the hidden states are pooled. The second text of a pair starts there.
    Pooling(PooledModel, Option<usize>),
}
