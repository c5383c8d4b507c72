//! Why no token could be sampled.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    #[error("the logit of token {index} is not a number")]
    NotANumber { index: usize },
    /// A logit is plus infinity: the forward pass overflowed. (Minus infinity is a banned token.)
    #[error("the logit of token {index} is infinite")]
    Infinite { index: usize },
    #[error("no token is left to sample: each of {n_vocab} is banned or removed")]
    NothingLeft { n_vocab: usize },
    #[error("`logit_bias`: found token {id}, expected an id below {n_vocab}")]
    UnknownToken { id: u32, n_vocab: usize },
    /// Only the highest logits of the row are known, and the others matter: the step needs all.
    #[error("the highest logits do not decide which token is next")]
    Undecided,
    #[error("hidden states: found {found} numbers, expected {expected}")]
    HiddenLength { found: usize, expected: usize },
    #[error("number {index} of the hidden states is not finite")]
    HiddenNotFinite { index: usize },
    /// The constraint mask does not have one bit per token, rounded up to whole words.
    #[error("constraint mask: found {found} words of 32 bits, expected {expected}")]
    MaskLength { found: usize, expected: usize },
}

impl SampleError {
    /// Whether the model computed values that are not finite.
    pub fn is_not_finite(&self) -> bool {
        matches!(
            self,
            Self::NotANumber { .. } | Self::Infinite { .. } | Self::HiddenNotFinite { .. }
        )
    }
}
