//! One part of a drawing: its operations, weights, words and numbers.

use std::collections::{BTreeMap, BTreeSet};

use crate::arch::expr::Expr;
use crate::arch::{Instance, Mode, OptionKind, Resolved, Resource};
use crate::ggml::{Origin, Step};
use crate::plan::{Plan, StatePlan, Unit};

use super::build::Maker;
use super::kinds::{is_within, without_index};
use super::ops::{RawEdge, RawEnd, RawOp, root};
use super::sizes::{Symbols, is_derived, unit_at};
use super::{Edge, End, Kept, Op, OpShape, Part, Weight};
use super::{formula, words};

/// Bytes of an element of a cache at its usual type.
pub(super) const CACHE_ELEMENT: u64 = 2;

impl Maker<'_> {
    /// A use of a contract, and its likes in other layers.
    pub(super) fn unit_part(
        &mut self,
        unit: &Unit,
        all: &[&Unit],
        steps: &[Vec<usize>],
        il: Option<u64>,
    ) -> Part {
        let contract = unit.contract.0;
        let key = |tensor: usize| {
            let at = unit.weights.iter().position(|w| *w == Some(tensor))?;
            Some((contract.weights[at].key, contract.weights[at].doc))
        };
        let mut part = self.part(contract.name, &unit.path, steps, &key, il);
        let instance = self.instance(&unit.path);
        let size = |unit: &Unit, name: &str| self.size(unit, name);
        part.paths = all.iter().map(|unit| unit.path.clone()).collect();
        part.title = contract.title.to_owned();
        part.line = words::line(self.plan, unit, &size);
        let is_open = |at: usize| instance.is_some_and(|i| self.open(unit, i, at).is_some());
        part.formula = formula::formula(unit, &|at| unit.weights[at].is_some(), &is_open);
        part.facts = self.options(unit, instance);
        part.options = self.chosen(unit, instance, &part.ops);
        part.icons = words::icons(self.plan, unit, self.is_symbolic, &size);
        part.kept = self.kept(unit, all);
        part.source_line = instance.and_then(|instance| self.line_of(instance));
        part
    }

    /// A part without its words. `steps` are its operations in each layer that it stands for, and
    /// `key` gives the key and the words of a tensor that belongs to it.
    pub(super) fn part(
        &mut self,
        kind: &'static str,
        path: &str,
        steps: &[Vec<usize>],
        key: &dyn Fn(usize) -> Option<(&'static str, &'static str)>,
        il: Option<u64>,
    ) -> Part {
        let index = |name: &str| il.map_or_else(|| name.to_owned(), |il| without_index(name, il));
        let own = &steps[0];
        for like in steps {
            self.place(like);
        }
        let symbols = self.symbols(path);
        let (raw, raw_edges) = self.reader.boxes(own);
        let mut weights: Vec<Weight> = Vec::new();
        let mut ops = Vec::new();
        for known in &raw {
            let mut places = Vec::new();
            for tensor in &known.weights {
                let found = weights.iter().position(|w| w.tensors[0] == *tensor);
                let at = found.unwrap_or_else(|| {
                    weights.push(self.weight(*tensor, steps, key, &symbols, &index));
                    weights.len() - 1
                });
                places.push(at);
            }
            ops.push(self.op(known, places, &weights, &symbols, &index));
        }
        let edges = raw_edges
            .iter()
            .filter_map(|edge| self.edge(edge, path, &symbols))
            .collect();
        let tensors: BTreeSet<usize> = weights.iter().flat_map(|w| w.tensors.clone()).collect();
        Part {
            kind,
            path: index(path),
            paths: vec![path.to_owned()],
            title: String::new(),
            purpose: self.purpose(kind, path),
            line: String::new(),
            formula: String::new(),
            facts: Vec::new(),
            options: Vec::new(),
            icons: Vec::new(),
            cost: self.cost(&tensors),
            weights,
            ops,
            edges,
            kept: Kept::default(),
            source_line: None,
            note: None,
        }
    }

    fn symbols(&self, path: &str) -> Symbols {
        let instance = self.instance(path);
        let label = |name: &str| -> Option<String> {
            let rope = || {
                let unit = unit_at(self.plan, path)?;
                let at = unit.options.iter().zip(unit.contract.0.options).find_map(
                    |(v, spec)| match (v, spec.kind) {
                        (Resolved::Resource(Some(at)), OptionKind::Resource(Resource::Rope)) => {
                            Some(*at)
                        }
                        _ => None,
                    },
                )?;
                self.instance(&self.plan.ropes[at].path)
            };
            let (instance, name) = match name.strip_prefix("rope.") {
                Some(name) => (rope()?, name),
                None => (instance?, name),
            };
            let specs = instance.contract.options;
            let at = specs.iter().position(|o| o.name == name)?;
            let expr = &instance.options[at].expr;
            match specs[at].kind {
                OptionKind::Float => symbol(expr),
                _ => expr.as_name().map(str::to_owned),
            }
        };
        self.sizes.symbols(path, &label)
    }

    fn weight(
        &self,
        tensor: usize,
        steps: &[Vec<usize>],
        key: &dyn Fn(usize) -> Option<(&'static str, &'static str)>,
        symbols: &Symbols,
        index: &dyn Fn(&str) -> String,
    ) -> Weight {
        let (at, nth) = self.read_at(&steps[0], tensor).unwrap_or_default();
        let likes = steps.iter().filter_map(|like| {
            let sources = &self.steps[*like.get(at)?].sources;
            match root(self.steps, sources.get(nth)?) {
                Origin::Weight(tensor) => Some(tensor),
                _ => None,
            }
        });
        let mut tensors: Vec<usize> = vec![tensor];
        tensors.extend(likes.filter(|like| *like != tensor));
        tensors.dedup();
        let mut types: BTreeMap<&'static str, usize> = BTreeMap::new();
        let planned = tensors.iter().map(|at| &self.plan.tensors[*at]);
        for ty in planned.filter_map(|t| t.ty).filter(|_| !self.is_symbolic) {
            *types.entry(ty.name()).or_default() += 1;
        }
        let mut types: Vec<(&'static str, usize)> = types.into_iter().collect();
        types.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let name = &self.plan.tensors[tensor].name;
        let short = || short_name(name);
        let (key, doc) = key(tensor).map_or_else(|| (short(), ""), |(k, doc)| (k.to_owned(), doc));
        Weight {
            key,
            doc,
            name: index(name),
            shape: self.sizes.of_tensor(tensor, symbols),
            types: types.into_iter().map(|(ty, _)| ty).collect(),
            cost: self.cost(&tensors.iter().copied().collect()),
            is_shared: self.is_shared(tensor),
            tensors,
        }
    }

    /// Where among `steps` a tensor is read: the step and its source.
    fn read_at(&self, steps: &[usize], tensor: usize) -> Option<(usize, usize)> {
        steps.iter().enumerate().find_map(|(at, step)| {
            let mut sources = self.steps[*step].sources.iter();
            let nth = sources.position(|s| root(self.steps, s) == Origin::Weight(tensor))?;
            Some((at, nth))
        })
    }

    /// Whether units of different paths read a tensor.
    fn is_shared(&self, tensor: usize) -> bool {
        let reads = |step: &&Step| step.sources.contains(&Origin::Weight(tensor));
        let mut readers = self.steps.iter().filter(reads).map(|step| &step.path);
        let first = readers.next();
        readers.any(|path| Some(path) != first)
    }

    fn op(
        &self,
        raw: &RawOp,
        places: Vec<usize>,
        weights: &[Weight],
        symbols: &Symbols,
        index: &dyn Fn(&str) -> String,
    ) -> Op {
        let step = |at: &usize| &self.steps[*at];
        let first = step(&raw.steps[0]);
        let number = |nth: usize| self.sizes.number(raw.steps[0], nth, symbols);
        let (mut title, mut shape) = words::op(first, &number);
        if let Some(at) = places.first() {
            title = words::weighted(first, &weights[*at].key);
            shape = OpShape::Weighted;
        }
        if raw.is_sum {
            (title, shape) = ("sum of the parts".into(), OpShape::Plain);
        }
        let kept = |source: &Origin| match source {
            Origin::Leaf(name) => kept_name(name),
            _ => None,
        };
        let kept = first
            .sources
            .iter()
            .find_map(|s| kept(&root(self.steps, s)));
        if let (Some(kept), "SET_ROWS" | "GET_ROWS") = (&kept, first.op.as_str()) {
            let verb = if first.op == "SET_ROWS" {
                "keep"
            } else {
                "recall"
            };
            (title, shape) = (format!("{verb} {kept}"), OpShape::Kept);
        }
        let value = raw.steps.iter().rev().map(step).find_map(|step| {
            let own = is_within(&step.name, &step.path) && step.name != step.path;
            own.then(|| index(&step.name))
        });
        Op {
            title,
            shape,
            ops: raw.steps.iter().map(|at| step(at).op.clone()).collect(),
            weights: places,
            result: self.sizes.of_step(raw.result, symbols),
            value,
            steps: raw.steps.clone(),
            note: None,
        }
    }

    fn edge(&self, raw: &RawEdge, path: &str, symbols: &Symbols) -> Option<Edge> {
        let from = match raw.from {
            RawEnd::Op(at) => End::Op(at),
            RawEnd::Step(at) => End::Outside(self.outside(at, path)?),
        };
        let shape = match raw.is_kept {
            true => Vec::new(),
            false => self.sizes.of_step(raw.last, symbols),
        };
        Some(Edge {
            from,
            to: raw.to,
            shape,
            is_part: raw.is_part,
        })
    }

    /// The name of a value that a part at `path` reads from outside.
    fn outside(&self, at: usize, path: &str) -> Option<String> {
        let step = &self.steps[at];
        let layer_of = |path: &str| {
            let mut layers = self.plan.layers.iter();
            layers.find(|layer| is_within(path, &layer.path))
        };
        Some(match step.kind {
            "norm" if step.path.ends_with(".after") => "x".into(),
            "norm" => "h".into(),
            "per_layer" => "ple".into(),
            "wiring" | "embed" => "x".into(),
            _ => match layer_of(&step.path) {
                Some(layer) if !is_within(path, &layer.path) => {
                    format!("{} of layer {}", kept_of(step), layer.il)
                }
                _ => self
                    .saved(&step.path)
                    .unwrap_or_else(|| "the other block".into()),
            },
        })
    }

    /// The tap under which the result of a block is saved.
    fn saved(&self, path: &str) -> Option<String> {
        let slots = self.plan.layers.iter().flat_map(|layer| &layer.slots);
        let mut branches = slots.flat_map(|slot| &slot.branches);
        branches.find(|b| b.block.path == path)?.save.clone()
    }

    /// An option as a number of the file, or as the definition has it.
    pub(super) fn size(&self, unit: &Unit, name: &str) -> String {
        let specs = unit.contract.0.options;
        let Some(at) = specs.iter().position(|o| o.name == name) else {
            return String::new();
        };
        let value = words::option(self.plan, specs[at].kind, &unit.options[at]);
        let instance = self.instance(&unit.path).filter(|_| self.is_symbolic);
        match instance.map(|instance| &instance.options[at].expr) {
            Some(expr) => symbol(expr).unwrap_or_else(|| name.to_owned()),
            None => value,
        }
    }

    /// Options that are not what the contract says by default.
    pub(super) fn options(&self, unit: &Unit, instance: Option<&Instance>) -> Vec<String> {
        let specs = unit.contract.0.options.iter().zip(&unit.options);
        let mut facts = Vec::new();
        for (at, (spec, value)) in specs.enumerate() {
            let default = spec.default.unwrap_or_default();
            let is_index = default == "il";
            let open = instance.and_then(|instance| self.open(unit, instance, at));
            let is_default = words::is_default(default, value) && open.is_none();
            if is_default || is_index || is_derived(spec) {
                continue;
            }
            let expr = instance.map(|instance| &instance.options[at].expr);
            let number = matches!(value, Resolved::Int(_) | Resolved::Float(_));
            let text = match expr.filter(|_| self.is_symbolic && number) {
                Some(expr) => symbol(expr).unwrap_or_else(|| expr.source().to_owned()),
                None => words::option(self.plan, spec.kind, value),
            };
            facts.push(match open {
                Some(open) => format!("{} = {open} (drawn: {text})", spec.name),
                None => format!("{} = {text}", spec.name),
            });
        }
        facts
    }

    /// What a unit and its likes keep between passes.
    pub(super) fn kept(&self, unit: &Unit, all: &[&Unit]) -> Kept {
        let n = all.len() as u64;
        let numbers = |n: u64| Some(n).filter(|_| !self.is_symbolic);
        let symbols = || self.symbols(&unit.path);
        let text = |pick: &dyn Fn(&Plan) -> Option<u64>| {
            let points = self.sizes.points.iter();
            let values: Option<Vec<u64>> = points.map(|point| pick(&point.plan)).collect();
            values.map_or_else(String::new, |values| self.sizes.text(&values, &symbols()))
        };
        match &unit.state {
            // What reads a text as a whole keeps nothing of it.
            _ if self.plan.mode != Mode::Causal => Kept::default(),
            Some(StatePlan::KeyValue(rows)) => {
                if let Some(owner) = &rows.owner {
                    let owners: BTreeSet<&String> =
                        all.iter().filter_map(|u| owner_of(u)).collect();
                    let line = match owners.len() {
                        1 => format!("reads what {owner} keeps"),
                        n => format!("reads what {n} earlier layers keep"),
                    };
                    return Kept {
                        text: vec![line],
                        ..Kept::default()
                    };
                }
                let row = |pick: fn(&crate::plan::KeyValuePlan) -> u64| {
                    text(&|plan: &Plan| match &unit_at(plan, &unit.path)?.state {
                        Some(StatePlan::KeyValue(rows)) => Some(pick(rows)),
                        _ => None,
                    })
                };
                let values = if rows.v_in_k { 0 } else { rows.v };
                let elements = match rows.v_in_k {
                    true => row(|rows| rows.k),
                    false => format!("{} + {}", row(|rows| rows.k), row(|rows| rows.v)),
                };
                let cache = &self.plan.caches[rows.cache];
                let bytes = numbers(n * (rows.k + values) * CACHE_ELEMENT);
                let has_window = cache.window().is_some();
                Kept {
                    per_token: bytes.filter(|_| !has_window),
                    in_window: bytes.filter(|_| has_window),
                    per_sequence: None,
                    text: vec![format!(
                        "keeps {elements} numbers of each token in cache {}",
                        cache.name
                    )],
                }
            }
            Some(StatePlan::Recurrent(parts)) => {
                let size: u64 = parts.iter().map(|part| part.size).sum();
                let of_part = |at: usize| {
                    text(&|plan: &Plan| match &unit_at(plan, &unit.path)?.state {
                        Some(StatePlan::Recurrent(parts)) => Some(parts.get(at)?.size),
                        _ => None,
                    })
                };
                let shown = parts.iter().enumerate();
                let shown = shown.map(|(at, part)| format!("{} ({})", of_part(at), part.name));
                let shown: Vec<String> = shown.collect();
                Kept {
                    per_token: None,
                    in_window: None,
                    per_sequence: numbers(n * size * size_of::<f32>() as u64),
                    text: vec![format!("keeps {} numbers of each text", shown.join(" + "))],
                }
            }
            None => Kept::default(),
        }
    }
}

fn owner_of<'u>(unit: &&'u Unit) -> Option<&'u String> {
    match &unit.state {
        Some(StatePlan::KeyValue(rows)) => rows.owner.as_ref(),
        _ => None,
    }
}

/// An expression as a symbol, if it is short enough to be one.
fn symbol(expr: &Expr) -> Option<String> {
    const SHORT: usize = 22;
    match expr.as_literal() {
        Some(literal) => Some(literal.to_string()),
        None => Some(expr.source().to_owned()).filter(|text| text.len() <= SHORT),
    }
}

/// A tensor's name without its layer and without `.weight`.
fn short_name(name: &str) -> String {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let parts = name
        .split('.')
        .filter(|part| !part.bytes().all(|b| b.is_ascii_digit()) && *part != "blk");
    parts.collect::<Vec<_>>().join(".")
}

/// What is kept under the name of a leaf.
fn kept_name(name: &str) -> Option<String> {
    let last = name.rsplit('.').next()?;
    match last {
        "cache_k" => Some("keys".into()),
        "cache_v" => Some("values".into()),
        _ => last
            .strip_prefix("state_")
            .map(|part| format!("state ({part})")),
    }
}

fn kept_of(step: &Step) -> String {
    let mut names = step.sources.iter().filter_map(|source| match source {
        Origin::Leaf(name) => kept_name(name),
        _ => None,
    });
    names.next_back().unwrap_or_else(|| "a value".into())
}
