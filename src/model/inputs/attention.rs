//! What the queries of a pass see of the keys of a KV group: block tables, or a mask.

use crate::blocks::AttentionView;
use crate::ggml::{Error, Executor, Graph};
use crate::weights::TensorType;

use super::super::batch::Batch;
use super::super::cache::{BlockManager, Mask, Table};
use super::PassData;

/// Tables have a multiple of so many blocks, so that a graph serves many steps.
const TABLE_STEP: usize = 64;

/// What stands after the end of a table.
const NO_BLOCK: i32 = -1;

/// Length of the table of a graph that holds `n_blocks`.
pub(in crate::model) fn table_len(n_blocks: usize) -> usize {
    n_blocks.max(1).next_multiple_of(TABLE_STEP)
}

/// The keys that the queries of a pass look at, in every KV group.
pub(in crate::model) enum VisibleKeys {
    /// Those in the blocks of a table.
    Tables(Vec<Table>),
    /// The first slots of the pool, so many.
    Slots(Vec<usize>),
    /// The tokens of the pass themselves: their number, and the number of groups.
    Pass(usize, usize),
}

impl VisibleKeys {
    /// Those of a batch for which slots are allocated.
    pub(in crate::model) fn of(
        block_manager: &BlockManager,
        batch: &Batch,
        is_cached: bool,
        is_paged: bool,
    ) -> Self {
        match (is_cached, is_paged) {
            (true, true) => Self::Tables(block_manager.tables(&batch.places)),
            (true, false) => Self::Slots(block_manager.n_visible(&batch.places)),
            (false, _) => Self::Pass(batch.len(), block_manager.n_groups()),
        }
    }

    /// For each group the keys that are looked at, or the length of its table.
    pub(in crate::model) fn n_kv(&self) -> Vec<usize> {
        match self {
            Self::Tables(tables) => tables.iter().map(|t| table_len(t.blocks.len())).collect(),
            Self::Slots(n_slots) => n_slots.clone(),
            Self::Pass(n_tokens, n_groups) => vec![*n_tokens; *n_groups],
        }
    }
}

/// The attention view of one KV group.
pub(super) struct ViewInput {
    pub(super) view: AttentionView,
}

impl ViewInput {
    /// Block tables: `queries` i32 `[4, n_tokens]` and `table` i32 `[len]`.
    pub(super) fn blocks(g: &Graph, group: &str, n: u64, len: u64) -> Result<Self, Error> {
        let queries = g.input(&format!("queries.{group}"), TensorType::I32, &[4, n])?;
        let table = g.input(&format!("table.{group}"), TensorType::I32, &[len])?;
        let view = AttentionView::Blocks { queries, table };
        Ok(Self { view })
    }

    /// A mask `[n_kv, n_tokens]`: f16 for flash attention, else f32.
    pub(super) fn mask(
        g: &Graph,
        group: &str,
        n: u64,
        n_kv: u64,
        flash_attn: bool,
    ) -> Result<Self, Error> {
        let ty = match flash_attn {
            true => TensorType::F16,
            false => TensorType::F32,
        };
        let mask = g.input(&format!("mask.{group}"), ty, &[n_kv, n])?;
        let view = AttentionView::Mask(mask);
        Ok(Self { view })
    }

    pub(super) fn write(
        &self,
        executor: &mut Executor,
        group: usize,
        data: &PassData<'_>,
    ) -> Result<(), Error> {
        let (manager, places) = (data.block_manager, &data.batch.places);
        let (mask, values) = match (&self.view, data.keys) {
            (AttentionView::Blocks { queries, table }, VisibleKeys::Tables(tables)) => {
                let of_pass = &tables[group];
                let mut blocks = of_pass.blocks.clone();
                blocks.resize(table_len(blocks.len()), NO_BLOCK);
                executor.write(queries, of_pass.queries.as_flattened())?;
                return executor.write(table, &blocks);
            }
            (AttentionView::Mask(mask), VisibleKeys::Slots(n_kv)) => {
                (mask, manager.mask(group, n_kv[group], places))
            }
            (AttentionView::Mask(mask), VisibleKeys::Pass(..)) => {
                (mask, Mask::of_tokens(places, manager.rule(group)))
            }
            _ => {
                return Err(Error::Arguments {
                    op: "inputs",
                    message: "the graph has another attention view than the pass".into(),
                });
            }
        };
        match mask.ty() {
            TensorType::F16 => executor.write(mask, &values.to_f16()),
            _ => executor.write(mask, values.as_f32()),
        }
    }
}
