//! The report of a request: the receiver of its events, the stop buffer, the usage.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::CacheMiss;
use crate::plan::Media;
use lab_base::chat::stop_buffer::{Released, StopBuffer};
use lab_base::tokenizer::Tokenizer;
use lab_sampling::{Drawn, Logprobs, SampleError, TokenLogprob};

use super::client::QueuePermit;
use super::event::{AnswerToken, Event, Failure, FinishReason, PromptProgress, StopMatch, Usage};
use super::event_sender::EventSender;
use super::limits::Limits;
use super::request::{Request, StopConditions};
use super::stats;

/// The log-probabilities of a token on its way through the stop buffer.
#[derive(Default)]
pub(super) struct TokenEntry {
    id: u32,
    pub(super) chosen: Option<TokenLogprob>,
    rank: usize,
    top: Vec<TokenLogprob>,
}

impl TokenEntry {
    /// The entry of a token that was drawn.
    pub(super) fn drawn(drawn: &Drawn) -> Self {
        Self {
            id: drawn.chosen.id,
            chosen: Some(drawn.chosen),
            rank: drawn.rank,
            top: drawn.top.clone(),
        }
    }

    /// The entry as a token of the answer, with its bytes.
    fn of(self, bytes: Vec<u8>) -> AnswerToken {
        AnswerToken {
            id: self.id,
            bytes,
            chosen: self.chosen,
            rank: self.rank,
            top: self.top,
        }
    }
}

/// The report of a request: its events, the stop buffer and the receiver.
pub(super) struct AnswerStream {
    pub(super) tokenizer: Arc<Tokenizer>,
    gate: StopBuffer<TokenEntry>,
    /// Whether a token had a line end.
    has_lines: bool,
    stops: Vec<Vec<u8>>,
    /// The stop sequence or token of the request that stopped the completion.
    stopped: Option<StopMatch>,
    /// The token that ended the completion, if one did.
    ended: Option<AnswerToken>,
    top_logprobs: Option<usize>,
    /// Whether log-probabilities are those after all stages of sampling.
    pub(super) post_sampling: bool,
    /// The last reported progress of the prompt; none where progress is not reported.
    progress: Option<PromptProgress>,
    prompt_logprobs: Option<usize>,
    /// Scored tokens of the prompt that are not sent yet.
    scored: Vec<AnswerToken>,
    ends: StopConditions,
    /// Whether the prompt may come from the prefix cache.
    pub(super) reads_cache: bool,
    caller: EventSender,
    unsent: Vec<Event>,
    /// Tokens of the source. If there are any, they are counted as the prompt, in place of those of the prompt.
    n_source: usize,
    started: Option<Instant>,
    prefilled: Option<Instant>,
    /// When the last token was chosen.
    last_token: Option<Instant>,
    pub(super) usage: Usage,
}

impl AnswerStream {
    /// The report of a request whose prompt follows a source of `n_source` tokens; 0 = no source.
    pub(super) fn new(
        request: &Request,
        n_source: usize,
        caller: EventSender,
        tokenizer: Arc<Tokenizer>,
    ) -> Self {
        let n_prompt = match n_source {
            0 => request.prompt.len(),
            n => n,
        };
        let of_media = |kind: Media| {
            let media = request.media.as_ref();
            media.map_or(0, |media| media.n_tokens(kind))
        };
        Self {
            tokenizer,
            gate: StopBuffer::new(&request.stops)
                .keeping_stop(request.stop.keeps_stop)
                .open_for(request.stop.min_tokens)
                .indented(request.stop.n_indent),
            has_lines: false,
            stops: request.stops.clone(),
            stopped: None,
            ended: None,
            top_logprobs: request.top_logprobs,
            post_sampling: request.post_sampling && request.top_logprobs.is_some(),
            progress: request.progress.then(|| PromptProgress {
                total: n_prompt,
                ..PromptProgress::default()
            }),
            prompt_logprobs: request.prompt_logprobs,
            scored: Vec::new(),
            ends: request.stop.clone(),
            reads_cache: request.cache_prompt,
            caller,
            unsent: Vec::new(),
            n_source,
            started: None,
            prefilled: None,
            last_token: None,
            usage: Usage {
                prompt_tokens: n_prompt,
                image_tokens: of_media(Media::Image),
                audio_tokens: of_media(Media::Audio),
                ..Usage::default()
            },
        }
    }

    /// Identifies the request, of which this may be one completion of several.
    pub(super) fn permit(&self) -> *const QueuePermit {
        Arc::as_ptr(&self.caller.permit)
    }

    /// The name of the client.
    pub(super) fn client(&self) -> &Arc<str> {
        self.caller.permit.client()
    }

    /// Whether the receiver is gone.
    pub(super) fn is_cancelled(&self) -> bool {
        self.caller.events.is_closed()
    }

    /// The time limit that the request has exceeded.
    pub(super) fn overdue(&self, limits: &Limits, now: Instant) -> Option<Failure> {
        let (since, limit, failure): (_, _, fn(_) -> _) = match self.started {
            None => (self.caller.arrived, limits.queue_time, Failure::QueueTime),
            Some(started) => (started, limits.answer_time, Failure::AnswerTime),
        };
        let limit = limit.filter(|limit| now.duration_since(since) > *limit)?;
        Some(failure(limit))
    }

    /// Whether the request is to be reaped: cancelled or out of time.
    pub(super) fn is_over(&self, limits: &Limits, now: Instant) -> bool {
        self.is_cancelled() || self.overdue(limits, now).is_some()
    }

    /// Ends a request that is cancelled or out of time.
    pub(super) fn end_early(self, limits: &Limits, now: Instant) {
        match self.overdue(limits, now) {
            Some(failure) if !self.is_cancelled() => self.fail(failure),
            _ => {
                stats::count(&self.caller.stats.n_cancelled, 1);
                tracing::debug!("cancelled");
            }
        }
    }

    /// Notes that the request became active, with `n_cached` tokens from the prefix cache. Only the first call
    /// counts.
    pub(super) fn start(&mut self, n_cached: usize) {
        let n_cached = self.of_prompt(n_cached);
        if self.started.is_none() {
            self.started = Some(Instant::now());
            let waited = self.caller.arrived.elapsed();
            self.caller.stats.queue_time.add(waited);
            self.usage.cached_tokens = n_cached;
            if let Some(progress) = &mut self.progress {
                (progress.cached, progress.processed) = (n_cached, n_cached);
                let first = *progress;
                self.send(Event::Progress(first));
            }
        }
    }

    /// Notes what was found of the prompt before its first step: tokens from the host's memory and from files, and why not more was
    /// in the KV cache and in the store of prefixes.
    pub(super) fn looked_up(&mut self, restored: [usize; 2], misses: [CacheMiss; 2]) {
        if self.started.is_none() {
            self.usage.restored = restored;
            [self.usage.cache_miss, self.usage.store_miss] = misses;
        }
    }

    /// Tokens of the prompt that are read together with the first `n` tokens. A source is read as a whole before
    /// them.
    fn of_prompt(&self, n: usize) -> usize {
        match self.n_source {
            0 => n,
            n_source => n.min(1) * n_source,
        }
    }

    /// Reports progress: the first `n` tokens are read. Tokens after the prompt do not count.
    pub(super) fn progressed(&mut self, n: usize) {
        let n = self.of_prompt(n);
        let Some(progress) = &mut self.progress else {
            return;
        };
        let n = n.min(progress.total);
        // Tokens that are read again after a preemption are no progress.
        if n > progress.processed {
            progress.processed = n;
            progress.time = self.started.map_or(Duration::ZERO, |at| at.elapsed());
            let now = *progress;
            self.send(Event::Progress(now));
        }
    }

    /// Notes that the prompt is read. Only the first call counts.
    pub(super) fn prefilled(&mut self) {
        if self.prefilled.is_none() {
            self.prefilled = Some(Instant::now());
            self.progressed(usize::MAX);
        }
    }

    /// Whether a token ends the completion and is not part of its text.
    pub(super) fn ends_at(&self, token: u32) -> bool {
        self.tokenizer.is_end_of_generation(token) || self.ends.stop_tokens.contains(&token)
    }

    /// Notes the token that ends the completion.
    pub(super) fn end_at(&mut self, token: u32, entry: TokenEntry) {
        let entry = TokenEntry { id: token, ..entry };
        self.ended = Some(entry.of(self.tokenizer.piece(token).to_vec()));
        let is_requested = self.ends.stop_tokens.contains(&token);
        self.stopped = is_requested.then_some(StopMatch::Token(token));
    }

    /// The tokens that end a completion, if its `n` tokens are fewer than the minimum; none if it may end.
    pub(super) fn held_open(&self, n: usize) -> Vec<u32> {
        if n >= self.ends.min_tokens {
            return Vec::new();
        }
        let own = self.ends.stop_tokens.iter().copied();
        self.tokenizer.ends_of_generation().chain(own).collect()
    }

    pub(super) fn wants_logprobs(&self) -> bool {
        self.top_logprobs.is_some()
    }

    /// The log-probabilities that are reported of a token chosen from `logits`.
    pub(super) fn entry(&self, token: u32, logits: &[f32]) -> Result<TokenEntry, SampleError> {
        match self.top_logprobs {
            None => Ok(TokenEntry::default()),
            // Nothing was drawn: no other token was possible.
            Some(_) if self.post_sampling => Ok(TokenEntry::drawn(&Drawn::certain(token))),
            Some(_) => Ok(self.entry_of(token, &Logprobs::new(logits)?)),
        }
    }

    /// How many of the most probable tokens are reported after all stages of sampling; none where they are not
    /// wanted.
    pub(super) fn n_drawn(&self) -> Option<usize> {
        self.top_logprobs.filter(|_| self.post_sampling)
    }

    /// [`Self::entry`] with log-probabilities that are computed already.
    pub(super) fn entry_of(&self, token: u32, logprobs: &Logprobs<'_>) -> TokenEntry {
        let Some(n_top) = self.top_logprobs else {
            return TokenEntry::default();
        };
        entry_of(token, logprobs, n_top)
    }

    pub(super) fn scores_prompt(&self) -> bool {
        self.prompt_logprobs.is_some()
    }

    /// Scores a token of the prompt by the logits of the token before it. The first token has none.
    pub(super) fn score(&mut self, token: u32, logits: Option<&[f32]>) -> Result<(), SampleError> {
        let logprobs = logits.map(Logprobs::new).transpose()?;
        let entry = match (&logprobs, self.prompt_logprobs) {
            (Some(logprobs), Some(n_top)) => entry_of(token, logprobs, n_top),
            _ => TokenEntry::default(),
        };
        let entry = TokenEntry { id: token, ..entry };
        self.scored
            .push(entry.of(self.tokenizer.piece(token).to_vec()));
        Ok(())
    }

    /// Sends the scored tokens of the prompt that were not sent yet.
    pub(super) fn send_scored(&mut self) {
        if !self.scored.is_empty() {
            let scored = std::mem::take(&mut self.scored);
            self.send(Event::Prompt(scored));
        }
    }

    /// Puts a token through the stop buffer. Returns how the completion ends there, if it does.
    pub(super) fn push(&mut self, token: u32, entry: TokenEntry) -> Option<FinishReason> {
        let now = Instant::now();
        let since = self.last_token.replace(now);
        let after = now - since.unwrap_or(self.caller.arrived);
        self.caller.stats.token(since.is_none(), after);
        let piece = self.tokenizer.piece(token);
        let entry = TokenEntry { id: token, ..entry };
        let released = tracing::trace_span!(target: "phase", "detokenise")
            .in_scope(|| self.gate.push(piece, entry));
        let stop = released.stopped.and_then(|i| self.stops.get(i));
        if let Some(stop) = stop {
            self.stopped = Some(StopMatch::Text(String::from_utf8_lossy(stop).into_owned()));
        }
        let ending = match released.is_outdented {
            true => Some(FinishReason::Length),
            false => stop.map(|_| FinishReason::Stop),
        };
        self.has_lines |= piece.contains(&b'\n');
        self.release(released);
        ending
    }

    /// Whether the request's own time for the completion is over.
    pub(super) fn is_late(&self) -> bool {
        let taken = self.prefilled.map(|at| at.elapsed());
        self.has_lines && self.ends.time.is_some_and(|time| taken > Some(time))
    }

    /// Releases the text that the gate holds back, at the end of the completion.
    pub(super) fn flush(&mut self) {
        let released = self.gate.finish();
        self.release(released);
    }

    #[tracing::instrument(name = "send", level = "trace", target = "phase", skip_all)]
    fn release(&mut self, released: Released<TokenEntry>) {
        if released.text.is_empty() && released.entries.is_empty() {
            return;
        }
        let tokens = released.entries.into_iter().map(|e| e.entry.of(e.bytes));
        self.send(Event::Text {
            text: released.text,
            tokens: tokens.collect(),
        });
    }

    /// Adds an event. It is delivered when the step has chosen the tokens of all requests: the threads that write them
    /// wake once then, not for each token, and take no core from the rest of the step.
    pub(super) fn send(&mut self, event: Event) {
        self.unsent.push(event);
    }

    /// Delivers the events. A closed channel is noticed before the next step.
    pub(super) fn deliver(&mut self) {
        for event in self.unsent.drain(..) {
            let _ = self.caller.events.send(event);
        }
    }

    pub(super) fn finish(mut self, reason: FinishReason, completion_tokens: usize) {
        let now = Instant::now();
        let prefilled = self.prefilled.unwrap_or(now);
        let started = self.started.unwrap_or(self.caller.arrived);
        let usage = Usage {
            completion_tokens,
            queue: started - self.caller.arrived,
            prefill: prefilled - started,
            decode: now - prefilled,
            ..self.usage
        };
        let client = self.caller.permit.client();
        let took = now - self.caller.arrived;
        self.caller.stats.done(reason, &usage, client, took);
        if let Some(ended) = &self.ended {
            let ended = ended.clone();
            self.send(Event::Ended(ended));
        }
        self.send(Event::Done {
            reason,
            stopped: self.stopped.clone(),
            usage,
        });
        self.deliver();
    }

    pub(super) fn fail(mut self, failure: Failure) {
        stats::count(&self.caller.stats.n_failed, 1);
        self.send(Event::Failed(failure));
        self.deliver();
    }
}

fn entry_of(token: u32, logprobs: &Logprobs<'_>, n_top: usize) -> TokenEntry {
    let chosen = logprobs.of(token);
    TokenEntry {
        id: token,
        chosen: chosen.map(|logprob| TokenLogprob { id: token, logprob }),
        rank: logprobs.rank(token).unwrap_or(0),
        top: logprobs.top(n_top),
    }
}
