//! The vector of an edit: rows of the request, stored directions, or a feature to clamp.

use std::sync::Arc;

use crate::artifacts::vectors::{Directions, SaeFeature};
use crate::model::Point;

#[derive(Clone, Debug, PartialEq)]
pub enum EditVector {
    /// One row for all positions, or one for each position.
    Rows(Vec<Vec<f32>>),
    /// An id of stored directions, and the directions: one for each point.
    Stored(String, Arc<Directions>),
    /// A feature of an autoencoder, to be clamped.
    Feature(SaeFeature),
}

impl EditVector {
    /// The rows for a point; none if no direction is stored for it.
    pub(super) fn of(&self, point: &Point) -> Option<Vec<Vec<f32>>> {
        match self {
            Self::Rows(rows) => Some(rows.clone()),
            Self::Stored(_, all) => {
                let names = point.aliases.iter().chain([&point.path]);
                let found = all.of(names.map(String::as_str), &point.path)?;
                Some(vec![found.to_vec()])
            }
            Self::Feature(_) => Some(Vec::new()),
        }
    }
}
