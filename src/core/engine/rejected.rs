//! Why an engine refuses a request.

use lab_sampling::ParamError;

use super::capabilities::Unsupported;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The prompt leaves no position for a completion.
    #[error("the prompt has {found} tokens, and the context holds {limit}")]
    TooLong { found: usize, limit: usize },
    /// The model reads rows before its text, and the request has none.
    #[error("this model reads a sound or a picture before its text, and the request has none")]
    NoSource,
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// Too many requests wait.
    #[error("{limit} requests are waiting already")]
    QueueFull { limit: usize },
    /// The lists of most probable tokens have too many entries.
    #[error(
        "the lists of most probable tokens have up to {found} entries (length of a list x tokens x completions), \
         the limit is {limit}; fewer tokens, completions or entries of a list take less"
    )]
    Lists {
        /// Maximum number of entries that the request asks for.
        found: u64,
        limit: u64,
    },
    /// Contrastive search cannot be run.
    #[error("`penalty_alpha`: contrastive search is not possible: {0}")]
    NoSearch(&'static str),
    /// The model cannot do what a field asks for.
    #[error("`{field}`: {message}")]
    Field {
        field: &'static str,
        message: String,
    },
    /// The model cannot pool a text.
    #[error("this model {0}")]
    NotPooled(&'static str),
    /// The model does not write text.
    #[error("{0}; ask for vectors at `/v1/embeddings`, or for scores at `/v1/rerank`")]
    NoText(Unsupported),
    /// The engine has ended.
    #[error("the engine has ended")]
    Ended,
}

impl Rejected {
    pub(super) fn field(field: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::Field { field, message }
    }

    /// Refuses the first of these fields that is set.
    pub(super) fn if_set(fields: &[(&'static str, bool)], message: &str) -> Result<(), Self> {
        match fields.iter().find(|(_, is_set)| *is_set) {
            Some((field, _)) => Err(Self::field(field, message)),
            None => Ok(()),
        }
    }
}
