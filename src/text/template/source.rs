//! Prepares template text for the engine: line ends, the `generation` tag, and size limits.
//!
//! The engine's parser has no extension point for tags, so `{% generation %}` … `{% endgeneration %}`
//! (which only marks a span and opens a scope) is handed to it as `{% with %}` … `{% endwith %}`,
//! padded to the same width. Invariant: lines and columns of the result are those of the template
//! with its line ends normalised, so that positions in messages stay true.

use super::TemplateError;

/// Longest template accepted, in bytes: about fifty times the longest in common use.
const MAX_BYTES: usize = 1 << 20;
/// Most tokens within one tag. The engine's code generator recurses along operator chains, so an
/// unbounded tag could exhaust the stack.
const MAX_TAG_TOKENS: usize = 2_000;
/// Most `elif` tags in a template; the engine's parser recurses along them.
const MAX_ELIF: usize = 1_000;

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
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");

    let mut replacements = Vec::new();
    let mut elifs = 0;
    let mut walker = Walker { text: &text, at: 0 };
    while let Some(tag) = walker.next_tag() {
        let too_large = |message: String| TemplateError {
            line: line_of(&text, tag.start),
            message,
        };
        if tag.tokens > MAX_TAG_TOKENS {
            return Err(too_large(format!(
                "a tag of more than {MAX_TAG_TOKENS} tokens"
            )));
        }
        match tag.keyword {
            "generation" => replacements.push((tag.keyword_at, "generation", "with      ")),
            "endgeneration" => {
                replacements.push((tag.keyword_at, "endgeneration", "endwith      "));
            }
            "elif" => {
                elifs += 1;
                if elifs > MAX_ELIF {
                    return Err(too_large(format!("more than {MAX_ELIF} `elif` tags")));
                }
            }
            _ => {}
        }
    }
    for (at, from, to) in replacements {
        text.replace_range(at..at + from.len(), to);
    }
    Ok(text)
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at]
        .iter()
        .filter(|&&b| b == b'\n')
        .count()
}

struct Tag<'a> {
    start: usize,
    /// The first word of a `{% … %}` tag; empty for `{{ … }}`.
    keyword: &'a str,
    keyword_at: usize,
    tokens: usize,
}

/// Steps from tag to tag, past comments and `raw` blocks.
struct Walker<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Walker<'a> {
    fn next_tag(&mut self) -> Option<Tag<'a>> {
        loop {
            let start = self.at + find_brace(&self.text[self.at..])?;
            let opener = self.text.as_bytes()[start + 1];
            self.at = start + 2;
            match opener {
                b'#' => self.at += self.text[self.at..].find("#}")? + 2,
                b'{' => return Some(self.tag(start, "}}", false)),
                _ => {
                    let tag = self.tag(start, "%}", true);
                    if tag.keyword == "raw" {
                        self.skip_raw()?;
                    }
                    return Some(tag);
                }
            }
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
            keyword: "",
            keyword_at: self.at,
            tokens: 0,
        };
        let mut depth = 0usize;
        while let Some(&byte) = bytes.get(self.at) {
            if depth == 0 && text[self.at..].starts_with(close) {
                self.at += close.len();
                return tag;
            }
            if byte.is_ascii_whitespace() {
                self.at += 1;
                continue;
            }
            tag.tokens += 1;
            let token_at = self.at;
            match byte {
                b'"' | b'\'' => self.skip_string(byte),
                _ if is_word(byte) => {
                    while bytes.get(self.at).is_some_and(|&b| is_word(b)) {
                        self.at += 1;
                    }
                }
                _ => {
                    match byte {
                        b'(' | b'[' | b'{' => depth += 1,
                        b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    self.at += 1;
                }
            }
            if is_block && tag.tokens == 1 {
                tag.keyword = &text[token_at..self.at];
                tag.keyword_at = token_at;
            }
        }
        tag
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

    fn skip_raw(&mut self) -> Option<()> {
        loop {
            self.at += self.text[self.at..].find("{%")? + 2;
            let inner = self.text[self.at..]
                .trim_start_matches(['-', '+'])
                .trim_start();
            if inner.starts_with("endraw") {
                return Some(());
            }
        }
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
    fn generation_tags_become_scopes_of_the_same_width() {
        assert_eq!(
            prepared("a{%- generation -%}b{% endgeneration %}c"),
            "a{%- with       -%}b{% endwith       %}c"
        );
    }

    #[test]
    fn the_word_generation_elsewhere_is_left_alone() {
        for source in [
            "generation {{ generation }}",
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{{ '{% generation %}' }}",
            "{% set x = \"%}{% generation %}\" %}",
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
