//! The names that expressions of a map can use: keys of `config.json`, defaults and named values of the map, indices,
//! and the shapes of stored tensors.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Deref;
use std::rc::Rc;

use serde_json::Value as Json;

use crate::arch::expr::{Expr, Scope, Value};
use crate::arch::fits_pattern;
use lab_base::weights::safetensors::{Checkpoint, StoredTensor};

use super::definition::Map;
use super::json::{at, convert, is_same, shown};

mod unread;

/// The configuration of a folder, as the expressions of a map read it.
pub(super) struct Config<'a> {
    map: &'a Map,
    json: &'a Json,
    pub(super) checkpoint: &'a Checkpoint,
    /// The possible prefixes that the stored names have.
    before: BTreeSet<&'a str>,
    /// Whether the configuration is known only in part, so that a key may be missing without being absent.
    is_partial: bool,
    /// The keys that were read.
    read: RefCell<BTreeSet<String>>,
    /// Values that were gathered from the objects of an array, by their keys. They are gathered once, not for each
    /// layer.
    gathered: RefCell<HashMap<String, Rc<Json>>>,
    /// The keys whose places were compared.
    compared: RefCell<BTreeSet<String>>,
    /// Places of one key with different values: by the unused place, the message and the used place.
    conflicts: RefCell<BTreeMap<String, (String, String)>>,
    /// The named values that are being evaluated, innermost last.
    open: RefCell<Vec<String>>,
    /// Evaluated values by name and indices, since one value may occur many times in others.
    known: RefCell<HashMap<String, Value>>,
}

/// The name that stands for the ending of the folder's class, of those in `[endings]`.
const CLASS_ENDING: &str = "class_ending";
/// The index of stored tensors that are counted.
const NUMBER: &str = "i";
/// Maximum length of a chain of named values that follow from each other.
const MAX_CHAIN: usize = 32;
/// Maximum number of elements of an array in a pattern, above the number of layers of any model.
const MAX_PATTERNS: usize = 1024;
/// Maximum number of evaluated values that are stored.
const MAX_KNOWN: usize = 1 << 16;

/// The value of a key.
#[derive(Clone)]
pub(super) enum ConfigValue<'a> {
    InPlace(&'a Json),
    /// An array of the values in the objects of an array.
    Gathered(Rc<Json>),
}

impl<'a> From<Cow<'a, Json>> for ConfigValue<'a> {
    fn from(value: Cow<'a, Json>) -> Self {
        match value {
            Cow::Borrowed(value) => Self::InPlace(value),
            Cow::Owned(value) => Self::Gathered(value.into()),
        }
    }
}

impl Deref for ConfigValue<'_> {
    type Target = Json;

    fn deref(&self) -> &Json {
        match self {
            Self::InPlace(value) => value,
            Self::Gathered(value) => value,
        }
    }
}

/// The prefix of a map's names in a folder.
#[derive(Clone, Copy)]
pub(super) struct NameRoot<'a> {
    before: &'a str,
    /// Whether the prefix replaces that in the map's names.
    is_other: bool,
}

/// A configuration with values for indices: `il`, `e`, `i`.
#[derive(Clone)]
pub(super) struct ConfigScope<'a> {
    pub(super) config: &'a Config<'a>,
    pub(super) indices: Vec<(&'a str, u64)>,
}

impl<'a> Config<'a> {
    pub(super) fn new(map: &'a Map, json: &'a Json, checkpoint: &'a Checkpoint) -> Self {
        Self {
            map,
            json,
            checkpoint,
            before: checkpoint
                .tensors()
                .map(|(name, _)| &name[..name.len() - bare(&map.prefixes, name).len()])
                .collect(),
            is_partial: false,
            read: RefCell::default(),
            gathered: RefCell::default(),
            compared: RefCell::default(),
            conflicts: RefCell::default(),
            open: RefCell::default(),
            known: RefCell::default(),
        }
    }

    /// A configuration that is known only in part, with no tensors.
    pub(super) fn partial(map: &'a Map, json: &'a Json, checkpoint: &'a Checkpoint) -> Self {
        Self {
            is_partial: true,
            ..Self::new(map, json, checkpoint)
        }
    }

    /// The configuration without indices.
    pub(super) fn plain(&'a self) -> ConfigScope<'a> {
        ConfigScope {
            config: self,
            indices: Vec::new(),
        }
    }

    /// The architecture to which the map leads for this folder.
    pub(super) fn arch(&self) -> Result<String, String> {
        let arch = &self.map.arch.as_ref().ok_or("the map has none")?.value;
        match arch.evaluate(&self.plain())? {
            Value::Str(name) => Ok(name),
            other => Err(format!("`{arch}` is {other}, expected a name")),
        }
    }

    /// The value of a key, at the first of its places that has one; dots lead into objects. The map's `nested` object
    /// comes first. `null` is not a value. All places are recorded as read, whether they have a value or not.
    fn get(&self, key: &str) -> Option<ConfigValue<'a>> {
        if let Some(value) = self.gathered.borrow().get(key) {
            return Some(ConfigValue::Gathered(Rc::clone(value)));
        }
        let places = self.places(key);
        let objects = self.objects(key).into_iter().flatten();
        let found = objects
            .map(|object| {
                let values = places.iter().filter_map(|place| {
                    let value = at(object, place).filter(|value| !value.is_null())?;
                    Some((place.as_str(), value))
                });
                values.collect::<Vec<_>>()
            })
            .find(|found| !found.is_empty());
        self.read.borrow_mut().extend(places.iter().cloned());
        let found = found?;
        if found.len() > 1 && self.compared.borrow_mut().insert(key.to_owned()) {
            self.note_conflicts(&found);
        }
        let value = found.into_iter().next().map(|(_, value)| value.into());
        if let Some(ConfigValue::Gathered(value)) = &value {
            let mut gathered = self.gathered.borrow_mut();
            gathered.insert(key.to_owned(), Rc::clone(value));
        }
        value
    }

    /// Records the places of a key whose values differ from that of the first place, which is used.
    fn note_conflicts(&self, found: &[(&str, Cow<'_, Json>)]) {
        let Some(((used, value), others)) = found.split_first() else {
            return;
        };
        for (other, its) in others {
            let is_object = value.is_object() || its.is_object();
            let is_equal = match (convert(value), convert(its)) {
                (Some(a), Some(b)) => is_same(&a, &b) || is_same(&b, &a),
                _ => value == its,
            };
            if !is_object && !is_equal {
                let text = format!(
                    "`{used}` is {} and `{other}` is {}",
                    shown(value),
                    shown(its)
                );
                let mut conflicts = self.conflicts.borrow_mut();
                conflicts.insert((*other).to_owned(), (text, (*used).to_owned()));
            }
        }
    }

    /// Messages about places of one key with different values, without the places that the map ignores.
    pub(super) fn conflicts(&self, is_ignored: impl Fn(&str) -> bool) -> Vec<String> {
        let conflicts = self.conflicts.borrow();
        let differing = conflicts.iter().filter(|(other, _)| !is_ignored(other));
        differing
            .map(|(_, (text, used))| format!("{text}: `{used}` is used"))
            .collect()
    }

    /// The places of a key in the order in which they are tried: the key, then its aliases. If the list of aliases
    /// contains the key, its place there counts.
    fn places(&self, key: &str) -> Vec<String> {
        let mut places = vec![key.to_owned()];
        // Shorter names come first: they are names of objects.
        for (name, others) in &self.map.aliases {
            let Some(rest) = key.strip_prefix(name.as_str()) else {
                continue;
            };
            if !rest.is_empty() && !rest.starts_with('.') {
                continue;
            }
            let outer = std::mem::take(&mut places);
            let has_itself = others.contains(name);
            if !has_itself {
                places.clone_from(&outer);
            }
            for other in others {
                match other == name {
                    true => places.extend(outer.iter().cloned()),
                    false => places.push(format!("{other}{rest}")),
                }
            }
        }
        places
    }

    /// The objects that may have a key, in their order: by default the nested object, then the whole configuration.
    fn objects(&self, key: &str) -> [Option<&'a Json>; 2] {
        match self.map.outer.iter().any(|outer| outer == key) {
            true => [Some(self.json), self.nested()],
            false => [self.nested(), Some(self.json)],
        }
    }

    /// Whether a key, or one of its aliases, is present and `null`.
    fn is_null(&self, key: &str) -> bool {
        let is_null = |key: &str| {
            let mut objects = self.objects(key).into_iter().flatten();
            objects
                .find_map(|object| at(object, key))
                .is_some_and(|value| value.is_null())
        };
        self.places(key).iter().any(|place| is_null(place))
    }

    /// The default of a key without a value, which depends on whether the key is `null` or absent.
    fn fallback(&self, key: &str) -> Option<&Expr> {
        let fallback = self.map.defaults.get(key)?;
        match self.is_null(key) {
            true => fallback.null.as_ref(),
            false => fallback.absent.as_ref(),
        }
    }

    /// The nested object, whose keys come first.
    fn nested(&self) -> Option<&'a Json> {
        Some(self.map.nested_in(self.json)?.1)
    }

    /// The roots of stored names, in the order in which they are tried.
    pub(super) fn roots(&'a self) -> impl Iterator<Item = NameRoot<'a>> {
        let own = self.map.roots.iter().map(|before| NameRoot {
            before,
            is_other: false,
        });
        let others = self.before.iter().map(|before| NameRoot {
            before,
            is_other: true,
        });
        own.chain(others)
    }

    /// The stored name of a map's name under a root.
    pub(super) fn name_under(&self, root: NameRoot<'_>, name: &str) -> String {
        match root.is_other {
            true => format!("{}{}", root.before, self.bare(name)),
            false => format!("{}{name}", root.before),
        }
    }

    /// A stored tensor by its name in the map, with its stored name.
    pub(super) fn stored(&self, name: &str) -> Option<(String, &StoredTensor)> {
        let exact = self.checkpoint.get(name);
        let exact = exact.map(|stored| (name.to_owned(), stored));
        exact.or_else(|| {
            self.roots().find_map(|root| {
                let name = self.name_under(root, name);
                let stored = self.checkpoint.get(&name)?;
                Some((name, stored))
            })
        })
    }

    /// A name without its possible prefixes.
    pub(super) fn bare<'n>(&self, name: &'n str) -> &'n str {
        bare(&self.map.prefixes, name)
    }

    /// The patterns of stored names for a pattern of the map: one, or one for each element if the value in its braces
    /// is an array.
    pub(super) fn patterns(&self, pattern: &str) -> Vec<String> {
        let plain = self.plain();
        let list = match braced(pattern)
            .map(|(head, inner, tail)| (head, value_of(inner, &plain), tail))
        {
            Some((head, Some(Value::List(items)), tail)) if items.len() <= MAX_PATTERNS => items
                .iter()
                .map(|item| format!("{head}{item}{tail}"))
                .collect(),
            _ => vec![pattern.to_owned()],
        };
        list.iter()
            .map(|pattern| fill_expressions(pattern, &plain))
            .collect()
    }

    /// Whether a stored name fits one of the patterns.
    pub(super) fn fits(&self, patterns: &[String], name: &str) -> bool {
        patterns.iter().any(|pattern| {
            fits_pattern(pattern, name) || fits_pattern(self.bare(pattern), self.bare(name))
        })
    }

    /// The value of a key that was read.
    pub(super) fn value_if_read(&self, key: &str) -> Option<ConfigValue<'a>> {
        let is_read = self.read.borrow().contains(key);
        is_read.then(|| self.get(key)).flatten()
    }

    /// The ending of the folder's class that `[endings]` lists; empty if it lists none.
    fn class_ending(&self) -> &'a str {
        let names = self.json.get("architectures").and_then(Json::as_array);
        let mut names = names.into_iter().flatten().filter_map(Json::as_str);
        let endings = self.map.endings.keys().map(String::as_str);
        let of = |class: &str| endings.clone().find(|ending| class.ends_with(ending));
        names.find_map(of).unwrap_or_default()
    }

    /// The key of the configuration that is most like this one.
    pub(super) fn alike(&self, key: &str) -> Option<String> {
        let last = |name: &str| {
            let word = name.rsplit(['.', '_']).next().unwrap_or_default();
            word.trim_end_matches('s').to_owned()
        };
        let known = self.known();
        let near = crate::arch::nearest(key, known.iter().map(String::as_str)).map(str::to_owned);
        near.or_else(|| known.into_iter().find(|name| last(name) == last(key)))
    }

    fn known(&self) -> Vec<String> {
        let keys = self.json.as_object().into_iter().flatten();
        let nested = self.nested().and_then(Json::as_object);
        let all = keys.chain(nested.into_iter().flatten());
        all.map(|(key, _)| key.clone()).collect()
    }

    fn named(&self, name: &str, at: &ConfigScope<'_>) -> Result<Option<Value>, String> {
        let value = self.map.values.get(name);
        let value = value.map(|expr| self.once(name, expr, at));
        value.transpose()
    }

    /// The value of a named value, evaluated once.
    fn once(&self, name: &str, expr: &Expr, at: &ConfigScope<'_>) -> Result<Value, String> {
        let place = format!("{name} {:?}", at.indices);
        if let Some(known) = self.known.borrow().get(&place) {
            return Ok(known.clone());
        }
        if self.open.borrow().iter().any(|open| open == name) {
            return Err(format!("`{name}` depends on itself"));
        }
        if self.open.borrow().len() == MAX_CHAIN {
            return Err(format!(
                "more than {MAX_CHAIN} values that follow from each other"
            ));
        }
        self.open.borrow_mut().push(name.to_owned());
        let value = expr.evaluate(at);
        self.open.borrow_mut().pop();
        let value = value.map_err(|error| format!("`{name}` = {expr}: {error}"))?;
        let mut known = self.known.borrow_mut();
        if known.len() < MAX_KNOWN {
            known.insert(place, value.clone());
        }
        Ok(value)
    }
}

impl ConfigScope<'_> {
    /// An expression over elements, in which all names but the `free` ones have their values.
    pub(super) fn bind(&self, expr: &Expr, free: &[&str]) -> Result<Expr, String> {
        expr.bind(self, free, &|name| {
            self.config.map.values.get(name).cloned()
        })
    }

    /// The same configuration with one more index.
    pub(super) fn with<'b>(&'b self, name: &'b str, value: u64) -> ConfigScope<'b> {
        let mut indices = self.indices.clone();
        indices.push((name, value));
        ConfigScope {
            config: self.config,
            indices,
        }
    }

    /// A size or an index, by an expression.
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

    /// Number of stored tensors of a name in which `i` counts from 0, up to the first that is absent. An adapter alone stores none.
    fn count_stored(&self, template: &str) -> i64 {
        let stored = |i: &u64| {
            let name = fill_expressions(template, &self.with(NUMBER, *i));
            self.config.stored(&name).is_some() || self.config.checkpoint.has(&name)
        };
        let most = self.config.checkpoint.tensors().count() as u64;
        (0..most).take_while(stored).count() as i64
    }

    fn layer(&self) -> Option<usize> {
        let layer = self.indices.iter().find(|(index, _)| *index == "il");
        layer.map(|(_, il)| *il as usize)
    }

    /// The value of a key. An array may have elements without a value; this is an error only for their own layers.
    fn of_key(&self, name: &str, json: &Json, whole: bool) -> Result<Value, String> {
        let own = self.layer().filter(|_| !whole);
        // Converts only the layer's element, not the whole array for each layer.
        if let Some(value) = own.and_then(|il| convert(json.get(il)?)) {
            return Ok(value);
        }
        if let Some(value) = convert(json) {
            return self.of_layer(name, value, whole);
        }
        Err(match (json, self.layer()) {
            (Json::Array(_), Some(il)) if !whole => format!("`{name}` has no value for layer {il}"),
            (Json::Array(_), _) => format!("`{name}` has elements without a value"),
            _ => format!("`{name}` is an object, not a value"),
        })
    }

    /// The element of an array for the current layer; any other value is returned unchanged.
    fn of_layer(&self, name: &str, value: Value, whole: bool) -> Result<Value, String> {
        let Value::List(items) = &value else {
            return Ok(value);
        };
        match self.layer() {
            Some(il) if !whole => items.get(il).cloned().ok_or_else(|| {
                format!(
                    "`{name}` has {} values and none for layer {il}",
                    items.len()
                )
            }),
            _ => Ok(value),
        }
    }
}

impl Scope for ConfigScope<'_> {
    fn name(&self, name: &str, whole: bool) -> Result<Value, String> {
        if let Some((_, value)) = self.indices.iter().find(|(index, _)| *index == name) {
            return Ok(Value::Int(*value as i64));
        }
        if name == CLASS_ENDING {
            return Ok(Value::Str(self.config.class_ending().to_owned()));
        }
        if let Some(value) = self.config.named(name, self)? {
            return self.of_layer(name, value, whole);
        }
        if let Some(json) = self.config.get(name) {
            return self.of_key(name, &json, whole);
        }
        let default = self.config.fallback(name);
        if let Some(default) = default.filter(|_| !self.config.is_partial) {
            return self.config.once(name, default, self);
        }
        let known = self.config.known();
        let near = crate::arch::nearest(name, known.iter().map(String::as_str));
        let near = near
            .map(|near| format!("; it has `{near}`"))
            .unwrap_or_default();
        let file = self.config.map.configuration;
        Err(format!("{file} has no `{name}`{near}"))
    }

    fn has(&self, key: &str) -> Result<bool, String> {
        if self.config.is_partial && self.config.get(key).is_none() {
            let file = self.config.map.configuration;
            return Err(format!("whether {file} has `{key}` is not known"));
        }
        let is_known = self.config.get(key).is_some() || self.config.fallback(key).is_some();
        if is_known {
            return Ok(true);
        }
        let stored = fill_expressions(key, self);
        Ok(self.config.stored(&stored).is_some() || self.config.checkpoint.has(&stored))
    }

    fn dim(&self, tensor: &str, index: i64) -> Result<i64, String> {
        let name = fill_expressions(tensor, self);
        let (_, stored) = self
            .config
            .stored(&name)
            .ok_or_else(|| format!("there is no tensor `{name}`"))?;
        let index = usize::try_from(index).map_err(|_| "a dimension is numbered from 0")?;
        Ok(stored
            .shape
            .iter()
            .rev()
            .nth(index)
            .map_or(1, |n| *n as i64))
    }

    fn count(&self, key: &str) -> Result<i64, String> {
        if key.contains('{') {
            return Ok(self.count_stored(key));
        }
        Ok(match self.config.get(key).as_deref() {
            Some(Json::Array(items)) => items.len() as i64,
            _ => 0,
        })
    }
}

/// A name without the prefixes that it may have.
fn bare<'n>(prefixes: &[String], name: &'n str) -> &'n str {
    let mut rest = name;
    while let Some(shorter) = prefixes
        .iter()
        .filter(|prefix| !prefix.is_empty())
        .find_map(|prefix| rest.strip_prefix(prefix.as_str()))
    {
        rest = shorter;
    }
    rest
}

/// A name with the values of its indices: `model.layers.{il}.mlp`.
pub(super) fn fill_indices(template: &str, indices: &[(&str, u64)]) -> String {
    let mut out = template.to_owned();
    for (name, value) in indices {
        out = out.replace(&format!("{{{name}}}"), &value.to_string());
    }
    out
}

/// The parts of a pattern before the first braces, in them and after them.
fn braced(pattern: &str) -> Option<(&str, &str, &str)> {
    let (head, tail) = pattern.split_once('{')?;
    let (inner, tail) = tail.split_once('}')?;
    Some((head, inner, tail))
}

/// The value of the expression in braces, if it has one.
fn value_of(inner: &str, at: &ConfigScope<'_>) -> Option<Value> {
    Expr::parse(inner, 0).ok()?.evaluate(at).ok()
}

/// A pattern with the values of the expressions in its braces.
pub(super) fn fill_expressions(pattern: &str, at: &ConfigScope<'_>) -> String {
    let mut out = String::new();
    let mut rest = pattern;
    while let Some((head, inner, tail)) = braced(rest) {
        out.push_str(head);
        match value_of(inner, at) {
            Some(value) => out.push_str(&value.to_string()),
            None => out.push_str(&format!("{{{inner}}}")),
        }
        rest = tail;
    }
    out + rest
}
