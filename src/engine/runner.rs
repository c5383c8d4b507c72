//! The engine's loop: admit, plan a step, run it, choose tokens, let go of what has ended.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::model::{self, Batch, Model, NotFinite, Resumed, SequenceId};
use crate::plan::BLOCK_LEN;
use crate::text::tokenizer::Tokenizer;

use super::constrained::{Fault, Worker};
use super::scheduler::{Budget, Job, Step, can_begin, plan_step};
use super::sequence::{Row, Sequence};
use super::way::{Way, let_go};
use super::{Failure, FinishReason, Limits, Submitted};

const BLOCK: usize = BLOCK_LEN as usize;

/// Most guesses of a step, of all requests together: each costs about a token's computation.
const N_DRAFTED: usize = 32;

/// What runs passes.
pub(super) trait Compute {
    /// See [`Model::forward`] and [`Model::results`]: logits, and the stream where it was wanted.
    fn forward(&mut self, batch: &Batch) -> Result<(&[f32], &[f32]), model::Error>;
    /// See [`Model::set_scales`].
    fn set_scales(&mut self, sequence: SequenceId, scales: &[f32]);
    /// See [`Model::resume`].
    fn resume(&mut self, sequence: SequenceId, tokens: &[u32]) -> Resumed;
    /// See [`Model::next`].
    fn next(&self, sequence: SequenceId) -> u32;
    /// See [`Model::forget`].
    fn forget(&mut self, sequence: SequenceId, from: u32) -> u32;
    /// See [`Model::release`].
    fn release(&mut self, sequence: SequenceId);
    /// See [`Model::rest`].
    fn rest(&self);
    /// Blocks that can be taken; none if nothing is kept between passes.
    fn n_blocks(&self) -> Option<usize>;
    /// Most tokens of a pass.
    fn n_batch(&self) -> usize;
    /// Elements of a row of logits.
    fn n_vocab(&self) -> usize;
    /// Whether a state is kept of each sequence, which cannot be taken back.
    fn has_states(&self) -> bool;
    /// Whether sequences share what is known of their tokens.
    fn is_shared(&self) -> bool;
    /// Where these tokens first give a value that is not finite, in words; see
    /// [`Model::first_not_finite`].
    fn first_not_finite(&self, sequence: SequenceId, tokens: &[u32]) -> Option<String>;
}

impl Compute for Model {
    fn forward(&mut self, batch: &Batch) -> Result<(&[f32], &[f32]), model::Error> {
        Self::forward(self, batch)?;
        Ok(self.results())
    }

    fn set_scales(&mut self, sequence: SequenceId, scales: &[f32]) {
        Self::set_scales(self, sequence, scales);
    }

    fn resume(&mut self, sequence: SequenceId, tokens: &[u32]) -> Resumed {
        Self::resume(self, sequence, tokens)
    }

    fn next(&self, sequence: SequenceId) -> u32 {
        Self::next(self, sequence)
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

    fn n_blocks(&self) -> Option<usize> {
        (self.options().n_ctx > 0).then(|| self.free_cells() / BLOCK)
    }

    fn n_batch(&self) -> usize {
        self.options().n_batch
    }

    fn n_vocab(&self) -> usize {
        self.row_width()
    }

    fn has_states(&self) -> bool {
        Self::has_states(self)
    }

    fn is_shared(&self) -> bool {
        Self::is_shared(self)
    }

    fn first_not_finite(&self, sequence: SequenceId, tokens: &[u32]) -> Option<String> {
        place_of(Self::first_not_finite(self, sequence, tokens))
    }
}

/// What a search for the first value that is not finite says in an answer's error.
pub(super) fn place_of(found: Result<Option<NotFinite>, model::Error>) -> Option<String> {
    match found {
        Ok(found) => found.map(|found| found.to_string()),
        Err(error) => {
            tracing::warn!(%error, "where values begin not to be finite was not found");
            None
        }
    }
}

/// The model and the requests it serves.
pub(super) struct Runner<C> {
    model: C,
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    /// Requests that wait for a place.
    queue: VecDeque<Sequence>,
    /// Requests that run, in the order of their arrival.
    running: Vec<Sequence>,
    /// Ids that nobody runs under.
    free_ids: Vec<SequenceId>,
    /// Sequences of a step that failed, each of which goes alone next.
    suspects: Vec<SequenceId>,
    batch: Batch,
    /// Computes the masks of constrained answers.
    worker: Worker,
    /// Steps so far.
    turn: usize,
}

impl<C: Compute> Runner<C> {
    pub(super) fn new(model: C, tokenizer: Arc<Tokenizer>, mut limits: Limits) -> Self {
        limits.n_parallel = limits.n_parallel.max(1);
        let free_ids = (0..limits.n_parallel as SequenceId).rev().collect();
        Self {
            model,
            tokenizer,
            limits,
            queue: VecDeque::new(),
            running: Vec::new(),
            free_ids,
            suspects: Vec::new(),
            batch: Batch::default(),
            worker: Worker::default(),
            turn: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn model(&self) -> &C {
        &self.model
    }

    /// Lets go of requests that nobody waits for and of those that take too long.
    fn let_go(&mut self) {
        let mut ids = Vec::new();
        let_go(&mut self.running, &self.limits, |s: &Sequence| {
            ids.push(s.id);
        });
        let_go(&mut self.queue, &self.limits, |_: &Sequence| ());
        ids.into_iter().for_each(|id| self.release(id));
    }

    /// Lets requests begin, in the order of their arrival, as far as there is room. One whose text
    /// another just reads waits for that.
    fn admit(&mut self) {
        let mut at = 0;
        while at < self.queue.len() && !self.free_ids.is_empty() {
            let n_tokens = self.queue[at].tokens().len();
            if !can_begin(&self.jobs(), n_tokens, self.model.n_blocks()) {
                return;
            }
            if self.follows(at) {
                at += 1;
                continue;
            }
            let (Some(mut sequence), Some(id)) = (self.queue.remove(at), self.free_ids.pop())
            else {
                return;
            };
            self.begin(&mut sequence, id);
            self.running.push(sequence);
        }
    }

    fn begin(&mut self, sequence: &mut Sequence, id: SequenceId) {
        self.model.set_scales(id, sequence.scales());
        if self.model.n_blocks().is_none() || sequence.is_contrastive() {
            return sequence.begin(id, &Resumed::default(), Vec::new());
        }
        let known = self.model.resume(id, sequence.tokens());
        let n_tokens = sequence.tokens().len();
        tracing::debug!(
            sequence = id,
            n_tokens,
            n_cached = known.n_cached,
            reason = %known.miss,
            "begins"
        );
        let mut cuts = Vec::new();
        if self.model.has_states() {
            // A later request may go on where this text leaves a known one, and where it ends.
            cuts.push((n_tokens - 1) / BLOCK * BLOCK);
            cuts.push(known.n_known);
            cuts.retain(|cut| *cut > known.n_cached);
            cuts.dedup();
        }
        sequence.begin(id, &known, cuts);
    }

    /// Whether a request that waits begins with a text that another is about to have read.
    fn follows(&mut self, at: usize) -> bool {
        if !self.model.is_shared() || self.queue[at].is_contrastive() {
            return false;
        }
        let has_states = self.model.has_states();
        let (tokens, scales) = (self.queue[at].tokens(), self.queue[at].scales());
        let mut follows = false;
        let is_alike = |s: &&mut Sequence| s.is_reading() && s.scales() == scales;
        for earlier in self.running.iter_mut().filter(is_alike) {
            let both = tokens.iter().zip(earlier.tokens());
            let n_same = both.take_while(|(a, b)| a == b).count();
            let n_shared = n_same.min(tokens.len() - 1) / BLOCK * BLOCK;
            if n_shared > earlier.n_cached() {
                follows = true;
                if has_states {
                    earlier.cut_at(n_shared);
                }
            }
        }
        follows
    }

    fn release(&mut self, id: SequenceId) {
        self.model.release(id);
        self.free_ids.push(id);
        self.suspects.retain(|suspect| *suspect != id);
    }

    fn jobs(&self) -> Vec<Job> {
        let is_whole = self.model.n_blocks().is_none();
        let job = |sequence: &Sequence| sequence.job(is_whole, BLOCK);
        self.running.iter().map(job).collect()
    }

    /// Tokens of each running request in the next pass.
    #[tracing::instrument(name = "schedule", level = "trace", target = "phase", skip_all)]
    fn shares(&mut self) -> Vec<usize> {
        self.running.iter_mut().for_each(Sequence::guess);
        loop {
            let mut jobs = self.jobs();
            let budget = Budget {
                n_tokens: self.model.n_batch(),
                n_prompt: self.limits.n_prompt.max(1),
                n_drafted: N_DRAFTED,
                n_blocks: self.model.n_blocks(),
            };
            let suspect = self.suspects.last().copied();
            let alone = suspect.and_then(|id| self.running.iter().position(|s| s.id == id));
            if let Some(alone) = alone {
                jobs = vec![jobs[alone]];
            }
            match (plan_step(&jobs, &budget, self.turn), alone) {
                (Step::Run(shares), None) => return shares,
                (Step::Run(shares), Some(_)) if shares[0] == 0 => drop(self.suspects.pop()),
                (Step::Run(shares), Some(alone)) => {
                    let mut all = vec![0; self.running.len()];
                    all[alone] = shares[0];
                    return all;
                }
                (Step::Preempt(at), _) => self.preempt(at),
            }
        }
    }

    /// Lets a request wait again, so that others have its blocks. What it read is remembered while
    /// there is room.
    fn preempt(&mut self, at: usize) {
        let mut sequence = self.running.remove(at);
        tracing::debug!(sequence = sequence.id, "makes room");
        self.release(sequence.id);
        sequence.suspend();
        self.queue.push_front(sequence);
    }

    #[tracing::instrument(level = "trace", target = "phase", skip_all)]
    fn step(&mut self) {
        self.take_forced();
        if self.running.is_empty() {
            return;
        }
        let shares = self.shares();
        self.batch.clear();
        for (sequence, share) in self.running.iter_mut().zip(&shares) {
            if *share > 0 {
                sequence.read(*share, &mut self.batch);
            }
        }
        if self.batch.is_empty() {
            // Only a request that is alone gets here, and what it needs is more than there is.
            let full = "there is not enough room in the cache";
            self.end(0, Err(Failure::Computation(full.into())));
            return;
        }
        let n_vocab = self.model.n_vocab();
        match self.model.forward(&self.batch) {
            Ok((logits, hidden)) => {
                let n_embd = hidden.len() / self.batch.n_outputs().max(1);
                let logits = logits.chunks_exact(n_vocab).enumerate();
                let rows = logits.map(|(i, logits)| Row {
                    logits,
                    hidden: &hidden[i * n_embd..(i + 1) * n_embd],
                });
                let ended = choose(&mut self.running, &shares, rows, &self.tokenizer);
                self.settle(&shares, ended);
            }
            Err(error) => self.step_failed(&shares, &error),
        }
    }

    /// Takes in what constraints force, so that it goes into the next pass.
    fn take_forced(&mut self) {
        let mut ended = Vec::new();
        for (i, sequence) in self.running.iter_mut().enumerate() {
            ended.extend(ending(i, sequence.take_forced(&self.tokenizer)));
        }
        self.end_all(ended);
    }

    /// Brings the cache in line with what was chosen, and ends answers.
    fn settle(&mut self, shares: &[usize], ended: Vec<Ending>) {
        let is_kept = self.model.n_blocks().is_some();
        for (sequence, _) in self.running.iter_mut().zip(shares).filter(|(_, n)| **n > 0) {
            if !is_kept {
                // All tokens are read again in every pass.
                sequence.set_cached(0);
            } else if self.model.next(sequence.id) as usize > sequence.n_cached() {
                let n = self.model.forget(sequence.id, sequence.n_cached() as u32);
                sequence.set_cached(n as usize);
            }
        }
        self.suspects.pop();
        self.end_all(ended);
    }

    /// Lets go of requests that have ended, given by rising index.
    fn end_all(&mut self, ended: Vec<Ending>) {
        for (at, result) in ended.into_iter().rev() {
            self.end(at, result);
        }
    }

    /// Has each request of a failed step go alone, so that only those fail that cannot go on.
    fn step_failed(&mut self, shares: &[usize], error: &model::Error) {
        let taking_part = || (0..shares.len()).filter(|i| shares[*i] > 0);
        if taking_part().count() == 1 {
            tracing::error!(%error, "a step failed; its request ends");
            let at = taking_part().next().unwrap_or_default();
            return self.end(at, Err(Failure::Computation(error.to_string())));
        }
        tracing::warn!(%error, "a step failed; each of its requests goes alone");
        self.suspects = taking_part().map(|i| self.running[i].id).collect();
        let is_kept = self.model.n_blocks().is_some();
        for sequence in self.running.iter_mut().filter(|_| is_kept) {
            match self.model.next(sequence.id) {
                0 if !sequence.is_contrastive() => {
                    let known = self.model.resume(sequence.id, sequence.tokens());
                    sequence.begin(sequence.id, &known, Vec::new());
                }
                n => sequence.set_cached(n as usize),
            }
        }
    }

    fn end(&mut self, at: usize, result: Result<FinishReason, Failure>) {
        let sequence = self.running.remove(at);
        let result = result.map_err(|failure| match failure {
            Failure::NotFinite { fault, .. } => {
                // What is kept of it would spoil the answers that begin like it.
                if self.model.n_blocks().is_some() && !self.model.has_states() {
                    self.model.forget(sequence.id, 0);
                }
                let place = self.model.first_not_finite(sequence.id, sequence.tokens());
                Failure::NotFinite { fault, place }
            }
            other => other,
        });
        self.release(sequence.id);
        match result {
            Ok(reason) => sequence.finish(reason),
            Err(failure) => sequence.answer.fail(failure),
        }
    }
}

impl<C: Compute> Way for Runner<C> {
    fn enqueue(&mut self, mut submitted: Submitted) {
        if self.model.has_states() || self.model.n_blocks().is_none() {
            // What is guessed wrong could not be taken back.
            submitted.request.n_drafted = Some(0);
        }
        let sequence = Sequence::new(submitted, &self.limits, &self.worker);
        self.queue.push_back(sequence);
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
        self.turn = self.turn.wrapping_add(1);
        if catch_unwind(AssertUnwindSafe(|| self.step())).is_err() {
            tracing::error!("a step panicked; its requests end");
            for sequence in std::mem::take(&mut self.running) {
                self.release(sequence.id);
                sequence
                    .answer
                    .fail(Failure::Computation("the engine panicked".into()));
            }
        }
    }
}

/// A request that has ended: its index, and how.
type Ending = (usize, Result<FinishReason, Failure>);

/// The ending of request `i`, if it ended.
fn ending(i: usize, result: Result<Option<FinishReason>, Fault>) -> Option<Ending> {
    let result = result.transpose()?;
    Some((i, result.map_err(Failure::from)))
}

/// Chooses tokens for the sequences of a pass from its rows of logits, which are in their order.
/// Returns those that end, by their places.
fn choose<'l>(
    running: &mut [Sequence],
    shares: &[usize],
    mut rows: impl Iterator<Item = Row<'l>>,
    tokenizer: &Tokenizer,
) -> Vec<Ending> {
    let mut ended = Vec::new();
    for (i, (sequence, share)) in running.iter_mut().zip(shares).enumerate() {
        let own: Vec<Row<'_>> = rows.by_ref().take(sequence.n_rows(*share)).collect();
        if *share == 0 {
            continue;
        }
        let advance = AssertUnwindSafe(|| sequence.advance(*share, own.into_iter(), tokenizer));
        match catch_unwind(advance) {
            Ok(result) => ended.extend(ending(i, result)),
            Err(_) => {
                let panicked = "choosing a token panicked";
                ended.push((i, Err(Failure::Computation(panicked.into()))));
            }
        }
    }
    ended
}
