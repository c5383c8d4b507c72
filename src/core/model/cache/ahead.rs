//! Blocks for the tokens of the next pass, given while the pass before is computed: its tokens are not known, and that pass can
//! still be rolled back.

use super::block_manager::{BlockManager, counts};
use super::{AfterCopies, BLOCK, SequenceId};

impl BlockManager {
    /// Number of positions that are available in every pool once so many blocks of each are given back, none of pools that are not
    /// named; none if there is no pool.
    pub(crate) fn free_with(&self, n_given: &[usize]) -> Option<usize> {
        let given = n_given.iter().copied().chain(std::iter::repeat(0));
        let blocks = self.pools.iter().zip(given);
        let blocks = blocks.map(|(pool, n)| pool.available() + n).min();
        blocks.map(|n| n * BLOCK)
    }

    /// [`Self::prepare`] while the pass before is computed, which can still be rolled back: nothing is committed or freed. None if
    /// there is no room, or if runs are to be moved first because a sequence has ended.
    pub(crate) fn prepare_ahead(
        &mut self,
        places: &[(SequenceId, u32)],
    ) -> Option<AfterCopies<()>> {
        if self.has_ended {
            return None;
        }
        self.give(places, &counts(places), |_, _| Some(())).ok()
    }

    /// Adds tokens at places for which [`Self::prepare_ahead`] gave blocks.
    pub(crate) fn accept(&mut self, places: &[(SequenceId, u32)], tokens: &[u32]) {
        self.pass_on(&counts(places));
        self.append(places, tokens);
    }

    /// Number of blocks of each pool that the sequences of these places have beyond their tokens.
    pub(crate) fn n_ahead(&self, places: &[(SequenceId, u32)]) -> Vec<usize> {
        let mut n = vec![0; self.pools.len()];
        for sequence in places.iter().filter_map(|(id, _)| self.sequences.get(id)) {
            let own = sequence.tokens.len().div_ceil(BLOCK);
            for (n, table) in n.iter_mut().zip(&sequence.tables) {
                *n += table.len().saturating_sub(own);
            }
        }
        n
    }
}
