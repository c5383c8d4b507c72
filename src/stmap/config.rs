//! What the expressions of a map can ask: keys of `config.json`, defaults and named values of the
//! map, indices, and the shapes of stored tensors.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::arch::expr::{Expr, Scope, Value};
use crate::weights::safetensors::Checkpoint;

use super::definition::Map;

/// The configuration of a folder, as a map sees it.
pub(super) struct Config<'a> {
    map: &'a Map,
    json: &'a Json,
    checkpoint: &'a Checkpoint,
    /// Whether keys that it lacks may have values, so that nothing follows from their absence.
    is_partial: bool,
    /// Keys that were asked for.
    asked: RefCell<BTreeSet<String>>,
    /// Named values being evaluated, innermost last.
    open: RefCell<Vec<String>>,
}

/// A configuration with values for indices: `il`, `e`, `i`.
#[derive(Clone)]
pub(super) struct At<'a> {
    pub(super) config: &'a Config<'a>,
    pub(super) indices: Vec<(&'a str, u64)>,
}

impl<'a> Config<'a> {
    pub(super) fn new(map: &'a Map, json: &'a Json, checkpoint: &'a Checkpoint) -> Self {
        Self {
            map,
            json,
            checkpoint,
            is_partial: false,
            asked: RefCell::default(),
            open: RefCell::default(),
        }
    }

    /// The same where the configuration is only partly known, and no tensors are.
    pub(super) fn partial(map: &'a Map, json: &'a Json, checkpoint: &'a Checkpoint) -> Self {
        Self {
            is_partial: true,
            ..Self::new(map, json, checkpoint)
        }
    }

    /// Without indices.
    pub(super) fn plain(&'a self) -> At<'a> {
        At {
            config: self,
            indices: Vec::new(),
        }
    }

    /// The value of a key, or of the first of its aliases that has one. All of them are known then,
    /// be there a value or not.
    fn get(&self, key: &str) -> Option<&Json> {
        let aliases = self.map.aliases.iter().filter_map(|(name, others)| {
            let rest = key.strip_prefix(name.as_str())?;
            (rest.is_empty() || rest.starts_with('.')).then_some((rest, others))
        });
        let others =
            aliases.flat_map(|(rest, others)| others.iter().map(move |o| format!("{o}{rest}")));
        let mut found = self.find(key);
        for other in others {
            let value = self.find(&other);
            found = found.or(value);
        }
        found
    }

    /// The value of a key; dots lead into objects. What the map's `nested` object says comes first.
    /// `null` is no value.
    fn find(&self, key: &str) -> Option<&Json> {
        self.asked.borrow_mut().insert(key.to_owned());
        let find = |root| at(root, key).filter(|value| !value.is_null());
        self.nested().and_then(find).or_else(|| find(self.json))
    }

    /// The object whose keys come first.
    fn nested(&self) -> Option<&'a Json> {
        at(self.json, self.map.nested.as_deref()?)
    }

    /// Keys with values that nothing asked for, with those of objects that are not taken as a whole.
    pub(super) fn unused(&self) -> Vec<String> {
        let mut keys = Vec::new();
        if self.map.is_part {
            for (key, value) in self
                .nested()
                .and_then(Json::as_object)
                .into_iter()
                .flatten()
            {
                self.note_unused(key, value, &mut keys);
            }
            return keys;
        }
        for (key, value) in self.json.as_object().into_iter().flatten() {
            match (value, self.map.nested.as_deref()) {
                (Json::Object(inner), Some(name)) if name == key => {
                    for (key, value) in inner {
                        self.note_unused(key, value, &mut keys);
                    }
                }
                _ => self.note_unused(key, value, &mut keys),
            }
        }
        keys
    }

    fn note_unused(&self, key: &str, value: &Json, keys: &mut Vec<String>) {
        let asked = self.asked.borrow();
        if value.is_null() || asked.contains(key) {
            return;
        }
        let within = format!("{key}.");
        match value {
            // Where nobody asks for what is within, the object is what nobody asks for.
            Json::Object(fields) if asked.iter().any(|name| name.starts_with(&within)) => {
                for (field, value) in fields {
                    self.note_unused(&format!("{within}{field}"), value, keys);
                }
            }
            _ => keys.push(key.to_owned()),
        }
    }

    fn known(&self) -> Vec<String> {
        let keys = self.json.as_object().into_iter().flatten();
        let nested = self.nested().and_then(Json::as_object);
        let all = keys.chain(nested.into_iter().flatten());
        all.map(|(key, _)| key.clone()).collect()
    }

    fn named(&self, name: &str, at: &At<'_>) -> Result<Option<Value>, String> {
        let Some(expr) = self.map.values.get(name) else {
            return Ok(None);
        };
        if self.open.borrow().iter().any(|open| open == name) {
            return Err(format!("`{name}` depends on itself"));
        }
        self.open.borrow_mut().push(name.to_owned());
        let value = expr.evaluate(at);
        self.open.borrow_mut().pop();
        value
            .map(Some)
            .map_err(|error| format!("`{name}` = {expr}: {error}"))
    }
}

/// The value at a key; dots lead into objects.
pub(super) fn at<'j>(root: &'j Json, key: &str) -> Option<&'j Json> {
    key.split('.').try_fold(root, |at, part| at.get(part))
}

impl At<'_> {
    /// An expression over elements, with values for all but those names.
    pub(super) fn bind(&self, expr: &Expr, free: &[&str]) -> Result<Expr, String> {
        expr.bind(self, free, &|name| {
            self.config.map.values.get(name).cloned()
        })
    }

    /// The same with one more index.
    pub(super) fn with<'b>(&'b self, name: &'b str, value: u64) -> At<'b> {
        let mut indices = self.indices.clone();
        indices.push((name, value));
        At {
            config: self.config,
            indices,
        }
    }

    /// A size or an index.
    pub(super) fn size(&self, expr: &Expr) -> Result<u64, String> {
        match expr.evaluate(self)? {
            Value::Int(v) => {
                u64::try_from(v).map_err(|_| format!("`{expr}` is {v}, expected a size"))
            }
            other => Err(format!("`{expr}` is {other}, expected an integer")),
        }
    }

    pub(super) fn truth(&self, expr: &Expr) -> Result<bool, String> {
        match expr.evaluate(self)? {
            Value::Bool(v) => Ok(v),
            other => Err(format!("`{expr}` is {other}, expected true or false")),
        }
    }

    /// The element for the layer of an array; anything else as it is.
    fn of_layer(&self, name: &str, value: Value, whole: bool) -> Result<Value, String> {
        let Value::List(items) = &value else {
            return Ok(value);
        };
        let layer = self.indices.iter().find(|(index, _)| *index == "il");
        match layer {
            Some((_, il)) if !whole => items.get(*il as usize).cloned().ok_or_else(|| {
                format!(
                    "`{name}` has {} values and none for layer {il}",
                    items.len()
                )
            }),
            _ => Ok(value),
        }
    }
}

impl Scope for At<'_> {
    fn name(&self, name: &str, whole: bool) -> Result<Value, String> {
        if let Some((_, value)) = self.indices.iter().find(|(index, _)| *index == name) {
            return Ok(Value::Int(*value as i64));
        }
        if let Some(value) = self.config.named(name, self)? {
            return self.of_layer(name, value, whole);
        }
        if let Some(json) = self.config.get(name) {
            let value =
                convert(json).ok_or_else(|| format!("`{name}` is an object, which is no value"))?;
            return self.of_layer(name, value, whole);
        }
        let default = self.config.map.defaults.get(name);
        if let Some(default) = default.filter(|_| !self.config.is_partial) {
            return default.evaluate(self);
        }
        let known = self.config.known();
        let near = crate::arch::nearest(name, known.iter().map(String::as_str));
        let near = near
            .map(|near| format!("; it has `{near}`"))
            .unwrap_or_default();
        Err(format!("config.json has no `{name}`{near}"))
    }

    fn has(&self, key: &str) -> Result<bool, String> {
        let has_default = self.config.map.defaults.contains_key(key);
        let stored = filled(key, self);
        if self.config.is_partial && self.config.get(key).is_none() {
            return Err(format!("whether config.json has `{key}` is not known"));
        }
        Ok(has_default || self.config.get(key).is_some() || self.config.checkpoint.has(&stored))
    }

    fn dim(&self, tensor: &str, index: i64) -> Result<i64, String> {
        let name = filled(tensor, self);
        let stored = self.config.checkpoint.get(&name);
        let stored = stored.ok_or_else(|| format!("there is no tensor `{name}`"))?;
        let index = usize::try_from(index).map_err(|_| "a dimension is numbered from 0")?;
        Ok(stored
            .shape
            .iter()
            .rev()
            .nth(index)
            .map_or(1, |n| *n as i64))
    }

    fn count(&self, key: &str) -> Result<i64, String> {
        Ok(match self.config.get(key) {
            Some(Json::Array(items)) => items.len() as i64,
            _ => 0,
        })
    }
}

/// Key of the object that stands for a float which JSON has no notation for.
const FLOAT: &str = "__float__";

/// JSON as Python writes it: `Infinity` and `NaN` outside texts become objects that name them.
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
fn convert(json: &Json) -> Option<Value> {
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

/// The values of an object whose keys count from 0, which is how JSON writes Python's `{0: a, 1: b}`.
fn numbered(fields: &serde_json::Map<String, Json>) -> Option<Vec<Value>> {
    let values = (0..fields.len()).map(|i| convert(fields.get(&i.to_string())?));
    values.collect::<Option<_>>().filter(|_| !fields.is_empty())
}

/// A name with its indices filled in: `model.layers.{il}.mlp`.
pub(super) fn fill(template: &str, indices: &[(&str, u64)]) -> String {
    let mut out = template.to_owned();
    for (name, value) in indices {
        out = out.replace(&format!("{{{name}}}"), &value.to_string());
    }
    out
}

/// A pattern with the values of the expressions in its braces.
pub(super) fn filled(pattern: &str, at: &At<'_>) -> String {
    let mut out = String::new();
    let mut rest = pattern;
    while let Some((head, (inner, tail))) = rest
        .split_once('{')
        .and_then(|(head, tail)| Some((head, tail.split_once('}')?)))
    {
        let value = Expr::parse(inner, 0)
            .ok()
            .and_then(|expr| expr.evaluate(at).ok());
        out.push_str(head);
        match value {
            Some(value) => out.push_str(&value.to_string()),
            None => out.push_str(&format!("{{{inner}}}")),
        }
        rest = tail;
    }
    out + rest
}

/// Values by name.
pub(super) type Expressions = BTreeMap<String, Expr>;
