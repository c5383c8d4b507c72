//! The reasons why a weight file is refused or cannot be written.

use std::fmt;
use std::path::{Path, PathBuf};

use super::gguf_fault::{GgufFault, SplitFault};

/// The reason why a weight file is refused, or cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// The file has another format; the text names it and the next step.
    #[error("{label}: {what}")]
    OtherFormat { label: String, what: &'static str },
    #[error("{label}: {fault}")]
    Format { label: String, fault: GgufFault },
    /// A file or folder cannot be used.
    #[error("{}: {message}", path.display())]
    File { path: PathBuf, message: String },
    /// The data of a tensor could not be computed.
    #[error("tensor `{tensor}`: {message}")]
    NotComputed { tensor: String, message: String },
    #[error("{label}: {fault}")]
    Split { label: String, fault: SplitFault },
    #[error(
        "tensor `{tensor}`: {found}{} at row {row}, column {column}",
        if *in_scale { " in the scale of the block" } else { "" }
    )]
    NotFinite {
        tensor: String,
        /// Row of the first value that is not finite, counted over all dimensions above the first.
        row: u64,
        /// Column of the value, or the first column of the block with the scale.
        column: u64,
        in_scale: bool,
        found: NotFinite,
    },
    #[error("{}: tensor `{tensor}`: {source}", path.display())]
    Data {
        path: PathBuf,
        tensor: String,
        source: std::io::Error,
    },
    #[error("{}: tensor `{tensor}` got {found} bytes, expected {expected}", path.display())]
    DataSize {
        path: PathBuf,
        tensor: String,
        found: u64,
        expected: u64,
    },
}

impl Error {
    /// The error of the operating system over a file.
    pub(super) fn io(path: &Path) -> impl Fn(std::io::Error) -> Self + Copy {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
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
