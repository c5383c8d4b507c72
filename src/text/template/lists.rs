//! Filters of Jinja2 that order, group and divide the items of a value.
//!
//! Values are compared as Python compares them: numbers, texts and lists each among their own, anything
//! else is an error. Invariant: sorting is stable, and what cannot be compared is never ordered.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, Value};

use super::budget::{self, ITEM, Walk};
use super::call::Call;
use super::filters::attribute;
use super::operators::compare;
use super::value::{entries, fault, is_list, iterate, list};

/// An item and by what it is compared.
type Keyed<T> = (Vec<Value>, T);

/// All items, charged for; they are compared as a rule.
fn items(value: &Value) -> Result<Vec<Value>, Error> {
    budget::walk(value, Walk::Read)?;
    let charged = |item| budget::made(4 * ITEM).map(|()| item);
    iterate(value)?.map(charged).collect()
}

/// By what items are compared: the attributes of a list with commas, or the item itself.
fn key(item: &Value, path: Option<&Value>, is_case_sensitive: bool) -> Result<Vec<Value>, Error> {
    let folded = |value: Value| match value.as_str() {
        Some(text) if !is_case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    };
    let Some(paths) = path.and_then(Value::as_str) else {
        return Ok(vec![folded(attribute(item, path)?)]);
    };
    let paths = paths.split(',').map(Value::from);
    paths
        .map(|path| attribute(item, Some(&path)).map(folded))
        .collect()
}

fn keyed(
    items: Vec<Value>,
    path: Option<&Value>,
    is_case_sensitive: bool,
) -> Result<Vec<Keyed<Value>>, Error> {
    let items = items.into_iter();
    items
        .map(|item| Ok((key(&item, path, is_case_sensitive)?, item)))
        .collect()
}

fn compare_keys(a: &[Value], b: &[Value]) -> Result<Ordering, Error> {
    for (a, b) in a.iter().zip(b) {
        match compare(a, b)? {
            Ordering::Equal => {}
            other => return Ok(other),
        }
    }
    Ok(Ordering::Equal)
}

/// Sorts by keys, equal ones in the order in which they come. The standard library's sort cannot stop
/// at values that have no order.
fn sorted<T>(mut items: Vec<Keyed<T>>, is_reverse: bool) -> Result<Vec<Keyed<T>>, Error> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = items.split_off(items.len() / 2);
    let mut left = sorted(items, is_reverse)?.into_iter().peekable();
    let mut right = sorted(right, is_reverse)?.into_iter().peekable();
    let mut out = Vec::with_capacity(left.len() + right.len());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let order = compare_keys(&a.0, &b.0)?;
        let order = if is_reverse { order.reverse() } else { order };
        out.extend(match order {
            Ordering::Greater => right.next(),
            _ => left.next(),
        });
    }
    out.extend(left.chain(right));
    Ok(out)
}

/// `value | min(case_sensitive=False, attribute=None)`, and `max`
pub(super) fn outermost(call: &Call<'_>) -> Result<Value, Error> {
    let is_min = call.name == "min";
    let wanted = if is_min {
        Ordering::Less
    } else {
        Ordering::Greater
    };
    let mut best: Option<Keyed<Value>> = None;
    for (key, item) in keyed(items(call.this)?, call.value(1), call.flag(0))? {
        let is_better = match &best {
            None => true,
            Some((other, _)) => compare_keys(&key, other)? == wanted,
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

/// `value | sort(reverse=False, case_sensitive=False, attribute=None)`
pub(super) fn sort(call: &Call<'_>) -> Result<Value, Error> {
    let keyed = keyed(items(call.this)?, call.value(2), call.flag(1))?.into_iter();
    // The keys of an item are one list, so that equal ones are never ordered.
    let keyed = keyed.map(|(keys, item)| (vec![Value::from(keys)], item));
    let sorted = sorted(keyed.collect(), call.flag(0))?.into_iter();
    Ok(sorted.map(|(_, item)| item).collect())
}

/// `value | unique(case_sensitive=False, attribute=None)`
pub(super) fn unique(call: &Call<'_>) -> Result<Value, Error> {
    let mut seen = BTreeSet::new();
    let mut kept = Vec::new();
    for (key, item) in keyed(items(call.this)?, call.value(1), call.flag(0))? {
        let is_unhashable =
            |key: &&Value| key.kind() == ValueKind::Map || (is_list(key) && !key.is_tuple());
        if let Some(key) = key.iter().find(is_unhashable) {
            return Err(fault(format!("unhashable type: '{}'", key.kind())));
        }
        if seen.insert(key) {
            kept.push(item);
        }
    }
    Ok(Value::from(kept))
}

/// What `groupby` gives for each group: a pair whose parts also have names.
#[derive(Debug)]
pub(super) struct Group([Value; 2]);

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let position = match key.as_str() {
            Some("grouper") => 0,
            Some("list") => 1,
            Some(_) => return None,
            None => key.as_usize()?,
        };
        self.0.get(position).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

/// `value | groupby(attribute, default=None, case_sensitive=False)`
pub(super) fn group(call: &Call<'_>) -> Result<Value, Error> {
    call.required(0)?;
    let key_of = |item: &Value, is_case_sensitive: bool| {
        let mut keys = key(item, call.value(0), is_case_sensitive)?;
        for part in keys.iter_mut().filter(|part| part.is_undefined()) {
            *part = call.value(1).unwrap_or(part).clone();
        }
        Ok::<_, Error>(keys)
    };
    let items = items(call.this)?.into_iter();
    let keyed: Result<Vec<_>, Error> = items
        .map(|item| Ok((key_of(&item, call.flag(2))?, item)))
        .collect();
    let mut groups: Vec<Keyed<Vec<Value>>> = Vec::new();
    for (key, item) in sorted(keyed?, false)? {
        match groups.last_mut() {
            Some((last, list)) if *last == key => list.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let group = |(_, items): Keyed<Vec<Value>>| {
        let mut grouper = key_of(&items[0], true)?;
        let grouper = match grouper.len() {
            1 => grouper.remove(0),
            _ => list(grouper, true),
        };
        Ok(Value::from_object(Group([grouper, Value::from(items)])))
    };
    groups.into_iter().map(group).collect()
}

/// `value | dictsort(case_sensitive=False, by='key', reverse=False)`
pub(super) fn dict_sort(call: &Call<'_>) -> Result<Value, Error> {
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
    let pairs = sorted(pairs.collect::<Result<_, Error>>()?, call.flag(2))?;
    Ok(pairs.into_iter().map(|(_, pair)| pair).collect())
}

/// The first argument as a number of items or lists.
fn count(call: &Call<'_>) -> Result<usize, Error> {
    let n = call.int(0)?.and_then(|n| usize::try_from(n).ok());
    let n = n.filter(|n| *n > 0);
    n.ok_or_else(|| fault(format!("{}: the argument is not a whole number", call.name)))
}

/// `value | batch(linecount, fill_with=None)`
pub(super) fn batch(call: &Call<'_>) -> Result<Value, Error> {
    let n = count(call)?;
    let items = items(call.this)?;
    let mut lines: Vec<Vec<Value>> = items.chunks(n).map(<[Value]>::to_vec).collect();
    if let (Some(last), Some(fill)) = (lines.last_mut(), call.value(1)) {
        budget::made(n.saturating_mul(ITEM))?;
        last.resize(n, fill.clone());
    }
    Ok(lines.into_iter().map(Value::from).collect())
}

/// `value | slice(slices, fill_with=None)`
pub(super) fn slice(call: &Call<'_>) -> Result<Value, Error> {
    let n = count(call)?;
    budget::made(n.saturating_mul(4 * ITEM))?;
    let items = items(call.this)?;
    let (each, n_longer) = (items.len() / n, items.len() % n);
    let mut rest = items.as_slice();
    let columns = (0..n).map(|i| {
        let (column, after) = rest.split_at(each + usize::from(i < n_longer));
        rest = after;
        let mut column = column.to_vec();
        column.extend(call.value(1).filter(|_| i >= n_longer).cloned());
        Value::from(column)
    });
    Ok(columns.collect())
}
