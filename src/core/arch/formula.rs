//! Formulas of contracts: texts with conditional pieces.
//!
//! - `{COND: TEXT}` is TEXT if COND holds; `{COND: TEXT | OTHER}` is OTHER if it does not.
//! - `{COND -> NAME: TEXT}` is `NAME(TEXT)` if COND holds, and TEXT if it does not.
//! - `{=OPTION}` is the value of an option.
//!
//! Conditions are expressions over options and weights, as in the rest of a contract. Pieces may be nested. The
//! documentation prints the general form, a diagram the formula of one use. A piece that begins with `{!` is omitted in
//! the general form.

use super::expr::{Expr, Scope, Value};

/// The general form: all pieces, with alternatives joined by `or`, and names of options in place of their values.
/// Pieces for different values of one option have separate lines.
pub fn general(formula: &str) -> String {
    let everything = |piece: &Piece<'_>| match piece {
        Piece::Value(name) => (*name).to_owned(),
        Piece::When { text, .. } if piece.is_rare() => {
            text.otherwise.map(general).unwrap_or_default()
        }
        Piece::When { text, .. } => {
            let other = text
                .otherwise
                .map(|other| format!(" or {}", general(other)));
            general(text.then) + &other.unwrap_or_default()
        }
        Piece::Around { text, .. } if piece.is_rare() => general(text),
        Piece::Around { name, text, .. } => format!("{name}({})", general(text)),
        Piece::Text(text) => (*text).to_owned(),
    };
    let mut full = String::new();
    let mut before = None;
    for piece in &pieces(formula) {
        let option = piece.option();
        if before.is_some() && option == before {
            full.push('\n');
        }
        full.push_str(&everything(piece));
        // Pieces with no text between them follow each other directly.
        before = option.or_else(|| before.filter(|_| matches!(piece, Piece::Text(""))));
    }
    full
}

/// The formula of one use, whose options and weights `scope` gives. If `value` gives a text for an option, the text
/// replaces the option's value.
///
/// # Errors
///
/// A condition cannot be read, or has a name that the scope does not have.
pub fn particular(
    formula: &str,
    scope: &dyn Scope,
    value: &dyn Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let one = |piece: &Piece<'_>| match piece {
        Piece::Value(name) => match value(name) {
            Some(text) => Ok(text),
            None => Ok(scope.name(name, false)?.to_string()),
        },
        Piece::When { condition, text } => match holds(condition, scope)? {
            true => particular(text.then, scope, value),
            false => text
                .otherwise
                .map_or(Ok(String::new()), |other| particular(other, scope, value)),
        },
        Piece::Around {
            condition,
            name,
            text,
        } => {
            let inner = particular(text, scope, value)?;
            Ok(match holds(condition, scope)? {
                true => format!("{name}({inner})"),
                false => inner,
            })
        }
        Piece::Text(text) => Ok((*text).to_owned()),
    };
    pieces(formula).iter().map(one).collect()
}

fn holds(condition: &str, scope: &dyn Scope) -> Result<bool, String> {
    let condition = condition.trim_start_matches('!');
    let expr = Expr::parse(condition, 0).map_err(|problem| problem.message)?;
    match expr.evaluate(scope)? {
        Value::Bool(holds) => Ok(holds),
        other => Err(format!(
            "`{condition}` is {}, not true or false",
            other.type_name()
        )),
    }
}

enum Piece<'f> {
    Text(&'f str),
    Value(&'f str),
    When {
        condition: &'f str,
        text: Choice<'f>,
    },
    Around {
        condition: &'f str,
        name: &'f str,
        text: &'f str,
    },
}

struct Choice<'f> {
    then: &'f str,
    otherwise: Option<&'f str>,
}

impl<'f> Piece<'f> {
    /// The option whose value decides about the piece, if the condition is `OPTION == VALUE`.
    fn option(&self) -> Option<&'f str> {
        match self {
            Self::When { condition, .. } => Some(condition.split_once(" == '")?.0),
            _ => None,
        }
    }

    fn is_rare(&self) -> bool {
        match self {
            Self::When { condition, .. } | Self::Around { condition, .. } => {
                condition.starts_with('!')
            }
            _ => false,
        }
    }
}

/// The pieces of a formula; nested pieces are left as text.
fn pieces(formula: &str) -> Vec<Piece<'_>> {
    let mut out = Vec::new();
    let mut rest = formula;
    while let Some(begin) = rest.find('{') {
        let inner = &rest[begin + 1..];
        let end = outside(inner, "}").unwrap_or(inner.len());
        out.push(Piece::Text(&rest[..begin]));
        out.push(piece(&inner[..end]));
        rest = inner.get(end + 1..).unwrap_or_default();
    }
    out.push(Piece::Text(rest));
    out
}

fn piece(inner: &str) -> Piece<'_> {
    if let Some(name) = inner.strip_prefix('=') {
        return Piece::Value(name);
    }
    let (head, text) = inner.split_once(": ").unwrap_or((inner, ""));
    match head.split_once(" -> ") {
        Some((condition, name)) => Piece::Around {
            condition,
            name,
            text,
        },
        None => {
            let (then, otherwise) = match outside(text, " | ") {
                Some(at) => (&text[..at], Some(&text[at + 3..])),
                None => (text, None),
            };
            Piece::When {
                condition: head,
                text: Choice { then, otherwise },
            }
        }
    }
}

/// The position of a text outside of nested pieces.
fn outside(text: &str, what: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        if depth == 0 && text[at..].starts_with(what) {
            return Some(at);
        }
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestScope {
        gate: bool,
        bias: bool,
    }

    impl Scope for TestScope {
        fn name(&self, name: &str, _: bool) -> Result<Value, String> {
            match name {
                "gate" => Ok(Value::Bool(self.gate)),
                "act" => Ok(Value::Str("silu".into())),
                _ => Err(format!("unknown `{name}`")),
            }
        }
        fn has(&self, weight: &str) -> Result<bool, String> {
            Ok(self.bias && weight == "bias")
        }
    }

    #[test]
    fn a_formula_has_the_pieces_whose_conditions_hold() {
        let formula =
            "y = {gate -> norm: {gate: {=act}(g.h) * u.h | {=act}(u.h)}}{has('bias'):  + b}";
        let of = |gate, bias| particular(formula, &TestScope { gate, bias }, &|_| None);
        assert_eq!(of(false, false).as_deref(), Ok("y = silu(u.h)"));
        assert_eq!(of(true, false).as_deref(), Ok("y = norm(silu(g.h) * u.h)"));
        assert_eq!(of(false, true).as_deref(), Ok("y = silu(u.h) + b"));
        assert_eq!(general(formula), "y = norm(act(g.h) * u.h or act(u.h)) + b");
        let known = TestScope {
            gate: true,
            bias: false,
        };
        let named = particular(formula, &known, &|name| {
            (name == "act").then(|| name.to_owned())
        });
        assert_eq!(named.as_deref(), Ok("y = norm(act(g.h) * u.h)"));
        assert_eq!(general("a{!gate: b}{!gate -> f: c}"), "ac");
        assert_eq!(
            general("{act == 'x': a | b}{act == 'y': c}{act: d}"),
            "a or b\ncd"
        );
    }

    #[test]
    fn conditions_that_say_nothing_are_errors() {
        let known = TestScope {
            gate: true,
            bias: true,
        };
        for formula in ["{other: a}", "{act: a}", "{: a}", "{=other}"] {
            assert!(particular(formula, &known, &|_| None).is_err(), "{formula}");
        }
    }
}
