//! Defaults of a macro's parameters that name other parameters of it.
//!
//! The engine computes defaults from the last to the first, before it stores the parameters, so that such a name would
//! be undefined. The defaults of such a macro become assignments at the start of its body, in the order of the
//! parameters. Invariant: other macros stay as they are, and lines after a macro's tag keep their numbers.

use std::ops::Range;

use minijinja::machinery::{Span, Token, tokenize};

use super::preprocess::{ABSENT, syntax};

type Placed<'a> = (Token<'a>, Span);

/// The text of a template with such defaults moved.
pub(super) fn with_moved_defaults(text: String) -> String {
    if !text.contains("macro") {
        return text;
    }
    let tokens = tokenize(&text, false, syntax()).map_while(Result::ok);
    let tokens: Vec<Placed<'_>> = tokens.collect();
    let (mut out, mut copied) = (String::with_capacity(text.len()), 0);
    for (at, pair) in tokens.windows(2).enumerate() {
        let [(Token::BlockStart, _), (Token::Ident("macro"), _)] = pair else {
            continue;
        };
        let is_end = |(token, _): &Placed<'_>| matches!(token, Token::BlockEnd);
        let Some(n) = tokens[at..].iter().position(is_end) else {
            break;
        };
        let parameters = parameters(&tokens[at..at + n]);
        if !parameters.iter().any(|parameter| parameter.names_another) {
            continue;
        }
        let end = range(&tokens[at + n].1);
        // The assignments treat the white space after them as the macro's tag does.
        let sign = text[end.clone()].strip_suffix("%}").unwrap_or_default();
        let mut assignments = String::new();
        for Parameter { name, default, .. } in parameters {
            let Some(default) = default else { continue };
            let value = &text[default.clone()];
            assignments +=
                &format!("{{% set {name} = ({value}) if {name} is undefined else {name} {sign}%}}");
            out += &text[copied..default.start];
            out += ABSENT;
            copied = default.end;
        }
        out += &text[copied..end.end];
        out += &assignments;
        copied = end.end;
    }
    out += &text[copied..];
    out
}

struct Parameter<'a> {
    name: &'a str,
    default: Option<Range<usize>>,
    /// Whether the default names a parameter before it.
    names_another: bool,
}

fn range(span: &Span) -> Range<usize> {
    span.start_offset as usize..span.end_offset as usize
}

/// The parameters of a macro, from the tokens of its tag: `{%`, `macro`, its name, `(`, and so on.
fn parameters<'a>(tag: &[Placed<'a>]) -> Vec<Parameter<'a>> {
    let mut parameters: Vec<Parameter<'a>> = Vec::new();
    let mut rest = tag.iter().skip(4).peekable();
    while let Some((Token::Ident(name), _)) = rest.next() {
        let (mut default, mut names_another) = (None::<Range<usize>>, false);
        if rest
            .next_if(|(token, _)| matches!(token, Token::Assign))
            .is_some()
        {
            let (mut depth, mut is_attribute) = (0, false);
            while let Some((token, span)) = rest.next_if(|(token, _)| {
                depth > 0 || !matches!(token, Token::Comma | Token::ParenClose)
            }) {
                match token {
                    Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
                    Token::ParenClose | Token::BracketClose | Token::BraceClose => depth -= 1,
                    Token::Ident(word) if !is_attribute => {
                        names_another |= parameters.iter().any(|known| known.name == *word);
                    }
                    _ => {}
                }
                is_attribute = matches!(token, Token::Dot);
                let span = range(span);
                default = Some(default.map_or(span.start, |known| known.start)..span.end);
            }
        }
        parameters.push(Parameter {
            name,
            default,
            names_another,
        });
        if !matches!(rest.next(), Some((Token::Comma, _))) {
            break;
        }
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_that_name_a_parameter_are_computed_in_the_body() {
        let source = "{%- macro f(a, b=a[1] ~ 'x', c=(1, 2)) -%}\n{{ b }}{% endmacro %}";
        let expected = "{%- macro f(a, b=__absent, c=__absent) -%}\
            {% set b = (a[1] ~ 'x') if b is undefined else b -%}\
            {% set c = ((1, 2)) if c is undefined else c -%}\n{{ b }}{% endmacro %}";
        assert_eq!(with_moved_defaults(source.to_owned()), expected);
        for same in [
            "{% macro f(a, b=x.a, c={'a': 1}) %}{{ macro }}{% endmacro %}",
            "{% macro f() %}{% endmacro %}",
            "{% macro f(a, b=a",
            "{% macro",
        ] {
            assert_eq!(with_moved_defaults(same.to_owned()), same);
        }
    }
}
