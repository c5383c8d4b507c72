//! Checks of selections of keys, and of caches whose whole spans of positions have keys.

use std::collections::HashMap;

use super::LayerPlan;
use super::layer_plan::blocks;
use super::planner::Planner;
use crate::arch::ResolvedOption;

impl Planner<'_> {
    /// Checks that a unit that does not select keys itself uses the selection of an earlier unit with the same cache.
    pub(super) fn check_selections(&mut self, layers: &[LayerPlan]) {
        let mut made: HashMap<usize, usize> = HashMap::new();
        for unit in blocks(layers) {
            let (Some(of), Some(rows)) = (unit.selection(), unit.key_values()) else {
                continue;
            };
            let path = &unit.path;
            if rows.index > 0 {
                made.insert(of, rows.cache);
            } else if made.get(&of) != Some(&rows.cache) {
                self.report(format!(
                    "{path}: no block before it selects keys of its cache"
                ));
            }
            if self.caches[rows.cache].unit.option("alibi") != Some(&ResolvedOption::Float(0.0)) {
                self.report(format!(
                    "{path}: keys are selected from a cache with a linear position bias"
                ));
            }
        }
    }

    /// Checks that the units of a cache make the keys of whole blocks from rows in one other cache, and select by
    /// blocks of that length.
    pub(super) fn check_pooled(&mut self, layers: &[LayerPlan]) {
        let mut known: HashMap<usize, (usize, u64)> = HashMap::new();
        for unit in blocks(layers) {
            let Some(rows) = unit.key_values() else {
                continue;
            };
            let Some(pooled) = &rows.pooled else { continue };
            let (path, of) = (&unit.path, (pooled.cache, pooled.reach));
            let first = *known.entry(rows.cache).or_insert(of);
            if first != of {
                self.report(format!(
                    "{path}: the keys of spans of its cache are made of {} positions of `{}`, and here of {} of `{}`",
                    first.1, self.caches[first.0].name, of.1, self.caches[of.0].name
                ));
            }
            let Some(selection) = unit.selection().map(|at| &self.selections[at]) else {
                continue;
            };
            let found = match (selection.option("pooled"), selection.option_int("span")) {
                (Some(ResolvedOption::Bool(true)), Some(span)) if span == pooled.span => continue,
                (Some(ResolvedOption::Bool(true)), Some(span)) => format!("spans of {span}"),
                _ => "keys".to_owned(),
            };
            self.report(format!(
                "{path}: selects among spans of {} positions by a selection of {found}",
                pooled.span
            ));
        }
    }
}
