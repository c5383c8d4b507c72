//! The loop of answers that are filled in: passes over whole texts, as many as fit.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::model::{self, Batch, EachRows, Model, SequenceId};
use crate::plan::BLOCK_LEN;
use crate::text::tokenizer::Tokenizer;

use super::super::answer::Answer;
use super::super::runner::place_of;
use super::super::way::{Way, let_go};
use super::super::{Failure, FinishReason, Limits, Submitted};
use super::Facts;
use super::filling::Filling;

/// What runs passes.
pub(in crate::engine) trait Compute {
    /// See [`Model::forward_each`].
    fn forward_each(&mut self, batch: &Batch, each: EachRows<'_>) -> Result<(), model::Error>;
    /// See [`Model::set_scales`].
    fn set_scales(&mut self, sequence: SequenceId, scales: &[f32]);
    /// See [`Model::forget`].
    fn forget(&mut self, sequence: SequenceId, from: u32) -> u32;
    /// See [`Model::release`].
    fn release(&mut self, sequence: SequenceId);
    /// See [`Model::rest`].
    fn rest(&self);
    /// Cells of the cache; none if nothing is kept between passes.
    fn n_cells(&self) -> Option<usize>;
    /// Most tokens of a pass.
    fn n_batch(&self) -> usize;
    /// Elements of a row of logits.
    fn n_vocab(&self) -> usize;
    /// Where these tokens first give a value that is not finite, in words; see
    /// [`Model::first_not_finite`].
    fn first_not_finite(&self, sequence: SequenceId, tokens: &[u32]) -> Option<String>;
}

impl Compute for Model {
    fn forward_each(&mut self, batch: &Batch, each: EachRows<'_>) -> Result<(), model::Error> {
        Self::forward_each(self, batch, each)
    }

    fn set_scales(&mut self, sequence: SequenceId, scales: &[f32]) {
        Self::set_scales(self, sequence, scales);
    }

    fn forget(&mut self, sequence: SequenceId, from: u32) -> u32 {
        Self::forget(self, sequence, from)
    }

    fn release(&mut self, sequence: SequenceId) {
        Self::release(self, sequence);
    }

    fn rest(&self) {
        Self::rest(self);
    }

    fn n_cells(&self) -> Option<usize> {
        Some(self.options().n_ctx).filter(|n| *n > 0)
    }

    fn n_batch(&self) -> usize {
        self.options().n_batch
    }

    fn n_vocab(&self) -> usize {
        self.row_width()
    }

    fn first_not_finite(&self, sequence: SequenceId, tokens: &[u32]) -> Option<String> {
        place_of(Self::first_not_finite(self, sequence, tokens))
    }
}

/// Requests that one text of a pass serves, by their places among the running.
type Group = Vec<usize>;

/// What a row of logits is for.
struct Target {
    group: usize,
    /// Place within the answer.
    at: usize,
    /// Which of the group's texts it is of.
    text: usize,
}

/// The model and the requests it serves.
pub(in crate::engine) struct Runner<C> {
    model: C,
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    facts: Facts,
    queue: VecDeque<Filling>,
    /// Those that took part in a pass least lately come first.
    running: Vec<Filling>,
    /// Ids that nobody runs under, each with the next one for a second text.
    free_ids: Vec<SequenceId>,
    /// Requests of a pass that failed, each of which goes alone next.
    suspects: Vec<SequenceId>,
    batch: Batch,
    /// Logits that are just looked at.
    row: Vec<f32>,
}

impl<C: Compute> Runner<C> {
    pub(in crate::engine) fn new(
        model: C,
        tokenizer: Arc<Tokenizer>,
        limits: Limits,
        facts: Facts,
    ) -> Self {
        let ids = 0..limits.n_parallel.max(1) as SequenceId;
        Self {
            model,
            tokenizer,
            limits,
            facts,
            queue: VecDeque::new(),
            running: Vec::new(),
            free_ids: ids.rev().map(|id| 2 * id).collect(),
            suspects: Vec::new(),
            batch: Batch::default(),
            row: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn model(&self) -> &C {
        &self.model
    }

    fn let_go(&mut self) {
        let mut ids = Vec::new();
        let_go(&mut self.running, &self.limits, |f: &Filling| {
            ids.push(f.id);
        });
        let_go(&mut self.queue, &self.limits, |_: &Filling| ());
        ids.into_iter().for_each(|id| self.release(id));
    }

    /// Gives back what a request ran under.
    fn release(&mut self, id: SequenceId) {
        self.model.release(id);
        self.model.release(id + 1);
        self.free_ids.push(id);
        self.suspects.retain(|suspect| *suspect != id);
    }

    /// Lets requests begin in the order of their arrival, as far as there are cells for their texts.
    fn admit(&mut self) {
        let needs = |f: &Filling| {
            let blocks = f.len().div_ceil(BLOCK_LEN as usize);
            blocks * BLOCK_LEN as usize * f.settings.n_texts()
        };
        let mut taken: usize = self.running.iter().map(needs).sum();
        while let Some(next) = self.queue.front() {
            taken += needs(next);
            let is_room = self.model.n_cells().is_none_or(|cells| taken <= cells);
            if self.free_ids.is_empty() || !(is_room || self.running.is_empty()) {
                return;
            }
            let (Some(mut filling), Some(id)) = (self.queue.pop_front(), self.free_ids.pop())
            else {
                return;
            };
            filling.id = id;
            for id in filling.ids() {
                self.model.set_scales(id, &filling.scales);
            }
            filling.answer.start(0);
            tracing::debug!(sequence = id, n_tokens = filling.len(), "begins");
            self.running.push(filling);
        }
    }

    /// Puts the texts of requests into the batch until it is full. Texts that are alike go once.
    fn gather(&mut self) -> (Vec<Group>, Vec<Target>) {
        let (mut groups, mut targets) = (Vec::<Group>::new(), Vec::new());
        let mut room = self.model.n_batch();
        self.batch.clear();
        let alone = self.suspects.last();
        for i in 0..self.running.len() {
            if alone.is_some_and(|id| *id != self.running[i].id) {
                continue;
            }
            let is_twin = |group: &&mut Group| self.running[group[0]].is_twin(&self.running[i]);
            if let Some(group) = groups.iter_mut().find(is_twin) {
                group.push(i);
                continue;
            }
            let filling = &mut self.running[i];
            let kept = filling.kept() as u32;
            let from = filling.ids().map(|id| self.model.forget(id, kept)).min();
            filling.begin_at(from.unwrap_or(0) as usize);
            if filling.n_computed() > room {
                continue;
            }
            room -= filling.n_computed();
            filling.answer.usage.positions += filling.n_computed();
            filling.read(&mut self.batch);
            let texts = 0..filling.settings.n_texts();
            for at in filling.masked() {
                let group = groups.len();
                targets.extend(texts.clone().map(|text| Target { group, at, text }));
            }
            groups.push(vec![i]);
        }
        (groups, targets)
    }

    #[tracing::instrument(level = "trace", target = "phase", skip_all)]
    fn step(&mut self) {
        let (groups, targets) = self.gather();
        let mut failed: Vec<Option<Failure>> = vec![None; self.running.len()];
        let n_vocab = self.model.n_vocab();
        let mut targets = targets.iter();
        let (running, row, mask) = (&mut self.running, &mut self.row, self.facts.mask);
        let mut each = |_: usize, rows: &[f32]| {
            for (logits, target) in rows.chunks_exact(n_vocab).zip(&mut targets) {
                let group = &groups[target.group];
                if !is_complete(row, logits, target.text, &running[group[0]]) {
                    continue;
                }
                row[mask as usize] = f32::NEG_INFINITY;
                for i in group {
                    let looking = || running[*i].look(target.at, row);
                    let result = catch_unwind(AssertUnwindSafe(looking));
                    let fault = match result {
                        Ok(Ok(())) => continue,
                        Ok(Err(error)) => Failure::from(error),
                        Err(_) => Failure::Computation("choosing a token panicked".into()),
                    };
                    failed[*i].get_or_insert(fault);
                }
            }
        };
        match self.model.forward_each(&self.batch, &mut each) {
            Ok(()) => self.settle(&groups, failed),
            Err(error) => self.step_failed(&groups, &error),
        }
    }

    /// Fixes what each request of a pass has chosen, and ends answers.
    fn settle(&mut self, groups: &[Group], mut failed: Vec<Option<Failure>>) {
        self.suspects.pop();
        let mut took_part = vec![false; self.running.len()];
        groups.iter().flatten().for_each(|i| took_part[*i] = true);
        let mut later = Vec::new();
        let all = std::mem::take(&mut self.running);
        for (i, mut filling) in all.into_iter().enumerate() {
            if !took_part[i] {
                self.running.push(filling);
                continue;
            }
            filling.answer.usage.passes += 1;
            let result = match failed[i].take() {
                Some(Failure::NotFinite { fault, .. }) => {
                    let place = self.model.first_not_finite(filling.id, filling.tokens());
                    Err(Failure::NotFinite { fault, place })
                }
                Some(failure) => Err(failure),
                None => Ok(filling.fix(&self.tokenizer)),
            };
            match result {
                Ok(None) => {
                    if filling.kept() == 0 {
                        filling.ids().for_each(|id| self.model.release(id));
                    }
                    later.push(filling);
                }
                Ok(Some(reason)) => self.end(filling, Ok(reason)),
                Err(failure) => self.end(filling, Err(failure)),
            }
        }
        self.running.append(&mut later);
    }

    fn end(&mut self, filling: Filling, result: Result<FinishReason, Failure>) {
        self.release(filling.id);
        match result {
            Ok(reason) => filling.finish(reason),
            Err(failure) => filling.answer.fail(failure),
        }
    }

    /// Has each request of a failed pass go alone, so that only those fail that cannot go on.
    fn step_failed(&mut self, groups: &[Group], error: &model::Error) {
        let taking_part: Vec<usize> = groups.iter().flatten().copied().collect();
        for i in &taking_part {
            let filling = &mut self.running[*i];
            filling.lose();
            filling.ids().for_each(|id| self.model.release(id));
        }
        if let [only] = taking_part.as_slice() {
            tracing::error!(%error, "a step failed; its request ends");
            let filling = self.running.remove(*only);
            let failure = Failure::Computation(error.to_string());
            return self.end(filling, Err(failure));
        }
        tracing::warn!(%error, "a step failed; each of its requests goes alone");
        let ids = taking_part.iter().map(|i| self.running[*i].id);
        self.suspects = ids.collect();
    }
}

/// Takes a row of logits into `row`. With guidance it is complete only with the one of the second
/// text, which it is moved away from: `u + (1 + s) (c - u)`.
fn is_complete(row: &mut Vec<f32>, logits: &[f32], text: usize, filling: &Filling) -> bool {
    let Some(scale) = filling.settings.cfg_scale else {
        row.clear();
        row.extend_from_slice(logits);
        return true;
    };
    if text == 0 {
        row.clear();
        row.extend_from_slice(logits);
        return false;
    }
    let factor = (1.0 + scale) as f32;
    for (guided, blind) in row.iter_mut().zip(logits) {
        *guided = blind + factor * (*guided - blind);
    }
    true
}

impl<C: Compute> Way for Runner<C> {
    fn enqueue(&mut self, submitted: Submitted) {
        match self.facts.settings(&submitted.request, &self.limits) {
            Ok(settings) => self.queue.push_back(Filling::new(submitted, settings)),
            Err(rejected) => {
                let failure = Failure::Computation(rejected.to_string());
                Answer::new(&submitted.request, submitted.caller).fail(failure);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.queue.is_empty()
    }

    fn rest(&self) {
        self.model.rest();
    }

    fn turn(&mut self) {
        self.let_go();
        self.admit();
        if self.running.is_empty() {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| self.step())).is_err() {
            tracing::error!("a step panicked; its requests end");
            for filling in std::mem::take(&mut self.running) {
                let failure = Failure::Computation("the engine panicked".into());
                self.end(filling, Err(failure));
            }
        }
    }
}
