//! Why an adapter was refused.

use std::path::PathBuf;

use crate::stmap;
use crate::weights;

/// Why an adapter was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its file.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The names of its modules.
    #[error(transparent)]
    Map(#[from] stmap::Error),
    /// It is not an adapter, not one for this model, or needs an unsupported feature.
    #[error("adapter {}: {message}", path.display())]
    Unfit {
        /// The file or folder.
        path: PathBuf,
        /// What was found and expected.
        message: String,
    },
}
