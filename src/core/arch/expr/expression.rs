//! A parsed expression and its properties.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};

use lab_base::util::lock::lock;

use super::super::diagnostic::{Diagnostic, Span};
use super::tree::{Node, names, static_type, text_results};
use super::{Scope, Value, evaluate, parse};

/// A parsed expression. Clones share the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    pub(super) node: Arc<Node>,
    pub(super) source: Arc<str>,
}

impl Expr {
    /// Parses `text`, which begins at byte `offset` of its file.
    ///
    /// # Errors
    /// The text has a problem; the first one is returned with its place.
    pub fn parse(text: &str, offset: usize) -> Result<Self, Diagnostic> {
        let node = parse::parse(text, offset)?;
        Ok(Self {
            node: Arc::new(node),
            source: text.into(),
        })
    }

    /// The expression `text` of a contract, parsed once per process.
    ///
    /// # Errors
    /// The text has a problem; the first one is returned.
    pub fn of_program(text: &'static str) -> Result<Self, Diagnostic> {
        static PARSED: LazyLock<Mutex<HashMap<&'static str, Expr>>> = LazyLock::new(Mutex::default);
        // A panic elsewhere leaves the table valid.
        let mut parsed = lock(&PARSED);
        if let Some(expr) = parsed.get(text) {
            return Ok(expr.clone());
        }
        let expr = Self::parse(text, 0)?;
        parsed.insert(text, expr.clone());
        Ok(expr)
    }

    /// An expression that is a literal.
    pub fn literal(value: Value) -> Self {
        let source = match &value {
            Value::Str(text) => format!("'{text}'"),
            other => other.to_string(),
        };
        Self {
            node: Arc::new(Node::Literal(value)),
            source: source.into(),
        }
    }

    /// The text of the expression.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The value, if the expression is a plain literal.
    pub fn as_literal(&self) -> Option<&Value> {
        match &*self.node {
            Node::Literal(value) => Some(value),
            _ => None,
        }
    }

    /// The name, if the expression is a plain name.
    pub fn as_name(&self) -> Option<&str> {
        match &*self.node {
            Node::Name(name, _) => Some(name),
            _ => None,
        }
    }

    /// The value in a scope.
    ///
    /// # Errors
    /// A name has no value, an operation gets the wrong type, or a number overflows.
    pub fn evaluate(&self, scope: &dyn Scope) -> Result<Value, String> {
        evaluate::evaluate(&self.node, scope)
    }

    /// Calls `visit` with each used name and its place.
    pub fn for_each_name(&self, visit: &mut dyn FnMut(&str, &Span)) {
        names(&self.node, visit);
    }

    /// Calls `visit` with every string literal that can be the result.
    pub fn for_each_text_result(&self, visit: &mut dyn FnMut(&str)) {
        text_results(&self.node, visit);
    }

    /// The type of the result, if it is known without a model.
    pub fn static_type(&self) -> Option<&'static str> {
        static_type(&self.node)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestScope;

    impl Scope for TestScope {
        fn name(&self, name: &str, whole: bool) -> Result<Value, String> {
            let swa = vec![Value::Bool(true), Value::Bool(false)];
            match name {
                "n_head" => Ok(Value::Int(4)),
                "il" => Ok(Value::Int(1)),
                "swa" if whole => Ok(Value::List(swa)),
                "swa" => Ok(swa[1].clone()),
                "whole" => Ok(Value::List(vec![Value::Int(1), Value::Float(2.5)])),
                "kinds" => Ok(Value::Str("M-M*".into())),
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
            .and_then(|e| e.evaluate(&TestScope));
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
        check("'a' == 1", "error: cannot compare string with integer");
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
        check("contains(swa, true)", "true");
        check("contains(swa, 1)", "false");
        check("index(swa, false)", "1");
        check("index(swa, 7)", "2");
        check("count('swa', false)", "1");
        check("count('swa', 7)", "0");
        check("count('kinds', 'M')", "2");
        check("kinds[3]", "*");
        check("contains(kinds, '-')", "true");
        check("contains(kinds, 'E')", "false");
        check(
            "contains(1, 1)",
            "error: expected the name of an array or of a string",
        );
        check(
            "n_head[0]",
            "error: `n_head` is not an array, so it has no elements",
        );
    }

    #[test]
    fn arithmetic_with_a_number_applies_to_each_element_of_a_whole_array() {
        check("whole + 1", "[2, 3.5]");
        check("10 - whole * 2", "[8, 5.0]");
        check("whole < 2", "[true, false]");
        check("whole + whole", "error: expected a number, found array");
        check("whole + 'a'", "error: expected a number, found array");
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
        assert_eq!(fault("'abc"), "100..104 this string has no closing quote");
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
