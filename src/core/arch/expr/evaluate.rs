//! The value of a parsed expression in a scope.

use super::{Binary, Function, Node, Scope, Unary, Value};

pub(super) fn evaluate(node: &Node, scope: &dyn Scope) -> Result<Value, String> {
    match node {
        Node::Literal(value) => Ok(value.clone()),
        Node::Name(name, _) => scope.name(name, false),
        Node::Index(name, index, _) => {
            let items = elements(&scope.name(name, true)?)
                .ok_or_else(|| format!("`{name}` is not an array, so it has no elements"))?;
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

/// The elements of an array; the elements of a string are its characters.
fn elements(value: &Value) -> Option<Vec<Value>> {
    match value {
        Value::List(items) => Some(items.clone()),
        Value::Str(text) => Some(text.chars().map(|c| Value::Str(c.into())).collect()),
        _ => None,
    }
}

fn overflow() -> String {
    "integer overflow".into()
}

fn binary(op: Binary, a: &Node, b: &Node, scope: &dyn Scope) -> Result<Value, String> {
    let left = evaluate(a, scope)?;
    // `and` and `or` skip the right side when the left one decides.
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
    arithmetic(op, &left, &right)
}

/// Comparisons and arithmetic of numbers, or of each element of an array with a number.
fn arithmetic(op: Binary, left: &Value, right: &Value) -> Result<Value, String> {
    match (left, right) {
        (Value::Int(x), Value::Int(y)) => return integers(op, *x, *y),
        (Value::List(items), Value::Int(_) | Value::Float(_)) => {
            let each = items.iter().map(|item| arithmetic(op, item, right));
            return each.collect::<Result<_, _>>().map(Value::List);
        }
        (Value::Int(_) | Value::Float(_), Value::List(items)) => {
            let each = items.iter().map(|item| arithmetic(op, left, item));
            return each.collect::<Result<_, _>>().map(Value::List);
        }
        _ => {}
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
            let is_true = evaluate(&arguments[0], scope)?.truth()?;
            evaluate(&arguments[if is_true { 1 } else { 2 }], scope)
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
        Function::Count => {
            let key = text(&arguments[0])?;
            let Some(value) = arguments.get(1) else {
                return Ok(Value::Int(scope.count(&key)?));
            };
            let is_it = equals(value, scope)?;
            let items = elements(&scope.name(&key, true)?).unwrap_or_default();
            Ok(Value::Int(items.iter().filter(|v| is_it(v)).count() as i64))
        }
        Function::Any | Function::All | Function::Sum => {
            over_list(function, &list(&arguments[0], scope)?)
        }
        Function::Contains => {
            let is_it = equals(&arguments[1], scope)?;
            let items = match &arguments[0] {
                Node::Name(name, _) => scope.name(name, true)?,
                _ => return Err("expected the name of an array or of a string".into()),
            };
            let items = elements(&items).unwrap_or_else(|| vec![items]);
            Ok(Value::Bool(items.iter().any(is_it)))
        }
        Function::Index => {
            let is_it = equals(&arguments[1], scope)?;
            let items = list(&arguments[0], scope)?;
            let place = items.iter().position(is_it).unwrap_or(items.len());
            Ok(Value::Int(place as i64))
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

/// A test whether values equal the value of an expression. Values whose types cannot be compared are unequal.
fn equals(node: &Node, scope: &dyn Scope) -> Result<impl Fn(&Value) -> bool, String> {
    let value = evaluate(node, scope)?;
    Ok(move |item: &Value| equal(item, &value).unwrap_or(false))
}

fn real_function(function: Function, x: f64) -> Result<Value, String> {
    let result = match function {
        Function::Sqrt => x.sqrt(),
        Function::Log => x.ln(),
        Function::Exp => x.exp(),
        Function::Sin => x.sin(),
        Function::Cos => x.cos(),
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
    best.ok_or_else(|| "`min` or `max` of an empty array".into())
}
