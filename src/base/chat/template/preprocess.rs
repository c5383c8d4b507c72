//! Checks the text of a template before the engine compiles it, and prevents the engine from computing constants.
//!
//! The text is tokenized with the engine's own lexer, so that tags, comments and raw blocks end where they end for the
//! engine. While compiling, the engine computes operators on literals: without a budget and not as Python does. So a
//! variable is inserted between each operator that creates data and its right operand; `guard` removes it from the
//! instructions. `{% generation %}`, which only marks a span and opens a scope, becomes `{% with %}`. What the engine
//! reads differently from Jinja2 is spelled in another way: escapes in texts, a sign before a number, and defaults of a
//! macro that name its parameters. Invariant: the line numbers of the result are those of the template.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::TemplateError;

/// Maximum size of a template, in bytes: about fifty times the longest in common use.
const MAX_BYTES: usize = 1 << 20;
/// Maximum number of tokens in a tag. The engine recurses along operator chains, so an unbounded tag could exhaust the
/// stack.
const MAX_TAG_TOKENS: usize = 2_000;
/// Maximum number of `elif` tags in a template; the engine's parser recurses along them.
const MAX_ELIF: usize = 1_000;
const MAX_BRACKETS: usize = 60;
/// The variable that is inserted between an operator and its right operand.
pub(super) const UNFOLDED: &str = "__unfolded";

/// The default of a parameter whose default is computed in the body: a variable that is never defined.
pub(super) const ABSENT: &str = "__absent";

/// What is inserted before a comparison, so that the engine does not compare constants: a filter that does nothing.
const UNCOMPARED: &str = "|__walk ";

pub(super) fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the default delimiters are valid")
}

/// The template as the engine compiles it.
pub(super) fn prepare(source: &str) -> Result<String, TemplateError> {
    let refused = |line: u16, message: String| TemplateError {
        line: line.into(),
        message,
    };
    if source.len() > MAX_BYTES {
        let n = source.len();
        let message = format!("the template has {n} bytes; at most {MAX_BYTES} are accepted");
        return Err(refused(1, message));
    }
    let text = source.replace("\r\n", "\n").replace('\r', "\n");

    let mut out = String::with_capacity(text.len() * 2);
    let (mut copied, mut n_elifs) = (0, 0);
    let (mut n_tokens, mut depth) = (0, 0_usize);
    let mut before = Token::BlockEnd;
    // The engine reports text that cannot be tokenized with its own message.
    for (token, span) in tokenize(&text, false, syntax()).map_while(Result::ok) {
        let is_keyword = matches!(before, Token::BlockStart);
        let mut replacement = None;
        match &token {
            Token::BlockStart | Token::VariableStart => (n_tokens, depth) = (0, 0),
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                depth = depth.saturating_sub(1);
            }
            Token::Ident("elif") if is_keyword => n_elifs += 1,
            Token::Ident("generation") if is_keyword => replacement = Some("with".to_owned()),
            Token::Ident("endgeneration") if is_keyword => replacement = Some("endwith".to_owned()),
            // `*` before an argument is not an operator.
            Token::Mul if matches!(before, Token::ParenOpen | Token::Comma) => {}
            Token::Plus if !ends_operand(&before) => replacement = Some(String::new()),
            Token::Plus => replacement = Some(unfolded('+')),
            Token::Lt | Token::Lte | Token::Gt | Token::Gte if ends_constant(&before) => {
                let operator = &text[span.start_offset as usize..span.end_offset as usize];
                replacement = Some(format!("{UNCOMPARED}{operator}"));
            }
            Token::Str(_) | Token::String(_) => {
                let literal = &text[span.start_offset as usize..span.end_offset as usize];
                let spelled = spelled(literal).map_err(|what| refused(span.start_line, what))?;
                replacement = spelled;
            }
            Token::Mul => replacement = Some(unfolded('*')),
            Token::Tilde => replacement = Some(unfolded('~')),
            _ => {}
        }
        if let Some(replacement) = replacement {
            out += &text[copied..span.start_offset as usize];
            out += &replacement;
            copied = span.end_offset as usize;
        }
        n_tokens += 1;
        let excess = if n_tokens > MAX_TAG_TOKENS {
            format!("a tag of more than {MAX_TAG_TOKENS} tokens")
        } else if depth > MAX_BRACKETS {
            "brackets nest too deep".to_owned()
        } else if n_elifs > MAX_ELIF {
            format!("more than {MAX_ELIF} `elif` tags")
        } else if let Token::Ident(name @ (UNFOLDED | ABSENT)) = token {
            format!("the name `{name}` is reserved")
        } else {
            before = token;
            continue;
        };
        return Err(refused(span.start_line, excess));
    }
    out += &text[copied..];
    Ok(out)
}

fn unfolded(operator: char) -> String {
    format!("{operator} {UNFOLDED} {operator}")
}

/// Whether a constant may end with this token.
fn ends_constant(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(word) => ["none", "None", "true", "True", "false", "False"].contains(word),
        _ => ends_operand(token),
    }
}

/// Whether an operand may end with this token, so that a following sign is an operator.
fn ends_operand(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(word) => {
            !["and", "or", "not", "in", "is", "if", "else", "elif"].contains(word)
        }
        Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_) => {
            true
        }
        Token::ParenClose | Token::BracketClose | Token::BraceClose => true,
        _ => false,
    }
}

/// A literal with the escapes of Python that the engine does not read, in its spelling; `None` if there are none. Line
/// ends that an escape removes follow the literal.
fn spelled(literal: &str) -> Result<Option<String>, String> {
    let mut out = String::with_capacity(literal.len());
    let (mut is_changed, mut n_lines) = (false, 0);
    let mut rest = literal.chars();
    while let Some(c) = rest.next() {
        let escape = match c {
            '\\' => rest.next(),
            _ => None,
        };
        match escape {
            None => {
                out.push(c);
                continue;
            }
            Some('\n') => n_lines += 1,
            Some('a') => out.push('\x07'),
            Some('v') => out.push('\x0b'),
            Some('/') => out += "\\\\/",
            Some('U') => {
                let digits: String = rest.by_ref().take(8).collect();
                let code = u32::from_str_radix(&digits, 16).ok();
                let c = code.filter(|_| digits.len() == 8).and_then(char::from_u32);
                out.push(c.ok_or_else(|| format!("`\\U{digits}` is not a character"))?);
            }
            Some('N') => {
                return Err("`\\N{...}` is not supported: write the character itself".to_owned());
            }
            Some(other) => {
                out.extend(['\\', other]);
                continue;
            }
        }
        is_changed = true;
    }
    out += &"\n".repeat(n_lines);
    Ok(is_changed.then_some(out))
}

/// An engine message with expressions as the template writes them.
pub(super) fn restored(message: &str) -> String {
    let operators = ['+', '*', '~'].into_iter();
    let message = message.replace(UNCOMPARED, "");
    operators.fold(message, |message, operator| {
        message.replace(&unfolded(operator), &operator.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(source: &str) -> String {
        prepare(source).expect("the template is within the limits")
    }

    #[test]
    fn generation_tags_become_scopes_and_the_word_elsewhere_stays() {
        assert_eq!(
            prepared("a{%- generation -%}b{% endgeneration %}c"),
            "a{%- with -%}b{% endwith %}c"
        );
        for source in [
            "generation {{ generation }}",
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{% if generation %}{% endif %}",
        ] {
            assert_eq!(prepared(source), source);
        }
    }

    #[test]
    fn operators_that_make_data_have_no_literal_on_their_left() {
        let source = "{{ 'a\n' * 2 ~\n f(*x, 1, *y) + -1 - 1.5 ** 2 }} + {# * #}";
        let text = prepared(source);
        let expected = "{{ 'a\n' * __unfolded * 2 ~ __unfolded ~\n f(*x, 1, *y) + __unfolded + -1 - 1.5 ** 2 }} + {# * #}";
        assert_eq!(text, expected);
        assert_eq!(restored(&text), source);
    }

    #[test]
    fn texts_have_the_escapes_of_python() {
        let cases = [
            (r#""a\U0001F600\x41\n""#, "\"a\u{1f600}\\x41\\n\""),
            (r"'\/\a\'\\U'", "'\\\\/\u{7}\\'\\\\U'"),
            ("'a\\\nb'", "'ab'\n"),
        ];
        for (literal, expected) in cases {
            assert_eq!(spelled(literal), Ok(Some(expected.to_owned())), "{literal}");
        }
        assert_eq!(spelled(r"'\u0041\d\\'"), Ok(None));
        assert!(spelled(r"'\U0011'").is_err() && spelled(r"'\N{DASH}'").is_err());
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
    fn oversized_and_evading_templates_are_refused() {
        let chain = format!("\n{{{{ 1{} }}}}", "+1".repeat(5_000));
        assert_eq!(prepare(&chain).expect_err("too many tokens").line, 2);
        let elifs = "{% elif a %}".repeat(MAX_ELIF + 1);
        assert!(prepare(&format!("{{% if a %}}{elifs}{{% endif %}}")).is_err());
        assert!(prepare(&" ".repeat(MAX_BYTES + 1)).is_err());
        assert!(prepare("{{ x + __unfolded }}").is_err());
    }
}
