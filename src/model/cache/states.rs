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
    /// Row that each sequence reads, i32 `[n_seqs]` for each group.
    pub(in crate::model) read: Vec<Tensor>,
    /// Row that each sequence writes, i64 `[n_seqs]`; none if nothing is kept.
    pub(in crate::model) write: Option<Tensor>,
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

impl StateStore for PassStates<'_> {
    fn rows(&self, path: &str, part: &str, group: usize) -> Result<(Tensor, Tensor), Error> {
        let Some(read) = self.read.get(group) else {
            return Err(Error::Arguments {
                op: "state",
                message: format!("{path}: the pass has no group {group} of sequences"),
            });
        };
        Ok((self.part(path, part)?.clone(), read.clone()))
    }

    fn write(&mut self, g: &Graph, path: &str, part: &str, new: &Tensor) -> Result<(), Error> {
        let Some(write) = &self.write else {
            return Ok(());
        };
        let written = g.set_rows(self.part(path, part)?, new, write)?;
        match self.at_once {
            true => g.expand(&written)?,
            false => self.written.push(written),
        }
        Ok(())
    }
}
