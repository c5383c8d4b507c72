//! Splits a batch into passes in the token order that recurrent states and attention over runs need: sequences of
//! equal length together, each sequence by itself.

use std::collections::HashMap;

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
    /// For each row that wants logits, its index among the outputs of the whole batch.
    pub(super) outputs: Vec<usize>,
}

/// The tokens of each sequence of a batch, by their indices in it.
fn sequences(batch: &Batch) -> Vec<(SequenceId, Vec<usize>)> {
    let mut sequences: Vec<(SequenceId, Vec<usize>)> = Vec::new();
    for (i, (sequence, _)) in batch.positions.iter().enumerate() {
        match sequences.iter_mut().find(|(s, _)| s == sequence) {
            Some((_, tokens)) => tokens.push(i),
            None => sequences.push((*sequence, vec![i])),
        }
    }
    sequences
}

/// Checks that the tokens of every sequence are consecutive from `next` on, the position at which it continues.
pub(super) fn check_order(batch: &Batch, next: impl Fn(SequenceId) -> u32) -> Result<()> {
    let mut expected: HashMap<SequenceId, u32> = HashMap::new();
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
/// the order of `place`. Those that are to be `alone` have passes of their own, after all others.
pub(super) fn by_sequence(
    batch: &Batch,
    n_groups: usize,
    place: impl Fn(SequenceId) -> usize,
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
    sequences.sort_by_key(|(id, tokens)| (alone(*id), tokens.len(), place(*id)));
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
            };
            part.batch.wants_hidden = batch.wants_hidden;
            part.batch.wants_top = batch.wants_top;
            let sequences = groups.iter().copied().flatten();
            for i in sequences.flat_map(|(_, tokens)| tokens).copied() {
                let (token, place, wanted) =
                    (batch.tokens[i], batch.positions[i], batch.outputs[i]);
                let of_type = batch.types[i];
                part.batch.push_of_type(token, place, of_type, wanted);
                if wanted {
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
        let parts = by_sequence(&batch(&tokens), MAX_GROUPS, |_| 0, |_| false);
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
            |id| 10 - id as usize,
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
            |_| 0,
            |_| false,
        );
        let n_groups: Vec<usize> = parts.iter().map(|part| part.groups.len()).collect();
        assert_eq!(n_groups, [MAX_GROUPS, 1]);
        assert_eq!(parts[1].outputs, [MAX_GROUPS]);
    }

    #[test]
    fn sequences_that_are_to_be_alone_have_the_last_passes() {
        let tokens = [(10, 1, 0, true), (20, 2, 4, true), (30, 3, 0, true)];
        let parts = by_sequence(&batch(&tokens), usize::MAX, |_| 0, |id| id != 2);
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
