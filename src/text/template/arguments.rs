//! Arguments of filters and methods, bound by position or by name as Python binds them.

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, Value};

use super::value::fault;

/// The arguments in the order of `names`; those not given are `None`.
pub(super) fn bind<const N: usize>(
    args: &[Value],
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let (positional, kwargs): (&[Value], Kwargs) = from_args(args)?;
    if positional.len() > N {
        return Err(fault(format!(
            "takes at most {N} arguments, {} were given",
            positional.len()
        )));
    }
    let mut bound = std::array::from_fn(|position| positional.get(position).cloned());
    for (argument, name) in bound.iter_mut().zip(names) {
        if !kwargs.has(name) {
            continue;
        }
        if argument.is_some() {
            return Err(fault(format!("multiple values for argument '{name}'")));
        }
        *argument = Some(kwargs.get::<Value>(name)?);
    }
    kwargs.assert_all_used()?;
    Ok(bound)
}

/// A text argument.
pub(super) fn text<'a>(argument: &'a Option<Value>, name: &str) -> Result<&'a str, Error> {
    optional_text(argument, name)?.ok_or_else(|| fault(format!("missing argument '{name}'")))
}

/// A text argument that may be left out or none.
pub(super) fn optional_text<'a>(
    argument: &'a Option<Value>,
    name: &str,
) -> Result<Option<&'a str>, Error> {
    let Some(value) = argument.as_ref().filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    match value.as_str() {
        Some(text) => Ok(Some(text)),
        None => Err(fault(format!(
            "argument '{name}' must be str, not {}",
            value.kind()
        ))),
    }
}

/// A whole number that may be left out or none.
pub(super) fn optional_int(argument: &Option<Value>, name: &str) -> Result<Option<i64>, Error> {
    let Some(value) = argument.as_ref().filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    match i64::try_from(value.clone()) {
        Ok(int) => Ok(Some(int)),
        Err(_) => Err(fault(format!(
            "argument '{name}' must be int, not {}",
            value.kind()
        ))),
    }
}

/// Whether a flag was given and holds.
pub(super) fn flag(argument: &Option<Value>) -> bool {
    argument.as_ref().is_some_and(Value::is_true)
}
