//! What the queries of a pass see of the keys of a KV group: block tables, or runs with a mask.

use crate::blocks::{AttentionView, Runs};
use crate::ggml::{Error, Executor, Graph, Tensor};
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
    /// Runs of slots.
    Runs(Vec<Vec<Runs>>),
    /// The tokens of the pass themselves: their number, and the number of groups.
    Pass(usize, usize),
}

/// What the graph of a pass is built for, of the keys of a KV group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::model) enum KeyShape {
    /// A table of so many blocks.
    Table(usize),
    /// Runs of rows.
    Runs(Vec<Runs>),
}

impl KeyShape {
    /// `n` rows, of which all queries see some.
    pub(in crate::model) fn one_run(n_tokens: usize, n: usize) -> Self {
        Self::Runs(vec![Runs {
            n_tokens,
            n_runs: 1,
            first: 0,
            stride: n,
            n_kv: n,
        }])
    }

    /// Operations of attention.
    pub(in crate::model) fn n_views(&self) -> usize {
        match self {
            Self::Table(_) => 1,
            Self::Runs(runs) => runs.len(),
        }
    }
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
            (true, false) => Self::Runs(block_manager.views(&batch.places)),
            (false, _) => Self::Pass(batch.len(), block_manager.n_groups()),
        }
    }

    /// What the graph is built for, of each group.
    pub(in crate::model) fn shapes(&self) -> Vec<KeyShape> {
        match self {
            Self::Tables(tables) => {
                let lens = tables.iter().map(|t| table_len(t.blocks.len()));
                lens.map(KeyShape::Table).collect()
            }
            Self::Runs(groups) => groups.iter().cloned().map(KeyShape::Runs).collect(),
            Self::Pass(n, n_groups) => vec![KeyShape::one_run(*n, *n); *n_groups],
        }
    }
}

/// The attention view of one KV group.
pub(super) struct ViewInput {
    pub(super) view: AttentionView,
}

impl ViewInput {
    /// Of a group of layers, for a pass of `n` tokens. Block tables: `queries` i32 `[4, n]` and `table` i32
    /// `[len]`. Runs: masks `[n_kv, n_tokens, 1, n_runs]`, f16 for flash attention, else f32.
    pub(super) fn new(
        g: &Graph,
        group: &str,
        n: u64,
        keys: &KeyShape,
        flash_attn: bool,
    ) -> Result<Self, Error> {
        let ty = match flash_attn {
            true => TensorType::F16,
            false => TensorType::F32,
        };
        let view = match keys {
            KeyShape::Table(len) => AttentionView::Blocks {
                queries: g.input(&format!("queries.{group}"), TensorType::I32, &[4, n])?,
                table: g.input(&format!("table.{group}"), TensorType::I32, &[*len as u64])?,
            },
            KeyShape::Runs(views) => {
                let with_mask = views.iter().enumerate().map(|(i, runs)| {
                    let name = match i {
                        0 => format!("mask.{group}"),
                        _ => format!("mask.{group}.{i}"),
                    };
                    let shape = [runs.n_kv, runs.n_tokens, 1, runs.n_runs].map(|n| n as u64);
                    Ok((*runs, g.input(&name, ty, &shape)?))
                });
                AttentionView::Runs(with_mask.collect::<Result<_, Error>>()?)
            }
        };
        Ok(Self { view })
    }

    pub(super) fn write(
        &self,
        executor: &mut Executor,
        group: usize,
        data: &PassData<'_>,
    ) -> Result<(), Error> {
        let (manager, places) = (data.block_manager, &data.batch.places);
        match (&self.view, data.keys) {
            (AttentionView::Blocks { queries, table }, VisibleKeys::Tables(tables)) => {
                let of_pass = &tables[group];
                let mut blocks = of_pass.blocks.clone();
                blocks.resize(table_len(blocks.len()), NO_BLOCK);
                executor.write(queries, of_pass.queries.as_flattened())?;
                executor.write(table, &blocks)
            }
            (AttentionView::Runs(views), VisibleKeys::Runs(_)) => {
                let mut left = places.as_slice();
                for (runs, mask) in views {
                    let (own, after) = left.split_at(runs.n_tokens * runs.n_runs);
                    left = after;
                    write_mask(executor, mask, &manager.mask(group, runs, own))?;
                }
                Ok(())
            }
            (AttentionView::Runs(views), VisibleKeys::Pass(..)) => {
                let values = Mask::of_tokens(places, manager.rule(group));
                let mut masks = views.iter();
                masks.try_for_each(|(_, mask)| write_mask(executor, mask, &values))
            }
            _ => Err(Error::Arguments {
                op: "inputs",
                message: "the graph has another attention view than the pass".into(),
            }),
        }
    }
}

fn write_mask(executor: &mut Executor, mask: &Tensor, values: &Mask) -> Result<(), Error> {
    match mask.ty() {
        TensorType::F16 => executor.write(mask, &values.to_f16()),
        _ => executor.write(mask, values.as_f32()),
    }
}
