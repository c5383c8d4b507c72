//! What an engine reports of a request: text, denoising steps, the end. Plain data.

use std::time::Duration;

use crate::ggml;
use crate::model;
use crate::sampling::{SampleError, TokenLogprob};

use super::diffusion_options::Fixed;
use super::recorder::LabResult;

/// A token of the prompt, or of the completion as far as it is part of the released text.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerToken {
    /// Its id.
    pub id: u32,
    /// The bytes it contributes to the text.
    pub bytes: Vec<u8>,
    /// The token; none if no log-probabilities are wanted.
    pub chosen: Option<TokenLogprob>,
    /// Its place among all tokens by probability, from 1; 0 where it has none.
    pub rank: usize,
    /// The most probable tokens, falling.
    pub top: Vec<TokenLogprob>,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop sequence did.
    Stop,
    /// The limit of tokens or the context was reached.
    Length,
}

/// What of the request ended a completion that stopped; the model's own end is none of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// A stop sequence.
    Text(String),
    /// A token that ends the completion.
    Token(u32),
}

/// What a completion took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens generated, the ending one included.
    pub completion_tokens: usize,
    /// Those of them that are reasoning, as far as who reads the text tells it from content.
    pub reasoning_tokens: usize,
    /// Draft tokens that were read.
    pub drafted_tokens: usize,
    /// Draft tokens that were accepted.
    pub accepted_tokens: usize,
    /// Denoising steps (text diffusion).
    pub passes: usize,
    /// Positions that these computed; what several completions share counts for one of them.
    pub positions: usize,
    /// Time until the prompt was read.
    pub prefill: Duration,
    /// Time from there to the end.
    pub decode: Duration,
}

/// How far the prompt of a request is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Tokens of the prompt.
    pub total: usize,
    /// Those of them that were in the prefix cache.
    pub cached: usize,
    /// Those that are read, those in the prefix cache included.
    pub processed: usize,
    /// Time since its first step.
    pub time: Duration,
}

/// What the engine reports of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Tokens of the prompt with the log-probabilities that the model gives them, in order; the first
    /// token follows nothing and has none.
    Prompt(Vec<AnswerToken>),
    /// How much of the prompt is processed, where that is wanted: before the first step and after each one.
    Progress(Progress),
    /// Text that is final, with the tokens it is made of.
    Text {
        /// Complete characters.
        text: String,
        /// The tokens whose bytes are the text's.
        tokens: Vec<AnswerToken>,
    },
    /// The token that ended the completion, if one did; its bytes are in no text.
    Ended(AnswerToken),
    /// What the plan of a request gave; comes last before the end.
    Lab(Box<LabResult>),
    /// The vector of a text, or the scores of its classes.
    Pooled(Vec<f32>),
    /// A denoising step, if these are traced.
    Step {
        /// Number of the step, from 0.
        step: usize,
        /// The positions that it fixed, the most certain first.
        fixed: Vec<Fixed>,
        /// Positions that are still masked.
        n_masked: usize,
    },
    /// The completion is complete.
    Done {
        /// Why.
        reason: FinishReason,
        /// What of the request stopped it.
        stopped: Option<Stopped>,
        /// What it took.
        usage: Usage,
    },
    /// The completion cannot be completed.
    Failed(Failure),
}

/// Why a completion cannot be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It waited too long in the queue.
    #[error("waited {0:?} in the queue, which is the limit")]
    QueueTime(Duration),
    /// It took too long.
    #[error("not complete after {0:?}, which is the limit")]
    AnswerTime(Duration),
    /// The request excludes every token.
    #[error("{0}; see `logit_bias`, the constraint and the sampling parameters")]
    NothingLeft(String),
    /// What was computed cannot be used, or could not be computed.
    #[error("{0}")]
    Computation(String),
    /// The file of the model was changed in place while it was used: it has to be loaded again.
    #[error("{0}")]
    Changed(String),
    /// A worker of another machine, which computes parts of the model, is lost: the model has to be loaded again.
    #[error("{0}")]
    Lost(String),
    /// The model computed values that are not finite numbers.
    #[error("{fault}{}", place.as_deref().map(|place| format!("; {place}")).unwrap_or_default())]
    NotFinite {
        /// What is wrong with its logits.
        fault: String,
        /// The first value that is not finite, if it was found.
        place: Option<String>,
    },
}

impl From<model::Error> for Failure {
    fn from(error: model::Error) -> Self {
        match error {
            model::Error::Changed(what) => Self::Changed(what),
            model::Error::Ggml(ggml::Error::Worker(what)) => Self::Lost(what),
            other => Self::Computation(other.to_string()),
        }
    }
}

impl From<SampleError> for Failure {
    fn from(error: SampleError) -> Self {
        let fault = error.to_string();
        match error {
            SampleError::NothingLeft { .. } => Self::NothingLeft(fault),
            error if error.is_not_finite() => Self::NotFinite { fault, place: None },
            _ => Self::Computation(fault),
        }
    }
}
