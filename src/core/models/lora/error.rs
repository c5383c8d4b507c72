//! The reasons why an adapter is refused.

use std::path::PathBuf;

use crate::hf;
use lab_base::weights;

/// The reason why an adapter is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the adapter has an error.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The names of the adapter's modules do not fit a map.
    #[error(transparent)]
    Map(#[from] hf::Error),
    /// The path is not an adapter, or the adapter does not fit the model or needs an unsupported feature.
    #[error("adapter {}: {message}", path.display())]
    Unfit { path: PathBuf, message: String },
}
