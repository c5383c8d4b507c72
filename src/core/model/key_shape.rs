//! The shape of the keys that a pass attends to, on which its graph depends.

use crate::blocks::Runs;

/// The length of a table is a multiple of this number of blocks, so that a graph serves many steps.
const TABLE_STEP: usize = 64;

/// Length of a table for `n_blocks` blocks.
pub(super) fn table_len(n_blocks: usize) -> usize {
    n_blocks.max(1).next_multiple_of(TABLE_STEP)
}

/// The shape of the keys of a KV group, for which a graph is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyShape {
    /// A table of this many blocks.
    Table(usize),
    /// Runs of rows.
    Runs(Vec<Runs>),
}

impl KeyShape {
    /// One run of `n` rows for all queries, each of which attends to some.
    pub(super) fn one_run(n_tokens: usize, n: usize) -> Self {
        Self::Runs(vec![Runs {
            n_tokens,
            n_runs: 1,
            first: 0,
            stride: n,
            n_kv: n,
        }])
    }

    /// Number of attention operations.
    pub(super) fn n_views(&self) -> usize {
        match self {
            Self::Table(_) => 1,
            Self::Runs(runs) => runs.len(),
        }
    }
}
