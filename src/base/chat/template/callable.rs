//! How filters, tests and methods are called: each has one table row, and one function binds arguments and charges.
//!
//! A row holds the names of a callable, its parameters in Python's order, and its body. [`run`] binds the arguments by
//! position or by name, charges for every text that goes in or comes out longer, and runs the body. A body charges only
//! for what can grow beyond its arguments. Invariant: no callable of a table runs without [`run`].

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, Value};

use super::budget::{self, ITEM};
use super::error::fault;

pub(super) type CallableBody = fn(&BoundCall<'_>) -> Result<Value, Error>;

/// Names separated by spaces, parameters separated by spaces, and the body.
pub(super) type CallableRow = (&'static str, &'static str, CallableBody);

/// One call: the value before the `|`, the `is` or the dot, and the bound arguments.
pub(super) struct BoundCall<'a> {
    /// The value that the callable is applied to.
    pub(super) this: &'a Value,
    pub(super) name: &'a str,
    params: &'static str,
    pub(super) args: Vec<Option<Value>>,
}

/// Calls `row` as `name`.
pub(super) fn run(
    (_, params, body): CallableRow,
    name: &str,
    this: &Value,
    args: &[Value],
) -> Result<Value, Error> {
    for argument in args {
        budget::read(ITEM + budget::size(argument))?;
    }
    budget::made(text_length(this))?;
    let args = bind(args, params)?;
    let call = BoundCall {
        this,
        name,
        params,
        args,
    };
    let result = body(&call)?;
    budget::made(text_length(&result).saturating_sub(text_length(this)))?;
    Ok(result)
}

pub(super) fn find(rows: &[CallableRow], name: &str) -> Option<CallableRow> {
    let has_name = |row: &&CallableRow| row.0.split(' ').any(|other| other == name);
    rows.iter().find(has_name).copied()
}

fn text_length(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

/// The arguments in the order of `params`; `None` for those not given.
fn bind(args: &[Value], params: &str) -> Result<Vec<Option<Value>>, Error> {
    if args.is_empty() {
        return Ok(vec![None; params.split_whitespace().count()]);
    }
    let (positional, kwargs): (&[Value], Kwargs) = from_args(args)?;
    let bind = |(position, name): (usize, &str)| match positional.get::<usize>(position) {
        Some(given) => Ok(Some(given.clone())),
        None if kwargs.has(name) => kwargs.get(name).map(Some),
        None => Ok(None),
    };
    let bound = params.split_whitespace().enumerate().map(bind);
    let bound = bound.collect::<Result<Vec<Option<Value>>, Error>>()?;
    let (n, n_given) = (bound.len(), positional.len());
    if n_given > n {
        let message = format!("takes at most {n} arguments, {n_given} were given");
        return Err(fault(message));
    }
    kwargs.assert_all_used()?;
    Ok(bound)
}

impl BoundCall<'_> {
    pub(super) fn given(&self, position: usize) -> Option<&Value> {
        self.args[position].as_ref()
    }

    pub(super) fn value(&self, position: usize) -> Option<&Value> {
        self.given(position).filter(|value| !value.is_none())
    }

    pub(super) fn required(&self, position: usize) -> Result<&Value, Error> {
        self.given(position).ok_or_else(|| self.missing(position))
    }

    pub(super) fn text(&self, position: usize) -> Result<Option<&str>, Error> {
        let text = self.value(position).map(Value::as_str);
        let wrong = || self.wrong(position, "str");
        text.map(|text| text.ok_or_else(wrong)).transpose()
    }

    pub(super) fn required_text(&self, position: usize) -> Result<&str, Error> {
        self.text(position)?.ok_or_else(|| self.missing(position))
    }

    pub(super) fn int(&self, position: usize) -> Result<Option<i64>, Error> {
        let int = |value: &Value| i64::try_from(value.clone());
        let int = self.value(position).map(int).transpose();
        int.map_err(|_| self.wrong(position, "int"))
    }

    pub(super) fn flag(&self, position: usize) -> bool {
        self.given(position).is_some_and(Value::is_true)
    }

    fn missing(&self, position: usize) -> Error {
        let name = self.params.split_whitespace().nth(position);
        fault(format!("missing argument '{}'", name.unwrap_or_default()))
    }

    fn wrong(&self, position: usize, expected: &str) -> Error {
        let name = self.params.split_whitespace().nth(position);
        let name = name.unwrap_or_default();
        fault(format!("argument '{name}' is not of type {expected}"))
    }

    /// The value's text; empty if it is not a text.
    pub(super) fn this_text(&self) -> &str {
        self.this.as_str().unwrap_or_default()
    }
}
