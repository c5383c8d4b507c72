//! Autoregressive decoding: each token is chosen from the logits of the one before it, with draft tokens
//! (speculative decoding) or under a constraint.
//!
//! A pass reads the pending tokens and the draft tokens that may follow them. First come the rows of forced tokens,
//! which give their log-probabilities, then the rows from which tokens are chosen.

use std::sync::Arc;

use crate::model::{Batch, MAX_BANNED, N_TOP};
use lab_sampling::{Allowed, RowLogits, SampleError, Sampler, TokenRules, TopLogits};

use super::answer_stream::TokenEntry;
use super::constraint::{ActiveConstraint, ForcedTokens};
use super::draft::Drafter;
use super::event::{Failure, FinishReason};
use super::scheduler::Job;
use super::sequence::Sequence;
use super::strategy::{OutputRow, RowUse, StepOutcome, Strategy};
use super::thinking::ThinkingBudget;

pub(super) struct AutoregressiveStrategy {
    sampler: Sampler,
    /// The tokens that are banned in every step, if it takes the best of all others.
    banned: Option<Arc<[u32]>>,
    /// Maximum length of prompt and completion.
    limit: usize,
    drafter: Option<Drafter>,
    constrained: Option<ActiveConstraint>,
    rules: Option<Arc<TokenRules>>,
    thinking: Option<ThinkingBudget>,
    /// Length of the sequence when the current step was read; tokens chosen since then are beyond it.
    n_before: usize,
    /// Whether the further rows of the step follow a draft token that was not chosen.
    is_diverged: bool,
}

impl AutoregressiveStrategy {
    pub(super) fn new(
        mut sampler: Sampler,
        prompt: &[u32],
        limit: usize,
        drafter: Option<Drafter>,
        constrained: Option<ActiveConstraint>,
        thinking: Option<ThinkingBudget>,
    ) -> Self {
        sampler.accept_prompt(prompt);
        Self {
            banned: sampler.banned().map(Arc::from),
            sampler,
            limit,
            drafter,
            constrained,
            rules: None,
            thinking,
            n_before: 0,
            is_diverged: false,
        }
    }

    /// The same with rules for the tokens, under which nothing is drafted.
    pub(super) fn ruled(mut self, rules: Option<Arc<TokenRules>>) -> Self {
        if rules.is_some() {
            self.drafter = None;
        }
        self.rules = rules;
        self
    }

    fn drafted(&self) -> &[u32] {
        self.drafter.as_ref().map_or(&[], Drafter::tokens)
    }

    /// Adds the tokens that the constraint forces. They are pending from then on.
    fn force(&mut self, sequence: &mut Sequence, forced: ForcedTokens) {
        let ForcedTokens {
            mut tokens,
            is_complete,
        } = forced;
        let n_left = self.limit - sequence.tokens.len();
        let is_cut = tokens.len() > n_left;
        tokens.truncate(n_left);
        for token in &tokens {
            self.sampler.accept(*token);
            if let Some(thinking) = &mut self.thinking {
                thinking.push(sequence.answer.tokenizer.piece(*token));
            }
        }
        sequence.tokens.extend(tokens);
        if is_complete && !is_cut {
            sequence.ending = Some(FinishReason::Stop);
        } else if sequence.tokens.len() >= self.limit {
            sequence.ending = Some(FinishReason::Length);
        }
        // With log-probabilities, the tokens are reported with their rows.
        while !sequence.answer.wants_logprobs() && sequence.is_unreported() {
            sequence.report(TokenEntry::default());
        }
    }

    /// Chooses the next token from a row; none if that needs all logits of the row.
    fn choose(
        &mut self,
        sequence: &mut Sequence,
        model_logits: RowLogits<'_>,
    ) -> Result<Option<u32>, Failure> {
        let rules = self.rules.as_ref();
        let tokens = &sequence.tokens[sequence.n_prompt..];
        let ruled = match (rules, model_logits) {
            (Some(rules), RowLogits::All(logits)) => Some(rules.applied(tokens, logits)),
            _ => None,
        };
        let logits = ruled.as_deref().map_or(model_logits, RowLogits::All);
        let mask = match &mut self.constrained {
            Some(constrained) => Some(constrained.mask(logits.n_vocab())?),
            None => None,
        };
        let n_chosen = sequence.tokens.len() - sequence.n_prompt;
        let banned = sequence.answer.held_open(n_chosen);
        let allowed = Allowed {
            mask,
            banned: &banned,
        };
        let sample = || match self.sampler.sample_row(logits, allowed) {
            // A complete grammar ends the completion, even below the minimum length.
            Err(SampleError::NothingLeft { .. }) if mask.is_some() && !banned.is_empty() => {
                self.sampler.sample_row(logits, mask.into())
            }
            found => found,
        };
        let n_drawn = sequence.answer.n_drawn();
        let forced = self.thinking.as_ref().and_then(ThinkingBudget::forced);
        let is_allowed = |token: &u32| {
            let bits = mask.and_then(|mask| mask.get(*token as usize / 32));
            mask.is_none() || bits.is_some_and(|bits| bits >> (token % 32) & 1 == 1)
        };
        let token = match forced.filter(is_allowed) {
            Some(token) => token,
            None => match tracing::trace_span!(target: "phase", "sample").in_scope(sample) {
                Err(SampleError::Undecided) => return Ok(None),
                found => found?,
            },
        };
        let drawn = match (n_drawn, logits) {
            (Some(n), RowLogits::All(logits)) => {
                Some(self.sampler.drawn(token, logits, allowed, n)?)
            }
            _ => None,
        };
        self.sampler.accept(token);
        if let Some(thinking) = &mut self.thinking {
            if forced.is_some_and(|forced| forced != token) {
                thinking.abandon();
            }
            thinking.push(sequence.answer.tokenizer.piece(token));
        }
        let entry = match &drawn {
            Some(drawn) => TokenEntry::drawn(drawn),
            None => {
                let are_ruled = rules.is_some_and(|rules| rules.are_scores_ruled());
                match if are_ruled { logits } else { model_logits } {
                    RowLogits::All(scored) => sequence.answer.entry(token, scored)?,
                    RowLogits::Top(_) => TokenEntry::default(),
                }
            }
        };
        sequence.push(token, entry);
        if sequence.ending.is_none() && sequence.tokens.len() >= self.limit {
            sequence.ending = Some(FinishReason::Length);
        }
        if let Some(constrained) = &mut self.constrained
            && sequence.ending.is_none()
        {
            constrained.choose(token);
        }
        Ok(Some(token))
    }

    /// Processes the row of a position.
    fn take_row(
        &mut self,
        sequence: &mut Sequence,
        position: usize,
        logits: RowLogits<'_>,
    ) -> Result<RowUse, Failure> {
        let next = position + 1;
        if next < sequence.n_prompt {
            let RowLogits::All(logits) = logits else {
                return Ok(RowUse::NeedsAll);
            };
            return sequence.score(next, logits).map(|()| RowUse::Taken);
        }
        if next < self.n_before {
            // This row may be computed only for its captured values.
            if !sequence.is_stopped && next >= sequence.n_reported {
                let RowLogits::All(logits) = logits else {
                    return Ok(RowUse::NeedsAll);
                };
                let entry = sequence.answer.entry(sequence.tokens[next], logits)?;
                sequence.report(entry);
            }
            return Ok(RowUse::Taken);
        }
        sequence.answer.prefilled();
        sequence.answer.send_scored();
        if self.is_diverged || sequence.ending.is_some() {
            return Ok(RowUse::Taken);
        }
        if sequence.tokens.len() >= self.limit {
            sequence.ending = Some(FinishReason::Length);
            return Ok(RowUse::Taken);
        }
        // After an accepted draft token the constraint may force the next ones. The next step reads them.
        if sequence.tokens.len() > self.n_before
            && let Some(constrained) = &mut self.constrained
            && !constrained.is_free()?
        {
            self.is_diverged = true;
            return Ok(RowUse::Taken);
        }
        let Some(token) = self.choose(sequence, logits)? else {
            return Ok(RowUse::NeedsAll);
        };
        // The next row follows the draft token, so it counts only if the draft token was right.
        let drafted = self.drafted().get(next - self.n_before);
        self.is_diverged = drafted != Some(&token);
        Ok(RowUse::Taken)
    }
}

impl Strategy for AutoregressiveStrategy {
    fn reuses_prefix(&self) -> bool {
        true
    }

    fn prepare(&mut self, sequence: &mut Sequence) -> StepOutcome {
        sequence.score_first()?;
        if let Some(constrained) = &mut self.constrained
            && let Some(forced) = constrained.forced()?
        {
            self.force(sequence, forced);
            if sequence.ending.is_some() {
                return Ok(sequence.conclude());
            }
        }
        if let Some(drafter) = &mut self.drafter {
            let n_left = self.limit.saturating_sub(sequence.tokens.len() + 1);
            // After a pass that was taken back, accepted tokens are read again. The states after them can then be kept.
            let is_decoding = sequence.pending().len() == 1 && !sequence.is_prefill;
            drafter.begin(&sequence.tokens, if is_decoding { n_left } else { 0 });
        }
        Ok(None)
    }

    fn drafter(&mut self) -> Option<&mut Drafter> {
        self.drafter.as_mut()
    }

    fn job(&self, sequence: &Sequence) -> Job {
        Job {
            drafted: self.drafted().len(),
            ..sequence.job()
        }
    }

    fn read(&mut self, sequence: &mut Sequence, n: usize, batch: &mut Batch) {
        self.n_before = sequence.tokens.len();
        self.is_diverged = false;
        if let Some(drafter) = &mut self.drafter {
            drafter.truncate(n.saturating_sub(sequence.pending().len()));
        }
        let tokens = sequence.pending().iter().chain(self.drafted()).take(n);
        for (token, next) in tokens.zip(sequence.n_cached + 1..) {
            let wants_logits = next >= self.n_before
                || next >= sequence.n_reported
                || sequence.is_scored_next(next);
            batch.push(*token, sequence.id, next as u32 - 1, wants_logits);
        }
        sequence.read(n);
    }

    fn continues(&self, sequence: &Sequence) -> Option<bool> {
        let n_read = sequence.tokens.len();
        let is_last = sequence.ending.is_some() || n_read + 1 >= self.limit;
        (!is_last).then(|| sequence.n_read() == n_read && self.drafted().is_empty())
    }

    fn takes_best(&self, sequence: &Sequence, later: usize) -> Option<Arc<[u32]>> {
        let forced = self.thinking.as_ref().and_then(ThinkingBudget::forced);
        let is_free = self.constrained.is_none() && forced.is_none() && self.tries_top(sequence);
        // The step after it may read what is drafted.
        let always = self
            .banned
            .as_ref()
            .filter(|_| is_free && self.drafter.is_none())?;
        let n_chosen = sequence.tokens.len() - sequence.n_prompt;
        let held_open = sequence.answer.held_open(n_chosen + later);
        let banned = match held_open.as_slice() {
            [] => Arc::clone(always),
            more => [always, more].concat().into(),
        };
        (banned.len() <= MAX_BANNED).then_some(banned)
    }

    fn tries_top(&self, sequence: &Sequence) -> bool {
        let answer = &sequence.answer;
        let is_reported = answer.wants_logprobs() || answer.n_drawn().is_some();
        let is_recorded = sequence.recorder.is_some();
        self.rules.is_none() && !is_reported && !is_recorded && self.sampler.decides_by(N_TOP)
    }

    fn take_top(
        &mut self,
        sequence: &mut Sequence,
        position: usize,
        top: TopLogits<'_>,
    ) -> Result<RowUse, Failure> {
        match self.tries_top(sequence) {
            true => self.take_row(sequence, position, RowLogits::Top(top)),
            false => Ok(RowUse::NeedsAll),
        }
    }

    fn take(&mut self, sequence: &mut Sequence, row: &OutputRow<'_>) -> Result<(), Failure> {
        let logits = RowLogits::All(row.logits);
        self.take_row(sequence, row.position, logits).map(drop)
    }

    fn commit(&mut self, sequence: &mut Sequence) -> StepOutcome {
        let is_last = sequence.n_read() >= self.n_before;
        let mut n_accepted = 0;
        if is_last && let Some(drafter) = &mut self.drafter {
            let step = drafter.learn(&sequence.tokens[self.n_before..]);
            n_accepted = step.n_accepted;
            sequence.answer.usage.drafts.count(step);
        }
        sequence.commit(is_last, n_accepted);
        sequence.answer.send_scored();
        Ok(sequence.conclude())
    }
}
