//! Storage of recurrent states.
//!
//! Each part of a recurrent unit's state is one tensor with a row for each stored state. A row of zeros after them
//! is read by new sequences. A state belongs to one position: it can be continued there or dropped, but not rolled
//! back.

use std::collections::HashMap;

use crate::blocks::StateStore;
use crate::plan::Plan;
use lab_base::ggml::{Device, Error, Graph, Result, Tensor};
use lab_base::weights::TensorType;

use super::super::devices::Arenas;

/// Number of pieces of a large row. Threads share the copying of rows, but not that of a single row.
pub const STATE_PIECES: u64 = 16;

/// Minimum length of a piece, in elements: some cache lines.
const MIN_PIECE: u64 = 64;

/// Row indices of a table, one for each sequence.
#[derive(Clone)]
pub(crate) struct RowIds {
    /// Rows `[n_seqs]`.
    pub(crate) rows: Tensor,
    /// Rows of a table whose rows are cut into [`STATE_PIECES`]: `[STATE_PIECES * n_seqs]`.
    pub(crate) pieces: Tensor,
}

impl RowIds {
    /// The index tensors that a graph reads, each with the number of pieces of a row.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&Tensor, u64)> {
        let all = [(&self.rows, 1), (&self.pieces, STATE_PIECES)];
        all.into_iter().filter(|(ids, _)| ids.is_allocated())
    }

    /// A table `[size, n_rows]`, with its rows cut for copying if they are large, and the matching row indices.
    fn of(&self, g: &Graph, table: &Tensor) -> Result<(Tensor, Tensor)> {
        let [size, n_rows, ..] = table.shape();
        match size.is_multiple_of(STATE_PIECES) && size / STATE_PIECES >= MIN_PIECE {
            false => Ok((table.clone(), self.rows.clone())),
            true => {
                let cut = g.reshape(table, [size / STATE_PIECES, STATE_PIECES * n_rows, 1, 1])?;
                Ok((cut, self.pieces.clone()))
            }
        }
    }
}

/// The stored states.
pub(crate) struct States {
    /// Tensors `[size, n_rows + 1]` by path of the unit and name of the part.
    parts: HashMap<(String, &'static str), Tensor>,
    bytes: Vec<u64>,
}

impl States {
    pub(crate) fn new(plan: &Plan, devices: &[Device], n_rows: usize) -> Result<Self> {
        let (mut described, arenas) = Self::describe(plan, devices, n_rows)?;
        described.bytes =
            arenas.allocate(|device, arena| device.allocate(arena, "the states of sequences"))?;
        Ok(described)
    }

    /// The states without memory, and the arenas that describe them.
    pub(crate) fn describe<'d>(
        plan: &Plan,
        devices: &'d [Device],
        n_rows: usize,
    ) -> Result<(Self, Arenas<'d>)> {
        let all: Vec<_> = plan
            .recurrent()
            .flat_map(|(unit, parts)| parts.iter().map(move |part| (unit, part)))
            .collect();
        let mut arenas = Arenas::new(devices, all.len());
        let mut parts = HashMap::with_capacity(all.len());
        for (unit, part) in all {
            let name = format!("{}.state_{}", unit.path, part.name);
            let shape = [part.size, n_rows as u64 + 1];
            let rows = arenas.tensor(unit.device, &name, TensorType::F32, &shape)?;
            parts.insert((unit.path.clone(), part.name), rows);
        }
        let bytes = Vec::new();
        Ok((Self { parts, bytes }, arenas))
    }

    pub(crate) fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// The tables of the states, in the order of their names.
    pub(crate) fn tensors(&self) -> Vec<&Tensor> {
        let mut all: Vec<_> = self.parts.iter().collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all.into_iter().map(|(_, rows)| rows).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

/// The states that a pass reads and writes.
pub(crate) struct PassStates<'a> {
    pub(crate) states: &'a States,
    /// The rows that the sequences of each group read, i32.
    pub(crate) read: Vec<RowIds>,
    /// The rows that the sequences write, i64; none if no state is stored.
    pub(crate) write: Option<RowIds>,
}

impl<'a> PassStates<'a> {
    /// The states of a graph without sequences.
    pub(crate) fn without_rows(states: &'a States) -> Self {
        Self {
            states,
            read: Vec::new(),
            write: None,
        }
    }

    fn part(&self, path: &str, part: &str) -> Result<&Tensor> {
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

impl PassStates<'_> {
    fn ids(&self, path: &str, group: usize) -> Result<&RowIds> {
        self.read.get(group).ok_or_else(|| Error::Arguments {
            op: "state",
            message: format!("{path}: the pass has no group {group} of sequences"),
        })
    }
}

impl StateStore for PassStates<'_> {
    fn rows(&self, path: &str, part: &str, group: usize) -> Result<(Tensor, Tensor)> {
        let ids = self.ids(path, group)?;
        Ok((self.part(path, part)?.clone(), ids.rows.clone()))
    }

    fn read(&self, g: &Graph, path: &str, part: &str, group: usize) -> Result<Tensor> {
        let (table, ids) = (self.part(path, part)?, self.ids(path, group)?);
        let (cut, ids_of_cut) = ids.of(g, table)?;
        let read = g.get_rows(&cut, &ids_of_cut)?;
        g.reshape(&read, [table.shape()[0], ids.rows.elements(), 1, 1])
    }

    fn write(&mut self, g: &Graph, path: &str, part: &str, new: &Tensor) -> Result<()> {
        let Some(write) = &self.write else {
            return Ok(());
        };
        let (cut, ids) = write.of(g, self.part(path, part)?)?;
        let new = match new.is_contiguous() {
            true => new.clone(),
            false => g.cont(new)?,
        };
        let new = g.reshape(&new, [cut.shape()[0], ids.elements(), 1, 1])?;
        let written = g.set_rows(&cut, &new, &ids)?;
        // Right after the unit that computes it: among operations of another device, the scheduler would compute the value
        // there, and at the end the values of all layers would need memory together.
        g.expand(&written)
    }
}
