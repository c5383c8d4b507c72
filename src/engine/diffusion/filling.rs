//! One request whose answer is filled in: its text, the block it is at, what a step fixes.

use std::ops::Range;

use crate::blocks::Remasking;
use crate::model::{Batch, SequenceId};
use crate::sampling::{Logprobs, SampleError, Sampler};
use crate::text::tokenizer::Tokenizer;

use super::super::answer::{Answer, Entry};
use super::super::way::Asked;
use super::super::{Event, FinishReason, Submitted};
use super::{Fixed, Settings};

/// What a step would put at a masked position.
struct Look {
    at: usize,
    token: u32,
    logprob: f64,
    /// The higher, the sooner it is fixed.
    rank: f64,
    entry: Entry,
}

/// A request that waits or runs.
pub(super) struct Filling {
    /// The first of its sequences, while it runs; a text with a masked prompt is the next one.
    pub(super) id: SequenceId,
    pub(super) answer: Answer,
    pub(super) settings: Settings,
    sampler: Sampler,
    /// Scale of each adapter.
    pub(super) scales: Vec<f32>,
    /// Prompt and answer.
    tokens: Vec<u32>,
    n_prompt: usize,
    /// Which positions of the answer are fixed.
    is_fixed: Vec<bool>,
    /// What is told of fixed tokens that have not been released.
    entries: Vec<Entry>,
    n_reported: usize,
    /// Positions of the answer that are filled in now, and the steps left for them.
    block: Range<usize>,
    steps_left: usize,
    n_steps: usize,
    looks: Vec<Look>,
    /// Whether keys and values of what is before the block are kept.
    is_kept: bool,
    /// The first position that the pass computes.
    from: usize,
    /// Whether every step is told.
    is_traced: bool,
}

impl Asked for Filling {
    fn answer(&self) -> &Answer {
        &self.answer
    }

    fn into_answer(self) -> Answer {
        self.answer
    }
}

impl Filling {
    pub(super) fn new(submitted: Submitted, settings: Settings) -> Self {
        let Submitted {
            request,
            sampler,
            scales,
            caller,
            ..
        } = submitted;
        let answer = Answer::new(&request, caller);
        let n_prompt = request.prompt.len();
        let mut tokens = request.prompt;
        tokens.resize(n_prompt + settings.length, settings.mask);
        let block = settings.block(0);
        Self {
            id: SequenceId::MAX,
            answer,
            sampler,
            scales,
            tokens,
            n_prompt,
            is_fixed: vec![false; settings.length],
            entries: std::iter::repeat_with(Entry::default)
                .take(settings.length)
                .collect(),
            n_reported: 0,
            steps_left: settings.steps_of(&block),
            block,
            n_steps: 0,
            looks: Vec::new(),
            is_kept: false,
            from: 0,
            is_traced: request.trace,
            settings,
        }
    }

    /// Its sequences.
    pub(super) fn ids(&self) -> impl Iterator<Item = SequenceId> + use<> {
        (self.id..).take(self.settings.n_texts())
    }

    /// Positions of its text.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Positions that the next pass computes, of all its texts.
    pub(super) fn n_computed(&self) -> usize {
        (self.len() - self.from) * self.settings.n_texts()
    }

    /// The position from which on the next pass has to compute, where the ones before are kept.
    pub(super) fn kept(&self) -> usize {
        match self.is_kept {
            true => (self.n_prompt + self.block.start).saturating_sub(self.settings.shift),
            false => 0,
        }
    }

    /// Takes note of the position from which on the next pass computes.
    pub(super) fn begin_at(&mut self, from: usize) {
        self.from = from;
    }

    /// Whether the same pass serves both: nothing that goes into it differs.
    pub(super) fn is_twin(&self, other: &Self) -> bool {
        !self.settings.approximate_cache
            && !other.settings.approximate_cache
            && self.settings.cfg_scale == other.settings.cfg_scale
            && self.scales == other.scales
            && self.n_prompt == other.n_prompt
            && self.block == other.block
            && self.tokens == other.tokens
            && self.is_fixed == other.is_fixed
    }

    /// The masked positions of the block, which want logits in this order.
    pub(super) fn masked(&self) -> impl Iterator<Item = usize> + '_ {
        self.block.clone().filter(|at| !self.is_fixed[*at])
    }

    /// Adds its texts to a pass, position by position.
    pub(super) fn read(&mut self, batch: &mut Batch) {
        let (shift, mask) = (self.settings.shift, self.settings.mask);
        for position in self.from..self.len() {
            let at = (position + shift).checked_sub(self.n_prompt);
            let is_masked = |at: &usize| self.block.contains(at) && !self.is_fixed[*at];
            let wants_logits = at.is_some_and(|at| is_masked(&at));
            for (i, id) in self.ids().enumerate() {
                let is_hidden = i > 0 && position < self.n_prompt;
                let token = if is_hidden {
                    mask
                } else {
                    self.tokens[position]
                };
                batch.push(token, id, position as u32, wants_logits);
            }
        }
    }

    /// Prompt and answer, masked positions as the mask token.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Chooses what would stand at a masked position. The logits have no way to the mask.
    ///
    /// # Errors
    /// Logits that cannot be used.
    pub(super) fn look(&mut self, at: usize, logits: &[f32]) -> Result<(), SampleError> {
        // Each position of each step has random numbers of its own.
        let draw = (self.n_steps * self.settings.length + at) as u64;
        let token = self.sampler.sample_draw(draw, logits, None)?;
        let logprobs = Logprobs::new(logits)?;
        let logprob = logprobs.of(token).unwrap_or(f64::NEG_INFINITY);
        let rank = match self.settings.remasking {
            Remasking::LowConfidence => logprob,
            Remasking::Margin => margin(&logprobs),
            Remasking::Entropy => -logprobs.entropy(),
            Remasking::Random | Remasking::None => self.sampler.uniform(draw),
        };
        let entry = self.answer.entry_of(token, &logprobs);
        self.looks.push(Look {
            at,
            token,
            logprob,
            rank,
            entry,
        });
        Ok(())
    }

    /// Fixes some of what the last pass looked at and releases what is complete from the left. Returns
    /// why the answer ends, if it does.
    pub(super) fn fix(&mut self, tokenizer: &Tokenizer) -> Option<FinishReason> {
        let mut looks = std::mem::take(&mut self.looks);
        let n_fixed = self.choose(&mut looks);
        let mut fixed = Vec::new();
        for look in looks.drain(..n_fixed) {
            self.tokens[self.n_prompt + look.at] = look.token;
            self.is_fixed[look.at] = true;
            self.entries[look.at] = look.entry;
            fixed.push(Fixed {
                position: look.at,
                token: look.token,
                logprob: look.logprob,
            });
        }
        if self.is_traced {
            self.answer.tell(Event::Step {
                step: self.n_steps,
                n_masked: self.is_fixed.iter().filter(|fixed| !**fixed).count(),
                fixed,
            });
        }
        looks.clear();
        self.looks = looks;
        self.n_steps += 1;
        self.steps_left = self.steps_left.saturating_sub(1);
        self.is_kept = self.settings.approximate_cache;
        self.answer.prefilled();
        if self.masked().next().is_none() && self.block.end < self.settings.length {
            self.block = self.settings.block(self.block.end);
            self.steps_left = self.settings.steps_of(&self.block);
            self.is_kept = false;
        }
        self.report(tokenizer)
    }

    /// Puts those that are to be fixed first and says how many they are.
    fn choose(&self, looks: &mut [Look]) -> usize {
        let left = self.steps_left.max(1);
        if self.settings.remasking == Remasking::None {
            let is_fixed = |look: &Look| look.rank * (left as f64) < 1.0;
            looks.sort_by_key(|look| !is_fixed(look));
            return looks.iter().filter(|look| is_fixed(look)).count();
        }
        let share = looks.len().div_ceil(left);
        looks.sort_by(|a, b| b.rank.total_cmp(&a.rank).then(a.at.cmp(&b.at)));
        let Some(threshold) = self.settings.threshold else {
            return share;
        };
        let is_sure = |look: &Look| look.logprob.exp() >= threshold;
        looks[share..].sort_by_key(|look| !is_sure(look));
        share + looks[share..].iter().filter(|look| is_sure(look)).count()
    }

    /// Releases the tokens up to the first masked one.
    fn report(&mut self, tokenizer: &Tokenizer) -> Option<FinishReason> {
        while self.n_reported < self.settings.length && self.is_fixed[self.n_reported] {
            let at = self.n_reported;
            let token = self.tokens[self.n_prompt + at];
            self.n_reported += 1;
            if tokenizer.is_end_of_generation(token) {
                self.answer.flush();
                return Some(FinishReason::Stop);
            }
            let entry = std::mem::take(&mut self.entries[at]);
            if self.answer.push(token, entry, tokenizer) {
                return Some(FinishReason::Stop);
            }
        }
        if self.n_reported < self.settings.length {
            return None;
        }
        self.answer.flush();
        Some(FinishReason::Length)
    }

    /// Forgets what a pass that failed had begun, and that anything is kept.
    pub(super) fn lose(&mut self) {
        self.looks.clear();
        self.is_kept = false;
    }

    /// Ends the request.
    pub(super) fn finish(self, reason: FinishReason) {
        self.answer.finish(reason, self.n_reported);
    }
}

/// How much more probable the best token is than the second.
fn margin(logprobs: &Logprobs<'_>) -> f64 {
    let top = logprobs.top(2);
    let p = |i: usize| top.get(i).map_or(0.0, |t| t.logprob.exp());
    p(0) - p(1)
}
