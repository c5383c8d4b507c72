//! A map, a configuration and stored tensors become metadata and tensors of an architecture.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value as Json;

use crate::arch::expr::{Expr, Scope, Value};
use crate::arch::{ArchDef, Diagnostic, ParamSource, Span, Spanned, fits_pattern};
use crate::weights::safetensors::Checkpoint;
use crate::weights::{Data, Entry, Metadata, TensorType, Value as Meta};

use super::config::{At, Config, Expressions, fill};
use super::definition::{
    Composition, Given, Group, Made, Map, PartRule, Taken, Target, TensorRule,
};
use super::packed::{self, Found};
use super::rearrange::View;
use super::recipe::{Computed, ELEMENT, INDEX, Part, Recipe, read};
use super::values::{is_float, to_meta};

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
        used: RefCell::default(),
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
        patterns
            .iter()
            .any(|pattern| fits_pattern(&pattern.value, name))
    };
    let used = work.used.into_inner();
    let filled = |pattern: &Spanned<String>| {
        let text = config.plain().filled(&pattern.value);
        Spanned::new(text, pattern.span.clone())
    };
    let ignored_tensors: Vec<Spanned<String>> = map.ignored_tensors.iter().map(filled).collect();
    let stored = checkpoint.tensors().map(|(name, _)| name.to_owned());
    let unmapped = Unmapped {
        tensors: stored
            .filter(|name| !used.contains(name) && !is_ignored(name, &ignored_tensors))
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

/// A tensor of ours: its shape, slowest axis first, and its data.
struct Product {
    shape: Vec<u64>,
    ty: TensorType,
    data: Data,
}

/// A stored tensor of a rule.
struct Source<'r> {
    name: String,
    taken: &'r Taken,
    found: Found,
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
    used: RefCell<BTreeSet<String>>,
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
                    format!("{value} is nothing that metadata can hold"),
                ),
            },
            Err(error) => self.report(&target.name.span, error),
        }
    }

    fn value(&self, target: &Target) -> Result<Option<Value>, String> {
        let given: &[Expr] = match &target.value {
            Given::One(expr) => std::slice::from_ref(expr),
            Given::List(exprs) => exprs,
            Given::Stored(_) => &[],
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
        let layers = (0..self.n_layers()?).map(|il| self.given(&target.value, &at.with("il", il)));
        layers.collect::<Result<_, _>>().map(Value::List).map(Some)
    }

    fn given(&self, value: &Given, at: &At<'_>) -> Result<Value, String> {
        match value {
            Given::One(expr) => expr.evaluate(at),
            Given::List(exprs) => {
                let items = exprs.iter().map(|expr| expr.evaluate(at));
                items.collect::<Result<_, _>>().map(Value::List)
            }
            Given::Stored(name) => self.stored_number(name, at),
        }
    }

    /// The one number of a stored tensor.
    fn stored_number(&self, name: &str, at: &At<'_>) -> Result<Value, String> {
        let name = fill(name, &at.indices);
        for root in &self.map.roots {
            let name = format!("{root}{name}");
            let Some(stored) = self.checkpoint.get(&name) else {
                continue;
            };
            if stored.shape.iter().product::<u64>() != 1 {
                return Err(format!(
                    "{name} has the shape {:?}, expected one number",
                    stored.shape
                ));
            }
            let file = self.checkpoint.files().nth(stored.file);
            let bytes = file.and_then(|file| file.get(stored.offset..stored.offset + stored.bytes));
            self.used.borrow_mut().insert(name);
            return Ok(Value::Float(read(
                stored.dtype,
                bytes.ok_or("a file is missing")?,
            )));
        }
        Err(format!("there is no tensor `{name}`"))
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
                Ok(Some(product)) => self.add(rule, name, product),
                Err(error) => self.report(&rule.name.span, format!("`{name}`: {error}")),
            }
        }
    }

    fn add(&mut self, rule: &TensorRule, name: String, product: Product) {
        let mut shape = product.shape;
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
        self.names.insert(name.clone());
        self.entries.push(Entry {
            name,
            ty: product.ty,
            shape,
            data: product.data,
        });
    }

    /// The tensor of a rule; none if nothing of it is stored.
    fn made(
        &self,
        group: &Group,
        rule: &TensorRule,
        at: &At<'_>,
        ending: &str,
    ) -> Result<Option<Product>, String> {
        match &rule.made {
            Made::Computed(shape) => computed(shape, rule.each.as_ref(), at).map(Some),
            Made::Of(of) => self.composed(group, of, rule.each.as_ref(), at, ending),
        }
    }

    fn composed(
        &self,
        group: &Group,
        of: &Composition,
        each: Option<&Expr>,
        at: &At<'_>,
        ending: &str,
    ) -> Result<Option<Product>, String> {
        let n_stacked = of.stack.as_ref().map(|stack| at.size(stack)).transpose()?;
        let Some(stored) = self.stored(group, &of.parts, n_stacked, at, ending)? else {
            return Ok(None);
        };
        let mut parts = Vec::with_capacity(stored.len());
        let mut shape: Option<Vec<u64>> = None;
        for Source { name, taken, found } in stored {
            let stored = &found.stored;
            let view =
                view(taken, &stored.shape, at).map_err(|error| format!("{name}: {error}"))?;
            let own = view.shape();
            shape = Some(match shape {
                None => own,
                Some(all) if n_stacked.is_some() && all == own => all,
                Some(mut all)
                    if n_stacked.is_none() && !all.is_empty() && all.get(1..) == own.get(1..) =>
                {
                    all[0] += own[0];
                    all
                }
                Some(all) => return Err(format!("{name} has the shape {own:?} beside {all:?}")),
            });
            let file = self.checkpoint.files().nth(stored.file);
            parts.push(Part {
                file: file.ok_or("a file is missing")?.clone(),
                offset: stored.offset,
                bytes: stored.bytes,
                dtype: stored.dtype,
                packing: found.packing,
                view,
            });
            self.used.borrow_mut().extend(found.names);
        }
        let mut shape = shape.ok_or("it is made of nothing")?;
        if let Some(n) = n_stacked {
            shape.insert(0, n);
        }
        let each = each
            .map(|each| at.bind(each, &[ELEMENT, INDEX]))
            .transpose()?;
        let recipe = Recipe::new(parts, &shape, each)?;
        let ty = recipe.ty();
        let data = match recipe.in_place() {
            Some((bytes, offset)) => Data::Mapped(bytes.clone(), offset),
            None => Data::Made(Arc::new(recipe)),
        };
        Ok(Some(Product { shape, ty, data }))
    }

    /// The stored tensors of a rule with their names; none if none of them is there.
    fn stored<'r>(
        &self,
        group: &Group,
        parts: &'r [PartRule],
        n_stacked: Option<u64>,
        at: &At<'_>,
        ending: &str,
    ) -> Result<Option<Vec<Source<'r>>>, String> {
        let mut roots = self.map.roots.iter();
        roots
            .find_map(|root| {
                let prefix = format!("{root}{}", group.from);
                self.stored_under(&prefix, parts, n_stacked, at, ending)
                    .transpose()
            })
            .transpose()
    }

    fn stored_under<'r>(
        &self,
        prefix: &str,
        parts: &'r [PartRule],
        n_stacked: Option<u64>,
        at: &At<'_>,
        ending: &str,
    ) -> Result<Option<Vec<Source<'r>>>, String> {
        let mut found = Vec::new();
        let mut missing = None;
        for part in parts {
            let template = fill(&format!("{prefix}{}{ending}", part.from.value), &at.indices);
            for e in 0..n_stacked.unwrap_or(1) {
                let name = fill(&template, &[("e", e)]);
                match packed::find(self.checkpoint, &name, at)? {
                    Some(tensor) => found.push(Source {
                        name,
                        taken: &part.taken,
                        found: tensor,
                    }),
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
            (Some(one), Some(missing)) => {
                Err(format!("{} is there, and {missing} is not", one.name))
            }
            (Some(_), None) => Ok(Some(found)),
        }
    }
}

/// A vector that follows from the index of its elements.
fn computed(shape: &[Expr], each: Option<&Expr>, at: &At<'_>) -> Result<Product, String> {
    let each = each.ok_or("nothing says what the elements are")?;
    let [size] = shape else {
        let n = shape.len();
        return Err(format!("{n} axes, and what is computed is a vector"));
    };
    let size = at.size(size)?;
    let computed = Computed::new(size, |i| each.evaluate(&at.with(INDEX, i)))?;
    Ok(Product {
        shape: vec![size],
        ty: TensorType::F32,
        data: Data::Made(Arc::new(computed)),
    })
}

fn ranges<'t>(
    take: &'t BTreeMap<String, (Expr, Expr)>,
    at: &At<'_>,
) -> Result<BTreeMap<&'t str, (u64, u64)>, String> {
    let ranges = take
        .iter()
        .map(|(name, (begin, end))| Ok((name.as_str(), (at.size(begin)?, at.size(end)?))));
    ranges.collect()
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
fn view(taken: &Taken, shape: &[u64], at: &At<'_>) -> Result<View, String> {
    let mut shape = shape.to_vec();
    let mut begin = 0;
    if let Some((from, to)) = &taken.rows {
        let part = View::whole(&shape).slice(at.size(from)?, at.size(to)?)?;
        begin = part.offset;
        shape = part.shape();
    }
    let mut view = match &taken.rearrange {
        Some(pattern) => {
            let sizes = evaluate_sizes(&taken.sizes, at)?;
            pattern
                .value
                .view(&shape, &sizes, &ranges(&taken.take, at)?)?
        }
        None => View::whole(&shape),
    };
    view.offset += begin;
    if let Some(index) = &taken.at {
        view = view.at(at.size(index)?)?;
    }
    if let Some((begin, end)) = &taken.slice {
        view = view.slice(at.size(begin)?, at.size(end)?)?;
    }
    Ok(view)
}
