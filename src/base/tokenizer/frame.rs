//! The special tokens around texts: how encoders read one text, and two texts as a pair.

use super::{Encoder, Error, Tokenizer};

/// The special tokens that a vocabulary adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The tokens before a text.
    pub start: Vec<u32>,
    /// The tokens between the two texts of a pair.
    pub between: Vec<u32>,
    /// The tokens after a text, or after a pair.
    pub end: Vec<u32>,
}

impl Frame {
    /// The tokens of a text without the special tokens around them.
    pub fn inner<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        let tokens = tokens.strip_prefix(&self.start[..]).unwrap_or(tokens);
        tokens.strip_suffix(&self.end[..]).unwrap_or(tokens)
    }
}

impl Tokenizer {
    /// The special tokens that the vocabulary adds around texts.
    ///
    /// Between the texts of a pair is the end of a text, in some vocabularies followed by the separator. The tokens
    /// after it have token type 1.
    ///
    /// # Errors
    /// The model has no tokenizer.
    pub fn frame(&self) -> Result<Frame, Error> {
        let around = self.encode("", true, false)?;
        let start = around
            .first()
            .copied()
            .filter(|id| Some(*id) == self.start());
        let end = around[usize::from(start.is_some())..].to_vec();
        let mut between = end.clone();
        if self.doubles_end {
            between.extend(self.roles.sep);
        }
        Ok(Frame {
            start: start.into_iter().collect(),
            between,
            end,
        })
    }

    /// The token that a text starts with, if special tokens are requested.
    fn start(&self) -> Option<u32> {
        match &self.encoder {
            Some(Encoder::External(external)) => external.first(),
            _ => self.roles.bos.filter(|_| self.adds_bos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_what_stands_between_special_tokens() {
        let frame = Frame {
            start: vec![1],
            between: vec![2, 2],
            end: vec![2],
        };
        assert_eq!(frame.inner(&[1, 7, 8, 2]), [7, 8]);
        assert_eq!(frame.inner(&[1, 2]), [0u32; 0]);
        assert_eq!(Frame::default().inner(&[7]), [7]);
    }
}
