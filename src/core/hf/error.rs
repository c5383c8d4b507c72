//! The errors of opening a folder.

use std::path::PathBuf;

use super::CONFIG;
use crate::arch::{Diagnostics, LibraryError};
use lab_base::weights;

pub(super) const MAX_LISTED: usize = 12;

/// The reason why a folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the folder has an error.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The configuration is malformed.
    #[error("{}: {message}", path.display())]
    Config { path: PathBuf, message: String },
    /// No map exists for the classes of the configuration.
    #[error("{}: {message}", path.display())]
    NoMap {
        path: PathBuf,
        /// The classes, and the nearest map or what is missing.
        message: String,
    },
    /// A map has problems itself.
    #[error("{}: {}", .0.path(), without_heading(.0))]
    BrokenMap(Diagnostics),
    /// The map does not fit the folder.
    #[error("{}: {}", folder.display(), joined(problems))]
    Map {
        folder: PathBuf,
        /// All problems, by file.
        problems: Vec<Diagnostics>,
    },
    /// The definition of the architecture has an error.
    #[error(transparent)]
    Arch(#[from] LibraryError),
    /// The folder has tensors or keys that the map does not mention.
    #[error("{}: {}", folder.display(), unmapped(map, tensors, keys))]
    Unmapped {
        folder: PathBuf,
        map: String,
        tensors: Vec<String>,
        keys: Vec<String>,
    },
}

/// The names of parts that are left out, and how many things of them are.
pub(super) fn left_out_parts(left_out: &[(String, usize)]) -> (String, usize) {
    let names: Vec<&str> = left_out.iter().map(|(part, _)| part.as_str()).collect();
    (names.join(", "), left_out.iter().map(|(_, n)| n).sum())
}

fn joined(problems: &[Diagnostics]) -> String {
    let (first, others) = problems
        .split_first()
        .map_or((None, problems), |(a, b)| (Some(a), b));
    let first = first.map(without_heading);
    let texts: Vec<String> = first
        .into_iter()
        .chain(others.iter().map(Diagnostics::to_string))
        .collect();
    texts.join("\n\n")
}

/// Problems without the word before the first one, since they follow the name of a file or folder.
fn without_heading(problems: &Diagnostics) -> String {
    let text = problems.to_string();
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
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
    let (mut parts, mut ways) = (Vec::new(), Vec::new());
    if !tensors.is_empty() {
        parts.push(list("the tensors", tensors));
        ways.push("name each tensor in a rule of the map, or in `tensors` of [ignore]");
    }
    if !keys.is_empty() {
        parts.push(list(&format!("the {CONFIG} keys"), keys));
        ways.push("read each key in the map, or state it in [defaults] or in `config` of [ignore]");
    }
    format!(
        "{map} does not mention {}: {}; --allow-unmapped goes on without them",
        parts.join(", nor "),
        ways.join("; ")
    )
}
