//! Splits the text of a completion into content, reasoning and tool calls, with the tokens of the content.
//!
//! Sits between the events of the engine and the format of an endpoint. Invariant: the concatenated bytes of the
//! content's tokens are the content, but for white space that keeps texts around a call apart and has no tokens.

use std::collections::VecDeque;

use lab_base::chat::tool_calls::{OutputParser, OutputPart, OutputSpan};
use lab_core::engine::{AnswerToken, FinishReason};

use crate::http::random::random;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum CompletionDelta {
    /// Text for the user, and its tokens.
    Content(String, Vec<AnswerToken>),
    Reasoning(String),
    /// The start of a call: number, id and name.
    Call(u32, String, String),
    /// Text of a call's arguments: number of the call, and text.
    Arguments(u32, String),
}

/// Tokens, and the number of bytes of their text that are not parsed yet.
#[derive(Clone, Debug)]
struct PendingTokens {
    left: usize,
    tokens: Vec<AnswerToken>,
    /// Bytes that are content and were not returned yet.
    content: Vec<u8>,
    is_counted: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct CompletionParser {
    parser: OutputParser,
    units: VecDeque<PendingTokens>,
    content: String,
    content_tokens: Vec<AnswerToken>,
    /// Whether the answer may have several calls.
    many: bool,
    shows_reasoning: bool,
    /// Reasoning that is not shown, with its tokens.
    withheld: (String, Vec<AnswerToken>),
    pub(crate) n_reasoning: usize,
    /// The start of the reasoning, for the log.
    pub(crate) thought: String,
}

/// Maximum number of characters of reasoning in the log.
const MAX_THOUGHT: usize = 500;

/// A new id for a call, in the form that the strictest templates require: nine letters and digits.
pub(crate) fn new_call_id() -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut random = random();
    let mut digit = || {
        let digit = DIGITS[(random % 62) as usize];
        random /= 62;
        char::from(digit)
    };
    (0..9).map(|_| digit()).collect()
}

impl CompletionParser {
    pub(crate) fn new(parser: OutputParser, many: bool, shows_reasoning: bool) -> Self {
        Self {
            parser,
            units: VecDeque::new(),
            content: String::new(),
            content_tokens: Vec::new(),
            many,
            shows_reasoning,
            withheld: (String::new(), Vec::new()),
            n_reasoning: 0,
            thought: String::new(),
        }
    }

    /// Adds text and its tokens, and returns the pieces that are complete.
    pub(crate) fn push(&mut self, text: &str, tokens: Vec<AnswerToken>) -> Vec<CompletionDelta> {
        let bytes = tokens.iter().flat_map(|token| &token.bytes);
        let unit = |left: usize, tokens| PendingTokens {
            left,
            tokens,
            content: Vec::new(),
            is_counted: false,
        };
        if bytes.eq(text.as_bytes()) {
            let each = tokens.into_iter();
            self.units
                .extend(each.map(|token| unit(token.bytes.len(), vec![token])));
        } else {
            // Bytes that are not text were replaced, so it is unknown which token produced which character.
            self.units.push_back(unit(text.len(), tokens));
        }
        let spans = self.parser.push(text);
        self.pieces(spans)
    }

    pub(crate) fn finish(&mut self, reason: FinishReason) -> Vec<CompletionDelta> {
        let is_open = self.parser.is_reasoning();
        let spans = self.parser.finish(reason == FinishReason::Length);
        let mut out = self.pieces(spans);
        let (text, tokens) = std::mem::take(&mut self.withheld);
        let has_calls = out
            .iter()
            .any(|piece| matches!(piece, CompletionDelta::Call(..)));
        // If the model ended without closing its block of reasoning, the block was the answer. If it was cut off, or
        // called a tool, it was not.
        if is_open && reason == FinishReason::Stop && !has_calls && !text.is_empty() {
            let tokens = within(tokens, &text);
            out.push(CompletionDelta::Content(text, tokens));
        }
        out
    }

    fn pieces(&mut self, spans: Vec<OutputSpan>) -> Vec<CompletionDelta> {
        let mut out = Vec::new();
        for span in spans {
            let is_content = matches!(span.part, Some(OutputPart::Content(_)));
            if !is_content {
                self.flush(&mut out);
            }
            self.consume(&span, is_content);
            match span.part {
                None => {}
                Some(OutputPart::Content(text)) if span.bytes == 0 => {
                    self.flush(&mut out);
                    out.push(CompletionDelta::Content(text, Vec::new()));
                }
                Some(OutputPart::Content(text)) => {
                    self.content.push_str(&text);
                    if self
                        .units
                        .front()
                        .is_none_or(|unit| unit.content.is_empty())
                    {
                        self.flush(&mut out);
                    }
                }
                Some(OutputPart::Reasoning(text)) => {
                    let n = MAX_THOUGHT.saturating_sub(self.thought.chars().count());
                    self.thought.extend(text.chars().take(n));
                    match self.shows_reasoning {
                        true => out.push(CompletionDelta::Reasoning(text)),
                        false => self.withheld.0.push_str(&text),
                    }
                }
                Some(OutputPart::Call { index, .. } | OutputPart::Arguments { index, .. })
                    if index > 0 && !self.many => {}
                Some(OutputPart::Call { index, id, name }) => {
                    out.push(CompletionDelta::Call(
                        index,
                        id.unwrap_or_else(new_call_id),
                        name,
                    ));
                }
                Some(OutputPart::Arguments { index, text }) => {
                    out.push(CompletionDelta::Arguments(index, text))
                }
            }
        }
        out
    }

    /// Moves complete content with its tokens to `out`.
    fn flush(&mut self, out: &mut Vec<CompletionDelta>) {
        if self.content.is_empty() && self.content_tokens.is_empty() {
            return;
        }
        // The last token may be content only in part.
        if let Some(unit) = self.units.front_mut() {
            self.content_tokens.extend(cut(unit));
        }
        let text = std::mem::take(&mut self.content);
        let tokens = std::mem::take(&mut self.content_tokens);
        out.push(CompletionDelta::Content(text, tokens));
    }

    /// Consumes the bytes of a span from the front of the units.
    fn consume(&mut self, span: &OutputSpan, is_content: bool) {
        let mut n = span.bytes;
        while let Some(unit) = self.units.front_mut() {
            if n == 0 && (unit.left > 0 || !is_content) {
                return;
            }
            let taken = n.min(unit.left);
            n -= taken;
            if is_content {
                let at = unit
                    .tokens
                    .iter()
                    .map(|token| token.bytes.len())
                    .sum::<usize>();
                let bytes = unit.tokens.iter().flat_map(|token| &token.bytes);
                let from = at.saturating_sub(unit.left);
                unit.content.extend(bytes.skip(from).take(taken));
            }
            unit.left -= taken;
            if span.is_reasoning && !unit.is_counted {
                unit.is_counted = true;
                self.n_reasoning += unit.tokens.len();
                if !self.shows_reasoning {
                    self.withheld.1.extend(unit.tokens.iter().cloned());
                }
            }
            if unit.left > 0 {
                return;
            }
            let Some(mut unit) = self.units.pop_front() else {
                return;
            };
            self.content_tokens.extend(cut(&mut unit));
        }
    }
}

/// The tokens reduced to the bytes that are part of `text`, which theirs contain; all of them if they do not.
fn within(tokens: Vec<AnswerToken>, text: &str) -> Vec<AnswerToken> {
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.bytes.clone()).collect();
    let mut starts = bytes.windows(text.len().max(1));
    let Some(start) = starts.position(|own| own == text.as_bytes()) else {
        return tokens;
    };
    let (end, mut at) = (start + text.len(), 0);
    let mut kept = Vec::new();
    for mut token in tokens {
        let n = token.bytes.len();
        let from = start.clamp(at, at + n) - at;
        let to = end.clamp(at, at + n) - at;
        at += n;
        if from < to {
            token.bytes = token.bytes[from..to].to_vec();
            kept.push(token);
        }
    }
    kept
}

/// The tokens of a unit, reduced to the bytes that are content; empty if there are none.
fn cut(unit: &mut PendingTokens) -> Vec<AnswerToken> {
    let content = std::mem::take(&mut unit.content);
    if content.is_empty() {
        return Vec::new();
    }
    let mut tokens = unit.tokens.clone();
    if let [token] = tokens.as_mut_slice() {
        token.bytes = content;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::Value;

    use lab_base::chat::tool_calls::{MarkPair, Tool, call_formats};

    use super::*;

    fn reader(shows_reasoning: bool) -> CompletionParser {
        let format = call_formats()
            .iter()
            .find(|format| format.name == "json-in-tags");
        let tool = Tool {
            name: "f".into(),
            parameters: Value::Null,
        };
        let marks = MarkPair {
            open: "<think>".into(),
            close: "</think>".into(),
        };
        let parser = OutputParser::new(format.cloned(), Arc::new(vec![tool]), Some(marks), false);
        CompletionParser::new(parser, true, shows_reasoning)
    }

    fn token(bytes: &[u8]) -> AnswerToken {
        AnswerToken {
            id: 0,
            bytes: bytes.to_vec(),
            chosen: None,
            rank: 0,
            top: Vec::new(),
        }
    }

    /// The content, the bytes of its tokens, the reasoning and the arguments.
    fn read(reader: &mut CompletionParser, tokens: &[&str], reason: FinishReason) -> [String; 4] {
        let mut all = Vec::new();
        for text in tokens {
            all.extend(reader.push(text, vec![token(text.as_bytes())]));
        }
        all.extend(reader.finish(reason));
        let mut out = [const { String::new() }; 4];
        for piece in all {
            match piece {
                CompletionDelta::Content(text, tokens) => {
                    let bytes: Vec<u8> = tokens.into_iter().flat_map(|t| t.bytes).collect();
                    let is_joint = bytes.is_empty() && text.trim().is_empty();
                    assert!(is_joint || String::from_utf8_lossy(&bytes) == text);
                    out[0].push_str(&text);
                    out[1].push('|');
                }
                CompletionDelta::Reasoning(text) => out[2].push_str(&text),
                CompletionDelta::Call(_, id, name) => {
                    assert_eq!(id.len(), 9);
                    out[3].push_str(&name);
                }
                CompletionDelta::Arguments(_, text) => out[3].push_str(&text),
            }
        }
        out
    }

    const TOKENS: [&str; 9] = [
        "<think>",
        "a",
        "b</",
        "think>c",
        " d",
        "<tool",
        "_call>{\"name\": \"f\", ",
        "\"arguments\": {}",
        "}</tool_call>",
    ];

    #[test]
    fn tokens_of_content_are_those_of_its_text() {
        let mut reader = reader(true);
        let [content, _, reasoning, call] = read(&mut reader, &TOKENS, FinishReason::Stop);
        assert_eq!(
            (content.as_str(), reasoning.as_str(), call.as_str()),
            ("c d", "ab", "f{}")
        );
        assert_eq!(reader.n_reasoning, 2);
    }

    #[test]
    fn reasoning_that_is_never_closed_is_the_answer_unless_it_is_cut_off() {
        let read = |shows, reason| {
            let [content, _, reasoning, _] =
                read(&mut reader(shows), &["<think>", "a", " b"], reason);
            (content, reasoning)
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(read(false, FinishReason::Stop), pair("a b", ""));
        assert_eq!(read(false, FinishReason::Length), pair("", ""));
        assert_eq!(read(true, FinishReason::Stop), pair("", "a b"));
        // Its tokens have no more bytes than its text, which `read` checks.
        let pieces = ["<think>", " a", " b"];
        let [content, ..] = self::read(&mut reader(false), &pieces, FinishReason::Stop);
        assert_eq!(content, "a b");
    }

    proptest! {
        #[test]
        fn entries_follow_the_text_however_it_is_split(text in "(<think>[ab]{0,3}</think>)?[ab <]{0,8}(<tool_call>\\{\"name\": \"f\", \"arguments\": \\{\\}\\}</tool_call>)?[a ]{0,2}", cuts in prop::collection::vec(0usize..90, 0..12)) {
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
            places.extend([0, text.len()]);
            places.sort_unstable();
            let pieces: Vec<&str> = places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let split = read(&mut reader(true), &pieces, FinishReason::Stop);
            let whole = read(&mut reader(true), &[&text], FinishReason::Stop);
            for i in [0, 2, 3] {
                prop_assert_eq!(&split[i], &whole[i]);
            }
        }
    }
}
