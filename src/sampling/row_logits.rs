//! The logits of a row as a sampler gets them: all of them, or the highest with the sum over all.

use super::error::SampleError;

/// The logits of a row.
#[derive(Clone, Copy, Debug)]
pub enum RowLogits<'a> {
    /// One logit for each token.
    All(&'a [f32]),
    /// The highest ones. A step that they do not decide ends with [`SampleError::Undecided`]; otherwise the result is that of all
    /// logits.
    Top(TopLogits<'a>),
}

impl RowLogits<'_> {
    /// Number of tokens of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        match self {
            Self::All(logits) => logits.len(),
            Self::Top(top) => top.n_vocab,
        }
    }
}

/// The highest logits of a row.
#[derive(Clone, Copy, Debug)]
pub struct TopLogits<'a> {
    /// Number of tokens of the vocabulary.
    pub n_vocab: usize,
    /// The tokens of the highest logits, in any order, each once. Of equal logits at the end any may be chosen.
    pub ids: &'a [u32],
    /// Their logits.
    pub logits: &'a [f32],
    /// The natural logarithm of the sum of e^logit over all tokens, with an error of at most 1e-3. What is not finite says that
    /// a logit may be none.
    pub log_sum: f64,
}

/// The tokens that may be picked: all, less those that a mask forbids, less those of a list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed<'a> {
    /// Bit `i % 32` of word `i / 32` is set for token `i`. None: all are allowed.
    pub mask: Option<&'a [u32]>,
    /// Tokens that are not allowed.
    pub banned: &'a [u32],
}

impl<'a> From<Option<&'a [u32]>> for Allowed<'a> {
    fn from(mask: Option<&'a [u32]>) -> Self {
        Self { mask, banned: &[] }
    }
}

impl Allowed<'_> {
    pub(super) fn check(&self, n_vocab: usize) -> Result<(), SampleError> {
        self.mask.map_or(Ok(()), |mask| check_mask(mask, n_vocab))
    }

    /// Whether a token of the vocabulary is allowed.
    pub(super) fn has(&self, token: u32) -> bool {
        let word = self.mask.map(|mask| mask[token as usize / 32]);
        word.is_none_or(|word| word >> (token % 32) & 1 == 1) && !self.banned.contains(&token)
    }
}

/// Checks that a mask has a bit for each token.
pub(super) fn check_mask(mask: &[u32], n_vocab: usize) -> Result<(), SampleError> {
    let expected = n_vocab.div_ceil(32);
    match mask.len() == expected {
        true => Ok(()),
        false => Err(SampleError::MaskLength {
            found: mask.len(),
            expected,
        }),
    }
}
