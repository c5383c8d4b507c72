//! One request while it runs: its tokens, its choices, its text.

use std::time::Instant;

use tokio::sync::mpsc;

use crate::model::SequenceId;
use crate::sampling::{Logprobs, SampleError, Sampler};
use crate::text::gate::{Gate, Released};
use crate::text::tokenizer::Tokenizer;

use super::constrained::{Constrained, Fault, Worker};
use super::{AnswerToken, Event, FinishReason, Submitted, TokenLogprob, Usage};

/// What a token carries through the text gate.
#[derive(Default)]
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
    constrained: Option<Constrained>,
    /// Tokens that are part of the prompt or went through the gate; the rest are forced ones whose
    /// log-probabilities the next pass tells.
    n_reported: usize,
    /// Forced tokens behind a stop text, which are no part of the answer.
    n_dropped: usize,
    /// Whether a stop text was found.
    is_stopped: bool,
    /// How the answer ends once all its tokens are reported.
    ending: Option<Result<FinishReason, Fault>>,
}

impl Sequence {
    pub(super) fn new(
        id: SequenceId,
        submitted: Submitted,
        n_ctx: usize,
        is_cached: bool,
        worker: &Worker,
    ) -> Self {
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
            constrained: request.constraint.as_ref().map(|c| worker.begin(c)),
            n_reported: n_prompt,
            n_dropped: 0,
            is_stopped: false,
            ending: None,
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

    /// Takes in the tokens that the constraint forces, which [`Self::pending`] has from then on.
    /// Returns why the answer ends, if it does.
    pub(super) fn settle(&mut self, tokenizer: &Tokenizer) -> Result<Option<FinishReason>, Fault> {
        let Some(constrained) = &mut self.constrained else {
            return Ok(None);
        };
        let Some(mut forced) = constrained.forced()? else {
            return Ok(None);
        };
        let room = self.limit - self.tokens.len();
        let is_cut = forced.tokens.len() > room;
        forced.tokens.truncate(room);
        for token in &forced.tokens {
            self.sampler.accept(*token);
        }
        self.tokens.extend(forced.tokens);
        if forced.is_complete && !is_cut {
            self.ending = Some(Ok(FinishReason::Stop));
        } else if self.tokens.len() >= self.limit {
            self.ending = Some(Ok(FinishReason::Length));
        }
        // With log-probabilities they wait for their rows.
        if self.top_logprobs.is_none() {
            while self.n_reported < self.tokens.len() && !self.is_stopped {
                self.report(Entry::default(), tokenizer);
            }
        }
        if self.n_reported < self.tokens.len() && !self.is_stopped {
            return Ok(None);
        }
        self.conclude()
    }

    /// Whether the row of the `i`th pending token is needed.
    pub(super) fn wants_logits(&self, i: usize) -> bool {
        i + 1 == self.pending().len() || self.is_forced_row(i)
    }

    /// Whether the row of the `i`th pending token tells the probability of a forced one.
    fn is_forced_row(&self, i: usize) -> bool {
        let next = self.n_cached + i + 1;
        self.n_reported <= next && next < self.tokens.len()
    }

    /// How many of the rows of the next `n` pending tokens are forced tokens'.
    pub(super) fn n_forced_rows(&self, n: usize) -> usize {
        (0..n).filter(|i| self.is_forced_row(*i)).count()
    }

    /// Releases the next forced token with the probability that its row gives it.
    pub(super) fn report_forced(&mut self, logits: &[f32], tokenizer: &Tokenizer) {
        if self.is_stopped || matches!(self.ending, Some(Err(_))) {
            return;
        }
        match self.entry(self.tokens[self.n_reported], logits) {
            Ok(entry) => self.report(entry, tokenizer),
            Err(error) => self.ending = Some(Err(error.into())),
        }
    }

    /// Puts the first unreported token through the gate; a stop text ends the answer there.
    fn report(&mut self, entry: Entry, tokenizer: &Tokenizer) {
        let piece = tokenizer.piece(self.tokens[self.n_reported]);
        let released = self.gate.push(piece, entry);
        self.n_reported += 1;
        if released.stopped.is_some() {
            self.n_dropped = self.tokens.len() - self.n_reported;
            self.is_stopped = true;
            self.ending = Some(Ok(FinishReason::Stop));
        }
        self.send(released);
    }

    /// Ends the answer if that is decided.
    fn conclude(&mut self) -> Result<Option<FinishReason>, Fault> {
        if self.ending.is_some() && !self.is_stopped {
            self.flush();
        }
        self.ending.take().transpose()
    }

    /// Chooses the next token from its logits and releases what text it completes. Returns why the
    /// answer ends, if it does.
    pub(super) fn choose(
        &mut self,
        logits: &[f32],
        tokenizer: &Tokenizer,
    ) -> Result<Option<FinishReason>, Fault> {
        if self.ending.is_some() {
            return self.conclude();
        }
        let mask = match &mut self.constrained {
            Some(constrained) => Some(constrained.mask(logits.len())?),
            None => None,
        };
        let token = self.sampler.sample_masked(logits, mask)?;
        self.sampler.accept(token);
        let entry = self.entry(token, logits)?;
        self.tokens.push(token);
        if tokenizer.is_end_of_generation(token) {
            self.ending = Some(Ok(FinishReason::Stop));
            return self.conclude();
        }
        self.report(entry, tokenizer);
        if self.ending.is_none() && self.tokens.len() >= self.limit {
            self.ending = Some(Ok(FinishReason::Length));
        }
        if let Some(constrained) = self.constrained.as_mut().filter(|_| self.ending.is_none()) {
            constrained.choose(token);
        }
        self.conclude()
    }

    fn entry(&self, token: u32, logits: &[f32]) -> Result<Entry, SampleError> {
        let Some(n_top) = self.top_logprobs else {
            return Ok(Entry::default());
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
            completion_tokens: self.tokens.len() - self.n_prompt - self.n_dropped,
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
