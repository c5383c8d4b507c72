//! Opens the file of a model.

use std::path::Path;

use super::{Error, Weights, gguf};

/// Opens the file of a model at `path`. A folder needs a map (`lab_core::hf`).
///
/// # Errors
/// The file cannot be read or breaks its format's rules; the error names the place.
pub fn open(path: &Path) -> Result<Weights, Error> {
    gguf::open(path)
}
