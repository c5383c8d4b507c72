//! Makes a part of a drawing: its operations, weights, words and numbers.

use std::collections::{BTreeMap, BTreeSet};

use crate::describe::{self, UnitScope};
use lab_base::ggml::{GraphOp, OpSource};
use lab_base::util::wording;
use lab_core::arch::formula::{general, particular};
use lab_core::arch::{ContractUse, Mode, OptionKind, OptionSpec, ResolvedOption, Resource};
use lab_core::plan::{BLOCK_LEN, KeyTokens, LayerPlan, StatePlan, Unit};

use super::context::DrawContext;
use super::kinds::{is_within, without_index};
use super::ops::{GroupOfStep, OpGroup, elements, root};
use super::words;
use super::{BoxNote, BoxWeight, Edge, EdgeSource, Kept, OpBox, OpShape, UnitBox, UnitOption};

/// The path of the mix that makes several hidden states from one.
const START: &str = "embed.write";

/// Bytes per element of a KV cache with its usual type.
const CACHE_ELEMENT: u64 = 2;

/// The name of a tensor without its layer: its last two components.
fn own_name(name: &str) -> &str {
    let second = name.rmatch_indices('.').nth(1);
    second.map_or(name, |(dot, _)| &name[dot + 1..])
}

impl DrawContext<'_> {
    /// The part of a unit and the corresponding units in other layers. Its operations are built for `kind`.
    pub(super) fn unit_part(
        &mut self,
        all: &[&Unit],
        kind: &str,
        of: Option<&LayerPlan>,
    ) -> UnitBox {
        let steps = all.iter().map(|unit| self.steps_at(kind, &unit.path));
        let steps: Vec<Vec<usize>> = steps.collect();
        let instance = self.instance(&all[0].path);
        self.part(all, &steps, instance, of)
    }

    /// The part of corresponding units in several layers, with the operations of each.
    pub(super) fn part(
        &mut self,
        all: &[&Unit],
        steps: &[Vec<usize>],
        instance: Option<&ContractUse>,
        of: Option<&LayerPlan>,
    ) -> UnitBox {
        let (unit, contract) = (all[0], all[0].contract.0);
        let index = |path: &str| of.map_or(path.to_owned(), |of| without_index(path, of.depth));
        steps.iter().for_each(|like| self.place(like));
        let (raw, owner) = self.reader.boxes(&steps[0]);
        let mut weights: Vec<BoxWeight> = Vec::new();
        let mut ops = Vec::new();
        for known in &raw {
            let mut places = Vec::new();
            for tensor in &known.weights {
                let found = weights.iter().position(|w| w.tensors[0] == *tensor);
                let at = found.unwrap_or_else(|| {
                    weights.push(self.weight(*tensor, all, of));
                    weights.len() - 1
                });
                places.push(at);
            }
            ops.push(self.op(known, places, &weights, &index));
        }
        let tensors: BTreeSet<usize> = weights.iter().flat_map(|w| w.tensors.clone()).collect();
        let mut options = Vec::new();
        self.options(&mut options, "", unit, instance);
        let shown = options.iter();
        let shown = shown.filter(|option| !option.is_default && !option.name.contains('.'));
        UnitBox {
            class: words::class(contract.name),
            kind: contract.name,
            path: index(&unit.path),
            paths: all.iter().map(|unit| unit.path.clone()).collect(),
            title: contract.title.to_owned(),
            line: self.line(unit),
            formula: self.formula(unit, instance),
            facts: shown.map(|o| format!("{} = {}", o.name, o.value)).collect(),
            options,
            cost: self.cost(&tensors),
            weights,
            ops,
            edges: self.edges(&raw, &owner, &unit.path),
            kept: self.kept(unit, all.len() as u64),
            ..UnitBox::default()
        }
    }

    /// The formula of a unit, with names of options that the file decides.
    fn formula(&self, unit: &Unit, instance: Option<&ContractUse>) -> String {
        let contract = unit.contract.0;
        let value = |name: &str| {
            let mut names = contract.options.iter().map(|option| option.name);
            let at = names.position(|own| own == name)?;
            match instance.and_then(|instance| self.open(unit, instance, at)) {
                Some(_) => Some(name.to_owned()),
                None => describe::resource_kind(self.plan, unit, name),
            }
        };
        let formula = particular(contract.formula, &UnitScope(unit), &value);
        formula.unwrap_or_else(|problem| {
            debug_assert!(false, "formula of {}: {problem}", contract.name);
            general(contract.formula)
        })
    }

    /// A weight of a unit, which is the first of `all`, together with the corresponding weights of the others.
    fn weight(&self, tensor: usize, all: &[&Unit], of: Option<&LayerPlan>) -> BoxWeight {
        let name = &self.plan.tensors[tensor].name;
        let place = all[0].weights.iter().position(|at| *at == Some(tensor));
        let (key, doc, mut tensors) = match place {
            Some(at) => {
                let tensors = all.iter().filter_map(|like| *like.weights.get(at)?);
                let (key, doc) = match all[0].contract.0.weights.get(at) {
                    Some(spec) => (spec.key, spec.doc),
                    None => (own_name(name), "update by adapters in the file"),
                };
                (key, doc, tensors.collect())
            }
            None => (name.as_str(), "", vec![tensor]),
        };
        let mut known = BTreeSet::new();
        tensors.retain(|tensor| known.insert(*tensor));
        let mut types: BTreeMap<&'static str, usize> = BTreeMap::new();
        let planned = tensors.iter().map(|at| &self.plan.tensors[*at]);
        for ty in planned.filter_map(|t| t.ty).filter(|_| !self.is_symbolic) {
            *types.entry(ty.name()).or_default() += 1;
        }
        let mut types: Vec<(&'static str, usize)> = types.into_iter().collect();
        types.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        BoxWeight {
            id: String::new(),
            key: key.to_owned(),
            doc,
            name: of.map_or(name.clone(), |of| without_index(name, of.il)),
            shape: self.weight_shape(&all[0].path, tensor),
            types: types.into_iter().map(|(ty, _)| ty).collect(),
            cost: self.cost(&tensors.iter().copied().collect()),
            is_shared: self.is_shared(tensor),
            tensors,
        }
    }

    /// Whether units at different paths read a tensor.
    fn is_shared(&self, tensor: usize) -> bool {
        let reads = |step: &&GraphOp| step.sources.contains(&OpSource::Weight(tensor));
        let mut readers = self.steps.iter().filter(reads).map(|step| &step.path);
        let first = readers.next();
        readers.any(|path| Some(path) != first)
    }

    fn op(
        &self,
        raw: &OpGroup,
        places: Vec<usize>,
        weights: &[BoxWeight],
        index: &dyn Fn(&str) -> String,
    ) -> OpBox {
        let step = |at: &usize| &self.steps[*at];
        let first = step(&raw.steps[0]);
        let number = |nth: usize| wording::tidy(first.params[nth].into());
        let (mut title, mut shape) = words::op(first, &number);
        if let Some(at) = places.first() {
            title = words::weighted(first, &weights[*at].key);
            shape = OpShape::Weighted;
        }
        if raw.is_sum {
            (title, shape) = ("sum of the parts".into(), OpShape::Plain);
        }
        let mut roots = first.sources.iter().map(|source| root(self.steps, source));
        let kept = roots.find_map(|root| match root {
            OpSource::Leaf(name) => kept_name(&name),
            _ => None,
        });
        let verb = match first.op.as_str() {
            "SET_ROWS" => Some("write"),
            "GET_ROWS" => Some("read"),
            _ => None,
        };
        if let (Some(kept), Some(verb)) = (&kept, verb) {
            (title, shape) = (format!("{verb} {kept}"), OpShape::RetainedMemory);
        }
        let value = raw.steps.iter().rev().map(step).find_map(|step| {
            let own = is_within(&step.name, &step.path) && step.name != step.path;
            own.then(|| index(&step.name))
        });
        OpBox {
            id: String::new(),
            title,
            shape,
            ops: raw.steps.iter().map(|at| step(at).op.clone()).collect(),
            result: self.result(raw, &places, weights),
            weights: places,
            value,
            steps: raw.steps.clone(),
            note: BoxNote::default(),
        }
    }

    /// Dimensions of a result. With symbols, only if a weight determines them.
    fn result(&self, raw: &OpGroup, places: &[usize], weights: &[BoxWeight]) -> Vec<String> {
        if !self.is_symbolic {
            return self.sample.shape(raw.result);
        }
        let weight = places.first().map(|at| &weights[*at].shape);
        let rows = weight.and_then(|shape| match self.steps[raw.steps[0]].op.as_str() {
            "MUL_MAT" => shape.get(1),
            "GET_ROWS" => shape.first(),
            _ => None,
        });
        rows.map_or_else(Vec::new, |rows| vec![rows.clone(), "T".into()])
    }

    /// The values that flow into the boxes of a part at `path`.
    fn edges(&self, boxes: &[OpGroup], owner: &GroupOfStep, path: &str) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (to, known) in boxes.iter().enumerate() {
            let mut summed = BTreeSet::new();
            let steps = known.steps.iter().map(|step| &self.steps[*step]);
            for source in steps.flat_map(|step| &step.sources) {
                let OpSource::Op(at) = root(self.steps, source) else {
                    continue;
                };
                let place = owner.get(&at).copied();
                // A box that sums the parts of one value reads the whole value once.
                let is_known = known.is_sum && !summed.insert(place.ok_or(at));
                if place == Some(to) || is_known {
                    continue;
                }
                let from = place.map(EdgeSource::Op);
                let Some(from) = from.or_else(|| self.outside(at, path).map(EdgeSource::Outside))
                else {
                    continue;
                };
                let last = match source {
                    OpSource::Op(last) if !known.is_sum => *last,
                    _ => at,
                };
                let whole = &self.steps[self.reader.window(at)];
                // The length of memory that is kept between passes is that of a cache, not of the value.
                let is_kept = self.steps[at].op == "SET_ROWS";
                edges.push(Edge {
                    shape: self.edge_shape(&from, last, is_kept),
                    from,
                    to,
                    is_part: !is_kept && elements(&self.steps[last]) < elements(whole),
                });
            }
        }
        edges
    }

    fn edge_shape(&self, from: &EdgeSource, last: usize, is_kept: bool) -> Vec<String> {
        let is_hidden = matches!(from, EdgeSource::Outside(name) if name == "x" || name == "h");
        match (is_kept, self.is_symbolic) {
            (false, false) => self.sample.shape(last),
            (false, true) if is_hidden => vec!["n_embd".into(), "T".into()],
            _ => Vec::new(),
        }
    }

    /// The name of a value that a part at `path` reads from outside.
    fn outside(&self, at: usize, path: &str) -> Option<String> {
        let step = &self.steps[at];
        let mut layers = self.plan.layers.iter();
        let layer = layers.find(|layer| is_within(&step.path, &layer.path));
        // Outside the mixes, several hidden states are called one.
        let is_several = path.ends_with(".read")
            || path.ends_with(".write") && matches!(step.kind, "mix" | "embed");
        Some(match (step.kind, layer) {
            _ if is_several && path != START => "X".into(),
            ("mix", _) => "x".into(),
            _ if path.ends_with(".write") => "x".into(),
            ("norm", _) if step.path.ends_with(".after") => "x".into(),
            ("norm", _) => "h".into(),
            ("per_layer", _) => "ple".into(),
            ("wiring" | "embed", _) => "x".into(),
            (_, Some(layer)) if !is_within(path, &layer.path) => {
                let mut names = step.sources.iter().filter_map(|source| match source {
                    OpSource::Leaf(name) => kept_name(name),
                    _ => None,
                });
                let name = names.next_back().unwrap_or_else(|| "a value".into());
                format!("{name} of layer {}", layer.depth)
            }
            _ => {
                let slots = self.plan.layers.iter().flat_map(|layer| &layer.slots);
                let mut branches = slots.flat_map(|slot| &slot.branches);
                let own = branches.find(|b| b.block.path == step.path)?;
                own.save.clone().unwrap_or_else(|| "the other block".into())
            }
        })
    }

    /// All options of a unit and of the resources that it names, in the order of the contract, without those that the
    /// contract computes from other options, and without the index of a layer.
    fn options(
        &self,
        out: &mut Vec<UnitOption>,
        prefix: &str,
        unit: &Unit,
        instance: Option<&ContractUse>,
    ) {
        let options = unit.contract.0.options.iter().zip(&unit.options);
        for (at, (spec, value)) in options.enumerate() {
            // An option without effect is left out.
            if !describe::has_effect(spec, unit) {
                continue;
            }
            let name = format!("{prefix}{}", spec.name);
            out.extend(self.option(name.clone(), spec, at, unit, instance));
            let inner = self.plan.resource(spec.kind, value);
            if let Some(inner) = inner.filter(|inner| inner.plain_kind().is_none()) {
                self.options(out, &format!("{name}."), inner, self.instance(&inner.path));
            }
        }
    }

    /// One option; `None` if it is not shown.
    fn option(
        &self,
        name: String,
        spec: &'static OptionSpec,
        at: usize,
        unit: &Unit,
        instance: Option<&ContractUse>,
    ) -> Option<UnitOption> {
        let value = &unit.options[at];
        let default = spec.default.unwrap_or_default();
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let is_ruled = !default.chars().all(is_word) && !default.starts_with('\'');
        let is_owner = default == "depth";
        let is_act = spec.kind == OptionKind::Resource(Resource::Act);
        if is_ruled && !matches!(value, ResolvedOption::Float(_)) {
            return None;
        }
        let is_number =
            matches!(value, ResolvedOption::Int(_) | ResolvedOption::Float(_)) && !is_owner;
        let setting = instance.map(|instance| &instance.options[at]);
        let open = instance.and_then(|instance| self.open(unit, instance, at));
        let mut resource = None;
        let text = match (value, setting.filter(|_| self.is_symbolic && is_number)) {
            _ if is_owner => match &unit.state {
                Some(StatePlan::KeyValue(rows)) if rows.owner.is_some() => "an earlier one".into(),
                _ => "its own".into(),
            },
            _ if open.is_some() => open.clone().unwrap_or_default(),
            // In a model that reads a text as a whole, attention is not causal.
            (ResolvedOption::Bool(true), _) if spec.name == "causal" => {
                (self.plan.mode == Mode::Causal).to_string()
            }
            (_, Some(setting)) => setting.expr.source().to_owned(),
            // Names of resources are the definition's own; their options follow.
            (ResolvedOption::Resource(Some(_)), _) if !is_act => {
                resource = Some(words::option(self.plan, spec.kind, value));
                "yes".into()
            }
            _ => words::option(self.plan, spec.kind, value),
        };
        let is_literal = default.parse::<f64>().is_ok() && is_number;
        let is_usual = words::is_default(self.plan, spec.kind, default, value);
        let is_stated = setting.is_none_or(|setting| setting.span.is_some());
        Some(UnitOption {
            name,
            value: text,
            resource,
            doc: spec.doc,
            is_number,
            is_off: is_literal && is_usual,
            is_default: is_owner || open.is_none() && (is_usual || is_number && !is_stated),
            is_open: open.is_some(),
            is_ruled,
        })
    }

    /// The memory that `n` units like this one keep between passes.
    pub(super) fn kept(&self, unit: &Unit, n: u64) -> Kept {
        const STATE_ELEMENT: u64 = size_of::<f32>() as u64;
        let mut kept = Kept::default();
        match &unit.state {
            // Models that read a text as a whole keep nothing.
            _ if self.plan.mode != Mode::Causal => {}
            // The layers that read the source keep nothing either.
            Some(StatePlan::KeyValue(rows))
                if self.plan.caches[rows.cache].keys == KeyTokens::Pass => {}
            Some(StatePlan::KeyValue(rows)) if rows.owner.is_some() => {
                kept.text = vec!["reads the KV cache of an earlier layer".into()];
            }
            Some(StatePlan::KeyValue(rows)) => {
                let cache = &self.plan.caches[rows.cache];
                let size = self.state_size(unit);
                // Keys of spans are additional rows of keys.
                let of_blocks = cache.layout().rows(rows.k * CACHE_ELEMENT * BLOCK_LEN);
                let of_blocks = of_blocks / BLOCK_LEN - rows.k * CACHE_ELEMENT;
                let bytes = rows.width().saturating_mul(CACHE_ELEMENT) + of_blocks;
                let bytes = self.known(bytes.saturating_mul(n));
                match cache.window() {
                    Some(_) => kept.in_window = bytes,
                    None => kept.per_token = bytes,
                }
                kept.text = vec![format!("KV cache: {size} elements per token")];
                if let Some(of) = &rows.pooled {
                    let text = "and of whole blocks of tokens one key each";
                    kept.text.push(text.into());
                    kept.in_window = self.known((of.width * STATE_ELEMENT).saturating_mul(n));
                }
            }
            Some(StatePlan::Recurrent(parts)) => {
                let sizes = parts.iter().map(|part| part.size);
                let n_elements = sizes.fold(0, u64::saturating_add);
                let size = self.state_size(unit);
                kept.per_sequence = self.known(n_elements.saturating_mul(n * STATE_ELEMENT));
                kept.text = vec![format!("state: {size} elements per sequence")];
            }
            None => {}
        }
        kept
    }
}

/// The name of the memory that a leaf of the graph belongs to.
fn kept_name(name: &str) -> Option<String> {
    let last = name.rsplit('.').next()?;
    match (last, last.strip_prefix("state_")) {
        ("cache_k", _) => Some("keys".into()),
        ("cache_v", _) => Some("values".into()),
        (_, part) => part.map(|part| format!("state ({part})")),
    }
}
