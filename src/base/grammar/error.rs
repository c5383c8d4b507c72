//! Why a constraint cannot be used.

use std::fmt;

use super::MAX_BYTES;
use super::limits::TIME_LIMIT;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text of the constraint is too long.
    #[error("the constraint has {found} bytes, expected at most {MAX_BYTES}")]
    TooLarge { found: usize },
    /// The JSON Schema is invalid or cannot be enforced.
    #[error("schema{at}: {message}")]
    Schema {
        /// JSON pointer of the faulty part; empty for the whole schema.
        at: String,
        /// What is wrong.
        message: String,
    },
    /// The regular expression is invalid or cannot be enforced.
    #[error("regular expression: {message}")]
    Regex {
        /// What is wrong.
        message: String,
    },
    /// The GBNF grammar is invalid.
    #[error("grammar, line {line}, column {column}: {message}")]
    Gbnf {
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// The Lark grammar is invalid, or a grammar of any kind is too large to be enforced.
    #[error("grammar: {message}")]
    Grammar { message: String },
    /// Compilation exceeded its time limit.
    #[error("the constraint is too complex: not compiled within {} seconds", TIME_LIMIT.as_secs())]
    TooSlow,
    /// Too many other constraints are being compiled.
    #[error("too many other constraints are being compiled; try again later")]
    Busy,
    /// The model's vocabulary does not fit into the tree of tokens.
    #[error("a vocabulary of {n_tokens} tokens cannot be constrained")]
    Vocabulary { n_tokens: usize },
    /// The operating system could not start a thread.
    #[error("no thread to compile the constraint on")]
    NoThread,
    /// The work for a token is beyond the limits.
    #[error("the constraint is too complex: {message}")]
    TooComplex {
        /// The library's message.
        message: String,
    },
    /// The grammar cannot continue the completion.
    #[error("the constraint engine failed: {message}")]
    Broken {
        /// The library's message.
        message: String,
    },
}

impl Error {
    /// The error of a matcher that failed. The library tells its limits from other faults by its messages only.
    pub(super) fn broken(error: &dyn fmt::Display) -> Self {
        const LIMITS: &[&str] = &[
            "too many expressions",
            "too many states",
            "Too many items",
            "Current row has",
        ];
        let message = first_part(&error.to_string());
        match LIMITS.iter().any(|limit| message.contains(limit)) {
            true => Self::TooComplex { message },
            false => Self::Broken { message },
        }
    }
}

/// A message of the library without the state dumps after it. Some limits of the library are assertions; their text
/// only goes to the log.
pub(super) fn first_part(message: &str) -> String {
    if let Some(assertion) = message.strip_prefix("panic: ") {
        tracing::debug!(assertion, "a constraint");
        return "too large for what enforces it".into();
    }
    let end = message.find("\n<").unwrap_or(message.len());
    message[..end].trim_end().to_owned()
}
