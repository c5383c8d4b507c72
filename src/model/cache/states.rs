//! Recurrent states of sequences.
//!
//! Every part of a recurrent unit's state is one tensor with a row for each state that is kept, and
//! one row of zeros after them, which a new sequence reads. A state belongs to one
//! position: it can be continued there or dropped, not taken back.

use std::collections::HashMap;

use crate::blocks::StateStore;
use crate::ggml::{Device, Error, Graph, Tensor};
use crate::plan::Plan;
use crate::weights::TensorType;

use super::super::devices::Arenas;

/// Rows that large rows are cut into when they are copied: threads share the copying of rows, not of one row.
pub const STATE_PIECES: u64 = 16;

/// Shortest piece, in elements: some cache lines.
const MIN_PIECE: u64 = 64;

/// Which rows of a table: one for each sequence.
#[derive(Clone)]
pub(in crate::model) struct RowIds {
    /// `[n_seqs]`.
    pub(in crate::model) rows: Tensor,
    /// The same of a table whose rows are cut into [`STATE_PIECES`], `[STATE_PIECES * n_seqs]`.
    pub(in crate::model) pieces: Tensor,
}

impl RowIds {
    /// Those that a graph reads, with the number of pieces.
    pub(in crate::model) fn each(&self) -> impl Iterator<Item = (&Tensor, u64)> {
        let all = [(&self.rows, 1), (&self.pieces, STATE_PIECES)];
        all.into_iter().filter(|(ids, _)| ids.is_allocated())
    }

    /// A table `[size, n_rows]` with its rows as they are copied, and their ids.
    fn of(&self, g: &Graph, table: &Tensor) -> Result<(Tensor, Tensor), Error> {
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

/// The rows.
pub(in crate::model) struct States {
    /// `[size, n_rows + 1]` by path and part.
    parts: HashMap<(String, &'static str), Tensor>,
    /// On each device.
    bytes: Vec<u64>,
}

impl States {
    pub(in crate::model) fn new(
        plan: &Plan,
        devices: &[Device],
        n_rows: usize,
    ) -> Result<Self, Error> {
        let (mut described, arenas) = Self::describe(plan, devices, n_rows)?;
        described.bytes =
            arenas.allocate(|device, arena| device.allocate(arena, "the states of sequences"))?;
        Ok(described)
    }

    /// The same without memory, and what describes it.
    pub(in crate::model) fn describe<'d>(
        plan: &Plan,
        devices: &'d [Device],
        n_rows: usize,
    ) -> Result<(Self, Arenas<'d>), Error> {
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

    pub(in crate::model) fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    pub(in crate::model) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

/// The states as a pass reads and writes them.
pub(in crate::model) struct PassStates<'a> {
    pub(in crate::model) states: &'a States,
    /// What the sequences of each group read, i32.
    pub(in crate::model) read: Vec<RowIds>,
    /// What the sequences write, i64; none if nothing is kept.
    pub(in crate::model) write: Option<RowIds>,
    /// Whether they are written right after the unit that they are of. Among operations of other devices the
    /// scheduler would have what is written computed there.
    pub(in crate::model) at_once: bool,
    /// What else has to be computed for the next pass.
    pub(in crate::model) written: Vec<Tensor>,
}

impl<'a> PassStates<'a> {
    /// Those of a graph without sequences.
    pub(in crate::model) fn without_rows(states: &'a States) -> Self {
        Self {
            states,
            read: Vec::new(),
            write: None,
            at_once: false,
            written: Vec::new(),
        }
    }

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

impl PassStates<'_> {
    fn ids(&self, path: &str, group: usize) -> Result<&RowIds, Error> {
        self.read.get(group).ok_or_else(|| Error::Arguments {
            op: "state",
            message: format!("{path}: the pass has no group {group} of sequences"),
        })
    }
}

impl StateStore for PassStates<'_> {
    fn rows(&self, path: &str, part: &str, group: usize) -> Result<(Tensor, Tensor), Error> {
        let ids = self.ids(path, group)?;
        Ok((self.part(path, part)?.clone(), ids.rows.clone()))
    }

    fn read(&self, g: &Graph, path: &str, part: &str, group: usize) -> Result<Tensor, Error> {
        let (table, ids) = (self.part(path, part)?, self.ids(path, group)?);
        let (cut, ids_of_cut) = ids.of(g, table)?;
        let read = g.get_rows(&cut, &ids_of_cut)?;
        g.reshape(&read, [table.shape()[0], ids.rows.elements(), 1, 1])
    }

    fn write(&mut self, g: &Graph, path: &str, part: &str, new: &Tensor) -> Result<(), Error> {
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
        match self.at_once {
            true => g.expand(&written)?,
            false => self.written.push(written),
        }
        Ok(())
    }
}
