//! Expressions over elements: all names but a few free ones are replaced by their values once, and the rest is
//! evaluated for each element, if possible as a product and a sum.

use std::cell::Cell;
use std::sync::Arc;

use super::evaluate::evaluate;
use super::{Binary, Expr, Function, Node, Scope, Unary, Value};

const MAX_DEPTH: usize = 64;
/// Maximum number of parts of an expression, including the expressions that its names stand for at each of their
/// places.
const MAX_NODES: usize = 1 << 16;

impl Expr {
    /// The expression with all names but the `free` ones replaced by their values; `expand` gives the expressions for
    /// which names stand.
    ///
    /// # Errors
    /// A name has no value, or expressions depend on each other.
    pub fn bind(
        &self,
        scope: &dyn Scope,
        free: &[&str],
        expand: &dyn Fn(&str) -> Option<Self>,
    ) -> Result<Self, String> {
        let binder = Binder {
            scope,
            free,
            expand,
            n_nodes: Cell::new(0),
        };
        Ok(Self {
            node: Arc::new(binder.bind(&self.node, 0)?),
            source: self.source.clone(),
        })
    }

    /// `a` and `b` if the expression is `a * x + b`.
    pub fn linear(&self, x: &str, scope: &dyn Scope) -> Result<Option<(f64, f64)>, String> {
        linear(&self.node, x, scope)
    }
}

struct Binder<'a> {
    scope: &'a dyn Scope,
    free: &'a [&'a str],
    expand: &'a dyn Fn(&str) -> Option<Expr>,
    n_nodes: Cell<usize>,
}

impl Binder<'_> {
    fn bind(&self, node: &Node, depth: usize) -> Result<Node, String> {
        if depth > MAX_DEPTH {
            return Err("named expressions depend on each other".into());
        }
        self.n_nodes.set(self.n_nodes.get() + 1);
        if self.n_nodes.get() > MAX_NODES {
            return Err("named expressions are too large".into());
        }
        let depth = depth + 1;
        Ok(match node {
            Node::Literal(_) => node.clone(),
            Node::Name(name, _) if self.free.contains(&name.as_str()) => node.clone(),
            Node::Name(name, _) => match (self.expand)(name) {
                Some(expr) => self.bind(&expr.node, depth)?,
                None => Node::Literal(self.scope.name(name, false)?),
            },
            Node::Index(name, index, _) => match self.bind(index, depth)? {
                Node::Literal(_) => Node::Literal(evaluate(node, self.scope)?),
                index => choice(&self.scope.name(name, true)?, &index)?,
            },
            Node::Unary(op, a) => {
                folded(Node::Unary(*op, Box::new(self.bind(a, depth)?)), self.scope)?
            }
            Node::Binary(op, a, b) => {
                let (a, b) = (self.bind(a, depth)?, self.bind(b, depth)?);
                folded(Node::Binary(*op, Box::new(a), Box::new(b)), self.scope)?
            }
            Node::Call(Function::If, arguments, span) => {
                let condition = self.bind(&arguments[0], depth)?;
                if let Node::Literal(value) = &condition {
                    let chosen = if value.truth()? { 1 } else { 2 };
                    return self.bind(&arguments[chosen], depth);
                }
                let branches = arguments[1..].iter().map(|a| self.bind(a, depth));
                let all: Result<Vec<Node>, String> =
                    std::iter::once(Ok(condition)).chain(branches).collect();
                Node::Call(Function::If, all?, span.clone())
            }
            // The arguments of these functions belong to the configuration, not to elements.
            Node::Call(
                Function::Has
                | Function::Dim
                | Function::Count
                | Function::Any
                | Function::All
                | Function::Sum
                | Function::Contains
                | Function::Index,
                ..,
            ) => Node::Literal(evaluate(node, self.scope)?),
            Node::Call(function, arguments, span) => {
                let all: Vec<Node> = arguments
                    .iter()
                    .map(|a| self.bind(a, depth))
                    .collect::<Result<_, _>>()?;
                folded(Node::Call(*function, all, span.clone()), self.scope)?
            }
        })
    }
}

/// Maximum number of values from which an element chooses.
const MAX_CHOICES: usize = 64;

/// The element of an array at an index that is not yet known: a chain of conditions.
fn choice(array: &Value, index: &Node) -> Result<Node, String> {
    let Value::List(items) = array else {
        return Err(format!("`{array}` is not an array, so it has no elements"));
    };
    let Some((last, others)) = items.split_last().filter(|_| items.len() <= MAX_CHOICES) else {
        return Err(format!(
            "{} values, expected 1 to {MAX_CHOICES}",
            items.len()
        ));
    };
    let mut node = Node::Literal(last.clone());
    for (i, item) in others.iter().enumerate().rev() {
        let at = Node::Literal(Value::Int(i as i64));
        let is_it = Node::Binary(Binary::Equal, Box::new(index.clone()), Box::new(at));
        let arguments = vec![is_it, Node::Literal(item.clone()), node];
        node = Node::Call(Function::If, arguments, 0..0);
    }
    Ok(node)
}

/// Evaluates a node if all its parts are values.
fn folded(node: Node, scope: &dyn Scope) -> Result<Node, String> {
    let is_value = |node: &Node| matches!(node, Node::Literal(_));
    let all = match &node {
        Node::Unary(_, a) => is_value(a),
        Node::Binary(_, a, b) => is_value(a) && is_value(b),
        Node::Call(_, arguments, _) => arguments.iter().all(is_value),
        _ => false,
    };
    match all {
        true => Ok(Node::Literal(evaluate(&node, scope)?)),
        false => Ok(node),
    }
}

fn linear(node: &Node, x: &str, scope: &dyn Scope) -> Result<Option<(f64, f64)>, String> {
    if !mentions(node, x) {
        return Ok(Some((0.0, evaluate(node, scope)?.number()?)));
    }
    Ok(match node {
        Node::Name(..) => Some((1.0, 0.0)),
        Node::Unary(Unary::Minus, a) => linear(a, x, scope)?.map(|(a, b)| (-a, -b)),
        Node::Binary(op, left, right) => {
            let (Some((a, b)), Some((c, d))) = (linear(left, x, scope)?, linear(right, x, scope)?)
            else {
                return Ok(None);
            };
            match op {
                Binary::Add => Some((a + c, b + d)),
                Binary::Subtract => Some((a - c, b - d)),
                Binary::Multiply if a == 0.0 => Some((b * c, b * d)),
                Binary::Multiply if c == 0.0 => Some((a * d, b * d)),
                Binary::Divide if c == 0.0 && d != 0.0 => Some((a / d, b / d)),
                _ => None,
            }
        }
        Node::Call(Function::If, arguments, _) if !mentions(&arguments[0], x) => {
            let chosen = match evaluate(&arguments[0], scope)? {
                Value::Bool(true) => 1,
                _ => 2,
            };
            linear(&arguments[chosen], x, scope)?
        }
        _ => None,
    })
}

fn mentions(node: &Node, x: &str) -> bool {
    let mut found = false;
    super::names(node, &mut |name, _| found |= name == x);
    found
}
