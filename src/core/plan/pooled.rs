//! Keys of whole blocks of positions: the rows from which they are made, and their place. Checks of selections.

use std::collections::HashMap;

use super::assemble::Planner;
use super::{BLOCK_LEN, CachePlan, LayerPlan, StatePlan};
use crate::arch::{OptionKind, ResolvedOption, Resource};

/// Rows of positions from which a unit makes the keys of whole blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PooledPlan {
    /// The group in whose cache the rows are, as an index into [`super::Plan::caches`].
    pub cache: usize,
    /// Number of elements of a row, f32 whatever the type of the cache.
    pub width: u64,
    /// Number of positions of a block.
    pub span: u64,
    /// Number of positions from which a key is made, the last ones of the block.
    pub reach: u64,
}

impl CachePlan {
    /// Number of positions of a block that has a key; none if blocks have no keys.
    pub fn span(&self) -> Option<u64> {
        self.unit.option_int("span").filter(|span| *span > 0)
    }

    /// The layout of the key rows.
    pub fn layout(&self) -> RowLayout {
        RowLayout {
            block: BLOCK_LEN,
            further: self.span().map_or(0, |span| (BLOCK_LEN / span).max(1)),
        }
    }
}

/// The layout of key rows in blocks: the rows of the positions, then further rows for whole blocks of positions. There
/// is one further row for every `block / further` positions, and it belongs to the last one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// Number of positions of a block.
    pub block: u64,
    /// Number of further rows of a block; 0: none.
    pub further: u64,
}

impl RowLayout {
    /// Number of rows of `n` positions, which are whole blocks.
    pub fn rows(self, n: u64) -> u64 {
        (n / self.block.max(1)).saturating_mul(self.block + self.further)
    }

    /// The row of a position.
    pub fn own(self, at: u64) -> u64 {
        self.rows(at) + at % self.block.max(1)
    }

    /// The further row for a position.
    pub fn further(self, at: u64) -> u64 {
        let block = self.block.max(1);
        self.rows(at) + block + at % block * self.further / block
    }
}

impl Planner<'_> {
    /// Checks that a unit that does not select keys itself uses the selection of an earlier unit with the same cache.
    pub(super) fn check_selections(&mut self, layers: &[LayerPlan]) {
        let slots = layers.iter().flat_map(|layer| &layer.slots);
        let mut made: HashMap<usize, usize> = HashMap::new();
        for unit in slots
            .flat_map(|slot| &slot.branches)
            .map(|branch| &branch.block)
        {
            let kinds = unit.contract.0.options.iter().map(|spec| spec.kind);
            let of = kinds.zip(&unit.options).find_map(|option| match option {
                (OptionKind::Resource(Resource::Selection), ResolvedOption::Resource(of)) => *of,
                _ => None,
            });
            let (Some(of), Some(StatePlan::KeyValue(rows))) = (of, &unit.state) else {
                continue;
            };
            let path = &unit.path;
            if rows.index > 0 {
                made.insert(of, rows.cache);
            } else if made.get(&of) != Some(&rows.cache) {
                self.problem::<()>(format!(
                    "{path}: no block before it selects keys of its cache"
                ));
            }
            if self.caches[rows.cache].unit.option("alibi") != Some(&ResolvedOption::Float(0.0)) {
                self.problem::<()>(format!(
                    "{path}: keys are selected from a cache with a linear position bias"
                ));
            }
        }
    }

    /// Checks that the units of a cache make the keys of whole blocks from rows in one other cache, and select by
    /// blocks of that length.
    pub(super) fn check_pooled(&mut self, layers: &[LayerPlan]) {
        let slots = layers.iter().flat_map(|layer| &layer.slots);
        let mut known: HashMap<usize, (usize, u64)> = HashMap::new();
        for unit in slots
            .flat_map(|slot| &slot.branches)
            .map(|branch| &branch.block)
        {
            let Some(StatePlan::KeyValue(rows)) = &unit.state else {
                continue;
            };
            let Some(pooled) = &rows.pooled else { continue };
            let (path, of) = (&unit.path, (pooled.cache, pooled.reach));
            let first = *known.entry(rows.cache).or_insert(of);
            if first != of {
                self.problem::<()>(format!(
                    "{path}: the keys of spans of its cache are made of {} positions of `{}`, and here of {} of `{}`",
                    first.1, self.caches[first.0].name, of.1, self.caches[of.0].name
                ));
            }
            let kinds = unit.contract.0.options.iter().map(|spec| spec.kind);
            let selection = kinds.zip(&unit.options).find_map(|option| match option {
                (OptionKind::Resource(Resource::Selection), ResolvedOption::Resource(of)) => *of,
                _ => None,
            });
            let Some(selection) = selection.map(|at| &self.selections[at]) else {
                continue;
            };
            let found = match (selection.option("pooled"), selection.option_int("span")) {
                (Some(ResolvedOption::Bool(true)), Some(span)) if span == pooled.span => continue,
                (Some(ResolvedOption::Bool(true)), Some(span)) => format!("spans of {span}"),
                _ => "keys".to_owned(),
            };
            self.problem::<()>(format!(
                "{path}: selects among spans of {} positions by a selection of {found}",
                pooled.span
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_rows_follow_those_of_the_positions_of_a_block() {
        let layout = |further| RowLayout { block: 16, further };
        for further in [1, 2, 4, 8] {
            let layout = layout(further);
            let mut rows: Vec<u64> = (0..64).map(|at| layout.own(at)).collect();
            let last = (0..64).filter(|at| (at + 1) % (16 / further) == 0);
            rows.extend(last.map(|at| layout.further(at)));
            rows.sort_unstable();
            assert_eq!(rows, (0..layout.rows(64)).collect::<Vec<u64>>());
        }
        assert_eq!(layout(0).own(37), 37);
        assert_eq!(layout(4).own(37), 45);
        assert_eq!(layout(4).further(39), 57);
        // For the tokens of a pass each token has a further row.
        let of_pass = RowLayout {
            block: 5,
            further: 5,
        };
        assert_eq!([of_pass.own(3), of_pass.further(3)], [3, 8]);
    }
}
