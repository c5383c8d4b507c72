//! The identity of the scratch memory in which the tensors of a graph have places.

use std::sync::atomic::{AtomicU64, Ordering};

/// The identity of scratch memory between two allocations, unique over all executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScratchId(u64);

impl ScratchId {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
