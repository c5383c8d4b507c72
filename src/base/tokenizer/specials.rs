//! Splits a text at its special tokens, before any other step.
//!
//! Longer tokens take precedence over shorter ones anywhere in the text, not only at the same position. A token may
//! include the white space on either side.

use rustc_hash::FxHashSet;

use crate::weights::Metadata;

use super::keys;
use super::vocab::{TokenKind, Vocabulary};

/// A token that is searched for in texts.
#[derive(Debug)]
struct SpecialToken {
    id: u32,
    text: String,
    /// Whether the token is matched only if special tokens are requested.
    on_request: bool,
    strips_left: bool,
    strips_right: bool,
}

/// The special tokens of a vocabulary, longest first.
#[derive(Debug, Default)]
pub(super) struct SpecialTokens(Vec<SpecialToken>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextPart<'a> {
    Text(&'a str),
    Token(u32),
}

impl SpecialTokens {
    /// The control, user-defined and unknown tokens that are valid text, except those that the metadata says are
    /// matched within texts.
    pub(super) fn new(vocab: &Vocabulary, metadata: &Metadata) -> Self {
        let within = listed(metadata, keys::SYMBOLS);
        let mut specials: Vec<SpecialToken> = vocab
            .iter()
            .filter(|(id, _, kind)| {
                matches!(
                    kind,
                    TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown
                ) && !within.contains(&i64::from(*id))
            })
            .filter_map(|(id, text, kind)| {
                Some(SpecialToken {
                    id,
                    text: std::str::from_utf8(text).ok()?.to_owned(),
                    on_request: kind != TokenKind::UserDefined,
                    strips_left: false,
                    strips_right: false,
                })
            })
            .collect();
        specials.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        Self(specials)
    }

    /// Makes the tokens that `which` selects include the white space before them.
    pub(super) fn strip_left(&mut self, which: impl Fn(&str) -> bool) {
        for special in &mut self.0 {
            special.strips_left |= which(&special.text);
        }
    }

    /// Makes the tokens that `which` selects include the white space after them.
    pub(super) fn strip_right(&mut self, which: impl Fn(&str) -> bool) {
        for special in &mut self.0 {
            special.strips_right |= which(&special.text);
        }
    }

    /// Makes the tokens that the metadata lists by id include the white space next to them.
    pub(super) fn strip_listed(&mut self, metadata: &Metadata) {
        let left = listed(metadata, keys::STRIPS_LEFT);
        let right = listed(metadata, keys::STRIPS_RIGHT);
        for special in &mut self.0 {
            special.strips_left |= left.contains(&special.id.into());
            special.strips_right |= right.contains(&special.id.into());
        }
    }

    /// Splits `text`. `on_request`: special tokens are requested, so control and unknown tokens match too.
    pub(super) fn split<'a>(&self, text: &'a str, on_request: bool) -> Vec<TextPart<'a>> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut parts = vec![TextPart::Text(text)];
        let pairs = BytePairs::of(text.as_bytes());
        for special in &self.0 {
            if special.on_request && !on_request || !pairs.may_hold(special.text.as_bytes()) {
                continue;
            }
            if text.contains(&special.text) {
                parts = special.split(&parts);
            }
        }
        parts
    }
}

impl SpecialToken {
    fn split<'a>(&self, parts: &[TextPart<'a>]) -> Vec<TextPart<'a>> {
        let mut out = Vec::with_capacity(parts.len());
        for &part in parts {
            match part {
                TextPart::Text(text) => self.split_text(text, &mut out),
                TextPart::Token(_) => out.push(part),
            }
        }
        out
    }

    fn split_text<'a>(&self, mut text: &'a str, out: &mut Vec<TextPart<'a>>) {
        while let Some((mut before, mut after)) = text.split_once(&self.text) {
            if self.strips_left {
                before = before.trim_end_matches(is_space);
            }
            if self.strips_right {
                after = after.trim_start_matches(is_space);
            }
            if !before.is_empty() {
                out.push(TextPart::Text(before));
            }
            out.push(TextPart::Token(self.id));
            text = after;
        }
        if !text.is_empty() {
            out.push(TextPart::Text(text));
        }
    }
}

fn listed(metadata: &Metadata, key: &str) -> FxHashSet<i64> {
    let ids = metadata.array(key);
    ids.into_iter()
        .flat_map(|ids| (0..ids.len()).filter_map(|at| ids.get(at)?.as_i64()))
        .collect()
}

/// White space that a token can include: ASCII white space, with the vertical tab.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// The set of pairs of neighbouring bytes in a text. It excludes most special tokens quickly.
struct BytePairs(Box<[u64; 1024]>);

impl BytePairs {
    fn of(text: &[u8]) -> Self {
        let mut bits = Box::new([0; 1024]);
        for pair in text.windows(2) {
            let (word, bit) = Self::place(pair);
            bits[word] |= bit;
        }
        Self(bits)
    }

    fn may_hold(&self, token: &[u8]) -> bool {
        token.windows(2).all(|pair| {
            let (word, bit) = Self::place(pair);
            self.0[word] & bit != 0
        })
    }

    fn place(pair: &[u8]) -> (usize, u64) {
        (
            usize::from(pair[0]) * 4 + usize::from(pair[1] >> 6),
            1 << (pair[1] & 63),
        )
    }
}
