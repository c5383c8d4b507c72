//! The sources of the sequences of a model, and the prefix keys made of them.

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::cache::SequenceId;
use super::named_value::NamedValue;

/// The source of a sequence.
#[derive(Clone, Default)]
pub(super) struct Source {
    /// Its tokens. Of rows, numbers that follow from the hash of all rows: the prefix cache knows them by these.
    pub(super) tokens: Vec<u32>,
    rows: Option<SourceRows>,
}

/// The rows of a source that is no tokens.
#[derive(Clone)]
struct SourceRows {
    /// `[width, n]`.
    all: Arc<[f32]>,
    hash: [u32; 8],
}

impl Source {
    /// A source of tokens.
    pub(super) fn of_tokens(tokens: &[u32]) -> Self {
        Self {
            tokens: tokens.to_vec(),
            rows: None,
        }
    }

    /// A source of rows `[width, n]`.
    pub(super) fn of_rows(rows: &[f32], width: usize) -> Self {
        let mut hash = Sha256::new();
        hash.update((width as u64).to_le_bytes());
        rows.iter().for_each(|x| hash.update(x.to_le_bytes()));
        let hash = hash.finalize();
        let hash: [u32; 8] = std::array::from_fn(|at| {
            let word = [0, 1, 2, 3].map(|byte| hash[4 * at + byte]);
            u32::from_le_bytes(word)
        });
        let n = rows.len() / width.max(1);
        Self {
            tokens: hash.into_iter().cycle().take(n).collect(),
            rows: Some(SourceRows {
                all: rows.into(),
                hash,
            }),
        }
    }

    /// The prefix key of sequences that are computed as `computed` says, after this source.
    pub(super) fn key(&self, computed: &[u32]) -> Vec<u32> {
        let n = [computed.len() as u32];
        match (&self.rows, self.tokens.is_empty()) {
            (_, true) => computed.to_vec(),
            (None, false) => [&n[..], computed, &self.tokens].concat(),
            (Some(rows), false) => [&n[..], computed, &rows.hash].concat(),
        }
    }

    /// The rows `[width, n]`, if it is rows.
    pub(super) fn as_rows(&self) -> Option<&[f32]> {
        self.rows.as_ref().map(|rows| &*rows.all)
    }

    /// Number of tokens or rows.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// The sources of sequences.
#[derive(Default)]
pub(super) struct TokenSources {
    pub(super) own: HashMap<SequenceId, Source>,
    /// The source of sequences without one of their own.
    pub(super) default: Source,
    /// The captured values of sources that were read before the last pass.
    pub(super) values: Vec<NamedValue>,
}

impl TokenSources {
    /// The source of a sequence; empty if it has none.
    pub(super) fn of(&self, sequence: SequenceId) -> &Source {
        self.own.get(&sequence).unwrap_or(&self.default)
    }

    /// The rows of sources at these positions, one after another; empty if sources are tokens.
    pub(super) fn rows(&self, positions: &[(SequenceId, u32)]) -> Vec<f32> {
        let row = |(id, position): &(SequenceId, u32)| {
            let source = self.of(*id);
            let rows = source.as_rows()?;
            let width = rows.len() / source.len().max(1);
            rows.get(*position as usize * width..)?.get(..width)
        };
        positions
            .iter()
            .filter_map(row)
            .flatten()
            .copied()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_rows_follows_from_every_row_and_from_their_width() {
        let rows: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let source = Source::of_rows(&rows, 2);
        assert_eq!((source.len(), source.as_rows()), (12, Some(&rows[..])));
        assert_eq!(source.key(&[7]), Source::of_rows(&rows, 2).key(&[7]));
        assert_ne!(source.key(&[7]), source.key(&[]));
        assert_ne!(source.key(&[]), Source::of_rows(&rows, 4).key(&[]));
        for at in 0..rows.len() {
            let mut other = rows.clone();
            other[at] += 0.5;
            assert_ne!(source.key(&[]), Source::of_rows(&other, 2).key(&[]), "{at}");
        }
        assert!(Source::default().key(&[1, 2]) == [1, 2]);
    }

    #[test]
    fn rows_of_positions_are_those_of_their_sequences() {
        let mut sources = TokenSources::default();
        sources
            .own
            .insert(3, Source::of_rows(&[1.0, 2.0, 3.0, 4.0], 2));
        sources.own.insert(5, Source::of_rows(&[5.0, 6.0], 2));
        let rows = sources.rows(&[(5, 0), (3, 0), (3, 1)]);
        assert_eq!(rows, [5.0, 6.0, 1.0, 2.0, 3.0, 4.0]);
        sources.own.insert(5, Source::of_tokens(&[1]));
        assert!(sources.rows(&[(5, 0)]).is_empty());
    }
}
