//! One request while it runs: its tokens, its choices, its text.

use std::time::Instant;

use tokio::sync::mpsc;

use crate::model::SequenceId;
use crate::sampling::{Logprobs, SampleError, Sampler};
use crate::text::gate::{Gate, Released};
use crate::text::tokenizer::Tokenizer;

use super::{AnswerToken, Event, FinishReason, Submitted, TokenLogprob, Usage};

/// What a token carries through the text gate.
struct Entry {
    chosen: Option<TokenLogprob>,
    top: Vec<TokenLogprob>,
}

/// A running request.
pub(super) struct Sequence {
    /// Its rows in the cache.
    pub(super) id: SequenceId,
    /// Prompt and answer.
    tokens: Vec<u32>,
    n_prompt: usize,
    /// Tokens whose keys and values are in the cache.
    n_cached: usize,
    /// Positions it may fill in all.
    limit: usize,
    sampler: Sampler,
    gate: Gate<Entry>,
    top_logprobs: Option<usize>,
    /// Closed by the receiver when nobody waits for the answer.
    events: mpsc::UnboundedSender<Event>,
    started: Instant,
    prefilled: Option<Instant>,
    /// Whether its tokens are kept between passes.
    is_cached: bool,
}

impl Sequence {
    pub(super) fn new(id: SequenceId, submitted: Submitted, n_ctx: usize, is_cached: bool) -> Self {
        let Submitted {
            request,
            mut sampler,
            events,
        } = submitted;
        sampler.accept_prompt(&request.prompt);
        let n_prompt = request.prompt.len();
        let limit = request
            .max_tokens
            .map_or(n_ctx, |most| n_prompt.saturating_add(most))
            .min(n_ctx);
        Self {
            id,
            n_prompt,
            n_cached: 0,
            limit,
            sampler,
            gate: Gate::new(&request.stops),
            top_logprobs: request.top_logprobs,
            events,
            started: Instant::now(),
            prefilled: None,
            is_cached,
            tokens: request.prompt,
        }
    }

    /// Whether nobody waits for the answer any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    pub(super) fn is_prefill(&self) -> bool {
        self.prefilled.is_none()
    }

    /// Tokens that the next passes must read.
    pub(super) fn pending(&self) -> &[u32] {
        &self.tokens[self.n_cached..]
    }

    /// Position of the first pending token.
    pub(super) fn position(&self) -> u32 {
        self.n_cached as u32
    }

    /// Takes note that `n` pending tokens were read. Returns whether the last one was among them, so
    /// that a token can be chosen.
    pub(super) fn advance(&mut self, n: usize) -> bool {
        let is_complete = n == self.pending().len();
        if self.is_cached {
            self.n_cached += n;
        }
        if is_complete && self.prefilled.is_none() {
            self.prefilled = Some(Instant::now());
        }
        is_complete
    }

    /// Chooses the next token from its logits and releases what text it completes. Returns why the
    /// answer ends, if it does.
    pub(super) fn choose(
        &mut self,
        logits: &[f32],
        tokenizer: &Tokenizer,
    ) -> Result<Option<FinishReason>, SampleError> {
        let token = tracing::trace_span!(target: "phase", "sample")
            .in_scope(|| self.sampler.sample(logits))?;
        self.sampler.accept(token);
        let entry = self.entry(token, logits)?;
        self.tokens.push(token);
        if tokenizer.is_end_of_generation(token) {
            self.flush();
            return Ok(Some(FinishReason::Stop));
        }
        let released = tracing::trace_span!(target: "phase", "detokenise")
            .in_scope(|| self.gate.push(tokenizer.piece(token), entry));
        let is_stopped = released.stopped.is_some();
        self.send(released);
        if is_stopped {
            return Ok(Some(FinishReason::Stop));
        }
        if self.tokens.len() >= self.limit {
            self.flush();
            return Ok(Some(FinishReason::Length));
        }
        Ok(None)
    }

    fn entry(&self, token: u32, logits: &[f32]) -> Result<Entry, SampleError> {
        let Some(n_top) = self.top_logprobs else {
            return Ok(Entry {
                chosen: None,
                top: Vec::new(),
            });
        };
        let logprobs = Logprobs::new(logits)?;
        let chosen = logprobs
            .of(token)
            .map(|logprob| TokenLogprob { id: token, logprob });
        Ok(Entry {
            chosen,
            top: logprobs.top(n_top),
        })
    }

    fn flush(&mut self) {
        let released = self.gate.finish();
        self.send(released);
    }

    #[tracing::instrument(level = "trace", target = "phase", skip_all)]
    fn send(&self, released: Released<Entry>) {
        if released.text.is_empty() && released.entries.is_empty() {
            return;
        }
        let tokens = released
            .entries
            .into_iter()
            .map(|e| AnswerToken {
                bytes: e.bytes,
                chosen: e.entry.chosen,
                top: e.entry.top,
            })
            .collect();
        // A closed channel is noticed before the next step.
        let _ = self.events.send(Event::Text {
            text: released.text,
            tokens,
        });
    }

    /// Ends the request.
    pub(super) fn finish(self, reason: FinishReason) {
        let now = Instant::now();
        let prefilled = self.prefilled.unwrap_or(now);
        let usage = Usage {
            prompt_tokens: self.n_prompt,
            completion_tokens: self.tokens.len() - self.n_prompt,
            prefill: prefilled - self.started,
            decode: now - prefilled,
        };
        let _ = self.events.send(Event::Done { reason, usage });
    }

    /// Ends the request with an error.
    pub(super) fn fail(self, message: &str) {
        let _ = self.events.send(Event::Failed {
            message: message.to_owned(),
        });
    }
}
