//! The engine's loop: admit, plan a step, run it, choose tokens, let go of what has ended.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::model::{Batch, Model, SequenceId};
use crate::text::tokenizer::Tokenizer;

use super::constrained::{Fault, Worker};
use super::scheduler::{Waiting, plan_step};
use super::sequence::Sequence;
use super::{FinishReason, Limits, Submitted};

/// The model and the requests it serves.
pub(super) struct Runner {
    model: Model,
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    /// Requests that wait for a place.
    queue: VecDeque<Submitted>,
    /// Requests that run, in the order of their arrival.
    running: Vec<Sequence>,
    /// Ids that nobody runs under.
    free_ids: Vec<SequenceId>,
    batch: Batch,
    /// Computes the masks of constrained answers.
    worker: Worker,
}

impl Runner {
    pub(super) fn new(model: Model, tokenizer: Arc<Tokenizer>, limits: Limits) -> Self {
        let free_ids = (0..limits.n_parallel.max(1) as SequenceId).rev().collect();
        Self {
            model,
            tokenizer,
            limits,
            queue: VecDeque::new(),
            running: Vec::new(),
            free_ids,
            batch: Batch::default(),
            worker: Worker::default(),
        }
    }

    /// Serves requests until the last handle is gone and every answer is complete.
    pub(super) fn run(mut self, mut requests: mpsc::Receiver<Submitted>) {
        loop {
            if self.running.is_empty() && self.queue.is_empty() {
                self.model.rest();
                match requests.blocking_recv() {
                    Some(submitted) => self.queue.push_back(submitted),
                    None => return,
                }
            }
            while self.queue.len() < self.limits.n_queue.max(1) {
                match requests.try_recv() {
                    Ok(submitted) => self.queue.push_back(submitted),
                    Err(_) => break,
                }
            }
            self.admit();
            self.drop_cancelled();
            if self.running.is_empty() {
                continue;
            }
            let step = catch_unwind(AssertUnwindSafe(|| self.step()));
            let failure = match step {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the engine panicked in this step".to_owned(),
            };
            tracing::error!(failure, "a step failed; its requests end");
            self.fail_all(&failure);
        }
    }

    fn admit(&mut self) {
        while let Some(id) = self.free_ids.pop() {
            let Some(submitted) = self.queue.pop_front() else {
                self.free_ids.push(id);
                return;
            };
            let is_cached = self.model.options().n_ctx > 0;
            let n_ctx = self.limits.n_ctx;
            let sequence = Sequence::new(id, submitted, n_ctx, is_cached, &self.worker);
            self.running.push(sequence);
        }
    }

    fn drop_cancelled(&mut self) {
        self.queue.retain(|submitted| !submitted.events.is_closed());
        let mut i = 0;
        while i < self.running.len() {
            if self.running[i].is_cancelled() {
                let sequence = self.running.remove(i);
                tracing::debug!(sequence = sequence.id, "cancelled");
                self.release(sequence.id);
            } else {
                i += 1;
            }
        }
    }

    fn release(&mut self, id: SequenceId) {
        self.model.forget(id, 0);
        self.free_ids.push(id);
    }

    /// Takes in what constraints force, so that it goes into the next pass.
    fn settle(&mut self) {
        let mut ended = Vec::new();
        for (i, sequence) in self.running.iter_mut().enumerate() {
            ended.extend(ending(i, sequence.settle(&self.tokenizer)));
        }
        self.end(ended);
    }

    fn step(&mut self) -> Result<(), crate::model::Error> {
        self.settle();
        if self.running.is_empty() {
            return Ok(());
        }
        let is_whole = self.model.options().n_ctx == 0;
        let waiting: Vec<Waiting> = self
            .running
            .iter()
            .map(|s| Waiting {
                pending: s.pending().len(),
                is_prefill: s.is_prefill(),
                is_whole,
            })
            .collect();
        let shares = plan_step(&waiting, self.model.options().n_batch);
        self.batch.clear();
        for (sequence, share) in self.running.iter().zip(&shares) {
            let pending = sequence.pending();
            for (i, token) in pending[..*share].iter().enumerate() {
                let position = sequence.position() + i as u32;
                let wants_logits = sequence.wants_logits(i);
                self.batch.push(*token, sequence.id, position, wants_logits);
            }
        }
        let n_vocab = self.model.plan().n_vocab as usize;
        let logits = self.model.forward(&self.batch)?;

        let mut rows = logits.chunks_exact(n_vocab);
        let mut ended = Vec::new();
        for (i, (sequence, share)) in self.running.iter_mut().zip(&shares).enumerate() {
            for row in rows.by_ref().take(sequence.n_forced_rows(*share)) {
                sequence.report_forced(row, &self.tokenizer);
            }
            if *share == 0 || !sequence.advance(*share) {
                continue;
            }
            let row = rows.next().unwrap_or_default();
            ended.extend(ending(i, sequence.choose(row, &self.tokenizer)));
        }
        self.end(ended);
        Ok(())
    }

    /// Lets go of sequences that have ended, given by rising index.
    fn end(&mut self, ended: Vec<Ending>) {
        for (i, result) in ended.into_iter().rev() {
            let sequence = self.running.remove(i);
            self.release(sequence.id);
            match result {
                Ok(reason) => sequence.finish(reason),
                Err(fault) => sequence.fail(&fault.to_string()),
            }
        }
    }

    fn fail_all(&mut self, message: &str) {
        for sequence in std::mem::take(&mut self.running) {
            self.release(sequence.id);
            sequence.fail(message);
        }
    }
}

/// A sequence that has ended: its index, and how.
type Ending = (usize, Result<FinishReason, Fault>);

/// The ending of sequence `i`, if it ended.
fn ending(i: usize, result: Result<Option<FinishReason>, Fault>) -> Option<Ending> {
    Some((i, result.transpose()?))
}
