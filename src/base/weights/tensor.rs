//! One tensor of a weight file: its name, element type, shape and place.
//!
//! Invariant: each dimension is at least 1, so a row and its size exist.

use super::TensorType;

/// Maximum number of dimensions of a tensor (a limit of ggml).
pub const MAX_DIMS: usize = 4;

/// One tensor of a weight file: name, type, shape and the place of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Element type as stored.
    pub ty: TensorType,
    /// Dimensions in ggml order (fastest first), 1 to 4 of them, none of them 0.
    pub shape: Vec<u64>,
    /// Size of the data in bytes.
    pub bytes: u64,
    /// Index of the source that has the data.
    pub(super) source: usize,
    /// Offset of the data in that source, if it is a file.
    pub(super) offset: u64,
}

impl TensorInfo {
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Size of a row in bytes; a row is the elements of the first dimension.
    pub fn row_bytes(&self) -> u64 {
        self.bytes / self.n_rows()
    }

    /// Number of rows: the product of all dimensions after the first.
    pub fn n_rows(&self) -> u64 {
        self.shape[1..].iter().product::<u64>().max(1)
    }

    /// Splits the tensor into pieces of whole rows of about `bytes` bytes. Gives the first row and the number of rows
    /// of each piece.
    pub fn pieces(&self, bytes: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (n_rows, step) = (self.n_rows(), (bytes / self.row_bytes()).max(1));
        let starts = (0..n_rows).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        starts.map(move |first| (first, step.min(n_rows - first)))
    }
}
