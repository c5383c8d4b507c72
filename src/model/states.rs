//! What is kept of each sequence beside keys and values: who holds which row, and the rows.
//!
//! Every part of a recurrent unit's state is one tensor with a row for each sequence that may run,
//! and one row of zeros behind them, which a sequence reads that begins. A state belongs to one
//! position: it can be continued there or dropped, not taken back.

use std::collections::HashMap;

use crate::blocks::StateStore;
use crate::ggml::{Arena, Device, Error, Graph, Tensor};
use crate::plan::Plan;
use crate::weights::TensorType;

use super::SequenceId;

/// Who holds which row.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// The sequence in each row and its next position.
    slots: Vec<Option<(SequenceId, u32)>>,
}

impl Slots {
    pub(super) fn new(n_seqs: usize) -> Self {
        Self {
            slots: vec![None; n_seqs],
        }
    }

    /// The row of zeros.
    pub(super) fn nothing(&self) -> usize {
        self.slots.len()
    }

    /// The row of a sequence.
    pub(super) fn find(&self, sequence: SequenceId) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| slot.is_some_and(|(s, _)| s == sequence))
    }

    /// The position at which a sequence goes on; 0 if nothing is kept of it.
    pub(super) fn next(&self, sequence: SequenceId) -> u32 {
        self.find(sequence)
            .and_then(|row| self.slots[row])
            .map_or(0, |(_, next)| next)
    }

    /// The row of a sequence, a free one if it has none yet; none if all are taken.
    pub(super) fn take(&mut self, sequence: SequenceId) -> Option<usize> {
        let row = self
            .find(sequence)
            .or_else(|| self.slots.iter().position(Option::is_none))?;
        self.slots[row].get_or_insert((sequence, 0));
        Some(row)
    }

    /// Notes where a sequence goes on.
    pub(super) fn advance(&mut self, sequence: SequenceId, next: u32) {
        if let Some(row) = self.find(sequence) {
            self.slots[row] = Some((sequence, next));
        }
    }

    /// Drops what is kept of a sequence.
    pub(super) fn release(&mut self, sequence: SequenceId) {
        if let Some(row) = self.find(sequence) {
            self.slots[row] = None;
        }
    }
}

/// The rows.
pub(super) struct States {
    /// `[size, n_seqs + 1]` by path and part.
    parts: HashMap<(String, &'static str), Tensor>,
    bytes: usize,
}

impl States {
    pub(super) fn new(plan: &Plan, n_seqs: usize) -> Result<Self, Error> {
        let all: Vec<_> = plan
            .recurrent()
            .flat_map(|(unit, parts)| parts.iter().map(move |part| (unit, part)))
            .collect();
        let arena = Arena::new(all.len(), 0)?;
        let mut parts = HashMap::with_capacity(all.len());
        for (unit, part) in all {
            let name = format!("{}.state_{}", unit.path, part.name);
            let shape = [part.size, n_seqs as u64 + 1];
            let rows = arena.tensor(&name, TensorType::F32, &shape)?;
            parts.insert((unit.path.clone(), part.name), rows);
        }
        let bytes = if parts.is_empty() {
            0
        } else {
            Device::cpu()?.allocate(&arena, "the states of sequences")?
        };
        Ok(Self { parts, bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

/// The states as a pass reads and writes them.
pub(super) struct PassStates<'a> {
    pub(super) states: &'a States,
    /// Row that each sequence reads, i32 `[n_seqs]`.
    pub(super) read: Option<Tensor>,
    /// Row that each sequence writes, i64 `[n_seqs]`; none if nothing is kept.
    pub(super) write: Option<Tensor>,
    /// What has to be computed for the next pass.
    pub(super) kept: Vec<Tensor>,
}

impl PassStates<'_> {
    fn part(&self, path: &str, part: &str) -> Result<&Tensor, Error> {
        let found = self
            .states
            .parts
            .iter()
            .find(|((p, n), _)| p == path && *n == part);
        found.map(|(_, rows)| rows).ok_or_else(|| Error::Arguments {
            op: "state",
            message: format!("{path} keeps no `{part}`"),
        })
    }
}

impl StateStore for PassStates<'_> {
    fn rows(&self, path: &str, part: &str) -> Result<(Tensor, Tensor), Error> {
        let Some(read) = &self.read else {
            return Err(Error::Arguments {
                op: "state",
                message: format!("{path}: the pass has no sequences"),
            });
        };
        Ok((self.part(path, part)?.clone(), read.clone()))
    }

    fn keep(&mut self, g: &Graph, path: &str, part: &str, new: &Tensor) -> Result<(), Error> {
        let Some(write) = &self.write else {
            return Ok(());
        };
        let kept = g.set_rows(self.part(path, part)?, new, write)?;
        self.kept.push(kept);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_keeps_its_row_until_it_is_released() {
        let mut slots = Slots::new(2);
        assert_eq!((slots.take(7), slots.take(9)), (Some(0), Some(1)));
        assert_eq!((slots.take(7), slots.take(8)), (Some(0), None));
        slots.advance(9, 5);
        assert_eq!((slots.next(9), slots.next(8)), (5, 0));
        slots.release(7);
        assert_eq!((slots.take(8), slots.next(8)), (Some(0), 0));
    }
}
