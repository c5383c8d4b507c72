//! A weight file on disk as metadata and named tensors, whatever the format.
//!
//! [`open`] is the format boundary: above it nothing asks which format a file has. Tensor data
//! stays where it lies in the mapped file and is touched when somebody reads it; nothing here
//! converts or copies. Called by the planner (shapes, types), the model (data) and `inspect`.
//!
//! Invariant: every range handed out lies inside its mapped file; a file that would break this
//! is refused when it is opened.

mod check;
pub mod gguf;
mod map;
mod metadata;
mod tensor_type;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

pub use check::{Checked, NotFinite, check};
pub use metadata::{Array, Metadata, StringArray, Value};
pub use tensor_type::TensorType;

/// The most dimensions a tensor may have (a limit of ggml).
pub const MAX_DIMS: usize = 4;

/// One tensor of a weight file: what it is and where its bytes lie.
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
    /// Which of the source's files holds the data.
    file: usize,
    /// Offset of the data in that file.
    offset: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Where the bytes of a source lie.
#[derive(Clone, Debug)]
pub enum Bytes {
    /// A mapped file.
    Mapped(Arc<Mmap>),
    /// Bytes built into the program.
    Static(&'static [u8]),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}

/// An opened weight file (or set of files): metadata and tensors.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Name for messages: the path, or what stands for it.
    label: String,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    files: Vec<Bytes>,
}

impl Weights {
    /// Joins what a format's reader found. Ranges were checked by the reader.
    fn new(label: String, metadata: Metadata, tensors: Vec<TensorInfo>, files: Vec<Bytes>) -> Self {
        let index = tensors
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name.clone(), i))
            .collect();
        Self {
            label,
            metadata,
            tensors,
            index,
            files,
        }
    }

    /// The path, or what stands for it, for messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What the file says about its model.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The bytes of a tensor of this source, in place.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        let start = tensor.offset as usize;
        &self.files[tensor.file][start..start + tensor.bytes as usize]
    }

    /// The mapped file that holds a tensor and the offset of its data there, for users that
    /// need the whole mapping to stay alive.
    pub fn place(&self, tensor: &TensorInfo) -> (&Bytes, usize) {
        (&self.files[tensor.file], tensor.offset as usize)
    }
}

/// Opens the model at `path`, whatever its format.
///
/// # Errors
/// A file that cannot be read or that breaks its format's rules; the error names the place.
pub fn open(path: &Path) -> Result<Weights, Error> {
    gguf::open(path)
}

/// Why a weight file was refused, or could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The path leads to a folder or a device.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file breaks the rules of its format.
    #[error("{label}: {fault}")]
    Format {
        /// The file.
        label: String,
        /// Which rule, where.
        fault: gguf::Fault,
    },
    /// The parts of a split file do not fit together.
    #[error("{label}: {fault}")]
    Split {
        /// The file.
        label: String,
        /// How.
        fault: gguf::SplitFault,
    },
    /// A weight is not a finite number.
    #[error(
        "tensor `{tensor}`: {found}{} at row {row}, column {column}",
        if *in_scale { " in the scale of the block" } else { "" }
    )]
    NotFinite {
        /// Its name.
        tensor: String,
        /// Row of the first such value, counted over all dimensions above the first.
        row: u64,
        /// Its column, or the first column of the block whose scale it is.
        column: u64,
        /// Whether it is a scale rather than a value.
        in_scale: bool,
        /// What it is.
        found: NotFinite,
    },
    /// The data of a tensor to be written could not be had.
    #[error("{}: tensor `{tensor}`: {source}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Why.
        source: std::io::Error,
    },
    /// The data of a tensor to be written does not have the size its shape asks for.
    #[error("{}: tensor `{tensor}` got {found} bytes, expected {expected}", path.display())]
    DataSize {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Bytes that came.
        found: u64,
        /// Bytes of the shape.
        expected: u64,
    },
}
