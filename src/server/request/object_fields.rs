//! Objects within a request whose shapes others define: which of their fields are known.
//!
//! A field that is not known is removed, so that it has no effect, and the response names it by its path. Where the
//! server is strict, it is refused. A known field that has no effect here is removed and named either way. Not here: the
//! fields of the body itself (`fields`), and the values of known fields.

use std::fmt;

use serde_json::{Map, Value};

use lab_core::arch::nearest;

use crate::http::context::RequestContext;
use crate::http::error::{Error, quoted};

#[derive(Debug)]
pub(crate) struct ObjectFields {
    /// The values of `type` of the objects that it describes, `-` for objects without one; empty for all objects.
    pub(crate) kinds: &'static str,
    /// The fields that are honoured or refused elsewhere, separated by spaces; empty if all are kept.
    pub(crate) known: &'static str,
    /// The fields that have no effect here, separated by spaces.
    pub(crate) idle: &'static str,
    /// The shapes of objects, or of arrays of them, in known fields.
    pub(crate) inner: &'static [(&'static str, &'static Self)],
}

impl ObjectFields {
    /// Objects of any type with these fields.
    pub(crate) const fn of(known: &'static str) -> Self {
        Self {
            kinds: "",
            known,
            idle: "",
            inner: &[],
        }
    }
}

#[derive(Clone, Copy)]
enum FieldPath<'a> {
    Start(&'a str),
    Field(&'a Self, &'a str),
    Element(&'a Self, usize),
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(name) => f.write_str(name),
            Self::Field(within, name) => write!(f, "{within}.{}", quoted(name)),
            Self::Element(within, i) => write!(f, "{within}[{i}]"),
        }
    }
}

/// Removes the fields that are not known from an object, or from the objects of an array, at the place `at`.
pub(crate) fn prune(value: &mut Value, at: &str, shape: &ObjectFields) -> Result<(), Error> {
    pruned(
        value,
        &FieldPath::Start(at),
        shape,
        &RequestContext::current(),
    )
}

/// Whether a list of words separated by spaces has this one.
pub(crate) fn has_word(list: &str, word: &str) -> bool {
    !word.is_empty() && list.split(' ').any(|own| own == word)
}

fn pruned(
    value: &mut Value,
    at: &FieldPath<'_>,
    shape: &ObjectFields,
    record: &RequestContext,
) -> Result<(), Error> {
    match value {
        Value::Array(all) => {
            let all = all.iter_mut().enumerate();
            let mut objects = all.filter(|(_, one)| one.is_object() || one.is_array());
            objects.try_for_each(|(i, one)| pruned(one, &FieldPath::Element(at, i), shape, record))
        }
        Value::Object(fields) if shape.describes(fields) => {
            let mut refused = None;
            fields.retain(|name, value| {
                let is_known = shape.known.is_empty() || has_word(shape.known, name);
                if is_known || value.is_null() || refused.is_some() {
                    return true;
                }
                let place = FieldPath::Field(at, name).to_string();
                if record.is_strict() && !has_word(shape.idle, name) {
                    let near = nearest(name, shape.known.split(' '));
                    let near = near.map(|near| FieldPath::Field(at, near).to_string());
                    refused = Some(Error::unknown(place, near));
                } else {
                    record.ignore(&place);
                }
                false
            });
            if let Some(refused) = refused {
                return Err(refused);
            }
            for (name, shape) in shape.inner {
                if let Some(value) = fields.get_mut(*name) {
                    pruned(value, &FieldPath::Field(at, name), shape, record)?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Records that the value at a place is not known and has no effect. `near` is the place of a similar one that is
/// known.
pub(crate) fn ignore_unknown(at: String, near: Option<String>) -> Result<(), Error> {
    let record = RequestContext::current();
    match record.is_strict() {
        true => Err(Error::unknown(at, near)),
        false => {
            record.ignore(&at);
            Ok(())
        }
    }
}

impl ObjectFields {
    fn describes(&self, fields: &Map<String, Value>) -> bool {
        let kind = fields.get("type").and_then(Value::as_str);
        self.kinds.is_empty() || has_word(self.kinds, kind.unwrap_or("-"))
    }
}
