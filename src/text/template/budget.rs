//! What one rendering may spend besides the engine's fuel: memory it makes, and data it reads.
//!
//! Fuel counts instructions, but one instruction may double a text or search a long one. Whatever
//! makes or reads a value of unbounded size charges it here first. Invariant: a rendering that goes
//! on has made at most [`MAX_MADE`] bytes, whether or not they are still alive.

use std::cell::Cell;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::value::fault;

/// Bytes of text and lists that one rendering may make in all.
const MAX_MADE: u64 = 1 << 28;
/// Bytes that one rendering may search, compare or walk through in all.
const MAX_READ: u64 = 1 << 29;
/// What an item of a list counts for.
pub(super) const ITEM: usize = 24;
/// What a value met on a walk counts for.
const NODE: usize = 64;
/// How deep a value may nest that a walk goes through.
const MAX_DEPTH: usize = 200;

thread_local! {
    static MADE: Cell<u64> = const { Cell::new(0) };
    static READ: Cell<u64> = const { Cell::new(0) };
}

/// A rendering spent more than it may.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Exhausted(pub(super) &'static str);

/// Gives this thread's next rendering the whole budget.
pub(super) fn start() {
    MADE.set(0);
    READ.set(0);
}

/// Charges for a text or list about to be made.
pub(super) fn made(bytes: usize) -> Result<(), Error> {
    let total = MADE.get().saturating_add(bytes as u64);
    MADE.set(total);
    if total > MAX_MADE {
        return Err(exhausted("made too much text"));
    }
    Ok(())
}

/// Charges for data about to be read through.
pub(super) fn read(bytes: usize) -> Result<(), Error> {
    let total = READ.get().saturating_add(bytes as u64);
    READ.set(total);
    if total > MAX_READ {
        return Err(exhausted("read too much text"));
    }
    Ok(())
}

fn exhausted(what: &'static str) -> Error {
    fault(what).with_source(Exhausted(what))
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

/// Walks through a value, charges for all of it, and refuses one that nests too deep: the engine
/// compares and frees nested values by recursion.
pub(super) fn walk(value: &Value) -> Result<(), Error> {
    walk_at(value, 0)
}

fn walk_at(value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(exhausted("nested a value too deep"));
    }
    match value.kind() {
        ValueKind::String => read(value.as_str().map_or(0, str::len)),
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()?.checked() {
                read(NODE)?;
                walk_at(&item?, depth + 1)?;
            }
            Ok(())
        }
        ValueKind::Map => {
            let Some(pairs) = value.as_object().and_then(|map| map.try_iter_pairs()) else {
                return Ok(());
            };
            for (_, item) in pairs {
                read(NODE)?;
                walk_at(&item, depth + 1)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
