//! The maximum number of operations that a block adds to a graph.

use super::{attend, build, compressed_attention, low_rank, recurrent, selection};
use crate::arch::ResolvedOption;
use crate::plan::{StatePlan, Unit};

/// The maximum number of operations that a block adds to the graph of a pass with `n_groups` groups of sequences and
/// `n_views` views of keys.
///
/// Besides a fixed number, a mixture of experts adds the results of its experts one by one, a block with a recurrent
/// state runs its operators for each group, and a block with keys attends for each view.
pub fn max_nodes(unit: &Unit, n_groups: usize, n_views: usize) -> usize {
    const FIXED: usize = 96;
    let experts = unit.option_int("used").unwrap_or(0);
    let groups = match &unit.state {
        Some(StatePlan::Recurrent(_)) => n_groups * recurrent::NODES_PER_GROUP,
        Some(StatePlan::KeyValue(rows)) => {
            let (own, per_view) = match rows.index {
                0 => (0, 0),
                _ => (selection::NODES, selection::NODES_PER_VIEW),
            };
            // If each key head has its own selection, the key heads attend one after another.
            let parts = match unit.option("selection") {
                Some(ResolvedOption::Resource(Some(_))) => usize::try_from(rows.heads).unwrap_or(1),
                _ => 1,
            };
            let own = own
                + rows
                    .pooled
                    .as_ref()
                    .map_or(0, |_| compressed_attention::NODES);
            own + n_views.saturating_sub(1) * per_view
                + (n_views * parts).saturating_sub(1) * attend::NODES_PER_VIEW
        }
        None => 0,
    };
    let has_bounds = |key: &str| key.ends_with(".clip") && unit.weight(key).is_some();
    let weights = unit.contract.0.weights.iter();
    let bounds = weights.filter(|weight| has_bounds(weight.key)).count() * build::NODES_OF_BOUNDS;
    let updates = low_rank::NODES_OF_SWITCHED * unit.updates.len();
    FIXED + groups + updates + bounds + 2 * usize::try_from(experts).unwrap_or(usize::MAX / 4)
}
