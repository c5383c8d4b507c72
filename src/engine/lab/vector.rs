//! What an edit adds or sets: rows of the request, directions that are kept, a feature that is bounded.

use std::sync::Arc;

use crate::files::vectors::{Directions, Feature};
use crate::model::Point;

/// The vector of an edit.
#[derive(Clone, Debug, PartialEq)]
pub enum Vector {
    /// One row for all positions, or one for each.
    Rows(Vec<Vec<f32>>),
    /// A direction for each point, and the id under which they are kept.
    Stored(String, Arc<Directions>),
    /// A feature of an autoencoder that is bounded.
    Feature(Feature),
}

impl Vector {
    /// The rows for a point; none if nothing is kept for it.
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
