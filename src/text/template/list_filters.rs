//! Filters of Jinja2 that order, group and divide the items of a value.
//!
//! Values are compared as Python compares them: numbers, texts and lists each among their own, anything
//! else is an error. Invariant: sorting is stable, and what cannot be compared is never ordered.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, Value};

use super::arguments::{bind, flag, optional_int};
use super::budget::{self, ITEM, Walk};
use super::filters::{attribute_of, iterate};
use super::operators::compare;
use super::value::{entries, fault};

/// Registers the filters of this module.
pub(super) fn register(env: &mut Environment<'static>) {
    env.add_filter("first", |value: &Value| {
        Ok::<_, Error>(iterate(value)?.next().unwrap_or(Value::UNDEFINED))
    });
    env.add_filter("last", |value: &Value| {
        Ok::<_, Error>(iterate(value)?.last().unwrap_or(Value::UNDEFINED))
    });
    env.add_filter("min", |value: &Value, args: Rest<ValueOrKwargs>| {
        outermost(value, args, Ordering::Less)
    });
    env.add_filter("max", |value: &Value, args: Rest<ValueOrKwargs>| {
        outermost(value, args, Ordering::Greater)
    });
    env.add_filter("sort", sort);
    env.add_filter("unique", unique);
    env.add_filter("groupby", group);
    env.add_filter("dictsort", dict_sort);
    env.add_filter("batch", batch);
    env.add_filter("slice", slice);
}

/// All items, charged for; they are compared as a rule.
fn items(value: &Value) -> Result<Vec<Value>, Error> {
    budget::walk(value, Walk::Read)?;
    let items = iterate(value)?;
    items
        .map(|item| budget::made(4 * ITEM).map(|()| item))
        .collect()
}

/// By what items are compared: the attributes of a list with commas, or the item itself.
fn key(
    item: &Value,
    attribute: &Option<Value>,
    is_case_sensitive: bool,
) -> Result<Vec<Value>, Error> {
    let folded = |value: Value| match value.as_str() {
        Some(text) if !is_case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    };
    let Some(attribute) = attribute.as_ref().filter(|path| !path.is_none()) else {
        return Ok(vec![folded(item.clone())]);
    };
    let Some(paths) = attribute.as_str() else {
        return Ok(vec![folded(attribute_of(item, attribute)?)]);
    };
    let paths = paths.split(',').map(Value::from);
    paths
        .map(|path| attribute_of(item, &path).map(folded))
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

/// Sorts by keys, equal ones in the order in which they come.
fn sorted<T>(
    mut items: Vec<(Vec<Value>, T)>,
    is_reverse: bool,
) -> Result<Vec<(Vec<Value>, T)>, Error> {
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

fn outermost(value: &Value, args: Rest<ValueOrKwargs>, wanted: Ordering) -> Result<Value, Error> {
    let [case, attribute] = bind(&args.into_values(), ["case_sensitive", "attribute"])?;
    let mut best: Option<(Vec<Value>, Value)> = None;
    for item in items(value)? {
        let key = key(&item, &attribute, flag(&case))?;
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

fn keyed(
    items: Vec<Value>,
    attribute: &Option<Value>,
    is_case_sensitive: bool,
) -> Result<Vec<(Vec<Value>, Value)>, Error> {
    let keyed = items.into_iter();
    keyed
        .map(|item| Ok((key(&item, attribute, is_case_sensitive)?, item)))
        .collect()
}

/// `value | sort(reverse=False, case_sensitive=False, attribute=None)`
fn sort(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let names = ["reverse", "case_sensitive", "attribute"];
    let [reverse, case, attribute] = bind(&args.into_values(), names)?;
    let keyed = keyed(items(value)?, &attribute, flag(&case))?.into_iter();
    // The keys of an item are one list, so that equal ones are never ordered.
    let keyed = keyed.map(|(keys, item)| (vec![Value::from(keys)], item));
    let sorted = sorted(keyed.collect(), flag(&reverse))?.into_iter();
    Ok(sorted.map(|(_, item)| item).collect())
}

/// `value | unique(case_sensitive=False, attribute=None)`
fn unique(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [case, attribute] = bind(&args.into_values(), ["case_sensitive", "attribute"])?;
    let mut seen = BTreeSet::new();
    let mut kept = Vec::new();
    for (key, item) in keyed(items(value)?, &attribute, flag(&case))? {
        let unhashable = |key: &&Value| {
            let is_list = matches!(key.kind(), ValueKind::Seq | ValueKind::Iterable);
            key.kind() == ValueKind::Map || (is_list && !key.is_tuple())
        };
        if let Some(key) = key.iter().find(unhashable) {
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
pub(super) struct Group {
    grouper: Value,
    list: Value,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let parts = [&self.grouper, &self.list];
        match key.as_str() {
            Some("grouper") => Some(self.grouper.clone()),
            Some("list") => Some(self.list.clone()),
            Some(_) => None,
            None => parts.get(key.as_usize()?).map(|part| (*part).clone()),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

/// `value | groupby(attribute, default=None, case_sensitive=False)`
fn group(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let names = ["attribute", "default", "case_sensitive"];
    let [attribute, default, case] = bind(&args.into_values(), names)?;
    if attribute.is_none() {
        return Err(fault("missing argument 'attribute'"));
    }
    let default = default.filter(|value| !value.is_none());
    let key_of = |item: &Value, is_case_sensitive: bool| {
        let mut keys = key(item, &attribute, is_case_sensitive)?;
        for part in &mut keys {
            if let Some(default) = default.as_ref().filter(|_| part.is_undefined()) {
                *part = default.clone();
            }
        }
        Ok::<_, Error>(keys)
    };
    let keyed: Result<Vec<_>, Error> = items(value)?
        .into_iter()
        .map(|item| Ok((key_of(&item, flag(&case))?, item)))
        .collect();
    let mut groups: Vec<(Vec<Value>, Vec<Value>)> = Vec::new();
    for (key, item) in sorted(keyed?, false)? {
        match groups.last_mut() {
            Some((last, list)) if *last == key => list.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let group = |(_, list): (_, Vec<Value>)| {
        let mut grouper = key_of(&list[0], true)?;
        Ok(Value::from_object(Group {
            grouper: match grouper.len() {
                1 => grouper.remove(0),
                _ => Value::from(Tuple::from(grouper)),
            },
            list: Value::from(list),
        }))
    };
    groups.into_iter().map(group).collect()
}

/// `value | dictsort(case_sensitive=False, by='key', reverse=False)`
fn dict_sort(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [case, by, reverse] = bind(&args.into_values(), ["case_sensitive", "by", "reverse"])?;
    let is_by_key = match by.as_ref().map(Value::as_str) {
        None | Some(Some("key")) => true,
        Some(Some("value")) => false,
        Some(_) => return Err(fault("You can only sort by either \"key\" or \"value\"")),
    };
    budget::walk(value, Walk::Read)?;
    budget::made(budget::size(value).saturating_mul(2))?;
    let pairs = entries(value)?.into_iter().map(|(name, item)| {
        let by = if is_by_key { &name } else { &item };
        let by = key(by, &None, flag(&case))?;
        Ok((by, Value::from(Tuple::from([name, item]))))
    });
    let pairs = sorted(pairs.collect::<Result<_, Error>>()?, flag(&reverse))?;
    Ok(pairs.into_iter().map(|(_, pair)| pair).collect())
}

fn count(given: &Option<Value>, name: &str) -> Result<usize, Error> {
    let n = optional_int(given, name)?.and_then(|n| usize::try_from(n).ok());
    n.filter(|n| *n > 0)
        .ok_or_else(|| fault(format!("`{name}` is no count")))
}

/// `value | batch(linecount, fill_with=None)`
fn batch(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [n, fill] = bind(&args.into_values(), ["linecount", "fill_with"])?;
    let n = count(&n, "linecount")?;
    let fill = fill.filter(|fill| !fill.is_none());
    let mut lines: Vec<Vec<Value>> = items(value)?.chunks(n).map(<[Value]>::to_vec).collect();
    if let (Some(last), Some(fill)) = (lines.last_mut(), fill) {
        budget::made(n.saturating_mul(ITEM))?;
        last.resize(n, fill);
    }
    Ok(lines.into_iter().map(Value::from).collect())
}

/// `value | slice(slices, fill_with=None)`
fn slice(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [n, fill] = bind(&args.into_values(), ["slices", "fill_with"])?;
    let n = count(&n, "slices")?;
    let fill = fill.filter(|fill| !fill.is_none());
    budget::made(n.saturating_mul(4 * ITEM))?;
    let items = items(value)?;
    let (each, n_longer) = (items.len() / n, items.len() % n);
    let mut rest = items.as_slice();
    let columns = (0..n).map(|i| {
        let (column, behind) = rest.split_at(each + usize::from(i < n_longer));
        rest = behind;
        let mut column = column.to_vec();
        column.extend(fill.clone().filter(|_| i >= n_longer));
        Value::from(column)
    });
    Ok(columns.collect())
}
