//! The tokens of one vocabulary as tokens of another one with the same text.
//!
//! A text grows token by token. With what is added, its last tokens are tokenised anew: the cost of a step does not grow with the text, and no
//! word is cut where the text ended before. All is counted in bytes: a token of one vocabulary may end within a token of the other, or
//! within a character, whose bytes wait until it is whole. Where texts cannot be told in the other vocabulary there are no tokens.
//!
//! Not here: what is computed with the tokens.

use lab_base::tokenizer::Tokenizer;

use crate::models::drafters::Vocabularies;

use super::draft::Draft;

/// Last tokens of a text that are tokenised anew with what follows.
const N_AGAIN: usize = 8;
/// The byte of a text that stands for a token without a text which both vocabularies have. No UTF-8 has it.
const MARK: u8 = 0xff;

/// A text in tokens of a target, and in the drafter's own ones.
#[derive(Debug, Default)]
pub(super) struct RetokenisedText {
    bytes: Vec<u8>,
    /// Where each token of the target ends.
    ends: Vec<usize>,
    /// The own token of each mark, by its place.
    marks: Vec<(usize, u32)>,
    own: Vec<u32>,
    /// Where each own token ends.
    own_ends: Vec<usize>,
    /// Number of the target's tokens after which the text could not be told in own tokens.
    lost_after: Option<usize>,
}

impl RetokenisedText {
    pub(super) fn own(&self) -> &[u32] {
        &self.own
    }

    /// Number of tokens of the target.
    pub(super) fn n_tokens(&self) -> usize {
        self.ends.len()
    }

    /// Gives the text up, until it is cut before its present end.
    pub(super) fn lose(&mut self) {
        self.lost_after.get_or_insert(self.ends.len());
        (self.own, self.own_ends) = (Vec::new(), Vec::new());
    }

    /// Keeps the first `n` tokens of the target, and the own tokens within them.
    pub(super) fn truncate(&mut self, n: usize) {
        if n >= self.ends.len() {
            return;
        }
        self.ends.truncate(n);
        let end = self.ends.last().copied().unwrap_or(0);
        self.bytes.truncate(end);
        let n_marks = self.marks.partition_point(|(at, _)| *at < end);
        self.marks.truncate(n_marks);
        let n_own = self.own_ends.partition_point(|own| *own <= end);
        self.own.truncate(n_own);
        self.own_ends.truncate(n_own);
        self.lost_after = self.lost_after.filter(|lost| *lost < n);
    }

    /// Follows the target to the end of these tokens, of which the first ones are known. Returns the number of own tokens that are as
    /// before; none if the text cannot be told in own tokens.
    pub(super) fn follow(&mut self, tokens: &[u32], of: &Vocabularies) -> Option<usize> {
        for token in tokens.iter().skip(self.ends.len()) {
            if self.lost_after.is_none() && !self.push(*token, of) {
                self.lost_after = Some(self.ends.len());
            }
            self.ends.push(self.bytes.len());
        }
        if self.lost_after.is_some() {
            return None;
        }
        let kept = self.tokenise_end(&of.own);
        if kept.is_none() {
            self.lose();
        }
        kept
    }

    /// Adds the bytes of a token of the target. Returns whether its text is known.
    fn push(&mut self, token: u32, of: &Vocabularies) -> bool {
        let Vocabularies { own, target } = of;
        if token as usize >= target.vocab_len() {
            return false;
        }
        if target.is_text(token) {
            self.bytes.extend_from_slice(target.piece(token));
            return true;
        }
        let is_first = self.ends.is_empty();
        let same = match is_first && target.bos() == Some(token) {
            // The own one is there already, if there is one.
            true => return true,
            false => same_special(token, target, own),
        };
        match same {
            Some(id) => {
                self.marks.push((self.bytes.len(), id));
                self.bytes.push(MARK);
            }
            None => self.bytes.extend_from_slice(target.piece(token)),
        }
        true
    }

    /// Tokenises the end of the text anew. Returns the number of own tokens that are as before.
    fn tokenise_end(&mut self, own: &Tokenizer) -> Option<usize> {
        let n_known = self.own.len();
        if self.own.is_empty()
            && let Some(bos) = own.bos().filter(|_| own.adds_bos())
        {
            self.own.push(bos);
            self.own_ends.push(0);
        }
        let mut n = self.own.len();
        let is_new = self.own_ends.last().copied().unwrap_or(0) < self.bytes.len();
        let least = if is_new { n.saturating_sub(N_AGAIN) } else { n };
        while n > 0 {
            let end = self.own_ends[n - 1];
            let is_within = self.bytes.get(end).is_some_and(|byte| byte & 0xc0 == 0x80);
            // Nothing begins within a character.
            if n <= least && !is_within || end == 0 || self.mark_before(end).is_some() {
                break;
            }
            n -= 1;
        }
        let before = self.own.split_off(n);
        self.own_ends.truncate(n);
        let mut start = self.own_ends.last().copied().unwrap_or(0);
        while start < self.bytes.len() {
            let from = self.marks.partition_point(|(at, _)| *at < start);
            let mark = self.marks.get(from).copied();
            if let Some((_, id)) = mark.filter(|(at, _)| *at == start) {
                start += 1;
                self.own.push(id);
                self.own_ends.push(start);
                continue;
            }
            let end = mark.map_or(self.bytes.len(), |(at, _)| at);
            let text = match std::str::from_utf8(&self.bytes[start..end]) {
                Ok(text) => text,
                // The rest of the character is to come.
                Err(error) if error.error_len().is_none() && end == self.bytes.len() => {
                    let whole = &self.bytes[start..start + error.valid_up_to()];
                    std::str::from_utf8(whole).ok()?
                }
                Err(_) => return None,
            };
            if text.is_empty() {
                break;
            }
            let tokens = exact(own, text)?;
            let mut at = start;
            for token in tokens {
                at += own.piece(token).len();
                self.own.push(token);
                self.own_ends.push(at);
            }
            start = at;
            if start < end {
                break;
            }
        }
        let again = self.own[n..].iter().zip(&before);
        Some(n_known.min(n + again.take_while(|(a, b)| a == b).count()))
    }

    /// The mark that ends at a place.
    fn mark_before(&self, end: usize) -> Option<u32> {
        let at = self.marks.partition_point(|(at, _)| at + 1 < end);
        let (start, id) = self.marks.get(at)?;
        (start + 1 == end).then_some(*id)
    }

    /// The target's tokens for a draft of own tokens after the text, of whose target's tokens these are the last ones or all.
    pub(super) fn told(
        &self,
        tokens: &[u32],
        draft: &Draft,
        most: usize,
        of: &Vocabularies,
    ) -> Draft {
        let Vocabularies { own, target } = of;
        // The bytes of the draft, the place where each of its tokens begins, and the token that ends it.
        let (mut bytes, mut begins, mut last) = (Vec::new(), Vec::new(), None);
        for (token, probability) in draft.tokens.iter().zip(&draft.probabilities) {
            if !own.is_text(*token) {
                let same = same_special(*token, own, target);
                let is_end = own.is_end_of_generation(*token);
                let end = || target.eot().or(target.eos()).filter(|_| is_end);
                last = same.or_else(end).map(|token| (token, *probability));
                break;
            }
            begins.push((bytes.len(), *probability));
            bytes.extend_from_slice(own.piece(*token));
        }
        // It goes on with the bytes that no own token has yet.
        let covered = self.own_ends.last().copied().unwrap_or(0);
        let waiting = &self.bytes[covered..];
        let Some(text) = bytes.strip_prefix(waiting) else {
            return Draft::default();
        };
        let valid = match std::str::from_utf8(text) {
            Ok(text) => text,
            Err(error) => {
                last = None;
                std::str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default()
            }
        };
        let mut told = self.continuation(tokens, valid, target);
        if last.is_none() && told.len() > 1 && told.len() <= most {
            // Further text could belong to the last token.
            told.pop();
        }
        let mut made = Draft::default();
        let (mut end, mut known) = (waiting.len(), 0);
        for token in told {
            end += target.piece(token).len();
            // All tokens that begin before its end must be right.
            let own = begins[known..].iter().take_while(|(at, _)| *at < end);
            let own: Vec<f32> = own.map(|(_, probability)| *probability).collect();
            known += own.len();
            made.tokens.push(token);
            made.probabilities.push(own.iter().product());
        }
        if let Some((token, probability)) = last {
            made.tokens.push(token);
            made.probabilities.push(probability);
        }
        made.tokens.truncate(most);
        made.probabilities.truncate(most);
        made
    }

    /// The target's tokens for a text after the present one: as in one text with the last tokens, if these stay.
    fn continuation(&self, tokens: &[u32], text: &str, target: &Tokenizer) -> Vec<u32> {
        if text.is_empty() {
            return Vec::new();
        }
        let before = tokens.iter().rev().take(N_AGAIN);
        let n_before = before.take_while(|token| target.is_text(**token)).count();
        let mut before = &tokens[tokens.len() - n_before..];
        while let Some((_, rest)) = before.split_first() {
            let bytes: Vec<u8> = before
                .iter()
                .flat_map(|id| target.piece(*id))
                .copied()
                .collect();
            let known = std::str::from_utf8(&bytes);
            let both = known
                .ok()
                .and_then(|known| exact(target, &format!("{known}{text}")));
            if let Some(after) = both.as_ref().and_then(|both| both.strip_prefix(before)) {
                return after.to_vec();
            }
            before = rest;
        }
        exact(target, text).unwrap_or_default()
    }
}

/// The token of another vocabulary that is no text either and is spelled in the same way.
fn same_special(token: u32, of: &Tokenizer, other: &Tokenizer) -> Option<u32> {
    let id = other.id_of(&of.token_text(token)?)?;
    (!other.is_text(id)).then_some(id)
}

/// The tokens of a text, if their bytes are those of the text.
fn exact(tokenizer: &Tokenizer, text: &str) -> Option<Vec<u32>> {
    let tokens = tokenizer.encode_continuation(text).ok()?;
    let mut rest = text.as_bytes();
    for token in &tokens {
        if !tokenizer.is_text(*token) {
            return None;
        }
        rest = rest.strip_prefix(tokenizer.piece(*token))?;
    }
    rest.is_empty().then_some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_base::weights::{Array, Metadata, Value};

    const NORMAL: i32 = 1;
    const UNKNOWN: i32 = 2;
    const CONTROL: i32 = 3;
    const BYTE: i32 = 6;

    /// A vocabulary of pieces, with `<s>`, `</s>` and further tokens that are no text, and with all bytes if it has any.
    fn vocabulary(pieces: &[&str], specials: &[&str], has_bytes: bool) -> Tokenizer {
        let mut tokens = vec![("<unk>".to_owned(), UNKNOWN)];
        let specials = ["<s>", "</s>"].iter().chain(specials);
        tokens.extend(specials.map(|text| ((*text).to_owned(), CONTROL)));
        let bytes = (0..=255).filter(|_| has_bytes);
        tokens.extend(bytes.map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
        tokens.extend(pieces.iter().map(|piece| ((*piece).to_owned(), NORMAL)));
        let texts = tokens.iter().map(|(text, _)| text.clone()).collect();
        let kinds = tokens.iter().map(|(_, kind)| *kind).collect();
        let scores = (0..tokens.len()).map(|at| -(at as f32)).collect();
        let metadata: Metadata = [
            ("tokenizer.ggml.model", Value::Str("llama".into())),
            ("tokenizer.ggml.tokens", Value::Array(Array::Str(texts))),
            ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
            ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))),
            ("tokenizer.ggml.bos_token_id", Value::U32(1)),
            ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ]
        .into_iter()
        .collect();
        Tokenizer::from_metadata(&metadata).expect("a vocabulary")
    }

    const WORDS: [&str; 12] = [
        "▁the", "▁cat", "cat", "the", "th", "ca", "s", "▁", "t", "h", "e", "é",
    ];
    const PARTS: [&str; 11] = ["▁ca", "ts", "▁t", "he", "ca", "a", "c", "t", "h", "s", "▁"];

    fn both() -> Vocabularies {
        Vocabularies {
            own: vocabulary(&PARTS, &["<tool>"], true),
            target: vocabulary(&WORDS, &["<tool>", "<other>"], true),
        }
    }

    fn bytes(tokens: &[u32], of: &Tokenizer) -> Vec<u8> {
        tokens
            .iter()
            .flat_map(|id| of.piece(*id))
            .copied()
            .collect()
    }

    fn id(of: &Tokenizer, text: &str) -> u32 {
        of.id_of(text).expect("it is in the vocabulary")
    }

    #[test]
    fn a_text_in_own_tokens_has_the_bytes_of_the_target_however_it_grew() {
        let of = both();
        let pieces: Vec<u32> = WORDS.iter().map(|text| id(&of.target, text)).collect();
        let mut state = 7u64;
        let mut random = |n: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % n
        };
        for _ in 0..200 {
            let tokens: Vec<u32> = (0..40).map(|_| pieces[random(pieces.len())]).collect();
            let mut text = RetokenisedText::default();
            let mut end = 0;
            while end < tokens.len() {
                if end > 0 && random(3) == 0 {
                    // Tokens that were not kept.
                    end -= random(end.min(12));
                    text.truncate(end);
                }
                let known = text.own().to_vec();
                end = (end + 1 + random(5)).min(tokens.len());
                let kept = text.follow(&tokens[..end], &of).expect("bytes can be told");
                assert!(kept <= known.len() && text.own()[..kept] == known[..kept]);
                assert_eq!(text.own()[0], of.own.bos().expect("a BOS"));
                assert_eq!(
                    bytes(&text.own()[1..], &of.own),
                    bytes(&tokens[..end], &of.target)
                );
                assert_eq!(text.n_tokens(), end);
            }
        }
    }

    #[test]
    fn a_step_tokenises_the_end_of_a_text_alone() {
        let of = both();
        let tokens = vec![id(&of.target, "▁cat"); 4000];
        let mut text = RetokenisedText::default();
        text.follow(&tokens[..3999], &of).expect("it can be told");
        let n = text.own().len();
        let kept = text.follow(&tokens, &of).expect("it can be told");
        assert!(kept + 1 >= n, "{kept} of {n}");
        assert!(text.own().len() > n);
    }

    fn draft(tokens: &[u32], probabilities: &[f32]) -> Draft {
        Draft {
            tokens: tokens.to_vec(),
            probabilities: probabilities.to_vec(),
        }
    }

    #[test]
    fn a_draft_is_told_in_tokens_of_the_target() {
        let of = both();
        let [own, target] = [&of.own, &of.target];
        let tokens = [id(target, "▁the"), id(target, "▁cat")];
        let mut text = RetokenisedText::default();
        text.follow(&tokens, &of).expect("it can be told");
        // ` ca`, `t`, ` t`, `he`: tokens of both end at other places.
        let drafted = ["▁ca", "t", "▁t", "he", "▁ca"].map(|piece| id(own, piece));
        let found = text.told(
            &tokens,
            &draft(&drafted, &[0.5, 0.5, 0.8, 0.5, 0.9]),
            4,
            &of,
        );
        assert_eq!(
            found.tokens,
            ["▁cat", "▁the", "▁"].map(|piece| id(target, piece))
        );
        assert_eq!(found.probabilities, [0.25, 0.4, 0.9]);
        let one = text.told(&tokens, &draft(&drafted, &[0.5; 5]), 1, &of);
        assert_eq!(one.tokens, [id(target, "▁cat")]);
        // What ends a generation ends the target's too, and nothing follows it.
        let ends = [drafted[0], drafted[1], 2, drafted[0]];
        let found = text.told(&tokens, &draft(&ends, &[0.5, 0.5, 0.7, 0.9]), 4, &of);
        assert_eq!(found.tokens, [id(target, "▁cat"), 2]);
        assert_eq!(found.probabilities, [0.25, 0.7]);
        assert_eq!(
            text.told(&tokens, &Draft::default(), 4, &of),
            Draft::default()
        );
    }

    #[test]
    fn a_draft_goes_on_within_a_word_and_not_within_a_character() {
        let of = both();
        let target = &of.target;
        // ` th`, and ` the` is one token of the target: the draft is told alone.
        let tokens = [id(target, "▁"), id(target, "th")];
        let mut text = RetokenisedText::default();
        text.follow(&tokens, &of).expect("it can be told");
        let own = [id(&of.own, "<0x65>"), id(&of.own, "▁ca"), id(&of.own, "ts")];
        let found = text.told(&tokens, &draft(&own, &[0.5; 3]), 8, &of);
        assert_eq!(found.tokens[0], id(target, "e"));
        assert_eq!(bytes(&found.tokens, target), b"e cat");
        // The first byte of a character waits for the second one, which a draft must begin with.
        let tokens = [id(target, "▁cat"), id(target, "<0xC3>")];
        let mut text = RetokenisedText::default();
        text.follow(&tokens, &of).expect("it can be told");
        assert_eq!(bytes(&text.own()[1..], &of.own), b" cat");
        let other = draft(&[id(&of.own, "▁ca"), id(&of.own, "t")], &[0.9; 2]);
        assert_eq!(text.told(&tokens, &other, 4, &of), Draft::default());
        let tokens = [tokens[0], tokens[1], id(target, "<0xA9>")];
        text.follow(&tokens, &of).expect("it can be told");
        assert_eq!(bytes(&text.own()[1..], &of.own), " caté".as_bytes());
        // Bytes that are no text.
        let tokens = [id(target, "<0xFF>"), id(target, "▁cat")];
        let mut text = RetokenisedText::default();
        assert_eq!(text.follow(&tokens, &of), None);
        text.truncate(0);
        assert!(text.follow(&tokens[1..], &of).is_some());
    }

    #[test]
    fn tokens_that_are_no_text_are_those_of_the_same_name_or_their_texts() {
        let of = both();
        let target = &of.target;
        let tokens = ["<s>", "<tool>", "▁cat", "<other>"].map(|text| id(target, text));
        let mut text = RetokenisedText::default();
        text.follow(&tokens, &of).expect("it can be told");
        assert_eq!(text.own()[..2], [1, id(&of.own, "<tool>")]);
        assert_eq!(bytes(&text.own()[2..], &of.own), b" cat<other>");
        let found = text.told(&tokens, &draft(&[id(&of.own, "<tool>")], &[0.5]), 4, &of);
        assert_eq!(found.tokens, [id(target, "<tool>")]);
        text.truncate(2);
        assert_eq!(text.own(), [1, id(&of.own, "<tool>")]);
    }

    #[test]
    fn a_vocabulary_that_cannot_tell_a_text_has_no_drafts() {
        let of = Vocabularies {
            own: vocabulary(&["x"], &[], false),
            target: vocabulary(&WORDS, &[], true),
        };
        let tokens = [id(&of.target, "▁cat"); 5];
        let mut text = RetokenisedText::default();
        for n in 1..=5 {
            assert_eq!(text.follow(&tokens[..n], &of), None);
        }
        // A token of the drafter without an equal, and one beyond the vocabulary.
        let of = Vocabularies {
            own: both().own,
            target: vocabulary(&["x"], &[], false),
        };
        let mut text = RetokenisedText::default();
        let tokens = [id(&of.target, "x")];
        text.follow(&tokens, &of).expect("it can be told");
        let cat = draft(&[id(&of.own, "▁ca"), id(&of.own, "t")], &[0.9; 2]);
        assert_eq!(text.told(&tokens, &cat, 4, &of), Draft::default());
        assert_eq!(text.follow(&[tokens[0], 4000], &of), None);
    }
}
