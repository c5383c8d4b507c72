//! Why a folder could not be opened.

use std::path::PathBuf;

use super::CONFIG;
use crate::arch::{Diagnostics, LibraryError};
use crate::weights;

/// Maximum number of names that a message lists.
pub(super) const MAX_LISTED: usize = 12;

/// Why a folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the folder.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The configuration is malformed.
    #[error("{}: {message}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Found and expected.
        message: String,
    },
    /// No map is for the classes that the configuration names.
    #[error("{}: {message}", path.display())]
    NoMap {
        /// The configuration.
        path: PathBuf,
        /// The classes, and what is nearest or missing.
        message: String,
    },
    /// The map does not fit the folder, or has problems itself.
    #[error("{}: {}", folder.display(), joined(problems))]
    Map {
        /// The folder.
        folder: PathBuf,
        /// All problems, by the files in which they lie.
        problems: Vec<Diagnostics>,
    },
    /// The architecture of the map.
    #[error(transparent)]
    Arch(#[from] LibraryError),
    /// The folder holds tensors or keys that the map does not mention.
    #[error("{}: {}", folder.display(), unmapped(map, tensors, keys))]
    Unmapped {
        /// The folder.
        folder: PathBuf,
        /// The file of the map.
        map: String,
        /// Stored tensors.
        tensors: Vec<String>,
        /// Keys of the configuration.
        keys: Vec<String>,
    },
}

fn joined(problems: &[Diagnostics]) -> String {
    let texts: Vec<String> = problems.iter().map(Diagnostics::to_string).collect();
    texts.join("\n\n")
}

fn unmapped(map: &str, tensors: &[String], keys: &[String]) -> String {
    let list = |what: &str, names: &[String]| {
        let shown = names.len().min(MAX_LISTED);
        let more = match names.len() - shown {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        format!("{what} {}{more}", names[..shown].join(", "))
    };
    let mut parts = Vec::new();
    if !tensors.is_empty() {
        parts.push(list("the tensors", tensors));
    }
    if !keys.is_empty() {
        parts.push(list(&format!("the {CONFIG} keys"), keys));
    }
    format!(
        "{map} does not speak of {}; --allow-unmapped goes on without them",
        parts.join(", nor of ")
    )
}
