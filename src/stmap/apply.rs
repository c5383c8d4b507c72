//! A map, a configuration and stored tensors become metadata and tensors of an architecture.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value as Json;

use crate::arch::expr::{Expr, Scope, Value};
use crate::arch::{ArchDef, Diagnostic, ParamSource, Span, Spanned};
use crate::weights::safetensors::Checkpoint;
use crate::weights::{Array, Data, Entry, Metadata, StringArray, TensorType, Value as Meta};

use super::config::{At, Config, Expressions, fill};
use super::definition::{Composition, Group, Made, Map, Target, TensorRule};
use super::packed::{self, Found};
use super::rearrange::View;
use super::recipe::{Computed, Part, Recipe};

/// What a rule without an ending in its name looks for.
const ENDINGS: [&str; 2] = [".weight", ".bias"];

/// What came of a map.
pub(super) struct Applied {
    pub(super) metadata: Metadata,
    pub(super) entries: Vec<Entry>,
    /// Stored tensors and configuration keys that nothing used.
    pub(super) unmapped: Unmapped,
}

/// What a map does not speak of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unmapped {
    pub(super) tensors: Vec<String>,
    pub(super) keys: Vec<String>,
}

/// Applies a map.
///
/// # Errors
/// All that does not fit, each at its place in the map.
pub(super) fn apply(
    map: &Map,
    def: &ArchDef,
    json: &Json,
    checkpoint: &Checkpoint,
) -> Result<Applied, Vec<Diagnostic>> {
    let config = Config::new(map, json, checkpoint);
    let mut work = Work {
        map,
        def,
        checkpoint,
        config: &config,
        metadata: Metadata::default(),
        entries: Vec::new(),
        names: BTreeSet::new(),
        used: BTreeSet::new(),
        problems: Vec::new(),
    };
    work.rules();
    work.targets();
    for group in &map.groups {
        work.group(group);
    }
    if !work.problems.is_empty() {
        return Err(work.problems);
    }
    let is_ignored = |name: &str, patterns: &[Spanned<String>]| {
        patterns.iter().any(|pattern| matches(&pattern.value, name))
    };
    let stored = checkpoint.tensors().map(|(name, _)| name.to_owned());
    let unmapped = Unmapped {
        tensors: stored
            .filter(|name| !work.used.contains(name) && !is_ignored(name, &map.ignored_tensors))
            .collect(),
        keys: config
            .unused()
            .into_iter()
            .filter(|key| !is_ignored(key, &map.ignored_keys))
            .collect(),
    };
    Ok(Applied {
        metadata: work.metadata,
        entries: work.entries,
        unmapped,
    })
}

/// Whether a name fits a pattern in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == name;
    };
    name.strip_prefix(head).is_some_and(|rest| {
        (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches(tail, &rest[at..]))
    })
}

struct Work<'a> {
    map: &'a Map,
    def: &'a ArchDef,
    checkpoint: &'a Checkpoint,
    config: &'a Config<'a>,
    metadata: Metadata,
    entries: Vec<Entry>,
    /// Our names that are taken.
    names: BTreeSet<String>,
    /// Stored tensors that are used.
    used: BTreeSet<String>,
    problems: Vec<Diagnostic>,
}

impl Work<'_> {
    fn report(&mut self, span: &Span, message: impl Into<String>) {
        self.problems.push(Diagnostic::new(span.clone(), message));
    }

    fn rules(&mut self) {
        for rule in &self.map.rules {
            match self.config.plain().truth(&rule.holds) {
                Ok(true) => {}
                Ok(false) => self.report(
                    &rule.span,
                    format!("the map is for folders with {}", rule.holds),
                ),
                Err(error) => self.report(&rule.span, error),
            }
        }
    }

    fn targets(&mut self) {
        let arch = Meta::Str(self.def.name.clone());
        self.metadata.insert("general.architecture", arch);
        for target in &self.map.params {
            let key = match self.def.params.get(&target.name.value).map(|p| &p.source) {
                Some(ParamSource::Key { keys, absolute, .. }) => match (keys.first(), absolute) {
                    (Some(key), true) => key.clone(),
                    (Some(key), false) => format!("{}.{key}", self.def.name),
                    (None, _) => continue,
                },
                Some(ParamSource::Derived(expr)) => {
                    let message = format!("`{}` follows from others: {expr}", target.name.value);
                    self.report(&target.name.span, message);
                    continue;
                }
                None => {
                    let known = self.def.params.keys().map(String::as_str);
                    let problem = Diagnostic::unknown(
                        target.name.span.clone(),
                        "parameter",
                        &target.name.value,
                        known,
                    );
                    self.problems.push(problem);
                    continue;
                }
            };
            let is_float = is_float(self.def, &target.name.value);
            self.target(target, key, is_float);
        }
        for target in &self.map.metadata {
            let key = target.name.value.replace("{arch}", &self.def.name);
            self.target(target, key, false);
        }
    }

    fn target(&mut self, target: &Target, key: String, is_float: bool) {
        match self.value(target) {
            Ok(None) => {}
            Ok(Some(value)) => match to_meta(&value, is_float) {
                Some(value) => self.metadata.insert(key, value),
                None => self.report(
                    &target.name.span,
                    format!("`{}` is {value}, which metadata cannot hold", target.value),
                ),
            },
            Err(error) => self.report(&target.name.span, error),
        }
    }

    fn value(&self, target: &Target) -> Result<Option<Value>, String> {
        let exprs = || target.when.iter().chain([&target.value]);
        if target.is_optional && !exprs().all(|expr| self.is_known(expr)) {
            return Ok(None);
        }
        let at = self.config.plain();
        if let Some(when) = &target.when
            && !at.truth(when)?
        {
            return Ok(None);
        }
        if !target.per_layer {
            return target.value.evaluate(&at).map(Some);
        }
        let layers = (0..self.n_layers()?).map(|il| target.value.evaluate(&at.with("il", il)));
        layers.collect::<Result<_, _>>().map(Value::List).map(Some)
    }

    /// Whether every name of an expression has a value, those that named values stand for included.
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

    fn n_layers(&self) -> Result<u64, String> {
        let count = self
            .map
            .groups
            .iter()
            .find_map(|group| group.layers.as_ref());
        let (count, _) = count.ok_or("a map without layers has no values for each layer")?;
        self.config.plain().size(count)
    }

    fn group(&mut self, group: &Group) {
        let plain = self.config.plain();
        let Some((count, first)) = &group.layers else {
            for rule in &group.tensors {
                self.rule(group, rule, &plain);
            }
            return;
        };
        let range = plain.size(count).and_then(|count| {
            let first = first.as_ref().map_or(Ok(0), |first| plain.size(first))?;
            Ok(first..count)
        });
        let range = match range {
            // More layers than stored tensors: the configuration is not that of the folder.
            Ok(range) if range.end > self.checkpoint.tensors().count() as u64 + range.start => {
                let span = group
                    .tensors
                    .first()
                    .map_or(0..0, |rule| rule.name.span.clone());
                return self.report(
                    &span,
                    format!("{} layers, and not as many stored tensors", range.end),
                );
            }
            Ok(range) => range,
            Err(error) => {
                let span = group
                    .tensors
                    .first()
                    .map_or(0..0, |rule| rule.name.span.clone());
                return self.report(&span, error);
            }
        };
        for il in range {
            let at = plain.with("il", il);
            for rule in &group.tensors {
                self.rule(group, rule, &at);
            }
        }
    }

    fn rule(&mut self, group: &Group, rule: &TensorRule, at: &At<'_>) {
        let is_active = rule.when.as_ref().map_or(Ok(true), |when| at.truth(when));
        match is_active {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.report(&rule.name.span, error),
        }
        let name = fill(&format!("{}{}", group.prefix, rule.name.value), &at.indices);
        let has_ending = rule.name.value.contains('.') || matches!(rule.made, Made::Computed(_));
        let endings: &[&str] = if has_ending { &[""] } else { &ENDINGS };
        for ending in endings {
            let name = format!("{name}{ending}");
            if self.names.contains(&name) {
                continue;
            }
            match self.made(group, rule, at, ending) {
                Ok(None) => {}
                Ok(Some((shape, recipe))) => self.add(rule, name, shape, recipe),
                Err(error) => self.report(&rule.name.span, format!("`{name}`: {error}")),
            }
        }
    }

    fn add(
        &mut self,
        rule: &TensorRule,
        name: String,
        mut shape: Vec<u64>,
        made: Result<Recipe, Computed>,
    ) {
        shape.reverse();
        if shape.len() > crate::weights::MAX_DIMS {
            let message = format!(
                "`{name}` has {} axes, expected at most {}",
                shape.len(),
                crate::weights::MAX_DIMS
            );
            return self.report(&rule.name.span, message);
        }
        if shape.is_empty() {
            shape.push(1);
        }
        let (ty, data) = match made {
            Ok(recipe) => {
                let data = match recipe.in_place() {
                    Some((bytes, offset)) => Data::Mapped(bytes.clone(), offset),
                    None => Data::Made(Arc::new(recipe.clone())),
                };
                (recipe.ty(), data)
            }
            Err(computed) => (TensorType::F32, Data::Made(Arc::new(computed))),
        };
        self.names.insert(name.clone());
        self.entries.push(Entry {
            name,
            ty,
            shape,
            data,
        });
    }

    /// Shape, slowest axis first, and data of a tensor; none if nothing of it is stored.
    #[expect(clippy::type_complexity, reason = "a shape with one of two ways")]
    fn made(
        &mut self,
        group: &Group,
        rule: &TensorRule,
        at: &At<'_>,
        ending: &str,
    ) -> Result<Option<(Vec<u64>, Result<Recipe, Computed>)>, String> {
        let of = match &rule.made {
            Made::Computed(shape) => {
                let shape: Vec<u64> = shape
                    .iter()
                    .map(|size| at.size(size))
                    .collect::<Result<_, _>>()?;
                let each = rule
                    .each
                    .as_ref()
                    .ok_or("nothing says what the elements are")?;
                if shape.len() != 1 {
                    return Err(format!(
                        "{} axes, and what is computed is a vector",
                        shape.len()
                    ));
                }
                let computed =
                    Computed::new(shape.iter().product(), |i| each.evaluate(&at.with("i", i)))?;
                return Ok(Some((shape, Err(computed))));
            }
            Made::Of(of) => of,
        };
        let n_stacked = of.stack.as_ref().map(|stack| at.size(stack)).transpose()?;
        let Some(stored) = self.stored(group, &of.from, n_stacked, at, ending)? else {
            return Ok(None);
        };
        let sizes = evaluate_sizes(&of.sizes, at)?;
        let mut parts = Vec::with_capacity(stored.len());
        let mut shape: Option<Vec<u64>> = None;
        for (name, found) in stored {
            let stored = &found.stored;
            let view =
                view(of, &stored.shape, &sizes, at).map_err(|error| format!("{name}: {error}"))?;
            let own = view.shape();
            shape = Some(match shape {
                None => own,
                Some(all) if n_stacked.is_some() && all == own => all,
                Some(all)
                    if n_stacked.is_none() && all.get(1..) == own.get(1..) && !all.is_empty() =>
                {
                    let mut all = all;
                    all[0] += own[0];
                    all
                }
                Some(all) => return Err(format!("{name} has the shape {own:?} beside {all:?}")),
            });
            let file = self
                .checkpoint
                .files()
                .nth(stored.file)
                .ok_or("a file is missing")?;
            parts.push(Part {
                file: file.clone(),
                offset: stored.offset,
                bytes: stored.bytes,
                dtype: stored.dtype,
                packing: found.packing,
                view,
            });
            self.used.extend(found.names);
        }
        let mut shape = shape.ok_or("it is made of nothing")?;
        if let Some(n) = n_stacked {
            shape.insert(0, n);
        }
        Ok(Some((shape, Ok(Recipe::new(parts, rule.each.clone())?))))
    }

    /// The stored tensors of a rule with their names; none if none of them is there.
    fn stored(
        &self,
        group: &Group,
        from: &[Spanned<String>],
        n_stacked: Option<u64>,
        at: &At<'_>,
        ending: &str,
    ) -> Result<Option<Vec<(String, Found)>>, String> {
        let mut found = Vec::new();
        let mut missing = None;
        for from in from {
            let template = format!("{}{}{ending}", group.from, from.value);
            for e in 0..n_stacked.unwrap_or(1) {
                let name = fill(&fill(&template, &at.indices), &[("e", e)]);
                match packed::find(self.checkpoint, &name, at)? {
                    Some(tensor) => found.push((name, tensor)),
                    None => missing = missing.or(Some(name)),
                }
                // A count that the folder does not have is not tried to its end.
                if missing.is_some() && found.is_empty() {
                    break;
                }
            }
        }
        match (found.first(), missing) {
            (None, _) => Ok(None),
            (Some((name, _)), Some(missing)) => {
                Err(format!("{name} is there, and {missing} is not"))
            }
            (Some(_), None) => Ok(Some(found)),
        }
    }
}

fn evaluate_sizes<'s>(
    sizes: &'s Expressions,
    at: &At<'_>,
) -> Result<BTreeMap<&'s str, u64>, String> {
    let sizes = sizes
        .iter()
        .map(|(name, expr)| Ok((name.as_str(), at.size(expr)?)));
    sizes.collect()
}

/// The elements of a stored tensor as a rule takes them.
fn view(
    of: &Composition,
    shape: &[u64],
    sizes: &BTreeMap<&str, u64>,
    at: &At<'_>,
) -> Result<View, String> {
    let mut view = match &of.rearrange {
        Some(pattern) => pattern.value.view(shape, sizes)?,
        None => View::whole(shape),
    };
    if let Some(index) = &of.at {
        view = view.at(at.size(index)?)?;
    }
    if let Some((begin, end)) = &of.slice {
        view = view.slice(at.size(begin)?, at.size(end)?)?;
    }
    Ok(view)
}

/// Whether a parameter is a number with a fraction, by what stands in its place elsewhere.
fn is_float(def: &ArchDef, name: &str) -> bool {
    let Some(ParamSource::Key { default, synth, .. }) = def.params.get(name).map(|p| &p.source)
    else {
        return false;
    };
    let literal = |expr: &Option<Expr>| expr.as_ref().and_then(|e| e.as_literal().cloned());
    matches!(literal(default), Some(Value::Float(_)))
        || matches!(literal(synth), Some(Value::Float(_)))
}

fn to_meta(value: &Value, is_float: bool) -> Option<Meta> {
    let number = |value: &Value| match value {
        Value::Int(v) => Some(*v as f32),
        Value::Float(v) => Some(*v as f32),
        _ => None,
    };
    Some(match value {
        Value::Int(_) | Value::Float(_) if is_float => Meta::F32(number(value)?),
        Value::Int(v) => match (u32::try_from(*v), i32::try_from(*v)) {
            (Ok(v), _) => Meta::U32(v),
            (_, Ok(v)) => Meta::I32(v),
            _ => Meta::I64(*v),
        },
        Value::Float(v) => Meta::F32(*v as f32),
        Value::Bool(v) => Meta::Bool(*v),
        Value::Str(v) => Meta::Str(v.clone()),
        Value::List(items) => Meta::Array(list(items, is_float)?),
    })
}

/// The narrowest array that holds all items.
fn list(items: &[Value], is_float: bool) -> Option<Array> {
    let ints: Option<Vec<i64>> = items
        .iter()
        .map(|v| match v {
            Value::Int(v) => Some(*v),
            _ => None,
        })
        .collect();
    if let Some(ints) = ints.filter(|_| !is_float) {
        return match ints.iter().map(|v| u32::try_from(*v).ok()).collect() {
            Some(all) => Some(Array::U32(all)),
            None => Some(Array::I32(
                ints.iter()
                    .map(|v| i32::try_from(*v).ok())
                    .collect::<Option<_>>()?,
            )),
        };
    }
    match items.first()? {
        Value::Int(_) | Value::Float(_) => {
            let number = |v: &Value| match v {
                Value::Int(v) => Some(*v as f32),
                Value::Float(v) => Some(*v as f32),
                _ => None,
            };
            Some(Array::F32(items.iter().map(number).collect::<Option<_>>()?))
        }
        Value::Bool(_) => {
            let flag = |v: &Value| match v {
                Value::Bool(v) => Some(*v),
                _ => None,
            };
            Some(Array::Bool(items.iter().map(flag).collect::<Option<_>>()?))
        }
        Value::Str(_) => {
            let mut out = StringArray::default();
            for item in items {
                let Value::Str(text) = item else { return None };
                out.push(text.as_bytes());
            }
            Some(Array::Str(out))
        }
        Value::List(_) => None,
    }
}
