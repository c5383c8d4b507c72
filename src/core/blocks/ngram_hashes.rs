//! Rows of tables that hashes of n-grams select.

/// The rows of a table that hashes of n-grams select: n-grams of each token and the tokens before it, by length and
/// hash.
#[derive(Debug, PartialEq)]
pub struct NgramHashes {
    /// Number of tokens of the longest n-gram, at least 2.
    pub longest: u64,
    /// Number of hashes of the n-grams of one length.
    pub heads: u64,
    /// The stop token: all tokens before it count as it.
    pub stop: u64,
    /// The multiplier of each token of an n-gram, the latest first.
    pub multipliers: Vec<u64>,
    /// Number of rows of each hash, those of two tokens first; none is 0.
    pub sizes: Vec<u64>,
    /// The first row of each hash.
    pub offsets: Vec<u64>,
}

impl NgramHashes {
    /// Number of hashes of a token.
    pub fn count(&self) -> u64 {
        (self.longest - 1) * self.heads
    }

    /// The rows that a token's n-grams select; `before(i)` is the token i places before it, if there is one.
    pub fn rows(&self, token: u32, before: impl Fn(u32) -> Option<u32>) -> Vec<u64> {
        let mut mixed = u64::from(token).wrapping_mul(self.multipliers[0]);
        let mut is_cut = false;
        let mut rows = Vec::new();
        for back in 1..self.longest {
            let found = before(back as u32).map(u64::from);
            is_cut = is_cut || found.is_none_or(|token| token == self.stop);
            let token = found.filter(|_| !is_cut).unwrap_or(self.stop);
            mixed ^= token.wrapping_mul(self.multipliers[back as usize]);
            let first = ((back - 1) * self.heads) as usize;
            let of_length = first..first + self.heads as usize;
            rows.extend(of_length.map(|at| mixed % self.sizes[at] + self.offsets[at]));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_ngrams_follow_from_the_tokens_up_to_a_stop() {
        let ngrams = NgramHashes {
            longest: 3,
            heads: 2,
            stop: 9,
            multipliers: vec![2, 3, 5],
            sizes: vec![7, 11, 13, 17],
            offsets: vec![0, 7, 18, 31],
        };
        let rows = |before: [Option<u32>; 2]| ngrams.rows(4, |back| before[back as usize - 1]);
        // 8 xor 18 = 26, xor 5 = 31.
        assert_eq!(rows([Some(6), Some(1)]), [5, 11, 23, 45]);
        // 8 xor 27 = 19, xor 45 = 62: after a stop every token counts as one.
        assert_eq!(rows([Some(9), Some(1)]), [5, 15, 28, 42]);
        assert_eq!(rows([None, None]), [5, 15, 28, 42]);
        // 26 xor 45 = 55.
        assert_eq!(rows([Some(6), None]), [5, 11, 21, 35]);
    }
}
