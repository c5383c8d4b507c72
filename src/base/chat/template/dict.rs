//! JSON as the values of a template. Python's objects have attributes besides their items: `schema.items` is the method,
//! even if the schema has a key of that name, and only `schema['items']` is the entry. [`PyDict`] keeps the two apart.
//!
//! Invariant: keys keep the order of the JSON text.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, Rest, ValueOrKwargs};
use minijinja::{Error, State, Value};

use super::long_integers::of_marked;
use super::methods;
use super::print::str;
use super::value::PyDict;

pub(super) fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => match number.as_i128() {
            Some(int) => Value::from(int),
            None => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => match of_marked(text) {
            Some(int) => Value::from(int),
            None => Value::from(text.as_str()),
        },
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(entries) => {
            let entries = entries.iter();
            let entries = entries.map(|(key, item)| (Value::from(key.as_str()), from_json(item)));
            Value::from_object(PyDict(Value::from_pairs(entries)))
        }
    }
}

impl Object for PyDict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.as_object()?.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if methods::is_dict_method(key) {
            let (this, name) = (Value::from_dyn_object(Arc::clone(self)), key.to_owned());
            let method = move |state: &mut State, args: Rest<ValueOrKwargs>| {
                methods::call(state, &this, &name, &args.into_values())
            };
            return Some(Value::from_function(method));
        }
        self.0.as_object()?.get_value_by_str(key)
    }

    fn call_method(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        methods::call(
            state,
            &Value::from_dyn_object(Arc::clone(self)),
            method,
            args,
        )
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let map = self.0.as_object();
        map.map_or(Enumerator::Empty, |map| map.enumerate())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.len()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let this = Value::from_dyn_object(Arc::clone(self));
        f.write_str(&str(&this).map_err(|_| fmt::Error)?)
    }
}
