//! JSON of a configuration: Python's notation, conversion to values of the language, comparison, and access by paths.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::arch::expr::Value;

/// A value in a message, if it is short.
pub(super) fn shown(value: &Json) -> String {
    const MAX_CHARS: usize = 60;
    let text = value.to_string();
    match text.chars().count() > MAX_CHARS {
        true => "something longer".into(),
        false => text,
    }
}

/// The value at a key; dots lead into objects. For an array of objects it is the array of their values, with `null`
/// where an object has none; at least one object must have the key.
pub(super) fn at<'j>(root: &'j Json, key: &str) -> Option<Cow<'j, Json>> {
    let (head, rest) = key.split_once('.').unwrap_or((key, ""));
    let inner = match root {
        Json::Array(items) if items.iter().all(Json::is_object) => {
            let values: Vec<_> = items.iter().map(|item| at(item, key)).collect();
            values.iter().find(|value| value.is_some())?;
            let values = values
                .into_iter()
                .map(|v| v.map_or(Json::Null, Cow::into_owned));
            return Some(Cow::Owned(values.collect()));
        }
        _ => root.get(head)?,
    };
    match rest {
        "" => Some(Cow::Borrowed(inner)),
        rest => at(inner, rest),
    }
}

/// The object at a key; dots lead into objects.
pub(super) fn object<'j>(root: &'j Json, key: &str) -> Option<&'j Json> {
    key.split('.').try_fold(root, |at, part| at.get(part))
}

/// Sets the value at a key; dots lead into objects, which are made. A value on the way that is no object is kept.
pub(super) fn insert(root: &mut serde_json::Map<String, Json>, key: &str, value: Json) {
    let Some((head, rest)) = key.split_once('.') else {
        root.entry(key).or_insert(value);
        return;
    };
    let inner = root
        .entry(head)
        .or_insert_with(|| Json::Object(serde_json::Map::new()));
    if let Json::Object(inner) = inner {
        insert(inner, rest, value);
    }
}

/// A value of the language as JSON.
pub(super) fn to_json(value: &Value) -> Json {
    match value {
        Value::Bool(truth) => Json::from(*truth),
        Value::Int(number) => Json::from(*number),
        Value::Float(number) => Json::from(*number),
        Value::Str(text) => Json::from(text.as_str()),
        Value::List(items) => Json::Array(items.iter().map(to_json).collect()),
    }
}

/// The values of an object by their keys. For an array of objects they are arrays of the existing values.
pub(super) fn fields(value: &Json) -> BTreeMap<&str, Cow<'_, Json>> {
    let Json::Array(items) = value else {
        let fields = value.as_object().into_iter().flatten();
        return fields
            .map(|(key, value)| (key.as_str(), Cow::Borrowed(value)))
            .collect();
    };
    let mut columns: BTreeMap<&str, Vec<Json>> = BTreeMap::new();
    for (key, value) in items.iter().filter_map(Json::as_object).flatten() {
        columns.entry(key).or_default().push(value.clone());
    }
    let columns = columns.into_iter();
    columns
        .map(|(key, values)| (key, Cow::Owned(Json::Array(values))))
        .collect()
}

/// Whether a value is false, zero, empty, or consists only of such values.
pub(super) fn is_off(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Bool(true) => false,
        Json::Number(number) => number.as_f64() == Some(0.0),
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(fields) => fields.values().all(is_off),
    }
}

/// Whether two values are equal, whether they are written as integers, floats or booleans.
pub(super) fn is_same(a: &Value, b: &Value) -> bool {
    let number = |value: &Value| match value {
        Value::Int(v) => Some(*v as f64),
        Value::Float(v) => Some(*v),
        Value::Bool(v) => Some(f64::from(u8::from(*v))),
        _ => None,
    };
    match (a, b) {
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        // `a` stands for all elements.
        (one, Value::List(all)) => !all.is_empty() && all.iter().all(|item| is_same(one, item)),
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        },
    }
}

/// Key of the object that represents a float for which JSON has no notation.
const FLOAT: &str = "__float__";

/// JSON as Python writes it: `Infinity` and `NaN` outside strings become objects that name them.
pub(super) fn plain_json(text: &str) -> Cow<'_, str> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !WORDS.iter().any(|word| text.contains(word)) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 64);
    let (mut rest, mut is_text) = (text, false);
    while let Some(first) = rest.chars().next() {
        let word = WORDS
            .iter()
            .find(|word| !is_text && rest.starts_with(**word));
        if let Some(word) = word {
            out.push_str(&format!("{{\"{FLOAT}\": \"{word}\"}}"));
            rest = &rest[word.len()..];
            continue;
        }
        let escaped = (is_text && first == '\\')
            .then(|| rest.chars().nth(1))
            .flatten();
        let len = first.len_utf8() + escaped.map_or(0, char::len_utf8);
        is_text ^= first == '"';
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    out.into()
}

/// A JSON value as a value of the language.
pub(super) fn convert(json: &Json) -> Option<Value> {
    Some(match json {
        Json::Bool(v) => Value::Bool(*v),
        Json::Number(v) => match v.as_i64() {
            Some(v) => Value::Int(v),
            None => Value::Float(v.as_f64()?),
        },
        Json::String(v) => Value::Str(v.clone()),
        Json::Array(items) => Value::List(items.iter().map(convert).collect::<Option<_>>()?),
        Json::Object(fields) if !fields.contains_key(FLOAT) => Value::List(numbered(fields)?),
        Json::Object(fields) => match fields.get(FLOAT)?.as_str()? {
            "Infinity" => Value::Float(f64::INFINITY),
            "-Infinity" => Value::Float(f64::NEG_INFINITY),
            _ => return None,
        },
        Json::Null => return None,
    })
}

/// The values of an object whose keys count from 0: the JSON form of Python's `{0: a, 1: b}`.
fn numbered(fields: &serde_json::Map<String, Json>) -> Option<Vec<Value>> {
    let values = (0..fields.len()).map(|i| convert(fields.get(&i.to_string())?));
    values.collect::<Option<_>>().filter(|_| !fields.is_empty())
}
