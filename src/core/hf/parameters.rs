//! Makes the parameters of an architecture, and further metadata, by a map.

use std::collections::{BTreeMap, BTreeSet};

use crate::arch::expr::{Expr, Scope, Value};
use crate::arch::{ArchDef, Diagnostic, ParamSource, Spanned};

use super::MAX_LISTED;
use super::apply::MapApplication;
use super::config::{ConfigScope, fill_expressions};
use super::definition::{Map, ParamRule, ParamValue};
use super::json::{insert, to_json};
use super::recipe::number;
use super::tied::bytes_of;
use super::values::{is_float, stored_integers, to_meta};

/// Maximum number of elements of a stored tensor that become metadata.
const MAX_STORED: u64 = 1 << 16;

impl MapApplication<'_> {
    pub(super) fn rules(&mut self, map: &Map) {
        for rule in &map.rules {
            match self.config.plain().truth(&rule.holds) {
                Ok(true) => {}
                Ok(false) => self.report(
                    &rule.span,
                    format!(
                        "the map is for folders with {}{}",
                        rule.holds,
                        self.found(&rule.holds)
                    ),
                ),
                Err(error) => self.report(&rule.span, error),
            }
        }
    }

    /// Logs the map's warnings about parts that are not computed.
    pub(super) fn notes(&mut self, map: &Map) {
        for (text, note) in &map.notes {
            match self.config.plain().truth(&note.holds) {
                Ok(true) => tracing::warn!("{}", fill_expressions(text, &self.config.plain())),
                Ok(false) => {}
                Err(error) => self.report(&note.span, error),
            }
        }
    }

    /// The values of an expression's names, for messages.
    pub(super) fn found(&self, expr: &Expr) -> String {
        let mut found = BTreeMap::new();
        expr.for_each_name(&mut |name, _| {
            if let Ok(value) = self.config.plain().name(name, true) {
                found.insert(name.to_owned(), value);
            }
        });
        found.retain(|_, value| !matches!(value, Value::List(items) if items.len() > MAX_LISTED));
        let found = found
            .iter()
            .map(|(name, value)| format!("; {name} is `{value}`"));
        found.collect()
    }

    /// Sets parameters and further metadata. Those of an earlier map take precedence.
    pub(super) fn targets(&mut self, map: &Map) {
        let earlier: BTreeSet<String> = self.metadata.iter().map(|(key, _)| key.into()).collect();
        for target in &map.params {
            if !self.params.insert(target.name.value.clone()) {
                continue;
            }
            let key = match key_of(target, self.def) {
                Ok(Some(key)) => key,
                Ok(None) => continue,
                Err(problem) => {
                    self.problems[self.at].push(problem);
                    continue;
                }
            };
            if earlier.contains(&key) {
                continue;
            }
            let is_float = is_float(self.def, &target.name.value);
            self.target(target, key, is_float);
        }
        for target in &map.metadata {
            let key = target.name.value.replace("{arch}", &self.def.name);
            if !earlier.contains(&key) {
                self.target(target, key, false);
            }
        }
    }

    /// States what configuration files of a processor would say. Statements of an earlier map take precedence.
    pub(super) fn processor(&mut self, map: &Map) {
        for target in &map.processor {
            match self.value(target) {
                Ok(None) => {}
                Ok(Some(value)) => {
                    insert(&mut self.processor, &target.name.value, to_json(&value));
                }
                Err(error) => self.report(&target.name.span, error),
            }
        }
    }

    fn target(&mut self, target: &ParamRule, key: String, is_float: bool) {
        let is_stored = matches!(target.value, ParamValue::Stored(_)) && !is_float;
        let stored = |value| is_stored.then(|| stored_integers(value)).flatten();
        match self.value(target) {
            Ok(None) => self.note_unset(target, key),
            Ok(Some(value)) => match stored(&value).or_else(|| to_meta(&value, is_float)) {
                Some(value) => self.metadata.insert(key, value),
                None => self.report(
                    &target.name.span,
                    format!("{value} cannot be stored as metadata"),
                ),
            },
            Err(error) => self.report(&target.name.span, error),
        }
    }

    fn value(&self, target: &ParamRule) -> Result<Option<Value>, String> {
        let given: &[Expr] = match &target.value {
            ParamValue::One(expr) => std::slice::from_ref(expr),
            ParamValue::List(exprs) => exprs,
            ParamValue::Stored(_) => &[],
        };
        let is_known = || {
            target
                .when
                .iter()
                .chain(given)
                .all(|expr| self.is_known(expr))
        };
        if target.is_optional && !is_known() {
            return Ok(None);
        }
        let at = self.config.plain();
        if let Some(when) = &target.when
            && !at.truth(when)?
        {
            return Ok(None);
        }
        if !target.per_layer {
            return self.given(&target.value, &at).map(Some);
        }
        self.for_layers(&target.value, &at).map(Some)
    }

    /// Records the keys for lack of which a parameter has no value.
    fn note_unset(&mut self, target: &ParamRule, key: String) {
        let param = self.def.params.get(&target.name.value);
        let is_needed = param
            .is_some_and(|param| matches!(param.source, ParamSource::Key { default: None, .. }));
        let (ParamValue::One(expr), true) = (&target.value, is_needed) else {
            return;
        };
        let (config, mut absent) = (self.config, BTreeSet::new());
        expr.for_each_name(&mut |name, _| {
            let is_key = !self.map.values.contains_key(name) && name != "il";
            if is_key && config.plain().has(name) == Ok(false) {
                absent.insert(name.to_owned());
            }
        });
        let Some(first) = absent.first() else { return };
        let name = &target.name.value;
        let rule = match self.at == self.map.chain().count() {
            true => {
                format!("no rule of the map gives `{name}`, and stmaps/common.toml makes it of")
            }
            false => format!("the map makes `{name}` of"),
        };
        let other = config.alike(first);
        let other = other.as_deref().unwrap_or("OTHER_KEY");
        let absent: Vec<String> = absent.iter().map(|name| format!("`{name}`")).collect();
        let origin = format!(
            "{rule} {}, which {} does not have: write `{first} = [\"{other}\"]` \
             under `[aliases]` of the map",
            absent.join(", "),
            self.map.configuration
        );
        self.origins.entry(key).or_insert(origin);
    }

    fn given(&self, value: &ParamValue, at: &ConfigScope<'_>) -> Result<Value, String> {
        match value {
            ParamValue::One(expr) => expr.evaluate(at),
            ParamValue::List(exprs) => {
                let items = exprs.iter().map(|expr| expr.evaluate(at));
                items.collect::<Result<_, _>>().map(Value::List)
            }
            ParamValue::Stored(name) => self.stored_numbers(name, at),
        }
    }

    /// The number in a stored tensor of one element, or the list of the numbers in a longer one.
    fn stored_numbers(&self, name: &str, at: &ConfigScope<'_>) -> Result<Value, String> {
        let name = fill_expressions(name, at);
        let Some((name, stored)) = self.config.stored(&name) else {
            return Err(format!("there is no tensor `{name}`"));
        };
        if stored.shape.iter().product::<u64>() > MAX_STORED {
            return Err(format!(
                "{name} has the shape {:?}, expected at most {MAX_STORED} numbers",
                stored.shape
            ));
        }
        let bytes = bytes_of(self.checkpoint, stored)?;
        let numbers = bytes.chunks((stored.dtype.bitsize() / 8).max(1));
        let numbers = numbers.map(|bytes| number(stored.dtype, bytes));
        let Some(mut numbers) = numbers.collect::<Option<Vec<_>>>() else {
            return Err(format!("{name} ({:?}) is not of numbers", stored.dtype));
        };
        self.used.borrow_mut().insert(name);
        Ok(match numbers.len() {
            1 => numbers.remove(0),
            _ => Value::List(numbers),
        })
    }

    /// Whether every name of an expression has a value, including names within named values.
    fn is_known(&self, expr: &Expr) -> bool {
        let at = self.config.plain();
        let mut is_known = true;
        expr.for_each_name(&mut |name, _| {
            is_known &= match self.map.values.get(name) {
                Some(_) => at.name(name, true).is_ok(),
                None => name == "il" || at.has(name) == Ok(true),
            };
        });
        is_known
    }

    /// A list with a value for each layer of the first group of tensors with layers.
    fn for_layers(&self, value: &ParamValue, at: &ConfigScope<'_>) -> Result<Value, String> {
        let groups = self.map.chain().flat_map(|map| &map.groups);
        let count = groups.filter_map(|group| group.layers.as_ref()).next();
        let (count, _) = count.ok_or("a map without layers has no values for each layer")?;
        let layers = 0..self.n_layers(&count.value)?;
        let values = layers.map(|il| self.given(value, &at.with("il", il)));
        values.collect::<Result<_, _>>().map(Value::List)
    }

    /// The number of layers by `count`. An error if it exceeds the number of stored tensors.
    pub(super) fn n_layers(&self, count: &Expr) -> Result<u64, String> {
        let (n, stored) = (
            self.config.plain().size(count)?,
            self.checkpoint.tensors().count(),
        );
        match n <= stored as u64 {
            true => Ok(n),
            false => Err(format!(
                "`{count}` is {n}, and the folder has {stored} tensors"
            )),
        }
    }
}

/// The metadata key of the parameter that a rule sets; none if the parameter has no key.
pub(super) fn key_of(target: &ParamRule, def: &ArchDef) -> Result<Option<String>, Diagnostic> {
    let Spanned { value: name, span } = &target.name;
    match def.params.get(name).map(|param| &param.source) {
        Some(ParamSource::Key { keys, absolute, .. }) => {
            let key = keys.first();
            Ok(key.map(|key| match absolute {
                true => key.clone(),
                false => format!("{}.{key}", def.name),
            }))
        }
        Some(ParamSource::Derived(expr)) => {
            let message = format!("`{name}` follows from others: {expr}");
            Err(Diagnostic::new(span.clone(), message))
        }
        None => {
            let known = def.params.keys().map(String::as_str);
            Err(Diagnostic::unknown(span.clone(), "parameter", name, known))
        }
    }
}
