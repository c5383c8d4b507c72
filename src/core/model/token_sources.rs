//! The sources of the sequences of a model, and the prefix keys made of them.

use std::collections::HashMap;

use super::cache::SequenceId;
use super::named_value::NamedValue;

/// The sources of sequences.
#[derive(Default)]
pub(super) struct TokenSources {
    pub(super) own: HashMap<SequenceId, Vec<u32>>,
    /// The source of sequences without one of their own.
    pub(super) default: Vec<u32>,
    /// The captured values of sources that were read before the last pass.
    pub(super) values: Vec<NamedValue>,
}

impl TokenSources {
    /// The source of a sequence; empty if it has none.
    pub(super) fn of(&self, sequence: SequenceId) -> &[u32] {
        self.own.get(&sequence).unwrap_or(&self.default)
    }
}

/// The prefix key of sequences that are computed as `computed` says, after this source.
pub(super) fn key(computed: &[u32], source: &[u32]) -> Vec<u32> {
    match source.is_empty() {
        true => computed.to_vec(),
        false => [&[computed.len() as u32], computed, source].concat(),
    }
}
