//! Text diffusion of one request: the current block, and the tokens that a step fixes.

use std::ops::Range;

use crate::model::Batch;
use lab_sampling::{Logprobs, Sampler};

use super::super::answer_stream::TokenEntry;
use super::super::compute::BLOCK;
use super::super::diffusion_options::FixedToken;
use super::super::event::{Event, Failure, FinishReason};
use super::super::remasking::Remasking;
use super::super::scheduler::Job;
use super::super::sequence::Sequence;
use super::super::strategy::{OutputRow, SharedInput, StepOutcome, Strategy};
use super::settings::DiffusionSettings;

/// The token that a step proposes for a masked position.
struct Proposal {
    at: usize,
    token: u32,
    logprob: f64,
    /// Proposals with a higher rank are fixed first; with [`Remasking::None`], a random number that decides alone.
    rank: f64,
    entry: TokenEntry,
}

/// The state of one request. Its sequence holds prompt and completion, with the mask token at masked positions.
/// Guidance adds a second sequence, whose prompt is masked too.
pub(crate) struct DiffusionStrategy {
    settings: DiffusionSettings,
    sampler: Sampler,
    /// For each position of the completion, whether it is fixed.
    is_fixed: Vec<bool>,
    /// The log-probabilities of fixed tokens that are not reported yet.
    entries: Vec<TokenEntry>,
    /// The positions of the completion that are being denoised, and the steps left for them.
    block: Range<usize>,
    steps_left: usize,
    n_steps: usize,
    proposals: Vec<Proposal>,
    /// Whether keys and values before the block stay cached.
    is_kept: bool,
    /// Whether every step is reported.
    is_traced: bool,
}

impl DiffusionStrategy {
    pub(crate) fn new(sampler: Sampler, settings: DiffusionSettings, is_traced: bool) -> Self {
        let block = settings.block(0);
        let entries = std::iter::repeat_with(TokenEntry::default);
        Self {
            sampler,
            is_fixed: vec![false; settings.length],
            entries: entries.take(settings.length).collect(),
            steps_left: settings.steps_of(&block),
            block,
            n_steps: 0,
            proposals: Vec::new(),
            is_kept: false,
            is_traced,
            settings,
        }
    }

    /// The position in the completion whose token the row at `position` predicts.
    fn chosen_at(&self, sequence: &Sequence, position: usize) -> Option<usize> {
        (position + self.settings.shift).checked_sub(sequence.n_prompt)
    }

    fn is_masked(&self, at: usize) -> bool {
        self.block.contains(&at) && !self.is_fixed[at]
    }

    /// Fixes some of the tokens that the last pass proposed.
    fn fix(&mut self, sequence: &mut Sequence) {
        let mut proposals = std::mem::take(&mut self.proposals);
        let n_fixed = self.choose(&mut proposals);
        let mut fixed = Vec::new();
        for proposal in proposals.drain(..n_fixed) {
            sequence.tokens[sequence.n_prompt + proposal.at] = proposal.token;
            self.is_fixed[proposal.at] = true;
            self.entries[proposal.at] = proposal.entry;
            fixed.push(FixedToken {
                position: proposal.at,
                token: proposal.token,
                logprob: proposal.logprob,
            });
        }
        proposals.clear();
        self.proposals = proposals;
        if self.is_traced {
            sequence.answer.send(Event::DenoisingStep {
                step: self.n_steps,
                n_masked: self.is_fixed.iter().filter(|fixed| !**fixed).count(),
                fixed,
            });
        }
    }

    /// Sorts the proposals to be fixed to the front and returns their number.
    fn choose(&self, proposals: &mut [Proposal]) -> usize {
        let left = self.steps_left.max(1);
        if self.settings.remasking == Remasking::None {
            let is_fixed = |p: &Proposal| p.rank * (left as f64) < 1.0;
            proposals.sort_by_key(|p| !is_fixed(p));
            return proposals.iter().filter(|p| is_fixed(p)).count();
        }
        let share = proposals.len().div_ceil(left);
        proposals.sort_by(|a, b| b.rank.total_cmp(&a.rank).then(a.at.cmp(&b.at)));
        let Some(threshold) = self.settings.threshold else {
            return share;
        };
        let is_sure = |p: &Proposal| p.logprob.exp() >= threshold;
        proposals[share..].sort_by_key(|p| !is_sure(p));
        share + proposals[share..].iter().filter(|p| is_sure(p)).count()
    }

    /// Goes to the next block if this one is complete.
    fn advance(&mut self) {
        self.n_steps += 1;
        self.steps_left = self.steps_left.saturating_sub(1);
        self.is_kept = self.settings.approximate_cache;
        let is_complete = !self.block.clone().any(|at| self.is_masked(at));
        if is_complete && self.block.end < self.settings.length {
            self.block = self.settings.block(self.block.end);
            self.steps_left = self.settings.steps_of(&self.block);
            self.is_kept = false;
        }
    }

    /// Reports the tokens up to the first masked one.
    fn report(&mut self, sequence: &mut Sequence) {
        while sequence.is_unreported() {
            let at = sequence.n_reported - sequence.n_prompt;
            if !self.is_fixed[at] {
                return;
            }
            if sequence
                .answer
                .tokenizer
                .is_end_of_generation(sequence.tokens[sequence.n_reported])
            {
                // Fixed tokens after the end are not part of the completion.
                sequence.n_reported += 1;
                sequence.tokens.truncate(sequence.n_reported);
                sequence.ending = Some(FinishReason::Stop);
                return;
            }
            let entry = std::mem::take(&mut self.entries[at]);
            sequence.report(entry);
        }
        sequence.ending.get_or_insert(FinishReason::Length);
    }
}

impl Strategy for DiffusionStrategy {
    fn job(&self, sequence: &Sequence) -> Job {
        let (n, n_cached) = (sequence.tokens.len(), sequence.n_cached);
        let pending = (n - n_cached) * sequence.n_parts;
        Job {
            pending,
            is_whole: true,
            n_free_in_block: pending,
            reserved: (n.div_ceil(BLOCK) - n_cached.div_ceil(BLOCK)) * sequence.n_parts,
            ..Job::default()
        }
    }

    fn shared_input<'s>(&'s self, sequence: &'s Sequence) -> Option<SharedInput<'s>> {
        (!self.settings.approximate_cache).then_some(SharedInput {
            tokens: &sequence.tokens,
            n_prompt: sequence.n_prompt,
            scales: &sequence.scales,
            block: &self.block,
            is_fixed: &self.is_fixed,
            cfg_scale: self.settings.cfg_scale,
        })
    }

    fn read(&mut self, sequence: &mut Sequence, n: usize, batch: &mut Batch) {
        sequence.answer.usage.positions += n;
        for position in sequence.n_cached..sequence.tokens.len() {
            let at = self.chosen_at(sequence, position);
            let wants_logits = at.is_some_and(|at| self.is_masked(at));
            for (i, id) in sequence.ids().enumerate() {
                let is_hidden = i > 0 && position < sequence.n_prompt;
                let token = match is_hidden {
                    true => self.settings.mask,
                    false => sequence.tokens[position],
                };
                batch.push(token, id, position as u32, wants_logits);
            }
        }
    }

    /// With guidance, the result needs the rows of both sequences: `u + (1 + s) (c - u)`, where `c` is the first
    /// row and `u` the second, with a masked prompt. The mask token cannot be chosen.
    fn logits<'l>(&self, row: &OutputRow<'l>, buffer: &'l mut Vec<f32>) -> Option<&'l [f32]> {
        if row.part == 0 {
            buffer.clear();
            buffer.extend_from_slice(row.logits);
        }
        if let Some(scale) = self.settings.cfg_scale {
            if row.part == 0 {
                return None;
            }
            let factor = (1.0 + scale) as f32;
            for (guided, blind) in buffer.iter_mut().zip(row.logits) {
                *guided = blind + factor * (*guided - blind);
            }
        }
        buffer[self.settings.mask as usize] = f32::NEG_INFINITY;
        Some(buffer)
    }

    fn take(&mut self, sequence: &mut Sequence, row: &OutputRow<'_>) -> Result<(), Failure> {
        let Some(at) = self.chosen_at(sequence, row.position) else {
            return Ok(());
        };
        // Each position of each step has random numbers of its own.
        let draw = (self.n_steps * self.settings.length + at) as u64;
        let token = self.sampler.sample_draw(draw, row.logits)?;
        let logprobs = Logprobs::new(row.logits)?;
        let logprob = logprobs.of(token).unwrap_or(f64::NEG_INFINITY);
        let rank = match self.settings.remasking {
            Remasking::LowConfidence => logprob,
            Remasking::Margin => margin(&logprobs),
            Remasking::Entropy => -logprobs.entropy(),
            Remasking::Random | Remasking::None => self.sampler.uniform(draw),
        };
        let entry = sequence.answer.entry_of(token, &logprobs);
        self.proposals.push(Proposal {
            at,
            token,
            logprob,
            rank,
            entry,
        });
        Ok(())
    }

    fn commit(&mut self, sequence: &mut Sequence) -> StepOutcome {
        sequence.answer.usage.passes += 1;
        self.fix(sequence);
        self.advance();
        sequence.n_cached = match self.is_kept {
            true => (sequence.n_prompt + self.block.start).saturating_sub(self.settings.shift),
            false => 0,
        };
        sequence.answer.prefilled();
        self.report(sequence);
        Ok(sequence.conclude())
    }

    fn abort(&mut self) -> bool {
        self.proposals.clear();
        self.is_kept = false;
        true
    }
}

/// The difference in probability between the best token and the second.
fn margin(logprobs: &Logprobs<'_>) -> f64 {
    let top = logprobs.top(2);
    let p = |i: usize| top.get(i).map_or(0.0, |t| t.logprob.exp());
    p(0) - p(1)
}
