//! Why a template or a rendering failed.

/// A template that cannot be used at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("chat template, line {line}: {message}")]
pub struct TemplateError {
    /// Line of the template, from 1.
    pub line: usize,
    /// What is wrong there.
    pub message: String,
}

/// A conversation that a template did not render.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template refused the conversation by `raise_exception`; the text is its own.
    #[error("{0}")]
    Raised(String),
    /// The conversation is not a list of messages.
    #[error("messages{at}: expected {expected}, found {found}")]
    Messages {
        /// Index of the message, as `[3]`; empty for the whole.
        at: String,
        /// What there should be.
        expected: &'static str,
        /// What there is.
        found: &'static str,
    },
    /// The template failed.
    #[error("chat template, line {line}: {message}")]
    Runtime {
        /// Line of the template, from 1; 0 where it is not known.
        line: usize,
        /// What went wrong there.
        message: String,
    },
    /// The template ran too long, nested too deep or wrote too much.
    #[error("chat template: {0}")]
    Limit(&'static str),
    /// `continue_final_message` cannot be done for this conversation.
    #[error("`continue_final_message`: {0}")]
    Continue(&'static str),
}
