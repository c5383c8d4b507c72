//! Errors of templates and renderings.

use minijinja::{Error, ErrorKind};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("chat template, line {line}: {message}")]
pub struct TemplateError {
    /// Line of the template, from 1.
    pub line: usize,
    pub message: String,
}

/// The error of a conversation that a template did not render.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template refused the conversation by `raise_exception`, with its own message.
    #[error("{0}")]
    Raised(String),
    /// The conversation is not a list of messages.
    #[error("messages{at}: expected {expected}, found {found}")]
    Messages {
        /// Index of the message, such as `[3]`; empty for the whole list.
        at: String,
        /// What was expected.
        expected: &'static str,
        /// What was found.
        found: &'static str,
    },
    /// Running the template failed.
    #[error("chat template, line {line}: {message}")]
    Runtime {
        /// Line of the template, from 1; 0 if it is unknown.
        line: usize,
        /// What went wrong.
        message: String,
    },
    /// The template ran too long, nested too deep or created too much text.
    #[error("chat template: {0}")]
    Limit(&'static str),
    /// `continue_final_message` is not possible for this conversation.
    #[error("`continue_final_message`: {0}")]
    Continue(&'static str),
}

/// A failure of the running template, like an exception of the Python runtime.
pub(super) fn fault(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}
