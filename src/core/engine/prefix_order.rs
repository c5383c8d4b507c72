//! What a [`Handle`](super::Handle) asks of the prefixes of an engine. Plain data; the engine loop follows it.

use std::sync::mpsc::{Sender, SyncSender};

use crate::model::{PrefixBlocks, PrefixLayout};

use super::prefix_store::PrefixSeed;

/// A prefix and what it is computed with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownPrefix {
    pub(super) scales: Vec<f32>,
    pub(super) seed: PrefixSeed,
    pub(super) tokens: Vec<u32>,
}

/// What a [`Handle`](super::Handle) asks of the prefixes of an engine.
pub(super) enum PrefixOrder {
    /// The layout of blocks, and the seed of prefixes with these scales.
    Info(Vec<f32>, Sender<Option<(PrefixLayout, PrefixSeed)>>),
    /// Sends the blocks of a slot's prefix; answers with its seed and its number of tokens.
    Save(
        usize,
        SyncSender<PrefixBlocks>,
        Sender<Result<(PrefixSeed, usize), SlotError>>,
    ),
    /// Puts blocks after a prefix into the KV cache, and makes both that of a slot.
    Restore(usize, KnownPrefix, PrefixBlocks, Sender<Result<(), String>>),
    /// Removes the prefix of a slot; answers with its number of tokens.
    Erase(usize, Sender<Result<usize, SlotError>>),
    /// Writes what is not written yet.
    Flush(Sender<()>),
}

/// Why a slot has nothing to save.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    #[error("there is no such slot")]
    Unknown,
    #[error("nothing was computed in the slot, or nothing that can be saved")]
    Empty,
    #[error("the model shares no prefixes")]
    NotShared,
}
