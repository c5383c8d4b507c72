//! Expressions: the values of a definition that depend on the model's numbers.
//!
//! `if(il < n_dense, "silu", "gelu")`, `n_head * d_head`, `has("ffn_gate_inp.weight")`. An
//! expression is parsed and checked when its definition is read and evaluated when a model is
//! planned, once per layer; nothing is evaluated while tokens are made. Pure: a [`Scope`] gives
//! meaning to names.
//!
//! Numbers are integers or floats. `/` of integers is an integer when it divides exactly and a
//! float otherwise; `//` is the floor. A name bound to a per-layer array stands for the value of
//! the current layer; `name[i]` picks any.

use std::fmt;

use super::diagnostic::{Diagnostic, Span};

/// A value of the language.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the types of the language")]
pub enum Value {
    Int(i64),
    Float(f64),
    Bool(bool),
    Str(String),
    /// One value per layer (or any other index).
    List(Vec<Self>),
}

impl Value {
    /// Name of the type, for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Int(_) => "integer",
            Self::Float(_) => "float",
            Self::Bool(_) => "boolean",
            Self::Str(_) => "text",
            Self::List(_) => "array",
        }
    }

    fn number(&self) -> Result<f64, String> {
        match *self {
            Self::Int(v) => Ok(v as f64),
            Self::Float(v) => Ok(v),
            _ => Err(format!("expected a number, found {}", self.type_name())),
        }
    }

    fn truth(&self) -> Result<bool, String> {
        match *self {
            Self::Bool(v) => Ok(v),
            _ => Err(format!(
                "expected true or false, found {} `{self}`",
                self.type_name()
            )),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(v) => write!(f, "{v}"),
            Self::Float(v) => write!(f, "{v:?}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::Str(v) => write!(f, "{v}"),
            Self::List(v) => {
                f.write_str("[")?;
                for (i, item) in v.iter().enumerate() {
                    write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// What names mean where an expression is evaluated. Errors say what is missing.
pub trait Scope {
    /// The value of a name. A per-layer array gives its whole list only if `whole`.
    fn name(&self, name: &str, whole: bool) -> Result<Value, String>;
    /// Whether a weight is there.
    fn has(&self, weight: &str) -> Result<bool, String>;
    /// A dimension of a weight, 0 the fastest; 1 past the last.
    fn dim(&self, weight: &str, index: i64) -> Result<i64, String>;
    /// Number of elements of a metadata array; 0 if there is none. The key is relative to the
    /// architecture, or absolute.
    fn count(&self, key: &str) -> Result<i64, String>;
}

/// A parsed expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    node: Node,
    source: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Literal(Value),
    Name(String, Span),
    Index(String, Box<Self>, Span),
    Unary(Unary, Box<Self>),
    Binary(Binary, Box<Self>, Box<Self>),
    Call(Function, Vec<Self>, Span),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unary {
    Minus,
    Not,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binary {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    If,
    Has,
    Dim,
    Count,
    Min,
    Max,
    Sqrt,
    Log,
    Exp,
    Floor,
    Abs,
    Int,
    Any,
    All,
    Sum,
}

/// Name, function, least and most arguments.
const FUNCTIONS: &[(&str, Function, usize, usize)] = &[
    ("if", Function::If, 3, 3),
    ("has", Function::Has, 1, 1),
    ("dim", Function::Dim, 2, 2),
    ("count", Function::Count, 1, 1),
    ("min", Function::Min, 1, usize::MAX),
    ("max", Function::Max, 1, usize::MAX),
    ("sqrt", Function::Sqrt, 1, 1),
    ("log", Function::Log, 1, 1),
    ("exp", Function::Exp, 1, 1),
    ("floor", Function::Floor, 1, 1),
    ("abs", Function::Abs, 1, 1),
    ("int", Function::Int, 1, 1),
    ("any", Function::Any, 1, 1),
    ("all", Function::All, 1, 1),
    ("sum", Function::Sum, 1, 1),
];

/// Length and nesting that no sensible expression reaches; the limits keep hostile text off the
/// stack.
const MAX_TOKENS: usize = 512;
const MAX_DEPTH: usize = 64;

impl Expr {
    /// Parses `text`, which stands at byte `offset` of its file.
    ///
    /// # Errors
    /// The first problem of the text, at its place.
    pub fn parse(text: &str, offset: usize) -> Result<Self, Diagnostic> {
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
        if let Some((token, span)) = parser.tokens.get(parser.at) {
            return Err(Diagnostic::new(
                span.clone(),
                format!("unexpected {token} after the expression"),
            ));
        }
        Ok(Self {
            node,
            source: text.to_owned(),
        })
    }

    /// An expression that is just a value.
    pub fn literal(value: Value) -> Self {
        let source = match &value {
            Value::Str(text) => format!("'{text}'"),
            other => other.to_string(),
        };
        Self {
            node: Node::Literal(value),
            source,
        }
    }

    /// The text it was parsed from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The value, if it is a plain literal.
    pub fn as_literal(&self) -> Option<&Value> {
        match &self.node {
            Node::Literal(value) => Some(value),
            _ => None,
        }
    }

    /// The name, if the expression is a plain name.
    pub fn as_name(&self) -> Option<&str> {
        match &self.node {
            Node::Name(name, _) => Some(name),
            _ => None,
        }
    }

    /// The value in a scope.
    ///
    /// # Errors
    /// A name that has no value, an operation on the wrong type, an overflow.
    pub fn evaluate(&self, scope: &dyn Scope) -> Result<Value, String> {
        evaluate(&self.node, scope)
    }

    /// Calls `visit` with every name used and its place.
    pub fn for_each_name(&self, visit: &mut dyn FnMut(&str, &Span)) {
        names(&self.node, visit);
    }

    /// Calls `visit` with every text literal that can be the result.
    pub fn for_each_text_result(&self, visit: &mut dyn FnMut(&str)) {
        text_results(&self.node, visit);
    }

    /// The type the result has in every case, where that can be told without a model.
    pub fn static_type(&self) -> Option<&'static str> {
        static_type(&self.node)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

fn names(node: &Node, visit: &mut dyn FnMut(&str, &Span)) {
    match node {
        Node::Literal(_) => {}
        Node::Name(name, span) => visit(name, span),
        Node::Index(name, index, span) => {
            visit(name, span);
            names(index, visit);
        }
        Node::Unary(_, a) => names(a, visit),
        Node::Binary(_, a, b) => {
            names(a, visit);
            names(b, visit);
        }
        Node::Call(_, arguments, _) => arguments.iter().for_each(|a| names(a, visit)),
    }
}

fn text_results(node: &Node, visit: &mut dyn FnMut(&str)) {
    match node {
        Node::Literal(Value::Str(text)) => visit(text),
        Node::Call(Function::If, arguments, _) => {
            arguments[1..].iter().for_each(|a| text_results(a, visit));
        }
        _ => {}
    }
}

fn static_type(node: &Node) -> Option<&'static str> {
    match node {
        Node::Literal(Value::Int(_) | Value::Float(_)) => Some("number"),
        Node::Literal(value) => Some(value.type_name()),
        Node::Name(..) | Node::Index(..) => None,
        Node::Unary(Unary::Minus, _) => Some("number"),
        Node::Unary(Unary::Not, _) => Some("boolean"),
        Node::Binary(op, _, _) => Some(match op {
            Binary::Or
            | Binary::And
            | Binary::Equal
            | Binary::NotEqual
            | Binary::Less
            | Binary::LessEqual
            | Binary::Greater
            | Binary::GreaterEqual => "boolean",
            _ => "number",
        }),
        Node::Call(function, arguments, _) => match function {
            Function::If => {
                let (a, b) = (static_type(&arguments[1])?, static_type(&arguments[2])?);
                (a == b).then_some(a)
            }
            Function::Has | Function::Any | Function::All => Some("boolean"),
            _ => Some("number"),
        },
    }
}

fn evaluate(node: &Node, scope: &dyn Scope) -> Result<Value, String> {
    match node {
        Node::Literal(value) => Ok(value.clone()),
        Node::Name(name, _) => scope.name(name, false),
        Node::Index(name, index, _) => {
            let Value::List(items) = scope.name(name, true)? else {
                return Err(format!("`{name}` is not an array, so it has no elements"));
            };
            let Value::Int(at) = evaluate(index, scope)? else {
                return Err(format!("an index of `{name}` is not an integer"));
            };
            usize::try_from(at)
                .ok()
                .and_then(|at| items.get(at))
                .cloned()
                .ok_or_else(|| {
                    format!(
                        "`{name}[{at}]` is outside the array of {} elements",
                        items.len()
                    )
                })
        }
        Node::Unary(Unary::Not, a) => Ok(Value::Bool(!evaluate(a, scope)?.truth()?)),
        Node::Unary(Unary::Minus, a) => match evaluate(a, scope)? {
            Value::Int(v) => v.checked_neg().map(Value::Int).ok_or_else(overflow),
            other => Ok(Value::Float(-other.number()?)),
        },
        Node::Binary(op, a, b) => binary(*op, a, b, scope),
        Node::Call(function, arguments, _) => call(*function, arguments, scope),
    }
}

fn overflow() -> String {
    "integer overflow".into()
}

fn binary(op: Binary, a: &Node, b: &Node, scope: &dyn Scope) -> Result<Value, String> {
    let left = evaluate(a, scope)?;
    // `and` and `or` do not look at the right side when the left decides.
    match op {
        Binary::And => {
            return Ok(Value::Bool(left.truth()? && evaluate(b, scope)?.truth()?));
        }
        Binary::Or => {
            return Ok(Value::Bool(left.truth()? || evaluate(b, scope)?.truth()?));
        }
        _ => {}
    }
    let right = evaluate(b, scope)?;
    match op {
        Binary::Equal => return Ok(Value::Bool(equal(&left, &right)?)),
        Binary::NotEqual => return Ok(Value::Bool(!equal(&left, &right)?)),
        _ => {}
    }
    if let (Value::Int(x), Value::Int(y)) = (&left, &right) {
        return integers(op, *x, *y);
    }
    let (x, y) = (left.number()?, right.number()?);
    Ok(match op {
        Binary::Less => Value::Bool(x < y),
        Binary::LessEqual => Value::Bool(x <= y),
        Binary::Greater => Value::Bool(x > y),
        Binary::GreaterEqual => Value::Bool(x >= y),
        Binary::Add => Value::Float(x + y),
        Binary::Subtract => Value::Float(x - y),
        Binary::Multiply => Value::Float(x * y),
        Binary::Divide | Binary::FloorDivide | Binary::Remainder if y == 0.0 => {
            return Err("division by zero".into());
        }
        Binary::Divide => Value::Float(x / y),
        Binary::FloorDivide => Value::Float((x / y).floor()),
        Binary::Remainder => Value::Float(x.rem_euclid(y)),
        _ => Value::Float(x.powf(y)),
    })
}

fn integers(op: Binary, x: i64, y: i64) -> Result<Value, String> {
    let int = |value: Option<i64>| value.map(Value::Int).ok_or_else(overflow);
    match op {
        Binary::Less => Ok(Value::Bool(x < y)),
        Binary::LessEqual => Ok(Value::Bool(x <= y)),
        Binary::Greater => Ok(Value::Bool(x > y)),
        Binary::GreaterEqual => Ok(Value::Bool(x >= y)),
        Binary::Add => int(x.checked_add(y)),
        Binary::Subtract => int(x.checked_sub(y)),
        Binary::Multiply => int(x.checked_mul(y)),
        Binary::Divide | Binary::FloorDivide | Binary::Remainder if y == 0 => {
            Err("division by zero".into())
        }
        Binary::Divide if x.checked_rem(y) != Some(0) => Ok(Value::Float(x as f64 / y as f64)),
        Binary::Divide => int(x.checked_div(y)),
        Binary::FloorDivide => {
            let rounds_up = x.checked_rem(y) != Some(0) && (x < 0) != (y < 0);
            int(x
                .checked_div(y)
                .and_then(|q| q.checked_sub(i64::from(rounds_up))))
        }
        Binary::Remainder => int(x.checked_rem_euclid(y)),
        _ => match u32::try_from(y) {
            Ok(power) => int(x.checked_pow(power)),
            Err(_) => Ok(Value::Float((x as f64).powf(y as f64))),
        },
    }
}

fn equal(a: &Value, b: &Value) -> Result<bool, String> {
    match (a, b) {
        (Value::Bool(x), Value::Bool(y)) => Ok(x == y),
        (Value::Str(x), Value::Str(y)) => Ok(x == y),
        (Value::Int(x), Value::Int(y)) => Ok(x == y),
        (Value::Int(_) | Value::Float(_), Value::Int(_) | Value::Float(_)) => {
            Ok(a.number()? == b.number()?)
        }
        _ => Err(format!(
            "cannot compare {} with {}",
            a.type_name(),
            b.type_name()
        )),
    }
}

fn call(function: Function, arguments: &[Node], scope: &dyn Scope) -> Result<Value, String> {
    let text = |node: &Node| match evaluate(node, scope)? {
        Value::Str(text) => Ok(text),
        other => Err(format!(
            "expected a name in quotes, found {}",
            other.type_name()
        )),
    };
    match function {
        Function::If => {
            let chosen = if evaluate(&arguments[0], scope)?.truth()? {
                1
            } else {
                2
            };
            evaluate(&arguments[chosen], scope)
        }
        Function::Has => Ok(Value::Bool(scope.has(&text(&arguments[0])?)?)),
        Function::Dim => {
            let Value::Int(index) = evaluate(&arguments[1], scope)? else {
                return Err("the index of a dimension is an integer".into());
            };
            Ok(Value::Int(scope.dim(&text(&arguments[0])?, index)?))
        }
        Function::Int => match evaluate(&arguments[0], scope)? {
            Value::Bool(v) => Ok(Value::Int(i64::from(v))),
            Value::Int(v) => Ok(Value::Int(v)),
            Value::Float(v) => real_function(Function::Floor, v.trunc()),
            other => Err(format!("expected a number, found {}", other.type_name())),
        },
        Function::Count => Ok(Value::Int(scope.count(&text(&arguments[0])?)?)),
        Function::Any | Function::All | Function::Sum => {
            over_list(function, &list(&arguments[0], scope)?)
        }
        Function::Min | Function::Max => {
            let values = match list(&arguments[0], scope) {
                Ok(values) if arguments.len() == 1 => values,
                _ => arguments
                    .iter()
                    .map(|a| evaluate(a, scope))
                    .collect::<Result<_, _>>()?,
            };
            extreme(function, values)
        }
        _ => {
            let value = evaluate(&arguments[0], scope)?;
            if let Value::Int(v) = value {
                match function {
                    Function::Floor => return Ok(value),
                    Function::Abs => return v.checked_abs().map(Value::Int).ok_or_else(overflow),
                    _ => {}
                }
            }
            real_function(function, value.number()?)
        }
    }
}

fn real_function(function: Function, x: f64) -> Result<Value, String> {
    let result = match function {
        Function::Sqrt => x.sqrt(),
        Function::Log => x.ln(),
        Function::Exp => x.exp(),
        Function::Abs => x.abs(),
        _ => {
            let floor = x.floor();
            if floor.abs() >= 9.0e15 {
                return Err(overflow());
            }
            return Ok(Value::Int(floor as i64));
        }
    };
    if result.is_nan() {
        return Err(format!("no real result for {x}"));
    }
    Ok(Value::Float(result))
}

fn list(node: &Node, scope: &dyn Scope) -> Result<Vec<Value>, String> {
    let Node::Name(name, _) = node else {
        return Err("expected the name of an array".into());
    };
    match scope.name(name, true)? {
        Value::List(values) => Ok(values),
        single => Ok(vec![single]),
    }
}

fn over_list(function: Function, values: &[Value]) -> Result<Value, String> {
    match function {
        Function::Any => values
            .iter()
            .try_fold(false, |any, v| Ok(v.truth()? || any))
            .map(Value::Bool),
        Function::All => values
            .iter()
            .try_fold(true, |all, v| Ok(v.truth()? && all))
            .map(Value::Bool),
        _ => values
            .iter()
            .try_fold(0i64, |sum, v| match v {
                Value::Int(v) => sum.checked_add(*v).ok_or_else(overflow),
                other => Err(format!("`sum` adds integers, found {}", other.type_name())),
            })
            .map(Value::Int),
    }
}

fn extreme(function: Function, values: Vec<Value>) -> Result<Value, String> {
    let mut best: Option<Value> = None;
    for value in values {
        let number = value.number()?;
        let better = match &best {
            None => true,
            Some(best) if function == Function::Min => number < best.number()?,
            Some(best) => number > best.number()?,
        };
        if better {
            best = Some(value);
        }
    }
    best.ok_or_else(|| "the smallest or largest of nothing".into())
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

/// Longer symbols first, so that they win.
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
            let len = rest
                .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                .unwrap_or(rest.len());
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
                    "this text has no closing quote",
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

/// How tightly each binary operator binds; `^` binds to the right.
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

/// `not` binds looser than comparisons, a minus sign tighter than products.
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Table;

    impl Scope for Table {
        fn name(&self, name: &str, whole: bool) -> Result<Value, String> {
            let swa = vec![Value::Bool(true), Value::Bool(false)];
            match name {
                "n_head" => Ok(Value::Int(4)),
                "il" => Ok(Value::Int(1)),
                "swa" if whole => Ok(Value::List(swa)),
                "swa" => Ok(swa[1].clone()),
                _ => Err(format!("`{name}` has no value")),
            }
        }
        fn has(&self, weight: &str) -> Result<bool, String> {
            Ok(weight == "q")
        }
        fn dim(&self, _: &str, index: i64) -> Result<i64, String> {
            Ok(index + 10)
        }
        fn count(&self, _: &str) -> Result<i64, String> {
            Ok(3)
        }
    }

    fn check(text: &str, expected: &str) {
        let value = Expr::parse(text, 0)
            .map_err(|p| p.message)
            .and_then(|e| e.evaluate(&Table));
        let shown = match value {
            Ok(value) => value.to_string(),
            Err(error) => format!("error: {error}"),
        };
        assert_eq!(shown, expected, "{text}");
    }

    #[test]
    fn arithmetic_follows_the_usual_precedence() {
        check("1 + 2 * 3", "7");
        check("(1 + 2) * 3", "9");
        check("-2 ^ 2", "-4");
        check("2 ^ 3 ^ 2", "512");
        check("2 ^ -1", "0.5");
        check("1 - 2 - 3", "-4");
        check("7 // 2", "3");
        check("-7 // 2", "-4");
        check("7 // -2", "-4");
        check("-7 % 4", "1");
        check("8 / 4", "2");
        check("9 / 4", "2.25");
        check("1e-5 * 2", "2e-5");
        check("1 / sqrt(n_head)", "0.5");
    }

    #[test]
    fn logic_is_lazy_and_typed() {
        check("not 1 == 2 and true", "true");
        check("true or nothing_here", "true");
        check("if(il < 1, 'a', 'b')", "b");
        check(
            "1 and true",
            "error: expected true or false, found integer `1`",
        );
        check("'a' == 1", "error: cannot compare text with integer");
    }

    #[test]
    fn arrays_stand_for_the_layer_or_are_indexed() {
        check("swa", "false");
        check("swa[0]", "true");
        check(
            "swa[2]",
            "error: `swa[2]` is outside the array of 2 elements",
        );
        check("any(swa)", "true");
        check("all(swa)", "false");
        check(
            "n_head[0]",
            "error: `n_head` is not an array, so it has no elements",
        );
    }

    #[test]
    fn functions_ask_the_scope() {
        check("has('q') and not has('k')", "true");
        check("dim('q', 1)", "11");
        check("max(1, 2.5, 2)", "2.5");
        check("floor(2.9)", "2");
        check("log(-1)", "error: no real result for -1");
    }

    #[test]
    fn faults_of_the_text_say_where() {
        let fault = |text: &str| {
            let problem = Expr::parse(text, 100).expect_err(text);
            format!(
                "{}..{} {}",
                problem.span.start, problem.span.end, problem.message
            )
        };
        assert_eq!(
            fault("1 +"),
            "103..103 the expression ends where a value is expected"
        );
        assert_eq!(fault("iff(a,b,c)"), "100..103 unknown function `iff`");
        assert_eq!(fault("if(a,b)"), "100..102 `if` takes 3 arguments, found 2");
        assert_eq!(fault("a $ b"), "102..103 unexpected character `$`");
        assert_eq!(fault("(a"), "102..102 expected `)`, found the end");
        assert_eq!(fault("'abc"), "100..104 this text has no closing quote");
        assert_eq!(fault("a b"), "102..103 unexpected `b` after the expression");
        assert_eq!(fault("1.2.3"), "100..105 `1.2.3` is not a number");
    }

    #[test]
    fn hostile_text_neither_overflows_the_stack_nor_panics() {
        assert!(Expr::parse(&"(".repeat(100_000), 0).is_err());
        assert!(Expr::parse(&"-".repeat(100_000), 0).is_err());
        assert!(Expr::parse(&"1+".repeat(100_000), 0).is_err());
        check("9223372036854775807 + 1", "error: integer overflow");
        check("-9223372036854775807 - 2", "error: integer overflow");
        check("1 / 0", "error: division by zero");
        check("1 % 0", "error: division by zero");
        check("floor(1e300)", "error: integer overflow");
    }
}
