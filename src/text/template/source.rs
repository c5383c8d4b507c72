//! Checks the text of a template before the engine compiles it, and takes the literals out.
//!
//! The text is read with the engine's own lexer, so that tags, comments and raw blocks end here where
//! they end for the engine. Each literal becomes a variable, because the engine would otherwise
//! compute operators on literals while it compiles: without a budget and not as Python does. `guard`
//! puts the literals back. `{% generation %}`, which only marks a span and opens a scope, becomes
//! `{% with %}`. Invariant: the line numbers of the result are those of the template.

use std::iter::Peekable;

use minijinja::Value;
use minijinja::machinery::{Span, Token, tokenize};

use super::{TemplateError, syntax};

/// Longest template accepted, in bytes: about fifty times the longest in common use.
const MAX_BYTES: usize = 1 << 20;
/// Most tokens within one tag. The engine recurses along operator chains, so an unbounded tag could
/// exhaust the stack.
const MAX_TAG_TOKENS: usize = 2_000;
/// Most `elif` tags in a template; the engine's parser recurses along them.
const MAX_ELIF: usize = 1_000;
/// Deepest nesting of brackets in a tag.
const MAX_BRACKETS: usize = 60;
/// What the names of the variables that stand for literals start with.
const LITERAL: &str = "__literal_";

/// A template as the engine compiles it.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) text: String,
    pub(super) literals: Literals,
}

/// The literals of a template: how they are written and their values.
#[derive(Debug, Default)]
pub(super) struct Literals(Vec<(String, Value)>);

impl Literals {
    /// The value of the literal that a variable stands for.
    pub(super) fn get(&self, variable: &str) -> Option<Value> {
        let number: usize = variable.strip_prefix(LITERAL)?.parse().ok()?;
        self.0.get(number).map(|(_, value)| value.clone())
    }

    /// Whether a variable stands for a literal that is compared, or finds its item, in no time: a short
    /// text or a small number, because items of texts are found by counting.
    pub(super) fn is_short(&self, variable: &str) -> bool {
        self.get(variable)
            .is_some_and(|value| match value.as_str() {
                Some(text) => text.len() < 64,
                None => value.as_i64().is_some_and(|int| int < 1000),
            })
    }

    /// An engine's message with the literals as the template writes them.
    pub(super) fn restored(&self, mut message: String) -> String {
        for (number, (written, _)) in self.0.iter().enumerate().rev() {
            if !message.contains(LITERAL) {
                break;
            }
            let name = format!("{LITERAL}{number}");
            message = message.replace(&format!(" {name} "), written);
            message = message.replace(&name, written);
        }
        message
    }

    /// Adds a literal; gives the text of the variable, on as many lines.
    fn push(&mut self, written: &str, value: Value) -> String {
        let variable = format!(" {LITERAL}{} ", self.0.len());
        self.0.push((written.to_owned(), value));
        variable + &"\n".repeat(written.matches('\n').count())
    }
}

/// The template as the engine reads it.
pub(super) fn prepare(source: &str) -> Result<Prepared, TemplateError> {
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
    let mut literals = Literals::default();
    let (mut copied, mut n_elifs) = (0, 0);
    let (mut n_tokens, mut depth) = (0, 0_usize);
    let (mut is_keyword, mut is_name) = (false, false);
    // What cannot be read is left for the engine's own message.
    let mut tokens = tokenize(&text, false, syntax())
        .map_while(Result::ok)
        .peekable();
    while let Some((token, mut span)) = tokens.next() {
        let replacement = match &token {
            Token::BlockStart | Token::VariableStart => {
                (n_tokens, depth) = (0, 0);
                None
            }
            Token::Ident("generation") if is_keyword => Some("with".to_owned()),
            Token::Ident("endgeneration") if is_keyword => Some("endwith".to_owned()),
            _ if is_name => None,
            _ => literal(&token, &mut span, &mut tokens).map(|value| {
                let written = &text[span.start_offset as usize..span.end_offset as usize];
                literals.push(written, value)
            }),
        };
        if let Some(replacement) = replacement {
            out += &text[copied..span.start_offset as usize];
            out += &replacement;
            copied = span.end_offset as usize;
        }
        match &token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                depth = depth.saturating_sub(1);
            }
            Token::Ident("elif") if is_keyword => n_elifs += 1,
            _ => {}
        }
        n_tokens += 1;
        if n_tokens > MAX_TAG_TOKENS {
            let message = format!("a tag of more than {MAX_TAG_TOKENS} tokens");
            return Err(refused(span.start_line, message));
        }
        if depth > MAX_BRACKETS {
            let message = "brackets nest too deep".to_owned();
            return Err(refused(span.start_line, message));
        }
        if n_elifs > MAX_ELIF {
            let message = format!("more than {MAX_ELIF} `elif` tags");
            return Err(refused(span.start_line, message));
        }
        is_keyword = matches!(token, Token::BlockStart);
        is_name = matches!(token, Token::Dot | Token::Pipe | Token::Ident("is"));
    }
    out += &text[copied..];
    Ok(Prepared {
        text: out,
        literals,
    })
}

/// The value of a literal. Texts in a row are one; `span` grows to take them in.
fn literal<'t>(
    token: &Token<'t>,
    span: &mut Span,
    rest: &mut Peekable<impl Iterator<Item = (Token<'t>, Span)>>,
) -> Option<Value> {
    let mut text = match token {
        Token::Int(int) => return Some(Value::from(*int)),
        Token::Int128(int) => return Some(Value::from(**int)),
        Token::Float(float) => return Some(Value::from(*float)),
        token => string(token)?.to_owned(),
    };
    while let Some((more, more_span)) = rest.next_if(|(token, _)| string(token).is_some()) {
        text.push_str(string(&more).unwrap_or_default());
        span.end_offset = more_span.end_offset;
    }
    Some(Value::from(text))
}

fn string<'a>(token: &'a Token<'_>) -> Option<&'a str> {
    match token {
        Token::Str(text) => Some(text),
        Token::String(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(source: &str) -> String {
        prepare(source)
            .expect("the template is within the limits")
            .text
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
    fn literals_become_variables_on_the_same_lines() {
        let Prepared { text, literals } = prepare("{{ 'a\n' \"b\" + x.0 - 1.5 }}").expect("short");
        let expected = "{{  __literal_0 \n + x.0 -  __literal_1  }}";
        assert_eq!(text, expected);
        assert_eq!(literals.get("__literal_0"), Some(Value::from("a\nb")));
        assert_eq!(literals.get("__literal_1"), Some(Value::from(1.5)));
        assert_eq!(literals.restored("`x[ __literal_1 ]`".into()), "`x[1.5]`");
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
        let elifs = "{% elif a %}".repeat(MAX_ELIF + 1);
        assert!(prepare(&format!("{{% if a %}}{elifs}{{% endif %}}")).is_err());
        assert!(prepare(&" ".repeat(MAX_BYTES + 1)).is_err());
    }
}
