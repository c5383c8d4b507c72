//! Why a model could not be loaded or run.

use std::fmt;

use crate::common::wording::bytes;
use crate::ggml;
use crate::weights::{self, TensorType};

use super::memory_use::DeviceUse;

/// Why a model could not be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A weight cannot be used.
    #[error("tensor `{tensor}` {message}")]
    Weight {
        /// Its name.
        tensor: String,
        /// Why.
        message: String,
    },
    /// A cache of this type is impossible.
    #[error(
        "a cache of {ty} needs rows of whole blocks of {block}: the model's rows have {row} elements"
    )]
    CacheType {
        /// The requested type.
        ty: TensorType,
        /// Its block.
        block: u64,
        /// The row or head that does not fit.
        row: u64,
    },
    /// The file of weights was changed in place while they were used.
    #[error("{0}")]
    Changed(String),
    /// The source of a sequence cannot be read, or is missing.
    #[error("the source of a sequence: found {found}, expected {expected}")]
    Source {
        /// What was given.
        found: String,
        /// What can be read.
        expected: String,
    },
    /// More sequences at the same time than there is space for.
    #[error("more than {0} sequences at the same time")]
    Sequences(usize),
    /// Attention that is not paged adds up in an order that depends on the batch.
    #[error(
        "not deterministic with these settings: flash attention on, and keys and values of f32, \
         f16, bf16, q8_0 or q4_0, are needed"
    )]
    NotDeterministic,
    /// A device cannot keep keys and values, or attend to them.
    #[error(
        "{device} does not run {op} over {rows} of {path}: try another --kv-type (f16 runs on most \
         devices), fewer layers there (--gpu-layers), or --device none"
    )]
    Lacking {
        /// The device.
        device: String,
        /// The operation, by ggml's name.
        op: String,
        /// The unit it belongs to.
        path: String,
        /// Type and shape of what is kept.
        rows: String,
    },
    /// It would not fit into memory.
    #[error("not enough memory for {what}: {}", sentence(*what, *needed, *available))]
    Memory {
        /// What for.
        what: Purpose,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// What is placed on a device would not fit there.
    #[error(
        "not enough memory on {}: {} needed (weights {}, key/value cache and states {}, scratch memory {}), {} free{advice}",
        used.device, bytes(used.taken()), bytes(used.weights), bytes(used.cache), bytes(used.compute), bytes(*free)
    )]
    DeviceMemory {
        /// What would be taken there.
        used: Box<DeviceUse>,
        /// Bytes that the device has free.
        free: u64,
        /// Settings with which it would fit, after a separator; empty if none is known.
        advice: String,
    },
    /// No slot is left for a token.
    #[error("the cache is full: {needed} positions needed, {free} of {n_ctx} free")]
    CacheFull {
        /// Slots needed.
        needed: usize,
        /// Slots free.
        free: usize,
        /// Slots in all.
        n_ctx: usize,
    },
    /// The batch itself is wrong.
    #[error("a pass of {found}: {expected}")]
    Batch {
        /// What was passed.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// A fault of this program, which the pass ended with.
    #[error("internal error: {0}")]
    Internal(String),
    /// The data of a weight could not be had.
    #[error(transparent)]
    Data(#[from] weights::Error),
    /// The tensor library refused or failed.
    #[error(transparent)]
    Ggml(#[from] ggml::Error),
}

/// What memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Weights that the file does not hold as they are computed with.
    Weights,
    /// Keys and values, and states.
    Cache,
    /// Values of one pass.
    Scratch,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weights => "weights that are copied",
            Self::Cache => "the key/value cache",
            Self::Scratch => "scratch memory",
        })
    }
}

/// Both numbers for people, and what takes less.
fn sentence(what: Purpose, needed: u64, available: u64) -> String {
    let advice = match what {
        Purpose::Weights => "try a smaller --type",
        Purpose::Cache => "try a smaller --ctx or a smaller --kv-type",
        Purpose::Scratch => "try a smaller --ctx",
    };
    let (needed, available) = (bytes(needed), bytes(available));
    format!("{needed} needed, {available} available; {advice}")
}
