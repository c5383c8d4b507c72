//! Splits a batch into passes in the token order that recurrent states and attention over runs need: sequences of
//! equal length together, each sequence by itself.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::blocks::SequenceGroup;

use super::batch::Batch;
use super::cache::SequenceId;
use super::error::{Error, Result};

/// Maximum number of groups of sequences of equal length in a pass. A graph runs the operators over time once for
/// each group.
pub(super) const MAX_GROUPS: usize = 8;

/// The part of a batch that one pass reads.
#[derive(Debug)]
pub(super) struct SubBatch {
    /// The tokens, by group, then by sequence.
    pub(super) batch: Batch,
    /// The groups of sequences, the shortest first.
    pub(super) groups: Vec<SequenceGroup>,
    /// For each result, its index among the outputs of the whole batch.
    pub(super) outputs: Vec<usize>,
    /// The row of each result, if the part is padded; otherwise results are those of the rows that want one, in order.
    pub(super) rows: Option<Vec<usize>>,
}

impl SubBatch {
    /// The part in two: half of its sequences each, or, of a single sequence, half of its tokens. None if it has a single
    /// token. To be used without groups and without padding.
    pub(super) fn halves(&self) -> Option<[Self; 2]> {
        let positions = &self.batch.positions;
        let starts: Vec<usize> = (1..positions.len())
            .filter(|at| positions[at - 1].0 != positions[*at].0)
            .collect();
        let middle = match starts.len() {
            0 => positions.len() / 2,
            n => starts[n / 2],
        };
        let n_outputs = self.batch.outputs[..middle]
            .iter()
            .filter(|wanted| **wanted);
        let n_outputs = n_outputs.count();
        let part = |own: Range<usize>, outputs: &[usize]| {
            let mut batch = Batch::default();
            batch.wants_hidden = self.batch.wants_hidden;
            for i in own {
                batch.push_from(&self.batch, i);
            }
            Self {
                batch,
                groups: Vec::new(),
                outputs: outputs.to_vec(),
                rows: None,
            }
        };
        let (before, after) = self.outputs.split_at(n_outputs);
        (middle > 0).then(|| {
            [
                part(0..middle, before),
                part(middle..positions.len(), after),
            ]
        })
    }
}

/// The tokens of each sequence of a batch, by their indices in it.
fn sequences(batch: &Batch) -> Vec<(SequenceId, Vec<usize>)> {
    let mut sequences: Vec<(SequenceId, Vec<usize>)> = Vec::new();
    let mut known: FxHashMap<SequenceId, usize> = FxHashMap::default();
    for (i, (sequence, _)) in batch.positions.iter().enumerate() {
        let at = *known.entry(*sequence).or_insert(sequences.len());
        match sequences.get_mut(at) {
            Some((_, tokens)) => tokens.push(i),
            None => sequences.push((*sequence, vec![i])),
        }
    }
    sequences
}

/// Checks that the tokens of every sequence are consecutive from `next` on, the position at which it continues.
pub(super) fn check_order(batch: &Batch, next: impl Fn(SequenceId) -> u32) -> Result<()> {
    let mut expected: FxHashMap<SequenceId, u32> = FxHashMap::default();
    for &(sequence, found) in &batch.positions {
        let expected = expected.entry(sequence).or_insert_with(|| next(sequence));
        if found != *expected {
            return Err(Error::Batch {
                found: format!("position {found} of sequence {sequence}"),
                expected: format!("position {expected}"),
            });
        }
        *expected += 1;
    }
    Ok(())
}

/// Splits a batch into passes with at most `n_groups` different sequence lengths. Sequences of equal length are in
/// the order of `place`, which gets their length and gives
/// a number for it, by which they are ordered first, and their own. Those that are to be `alone` have passes of their own, after all others.
pub(super) fn by_sequence(
    batch: &Batch,
    n_groups: usize,
    place: impl Fn(SequenceId, usize) -> (usize, usize),
    alone: impl Fn(SequenceId) -> bool,
) -> Vec<SubBatch> {
    let mut sequences = sequences(batch);
    let mut output = 0;
    let numbers: Vec<usize> = batch
        .outputs
        .iter()
        .map(|wanted| {
            output += usize::from(*wanted);
            output.saturating_sub(1)
        })
        .collect();
    sequences.sort_by_cached_key(|(id, tokens)| {
        let (class, place) = place(*id, tokens.len());
        (alone(*id), class, place, tokens.len())
    });
    let (together, apart) = sequences.split_at(sequences.partition_point(|(id, _)| !alone(*id)));
    let groups = together.chunk_by(|(_, a), (_, b)| a.len() == b.len());
    let groups: Vec<_> = groups.collect();
    let apart: Vec<_> = apart.chunks(1).map(|one| [one]).collect();
    let apart = apart.iter().map(|one| one.as_slice());
    groups
        .chunks(n_groups)
        .chain(apart)
        .map(|groups| {
            let group = |sequences: &&[(SequenceId, Vec<usize>)]| SequenceGroup {
                n_seqs: sequences.len(),
                n_steps: sequences[0].1.len(),
            };
            let mut part = SubBatch {
                batch: Batch::default(),
                groups: groups.iter().map(group).collect(),
                outputs: Vec::new(),
                rows: None,
            };
            part.batch.wants_hidden = batch.wants_hidden;
            part.batch.wants_top = batch.wants_top;
            let sequences = groups.iter().copied().flatten();
            for i in sequences.flat_map(|(_, tokens)| tokens).copied() {
                part.batch.push_from(batch, i);
                if batch.outputs[i] {
                    part.outputs.push(numbers[i]);
                }
            }
            part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(tokens: &[(u32, SequenceId, u32, bool)]) -> Batch {
        let mut batch = Batch::default();
        for &(token, sequence, position, wanted) in tokens {
            batch.push(token, sequence, position, wanted);
        }
        batch
    }

    #[test]
    fn sequences_of_one_length_are_together_and_outputs_keep_their_places() {
        let tokens = [
            (10, 1, 0, true),
            (20, 2, 4, true),
            (11, 1, 1, false),
            (30, 3, 0, true),
            (12, 1, 2, true),
        ];
        let parts = by_sequence(&batch(&tokens), MAX_GROUPS, |_, n| (n, 0), |_| false);
        let [part] = parts.as_slice() else {
            panic!("one pass: {parts:?}");
        };
        assert_eq!(part.batch.tokens, [20, 30, 10, 11, 12]);
        assert_eq!(part.outputs, [1, 2, 0, 3]);
        let groups = [(2, 1), (1, 3)];
        let groups = groups.map(|(n_seqs, n_steps)| SequenceGroup { n_seqs, n_steps });
        assert_eq!(part.groups, groups);
    }

    #[test]
    fn sequences_of_one_length_are_in_the_order_of_their_places() {
        let tokens = [(10, 1, 0, true), (20, 2, 4, true), (30, 3, 0, true)];
        let parts = by_sequence(
            &batch(&tokens),
            usize::MAX,
            |id, n| (n, 10 - id as usize),
            |_| false,
        );
        assert_eq!(parts[0].batch.tokens, [30, 20, 10]);
        assert_eq!(parts[0].outputs, [2, 1, 0]);
    }

    #[test]
    fn a_pass_has_a_bounded_number_of_lengths() {
        let n = MAX_GROUPS as u32 + 1;
        let tokens = (0..n).flat_map(|id| (0..=id).map(move |at| (7, id, at, at == id)));
        let parts = by_sequence(
            &batch(&tokens.collect::<Vec<_>>()),
            MAX_GROUPS,
            |_, n| (n, 0),
            |_| false,
        );
        let n_groups: Vec<usize> = parts.iter().map(|part| part.groups.len()).collect();
        assert_eq!(n_groups, [MAX_GROUPS, 1]);
        assert_eq!(parts[1].outputs, [MAX_GROUPS]);
    }

    #[test]
    fn sequences_that_are_to_be_alone_have_the_last_passes() {
        let tokens = [(10, 1, 0, true), (20, 2, 4, true), (30, 3, 0, true)];
        let parts = by_sequence(&batch(&tokens), usize::MAX, |_, n| (n, 0), |id| id != 2);
        let tokens: Vec<&[u32]> = parts.iter().map(|p| p.batch.tokens.as_slice()).collect();
        assert_eq!(tokens, [[20], [10], [30]]);
        assert_eq!(parts[1].outputs, [0]);
    }

    #[test]
    fn a_gap_is_refused() {
        let gap = batch(&[(1, 0, 0, false), (1, 0, 2, false)]);
        assert!(check_order(&gap, |_| 0).is_err());
        let again = batch(&[(1, 0, 0, false)]);
        assert!(check_order(&again, |_| 1).is_err());
        let two = batch(&[(1, 0, 3, false), (1, 5, 0, false), (1, 0, 4, false)]);
        assert!(check_order(&two, |id| if id == 0 { 3 } else { 0 }).is_ok());
    }
}
