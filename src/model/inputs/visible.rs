//! The keys that the queries of a pass attend to.

use crate::blocks::Runs;
use crate::plan::KeysOf;

use super::super::batch::Batch;
use super::super::cache::{BlockManager, Table};
use super::super::key_shape::{KeyShape, table_len};

/// The keys that the queries of a pass attend to in a KV group.
pub(in crate::model) enum VisibleKeys {
    /// Keys in the blocks of a table.
    Table(Table),
    /// Keys in runs of slots.
    Runs(Vec<Runs>),
    /// Keys of the pass itself: the number of queries and the number of keys.
    Pass(usize, usize),
    /// No keys, because the pass has no queries.
    Nothing,
}

impl VisibleKeys {
    /// The keys of every group, for tokens with allocated slots and for sources that the pass reads.
    pub(in crate::model) fn of(
        block_manager: &BlockManager,
        (batch, source): (&Batch, &Batch),
        is_cached: bool,
        is_paged: bool,
    ) -> Vec<Self> {
        let groups = 0..block_manager.n_groups();
        let of_group = |group: usize| match (block_manager.keys(group), is_cached, is_paged) {
            (KeysOf::Pass, ..) if source.is_empty() => Self::Nothing,
            (KeysOf::Pass, ..) => Self::Pass(source.len(), source.len()),
            _ if batch.is_empty() => Self::Nothing,
            (_, true, true) => Self::Table(block_manager.table(group, &batch.places)),
            (_, true, false) => Self::Runs(block_manager.views_of(group, &batch.places)),
            (KeysOf::Source, false, _) => Self::Pass(batch.len(), source.len()),
            (KeysOf::Tokens, false, _) => Self::Pass(batch.len(), batch.len()),
        };
        groups.map(of_group).collect()
    }

    /// The shape for which the graph is built.
    pub(in crate::model) fn shape(&self) -> KeyShape {
        match self {
            Self::Table(table) => KeyShape::Table(table_len(table.blocks.len())),
            Self::Runs(runs) => KeyShape::Runs(runs.clone()),
            Self::Pass(n_queries, n_keys) => KeyShape::one_run(*n_queries, *n_keys),
            Self::Nothing => KeyShape::Runs(Vec::new()),
        }
    }
}
