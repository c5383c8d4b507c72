//! Captured attention weights: their tokens, and the keys that these attend to.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::super::batch::Batch;
use super::super::cache::{BlockManager, SequenceId};

/// Tokens whose attention weights are captured, and the keys of one KV group that they attend to.
pub(crate) struct PairSet {
    pub(crate) group: usize,
    /// Indices of the tokens in the batch.
    pub(crate) tokens: Vec<usize>,
    /// Rows of the keys.
    pub(crate) keys: Vec<i32>,
    /// For each token: the first position that it attends to, the index of its key, and the number of positions.
    seen: Vec<(u32, usize, usize)>,
    /// The mask `[n_keys, n_tokens]`.
    pub(crate) mask: Vec<f32>,
}

/// The number of keys of a set is a multiple of this, so that a graph serves many steps.
const KEY_STEP: usize = 64;

impl PairSet {
    pub(super) fn new(
        group: usize,
        tokens: Vec<usize>,
        batch: &Batch,
        (blocks, is_cached): Keys<'_>,
    ) -> Self {
        let rule = blocks.rule(group);
        let place = |at: &usize| batch.positions[*at];
        // Without a cache there are only the tokens of the pass.
        let own = batch.positions.iter().enumerate();
        let own: HashMap<(SequenceId, u32), usize> = match is_cached {
            true => HashMap::new(),
            false => own.map(|(at, place)| (*place, at)).collect(),
        };
        let len = |id: SequenceId| match is_cached {
            true => blocks.next(id),
            false => batch
                .positions
                .iter()
                .filter(|(other, _)| *other == id)
                .count() as u32,
        };
        let row = |id: SequenceId, position: u32| match is_cached {
            true => blocks.row(group, id, position),
            false => own.get(&(id, position)).copied(),
        };
        // For each sequence, the range of positions that its tokens attend to, and the index of the first key.
        let mut ranges: BTreeMap<SequenceId, (Range<u32>, usize)> = BTreeMap::new();
        for (id, position) in tokens.iter().map(place) {
            let visible = rule.visible(position, len(id));
            let (range, _) = ranges.entry(id).or_insert((visible.clone(), 0));
            *range = range.start.min(visible.start)..range.end.max(visible.end);
        }
        let mut keys: Vec<i32> = Vec::new();
        for (id, (range, first)) in &mut ranges {
            *first = keys.len();
            keys.extend(
                range
                    .clone()
                    .map(|p| row(*id, p).map_or(0, |row| row as i32)),
            );
        }
        keys.resize(keys.len().next_multiple_of(KEY_STEP), 0);
        let mut mask = vec![f32::NEG_INFINITY; keys.len() * tokens.len()];
        let mut seen = Vec::with_capacity(tokens.len());
        for (own, (id, position)) in mask.chunks_mut(keys.len()).zip(tokens.iter().map(place)) {
            let (range, first) = &ranges[&id];
            let visible = rule.visible(position, len(id));
            let first = first + (visible.start - range.start) as usize;
            seen.push((visible.start, first, visible.len()));
            for (value, key) in own[first..].iter_mut().zip(visible) {
                *value = rule.mask(position, key);
            }
        }
        Self {
            group,
            tokens,
            keys,
            seen,
            mask,
        }
    }

    /// The weights of a token over the positions from 0 on, head after head, given its weights over all keys.
    pub(super) fn row(&self, token: usize, weights: &[f32]) -> Vec<f32> {
        let (start, first, n) = self.seen[token];
        let heads = weights.chunks(self.keys.len());
        let dense = heads.flat_map(|head| {
            let before = std::iter::repeat_n(0.0, start as usize);
            before.chain(head[first..first + n].iter().copied())
        });
        dense.collect()
    }
}

/// The block manager with the rows of keys, and whether keys are cached.
pub(super) type Keys<'a> = (&'a BlockManager, bool);
