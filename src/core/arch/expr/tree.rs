//! The tree of an expression: operators, functions, and properties that follow from the tree alone.

use super::super::diagnostic::Span;
use super::Value;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Literal(Value),
    Name(String, Span),
    Index(String, Box<Self>, Span),
    Unary(Unary, Box<Self>),
    Binary(Binary, Box<Self>, Box<Self>),
    Call(Function, Vec<Self>, Span),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unary {
    Minus,
    Not,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
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
pub(super) enum Function {
    If,
    Has,
    Dim,
    Count,
    Min,
    Max,
    Sqrt,
    Log,
    Exp,
    Sin,
    Cos,
    Floor,
    Abs,
    Int,
    Any,
    All,
    Sum,
    Contains,
    Index,
}

/// The functions: name, function, minimum and maximum number of arguments.
pub(super) const FUNCTIONS: &[(&str, Function, usize, usize)] = &[
    ("if", Function::If, 3, 3),
    ("has", Function::Has, 1, 1),
    ("dim", Function::Dim, 2, 2),
    ("count", Function::Count, 1, 2),
    ("min", Function::Min, 1, usize::MAX),
    ("max", Function::Max, 1, usize::MAX),
    ("sqrt", Function::Sqrt, 1, 1),
    ("log", Function::Log, 1, 1),
    ("exp", Function::Exp, 1, 1),
    ("sin", Function::Sin, 1, 1),
    ("cos", Function::Cos, 1, 1),
    ("floor", Function::Floor, 1, 1),
    ("abs", Function::Abs, 1, 1),
    ("int", Function::Int, 1, 1),
    ("any", Function::Any, 1, 1),
    ("all", Function::All, 1, 1),
    ("sum", Function::Sum, 1, 1),
    ("contains", Function::Contains, 2, 2),
    ("index", Function::Index, 2, 2),
];

pub(super) fn names(node: &Node, visit: &mut dyn FnMut(&str, &Span)) {
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

pub(super) fn text_results(node: &Node, visit: &mut dyn FnMut(&str)) {
    match node {
        Node::Literal(Value::Str(text)) => visit(text),
        Node::Call(Function::If, arguments, _) => {
            arguments[1..].iter().for_each(|a| text_results(a, visit));
        }
        _ => {}
    }
}

pub(super) fn static_type(node: &Node) -> Option<&'static str> {
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
            Function::Has | Function::Any | Function::All | Function::Contains => Some("boolean"),
            _ => Some("number"),
        },
    }
}
