//! SentencePiece's table of replacements (`precompiled_charsmap`).
//!
//! The table is a double-array trie with XOR-compressed offsets (Kanda 2018) over the texts that are replaced, followed
//! by the replacements, each ended by a zero byte. A node is 32 bits: the offset of its children in bits 10 to 30, in
//! units of 256 if bit 9 is set; whether a text ends here in bit 8; the byte that leads here in bits 0 to 7. The child
//! of such an end holds the position of the replacement, with bit 31 set. Invariant: a malformed table replaces nothing
//! and is never read out of bounds.

use crate::weights::{Array, Metadata};

use super::{Error, keys};

#[derive(Debug)]
pub(super) struct Replacements {
    nodes: Vec<u32>,
    texts: Vec<u8>,
}

impl Replacements {
    /// Reads the table of a file, if it has one.
    pub(super) fn read(metadata: &Metadata) -> Result<Option<Self>, Error> {
        match metadata
            .get(keys::CHARSMAP)
            .and_then(|value| value.as_array())
        {
            Some(Array::U8(bytes)) => Self::new(bytes),
            Some(Array::I8(bytes)) => {
                let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
                Self::new(&bytes)
            }
            Some(_) => Err(Error::WrongType {
                key: keys::CHARSMAP,
                found: "an array",
                expected: "an array of bytes",
            }),
            None => Ok(None),
        }
    }

    fn new(bytes: &[u8]) -> Result<Option<Self>, Error> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let broken = || Error::BrokenTable(keys::CHARSMAP);
        let (head, rest) = bytes.split_first_chunk::<4>().ok_or_else(broken)?;
        let size = u32::from_le_bytes(*head) as usize;
        let (nodes, texts) = rest.split_at_checked(size).ok_or_else(broken)?;
        let node = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).unwrap_or(0);
        Ok(Some(Self {
            nodes: nodes.chunks_exact(4).map(node).collect(),
            texts: texts.to_vec(),
        }))
    }

    /// The longest replaced text that `text` starts with: its length and its replacement.
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let base = |node: u32| ((node >> 10) << ((node & (1 << 9)) >> 6)) as usize;
        let mut at = base(*self.nodes.first()?);
        let mut found = None;
        for (i, byte) in text.iter().enumerate() {
            at ^= usize::from(*byte);
            let Some(node) = self.nodes.get(at).copied() else {
                break;
            };
            if *byte == 0 || node & (1 << 31 | 0xff) != u32::from(*byte) {
                break;
            }
            at ^= base(node);
            if node & (1 << 8) != 0
                && let Some(value) = self.nodes.get(at)
            {
                found = Some((i + 1, (value & !(1 << 31)) as usize));
            }
        }
        let (len, place) = found?;
        let text = self.texts.get(place..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        Some((len, &text[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_table_is_refused_or_replaces_nothing() {
        // A table whose root points far out of bounds.
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend([0xff; 8]);
        let table = Replacements::new(&bytes)
            .expect("a table")
            .expect("not empty");
        assert_eq!(table.longest(b"ab"), None);
        assert!(Replacements::new(&[9, 0, 0, 0, 1]).is_err());
        assert!(Replacements::new(&[9]).is_err());
        assert!(Replacements::new(&[]).is_ok_and(|table| table.is_none()));
    }
}
