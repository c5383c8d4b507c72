//! A checked request on its way from a [`Handle`](super::Handle) to the engine thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::mpsc;

use crate::sampling::{Contrastive, Sampler};

use super::diffusion::Settings;
use super::event::Event;
use super::lab::Compiled;
use super::pooling::PooledModel;
use super::request::Request;
use super::stats::Stats;

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

/// Who waits for a request.
pub(super) struct Caller {
    /// Closed by the receiver when nobody waits any more.
    pub(super) events: mpsc::UnboundedSender<Event>,
    pub(super) arrived: Instant,
    pub(super) stats: Arc<Stats>,
    pub(super) _ticket: Ticket,
}

/// A place among the requests that wait or run, given back when it is dropped.
pub(super) struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    /// Takes `n` places if fewer than `limit` are taken: the completions of one request
    /// are queued together, however many they are.
    pub(super) fn take(places: &Arc<AtomicUsize>, limit: usize, n: usize) -> Option<Vec<Self>> {
        let more = |taken| (taken < limit).then_some(taken + n);
        let taken = places.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok()?;
        Some((0..n).map(|_| Self(Arc::clone(places))).collect())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
