//! Why no token could be sampled.

/// Why no token could be sampled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A logit is NaN: the forward pass went wrong.
    #[error("the logit of token {index} is not a number")]
    NotANumber {
        /// The first such token.
        index: usize,
    },
    /// A logit is plus infinity: the forward pass overflowed. (Minus infinity is a banned token.)
    #[error("the logit of token {index} is infinite")]
    Infinite {
        /// The first such token.
        index: usize,
    },
    /// Every token is banned, by the logits, the mask or a bias, or was removed by a stage.
    #[error("no token is left to sample: each of {n_vocab} is banned or removed")]
    NothingLeft {
        /// Number of logits that came in.
        n_vocab: usize,
    },
    /// `logit_bias` names a token that the model does not have.
    #[error("`logit_bias`: found token {id}, expected an id below {n_vocab}")]
    UnknownToken {
        /// The token of the bias.
        id: u32,
        /// Number of logits that came in.
        n_vocab: usize,
    },
    /// Hidden states are not one row for each token.
    #[error("hidden states: found {found} numbers, expected {expected}")]
    HiddenLength {
        /// Numbers in them.
        found: usize,
        /// Numbers that the tokens ask for.
        expected: usize,
    },
    /// A hidden state is NaN or infinite: the forward pass went wrong.
    #[error("number {index} of the hidden states is not finite")]
    HiddenNotFinite {
        /// The first such number.
        index: usize,
    },
    /// The constraint mask is not one bit per token, rounded up to whole words.
    #[error("constraint mask: found {found} words of 32 bits, expected {expected}")]
    MaskLength {
        /// Words in the mask.
        found: usize,
        /// Words that the logits ask for.
        expected: usize,
    },
}

impl SampleError {
    /// Whether the numbers that came in are at fault: they are not finite.
    pub fn is_not_finite(&self) -> bool {
        matches!(
            self,
            Self::NotANumber { .. } | Self::Infinite { .. } | Self::HiddenNotFinite { .. }
        )
    }
}
