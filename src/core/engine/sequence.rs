//! The tokens of one request: how many are cached, how many are reported, and how the completion ends.
//!
//! The state that all strategies share. The state of each strategy is in its own file.

use std::sync::Arc;

use crate::model::{CacheMiss, CachedPrefix, EncodedMedia, SequenceId};
use crate::models::media::PromptMedia;

use super::answer_stream::{AnswerStream, TokenEntry};
use super::compute::{BLOCK, Compute};
use super::event::{Event, Failure, FinishReason};
use super::recorder::Recorder;
use super::scheduler::Job;

/// What a waiting sequence got from the store of prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Restored {
    /// Tokens that were in the KV cache before.
    pub(super) n_before: usize,
    /// Blocks that came from the host's memory, and from files.
    pub(super) n_host: usize,
    pub(super) n_disk: usize,
    /// Why not more is stored; none if nothing was looked for.
    pub(super) miss: Option<CacheMiss>,
}

pub(super) struct Sequence {
    /// The first of its sequence ids in the cache, while it is active.
    pub(super) id: SequenceId,
    /// Number of its sequences, whose ids are consecutive.
    pub(super) n_parts: usize,
    /// The source, if the model reads one: tokens, or the numbers of [`PromptMedia::as_source`]. In the cache, the tokens follow it.
    pub(super) source: Vec<u32>,
    /// The media of its prompt.
    pub(super) media: Option<Arc<PromptMedia>>,
    /// The rows of the media, as far as they are computed.
    pub(super) encoded: EncodedMedia,
    /// Whether computing them was begun.
    pub(super) is_encoding: bool,
    /// Prompt and completion.
    pub(super) tokens: Vec<u32>,
    pub(super) n_prompt: usize,
    /// Tokens whose keys and values are cached.
    pub(super) n_cached: usize,
    /// Whether its source is cached.
    pub(super) has_source: bool,
    /// Number of pending tokens that the current step reads.
    n_step: usize,
    /// Whether the tokens that it started with are still being read.
    pub(super) is_prefill: bool,
    /// Positions at which a pass must end so that a state is cached there, in descending order.
    cuts: Vec<usize>,
    pub(super) scales: Vec<f32>,
    /// Whether the request changes values of the model: by edits, or by scales of its own.
    pub(super) is_changed: bool,
    /// Sequences of a lower number start first.
    pub(super) priority: i64,
    /// The slot that the client names.
    pub(super) slot: Option<usize>,
    /// The reading of its stored prefix that it waits for.
    pub(super) restoring: Option<u64>,
    /// What it got from the store; none if that was not asked yet.
    pub(super) restored: Option<Restored>,
    /// Tokens of the prompt whose log-probabilities are known; all of them if none are wanted.
    pub(super) n_scored: usize,
    /// Tokens that are part of the prompt or went through the stop buffer.
    pub(super) n_reported: usize,
    pub(super) is_stopped: bool,
    /// How the completion ends once all its tokens are reported.
    pub(super) ending: Option<FinishReason>,
    /// The captures and edits of the request, and the values captured so far.
    pub(super) recorder: Option<Recorder>,
    pub(super) answer: AnswerStream,
}

impl Sequence {
    /// A waiting sequence. Its first `n_prompt` tokens are the prompt.
    pub(super) fn new(
        tokens: Vec<u32>,
        n_prompt: usize,
        n_parts: usize,
        scales: Vec<f32>,
        recorder: Option<Recorder>,
        answer: AnswerStream,
    ) -> Self {
        Self {
            id: SequenceId::MAX,
            n_parts,
            source: Vec::new(),
            media: None,
            encoded: EncodedMedia::default(),
            is_encoding: false,
            tokens,
            n_prompt,
            n_cached: 0,
            has_source: false,
            n_step: 0,
            is_prefill: true,
            cuts: Vec::new(),
            scales,
            is_changed: false,
            priority: 0,
            slot: None,
            restoring: None,
            restored: None,
            n_scored: if answer.scores_prompt() { 0 } else { n_prompt },
            n_reported: n_prompt,
            is_stopped: false,
            ending: None,
            recorder,
            answer,
        }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = SequenceId> + use<> {
        (self.id..).take(self.n_parts)
    }

    /// Positions that its sequences may take in the cache with their present tokens; whole blocks if there are
    /// several.
    pub(super) fn n_positions(&self) -> usize {
        match self.n_parts {
            1 => self.source.len() + self.tokens.len(),
            n => n * self.tokens.len().next_multiple_of(BLOCK),
        }
    }

    /// The media whose rows are not all computed.
    pub(super) fn unencoded(&self) -> Option<&Arc<PromptMedia>> {
        let media = self.media.as_ref();
        media.filter(|media| self.encoded.n() < media.media.len())
    }

    /// Tells the model the scales, edits and source of its sequences, from `id` on.
    pub(super) fn prepare(&self, id: SequenceId, model: &mut impl Compute) {
        for id in (id..).take(self.n_parts) {
            model.begin(id, &self.scales, self.recorder.as_ref().map(Recorder::lab));
            if let Some(media) = &self.media {
                let media = (media.as_ref(), &self.encoded);
                model.set_media(id, media, &self.tokens[..self.n_prompt]);
            } else if !self.source.is_empty() {
                model.set_source(id, &self.source);
            }
        }
    }

    /// Makes the sequence active, with the cached prefix that was found.
    pub(super) fn start(&mut self, id: SequenceId, known: &CachedPrefix, cuts: Vec<usize>) {
        self.id = id;
        self.is_prefill = true;
        self.n_cached = known.n_cached;
        self.has_source = known.has_source;
        self.cuts = cuts;
        self.answer.start(known.n_cached);
    }

    /// Makes the sequence wait again, with no cached tokens.
    pub(super) fn suspend(&mut self) {
        self.id = SequenceId::MAX;
        self.n_cached = 0;
        self.has_source = false;
    }

    /// The tokens that may come from the prefix cache: those up to the first one whose log-probabilities or values
    /// are wanted.
    pub(super) fn reusable(&self) -> &[u32] {
        let tokens = self.unscored();
        let wanted = self.recorder.as_ref().and_then(Recorder::next_wanted);
        &tokens[..wanted.map_or(tokens.len(), |at| tokens.len().min(at + 1))]
    }

    /// Whether the results for the same tokens are the same in both sequences.
    pub(super) fn is_computed_as(&self, other: &Self) -> bool {
        let key = |of: &Self| {
            of.recorder
                .as_ref()
                .map_or(Vec::new(), |w| w.lab().key().to_vec())
        };
        let has_same_media = match (&self.media, &other.media) {
            (None, None) => true,
            (Some(own), Some(other)) => own.is_same(other),
            _ => false,
        };
        self.scales == other.scales
            && self.source == other.source
            && has_same_media
            && key(self) == key(other)
    }

    fn unscored(&self) -> &[u32] {
        match self.n_scored < self.n_prompt {
            true => &self.tokens[..self.n_scored.max(1)],
            false if !self.answer.reads_cache => &self.tokens[..1],
            false => &self.tokens,
        }
    }

    /// Whether the row that predicts the token at `next` is needed to score the prompt.
    pub(super) fn is_scored_next(&self, next: usize) -> bool {
        next < self.n_prompt && next >= self.n_scored
    }

    /// Scores the first token of the prompt, which has no logits.
    pub(super) fn score_first(&mut self) -> Result<(), Failure> {
        if self.n_scored == 0 {
            self.answer.score(self.tokens[0], None)?;
            self.n_scored = 1;
        }
        Ok(())
    }

    /// Scores the prompt token at `next` by the logits of the token before it.
    pub(super) fn score(&mut self, next: usize, logits: &[f32]) -> Result<(), Failure> {
        // A repeated step hands out its rows again.
        if next == self.n_scored {
            self.answer.score(self.tokens[next], Some(logits))?;
            self.n_scored += 1;
        }
        Ok(())
    }

    /// Tokens that must be read before the next one can be chosen.
    pub(super) fn pending(&self) -> &[u32] {
        &self.tokens[self.n_cached..]
    }

    pub(super) fn job(&self) -> Job {
        // With cached tokens, the source before them is cached too.
        let (n_kept, n_before) = match self.has_source || self.n_cached > 0 {
            false => (0, self.source.len()),
            true => (self.source.len() + self.n_cached, 0),
        };
        Job {
            pending: self.tokens.len() - self.n_cached,
            is_prefill: self.is_prefill,
            n_free_in_block: n_kept.next_multiple_of(BLOCK) - n_kept,
            n_before,
            cut: self.cuts.last().map(|cut| cut - self.n_cached),
            ..Job::default()
        }
    }

    /// Number of pending tokens that one pass must read, because some of them attend to later ones: at most `most`, unless the
    /// first of them need more. None where no pending token attends to a later one.
    pub(super) fn read_together(&self, most: usize) -> Option<usize> {
        let media = self.media.as_ref().filter(|_| self.is_prefill)?;
        let ranges = media.attending_ahead(self.n_prompt);
        let mut left = ranges
            .into_iter()
            .skip_while(|range| range.end <= self.n_cached + 1)
            .peekable();
        left.peek()?;
        let end = self.tokens.len().min(self.n_cached + most);
        let end = match left.find(|range| range.start < end && end < range.end) {
            Some(range) if range.start > self.n_cached => range.start,
            Some(range) => range.end,
            None => end,
        };
        Some(end - self.n_cached)
    }

    /// Makes a pass end at `position`, so that a state is cached there, if that position is not read yet.
    pub(super) fn cut_at(&mut self, position: usize) {
        if position > self.n_cached && !self.cuts.contains(&position) {
            self.cuts.push(position);
            self.cuts.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    /// Notes that a step reads the first `n` pending tokens, or all.
    pub(super) fn read(&mut self, n: usize) {
        self.n_step = n.min(self.pending().len());
    }

    /// Number of tokens of the sequence that are read once the current step has run.
    pub(super) fn n_read(&self) -> usize {
        self.n_cached + self.n_step
    }

    /// Notes that the tokens of a step are cached, and `n_more` chosen ones with them.
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

    /// Adds a chosen token and reports it. A token that ends the completion is not part of its text.
    pub(super) fn push(&mut self, token: u32, entry: TokenEntry) {
        self.tokens.push(token);
        if self.answer.ends_at(token) {
            self.n_reported += 1;
            self.answer.end_at(token, entry);
            self.ending = Some(FinishReason::Stop);
            return;
        }
        self.report(entry);
    }

    /// Puts the first unreported token through the stop buffer. The text, or the time of the request, may end the
    /// completion there.
    pub(super) fn report(&mut self, entry: TokenEntry) {
        let token = self.tokens[self.n_reported];
        self.n_reported += 1;
        let ending = self.answer.push(token, entry);
        if ending.is_some() {
            self.is_stopped = true;
            self.ending = ending;
        } else if self.answer.is_late() {
            self.ending.get_or_insert(FinishReason::Length);
        }
    }

    /// Whether log-probabilities or values of prompt tokens are still wanted.
    fn wants_prompt(&self) -> bool {
        let wanted = self.recorder.as_ref().and_then(Recorder::next_wanted);
        self.n_scored < self.n_prompt || wanted.is_some_and(|next| next < self.n_prompt)
    }

    pub(super) fn is_unreported(&self) -> bool {
        self.n_reported < self.tokens.len() && !self.is_stopped
    }

    /// How the completion ends, once that is decided and all its tokens are reported.
    ///
    /// Tokens that a constraint forces can decide it before the prompt is read, whose rows may be wanted.
    pub(super) fn conclude(&mut self) -> Option<FinishReason> {
        let ending = self.ending.filter(|_| !self.is_unreported())?;
        if self.n_read() < self.n_prompt && self.wants_prompt() {
            return None;
        }
        if !self.is_stopped {
            self.answer.flush();
        }
        Some(ending)
    }

    pub(super) fn awaits_lens(&self) -> bool {
        self.recorder.as_ref().is_some_and(Recorder::is_waiting)
    }

    pub(super) fn finish(mut self, reason: FinishReason) {
        if let Some(recorder) = self.recorder {
            let media = self.media.as_deref().map(|media| (media, &self.encoded));
            let result = Box::new(recorder.finish(self.tokens, media));
            self.answer.send(Event::Lab(result));
        }
        self.answer.finish(reason, self.n_reported - self.n_prompt);
    }
}
