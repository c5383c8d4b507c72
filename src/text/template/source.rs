//! Prepares template text for the engine: line ends, the `generation` tag, operators and limits.
//!
//! The engine's parser has no extension point for tags, so `{% generation %}` … `{% endgeneration %}`
//! (which only marks a span and opens a scope) is handed to it as `{% with %}` … `{% endwith %}`.
//! Expressions go through `rewrite`. The engine also copies literal text without asking anyone, so a
//! longer one is preceded by a tag that charges for it. Invariants: the line numbers of the result
//! are those of the template; tags, comments and raw blocks end here where they end for the engine,
//! or nothing of the template would be bounded.

use super::TemplateError;
use super::operators::names;
use super::rewrite::{Edit, Kind, Token, rewrite};

/// Longest template accepted, in bytes: about fifty times the longest in common use.
const MAX_BYTES: usize = 1 << 20;
/// Most tokens within one tag. The engine's code generator recurses along operator chains, so an
/// unbounded tag could exhaust the stack.
const MAX_TAG_TOKENS: usize = 2_000;
/// Most `elif` tags in a template; the engine's parser recurses along them.
const MAX_ELIF: usize = 1_000;
/// Longest literal text that is not charged for: fuel bounds how often it is written.
const FREE_LITERAL: usize = 16;

/// The template as the engine reads it.
pub(super) fn prepare(source: &str) -> Result<String, TemplateError> {
    if source.len() > MAX_BYTES {
        return Err(TemplateError {
            line: 1,
            message: format!(
                "the template has {} bytes; at most {MAX_BYTES} are accepted",
                source.len()
            ),
        });
    }
    let text = source.replace("\r\n", "\n").replace('\r', "\n");

    let mut edits = Vec::new();
    let mut elifs = 0;
    let mut walker = Walker { text: &text, at: 0 };
    let mut next = walker.next_tag();
    while let Some(tag) = next {
        next = walker.next_tag();
        let refused = |message: String| TemplateError {
            line: line_of(&text, tag.start),
            message,
        };
        if tag.tokens.len() > MAX_TAG_TOKENS {
            return Err(refused(format!(
                "a tag of more than {MAX_TAG_TOKENS} tokens"
            )));
        }
        elifs += usize::from(tag.keyword == "elif");
        if elifs > MAX_ELIF {
            return Err(refused(format!("more than {MAX_ELIF} `elif` tags")));
        }
        match tag.keyword {
            "generation" | "endgeneration" => edits.push(rename(&tag)),
            "endraw" => {}
            keyword => edits.extend(
                rewrite(&text, &tag.tokens, keyword).map_err(|what| refused(what.to_owned()))?,
            ),
        }
        let literal_end = next.as_ref().map_or(text.len(), |next| next.start);
        let literal = tag.raw_bytes + literal_end.saturating_sub(tag.end);
        if literal > FREE_LITERAL {
            edits.push(charge(&tag, literal));
        }
    }
    Ok(applied(&text, edits))
}

/// The `generation` tags as the scopes that they are.
fn rename(tag: &Tag<'_>) -> Edit {
    let name = if tag.keyword == "generation" {
        "with"
    } else {
        "endwith"
    };
    Edit {
        start: tag.tokens[0].start,
        end: tag.tokens[0].end,
        text: name.to_owned(),
    }
}

/// A tag behind `tag` that charges for the literal text that follows, and treats the white space of
/// that as `tag` does.
fn charge(tag: &Tag<'_>, literal: usize) -> Edit {
    let tail = tag.tail;
    Edit {
        start: tag.end,
        end: tag.end,
        text: format!(
            "{{%+ if {literal}|{} +%}}{{%+ endif {tail}%}}",
            names::LITERAL
        ),
    }
}

fn applied(text: &str, mut edits: Vec<Edit>) -> String {
    // Stable: edits at one place stay in the order in which they were found.
    edits.sort_by_key(|edit| edit.start);
    let mut out = String::with_capacity(text.len() * 2);
    let mut at = 0;
    for edit in edits {
        out.push_str(&text[at..edit.start]);
        out.push_str(&edit.text);
        at = edit.end;
    }
    out.push_str(&text[at..]);
    out
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at]
        .iter()
        .filter(|&&b| b == b'\n')
        .count()
}

/// A tag or comment; a raw block is one tag, from `raw` to `endraw`.
#[derive(Debug)]
struct Tag<'a> {
    start: usize,
    end: usize,
    /// The first word of a `{% … %}` tag; empty for `{{ … }}` and comments.
    keyword: &'a str,
    tokens: Vec<Token>,
    /// How the end of a block tag is written that treats the white space behind it alike.
    tail: &'static str,
    raw_bytes: usize,
}

/// Steps from tag to tag.
struct Walker<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Walker<'a> {
    fn next_tag(&mut self) -> Option<Tag<'a>> {
        let start = self.at + find_brace(&self.text[self.at..])?;
        let opener = self.text.as_bytes()[start + 1];
        self.at = start + 2;
        match opener {
            b'#' => {
                self.at += self.text[self.at..].find("#}")? + 2;
                Some(Tag {
                    start,
                    end: self.at,
                    keyword: "",
                    tokens: Vec::new(),
                    tail: self.tail(self.at - 3),
                    raw_bytes: 0,
                })
            }
            b'{' => Some(self.tag(start, "}}", false)),
            _ => {
                let tag = self.tag(start, "%}", true);
                if tag.keyword != "raw" {
                    return Some(tag);
                }
                let endraw = start_of_endraw(self.text, self.at)?;
                self.at = endraw + 2;
                let end = self.tag(endraw, "%}", true);
                Some(Tag {
                    start,
                    raw_bytes: endraw - tag.end,
                    ..end
                })
            }
        }
    }

    /// What the byte before the end of a block tag or comment says about white space.
    fn tail(&self, at: usize) -> &'static str {
        match self.text.as_bytes().get(at) {
            Some(b'-') => "-",
            Some(b'+') => "+",
            _ => "",
        }
    }

    /// Reads the tag that opened at `start` and steps past its end, which is the first `close`
    /// outside strings and brackets (or the end of the text).
    fn tag(&mut self, start: usize, close: &str, is_block: bool) -> Tag<'a> {
        let text = self.text;
        let bytes = text.as_bytes();
        if matches!(bytes.get(self.at), Some(b'-' | b'+')) {
            self.at += 1;
        }
        let mut tag = Tag {
            start,
            end: text.len(),
            keyword: "",
            tokens: Vec::new(),
            tail: "",
            raw_bytes: 0,
        };
        let mut depth = 0usize;
        while let Some(&byte) = bytes.get(self.at) {
            let sign = usize::from(matches!(byte, b'-' | b'+'));
            if depth == 0 && bytes[self.at + sign..].starts_with(close.as_bytes()) {
                tag.tail = match (self.tail(self.at), is_block) {
                    // The line break behind `{{ … }}` stays.
                    ("", false) => "+",
                    (tail, _) => tail,
                };
                self.at += sign + close.len();
                tag.end = self.at;
                return tag;
            }
            if byte.is_ascii_whitespace() {
                self.at += 1;
                continue;
            }
            let is_after_dot = tag
                .tokens
                .last()
                .is_some_and(|last| &text[last.start..last.end] == ".");
            let token = self.token(byte, is_after_dot);
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if is_block && tag.tokens.is_empty() {
                tag.keyword = &text[token.start..token.end];
            }
            tag.tokens.push(token);
        }
        tag
    }

    /// Steps past the token that begins with `first`.
    fn token(&mut self, first: u8, is_after_dot: bool) -> Token {
        let start = self.at;
        let kind = match first {
            b'"' | b'\'' => {
                self.skip_string(first);
                Kind::Text
            }
            b'0'..=b'9' => {
                self.skip_number(is_after_dot);
                Kind::Number
            }
            _ if is_word(first) => {
                self.skip_word();
                Kind::Word
            }
            _ => {
                let is_double = matches!(
                    self.text.as_bytes().get(start..start + 2),
                    Some(b"//" | b"**" | b"==" | b"!=" | b">=" | b"<=")
                );
                self.at += if is_double { 2 } else { 1 };
                Kind::Symbol
            }
        };
        Token {
            kind,
            start,
            end: self.at,
        }
    }

    fn skip_word(&mut self) {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(|&b| is_word(b)) {
            self.at += 1;
        }
    }

    /// Steps past a number: the sign of an exponent is no operator, the dot of a fraction no
    /// attribute's.
    fn skip_number(&mut self, is_after_dot: bool) {
        let bytes = self.text.as_bytes();
        let byte_at = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let has_radix =
            byte_at(self.at) == b'0' && matches!(byte_at(self.at + 1) | 0x20, b'x' | b'o' | b'b');
        self.skip_word();
        if has_radix || is_after_dot {
            return;
        }
        let follows_fraction =
            !is_word(byte_at(self.at + 1)) || byte_at(self.at + 1).is_ascii_digit();
        if byte_at(self.at) == b'.' && follows_fraction {
            self.at += 1;
            self.skip_word();
        }
        if byte_at(self.at - 1) | 0x20 == b'e'
            && matches!(byte_at(self.at), b'+' | b'-')
            && byte_at(self.at + 1).is_ascii_digit()
        {
            self.at += 1;
            self.skip_word();
        }
    }

    fn skip_string(&mut self, quote: u8) {
        let bytes = self.text.as_bytes();
        self.at += 1;
        while let Some(&byte) = bytes.get(self.at) {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == quote {
                return;
            }
        }
        self.at = bytes.len();
    }
}

/// Where the `{% endraw %}` stands that ends a raw block, spelled as the engine wants it.
fn start_of_endraw(text: &str, from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += text[at..].find("{%")?;
        let inner = &text[at + 2..];
        let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
        let inner = inner.trim_start_matches(|c: char| c.is_ascii_whitespace());
        if let Some(inner) = inner.strip_prefix("endraw") {
            let inner = inner.trim_start_matches(|c: char| c.is_ascii_whitespace());
            if inner
                .strip_prefix(['-', '+'])
                .unwrap_or(inner)
                .starts_with("%}")
            {
                return Some(at);
            }
        }
        at += 2;
    }
}

/// Where the next `{{`, `{%` or `{#` stands.
fn find_brace(text: &str) -> Option<usize> {
    text.as_bytes()
        .windows(2)
        .position(|pair| pair[0] == b'{' && matches!(pair[1], b'{' | b'%' | b'#'))
}

/// Bytes of a word or number; those of a multi-byte character count, so that one is never cut.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(source: &str) -> String {
        prepare(source).expect("the template is within the limits")
    }

    #[test]
    fn generation_tags_become_scopes() {
        assert_eq!(
            prepared("a{%- generation -%}b{% endgeneration %}c"),
            "a{%- with -%}b{% endwith %}c"
        );
    }

    #[test]
    fn the_word_generation_elsewhere_is_left_alone() {
        for source in [
            "generation {{ generation }}",
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{{ '{% generation %}' }}",
            "{% do f(\"%}{% generation %}\") %}",
            "{{ {'a': {'b': '}}'}} }}",
            "{% if generation %}{% endif %}",
        ] {
            assert_eq!(prepared(source), source);
        }
    }

    #[test]
    fn line_ends_are_normalised() {
        assert_eq!(prepared("a\r\nb\rc\n"), "a\nb\nc\n");
    }

    #[test]
    fn unfinished_tags_and_strings_are_left_to_the_parser() {
        for source in [
            "{{",
            "{%",
            "{#",
            "{% raw %}",
            "{{ 'a",
            "{{ 'a\\",
            "{{ é",
            "{",
        ] {
            assert_eq!(prepared(source), source);
        }
    }

    #[test]
    fn oversized_templates_are_refused_with_the_line() {
        let chain = format!("\n{{{{ 1{} }}}}", "+1".repeat(5_000));
        assert_eq!(prepare(&chain).expect_err("too many tokens").line, 2);
        let elifs = format!(
            "{{% if a %}}{}{{% endif %}}",
            "{% elif a %}".repeat(MAX_ELIF + 1)
        );
        assert!(prepare(&elifs).is_err());
        assert!(prepare(&" ".repeat(MAX_BYTES + 1)).is_err());
    }
}
