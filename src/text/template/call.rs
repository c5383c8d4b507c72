//! How filters, tests and methods are called: one table row each, one place that binds and charges.
//!
//! A row names a callable, its parameters in Python's order, and its body. [`run`] binds the arguments
//! by position or by name, charges for every text that goes in or comes out longer, and runs the body. A
//! body charges only for what can grow beyond its arguments. Invariant: no callable of a table runs
//! without [`run`].

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, Value};

use super::budget::{self, ITEM};
use super::value::fault;

/// What a callable does.
pub(super) type Body = fn(&Call<'_>) -> Result<Value, Error>;

/// Names with spaces between them, parameters with spaces between them, and the body.
pub(super) type Row = (&'static str, &'static str, Body);

/// One call: the value before the `|`, the `is` or the dot, and the bound arguments.
pub(super) struct Call<'a> {
    /// The value.
    pub(super) this: &'a Value,
    /// The name by which it was called.
    pub(super) name: &'a str,
    params: &'static str,
    args: Vec<Option<Value>>,
}

/// Calls `row` as `name`.
pub(super) fn run(
    (_, params, body): Row,
    name: &str,
    this: &Value,
    args: &[Value],
) -> Result<Value, Error> {
    for argument in args {
        budget::read(ITEM + budget::size(argument))?;
    }
    budget::made(text_length(this))?;
    let args = bind(args, params)?;
    let call = Call {
        this,
        name,
        params,
        args,
    };
    let result = body(&call)?;
    budget::made(text_length(&result).saturating_sub(text_length(this)))?;
    Ok(result)
}

/// The row of a callable.
pub(super) fn find(rows: &[Row], name: &str) -> Option<Row> {
    let has_name = |row: &&Row| row.0.split(' ').any(|other| other == name);
    rows.iter().find(has_name).copied()
}

fn text_length(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

/// The arguments in the order of `params`; those not given are `None`.
fn bind(args: &[Value], params: &str) -> Result<Vec<Option<Value>>, Error> {
    let n_params = params.split_whitespace().count();
    if args.is_empty() {
        return Ok(vec![None; n_params]);
    }
    let (positional, kwargs): (&[Value], Kwargs) = from_args(args)?;
    if positional.len() > n_params {
        return Err(fault(format!(
            "takes at most {n_params} arguments, {} were given",
            positional.len()
        )));
    }
    let mut bound = Vec::with_capacity(n_params);
    for (position, name) in params.split_whitespace().enumerate() {
        let named = kwargs.has(name).then(|| kwargs.get::<Value>(name));
        bound.push(match (positional.get(position), named) {
            (Some(_), Some(_)) => {
                return Err(fault(format!("multiple values for argument '{name}'")));
            }
            (given, None) => given.cloned(),
            (None, Some(value)) => Some(value?),
        });
    }
    kwargs.assert_all_used()?;
    Ok(bound)
}

impl Call<'_> {
    fn param(&self, position: usize) -> &'static str {
        let mut params = self.params.split_whitespace();
        params.nth(position).unwrap_or_default()
    }

    /// An argument as it was given.
    pub(super) fn given(&self, position: usize) -> Option<&Value> {
        self.args[position].as_ref()
    }

    /// An argument that was given and is not none.
    pub(super) fn value(&self, position: usize) -> Option<&Value> {
        self.given(position).filter(|value| !value.is_none())
    }

    /// An argument that must be given.
    pub(super) fn required(&self, position: usize) -> Result<&Value, Error> {
        let missing = || fault(format!("missing argument '{}'", self.param(position)));
        self.given(position).ok_or_else(missing)
    }

    /// A text argument that may be left out or none.
    pub(super) fn text(&self, position: usize) -> Result<Option<&str>, Error> {
        let wrong = |value: &Value| self.wrong(position, "str", value);
        let value = self.value(position);
        value
            .map(|value| value.as_str().ok_or_else(|| wrong(value)))
            .transpose()
    }

    /// A text argument.
    pub(super) fn required_text(&self, position: usize) -> Result<&str, Error> {
        let missing = || fault(format!("missing argument '{}'", self.param(position)));
        self.text(position)?.ok_or_else(missing)
    }

    /// A whole number that may be left out or none.
    pub(super) fn int(&self, position: usize) -> Result<Option<i64>, Error> {
        let wrong = |value: &Value| self.wrong(position, "int", value);
        let value = self.value(position);
        value
            .map(|value| i64::try_from(value.clone()).map_err(|_| wrong(value)))
            .transpose()
    }

    /// Whether a flag was given and holds.
    pub(super) fn flag(&self, position: usize) -> bool {
        self.given(position).is_some_and(Value::is_true)
    }

    fn wrong(&self, position: usize, expected: &str, found: &Value) -> Error {
        let (name, kind) = (self.param(position), found.kind());
        fault(format!("argument '{name}' must be {expected}, not {kind}"))
    }

    /// The value's own text, where it is one.
    pub(super) fn this_text(&self) -> &str {
        self.this.as_str().unwrap_or_default()
    }
}
