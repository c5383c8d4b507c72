//! The budget of a rendering besides the engine's fuel: memory that it creates, and data that it reads.
//!
//! Fuel counts instructions, but one instruction may double a text or search a long one. Code that creates or reads a
//! value of unbounded size charges for it here first. Invariant: a rendering has created at most [`MAX_MADE`] bytes in
//! all, whether or not they are still alive; otherwise it fails.

use std::cell::Cell;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::RenderError;
use super::error::fault;
use super::value::PyDict;

/// Divides each limit in this library's own tests, in which dozens of templates use all of it.
pub(super) const DIVISOR: u64 = if cfg!(test) { 8 } else { 1 };
/// Maximum bytes of text and lists that one rendering may create in all.
const MAX_MADE: u64 = (1 << 27) / DIVISOR;
/// Maximum bytes that one rendering may search, compare or traverse in all.
const MAX_READ: u64 = (1 << 28) / DIVISOR;
/// The charge for an item of a list.
pub(super) const ITEM: usize = 24;
/// The charge for a value that a walk visits.
const NODE: usize = 64;
/// Maximum nesting of a value that a walk traverses, not counting that of the rendering's input.
const MAX_DEPTH: usize = 200;

thread_local! {
    static MADE: Cell<u64> = const { Cell::new(0) };
    static READ: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn start() {
    MADE.set(0);
    READ.set(0);
}

pub(super) fn made(bytes: usize) -> Result<(), Error> {
    MADE.set(MADE.get().saturating_add(bytes as u64));
    if MADE.get() > MAX_MADE {
        return Err(exhausted("exceeded the limit of created data"));
    }
    Ok(())
}

pub(super) fn read(bytes: usize) -> Result<(), Error> {
    READ.set(READ.get().saturating_add(bytes as u64));
    if READ.get() > MAX_READ {
        return Err(exhausted("exceeded the limit of data read"));
    }
    Ok(())
}

fn exhausted(what: &'static str) -> Error {
    fault(what).with_source(RenderError::Limit(what))
}

/// A text whose growth is charged for.
#[derive(Debug, Default)]
pub(super) struct ChargedText(pub(super) String);

impl ChargedText {
    pub(super) fn push(&mut self, part: &str) -> Result<(), Error> {
        made(part.len())?;
        self.0.push_str(part);
        Ok(())
    }

    pub(super) fn repeat(&mut self, part: &str, times: usize) -> Result<(), Error> {
        made(part.len().saturating_mul(times))?;
        self.0.extend(std::iter::repeat_n(part, times));
        Ok(())
    }
}

impl From<ChargedText> for Value {
    fn from(text: ChargedText) -> Self {
        Self::from(text.0)
    }
}

/// The size of a text, or of a list without the contents of its items, in bytes.
pub(super) fn size(value: &Value) -> usize {
    match value.kind() {
        ValueKind::String => value.as_str().map_or(0, str::len),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            value.len().unwrap_or(0).saturating_mul(ITEM)
        }
        _ => 0,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// The value is read, including its texts.
    Read,
    /// The value is stored in a variable. Only values that the template built can nest too deep.
    Keep,
    /// The value is stored in a namespace. It must not contain a namespace: the namespace could contain itself, and a
    /// walk would never end.
    KeepInside,
}

/// Walks through a value, charges for every value it visits, and refuses one that nests too deep: the engine compares
/// and frees nested values recursively.
pub(super) fn walk(value: &Value, walk: Walk) -> Result<(), Error> {
    walk_at(value, walk, 0)
}

fn walk_at(value: &Value, walk: Walk, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(exhausted("exceeded the nesting limit of values"));
    }
    if walk == Walk::Read {
        read(ITEM + value.as_str().map_or(0, str::len))?;
    } else if value.downcast_object_ref::<PyDict>().is_some() {
        return Ok(());
    }
    let Some(object) = value.as_object() else {
        return Ok(());
    };
    if walk == Walk::KeepInside && object.type_name().ends_with("::Namespace") {
        return Err(fault("a namespace cannot hold a namespace"));
    }
    let visit = |item: &Value| {
        read(NODE)?;
        walk_at(item, walk, depth + 1)
    };
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let mut items = value.try_iter()?.checked();
            items.try_for_each(|item| visit(&item?))
        }
        ValueKind::Map => {
            let mut pairs = object.try_iter_pairs().into_iter().flatten();
            pairs.try_for_each(|(_, item)| visit(&item))
        }
        _ => Ok(()),
    }
}

pub(super) fn entries(value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let map = value.as_object().filter(|_| value.kind() == ValueKind::Map);
    let pairs = map.and_then(|map| map.try_iter_pairs());
    let pairs = pairs.ok_or_else(|| fault("Can only get item pairs from a mapping."))?;
    made(size(value))?;
    Ok(pairs.collect())
}

/// The items of a value. A none has no items and, as in Python, cannot be iterated over.
pub(super) fn iterate(value: &Value) -> Result<impl Iterator<Item = Value>, Error> {
    if value.is_none() {
        return Err(fault("'NoneType' object is not iterable"));
    }
    read(size(value))?;
    value.try_iter()
}

/// A view as a list of its items; other values unchanged.
pub(super) fn owned(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let charged = |item: Result<Value, Error>| made(ITEM).and(item);
    value.try_iter()?.checked().map(charged).collect()
}
