//! A checked request on its way from a [`Handle`](super::Handle) to the engine thread.

use std::sync::mpsc::Sender;

use crate::model;
use crate::models::lora::Adapter;
use lab_sampling::{ContrastiveSearch, Sampler};

use super::diffusion::DiffusionSettings;
use super::event_sender::EventSender;
use super::lab::CompiledLab;
use super::pooling::PoolingModel;
use super::prefix_order::PrefixOrder;
use super::request::Request;

/// What a [`Handle`](super::Handle) sends to the engine thread.
pub(super) enum Order {
    Run(Box<Submitted>),
    /// Loads an adapter between two steps, and answers.
    AddAdapter(Box<Adapter>, Sender<model::Result<()>>),
    /// Frees the adapter of an id once no request uses it.
    RemoveAdapter(usize),
    /// Works on the prefixes of slots and of the store.
    Prefix(PrefixOrder),
}

/// A checked request with its caller.
pub(super) struct Submitted {
    pub(super) checked: CheckedRequest,
    pub(super) caller: EventSender,
}

/// A request that can be served, with the way to decode it.
pub(super) struct CheckedRequest {
    pub(super) request: Request,
    /// The source, if the model reads one.
    pub(super) source: Vec<u32>,
    pub(super) decoding: Decoding,
    pub(super) scales: Vec<f32>,
    /// What the request captures and edits.
    pub(super) lab: Option<CompiledLab>,
}

/// How a request is decoded.
pub(super) enum Decoding {
    /// Token by token, with draft tokens or a constraint where the request has them.
    Autoregressive(Sampler),
    /// Token by token; all candidates for a token are read before one is chosen.
    Contrastive(ContrastiveSearch),
    /// Text diffusion, in denoising steps.
    Diffusion(Sampler, DiffusionSettings),
    /// Nothing is decoded: the hidden states are pooled. The number is the start of the second text of a pair.
    Pooling(PoolingModel, Option<usize>),
}
