//! The tokens of one request: which of them are cached, which are reported, and how it ends.
//!
//! Here is what all strategies have in common; what each needs beyond it is in its own file.

use crate::model::{Resumed, SequenceId};
use crate::text::tokenizer::Tokenizer;

use super::answer::{Answer, Entry};
use super::compute::{BLOCK, Compute};
use super::event::{Event, Failure, FinishReason};
use super::recorder::Recorder;
use super::scheduler::Job;

/// The tokens of a request that waits or is active.
pub(super) struct Sequence {
    /// The first of its sequences in the cache, while it is active.
    pub(super) id: SequenceId,
    /// How many there are; they follow each other.
    pub(super) n_parts: usize,
    /// What is read before its tokens, where the model reads a source: they follow it in the cache.
    pub(super) source: Vec<u32>,
    /// Prompt and completion.
    pub(super) tokens: Vec<u32>,
    pub(super) n_prompt: usize,
    /// Tokens whose keys and values are cached.
    pub(super) n_cached: usize,
    /// Tokens that the step under way reads for good.
    n_step: usize,
    /// Whether the tokens it was started with are still being read.
    pub(super) is_prefill: bool,
    /// Positions at which a pass shall end so that a state is kept there, falling.
    cuts: Vec<usize>,
    /// Scale of each adapter.
    pub(super) scales: Vec<f32>,
    /// Tokens of the prompt whose log-probabilities are known; all where none are wanted.
    pub(super) n_scored: usize,
    /// Tokens that are part of the prompt or went through the text gate.
    pub(super) n_reported: usize,
    /// Whether a stop sequence was found.
    pub(super) is_stopped: bool,
    /// How the completion ends once all its tokens are reported.
    pub(super) ending: Option<FinishReason>,
    /// What it reads and changes of values.
    pub(super) recorder: Option<Recorder>,
    /// What was reported of it.
    pub(super) answer: Answer,
}

impl Sequence {
    /// A sequence that waits, of which the first `n_prompt` tokens are the prompt.
    pub(super) fn new(
        tokens: Vec<u32>,
        n_prompt: usize,
        n_parts: usize,
        scales: Vec<f32>,
        recorder: Option<Recorder>,
        answer: Answer,
    ) -> Self {
        Self {
            id: SequenceId::MAX,
            n_parts,
            source: Vec::new(),
            tokens,
            n_prompt,
            n_cached: 0,
            n_step: 0,
            is_prefill: true,
            cuts: Vec::new(),
            scales,
            n_scored: if answer.scores_prompt() { 0 } else { n_prompt },
            n_reported: n_prompt,
            is_stopped: false,
            ending: None,
            recorder,
            answer,
        }
    }

    /// Its sequences in the cache.
    pub(super) fn ids(&self) -> impl Iterator<Item = SequenceId> + use<> {
        (self.id..).take(self.n_parts)
    }

    /// Positions that it may take in the cache as it is, blocks of all its sequences.
    pub(super) fn n_positions(&self) -> usize {
        match self.n_parts {
            1 => self.source.len() + self.tokens.len(),
            n => n * self.tokens.len().next_multiple_of(BLOCK),
        }
    }

    /// Tells the model how its sequences from `id` on are computed.
    pub(super) fn prepare(&self, id: SequenceId, model: &mut impl Compute) {
        for id in (id..).take(self.n_parts) {
            model.begin(id, &self.scales, self.recorder.as_ref().map(Recorder::lab));
            if !self.source.is_empty() {
                model.set_source(id, &self.source);
            }
        }
    }

    /// Starts or goes on, with what is known of its tokens.
    pub(super) fn start(&mut self, id: SequenceId, known: &Resumed, cuts: Vec<usize>) {
        self.id = id;
        self.is_prefill = true;
        self.n_cached = known.n_cached;
        self.cuts = cuts;
        self.answer.start(known.n_cached);
    }

    /// Goes back to waiting: nothing of it is cached any more.
    pub(super) fn suspend(&mut self) {
        self.id = SequenceId::MAX;
        self.n_cached = 0;
    }

    /// The tokens of which as many as are known need not be read: those up to the first whose
    /// log-probabilities are wanted, or of which a value is.
    pub(super) fn reusable(&self) -> &[u32] {
        let tokens = self.unscored();
        let wanted = self.recorder.as_ref().and_then(Recorder::next_wanted);
        &tokens[..wanted.map_or(tokens.len(), |at| tokens.len().min(at + 1))]
    }

    /// Whether what is computed of it is the same as of another sequence.
    pub(super) fn is_computed_as(&self, other: &Self) -> bool {
        let key = |of: &Self| {
            of.recorder
                .as_ref()
                .map_or(Vec::new(), |w| w.lab().key().to_vec())
        };
        self.scales == other.scales && self.source == other.source && key(self) == key(other)
    }

    fn unscored(&self) -> &[u32] {
        match self.n_scored < self.n_prompt {
            true => &self.tokens[..self.n_scored.max(1)],
            false if !self.answer.reads_cache => &self.tokens[..1],
            false => &self.tokens,
        }
    }

    /// Whether the logits from which the token at `next` follows are wanted to score the prompt.
    pub(super) fn is_scored_next(&self, next: usize) -> bool {
        next < self.n_prompt && next >= self.n_scored
    }

    /// Scores the first token of the prompt, which follows nothing.
    pub(super) fn score_first(&mut self, tokenizer: &Tokenizer) -> Result<(), Failure> {
        if self.n_scored == 0 {
            self.answer.score(self.tokens[0], None, tokenizer)?;
            self.n_scored = 1;
        }
        Ok(())
    }

    /// Scores the token of the prompt at `next` by the logits of the token before it.
    pub(super) fn score(
        &mut self,
        next: usize,
        logits: &[f32],
        tokenizer: &Tokenizer,
    ) -> Result<(), Failure> {
        // A step that is run again hands out rows once more.
        if next == self.n_scored {
            self.answer
                .score(self.tokens[next], Some(logits), tokenizer)?;
            self.n_scored += 1;
        }
        Ok(())
    }

    /// Tokens that must be read before the next one can be chosen.
    pub(super) fn pending(&self) -> &[u32] {
        &self.tokens[self.n_cached..]
    }

    /// What it is to the scheduler.
    pub(super) fn job(&self) -> Job {
        // Nothing of a sequence is cached without its source.
        let (n_kept, ahead) = match self.n_cached {
            0 => (0, self.source.len()),
            n => (self.source.len() + n, 0),
        };
        Job {
            pending: self.tokens.len() - self.n_cached,
            is_prefill: self.is_prefill,
            room: n_kept.next_multiple_of(BLOCK) - n_kept,
            ahead,
            cut: self.cuts.last().map(|cut| cut - self.n_cached),
            ..Job::default()
        }
    }

    /// Asks for a state to be kept at `position`, if it has not been read yet.
    pub(super) fn cut_at(&mut self, position: usize) {
        if position > self.n_cached && !self.cuts.contains(&position) {
            self.cuts.push(position);
            self.cuts.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    /// Takes note that a step reads the first `n` pending tokens, or all.
    pub(super) fn read(&mut self, n: usize) {
        self.n_step = n.min(self.pending().len());
    }

    /// Tokens that are read with the step under way.
    pub(super) fn n_read(&self) -> usize {
        self.n_cached + self.n_step
    }

    /// Takes note that the tokens of a step are cached, and `n_more` chosen ones with them.
    pub(super) fn commit(&mut self, is_last: bool, n_more: usize) {
        self.n_cached = self.n_read() + n_more;
        self.n_step = 0;
        if self.is_prefill {
            self.answer.progressed(self.n_cached);
        }
        self.is_prefill &= !is_last;
        while self.cuts.last().is_some_and(|cut| *cut <= self.n_cached) {
            self.cuts.pop();
        }
    }

    /// Adds a token that was chosen, and reports it. A token that ends the completion is not part of
    /// its text.
    pub(super) fn push(&mut self, token: u32, entry: Entry, tokenizer: &Tokenizer) {
        self.tokens.push(token);
        if self.answer.ends_at(token, tokenizer) {
            self.n_reported += 1;
            self.answer.end_at(token, entry, tokenizer);
            self.ending = Some(FinishReason::Stop);
            return;
        }
        self.report(entry, tokenizer);
    }

    /// Puts the first unreported token through the gate; a stop sequence ends the completion there.
    pub(super) fn report(&mut self, entry: Entry, tokenizer: &Tokenizer) {
        let token = self.tokens[self.n_reported];
        self.n_reported += 1;
        if self.answer.push(token, entry, tokenizer) {
            self.is_stopped = true;
            self.ending = Some(FinishReason::Stop);
        }
    }

    /// Whether tokens wait for their report.
    pub(super) fn is_unreported(&self) -> bool {
        self.n_reported < self.tokens.len() && !self.is_stopped
    }

    /// How the completion ends, if that is decided and all of it is reported.
    pub(super) fn conclude(&mut self) -> Option<FinishReason> {
        let ending = self.ending.filter(|_| !self.is_unreported())?;
        if !self.is_stopped {
            self.answer.flush();
        }
        Some(ending)
    }

    /// Whether hidden states wait for its lens.
    pub(super) fn awaits_lens(&self) -> bool {
        self.recorder.as_ref().is_some_and(Recorder::is_waiting)
    }

    /// Ends the request.
    pub(super) fn finish(self, reason: FinishReason) {
        if let Some(recorder) = self.recorder {
            let result = Box::new(recorder.finish(self.tokens));
            self.answer.send(Event::Lab(result));
        }
        self.answer.finish(reason, self.n_reported - self.n_prompt);
    }
}
