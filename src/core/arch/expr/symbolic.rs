//! Expressions as text for people: known conditions are evaluated, and names get the caller's texts.

use super::{Binary, Expr, Function, Node, Scope, Value};

impl Expr {
    /// The expression with the texts that `text` gives for names. Conditions that have a value in `scope` are decided,
    /// factors of one are omitted, and parentheses are added where an operator needs them.
    pub fn symbolic(&self, scope: &dyn Scope, text: &dyn Fn(&str) -> Option<String>) -> String {
        render(&self.node, scope, text).unwrap_or_else(|| self.source.to_string())
    }
}

fn render(node: &Node, scope: &dyn Scope, text: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let inner = |node: &Node| render(node, scope, text);
    match node {
        Node::Literal(value) => Some(value.to_string()),
        Node::Name(name, _) => Some(text(name).unwrap_or_else(|| name.clone())),
        Node::Call(Function::If, all, _) => match super::evaluate::evaluate(&all[0], scope).ok()? {
            Value::Bool(true) => inner(&all[1]),
            Value::Bool(false) => inner(&all[2]),
            _ => None,
        },
        Node::Call(Function::Sqrt, all, _) => {
            Some(format!("\u{221a}{}", bound(&inner(&all[0])?, 2)))
        }
        Node::Binary(op, a, b) => {
            let (sign, level) = match op {
                Binary::Add => ("+", 0),
                Binary::Subtract => ("\u{2212}", 0),
                Binary::Multiply => ("\u{b7}", 1),
                Binary::Divide | Binary::FloorDivide => ("/", 1),
                _ => return None,
            };
            let (a, b) = (inner(a)?, inner(b)?);
            if *op == Binary::Multiply && (a == "1" || b == "1") {
                return Some(if a == "1" { b } else { a });
            }
            let right = if matches!(op, Binary::Add | Binary::Multiply) {
                level
            } else {
                level + 1
            };
            Some(format!("{}{sign}{}", bound(&a, level), bound(&b, right)))
        }
        _ => None,
    }
}

/// A text, in parentheses if it has an operator of lower precedence than `level`.
fn bound(text: &str, level: usize) -> String {
    let mut depth = 0;
    let mut weakest = 2;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            '+' | '\u{2212}' | '-' if depth == 0 => weakest = 0,
            '\u{b7}' | '/' | '*' if depth == 0 => weakest = weakest.min(1),
            _ => {}
        }
    }
    match weakest < level {
        true => format!("({text})"),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestScope;

    impl Scope for TestScope {
        fn name(&self, name: &str, _: bool) -> Result<Value, String> {
            match name {
                "gate" => Ok(Value::Bool(true)),
                _ => Err("unknown".into()),
            }
        }
        fn has(&self, _: &str) -> Result<bool, String> {
            Ok(false)
        }
    }

    #[test]
    fn what_is_known_is_decided_and_names_have_their_texts() {
        let text = |name: &str| match name {
            "heads" => Some("n_head".to_owned()),
            "dk" => Some("d_a+d_b".to_owned()),
            _ => None,
        };
        for (source, expected) in [
            ("if(gate, 2, 1) * heads", "2\u{b7}n_head"),
            ("if(gate, 1, 2) * heads * dk", "n_head\u{b7}(d_a+d_b)"),
            ("dk + 2 * heads", "d_a+d_b+2\u{b7}n_head"),
            ("heads - (dk - 1)", "n_head\u{2212}(d_a+d_b\u{2212}1)"),
            ("1 / sqrt(dk)", "1/\u{221a}(d_a+d_b)"),
            ("if(other, 1, 2)", "if(other, 1, 2)"),
            ("max(heads, 2)", "max(heads, 2)"),
        ] {
            let expr = Expr::parse(source, 0).expect("an expression");
            assert_eq!(expr.symbolic(&TestScope, &text), expected);
        }
    }
}
