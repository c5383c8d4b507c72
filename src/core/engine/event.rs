//! The events of a request: text, denoising steps, the end. Plain data.

use std::ops::AddAssign;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::model::{self, CacheMiss};
use lab_base::ggml;
use lab_sampling::{SampleError, TokenLogprob};

use super::diffusion_options::FixedToken;
use super::draft::DraftCounts;
use super::lab_result::LabResult;

/// A token of the prompt, or a token of the completion whose bytes are in the released text.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerToken {
    pub id: u32,
    /// The bytes it contributes to the text.
    pub bytes: Vec<u8>,
    /// The token with its log-probability; none if log-probabilities are not wanted.
    pub chosen: Option<TokenLogprob>,
    /// The token's rank among all tokens by probability, from 1; 0 without log-probabilities.
    pub rank: usize,
    /// The most probable tokens, in descending order.
    pub top: Vec<TokenLogprob>,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model or a stop sequence ended it.
    Stop,
    /// The limit of tokens or the context was reached.
    Length,
}

impl FinishReason {
    /// The reason under OpenAI's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// The stop sequence or stop token of the request that ended a completion. The vocabulary's own ending tokens are
/// neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopMatch {
    /// A stop sequence.
    Text(String),
    /// A stop token of the request.
    Token(u32),
}

/// The tokens and the time of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the prefix cache.
    pub cached_tokens: usize,
    /// Of these, tokens that came from the host's memory and from files.
    pub restored: [usize; 2],
    /// Why not more was in the KV cache.
    pub cache_miss: CacheMiss,
    /// Why not more was in the store of prefixes.
    pub store_miss: CacheMiss,
    /// Tokens of the prompt that stand for pictures.
    pub image_tokens: usize,
    /// Tokens of the prompt that stand for sounds.
    pub audio_tokens: usize,
    /// Tokens of the completion, the ending one included.
    pub completion_tokens: usize,
    /// Tokens of the completion that are reasoning, as counted by the reader of the text.
    pub reasoning_tokens: usize,
    /// Draft tokens that were read and accepted.
    pub drafts: DraftCounts,
    /// Denoising steps (text diffusion).
    pub passes: usize,
    /// Positions that these steps computed. Positions that several completions share count for one of them.
    pub positions: usize,
    /// Time in the queue.
    pub queue: Duration,
    /// Time from there until the prompt was read.
    pub prefill: Duration,
    /// Time from the end of prefill to the end of the completion.
    pub decode: Duration,
}

impl AddAssign for Usage {
    /// Adds the tokens; of the times, the longer ones stay.
    fn add_assign(&mut self, other: Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        for (own, other) in self.restored.iter_mut().zip(other.restored) {
            *own += other;
        }
        for (own, other) in [
            (&mut self.cache_miss, other.cache_miss),
            (&mut self.store_miss, other.store_miss),
        ] {
            if *own == CacheMiss::None {
                *own = other;
            }
        }
        self.image_tokens += other.image_tokens;
        self.audio_tokens += other.audio_tokens;
        self.completion_tokens += other.completion_tokens;
        self.reasoning_tokens += other.reasoning_tokens;
        self.drafts += other.drafts;
        self.passes += other.passes;
        self.positions += other.positions;
        self.queue = self.queue.max(other.queue);
        self.prefill = self.prefill.max(other.prefill);
        self.decode = self.decode.max(other.decode);
    }
}

/// How much of the prompt of a request is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptProgress {
    /// Tokens of the prompt.
    pub total: usize,
    /// Tokens of the prompt that were in the prefix cache.
    pub cached: usize,
    /// Tokens of the prompt that are read, including those in the prefix cache.
    pub processed: usize,
    /// Time since the request's first step.
    pub time: Duration,
}

/// The events of a request. Dropping them cancels the request.
pub type Events = mpsc::UnboundedReceiver<Event>;

/// An event of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Tokens of the prompt with their log-probabilities, in order. The first token follows nothing and has none.
    Prompt(Vec<AnswerToken>),
    /// How much of the prompt is read, if the request asks for it: before the first step and after each step.
    Progress(PromptProgress),
    /// Final text, with its tokens.
    Text {
        /// Complete characters.
        text: String,
        /// The tokens whose bytes make up the text.
        tokens: Vec<AnswerToken>,
    },
    /// The token that ended the completion, if one did. Its bytes are in no text.
    Ended(AnswerToken),
    /// The results of the request's lab plan, the last event before `Ended` and `Done`.
    Lab(Box<LabResult>),
    /// The vector of a text, or the scores of its classes.
    Pooled(Vec<f32>),
    /// A denoising step, if the request asks for them.
    DenoisingStep {
        /// Number of the step, from 0.
        step: usize,
        /// The positions that the step fixed, the most certain first.
        fixed: Vec<FixedToken>,
        /// Positions that are still masked.
        n_masked: usize,
    },
    /// The completion is complete.
    Done {
        reason: FinishReason,
        /// The stop sequence or token of the request that stopped it.
        stopped: Option<StopMatch>,
        /// Its tokens and times.
        usage: Usage,
    },
    /// The request failed.
    Failed(Failure),
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The request waited too long in the queue.
    #[error("waited {0:?} in the queue, which is the limit")]
    QueueTime(Duration),
    /// The completion took too long.
    #[error("not complete after {0:?}, which is the limit")]
    AnswerTime(Duration),
    /// The request excludes every token.
    #[error("{0}; see `logit_bias`, the constraint and the sampling parameters")]
    NothingLeft(String),
    /// The constraint cannot be followed any further.
    #[error("{0}")]
    Constraint(String),
    /// The computation failed, or its results cannot be used.
    #[error("{0}")]
    Computation(String),
    /// The file of the model was changed while it was in use. The model must be loaded again.
    #[error("{0}")]
    Changed(String),
    /// The connection to a worker of another machine, which computes parts of the model, is lost. The model must be
    /// loaded again.
    #[error("{0}")]
    Lost(String),
    /// The model computed values that are not finite numbers.
    #[error("{fault}{}", place.as_deref().map(|place| format!("; {place}")).unwrap_or_default())]
    NotFinite {
        /// The fault of the logits.
        fault: String,
        /// The first value that is not finite, if it was found.
        place: Option<String>,
        /// Whether the request changed values of the model: by edits, or by scales of adapters.
        is_changed: bool,
    },
}

impl Failure {
    /// The same failure of a request that changed values of the model, or of one that did not.
    pub(super) fn of_changed(self, is_changed: bool) -> Self {
        match self {
            Self::NotFinite { fault, place, .. } => Self::NotFinite {
                fault,
                place,
                is_changed,
            },
            other => other,
        }
    }
}

impl From<model::Error> for Failure {
    fn from(error: model::Error) -> Self {
        match error {
            model::Error::Changed(what) => Self::Changed(what),
            model::Error::Ggml(ggml::Error::Worker(what)) => Self::Lost(what),
            model::Error::NotFinite => Self::NotFinite {
                fault: error.to_string(),
                place: None,
                is_changed: false,
            },
            other => Self::Computation(other.to_string()),
        }
    }
}

impl From<SampleError> for Failure {
    fn from(error: SampleError) -> Self {
        let fault = error.to_string();
        match error {
            SampleError::NothingLeft { .. } => Self::NothingLeft(fault),
            error if error.is_not_finite() => Self::NotFinite {
                fault,
                place: None,
                is_changed: false,
            },
            _ => Self::Computation(fault),
        }
    }
}
