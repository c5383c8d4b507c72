//! Filters of Jinja2 that sort or compare the items of a value.
//!
//! Values are compared as in Python: numbers, texts and lists each among themselves; any other comparison is an error.
//! Invariant: sorting is stable, and values that cannot be compared are never ordered.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget::{self, ITEM, Walk, entries, iterate};
use super::callable::BoundCall;
use super::error::fault;
use super::operators::compare;
use super::value::{is_list, list};

type Keyed = (Value, Value);

/// All items with their keys, after charging for them.
fn keyed(
    call: &BoundCall<'_>,
    path: Option<&Value>,
    is_case_sensitive: bool,
) -> Result<Vec<Keyed>, Error> {
    budget::walk(call.this, Walk::Read)?;
    let keyed = |item: Value| {
        budget::made(4 * ITEM)?;
        Ok((key(&item, path, is_case_sensitive)?, item))
    };
    iterate(call.this)?.map(keyed).collect()
}

/// The key of an item: the attributes that `path` lists, or the item itself.
fn key(item: &Value, path: Option<&Value>, is_case_sensitive: bool) -> Result<Value, Error> {
    let folded = |value: Value| match value.as_str() {
        Some(text) if !is_case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    };
    match path.and_then(Value::as_str) {
        Some(paths) if paths.contains(',') => {
            let parts = paths.split(',').map(Value::from);
            let parts = parts.map(|path| attribute(item, Some(&path)).map(folded));
            parts.collect()
        }
        _ => attribute(item, path).map(folded),
    }
}

/// The value at `a.b.0` of an item, as Jinja2 reads the `attribute` argument: items before attributes, numbers as
/// indices. Without the argument, the item itself.
pub(super) fn attribute(item: &Value, path: Option<&Value>) -> Result<Value, Error> {
    match path.map(|path| (path, path.as_str())) {
        None => Ok(item.clone()),
        Some((index, None)) => item.get_item(index),
        Some((_, Some(path))) => {
            path.split('.')
                .try_fold(item.clone(), |value, part| match part.parse::<usize>() {
                    Ok(index) => value.get_item(&Value::from(index)),
                    Err(_) => value.get_item(&Value::from(part)),
                })
        }
    }
}

fn sorted(mut items: Vec<Keyed>, is_reverse: bool) -> Result<Value, Error> {
    let mut failure = items
        .iter()
        .find_map(|item| compare(&items[0].0, &item.0).err());
    if failure.is_none() {
        items.sort_by(|(a, _), (b, _)| {
            let (a, b) = if is_reverse { (b, a) } else { (a, b) };
            compare(a, b).unwrap_or_else(|error| {
                failure.get_or_insert(error);
                Ordering::Equal
            })
        });
    }
    let items = items.into_iter().map(|(_, item)| item);
    failure.map_or_else(|| Ok(items.collect()), Err)
}

/// `value | min(case_sensitive=False, attribute=None)`, and `max`
pub(super) fn outermost(call: &BoundCall<'_>) -> Result<Value, Error> {
    let wanted = match call.name {
        "min" => Ordering::Less,
        _ => Ordering::Greater,
    };
    let mut best: Option<Keyed> = None;
    for (key, item) in keyed(call, call.value(1), call.flag(0))? {
        let order = best.as_ref().map(|(other, _)| compare(&key, other));
        if order.transpose()?.is_none_or(|order| order == wanted) {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

/// `value | sort(reverse=False, case_sensitive=False, attribute=None)`
pub(super) fn sort(call: &BoundCall<'_>) -> Result<Value, Error> {
    // The keys of an item form one list, so that items are never compared.
    let keyed = keyed(call, call.value(2), call.flag(1))?.into_iter();
    let keyed = keyed.map(|(key, item)| (Value::from(vec![key]), item));
    sorted(keyed.collect(), call.flag(0))
}

/// `value | unique(case_sensitive=False, attribute=None)`
pub(super) fn unique(call: &BoundCall<'_>) -> Result<Value, Error> {
    let mut seen = BTreeSet::new();
    let mut kept = Vec::new();
    for (key, item) in keyed(call, call.value(1), call.flag(0))? {
        if key.kind() == ValueKind::Map || (is_list(&key) && !key.is_tuple()) {
            return Err(fault(format!("unhashable type: '{}'", key.kind())));
        }
        if seen.insert(key) {
            kept.push(item);
        }
    }
    Ok(Value::from(kept))
}

/// `value | dictsort(case_sensitive=False, by='key', reverse=False)`
pub(super) fn dict_sort(call: &BoundCall<'_>) -> Result<Value, Error> {
    let is_by_key = match call.given(1).map(Value::as_str) {
        None | Some(Some("key")) => true,
        Some(Some("value")) => false,
        Some(_) => return Err(fault("You can only sort by either \"key\" or \"value\"")),
    };
    budget::walk(call.this, Walk::Read)?;
    let pairs = entries(call.this)?.into_iter().map(|(name, item)| {
        let by = if is_by_key { &name } else { &item };
        Ok((key(by, None, call.flag(0))?, list(vec![name, item], true)))
    });
    sorted(pairs.collect::<Result<_, Error>>()?, call.flag(2))
}
