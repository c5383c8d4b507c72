//! Hands the rows of a pass to its requests, on several threads where that is worth their start.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rayon::prelude::*;

use crate::engine::event::Failure;
use crate::engine::strategy::{OutputRow, RowUse};
use crate::model::{CapturedRow, PassRow, SequenceId};
use lab_sampling::RowLogits;

use super::EngineRequest;

/// Logits that a thread looks at in the time that starting to share work takes.
const LOGITS_OF_START: usize = 1 << 18;
/// The time that choosing among a few logits takes, in logits that are looked at.
const LOGITS_OF_CHOICE: usize = 1 << 13;

/// The requests that share rows of a pass, with those rows.
pub(super) struct RowTask<'a> {
    /// The first one makes the logits that all choose from.
    pub(super) members: Vec<(&'a mut EngineRequest, &'a mut Option<Failure>)>,
    pub(super) rows: Vec<TaskRow<'a>>,
    /// Rows that are needed whole, by their numbers.
    pub(super) needs_all: Vec<usize>,
    /// Captured logits.
    pub(super) captured_rows: Vec<CapturedRow>,
}

pub(super) struct TaskRow<'a> {
    /// The number of the row among those that the model handed out together.
    pub(super) number: usize,
    pub(super) place: (SequenceId, u32),
    pub(super) row: PassRow<'a>,
}

/// Lets all requests take their rows. `buffer` keeps logits that are made of several rows, until the last of them, which may come with
/// later rows; no rows `are_joined` otherwise.
pub(super) fn take_all(tasks: &mut [RowTask<'_>], are_joined: bool, buffer: &mut Vec<f32>) {
    let logits = tasks.iter().flat_map(|task| {
        let logits = |of: &TaskRow<'_>| match of.row.logits {
            RowLogits::All(logits) => logits.len(),
            RowLogits::Top(_) => LOGITS_OF_CHOICE,
        };
        task.rows.iter().map(logits)
    });
    match !are_joined && tasks.len() > 1 && logits.sum::<usize>() > 4 * LOGITS_OF_START {
        true => tasks
            .par_iter_mut()
            .for_each_init(Vec::new, |buffer, task| task.run(buffer)),
        false => tasks.iter_mut().for_each(|task| task.run(buffer)),
    }
}

impl<'a> RowTask<'a> {
    /// Requests that share rows, without any yet.
    pub(super) fn of(members: Vec<(&'a mut EngineRequest, &'a mut Option<Failure>)>) -> Self {
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
