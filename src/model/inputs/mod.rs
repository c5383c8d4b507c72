//! The inputs of a pass: each kind is a type with its shape, how it is made and how it is written.
//!
//! Inputs that the graph does not read have no memory and are not written.

mod attention;
mod derived;
mod rows;

pub(super) use attention::{KeyShape, VisibleKeys, table_len};
pub(super) use derived::Derived;
pub(super) use rows::AdapterScales;

use std::collections::HashMap;

use crate::blocks::KeyValueStore;
use crate::blocks::selection::Selection;
use crate::ggml::{Error, Executor, Graph};
use crate::plan::Plan;

use super::adapters::Adapters;
use super::batch::Batch;
use super::cache::states::PassStates;
use super::cache::store::{CachedStore, PassStore};
use super::cache::{Allocated, BlockManager};
use super::shape::{Shape, Sources};
use attention::ViewInput;
use rows::{KvSlots, OutputRows, StateRows, Tokens};

/// What is written into the inputs of a pass.
pub(super) struct PassData<'a> {
    pub(super) batch: &'a Batch,
    /// Slots and state rows of the pass.
    pub(super) allocated: &'a Allocated,
    /// Keys that its queries see.
    pub(super) keys: &'a VisibleKeys,
    pub(super) block_manager: &'a BlockManager,
    pub(super) adapters: &'a Adapters,
}

/// All inputs of the graph of a pass.
pub(super) struct Inputs {
    pub(super) tokens: Tokens,
    /// Rows that want a result; none if all or no row does.
    pub(super) output_rows: Option<OutputRows>,
    /// For each KV group, with a cache.
    slots: Vec<KvSlots>,
    /// For each KV group.
    views: Vec<ViewInput>,
    /// Where the model has recurrent states.
    states: Option<StateRows>,
    pub(super) scales: AdapterScales,
    pub(super) derived: Derived,
}

/// How blocks of positions of a KV group are selected, where they are.
fn spans_of(plan: &Plan, group: usize) -> Option<Selection> {
    let of_group = plan
        .key_values()
        .filter(|(_, rows)| rows.cache == group && rows.index > 0);
    let selections = of_group.filter_map(|(unit, _)| plan.selection(unit));
    let mut read = selections.map(|unit| Selection::read(&unit.options));
    read.find(|selection| selection.span > 1)
}

impl Inputs {
    /// The inputs of the graph of a shape.
    pub(super) fn new(g: &Graph, sources: &Sources<'_>, shape: &Shape) -> Result<Self, Error> {
        let (plan, options) = (sources.plan, sources.options);
        let n = shape.n_tokens as u64;
        let some_rows = shape.n_outputs > 0 && shape.n_outputs < shape.n_tokens;
        let groups = || plan.caches.iter().enumerate();
        Ok(Self {
            tokens: Tokens::new(g, n, plan.n_vocab)?,
            output_rows: match some_rows {
                true => Some(OutputRows::new(g, shape.n_outputs as u64, n)?),
                false => None,
            },
            slots: groups()
                .filter(|_| options.n_ctx > 0)
                .map(|(i, group)| KvSlots::new(g, &group.name, n, sources.n_slots[i] as u64))
                .collect::<Result<_, _>>()?,
            views: groups()
                .map(|(i, group)| {
                    let of_blocks = spans_of(plan, i);
                    ViewInput::new(
                        g,
                        &group.name,
                        n,
                        &shape.keys[i],
                        options.flash_attn,
                        of_blocks,
                    )
                })
                .collect::<Result<_, _>>()?,
            states: match sources.states.is_empty() {
                true => None,
                false => Some(StateRows::new(g, options, &shape.groups)?),
            },
            scales: AdapterScales::new(g, &shape.adapters, n)?,
            derived: Derived::new(n),
        })
    }

    /// Where the keys and values of the pass go, and what its queries see.
    pub(super) fn key_value_store<'a>(&self, sources: &Sources<'a>) -> Box<dyn KeyValueStore + 'a> {
        let views = self.views.iter().map(|input| input.view.clone()).collect();
        match sources.options.n_ctx > 0 {
            true => Box::new(CachedStore {
                cache: sources.cache,
                slots: self.slots.iter().map(|slots| slots.0.clone()).collect(),
                views,
                visible: HashMap::new(),
            }),
            false => Box::new(PassStore {
                views,
                visible: HashMap::new(),
            }),
        }
    }

    /// The recurrent states that the pass reads and writes.
    pub(super) fn state_store<'a>(&self, sources: &Sources<'a>) -> PassStates<'a> {
        let rows = self.states.as_ref();
        PassStates {
            states: sources.states,
            read: rows.map_or(Vec::new(), |rows| rows.read.clone()),
            write: rows.and_then(|rows| rows.write.clone()),
            at_once: !sources.plan.devices.is_empty(),
            written: Vec::new(),
        }
    }

    /// Writes all of them.
    pub(super) fn write(&self, executor: &mut Executor, data: &PassData<'_>) -> Result<(), Error> {
        let batch = data.batch;
        self.tokens.write(executor, batch)?;
        self.derived.write(executor, batch)?;
        if let Some(rows) = &self.output_rows {
            rows.write(executor, batch)?;
        }
        if let Some(rows) = &self.states {
            rows.write(executor, &data.allocated.rows)?;
        }
        for (input, slots) in self.slots.iter().zip(&data.allocated.slots) {
            input.write(executor, slots)?;
        }
        for (group, input) in self.views.iter().enumerate() {
            input.write(executor, group, data)?;
        }
        let sequences = batch.places.iter().map(|(sequence, _)| *sequence);
        self.scales.write(executor, data.adapters, &sequences)
    }
}
