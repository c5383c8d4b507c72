//! What answers share: completions collected or streamed, their parts, log-probabilities.

pub(crate) mod completion_parser;
pub(crate) mod envelope;
pub(crate) mod lab;
pub(crate) mod logprobs;
pub(crate) mod output_parsing;
pub(crate) mod pooled;
pub(crate) mod running_completions;
