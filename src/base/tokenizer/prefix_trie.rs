//! A set of texts that finds those that a given text starts with, byte by byte: a trie.
//!
//! Invariant: the nodes lie level by level, so that those after a node are adjacent, and they are sorted by their byte.

use std::borrow::Cow;

/// The index for no value.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct PrefixTrie<T> {
    /// The root, the other nodes, and one more where their successors end.
    nodes: Vec<Node>,
    values: Vec<T>,
}

#[derive(Debug)]
struct Node {
    /// The byte that leads here.
    byte: u8,
    /// The value of the text that ends here; [`NONE`] if none does.
    value: u32,
    /// The first node after this one; those before that of the next node follow it.
    next: usize,
}

impl<T: Copy> PrefixTrie<T> {
    /// Builds the set. Of entries with the same text the last one counts; an empty text is left out.
    pub(super) fn new<'t>(entries: impl IntoIterator<Item = (Cow<'t, [u8]>, T)>) -> Self {
        let mut entries: Vec<_> = entries
            .into_iter()
            .filter(|(text, _)| !text.is_empty())
            .collect();
        entries.reverse();
        // The sort is stable on reversed entries: of equal texts the last one comes first and is kept.
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries.dedup_by(|other, first| other.0 == first.0);
        let node = |byte| Node {
            byte,
            value: NONE,
            next: 0,
        };
        let mut nodes = vec![node(0)];
        // For each node, the entries that start with its bytes, and the number of these bytes.
        let mut ranges = vec![(0, entries.len(), 0)];
        let mut at = 0;
        while let Some(&(mut start, end, len)) = ranges.get(at) {
            nodes[at].next = nodes.len();
            if entries[start..end]
                .first()
                .is_some_and(|entry| entry.0.len() == len)
            {
                nodes[at].value = start as u32;
                start += 1;
            }
            for group in entries[start..end].chunk_by(|a, b| a.0[len] == b.0[len]) {
                nodes.push(node(group[0].0[len]));
                ranges.push((start, start + group.len(), len + 1));
                start += group.len();
            }
            at += 1;
        }
        nodes.push(Node {
            next: nodes.len(),
            ..node(0)
        });
        Self {
            nodes,
            values: entries.into_iter().map(|(_, value)| value).collect(),
        }
    }

    /// Whether there is no text.
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Calls `visit` with length and value of every entry that `text` starts with, shortest first.
    pub(super) fn each(&self, text: &[u8], mut visit: impl FnMut(usize, T)) {
        let mut at = 0;
        for (len, byte) in (1..).zip(text) {
            let [first, end] = [at, at + 1].map(|at| self.nodes[at].next);
            let found = self.nodes[first..end].binary_search_by_key(byte, |node| node.byte);
            let Ok(found) = found else {
                return;
            };
            at = first + found;
            if let Some(value) = self.values.get(self.nodes[at].value as usize) {
                visit(len, *value);
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
        let prefixes = PrefixTrie::new(
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
