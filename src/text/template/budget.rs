//! What one rendering may spend besides the engine's fuel: memory it makes, and data it reads.
//!
//! Fuel counts instructions, but one instruction may double a text or search a long one. Whatever
//! makes or reads a value of unbounded size charges it here first. Invariant: a rendering that goes
//! on has made at most [`MAX_MADE`] bytes, whether or not they are still alive.

use std::cell::Cell;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::RenderError;
use super::value::{Dict, fault};

/// Bytes of text and lists that one rendering may make in all.
const MAX_MADE: u64 = 1 << 27;
/// Bytes that one rendering may search, compare or walk through in all.
const MAX_READ: u64 = 1 << 28;
/// What an item of a list counts for.
pub(super) const ITEM: usize = 24;
/// What a value met on a walk counts for.
const NODE: usize = 64;
/// How deep a value may nest that a walk goes through, besides the rendering's input in it.
const MAX_DEPTH: usize = 200;

thread_local! {
    static MADE: Cell<u64> = const { Cell::new(0) };
    static READ: Cell<u64> = const { Cell::new(0) };
}

/// Gives this thread's next rendering the whole budget.
pub(super) fn start() {
    MADE.set(0);
    READ.set(0);
}

/// Charges for a text or list about to be made.
pub(super) fn made(bytes: usize) -> Result<(), Error> {
    MADE.set(MADE.get().saturating_add(bytes as u64));
    if MADE.get() > MAX_MADE {
        return Err(exhausted("made too much text"));
    }
    Ok(())
}

/// Charges for data about to be read through.
pub(super) fn read(bytes: usize) -> Result<(), Error> {
    READ.set(READ.get().saturating_add(bytes as u64));
    if READ.get() > MAX_READ {
        return Err(exhausted("read too much text"));
    }
    Ok(())
}

/// A rendering spent more than it may.
fn exhausted(what: &'static str) -> Error {
    fault(what).with_source(RenderError::Limit(what))
}

/// A text that is charged for as it grows.
#[derive(Debug, Default)]
pub(super) struct Text(pub(super) String);

impl Text {
    /// Appends a part.
    pub(super) fn push(&mut self, part: &str) -> Result<(), Error> {
        made(part.len())?;
        self.0.push_str(part);
        Ok(())
    }

    /// Appends a part several times.
    pub(super) fn repeat(&mut self, part: &str, times: usize) -> Result<(), Error> {
        made(part.len().saturating_mul(times))?;
        self.0.extend(std::iter::repeat_n(part, times));
        Ok(())
    }
}

impl From<Text> for Value {
    fn from(text: Text) -> Self {
        Self::from(text.0)
    }
}

/// The memory of a text, or of a list without its items' own.
pub(super) fn size(value: &Value) -> usize {
    match value.kind() {
        ValueKind::String => value.as_str().map_or(0, str::len),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            value.len().unwrap_or(0).saturating_mul(ITEM)
        }
        _ => 0,
    }
}

/// What a walk through a value is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// Reading all of it, texts included.
    Read,
    /// Holding it in a variable: only what the template itself built can nest too deep.
    Keep,
    /// Holding it in a namespace, where no namespace may be: it could contain itself, and no walk
    /// would end.
    KeepInside,
}

/// Walks through a value, charges for what it meets, and refuses one that nests too deep: the
/// engine compares and frees nested values by recursion.
pub(super) fn walk(value: &Value, walk: Walk) -> Result<(), Error> {
    walk_at(value, walk, 0)
}

fn walk_at(value: &Value, walk: Walk, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(exhausted("nested a value too deep"));
    }
    if walk == Walk::Read {
        read(ITEM + value.as_str().map_or(0, str::len))?;
    } else if value.downcast_object_ref::<Dict>().is_some() {
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
