//! The values that expressions can read of a model: parameters by name and layer, metadata, tensors, and the options of
//! their unit. Values are cached. A parameter that depends on itself is reported.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use super::{MAX_LAYERS, TensorSet};
use crate::arch::expr::{Scope, Value};
use crate::arch::{
    ArchDef, ContractUse, OF_FILE, OR, ParamSource, Presence, ResolvedOption, WeightRole,
    braced_param, fits_pattern, nearest,
};
use lab_base::weights::{Array, Metadata, Value as Meta};

/// Maximum number of elements of an array parameter.
const MAX_ELEMENTS: usize = MAX_LAYERS as usize;

/// The values that expressions can read: parameters, metadata and tensors, with a cache.
pub(super) struct FileFacts<'a> {
    pub(super) def: &'a ArchDef,
    pub(super) metadata: &'a Metadata,
    pub(super) tensors: &'a dyn TensorSet,
    /// Values of parameters by name and layer; a list has the element of the layer.
    pub(super) values: RefCell<HashMap<String, HashMap<Option<LayerIndex>, Value>>>,
    /// Values of parameters by name and layer; a list is whole.
    whole: RefCell<HashMap<String, HashMap<Option<LayerIndex>, Value>>>,
    /// Metadata values by key, converted to values of the language.
    converted: RefCell<HashMap<String, Option<Rc<Value>>>>,
    /// The metadata keys that were read.
    pub(super) keys: RefCell<BTreeSet<String>>,
    /// The parameters that are being evaluated, innermost last.
    pub(super) open: RefCell<Vec<String>>,
    /// Errors about missing metadata keys, by parameter.
    missing: RefCell<BTreeMap<String, String>>,
}

/// A layer of the plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LayerIndex {
    /// The stack of the layer.
    pub(super) stack: usize,
    /// The index of the layer in the stack.
    pub(super) depth: u64,
    /// The layer of the file that has the tensors and metadata; none until it is known.
    pub(super) il: Option<u64>,
}

/// A layer as a scope of expressions.
#[derive(Clone)]
pub(super) struct LayerScope<'a> {
    pub(super) facts: &'a FileFacts<'a>,
    /// The layer where values are read; none outside layers.
    pub(super) index: Option<LayerIndex>,
    pub(super) prefix: &'a str,
}

impl LayerScope<'_> {
    /// The layer of the file.
    fn il(&self) -> Option<u64> {
        self.index?.il
    }

    /// The full name of a tensor that a definition names in a layer. Of alternatives it is the first that the file has, or the last one.
    pub(super) fn tensor(&self, name: &str) -> String {
        let Some((first, others)) = name.split_once(OR) else {
            return self.whole_name(name);
        };
        let first = self.whole_name(first);
        match self.facts.tensors.has(&first, false) {
            true => first,
            false => self.tensor(others),
        }
    }

    fn whole_name(&self, name: &str) -> String {
        if let Some((before, param, after)) = braced_param(name)
            && let Ok(Value::Int(n)) = self.facts.param(param, self, false)
        {
            return self.whole_name(&format!("{before}{n}{after}"));
        }
        match name.strip_prefix(OF_FILE) {
            Some(of_file) => of_file.to_owned(),
            None => format!("{}{name}", self.prefix),
        }
    }
}

impl<'a> FileFacts<'a> {
    /// The scope outside layers.
    pub(super) fn global(&'a self) -> LayerScope<'a> {
        LayerScope {
            facts: self,
            index: None,
            prefix: "",
        }
    }

    pub(super) fn new(
        def: &'a ArchDef,
        metadata: &'a Metadata,
        tensors: &'a dyn TensorSet,
    ) -> Self {
        Self {
            def,
            metadata,
            tensors,
            values: RefCell::default(),
            whole: RefCell::default(),
            converted: RefCell::default(),
            keys: RefCell::default(),
            open: RefCell::default(),
            missing: RefCell::default(),
        }
    }

    pub(super) fn param(
        &self,
        name: &str,
        scope: &LayerScope<'_>,
        whole: bool,
    ) -> Result<Value, String> {
        let cache = if whole { &self.whole } else { &self.values };
        let known = |values: &HashMap<String, HashMap<Option<LayerIndex>, Value>>| {
            values.get(name)?.get(&scope.index).cloned()
        };
        if let Some(value) = known(&cache.borrow()) {
            return Ok(value);
        }
        let Some(param) = self.def.params.get(name) else {
            return Err(format!("unknown parameter `{name}`"));
        };
        if self.open.borrow().iter().any(|open| open == name) {
            return Err(format!("`{name}` depends on itself"));
        }
        if let ParamSource::Key { keys, absolute, .. } = &param.source {
            self.check_length(name, keys, *absolute)?;
        }
        self.open.borrow_mut().push(name.to_owned());
        let value = match &param.source {
            ParamSource::Derived(expr) => expr
                .evaluate(scope)
                .map(Rc::new)
                .map_err(|e| format!("`{name}` = {expr}: {e}")),
            ParamSource::Key {
                keys,
                absolute,
                default,
                zero_is_value,
                ..
            } => match self.keyed(name, keys, *absolute, *zero_is_value) {
                Some(value) => Ok(value),
                None => match default {
                    Some(default) => default.evaluate(scope).map(Rc::new),
                    None => {
                        let mut missing = self.missing.borrow_mut();
                        let message = missing.entry(name.to_owned());
                        let message =
                            message.or_insert_with(|| self.why_missing(name, keys, *absolute));
                        Err(message.clone())
                    }
                },
            },
        };
        self.open.borrow_mut().pop();
        let value = match &*value? {
            Value::List(items) if !whole => self.of_layer(name, items, scope)?,
            value => value.clone(),
        };
        let mut values = cache.borrow_mut();
        let of_name = values.entry(name.to_owned()).or_default();
        of_name.insert(scope.index, value.clone());
        Ok(value)
    }

    /// The element of a list for the current layer.
    fn of_layer(
        &self,
        name: &str,
        items: &[Value],
        scope: &LayerScope<'_>,
    ) -> Result<Value, String> {
        let n = items.len();
        let Some(il) = scope.il() else {
            return Err(format!(
                "`{name}` has a value for each layer and is read outside a layer"
            ));
        };
        let n_layers = self.n_layers();
        if n_layers.is_some_and(|n_layers| n as u64 > n_layers) {
            let n_layers = n_layers.unwrap_or_default();
            return Err(format!(
                "`{name}` has {n} values for the {n_layers} layers of the file"
            ));
        }
        let found = items.get(il as usize).cloned();
        found.ok_or_else(|| format!("`{name}` has {n} values and none for layer {il}"))
    }

    /// The file's number of layers, if stated; the larger one of two parts.
    fn n_layers(&self) -> Option<u64> {
        let counts = ["block_count", "decoder_block_count"].iter();
        let counts = counts.filter_map(|key| {
            let key = format!("{}.{key}", self.def.name);
            u64::try_from(self.metadata.i64(&key)?).ok()
        });
        counts.max()
    }

    /// The full name of a metadata key in the file.
    fn full(&self, key: &str, absolute: bool) -> String {
        match absolute {
            true => key.to_owned(),
            false => format!("{}.{key}", self.def.name),
        }
    }

    /// Refuses an array with more elements than the maximum number of layers.
    fn check_length(&self, name: &str, keys: &[String], absolute: bool) -> Result<(), String> {
        for key in keys.iter().map(|key| self.full(key, absolute)) {
            let n = self.metadata.array(&key).map_or(0, Array::len);
            if n > MAX_ELEMENTS {
                return Err(format!(
                    "the file has `{key}` (parameter `{name}`) as an array of {n} elements, expected at most {MAX_ELEMENTS}"
                ));
            }
        }
        Ok(())
    }

    fn keyed(
        &self,
        name: &str,
        keys: &[String],
        absolute: bool,
        zero_is_value: bool,
    ) -> Option<Rc<Value>> {
        keys.iter().find_map(|key| {
            let full = self.full(key, absolute);
            self.keys.borrow_mut().insert(full.clone());
            let value = self.converted(&full)?;
            tracing::trace!(param = name, key = full, %value, "parameter");
            (zero_is_value || !is_unset(&value)).then_some(value)
        })
    }

    /// The value of a metadata key, converted once.
    fn converted(&self, key: &str) -> Option<Rc<Value>> {
        if let Some(known) = self.converted.borrow().get(key) {
            return known.clone();
        }
        let value = self.metadata.get(key).and_then(convert).map(Rc::new);
        let mut all = self.converted.borrow_mut();
        all.insert(key.to_owned(), value.clone());
        value
    }

    /// Full names of the metadata keys of the architecture that were not read, may have a meaning and are not ignored
    /// by the definition, in the order of the file.
    pub(super) fn unread(&self) -> Vec<String> {
        // Evaluations below do not count as reading the file.
        let (keys, values) = (self.keys.take(), self.values.take());
        let prefix = format!("{}.", self.def.name);
        let unread = self.metadata.iter().filter(|(key, value)| {
            let Some(relative) = key.strip_prefix(&prefix) else {
                return false;
            };
            let ignored = self.def.ignore.keys.keys();
            let is_ignored = || ignored.into_iter().any(|p| fits_pattern(p, relative));
            !keys.contains(*key) && !is_ignored() && self.matters(relative, value)
        });
        let unread = unread.map(|(key, _)| key.to_owned()).collect();
        self.keys.replace(keys);
        self.values.replace(values);
        unread
    }

    /// Whether a file with this key has another meaning than a file without it.
    fn matters(&self, key: &str, value: &Meta) -> bool {
        let Some(value) = convert(value) else {
            return true;
        };
        let mut is_known = false;
        for param in self.def.params.values() {
            let ParamSource::Key {
                keys,
                absolute: false,
                default,
                zero_is_value,
                ..
            } = &param.source
            else {
                continue;
            };
            if !keys.iter().any(|known| known == key) {
                continue;
            }
            is_known = true;
            let others: Vec<_> = keys.iter().filter(|k| *k != key).cloned().collect();
            let other = self.keyed("", &others, false, *zero_is_value);
            let default = || default.as_ref()?.evaluate(&self.global()).ok().map(Rc::new);
            let without = other.or_else(default);
            let is_same = without.is_some_and(|without| is_same(&without, &value));
            if is_same || (!zero_is_value && is_unset(&value)) {
                return false;
            }
        }
        is_known || !(is_unset(&value) || is_empty(&value))
    }

    /// The message of a missing key in an error, if there is one.
    pub(super) fn missing_key(&self, error: &str) -> Option<String> {
        let missing = self.missing.borrow();
        let found = missing.values().find(|message| error.ends_with(*message));
        found.cloned()
    }

    /// The reason why a parameter without a default has no value.
    fn why_missing(&self, name: &str, keys: &[String], absolute: bool) -> String {
        let full = |key: &String| self.full(key, absolute);
        let there = keys.iter().map(full);
        let there = there.filter_map(|key| Some((self.metadata.get(&key)?, key)));
        if let Some((value, key)) = there.into_iter().next() {
            // The value is unset (only zeros) or cannot be used in expressions.
            let found = match convert(value) {
                Some(Value::List(items)) if items.is_empty() => {
                    "an empty list, which means not set"
                }
                Some(Value::List(_)) => "a list of 0, which means not set",
                Some(_) => "0, which means not set",
                None => "a value that no parameter can have",
            };
            return format!("the file has `{key}` (parameter `{name}`) as {found}");
        }
        let full = keys.first().map(full).unwrap_or_default();
        let near = || nearest(&full, self.metadata.iter().map(|(key, _)| key));
        let hint = match self.tensors.origin(&full) {
            Some(origin) => format!("; {origin}"),
            None => near().map_or(String::new(), |near| format!("; the file has `{near}`")),
        };
        format!("missing metadata key `{full}` (parameter `{name}`){hint}")
    }
}

/// Whether a value is zero, or a list of zeros.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Int(v) => *v == 0,
        Value::Float(v) => *v == 0.0,
        Value::List(items) => items.iter().all(is_unset),
        Value::Bool(_) | Value::Str(_) => false,
    }
}

/// Whether a value is false, an empty text, or a list of such values.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Bool(v) => !v,
        Value::Str(text) => text.is_empty(),
        Value::List(items) => items.iter().all(is_empty),
        Value::Int(_) | Value::Float(_) => false,
    }
}

/// Whether two values are equal; a list of equal items equals one of them.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Int(a), Value::Float(b)) | (Value::Float(b), Value::Int(a)) => *a as f64 == *b,
        (Value::List(a), Value::List(b)) => a == b,
        (one, Value::List(items)) | (Value::List(items), one) => {
            items.iter().all(|item| is_same(item, one))
        }
        (a, b) => a == b,
    }
}

/// A metadata value as a value of the language. Arrays of strings, and arrays longer than the maximum number of layers,
/// have none.
pub(super) fn convert(value: &Meta) -> Option<Value> {
    Some(match value {
        Meta::Bool(v) => Value::Bool(*v),
        Meta::Str(v) => Value::Str(v.clone()),
        Meta::F32(v) => Value::Float(shortest(*v)),
        Meta::F64(v) => Value::Float(*v),
        Meta::Array(Array::Str(_)) => return None,
        Meta::Array(array) if array.len() > MAX_ELEMENTS => return None,
        Meta::Array(array) => Value::List(
            (0..array.len())
                .map(|i| convert(&array.get(i)?))
                .collect::<Option<_>>()?,
        ),
        integer => Value::Int(integer.as_i64()?),
    })
}

/// The shortest decimal that reads back as the same f32: 1e-6 stays 1e-6 in print, and its conversion to f32 gives the
/// stored bits.
pub(super) fn shortest(v: f32) -> f64 {
    v.to_string().parse().unwrap_or(f64::from(v))
}

impl Scope for LayerScope<'_> {
    fn name(&self, name: &str, whole: bool) -> Result<Value, String> {
        let index = match name {
            "il" => self.il(),
            "depth" => self.index.map(|index| index.depth),
            _ => return self.facts.param(name, self, whole),
        };
        let index = index.ok_or_else(|| format!("`{name}` has no value outside a layer"))?;
        Ok(Value::Int(index as i64))
    }

    fn has(&self, weight: &str) -> Result<bool, String> {
        let local = self.tensor(weight);
        Ok(self.facts.tensors.has(&local, false) || self.facts.tensors.has(weight, false))
    }

    fn dim(&self, weight: &str, index: i64) -> Result<i64, String> {
        let local = self.tensor(weight);
        let stored = self
            .facts
            .tensors
            .stored(&local)
            .or_else(|| self.facts.tensors.stored(weight));
        let Some((_, shape, _)) = stored else {
            if !self.facts.tensors.is_file() {
                return Ok(0);
            }
            return Err(format!("there is no tensor `{local}`"));
        };
        let index = usize::try_from(index).map_err(|_| "a dimension is numbered from 0")?;
        Ok(shape.get(index).map_or(1, |n| *n as i64))
    }

    fn count(&self, key: &str) -> Result<i64, String> {
        let facts = self.facts;
        let relative = format!("{}.{key}", facts.def.name);
        let array = facts.metadata.array(&relative);
        let array = array.or_else(|| facts.metadata.array(key));
        facts.keys.borrow_mut().insert(relative);
        Ok(array.map_or(0, |array| array.len() as i64))
    }
}

/// The scope of a contract's expressions at one use: the options first, then the layer.
pub(super) struct UnitScope<'a> {
    pub(super) layer: &'a LayerScope<'a>,
    pub(super) instance: &'a ContractUse,
    /// The options resolved so far, in the order of the contract.
    pub(super) options: &'a [ResolvedOption],
    /// Names whose values come from the place of use, such as a norm's width.
    pub(super) given: &'a [(&'static str, u64)],
}

impl UnitScope<'_> {
    /// The number that all ids in a weight of this role are below; none if the weight has no ids.
    pub(super) fn ids_below(&self, role: WeightRole) -> Option<u64> {
        let WeightRole::Ids(option) = role else {
            return None;
        };
        let mut options = self.instance.contract.options.iter().zip(self.options);
        match options.find(|(spec, _)| spec.name == option) {
            Some((_, ResolvedOption::Int(below))) => Some(*below),
            // Without a bound every id is refused.
            _ => Some(0),
        }
    }
}

impl Scope for UnitScope<'_> {
    fn name(&self, name: &str, whole: bool) -> Result<Value, String> {
        if let Some((_, value)) = self.given.iter().find(|(given, _)| *given == name) {
            return Ok(Value::Int(*value as i64));
        }
        let specs = self.instance.contract.options;
        // A default reads only the options before its own; in `causal = "causal"` the name is the parameter.
        match specs
            .iter()
            .position(|o| o.name == name)
            .and_then(|at| self.options.get(at))
        {
            Some(option) => Ok(option.to_value()),
            None => self.layer.name(name, whole),
        }
    }

    fn has(&self, key: &str) -> Result<bool, String> {
        let specs = self.instance.contract.weights;
        let Some(at) = specs.iter().position(|w| w.key == key) else {
            return self.layer.has(key);
        };
        let weight = &self.instance.weights[at];
        if weight.presence == Presence::Forbidden {
            return Ok(false);
        }
        let name = self.layer.tensor(&weight.tensor);
        Ok(self
            .layer
            .facts
            .tensors
            .has(&name, weight.presence == Presence::Required))
    }

    fn dim(&self, key: &str, index: i64) -> Result<i64, String> {
        let specs = self.instance.contract.weights;
        match specs.iter().position(|w| w.key == key) {
            Some(at) => self.layer.dim(&self.instance.weights[at].tensor, index),
            None => self.layer.dim(key, index),
        }
    }

    fn count(&self, key: &str) -> Result<i64, String> {
        self.layer.count(key)
    }
}

/// A scope in which the name of a list gives the whole list, not the element of a layer.
pub(super) struct WholeLists<'a>(pub(super) &'a LayerScope<'a>);

impl Scope for WholeLists<'_> {
    fn name(&self, name: &str, _: bool) -> Result<Value, String> {
        self.0.name(name, true)
    }

    fn has(&self, weight: &str) -> Result<bool, String> {
        self.0.has(weight)
    }

    fn dim(&self, weight: &str, index: i64) -> Result<i64, String> {
        self.0.dim(weight, index)
    }

    fn count(&self, key: &str) -> Result<i64, String> {
        self.0.count(key)
    }
}
