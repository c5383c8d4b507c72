//! A pass that was prepared before its tokens are known. Not here: how, and when it is used (`prepare.rs`).

use super::batch::Batch;
use super::cache::{NOBODY, SequenceId};
use super::sub_batch::SubBatch;

/// A pass whose inputs are written but for its tokens.
pub(super) struct Prepared {
    /// The place of each token of the batch. [`NOBODY`] stands for sequences that have ended.
    pub(super) places: Vec<(SequenceId, u32)>,
    /// The padded pass over them. The tokens are not known.
    pub(super) part: SubBatch,
    pub(super) n_views: u64,
    /// Blocks of each pool that it took.
    pub(super) n_ahead: Vec<usize>,
    /// What the inputs were made of and written to.
    pub(super) versions: InputVersions,
    /// Whether devices compute it, with the best tokens of the pass before.
    pub(super) is_launched: bool,
}

/// Differs after each change of block tables, and of the loaded graph and its inputs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct InputVersions {
    pub(super) tables: u64,
    pub(super) graph: u64,
}

impl Prepared {
    /// Whether it serves a batch, if nothing has changed but that sequences have ended.
    pub(super) fn serves(&self, batch: &Batch) -> bool {
        let left = self.places.iter().filter(|(id, _)| *id != NOBODY);
        batch.wants_top
            && !batch.wants_hidden
            && batch.outputs.iter().all(|wanted| *wanted)
            && batch.types.iter().all(|of_type| *of_type == 0)
            && left.eq(&batch.positions)
    }

    /// Whether the tokens of a batch that it serves are those that it has read: those at its rows in `best`.
    pub(super) fn has_read(&self, batch: &Batch, best: &[u32]) -> bool {
        let rows = self.part.rows.as_deref().unwrap_or(&[]);
        let of_places = self.places.iter().zip(rows);
        let left = of_places.filter(|((id, _), _)| *id != NOBODY);
        left.map(|(_, row)| best.get(*row))
            .eq(batch.tokens.iter().map(Some))
    }

    /// Whether each of its rows follows the same row of the pass before, which has a result.
    pub(super) fn follows(&self, before: &Batch) -> bool {
        let own = &self.part.batch.positions;
        let rows = before.positions.iter().zip(&before.outputs);
        own.len() == before.len()
            && own.iter().zip(rows).all(|(own, ((id, at), wanted))| {
                own.0 == NOBODY || *wanted && (*id, *at + 1) == *own
            })
    }

    /// The pass over a batch that it serves, and the number of each of its results.
    pub(super) fn over(self, batch: &Batch) -> (SubBatch, Vec<usize>) {
        let mut part = self.part;
        let rows = part.rows.as_deref().unwrap_or(&[]);
        let mut tokens = batch.tokens.iter();
        let mut results = Vec::with_capacity(batch.len());
        for (number, ((id, _), row)) in self.places.iter().zip(rows).enumerate() {
            match (*id, tokens.as_slice()) {
                (NOBODY, _) => part.batch.positions[*row] = (NOBODY, 0),
                (_, [token, ..]) => {
                    part.batch.tokens[*row] = *token;
                    results.push(number);
                    tokens.next();
                }
                _ => {}
            }
        }
        (part, results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_sequences_that_have_ended_are_those_of_nobody() {
        let mut padded = Batch::default();
        for (id, position) in [(7, 20), (NOBODY, 1), (3, 9), (5, 4)] {
            padded.push(0, id, position, id != NOBODY);
        }
        let prepared = || Prepared {
            places: vec![(3, 9), (NOBODY, 0), (7, 20)],
            part: SubBatch {
                batch: padded.clone(),
                groups: Vec::new(),
                outputs: vec![0, 1, 2],
                rows: Some(vec![2, 3, 0]),
            },
            n_views: 1,
            n_ahead: Vec::new(),
            versions: InputVersions {
                tables: 0,
                graph: 0,
            },
            is_launched: false,
        };
        let batch = |places: &[(SequenceId, u32)]| {
            let mut batch = Batch {
                wants_top: true,
                ..Batch::default()
            };
            places
                .iter()
                .zip(60..)
                .for_each(|((id, position), token)| batch.push(token, *id, *position, true));
            batch
        };
        let own = batch(&[(3, 9), (7, 20)]);
        assert!(prepared().serves(&own));
        let (part, results) = prepared().over(&own);
        assert_eq!(part.batch.tokens, [61, 0, 60, 0]);
        assert_eq!(
            part.batch.positions,
            [(7, 20), (NOBODY, 1), (3, 9), (NOBODY, 0)]
        );
        assert_eq!(results, [0, 2]);
        for other in [
            &[(3, 9)][..],
            &[(3, 9), (7, 21)],
            &[(7, 20), (3, 9)],
            &[(3, 9), (5, 4), (7, 20)],
        ] {
            assert!(!prepared().serves(&batch(other)), "{other:?}");
        }
        let unwanted = Batch {
            outputs: vec![true, false],
            ..own
        };
        assert!(!prepared().serves(&unwanted));
    }

    #[test]
    fn a_launched_pass_serves_the_tokens_at_its_rows_and_follows_the_same_rows() {
        let mut padded = Batch::default();
        for (id, position) in [(7, 20), (NOBODY, 1), (3, 9)] {
            padded.push(0, id, position, id != NOBODY);
        }
        let prepared = Prepared {
            places: vec![(3, 9), (7, 20)],
            part: SubBatch {
                batch: padded.clone(),
                groups: Vec::new(),
                outputs: vec![0, 1],
                rows: Some(vec![2, 0]),
            },
            n_views: 1,
            n_ahead: Vec::new(),
            versions: InputVersions {
                tables: 0,
                graph: 0,
            },
            is_launched: true,
        };
        let tokens = |tokens: &[u32]| Batch {
            tokens: tokens.to_vec(),
            ..Batch::default()
        };
        assert!(prepared.has_read(&tokens(&[50, 60]), &[60, 8, 50]));
        assert!(!prepared.has_read(&tokens(&[50, 60]), &[50, 8, 60]));
        assert!(!prepared.has_read(&tokens(&[50]), &[60, 8, 50]));
        let left = Prepared {
            places: vec![(NOBODY, 0), (7, 20)],
            ..prepared
        };
        assert!(left.has_read(&tokens(&[60]), &[60, 8, 50]));
        assert!(!left.has_read(&tokens(&[60]), &[]));
        let before = |rows: &[(SequenceId, u32)]| {
            let mut batch = Batch::default();
            rows.iter()
                .for_each(|(id, at)| batch.push(0, *id, *at, *id != NOBODY));
            batch
        };
        assert!(left.follows(&before(&[(7, 19), (5, 40), (3, 8)])));
        for other in [
            &[(7, 19), (NOBODY, 1)][..],
            &[(7, 18), (NOBODY, 1), (3, 8)],
            &[(3, 8), (NOBODY, 1), (7, 19)],
            &[(7, 19), (NOBODY, 1), (NOBODY, 2)],
        ] {
            assert!(!left.follows(&before(other)), "{other:?}");
        }
    }
}
