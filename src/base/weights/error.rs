//! The reasons why a weight file is refused or cannot be written.

use std::fmt;
use std::path::PathBuf;

use super::gguf_fault::{GgufFault, SplitFault};

/// The reason why a weight file is refused, or cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system returned an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The path is that of a folder or a device.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file has another format.
    #[error("{label}: {what}")]
    Stranger {
        /// The file.
        label: String,
        /// The actual format, and the next step.
        what: &'static str,
    },
    /// The file breaks the rules of its format.
    #[error("{label}: {fault}")]
    Format {
        /// The file.
        label: String,
        /// The broken rule and its place.
        fault: GgufFault,
    },
    /// A file or folder cannot be used.
    #[error("{}: {message}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        message: String,
    },
    /// The data of a tensor could not be computed.
    #[error("tensor `{tensor}`: {message}")]
    Made {
        /// Name of the tensor.
        tensor: String,
        /// The reason.
        message: String,
    },
    /// The parts of a split file do not fit each other.
    #[error("{label}: {fault}")]
    Split {
        /// The file.
        label: String,
        /// The contradiction.
        fault: SplitFault,
    },
    /// A weight is not a finite number.
    #[error(
        "tensor `{tensor}`: {found}{} at row {row}, column {column}",
        if *in_scale { " in the scale of the block" } else { "" }
    )]
    NotFinite {
        /// Name of the tensor.
        tensor: String,
        /// Row of the first value that is not finite, counted over all dimensions above the first.
        row: u64,
        /// Column of the value, or the first column of the block with the scale.
        column: u64,
        /// Whether the value is a scale.
        in_scale: bool,
        /// The kind of the value.
        found: NotFinite,
    },
    /// The data of a tensor could not be read while the file was written.
    #[error("{}: tensor `{tensor}`: {source}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The data of a tensor does not have the size of its shape.
    #[error("{}: tensor `{tensor}` got {found} bytes, expected {expected}", path.display())]
    DataSize {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Number of bytes that were given.
        found: u64,
        /// Number of bytes of the shape.
        expected: u64,
    },
}

/// The kind of a float that is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFinite {
    /// Not a number.
    Nan,
    /// Infinity of either sign.
    Infinity,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nan => "NaN",
            Self::Infinity => "infinity",
        })
    }
}
