//! From the text of a GBNF grammar to that of a Lark grammar.

use super::super::Error;
use super::{lexemes, parse, prune, write};

/// Whether the first rule of a grammar is GBNF: `name ::=`.
pub(in crate::grammar) fn is_gbnf(text: &str) -> bool {
    let mut rest = text.trim_start();
    while rest.starts_with('#') || rest.starts_with("//") {
        rest = rest
            .split_once('\n')
            .map_or("", |(_, rest)| rest)
            .trim_start();
    }
    let after_name = rest.trim_start_matches(parse::is_name);
    after_name.len() < rest.len() && after_name.trim_start().starts_with("::=")
}

pub(in crate::grammar) fn to_lark(text: &str) -> Result<String, Error> {
    let rules = parse::parse(text)?;
    let (line, column) = rules.root_at;
    let rules = prune::prune(&rules).ok_or_else(|| Error::Gbnf {
        line,
        column,
        message: "no text fits the rule `root`".into(),
    })?;
    Ok(write::lark(&lexemes::lex(&rules), &rules))
}
