//! The parser of expressions: text to a tree, with limits against hostile text.

use std::fmt;

use super::{Binary, FUNCTIONS, Node, Unary, Value};
use crate::arch::diagnostic::{Diagnostic, Span};

/// Maximum number of tokens and nesting depth of an expression, so that hostile text cannot overflow the stack.
const MAX_TOKENS: usize = 512;
const MAX_DEPTH: usize = 64;

/// The tree of `text`, which begins at byte `offset` of its file.
pub(super) fn parse(text: &str, offset: usize) -> Result<Node, Diagnostic> {
    let tokens = tokenize(text, offset)?;
    if tokens.len() > MAX_TOKENS {
        let problem = format!(
            "the expression has {} words and symbols, more than {MAX_TOKENS}",
            tokens.len()
        );
        return Err(Diagnostic::new(offset..offset + text.len(), problem));
    }
    let mut parser = Parser {
        tokens,
        at: 0,
        depth: 0,
        end: offset + text.len(),
    };
    let node = parser.expression(0)?;
    match parser.tokens.get(parser.at) {
        Some((token, span)) => Err(Diagnostic::new(
            span.clone(),
            format!("unexpected {token} after the expression"),
        )),
        None => Ok(node),
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Value(Value),
    Word(String),
    Symbol(&'static str),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(Value::Str(text)) => write!(f, "`'{text}'`"),
            Self::Value(value) => write!(f, "`{value}`"),
            Self::Word(word) => write!(f, "`{word}`"),
            Self::Symbol(symbol) => write!(f, "`{symbol}`"),
        }
    }
}

/// The symbols, longer ones first so that they are matched first.
const SYMBOLS: &[&str] = &[
    "==", "!=", "<=", ">=", "//", "<", ">", "+", "-", "*", "/", "%", "^", "(", ")", "[", "]", ",",
];

fn tokenize(text: &str, offset: usize) -> Result<Vec<(Token, Span)>, Diagnostic> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (token, len) = if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        } else if first.is_ascii_digit()
            || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()))
        {
            number(rest, offset + at)?
        } else if first.is_alphabetic() || first == '_' {
            let len = word_len(rest);
            let token = match &rest[..len] {
                "true" => Token::Value(Value::Bool(true)),
                "false" => Token::Value(Value::Bool(false)),
                word => Token::Word(word.to_owned()),
            };
            (token, len)
        } else if first == '\'' || first == '"' {
            let Some(len) = rest[1..].find(first) else {
                return Err(Diagnostic::new(
                    offset + at..offset + text.len(),
                    "this string has no closing quote",
                ));
            };
            (Token::Value(Value::Str(rest[1..=len].to_owned())), len + 2)
        } else if let Some(symbol) = SYMBOLS.iter().find(|s| rest.starts_with(**s)) {
            (Token::Symbol(symbol), symbol.len())
        } else {
            let span = offset + at..offset + at + first.len_utf8();
            return Err(Diagnostic::new(
                span,
                format!("unexpected character `{first}`"),
            ));
        };
        tokens.push((token, offset + at..offset + at + len));
        at += len;
    }
    Ok(tokens)
}

/// Number of bytes of the word at the start of a text. Dots join words: a key within an object.
fn word_len(rest: &str) -> usize {
    let mut len = 0;
    loop {
        let part = rest[len..].find(|c: char| !(c.is_alphanumeric() || c == '_'));
        len = part.map_or(rest.len(), |n| len + n);
        let mut next = rest[len..].chars();
        let is_joined = next.next() == Some('.') && next.next().is_some_and(char::is_alphabetic);
        if !is_joined {
            return len;
        }
        len += 1;
    }
}

fn number(rest: &str, offset: usize) -> Result<(Token, usize), Diagnostic> {
    let bytes = rest.as_bytes();
    let mut len = 0;
    while len < bytes.len() {
        let exponent_sign = (bytes[len] == b'-' || bytes[len] == b'+')
            && len > 0
            && bytes[len - 1].eq_ignore_ascii_case(&b'e');
        if !(bytes[len].is_ascii_digit()
            || matches!(bytes[len], b'.' | b'e' | b'E' | b'_')
            || exponent_sign)
        {
            break;
        }
        len += 1;
    }
    let digits = rest[..len].replace('_', "");
    let value = if digits.contains(['.', 'e', 'E']) {
        digits
            .parse()
            .ok()
            .filter(|v: &f64| v.is_finite())
            .map(Value::Float)
    } else {
        digits.parse().ok().map(Value::Int)
    };
    value
        .map(|value| (Token::Value(value), len))
        .ok_or_else(|| {
            Diagnostic::new(
                offset..offset + len,
                format!("`{}` is not a number", &rest[..len]),
            )
        })
}

struct Parser {
    tokens: Vec<(Token, Span)>,
    at: usize,
    depth: usize,
    end: usize,
}

/// The binary operator of a token and its precedence; a higher one binds tighter. `^` is right-associative.
fn operator(token: &Token) -> Option<(Binary, u8)> {
    Some(match token {
        Token::Word(word) if word == "or" => (Binary::Or, 1),
        Token::Word(word) if word == "and" => (Binary::And, 2),
        Token::Symbol("==") => (Binary::Equal, 4),
        Token::Symbol("!=") => (Binary::NotEqual, 4),
        Token::Symbol("<") => (Binary::Less, 4),
        Token::Symbol("<=") => (Binary::LessEqual, 4),
        Token::Symbol(">") => (Binary::Greater, 4),
        Token::Symbol(">=") => (Binary::GreaterEqual, 4),
        Token::Symbol("+") => (Binary::Add, 5),
        Token::Symbol("-") => (Binary::Subtract, 5),
        Token::Symbol("*") => (Binary::Multiply, 6),
        Token::Symbol("/") => (Binary::Divide, 6),
        Token::Symbol("//") => (Binary::FloorDivide, 6),
        Token::Symbol("%") => (Binary::Remainder, 6),
        Token::Symbol("^") => (Binary::Power, 8),
        _ => return None,
    })
}

/// Precedences: `not` is below comparisons, the minus sign above products.
const NOT_BINDS: u8 = 3;
const MINUS_BINDS: u8 = 7;

impl Parser {
    fn expression(&mut self, least: u8) -> Result<Node, Diagnostic> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Diagnostic::new(
                self.here(),
                "the expression is nested too deeply",
            ));
        }
        let mut left = self.operand()?;
        while let Some((op, binds)) = self
            .tokens
            .get(self.at)
            .and_then(|(token, _)| operator(token))
        {
            if binds < least {
                break;
            }
            self.at += 1;
            let right = self.expression(if op == Binary::Power {
                binds
            } else {
                binds + 1
            })?;
            left = Node::Binary(op, Box::new(left), Box::new(right));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn operand(&mut self) -> Result<Node, Diagnostic> {
        let Some((token, span)) = self.tokens.get(self.at).cloned() else {
            return Err(Diagnostic::new(
                self.here(),
                "the expression ends where a value is expected",
            ));
        };
        self.at += 1;
        match token {
            Token::Value(value) => Ok(Node::Literal(value)),
            Token::Symbol("-") => Ok(Node::Unary(
                Unary::Minus,
                Box::new(self.expression(MINUS_BINDS)?),
            )),
            Token::Symbol("(") => {
                let inner = self.expression(0)?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Word(word) if word == "not" => Ok(Node::Unary(
                Unary::Not,
                Box::new(self.expression(NOT_BINDS)?),
            )),
            Token::Word(word) => self.word(word, span),
            Token::Symbol(_) => Err(Diagnostic::new(
                span,
                format!("unexpected {token}: a value is expected here"),
            )),
        }
    }

    fn word(&mut self, word: String, span: Span) -> Result<Node, Diagnostic> {
        if self.take("[") {
            let index = self.expression(0)?;
            self.expect("]")?;
            return Ok(Node::Index(word, Box::new(index), span));
        }
        if !self.take("(") {
            return Ok(Node::Name(word, span));
        }
        let Some(&(_, function, least, most)) = FUNCTIONS.iter().find(|(name, ..)| *name == word)
        else {
            let known = FUNCTIONS.iter().map(|(name, ..)| *name);
            return Err(Diagnostic::unknown(span, "function", &word, known));
        };
        let mut arguments = Vec::new();
        if !self.take(")") {
            loop {
                arguments.push(self.expression(0)?);
                if self.take(")") {
                    break;
                }
                self.expect(",")?;
            }
        }
        if arguments.len() < least || arguments.len() > most {
            let expected = if most == usize::MAX {
                format!("at least {least}")
            } else {
                least.to_string()
            };
            return Err(Diagnostic::new(
                span,
                format!(
                    "`{word}` takes {expected} arguments, found {}",
                    arguments.len()
                ),
            ));
        }
        Ok(Node::Call(function, arguments, span))
    }

    fn take(&mut self, symbol: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some((Token::Symbol(s), _)) if *s == symbol);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: &str) -> Result<(), Diagnostic> {
        if self.take(symbol) {
            return Ok(());
        }
        let found = match self.tokens.get(self.at) {
            Some((token, _)) => token.to_string(),
            None => "the end".into(),
        };
        Err(Diagnostic::new(
            self.here(),
            format!("expected `{symbol}`, found {found}"),
        ))
    }

    fn here(&self) -> Span {
        self.tokens
            .get(self.at)
            .map_or(self.end..self.end, |(_, span)| span.clone())
    }
}
