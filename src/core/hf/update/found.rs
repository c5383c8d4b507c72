//! The updates that a map finds, or the reason why it finds none.

use std::sync::Arc;

use super::product::LowRankProduct;
use lab_base::weights::TensorEntry;

/// The updates that a map finds.
#[derive(Debug, Default)]
pub(super) struct FoundUpdates {
    pub(super) updates: Vec<TensorUpdate>,
    /// The parts of the model that are left out, and their numbers of modules.
    pub(super) left_out: Vec<(String, usize)>,
}

/// The update of a tensor of the architecture.
#[derive(Debug, PartialEq)]
pub(super) struct TensorUpdate {
    pub(super) name: String,
    pub(super) is_table: bool,
    pub(super) product: Arc<LowRankProduct>,
}

impl TensorUpdate {
    pub(super) fn entries(self) -> [TensorEntry; 2] {
        self.product.entries(&self.name, self.is_table)
    }
}

/// The reason why a map gives no updates.
pub(super) enum UpdateError {
    /// The map does not have a module.
    Unknown(String),
    /// The result of the map is not an update of a weight of the model.
    Unfit(String),
    /// Any other reason, such as a configuration with too little information.
    Other(String),
}

impl From<String> for UpdateError {
    fn from(message: String) -> Self {
        Self::Other(message)
    }
}

impl From<&str> for UpdateError {
    fn from(message: &str) -> Self {
        Self::Other(message.to_owned())
    }
}

impl UpdateError {
    /// The fault with the place before the message.
    pub(super) fn at(self, place: &str) -> Self {
        let with = |message: String| format!("`{place}`: {message}");
        match self {
            Self::Unknown(message) => Self::Unknown(with(message)),
            Self::Unfit(message) => Self::Unfit(with(message)),
            Self::Other(message) => Self::Other(with(message)),
        }
    }
}
