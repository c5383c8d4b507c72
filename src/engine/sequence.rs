//! One request while it waits and runs: its tokens, its choices, its text.

use crate::model::{Batch, Resumed, SequenceId};
use crate::sampling::Sampler;
use crate::text::tokenizer::Tokenizer;

use super::answer::{Answer, Entry};
use super::constrained::{Constrained, Fault, Worker};
use super::contrast::Contrast;
use super::draft::{Draft, Effort, Lookup};
use super::scheduler::Job;
use super::way::Asked;
use super::{FinishReason, Limits, Submitted};

/// What a pass says of one of its tokens.
#[derive(Clone, Copy)]
pub(super) struct Row<'l> {
    /// `[n_vocab]`.
    pub(super) logits: &'l [f32],
    /// The stream behind the final norm; empty where it was not wanted.
    pub(super) hidden: &'l [f32],
}

/// Guesses of a request.
struct Guesses {
    draft: Box<dyn Draft>,
    effort: Effort,
    /// Tokens guessed to follow.
    tokens: Vec<u32>,
}

/// A request that waits or runs.
pub(super) struct Sequence {
    /// Its rows in the cache, while it runs.
    pub(super) id: SequenceId,
    /// Prompt and answer.
    tokens: Vec<u32>,
    n_prompt: usize,
    /// Tokens whose keys and values are in the cache.
    n_cached: usize,
    /// Whether the tokens it began or was resumed with are still being read.
    is_reading: bool,
    /// Positions behind which a state shall be kept, falling.
    cuts: Vec<usize>,
    /// Positions it may fill in all.
    limit: usize,
    sampler: Sampler,
    /// Scale of each adapter.
    scales: Vec<f32>,
    guesses: Option<Guesses>,
    contrast: Option<Contrast>,
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
    /// What was told of it.
    pub(super) answer: Answer,
}

impl Asked for Sequence {
    fn answer(&self) -> &Answer {
        &self.answer
    }

    fn into_answer(self) -> Answer {
        self.answer
    }
}

impl Sequence {
    /// A request that waits.
    pub(super) fn new(submitted: Submitted, limits: &Limits, worker: &Worker) -> Self {
        let Submitted {
            request,
            mut sampler,
            scales,
            contrast,
            caller,
        } = submitted;
        sampler.accept_prompt(&request.prompt);
        let n_prompt = request.prompt.len();
        let limit = request
            .max_tokens
            .map_or(limits.n_ctx, |most| n_prompt.saturating_add(most))
            .min(limits.n_ctx);
        // What may follow a guess would be known only when the grammar has moved on.
        let guesses = match request.n_drafted.unwrap_or(limits.n_drafted) {
            _ if request.constraint.is_some() || contrast.is_some() => None,
            0 => None,
            most => {
                let mut draft = Box::new(Lookup::default());
                request.prompt.iter().for_each(|token| draft.push(*token));
                Some(Guesses {
                    draft,
                    effort: Effort::new(most),
                    tokens: Vec::new(),
                })
            }
        };
        Self {
            id: SequenceId::MAX,
            n_prompt,
            n_cached: 0,
            is_reading: true,
            cuts: Vec::new(),
            limit,
            sampler,
            scales,
            guesses,
            contrast: contrast.map(Contrast::new),
            constrained: request.constraint.as_ref().map(|c| worker.begin(c)),
            n_reported: n_prompt,
            n_dropped: 0,
            is_stopped: false,
            ending: None,
            answer: Answer::new(&request, caller),
            tokens: request.prompt,
        }
    }

    /// Begins or goes on, with what is known of its tokens.
    pub(super) fn begin(&mut self, id: SequenceId, known: &Resumed, cuts: Vec<usize>) {
        self.id = id;
        self.is_reading = true;
        self.n_cached = known.n_cached;
        self.cuts = cuts;
        self.answer.start(known.n_cached);
    }

    /// Goes back to waiting: nothing of it is in the cache any more.
    pub(super) fn suspend(&mut self) {
        self.id = SequenceId::MAX;
        self.set_cached(0);
    }

    /// Takes note that only the first `n` tokens are in the cache. Guesses no longer follow.
    pub(super) fn set_cached(&mut self, n: usize) {
        self.n_cached = n;
        if let Some(guesses) = &mut self.guesses {
            guesses.tokens.clear();
        }
    }

    /// Scale of each adapter.
    pub(super) fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Prompt and answer so far.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether the tokens it began or was resumed with are still being read.
    pub(super) fn is_reading(&self) -> bool {
        self.is_reading
    }

    pub(super) fn n_cached(&self) -> usize {
        self.n_cached
    }

    /// Asks for a state to be kept behind `position`, if it has not been read yet.
    pub(super) fn cut_at(&mut self, position: usize) {
        if position > self.n_cached && !self.cuts.contains(&position) {
            self.cuts.push(position);
            self.cuts.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    /// Guesses what follows, if it is worth it.
    pub(super) fn guess(&mut self) {
        let room = self.limit.saturating_sub(self.tokens.len() + 1);
        let is_next = self.tokens.len() - self.n_cached == 1;
        if let Some(guesses) = &mut self.guesses {
            guesses.tokens.clear();
            if is_next && !self.is_reading {
                let n = guesses.effort.n().min(room);
                guesses.draft.guess(n, &mut guesses.tokens);
            }
        }
    }

    fn guessed(&self) -> &[u32] {
        self.guesses.as_ref().map_or(&[], |g| &g.tokens)
    }

    /// Whether candidates are read before one is chosen.
    pub(super) fn is_contrastive(&self) -> bool {
        self.contrast.is_some()
    }

    /// A candidate that is read behind all tokens and taken back.
    fn probe(&self) -> Option<u32> {
        self.contrast.as_ref().and_then(Contrast::probe)
    }

    /// What it is to the scheduler.
    pub(super) fn job(&self, is_whole: bool, block: usize) -> Job {
        let cut = self.cuts.last().map(|cut| cut - self.n_cached);
        Job {
            pending: self.tokens.len() - self.n_cached + usize::from(self.probe().is_some()),
            drafted: self.guessed().len(),
            is_prefill: self.is_reading,
            is_whole,
            room: self.n_cached.next_multiple_of(block) - self.n_cached,
            cut,
        }
    }

    /// Adds its next `n` tokens to a pass, and how many of them are guesses to its own account.
    pub(super) fn read(&mut self, n: usize, batch: &mut Batch) {
        let pending = &self.tokens[self.n_cached..];
        let n_guessed = n.saturating_sub(pending.len());
        let guessed = self.guesses.as_ref().map_or(&[][..], |g| &g.tokens);
        let positions = self.n_cached as u32..;
        let probe = self.probe();
        let tokens = pending.iter().chain(&probe).chain(guessed).take(n);
        batch.wants_hidden |= self.contrast.is_some();
        for ((i, token), position) in tokens.enumerate().zip(positions) {
            let wants_logits = match &self.contrast {
                Some(contrast) => contrast.wants(position as usize),
                None => i + 1 >= pending.len() || self.is_forced_row(i),
            };
            batch.push(*token, self.id, position, wants_logits);
        }
        if let Some(guesses) = &mut self.guesses {
            guesses.tokens.truncate(n_guessed);
        }
    }

    /// Rows of logits that a pass over its next `n` tokens has for it.
    pub(super) fn n_rows(&self, n: usize) -> usize {
        if let Some(contrast) = &self.contrast {
            let wants = |i: &usize| contrast.wants(self.n_cached + i);
            return (0..n).filter(wants).count();
        }
        let n_chosen = (n + 1).saturating_sub(self.tokens.len() - self.n_cached);
        self.n_forced_rows(n) + n_chosen
    }

    /// Whether the row of the `i`th pending token tells the probability of a forced one.
    fn is_forced_row(&self, i: usize) -> bool {
        let next = self.n_cached + i + 1;
        self.n_reported <= next && next < self.tokens.len()
    }

    /// How many of the rows of the next `n` pending tokens are forced tokens'.
    fn n_forced_rows(&self, n: usize) -> usize {
        (0..n).filter(|i| self.is_forced_row(*i)).count()
    }

    /// Takes in the tokens that the constraint forces, which are pending from then on. Returns why
    /// the answer ends, if it does.
    pub(super) fn take_forced(
        &mut self,
        tokenizer: &Tokenizer,
    ) -> Result<Option<FinishReason>, Fault> {
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
        if !self.answer.wants_logprobs() {
            while self.n_reported < self.tokens.len() && !self.is_stopped {
                self.report(Entry::default(), tokenizer);
            }
        }
        if self.n_reported < self.tokens.len() && !self.is_stopped {
            return Ok(None);
        }
        self.conclude()
    }

    /// Releases the next forced token with the probability that its row gives it.
    fn report_forced(&mut self, logits: &[f32], tokenizer: &Tokenizer) {
        if self.is_stopped || matches!(self.ending, Some(Err(_))) {
            return;
        }
        match self.answer.entry(self.tokens[self.n_reported], logits) {
            Ok(entry) => self.report(entry, tokenizer),
            Err(error) => self.ending = Some(Err(error.into())),
        }
    }

    /// Puts the first unreported token through the gate; a stop text ends the answer there.
    fn report(&mut self, entry: Entry, tokenizer: &Tokenizer) {
        let is_stopped = self
            .answer
            .push(self.tokens[self.n_reported], entry, tokenizer);
        self.n_reported += 1;
        if is_stopped {
            self.n_dropped = self.tokens.len() - self.n_reported;
            self.is_stopped = true;
            self.ending = Some(Ok(FinishReason::Stop));
        }
    }

    /// Ends the answer if that is decided.
    fn conclude(&mut self) -> Result<Option<FinishReason>, Fault> {
        if self.ending.is_some() && !self.is_stopped {
            self.answer.flush();
        }
        self.ending.take().transpose()
    }

    /// [`Self::advance`] of a search that reads candidates, whose rows come with the stream.
    fn advance_search<'l>(
        &mut self,
        n: usize,
        rows: impl Iterator<Item = Row<'l>>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<FinishReason>, Fault> {
        let Some(mut contrast) = self.contrast.take() else {
            return Ok(None);
        };
        let pending = self.tokens.len() - self.n_cached;
        let mut last = None;
        let mut chosen = None;
        for row in rows {
            let position = contrast.n_read();
            if position < self.tokens.len() {
                contrast.read(self.tokens[position], row.hidden)?;
                last = Some(row.logits);
            } else {
                chosen = contrast.add(row.logits, row.hidden)?;
            }
        }
        self.n_cached += n.min(pending);
        if n >= pending {
            self.is_reading = false;
            self.answer.prefilled();
        }
        if let Some(last) = last.filter(|_| n >= pending) {
            contrast.look_ahead(last.to_vec())?;
        }
        self.contrast = Some(contrast);
        match chosen {
            Some(chosen) => self.push(chosen.token, &chosen.from, tokenizer),
            None => Ok(None),
        }
    }

    /// Takes note that a pass read its next `n` tokens, and chooses as many further ones as its rows
    /// of logits and the guesses allow. Returns why the answer ends, if it does.
    ///
    /// # Errors
    /// Logits that cannot be used.
    pub(super) fn advance<'l>(
        &mut self,
        n: usize,
        rows: impl Iterator<Item = Row<'l>>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<FinishReason>, Fault> {
        if self.contrast.is_some() {
            return self.advance_search(n, rows, tokenizer);
        }
        let mut rows = rows.map(|row| row.logits);
        for row in rows.by_ref().take(self.n_forced_rows(n)) {
            self.report_forced(row, tokenizer);
        }
        let pending = self.tokens.len() - self.n_cached;
        self.n_cached += n.min(pending);
        while self.cuts.last().is_some_and(|cut| *cut <= self.n_cached) {
            self.cuts.pop();
        }
        if n < pending {
            return Ok(None);
        }
        self.is_reading = false;
        self.answer.prefilled();
        let guessed = self.guesses.as_mut().map(|g| std::mem::take(&mut g.tokens));
        let guessed = guessed.unwrap_or_default();
        let mut n_accepted = 0;
        let mut end = None;
        for (i, row) in rows.enumerate() {
            let (token, reason) = self.choose(row, tokenizer)?;
            end = reason;
            // The next row is what the model says behind the guess, so it counts if that was right.
            if end.is_some() || token.is_none() || guessed.get(i) != token.as_ref() {
                break;
            }
            n_accepted += 1;
        }
        self.n_cached += n_accepted;
        self.answer.usage.drafted_tokens += guessed.len();
        self.answer.usage.accepted_tokens += n_accepted;
        if let Some(guesses) = &mut self.guesses {
            guesses.effort.learn(guessed.len(), n_accepted);
        }
        Ok(end)
    }

    /// Chooses the next token from its logits and releases what text it completes. Returns it, if
    /// there was one to choose, and why the answer ends, if it does.
    fn choose(
        &mut self,
        logits: &[f32],
        tokenizer: &Tokenizer,
    ) -> Result<(Option<u32>, Option<FinishReason>), Fault> {
        if self.ending.is_some() {
            return Ok((None, self.conclude()?));
        }
        let mask = match &mut self.constrained {
            Some(constrained) => Some(constrained.mask(logits.len())?),
            None => None,
        };
        let token = tracing::trace_span!(target: "phase", "sample")
            .in_scope(|| self.sampler.sample_masked(logits, mask))?;
        self.sampler.accept(token);
        Ok((Some(token), self.push(token, logits, tokenizer)?))
    }

    /// Adds a token that was chosen from `logits` and releases what text it completes. Returns why
    /// the answer ends, if it does.
    fn push(
        &mut self,
        token: u32,
        logits: &[f32],
        tokenizer: &Tokenizer,
    ) -> Result<Option<FinishReason>, Fault> {
        let entry = self.answer.entry(token, logits)?;
        self.tokens.push(token);
        if let Some(guesses) = &mut self.guesses {
            guesses.draft.push(token);
        }
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

    /// Ends the request.
    pub(super) fn finish(self, reason: FinishReason) {
        let n = self.tokens.len() - self.n_prompt - self.n_dropped;
        self.answer.finish(reason, n);
    }
}
