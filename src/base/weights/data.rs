//! The data of tensors: mapped files, bytes of the program, rows that are computed.

use std::fmt;
use std::sync::Arc;

use super::FileBytes;

/// A tensor whose rows are computed when they are read.
pub trait LazyTensor: fmt::Debug + Send + Sync {
    /// Fills `out` with whole rows, starting at row `first`. Rows are counted over all dimensions after
    /// the first.
    fn rows(&self, first: u64, out: &mut [u8]) -> Result<(), String>;

    /// Fills `out` with the values before [`Self::rows`] rounds them to the tensor's type, starting at row `first`.
    /// Returns false, and does not change `out`, if rows are not rounded.
    fn values(&self, _first: u64, _out: &mut [f32]) -> Result<bool, String> {
        Ok(false)
    }
}

/// The data of an [`super::Entry`].
#[derive(Clone, Debug)]
pub enum TensorData {
    /// Stored bytes, starting at this offset.
    Mapped(FileBytes, usize),
    /// Rows that are computed when they are read.
    Lazy(Arc<dyn LazyTensor>),
}

#[derive(Clone, Debug)]
pub(super) enum DataSource {
    File(FileBytes),
    Lazy(Arc<dyn LazyTensor>),
}
