//! A request to an engine. Plain data; nothing here runs.

use std::sync::Arc;
use std::time::Duration;

use lab_base::grammar::CompiledConstraint;
use lab_sampling::{Params, TokenRules};

use super::diffusion_options::DiffusionOptions;
use super::draft::DraftLimits;
use super::lab::LabPlan;
use super::thinking::Thinking;
use crate::models::media::PromptMedia;

/// A request for a completion.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids of the prompt. An encoder-decoder model reads them as its source, and the completion starts with a
    /// token of the model's. If its source is rows of a medium, they are what the completion continues.
    pub prompt: Vec<u32>,
    /// The media of the prompt, whose tokens stand for their rows; or the one medium that a model reads before its prompt.
    pub media: Option<Arc<PromptMedia>>,
    /// Maximum number of tokens of the completion. 0: the prompt is only read; none: as many as the context holds.
    pub max_tokens: Option<usize>,
    pub sampling: Params,
    /// Index among the completions of the same prompt. Each draws its own random numbers.
    pub choice: u32,
    /// Stop sequences, which end the completion and are not part of it.
    pub stops: Vec<Vec<u8>>,
    /// Further conditions that end the completion.
    pub stop: StopConditions,
    /// Length of the list of most probable tokens, if log-probabilities are wanted.
    pub top_logprobs: Option<usize>,
    /// Whether log-probabilities are those after all stages of sampling, from which tokens are drawn; otherwise
    /// they are those of the model.
    pub post_sampling: bool,
    /// Whether the progress of the prompt is reported.
    pub progress: bool,
    /// Length of the list of most probable tokens at each prompt position; none: no log-probabilities of the
    /// prompt.
    pub prompt_logprobs: Option<usize>,
    /// Limits of its draft tokens (speculative decoding). The completion does not depend on them.
    pub drafts: DraftLimits,
    /// Whether the prompt may be read from the prefix cache. The completion does not depend on it.
    pub cache_prompt: bool,
    /// The grammar of the completion, compiled by [`Handle::compile`](super::Handle::compile).
    pub constraint: Option<CompiledConstraint>,
    /// Which tokens may come next in a transcript.
    pub rules: Option<Arc<TokenRules>>,
    /// The limit on reasoning.
    pub thinking: Option<Thinking>,
    /// Adapters and their scales, the others being off; none: the engine's scales.
    pub adapters: Option<Vec<(usize, f32)>>,
    /// What is captured and edited in its passes.
    pub lab: Option<Arc<LabPlan>>,
    /// Options of text diffusion, only for models that decode by it.
    pub diffusion: Option<DiffusionOptions>,
    /// Requests of a lower number start first.
    pub priority: i64,
    /// The slot whose prefix a client may save afterwards (`/slots` of llama-server); none: any.
    pub slot: Option<usize>,
    /// Whether every denoising step is reported; only for models that decode by text diffusion.
    pub trace: bool,
}

impl Request {
    /// A request that generates nothing: its tokens are only read.
    pub fn reading(tokens: Vec<u32>) -> Self {
        Self::new(tokens, 0)
    }

    /// A request for at most `max_tokens` tokens, with no other options.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            media: None,
            max_tokens: Some(max_tokens),
            sampling: Params::default(),
            choice: 0,
            stops: Vec::new(),
            stop: StopConditions::default(),
            cache_prompt: true,
            top_logprobs: None,
            post_sampling: false,
            progress: false,
            prompt_logprobs: None,
            drafts: DraftLimits::default(),
            constraint: None,
            rules: None,
            adapters: None,
            lab: None,
            diffusion: None,
            thinking: None,
            priority: 0,
            slot: None,
            trace: false,
        }
    }
}

/// Conditions other than stop sequences that end a completion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopConditions {
    /// Number of tokens before a token or a stop sequence may end the completion.
    pub min_tokens: usize,
    /// Tokens that end the completion in addition to those of the vocabulary. The completion does not contain them.
    pub stop_tokens: Vec<u32>,
    /// Whether the stop sequence that ends the completion is part of it.
    pub keeps_stop: bool,
    /// Minimum number of spaces and tabs at the start of each line but the first: a line with less ends the completion.
    pub n_indent: usize,
    /// Time after the prompt is read from which a completion of more than one line ends; none: no limit.
    pub time: Option<Duration>,
}
