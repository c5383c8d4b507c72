//! Which scratch memory the tensors of a graph have places in.

use std::sync::atomic::{AtomicU64, Ordering};

/// Scratch memory as it is between two allocations, different in all executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScratchId(u64);

impl ScratchId {
    /// One that nothing has places in.
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
