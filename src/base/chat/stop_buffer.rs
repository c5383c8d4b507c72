//! Decides which text may be released: whole characters, nothing that may become a stop sequence, and each token's
//! entry together with its text; and where it ends: at a stop sequence, or at a line with too little indentation.
//!
//! Each token goes in with its bytes and an entry of the caller's, such as a log-probability. Text comes out in whole
//! tokens: a token is held while its bytes end inside a character or may be the start of a stop sequence. So the bytes
//! of the entries of each release are exactly the bytes of its text, and no entry is lost or invented. Bytes that are
//! not UTF-8 become one U+FFFD for each maximal invalid sequence (Unicode, section 3.9). Pure; called by the engine for
//! each token.

use std::collections::VecDeque;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleasedToken<T> {
    /// The bytes that the token contributes to the text; for a token that a stop sequence cuts, the bytes before it.
    pub bytes: Vec<u8>,
    /// The caller's entry.
    pub entry: T,
}

/// Text that is final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released<T> {
    pub text: String,
    /// The tokens of the text.
    pub entries: Vec<ReleasedToken<T>>,
    /// The index of the stop sequence that ended the answer.
    pub stopped: Option<usize>,
    /// Whether a line with too little indentation ended the answer.
    pub is_outdented: bool,
}

/// Holds text back until it is final.
#[derive(Clone, Debug)]
pub struct StopBuffer<T> {
    stops: Vec<Vec<u8>>,
    /// Whether the stop sequence that ends the answer is kept in the text.
    keeps_stop: bool,
    /// Number of tokens to come in which no stop sequence ends.
    n_open: usize,
    /// Minimum number of spaces and tabs at the start of each line but the first.
    n_indent: usize,
    /// Number of spaces and tabs since the last line end, while nothing else follows it.
    indent: Option<usize>,
    held: Vec<u8>,
    /// The held tokens, each with its end in `held`.
    tokens: VecDeque<(usize, T)>,
    is_stopped: bool,
}

impl<T> StopBuffer<T> {
    /// A buffer for these stop sequences; empty ones are ignored.
    pub fn new(stops: &[Vec<u8>]) -> Self {
        Self {
            stops: stops.to_vec(),
            keeps_stop: false,
            n_open: 0,
            n_indent: 0,
            indent: None,
            held: Vec::new(),
            tokens: VecDeque::new(),
            is_stopped: false,
        }
    }

    /// The same buffer. `keeps_stop`: the stop sequence that ends the answer is kept in the text.
    #[must_use]
    pub fn keeping_stop(self, keeps_stop: bool) -> Self {
        Self { keeps_stop, ..self }
    }

    /// The same buffer. A stop sequence that ends within the first `n` tokens does not end the answer.
    #[must_use]
    pub fn open_for(self, n: usize) -> Self {
        Self { n_open: n, ..self }
    }

    /// The same buffer. The answer ends before the first other character of a line, except of the first line, that starts
    /// with less than `n_indent` spaces and tabs.
    #[must_use]
    pub fn indented(self, n_indent: usize) -> Self {
        Self { n_indent, ..self }
    }

    /// Adds a token and releases the text that has become final. After the end of the answer, tokens are ignored.
    pub fn push(&mut self, bytes: &[u8], entry: T) -> Released<T> {
        if self.is_stopped {
            return self.release(0);
        }
        let before = self.held.len();
        self.held.extend_from_slice(bytes);
        self.tokens.push_back((self.held.len(), entry));
        let stop = match self.n_open {
            0 => self.find_stop(before),
            _ => None,
        };
        self.n_open = self.n_open.saturating_sub(1);
        let outdent = self.find_outdent(before);
        let stop = stop.filter(|(stop, start)| {
            outdent.is_none_or(|outdent| start + self.stops[*stop].len() <= outdent)
        });
        if let Some((stop, start)) = stop {
            self.is_stopped = true;
            let end = match self.keeps_stop {
                true => start + self.stops[stop].len(),
                false => start,
            };
            let mut released = self.cut(end);
            released.stopped = Some(stop);
            return released;
        }
        if let Some(outdent) = outdent {
            self.is_stopped = true;
            let mut released = self.cut(outdent);
            released.is_outdented = true;
            return released;
        }
        let end = self.final_end();
        self.release(end)
    }

    /// Releases all held text, at the end of the answer.
    pub fn finish(&mut self) -> Released<T> {
        self.release(self.held.len())
    }

    /// The stop sequence that ends first in the bytes from `from` on, and where it starts; of those with the same end,
    /// the longest.
    fn find_stop(&self, from: usize) -> Option<(usize, usize)> {
        (from + 1..=self.held.len()).find_map(|end| {
            let ends_here = |stop: &[u8]| !stop.is_empty() && self.held[..end].ends_with(stop);
            self.stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| ends_here(stop))
                .max_by_key(|(i, stop)| (stop.len(), std::cmp::Reverse(*i)))
                .map(|(i, stop)| (i, end - stop.len()))
        })
    }

    /// The place of the first character in the bytes from `from` on that has too little indentation.
    fn find_outdent(&mut self, from: usize) -> Option<usize> {
        if self.n_indent == 0 {
            return None;
        }
        for (at, byte) in self.held.iter().enumerate().skip(from) {
            match (byte, self.indent) {
                (b' ' | b'\t', Some(n)) => self.indent = Some(n + 1),
                (_, Some(n)) if n < self.n_indent => return Some(at),
                (b'\n', _) => self.indent = Some(0),
                _ => self.indent = None,
            }
        }
        None
    }

    /// The end of the last held token that is final.
    fn final_end(&self) -> usize {
        let longest = self.stops.iter().map(Vec::len).max().unwrap_or(0);
        let earliest = (self.held.len() + 1).saturating_sub(longest);
        let may_be_stop = |start: usize| {
            let tail = &self.held[start..];
            !tail.is_empty()
                && self
                    .stops
                    .iter()
                    .any(|stop| stop.len() > tail.len() && stop.starts_with(tail))
        };
        let limit = (earliest..self.held.len())
            .find(|start| may_be_stop(*start))
            .unwrap_or(self.held.len());
        let ends = self.tokens.iter().rev().map(|(end, _)| *end);
        ends.filter(|end| *end <= limit)
            .find(|end| !ends_inside_character(&self.held[..*end]))
            .unwrap_or(0)
    }

    fn release(&mut self, end: usize) -> Released<T> {
        let mut entries = Vec::new();
        let mut start = 0;
        while self
            .tokens
            .front()
            .is_some_and(|(token_end, _)| *token_end <= end)
        {
            let Some((token_end, entry)) = self.tokens.pop_front() else {
                break;
            };
            entries.push(ReleasedToken {
                bytes: self.held[start..token_end].to_vec(),
                entry,
            });
            start = token_end;
        }
        let text = String::from_utf8_lossy(&self.held[..start]).into_owned();
        self.held.drain(..start);
        for (token_end, _) in &mut self.tokens {
            *token_end -= start;
        }
        Released {
            text,
            entries,
            stopped: None,
            is_outdented: false,
        }
    }

    /// Releases the bytes up to `end`, which may be inside a token, and drops the rest.
    fn cut(&mut self, end: usize) -> Released<T> {
        self.held.truncate(end);
        let mut start = 0;
        let mut kept = VecDeque::new();
        while let Some((token_end, entry)) = self.tokens.pop_front() {
            // A token without remaining bytes is not part of the text.
            if start < end {
                kept.push_back((token_end.min(end), entry));
            }
            start = token_end;
        }
        self.tokens = kept;
        self.release(end)
    }
}

fn ends_inside_character(bytes: &[u8]) -> bool {
    // A character has at most four bytes, so the last three suffice.
    let tail = &bytes[bytes.len().saturating_sub(3)..];
    (0..tail.len()).any(|start| {
        let starts_character = tail[start] >= 0xc2;
        let error = std::str::from_utf8(&tail[start..]).err();
        starts_character && error.is_some_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks text and entries of all tokens, and which stop ended them; `|` separates releases.
    fn check(stops: &[&str], tokens: &[&[u8]], expected: &str) {
        let stops: Vec<Vec<u8>> = stops.iter().map(|s| s.as_bytes().to_vec()).collect();
        let mut buffer = StopBuffer::new(&stops);
        let mut shown = String::new();
        let mut stopped = None;
        for (i, token) in tokens.iter().enumerate() {
            let released = buffer.push(token, i);
            shown.push_str(&released.text);
            shown.push('|');
            stopped = stopped.or(released.stopped);
        }
        shown.push_str(&buffer.finish().text);
        if let Some(stop) = stopped {
            shown.push_str(&format!(" stop {stop}"));
        }
        assert_eq!(shown, expected);
    }

    #[test]
    fn characters_are_released_whole() {
        check(&[], &[b"a", b"b"], "a|b|");
        check(&[], &[b"a\xc3", b"\xa9b"], "|a\u{e9}b|");
        check(&[], &[b"\xf0\x9f", b"\x98", b"\x80!"], "||\u{1f600}!|");
    }

    #[test]
    fn bad_bytes_become_one_replacement_each() {
        check(&[], &[b"\xff", b"a"], "\u{fffd}|a|");
        check(&[], &[b"\xc3", b"a"], "|\u{fffd}a|");
        check(&[], &[b"\xf0\x9f"], "|\u{fffd}");
        check(&[], &[b"\xed\xa0\x80"], "\u{fffd}\u{fffd}\u{fffd}|");
    }

    #[test]
    fn a_stop_sequence_ends_the_answer_and_is_not_part_of_it() {
        check(&["end"], &[b"the ", b"en", b"d", b"!"], "the |||| stop 0");
        check(&["end"], &[b"the ", b"en", b"t"], "the ||ent|");
        check(&["b"], &[b"abc"], "a| stop 0");
        check(&["end"], &[b"the en"], "|the en");
        check(&["xyz", "yz"], &[b"wxyz"], "w| stop 0");
        check(&["xyzw", "yz"], &[b"xyzw"], "x| stop 1");
        check(&[""], &[b"ab"], "ab|");
    }

    #[test]
    fn a_stop_sequence_may_stay() {
        let mut buffer = StopBuffer::new(&[b"end".to_vec()]).keeping_stop(true);
        let texts = ["the ", "e", "nd!", "more"];
        let text = texts.map(|token| buffer.push(token.as_bytes(), ()).text);
        assert_eq!(text.concat() + &buffer.finish().text, "the end");
    }

    #[test]
    fn a_stop_sequence_counts_after_the_first_tokens() {
        let texts = |n: usize, tokens: &[&str]| {
            let mut buffer = StopBuffer::new(&[b"end".to_vec()]).open_for(n);
            let mut out = String::new();
            for token in tokens {
                let released = buffer.push(token.as_bytes(), ());
                out.push_str(&released.text);
                if released.stopped.is_some() {
                    return out + "|";
                }
            }
            out + &buffer.finish().text
        };
        let tokens = ["a", "end", "b", "e", "nd", "c"];
        assert_eq!(texts(0, &tokens), "a|");
        assert_eq!(texts(1, &tokens), "a|");
        assert_eq!(texts(2, &tokens), "aendb|");
        // It counts where it ends, not where it starts.
        assert_eq!(texts(4, &tokens), "aendb|");
        assert_eq!(texts(5, &tokens), "aendbendc");
        assert_eq!(texts(2, &["a", "en", "d"]), "a|");
        assert_eq!(texts(3, &["a", "en", "d", "x"]), "aendx");
    }

    #[test]
    fn a_line_with_too_little_indentation_ends_the_answer() {
        let texts = |n: usize, text: &str| {
            let whole = |size: usize| {
                let mut buffer = StopBuffer::new(&[b"STOP".to_vec()]).indented(n);
                let mut out = String::new();
                for token in text.as_bytes().chunks(size) {
                    let released = buffer.push(token, ());
                    out.push_str(&released.text);
                    if released.is_outdented || released.stopped.is_some() {
                        return out + "|";
                    }
                }
                out + &buffer.finish().text
            };
            let texts: Vec<String> = (1..=text.len()).map(whole).collect();
            assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
            texts[0].clone()
        };
        let text = "a = 1\n    b\n  c\n    d";
        assert_eq!(texts(0, text), text);
        assert_eq!(texts(2, text), text);
        assert_eq!(texts(3, text), "a = 1\n    b\n  |");
        assert_eq!(texts(5, text), "a = 1\n    |");
        assert_eq!(texts(2, "x\n\t\ty\n\tz"), "x\n\t\ty\n\t|");
        assert_eq!(texts(1, "x\n\n y"), "x\n|");
        assert_eq!(texts(4, "xSTOP\ny"), "x|");
        assert_eq!(texts(4, "x\nySTOP"), "x\n|");
    }

    #[test]
    fn a_cut_token_keeps_the_entry_of_its_visible_part() {
        let mut buffer = StopBuffer::new(&[b"lo".to_vec()]);
        let released = buffer.push(b"hello", 7);
        assert_eq!(
            released.entries,
            [ReleasedToken {
                bytes: b"hel".to_vec(),
                entry: 7
            }]
        );
        assert_eq!(buffer.push(b"more", 8).entries, []);
        let mut buffer = StopBuffer::new(&[b"lo".to_vec()]);
        buffer.push(b"l", 1);
        assert_eq!(buffer.push(b"o", 2).entries, []);
    }

    fn run(stops: &[Vec<u8>], tokens: &[Vec<u8>]) -> (String, Vec<(usize, Vec<u8>)>, bool) {
        let mut buffer = StopBuffer::new(stops);
        let (mut text, mut entries, mut stopped) = (String::new(), Vec::new(), false);
        for (i, token) in tokens.iter().enumerate() {
            let released = buffer.push(token, i);
            let joined: Vec<u8> = released
                .entries
                .iter()
                .flat_map(|e| e.bytes.clone())
                .collect();
            assert_eq!(String::from_utf8_lossy(&joined), released.text);
            text.push_str(&released.text);
            entries.extend(released.entries.into_iter().map(|e| (e.entry, e.bytes)));
            stopped |= released.stopped.is_some();
            if stopped {
                break;
            }
        }
        let rest = buffer.finish();
        text.push_str(&rest.text);
        entries.extend(rest.entries.into_iter().map(|e| (e.entry, e.bytes)));
        (text, entries, stopped)
    }

    fn split(bytes: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        places
            .windows(2)
            .map(|pair| bytes[pair[0]..pair[1]].to_vec())
            .collect()
    }

    proptest! {
        #[test]
        fn any_split_of_a_text_releases_the_text(text: String, cuts in prop::collection::vec(0usize..64, 0..12)) {
            let tokens = split(text.as_bytes(), &cuts);
            let (found, entries, _) = run(&[], &tokens);
            prop_assert_eq!(&found, &text);
            prop_assert_eq!(entries.len(), tokens.len());
        }

        #[test]
        fn any_bytes_are_released_as_their_lossy_text(bytes: Vec<u8>, cuts in prop::collection::vec(0usize..64, 0..12)) {
            let (found, entries, _) = run(&[], &split(&bytes, &cuts));
            let joined: Vec<u8> = entries.into_iter().flat_map(|(_, b)| b).collect();
            prop_assert_eq!(&joined, &bytes);
            prop_assert_eq!(found, String::from_utf8_lossy(&bytes).into_owned());
        }

        #[test]
        fn the_earliest_stop_cuts_the_text_however_it_is_split(
            text in "[ab]{0,24}",
            stops in prop::collection::vec("[ab]{1,4}", 1..4),
            cuts in prop::collection::vec(0usize..64, 0..12),
        ) {
            let stop_bytes: Vec<Vec<u8>> = stops.iter().map(|s| s.as_bytes().to_vec()).collect();
            let (found, _, stopped) = run(&stop_bytes, &split(text.as_bytes(), &cuts));
            let first = (0..=text.len())
                .find_map(|end| stops.iter().filter(|s| text[..end].ends_with(s.as_str())).map(|s| end - s.len()).min());
            prop_assert_eq!(stopped, first.is_some());
            prop_assert_eq!(found, &text[..first.unwrap_or(text.len())]);
        }
    }
}
