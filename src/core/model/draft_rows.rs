//! The rows that stand for values of the target while a drafter computes a pass.

use std::collections::HashMap;

use super::cache::SequenceId;
use super::graph_shape::TargetRows;

/// A row for each token of a pass, by sequence and position.
#[derive(Clone, Debug, Default)]
pub(crate) struct DraftRows {
    pub(super) kind: TargetRows,
    rows: HashMap<(SequenceId, u32), Vec<f32>>,
}

impl DraftRows {
    /// No rows yet, of this kind.
    pub(super) fn of_kind(kind: TargetRows) -> Self {
        Self {
            kind,
            rows: HashMap::new(),
        }
    }

    pub(super) fn insert(&mut self, place: (SequenceId, u32), row: &[f32]) {
        self.rows.insert(place, row.to_vec());
    }

    /// The rows `[width, n]` of tokens at these places; zeros where there is none.
    pub(super) fn of(&self, places: &[(SequenceId, u32)], width: usize) -> Vec<f32> {
        let mut all = vec![0.0; width * places.len()];
        for (out, place) in all.chunks_exact_mut(width.max(1)).zip(places) {
            if let Some(row) = self.rows.get(place).filter(|row| row.len() == width) {
                out.copy_from_slice(row);
            }
        }
        all
    }
}
