//! The keys that the queries of a pass attend to.

use std::collections::{HashMap, HashSet};

use crate::blocks::Runs;
use crate::plan::KeyTokens;

use super::super::batch::Batch;
use super::super::cache::{BlockManager, BlockTables, MAX_VIEWS, SequenceId};
use super::super::key_shape::{KeyShape, table_len};

type TokenPosition = (SequenceId, u32);

/// The keys that the queries of a pass attend to in a KV group.
pub(crate) enum VisibleKeys {
    /// Keys in the blocks of a table.
    Table(BlockTables),
    /// Keys in runs of slots.
    Runs(Vec<Runs>),
    /// Keys of the pass itself, in runs of its tokens.
    Pass(Vec<Runs>),
    /// No keys, because the pass has no queries.
    Nothing,
}

impl VisibleKeys {
    /// The keys of every group, for tokens with allocated slots and for sources that the pass reads.
    pub(crate) fn of(
        block_manager: &BlockManager,
        (batch, source): (&Batch, &Batch),
        is_cached: bool,
        is_paged: bool,
    ) -> Vec<Self> {
        let groups = 0..block_manager.n_groups();
        let of_group = |group: usize| match (block_manager.keys(group), is_cached, is_paged) {
            (KeyTokens::Pass, ..) if source.is_empty() => Self::Nothing,
            (KeyTokens::Pass, ..) => Self::of_pass(source, source),
            _ if batch.is_empty() => Self::Nothing,
            (_, true, true) => Self::Table(block_manager.table(group, &batch.positions)),
            (_, true, false) => Self::Runs(block_manager.views_of(group, &batch.positions)),
            (KeyTokens::Source, false, _) => Self::of_pass(batch, source),
            (KeyTokens::Tokens, false, _) => Self::of_pass(batch, batch),
        };
        groups.map(of_group).collect()
    }

    /// The keys of the pass for its queries: each sequence by itself. If the tokens of a sequence do not lie together,
    /// or if there are too many lengths, all keys are one run.
    fn of_pass(queries: &Batch, keys: &Batch) -> Self {
        let n = keys.len();
        let all = Runs {
            n_tokens: queries.len(),
            n_runs: 1,
            first: 0,
            stride: n,
            n_kv: n,
        };
        Self::Pass(apart(&queries.positions, &keys.positions).unwrap_or_else(|| vec![all]))
    }

    /// The runs of slots; none if the keys lie elsewhere.
    pub(crate) fn runs(&self) -> &[Runs] {
        match self {
            Self::Runs(runs) => runs,
            _ => &[],
        }
    }

    /// The shape for which the graph is built.
    pub(crate) fn shape(&self) -> KeyShape {
        match self {
            Self::Table(table) => KeyShape::Table(table_len(table.blocks.len())),
            Self::Runs(runs) | Self::Pass(runs) => KeyShape::Runs(runs.clone()),
            Self::Nothing => KeyShape::Runs(Vec::new()),
        }
    }
}

/// The runs of the keys of each sequence, for queries whose keys are in the same pass. Sequences of equal length that
/// follow each other are in one view. None if the tokens of a sequence do not lie together, or if there are more views
/// than a pass may have.
pub(crate) fn apart(queries: &[TokenPosition], keys: &[TokenPosition]) -> Option<Vec<Runs>> {
    let mut of_keys: HashMap<SequenceId, (usize, usize)> = HashMap::new();
    let mut first = 0;
    for own in keys.chunk_by(|(a, _), (b, _)| a == b) {
        if of_keys.insert(own[0].0, (first, own.len())).is_some() {
            return None;
        }
        first += own.len();
    }
    let mut views: Vec<Runs> = Vec::new();
    let mut seen = HashSet::new();
    for own in queries.chunk_by(|(a, _), (b, _)| a == b) {
        let (n_tokens, (first, n_kv)) = (own.len(), *of_keys.get(&own[0].0)?);
        if !seen.insert(own[0].0) {
            return None;
        }
        match views.last_mut() {
            Some(view)
                if (view.n_tokens, view.n_kv) == (n_tokens, n_kv)
                    && view.first + view.n_runs * n_kv == first =>
            {
                view.n_runs += 1;
            }
            _ => views.push(Runs {
                n_tokens,
                n_runs: 1,
                first,
                stride: n_kv,
                n_kv,
            }),
        }
    }
    (views.len() <= MAX_VIEWS).then_some(views)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(lens: &[(SequenceId, u32)]) -> Vec<TokenPosition> {
        let all = lens.iter();
        all.flat_map(|(id, n)| (0..*n).map(|at| (*id, at)))
            .collect()
    }

    #[test]
    fn no_view_has_keys_of_two_sequences() {
        let all = places(&[(4, 3), (2, 3), (7, 1), (9, 5)]);
        let views = apart(&all, &all).expect("each lies together");
        let found: Vec<_> = views
            .iter()
            .map(|v| (v.n_tokens, v.n_runs, v.first, v.stride, v.n_kv))
            .collect();
        assert_eq!(found, [(3, 2, 0, 3, 3), (1, 1, 6, 1, 1), (5, 1, 7, 5, 5)]);
        // Queries of other numbers than keys, in another order.
        let queries = places(&[(2, 1), (4, 1)]);
        let views = apart(&queries, &all).expect("each lies together");
        let found: Vec<_> = views.iter().map(|v| (v.first, v.n_kv, v.n_runs)).collect();
        assert_eq!(found, [(3, 3, 1), (0, 3, 1)]);
    }

    #[test]
    fn tokens_that_do_not_lie_together_have_no_views() {
        let mixed = [(1, 0), (2, 0), (1, 1)];
        assert_eq!(apart(&mixed, &mixed), None);
        let lens: Vec<(SequenceId, u32)> = (0..=MAX_VIEWS as u32).map(|n| (n, n + 1)).collect();
        let many = places(&lens);
        assert_eq!(apart(&many, &many), None);
    }
}
