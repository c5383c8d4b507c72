//! Why no token could be sampled.

/// Why no token could be sampled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A logit is NaN: the forward pass computed wrong values.
    #[error("the logit of token {index} is not a number")]
    NotANumber {
        /// The id of the first such token.
        index: usize,
    },
    /// A logit is plus infinity: the forward pass overflowed. (Minus infinity is a banned token.)
    #[error("the logit of token {index} is infinite")]
    Infinite {
        /// The id of the first such token.
        index: usize,
    },
    /// Every token is banned, by the logits, the mask or a bias, or was removed by a stage.
    #[error("no token is left to sample: each of {n_vocab} is banned or removed")]
    NothingLeft {
        /// Number of logits.
        n_vocab: usize,
    },
    /// `logit_bias` names a token outside the model's vocabulary.
    #[error("`logit_bias`: found token {id}, expected an id below {n_vocab}")]
    UnknownToken {
        /// The token of the bias.
        id: u32,
        /// Number of logits.
        n_vocab: usize,
    },
    /// The hidden states do not have one row for each token.
    #[error("hidden states: found {found} numbers, expected {expected}")]
    HiddenLength {
        /// Number of elements in the hidden states.
        found: usize,
        /// Number of elements for the tokens.
        expected: usize,
    },
    /// A hidden state is NaN or infinite: the forward pass computed wrong values.
    #[error("number {index} of the hidden states is not finite")]
    HiddenNotFinite {
        /// The index of the first such element.
        index: usize,
    },
    /// The constraint mask does not have one bit per token, rounded up to whole words.
    #[error("constraint mask: found {found} words of 32 bits, expected {expected}")]
    MaskLength {
        /// Number of words in the mask.
        found: usize,
        /// Number of words that the logits require.
        expected: usize,
    },
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
