//! The keys that the graph of a pass attends to, as far as the graph depends on them.

use crate::blocks::Runs;

/// Tables have a multiple of so many blocks, so that a graph serves many steps.
const TABLE_STEP: usize = 64;

/// Length of the table of a graph that holds `n_blocks`.
pub(super) fn table_len(n_blocks: usize) -> usize {
    n_blocks.max(1).next_multiple_of(TABLE_STEP)
}

/// What the graph of a pass is built for, of the keys of a KV group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyShape {
    /// A table of so many blocks.
    Table(usize),
    /// Runs of rows.
    Runs(Vec<Runs>),
}

impl KeyShape {
    /// `n` rows, of which all queries attend to some.
    pub(super) fn one_run(n_tokens: usize, n: usize) -> Self {
        Self::Runs(vec![Runs {
            n_tokens,
            n_runs: 1,
            first: 0,
            stride: n,
            n_kv: n,
        }])
    }

    /// Operations of attention.
    pub(super) fn n_views(&self) -> usize {
        match self {
            Self::Table(_) => 1,
            Self::Runs(runs) => runs.len(),
        }
    }
}
