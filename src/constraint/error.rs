//! Why a constraint cannot be used.

use std::fmt;

use super::MAX_BYTES;
use super::limits::TIME_LIMIT;

/// Why a constraint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Its text is too long.
    #[error("the constraint has {found} bytes, expected at most {MAX_BYTES}")]
    TooLarge {
        /// Bytes of the text.
        found: usize,
    },
    /// A JSON Schema that is wrong or goes beyond what can be enforced.
    #[error("schema{at}: {message}")]
    Schema {
        /// JSON pointer of the place; empty for the whole.
        at: String,
        /// What is wrong.
        message: String,
    },
    /// A regular expression that is wrong or goes beyond what can be enforced.
    #[error("regular expression: {message}")]
    Regex {
        /// What is wrong.
        message: String,
    },
    /// A GBNF grammar that is wrong.
    #[error("grammar, line {line}, column {column}: {message}")]
    Gbnf {
        /// Line, from 1.
        line: usize,
        /// Character of the line, from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A Lark grammar that is wrong, or any grammar too large to be enforced.
    #[error("grammar: {message}")]
    Grammar {
        /// What is wrong, and where.
        message: String,
    },
    /// Compiling it took too long.
    #[error("the constraint is too complex: it was not ready after {} seconds", TIME_LIMIT.as_secs())]
    TooSlow,
    /// Too many others are being compiled.
    #[error("too many other constraints are being prepared; try again later")]
    Busy,
    /// The model's vocabulary does not fit into the tree of tokens.
    #[error("a vocabulary of {n_tokens} tokens cannot be constrained")]
    Vocabulary {
        /// Tokens of the vocabulary.
        n_tokens: usize,
    },
    /// The operating system gave no thread.
    #[error("no thread to prepare the constraint on")]
    NoThread,
    /// The grammar cannot continue the completion.
    #[error("the constraint cannot be followed any further: {message}")]
    Broken {
        /// What the library says.
        message: String,
    },
}

impl Error {
    pub(super) fn broken(error: &dyn fmt::Display) -> Self {
        Self::Broken {
            message: first_part(&error.to_string()),
        }
    }
}

/// A message of the library without the dumps of its state that follow; it asserts some of its limits.
pub(super) fn first_part(message: &str) -> String {
    if let Some(assertion) = message.strip_prefix("panic: ") {
        tracing::debug!(assertion, "a constraint");
        return "too large for what enforces it".into();
    }
    let end = message.find("\n<").unwrap_or(message.len());
    message[..end].trim_end().to_owned()
}
