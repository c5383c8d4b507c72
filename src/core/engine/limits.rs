//! Limits of an engine, and the defaults of its requests.

use std::time::Duration;

use super::diffusion_options::DiffusionOptions;
use super::draft::DraftOptions;

/// Limits of an engine, and the defaults of its requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Positions of one sequence.
    pub n_ctx: usize,
    /// Maximum number of active requests.
    pub n_parallel: usize,
    /// Maximum number of waiting requests.
    pub n_queue: usize,
    /// Maximum number of prefill tokens per step while other requests decode.
    pub n_prefill: usize,
    /// What drafts tokens (speculative decoding).
    pub drafts: DraftOptions,
    /// Options of text diffusion where a request sets none.
    pub diffusion: DiffusionOptions,
    /// Maximum size of the captured values of one request, in bytes.
    pub lab_bytes: u64,
    /// Maximum time a request waits in the queue.
    pub queue_time: Option<Duration>,
    /// Maximum time from a request's first step to the end of its completion.
    pub answer_time: Option<Duration>,
    /// Time after which a running step counts as stalled.
    pub step_time: Option<Duration>,
}
