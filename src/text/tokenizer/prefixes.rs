//! A set of texts that finds those that a given text starts with, byte by byte.
//!
//! A sorted array replaces a trie: texts with a common prefix are adjacent. Invariant: sorted by text, and each text
//! occurs once.

/// Texts, each with a value.
#[derive(Debug)]
pub(super) struct Prefixes<T>(Vec<(Box<[u8]>, T)>);

impl<T: Copy> Prefixes<T> {
    /// Builds the set. Of entries with the same text the last one counts; an empty text is left out.
    pub(super) fn new(entries: impl IntoIterator<Item = (Box<[u8]>, T)>) -> Self {
        let mut entries: Vec<_> = entries
            .into_iter()
            .filter(|(text, _)| !text.is_empty())
            .collect();
        entries.reverse();
        // The sort is stable on reversed entries: of equal texts the last one comes first and is kept.
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries.dedup_by(|other, first| other.0 == first.0);
        Self(entries)
    }

    /// Whether there is no text.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls `visit` with length and value of every entry that `text` starts with, shortest first.
    pub(super) fn each(&self, text: &[u8], mut visit: impl FnMut(usize, T)) {
        let mut entries = self.0.as_slice();
        for (at, byte) in text.iter().enumerate() {
            let start = entries.partition_point(|(entry, _)| entry.get(at) < Some(byte));
            let end = entries.partition_point(|(entry, _)| entry.get(at) <= Some(byte));
            entries = &entries[start..end];
            match entries.first() {
                None => return,
                Some((entry, value)) if entry.len() == at + 1 => visit(at + 1, *value),
                Some(_) => {}
            }
        }
    }

    /// Length and value of the longest entry that `text` starts with.
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, T)> {
        let mut found = None;
        self.each(text, |len, value| found = Some((len, value)));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_is_visited_and_the_last_of_equal_ones_counts() {
        let entries = ["ab", "a", "abcd", "b", "a", ""];
        let prefixes = Prefixes::new(
            (0..)
                .zip(entries)
                .map(|(at, text)| (text.as_bytes().into(), at)),
        );
        let mut seen = Vec::new();
        prefixes.each(b"abc", |len, value| seen.push((len, value)));
        assert_eq!(seen, [(1, 4), (2, 0)]);
        assert_eq!(prefixes.longest(b"abcde"), Some((4, 2)));
        assert_eq!(prefixes.longest(b"c"), None);
        assert_eq!(prefixes.longest(b""), None);
    }
}
