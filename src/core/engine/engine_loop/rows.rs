//! Hands the rows of a pass to its requests, on several threads where that is worth their start.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rayon::prelude::*;

use crate::engine::event::{Failure, FinishReason};
use crate::engine::sequence::Sequence;
use crate::engine::strategy::{OutputRow, RowUse};
use crate::model::{CapturedRow, NextPass, PassRow, PassSink, SequenceId};
use lab_sampling::RowLogits;

use super::ahead::next_pass;
use super::{EngineRequest, RequestGroup};

/// Number of rows with the highest logits from which on two or three threads take them; a row takes some microseconds.
const SHARED_ROWS: usize = 96;

/// The same for more threads.
const SHARED_ROWS_OF_MANY: usize = 32;

/// The requests of a step, as receivers of its pass.
pub(super) struct StepSink<'a> {
    pub(super) groups: &'a [RequestGroup],
    /// For each row its group, and its token's place.
    pub(super) rows: Vec<(usize, (SequenceId, u32))>,
    pub(super) active: &'a mut [EngineRequest],
    pub(super) queue: &'a mut VecDeque<EngineRequest>,
    pub(super) awaiting_lens: &'a mut [(Sequence, FinishReason)],
    /// The first fault of each request.
    pub(super) faults: &'a mut [Option<Failure>],
    /// Logits that are computed from several rows.
    pub(super) buffer: &'a mut Vec<f32>,
    pub(super) captured_rows: &'a mut Vec<CapturedRow>,
    /// Whether another completion may start.
    pub(super) has_room: bool,
    /// Whether the step reads one request of those of a failed step.
    pub(super) is_retry: bool,
    /// Whether the events of the step before were delivered while devices computed.
    pub(super) is_delivered: bool,
}

impl PassSink for StepSink<'_> {
    fn launched(&mut self) -> NextPass {
        deliver(self.active, self.queue, self.awaiting_lens);
        self.is_delivered = true;
        if self.is_retry {
            return NextPass::default();
        }
        let waits = !self.queue.is_empty();
        next_pass(self.groups, self.active, waits, self.has_room)
    }

    fn rows(&mut self, found: &[(usize, PassRow<'_>)]) -> Vec<usize> {
        let requests = self.active.iter_mut().zip(self.faults.iter_mut());
        let mut free: Vec<_> = requests.map(Some).collect();
        let mut tasks: Vec<Option<RowTask<'_>>> = self.groups.iter().map(|_| None).collect();
        for (number, (at, row)) in found.iter().enumerate() {
            let Some((group, place)) = self.rows.get(*at).copied() else {
                continue;
            };
            let task = tasks[group].get_or_insert_with(|| {
                let members = self.groups[group].members.iter();
                RowTask::of(members.filter_map(|i| free[*i].take()).collect())
            });
            task.rows.push(TaskRow {
                number,
                place,
                row: *row,
            });
        }
        let mut tasks: Vec<RowTask<'_>> = tasks.into_iter().flatten().collect();
        let are_joined = self.groups.iter().any(|group| group.is_whole);
        take_all(&mut tasks, are_joined, self.buffer);
        let mut needs_all = Vec::new();
        for task in tasks {
            self.captured_rows.extend(task.captured_rows);
            needs_all.extend(task.needs_all);
        }
        needs_all
    }
}

/// Delivers the events of requests.
pub(super) fn deliver(
    active: &mut [EngineRequest],
    queue: &mut VecDeque<EngineRequest>,
    awaiting_lens: &mut [(Sequence, FinishReason)],
) {
    let awaiting_lens = awaiting_lens.iter_mut().map(|(sequence, _)| sequence);
    let requests = active.iter_mut().chain(queue);
    let sequences = requests.map(|request| &mut request.sequence);
    for sequence in sequences.chain(awaiting_lens) {
        sequence.answer.deliver();
    }
}

/// The requests that share rows of a pass, with those rows.
struct RowTask<'a> {
    /// The first one makes the logits that all choose from.
    members: Vec<(&'a mut EngineRequest, &'a mut Option<Failure>)>,
    rows: Vec<TaskRow<'a>>,
    /// Rows that are needed whole, by their numbers.
    needs_all: Vec<usize>,
    /// Captured logits.
    captured_rows: Vec<CapturedRow>,
}

struct TaskRow<'a> {
    /// The number of the row among those that the model handed out together.
    number: usize,
    place: (SequenceId, u32),
    row: PassRow<'a>,
}

/// Lets all requests take their rows. `buffer` keeps logits that are made of several rows, until the last of them, which may come with
/// later rows; no rows `are_joined` otherwise.
fn take_all(tasks: &mut [RowTask<'_>], are_joined: bool, buffer: &mut Vec<f32>) {
    // Where the processor computes, its threads wait for the next pass at full speed: others would wait for them.
    let rows = tasks.iter().flat_map(|task| &task.rows);
    let n_top = rows.filter(|of| matches!(of.row.logits, RowLogits::Top(_)));
    let n_least = match rayon::current_num_threads() {
        0..4 => SHARED_ROWS,
        _ => SHARED_ROWS_OF_MANY,
    };
    match !are_joined && n_top.count() >= n_least {
        true => tasks
            .par_iter_mut()
            .for_each_init(Vec::new, |buffer, task| task.run(buffer)),
        false => tasks.iter_mut().for_each(|task| task.run(buffer)),
    }
}

impl<'a> RowTask<'a> {
    /// Requests that share rows, without any yet.
    fn of(members: Vec<(&'a mut EngineRequest, &'a mut Option<Failure>)>) -> Self {
        Self {
            members,
            rows: Vec::new(),
            needs_all: Vec::new(),
            captured_rows: Vec::new(),
        }
    }

    fn run(&mut self, buffer: &mut Vec<f32>) {
        let is_shared = self.members.len() > 1;
        for TaskRow { number, place, row } in &self.rows {
            let Some((first, fault)) = self.members.first_mut() else {
                return;
            };
            let (EngineRequest { sequence, strategy }, (id, position)) = (&mut **first, *place);
            let logits = match row.logits {
                RowLogits::All(logits) => logits,
                // A shared row and a recorded one are read whole.
                RowLogits::Top(_) if is_shared || sequence.recorder.is_some() => {
                    self.needs_all.push(*number);
                    continue;
                }
                RowLogits::Top(_) if fault.is_some() => continue,
                RowLogits::Top(top) => {
                    let take = || strategy.take_top(sequence, position as usize, top);
                    if guarded(fault, take) == Some(RowUse::NeedsAll) {
                        self.needs_all.push(*number);
                    }
                    continue;
                }
            };
            if let Some(recorder) = &sequence.recorder {
                self.captured_rows.extend(recorder.logits(*place, logits));
            }
            let mut output = OutputRow {
                part: (id - sequence.id) as usize,
                position: position as usize,
                logits,
                hidden: row.hidden,
            };
            let Some(logits) = strategy.logits(&output, buffer) else {
                continue;
            };
            output.logits = logits;
            for (member, fault) in &mut self.members {
                let EngineRequest { sequence, strategy } = &mut **member;
                if fault.is_none() {
                    guarded(fault, || strategy.take(sequence, &output));
                }
            }
        }
    }
}

/// What `take` gives; none if it fails or panics, with the failure as the fault.
fn guarded<R>(fault: &mut Option<Failure>, take: impl FnOnce() -> Result<R, Failure>) -> Option<R> {
    let panicked = |_| Err(Failure::Computation("choosing a token panicked".into()));
    match catch_unwind(AssertUnwindSafe(take)).unwrap_or_else(panicked) {
        Ok(taken) => Some(taken),
        Err(failure) => {
            *fault = Some(failure);
            None
        }
    }
}
