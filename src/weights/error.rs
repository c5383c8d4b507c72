//! Why a weight file is refused or cannot be written.

use std::path::PathBuf;

use super::{NotFinite, gguf};

/// Why a weight file was refused, or could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The path leads to a folder or a device.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is of another format.
    #[error("{label}: {what}")]
    Stranger {
        /// The file.
        label: String,
        /// What it is, and the next step.
        what: &'static str,
    },
    /// The file breaks the rules of its format.
    #[error("{label}: {fault}")]
    Format {
        /// The file.
        label: String,
        /// Which rule, where.
        fault: gguf::Fault,
    },
    /// A file or folder cannot be used.
    #[error("{}: {message}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// The data of a tensor could not be computed.
    #[error("tensor `{tensor}`: {message}")]
    Made {
        /// Its name.
        tensor: String,
        /// Why.
        message: String,
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
    /// The data of a tensor could not be read while the file was written.
    #[error("{}: tensor `{tensor}`: {source}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Why.
        source: std::io::Error,
    },
    /// The data of a tensor does not have the size of its shape.
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
