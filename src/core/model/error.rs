//! Why a model could not be loaded or run.

use std::fmt;

use lab_base::ggml;
use lab_base::util::wording::bytes;
use lab_base::weights;
use lab_base::weights::TensorType;

use super::memory_use::DeviceUse;

/// A result of loading or running a model.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model could not be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A weight cannot be used.
    #[error("tensor `{tensor}` {message}")]
    Weight { tensor: String, message: String },
    /// A cache of this type is not possible.
    #[error(
        "a cache of {ty} needs rows of whole blocks of {block}: the model's rows have {row} elements"
    )]
    CacheType {
        ty: TensorType,
        /// Elements of a block of the type.
        block: u64,
        /// The row or head that does not fit.
        row: u64,
    },
    /// The file of weights was changed while it was in use.
    #[error("{0}")]
    Changed(String),
    /// The source of a sequence cannot be read, or is missing.
    #[error("the source of a sequence: found {found}, expected {expected}")]
    Source {
        /// The given source, in words.
        found: String,
        /// What can be read, in words.
        expected: String,
    },
    /// A drafter does not fit the model for which it drafts.
    #[error("the drafter: found {found}, expected {expected}")]
    Drafter {
        /// What it has, in words.
        found: String,
        /// What would fit, in words.
        expected: String,
    },
    /// The media of a sequence cannot be read, or are missing.
    #[error("the media of a sequence: found {found}, expected {expected}")]
    Media {
        /// What is given, in words.
        found: String,
        /// What can be read, in words.
        expected: String,
    },
    /// A tower cannot read what it is given.
    #[error("a tower: found {found}, expected {expected}")]
    Tower {
        /// What is given, in words.
        found: String,
        /// What the tower reads, in words.
        expected: String,
    },
    /// There are more sequences at the same time than space for them.
    #[error("more than {0} sequences at the same time")]
    Sequences(usize),
    /// The settings are not deterministic: attention that is not paged adds up in an order that depends on the
    /// batch.
    #[error(
        "not deterministic with these settings: flash attention on, and keys and values of f32, \
         f16, bf16, q8_0 or q4_0, are needed"
    )]
    NotDeterministic,
    /// A device cannot store keys and values, or attend to them.
    #[error(
        "{device} does not run {op} over {rows} of {path}: try another --kv-type (f16 runs on most \
         devices), fewer layers there (--gpu-layers), or --device none"
    )]
    Lacking {
        device: String,
        op: String,
        path: String,
        /// Type and shape of the stored rows.
        rows: String,
    },
    /// There is not enough memory.
    #[error("not enough memory for {what}: {}", sentence(*what, *needed, *available))]
    Memory {
        what: MemoryPurpose,
        needed: u64,
        available: u64,
    },
    /// The parts that are placed on a device do not fit there.
    #[error(
        "not enough memory on {}: {} needed (weights {}, key/value cache and states {}, scratch memory {}), {} free{advice}",
        used.device, bytes(used.taken()), bytes(used.weights), bytes(used.cache), bytes(used.compute), bytes(*free)
    )]
    DeviceMemory {
        /// The memory that they would take there.
        used: Box<DeviceUse>,
        /// Bytes that the device has free.
        free: u64,
        /// Settings with which the parts would fit, after a separator; empty if none is known.
        advice: String,
    },
    /// No slot is left for a token.
    #[error("the cache is full: {needed} positions needed, {free} of {n_ctx} free")]
    CacheFull {
        needed: usize,
        free: usize,
        n_ctx: usize,
    },
    /// The batch is invalid.
    #[error("a pass: found {found}, expected {expected}")]
    Batch {
        /// The given batch, in words.
        found: String,
        /// What is accepted, in words.
        expected: String,
    },
    /// Results are not finite, and another sequence may be the cause. The sequences are to be read again, each by
    /// itself.
    #[error("the results of a pass are not finite numbers; each of its sequences is read alone")]
    Disturbed,
    /// Keys or values that a sequence stored are not finite, although its results are.
    #[error("keys or values are not finite numbers")]
    NotFinite,
    /// A bug of this program, which ended the pass.
    #[error("internal error: {0}")]
    Internal(String),
    /// The data of a weight could not be read.
    #[error(transparent)]
    Data(#[from] weights::Error),
    /// The tensor library refused or failed.
    #[error(transparent)]
    Ggml(#[from] ggml::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPurpose {
    /// Weights that are copied: those that are not used in place in the file.
    Weights,
    /// Keys and values, and recurrent states.
    Cache,
    /// Intermediate values of one pass.
    Scratch,
}

impl fmt::Display for MemoryPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weights => "weights that are copied",
            Self::Cache => "the key/value cache",
            Self::Scratch => "scratch memory",
        })
    }
}

/// Both numbers in readable units, and advice on how to need less.
fn sentence(what: MemoryPurpose, needed: u64, available: u64) -> String {
    let advice = match what {
        MemoryPurpose::Weights => "try a smaller --type",
        MemoryPurpose::Cache => {
            "try a smaller --ctx, a smaller --kv-type or, in a server, a smaller --parallel or --cache"
        }
        MemoryPurpose::Scratch => "try a smaller --ctx",
    };
    let (needed, available) = (bytes(needed), bytes(available));
    format!("{needed} needed, {available} available; {advice}")
}
