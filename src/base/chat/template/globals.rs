//! Jinja2's functions that keep a state between calls: `cycler` and `joiner`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use minijinja::value::{Object, ObjectRepr, Rest};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::budget::{self, ITEM};
use super::error::fault;

pub(super) fn register(env: &mut Environment<'static>) {
    env.add_function("cycler", Cycler::of);
    env.add_function("joiner", |separator: Option<Value>| {
        Value::from_object(Joiner {
            separator: separator.unwrap_or_else(|| Value::from(", ")),
            is_used: AtomicBool::new(false),
        })
    });
}

/// `joiner(separator)`: empty at its first call, the separator at all others.
#[derive(Debug)]
struct Joiner {
    separator: Value,
    is_used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        if !args.is_empty() {
            return Err(fault("a joiner takes no arguments"));
        }
        let is_used = self.is_used.swap(true, Ordering::Relaxed);
        Ok(match is_used {
            true => self.separator.clone(),
            false => Value::from(""),
        })
    }
}

/// `cycler(a, b, …)`: one value after the other, then the first again.
#[derive(Debug)]
struct Cycler {
    values: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    /// The values must not be containers: a walk through a value does not enter a cycler, so that one within another
    /// could nest without a limit.
    fn of(values: Rest<Value>) -> Result<Value, Error> {
        if values.is_empty() || values.iter().any(|value| value.as_object().is_some()) {
            return Err(fault("cycler takes one or more texts or numbers"));
        }
        budget::made(values.len().saturating_mul(ITEM))?;
        Ok(Value::from_object(Self {
            values: values.0,
            at: AtomicUsize::new(0),
        }))
    }

    fn current(&self) -> Value {
        let at = self.at.load(Ordering::Relaxed);
        self.values[at % self.values.len()].clone()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        match (method, args) {
            ("next", []) => {
                let value = self.current();
                self.at.fetch_add(1, Ordering::Relaxed);
                Ok(value)
            }
            ("reset", []) => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}
