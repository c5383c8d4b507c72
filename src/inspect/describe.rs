//! Describes a plan in words: the kind of model, its layers, positions, stages and memory.
//!
//! The description of a block is the phrase of its contract with the numbers of the plan. Layers with the same phrases
//! are described once, as a [`LayerGroup`]. If there would be too many groups, layers that differ only in numbers are
//! described with ranges.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use lab_base::util::wording::{bytes, capital, count, layers, listed, tidy};
use lab_base::weights::TensorType;
use lab_core::arch::expr::{Expr, Scope, Value};
use lab_core::arch::formula::particular;
use lab_core::arch::{Mode, OptionSpec, ResolvedOption};
use lab_core::engine::Remasking;
use lab_core::plan::{
    CachePlan, DiffusionPlan, KeyTokens, LayerPlan, NormUse, Plan, Pooling, SlotPlan, StatePlan,
    Unit,
};

/// Maximum number of groups with exact numbers; beyond it, numbers become ranges.
const MAX_GROUPS: usize = 4;

/// Layers with the same description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// The indices of the layers over all stacks.
    pub layers: Vec<usize>,
    /// The description of the group.
    pub text: String,
}

/// The paragraph about a model.
pub fn describe(plan: &Plan) -> String {
    let mut all = vec![overview(plan)];
    all.extend(layer_groups(plan).into_iter().map(|group| group.text));
    let one = |unit: &Unit| phrase(plan, &[unit]);
    let norms: BTreeSet<String> = plan.norms.iter().map(one).collect();
    all.extend(norms.into_iter().map(|norm| format!("norms: {norm}")));
    let mixes: BTreeSet<String> = plan.mixes().map(one).collect();
    all.extend(mixes);
    let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
    let units = plan.ropes.iter().chain([&plan.embed]);
    all.extend(units.chain(&plan.per_layer).chain(head).map(one));
    match head {
        None => all.push(format!(
            "embedding of a text: {}",
            pooling_phrase(plan.pooling())
        )),
        Some(head) if head.weight("output") == plan.embed.weight("tokens") => {
            all.push("embedding and head share their weights".into());
        }
        Some(_) => {}
    }
    let rule = |of: &DiffusionPlan| format!("remasking: {}", Remasking::usual(of.shift_logits));
    all.extend(plan.diffusion.as_ref().map(rule));
    all.push(memory(plan));
    let sentences = all.iter().filter(|text| !text.is_empty());
    let sentences: Vec<String> = sentences.map(|text| capital(text) + ".").collect();
    sentences.join(" ")
}

fn overview(plan: &Plan) -> String {
    let kind = match plan.source {
        Some(_) => "a sequence-to-sequence model",
        None => mode_phrase(plan.mode),
    };
    let mut text = format!(
        "{kind}: {} weights, {} layers, hidden state of {} elements, vocabulary of {} tokens",
        count(plan.n_weights()),
        plan.layers.len(),
        plan.n_embd,
        plan.n_vocab
    );
    if let Some(n) = plan.source.as_ref().map(|source| source.n_layers) {
        text += &format!(", of which the first {n} layers read the source and the others write");
    }
    if plan.n_ctx_train > 0 {
        text += &format!(", trained on contexts of {} tokens", plan.n_ctx_train);
    }
    text
}

pub(crate) fn mode_phrase(mode: Mode) -> &'static str {
    match mode {
        Mode::Causal => "an autoregressive model",
        Mode::Diffusion => "a text diffusion model",
        Mode::Encoder => "an encoder",
        Mode::Tower => "a tower, which makes rows for another model",
    }
}

/// How the vector of a text is computed.
pub(crate) fn pooling_phrase(pooling: Pooling) -> &'static str {
    match pooling {
        Pooling::Mean => "the mean of its tokens' vectors",
        Pooling::First => "the vector of its first token",
        Pooling::Last => "the vector of its last token",
        Pooling::Max => "the largest of each element over its tokens' vectors",
        Pooling::MeanSqrt => "the sum of its tokens' vectors over the square root of their number",
        Pooling::Weighted => "the mean of its tokens' vectors weighted by position",
        Pooling::LateMean => "the mean of the scores of its tokens",
        Pooling::Each => "none, each token has scores",
    }
}

/// The texts of options that a phrase has instead of their own values.
type OptionText<'t> = &'t dyn Fn(&str) -> Option<String>;

/// Groups of layers with the same description, in the order of their first layers.
pub fn layer_groups(plan: &Plan) -> Vec<LayerGroup> {
    let exact = grouped(plan, &|units| phrase(plan, units));
    match exact.len() > MAX_GROUPS {
        // Layers that differ only in numbers are described together.
        true => grouped(plan, &|units| template(plan, units, &|_| Some("#".into()))),
        false => exact,
    }
}

fn grouped(plan: &Plan, key: &dyn Fn(&[&Unit]) -> String) -> Vec<LayerGroup> {
    let mut all: Vec<LayerGroup> = Vec::new();
    for (at, layer) in plan.layers.iter().enumerate() {
        let text = line(&[layer], key);
        let layers = vec![at];
        match all.iter_mut().find(|known| known.text == text) {
            Some(known) => known.layers.push(at),
            None => all.push(LayerGroup { layers, text }),
        }
    }
    for group in &mut all {
        let likes = group.layers.iter().map(|at| &plan.layers[*at]);
        let text = line(&likes.collect::<Vec<_>>(), &|units| phrase(plan, units));
        group.text = format!("{}: {text}", layers(&group.layers, plan.layers.len()));
    }
    all
}

/// Describes equal layers: their slots in order, each with its branches and the places of its norms.
fn line(layers: &[&LayerPlan], phrase: &dyn Fn(&[&Unit]) -> String) -> String {
    let slots = layers[0].slots.iter().enumerate().map(|(at, slot)| {
        let branches = slot.branches.iter().enumerate().map(|(nth, branch)| {
            let units = layers.iter().map(|l| &l.slots[at].branches[nth].block);
            let text = phrase(&units.collect::<Vec<_>>());
            let names = branch.role().into_iter().chain(branch.side.as_deref());
            let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
            match names.is_empty() {
                true => text,
                false => format!("{text} ({})", names.join(", ")),
            }
        });
        let text = branches.collect::<Vec<_>>().join(" alongside ");
        format!("{text}{}", norms(slot))
    });
    let slots: Vec<String> = slots.collect();
    match slots.is_empty() {
        true => "nothing".into(),
        false => slots.join("; then "),
    }
}

/// The places of a slot's norms.
fn norms(slot: &SlotPlan) -> String {
    let before = slot.pre.is_some() || slot.branches.iter().any(|b| b.pre.is_some());
    let after = slot.post.is_some() || slot.branches.iter().any(|b| b.post.is_some());
    let places = [
        before.then_some("before"),
        after.then_some("after"),
        slot.after.is_some().then_some("of the sum"),
    ];
    let places: Vec<&str> = places.into_iter().flatten().collect();
    match places.is_empty() {
        true => String::new(),
        false => format!(" (norm {})", listed(&places)),
    }
}

/// The phrase of equal uses of a contract, with ranges for numbers that differ.
pub(crate) fn phrase(plan: &Plan, units: &[&Unit]) -> String {
    let value = |name: &str| {
        let values = units.iter().filter_map(|unit| unit.option_int(name));
        let (least, most) = (values.clone().min()?, values.max()?);
        (least != most).then(|| format!("{least} to {most}"))
    };
    template(plan, units, &value)
}

/// The same phrase, with `value` instead of an option's own value where it returns one.
fn template(plan: &Plan, units: &[&Unit], value: OptionText<'_>) -> String {
    let contract = units[0].contract.0;
    let is_open = |name: &str| {
        let is_int = matches!(units[0].option(name), Some(ResolvedOption::Int(_)));
        value(name).filter(|_| is_int)
    };
    let mut text = match contract.phrase {
        "" => contract.noun.to_owned(),
        phrase => filled(plan, phrase, units[0], &is_open),
    };
    match &units[0].state {
        Some(StatePlan::KeyValue(rows)) => {
            text += &format!(
                " over {}",
                attended_tokens(plan, &plan.caches[rows.cache], &|_| None)
            );
            if let Some(selection) = plan.selection(units[0]) {
                text += &format!(", of these {}", phrase(plan, &[selection]));
            }
            match units[0].option("rope") {
                Some(ResolvedOption::Resource(Some(at))) if plan.ropes.len() > 1 => {
                    let base = plan.ropes[*at].option("base").map(ResolvedOption::to_value);
                    let base = base.map(|base| base.to_string()).unwrap_or_default();
                    text += &format!(", rope of base {base}");
                }
                Some(ResolvedOption::Resource(None)) if !plan.ropes.is_empty() => {
                    text += ", no rope"
                }
                _ => {}
            }
            if rows.owner.is_some() {
                text += ", KV cache of an earlier layer";
            }
        }
        Some(StatePlan::Recurrent(parts)) => {
            let sizes = parts.iter().map(|part| part.size);
            let n = sizes.fold(0, u64::saturating_add);
            text += &format!(", state of {n} elements");
        }
        None => {}
    }
    text
}

pub(crate) fn attended_tokens(plan: &Plan, cache: &CachePlan, value: OptionText<'_>) -> String {
    let mut unit = cache.unit.clone();
    for (spec, option) in cache.unit.contract.0.options.iter().zip(&mut unit.options) {
        if spec.name == "causal" && plan.mode != Mode::Causal {
            *option = ResolvedOption::Bool(false);
        }
    }
    let text = filled(plan, unit.contract.0.phrase, &unit, value);
    match cache.keys {
        KeyTokens::Tokens => text,
        KeyTokens::Source | KeyTokens::Pass => text + " of the source",
    }
}

fn filled(plan: &Plan, phrase: &str, unit: &Unit, value: OptionText<'_>) -> String {
    let name = |name: &str| match unit.option(name) {
        Some(ResolvedOption::Float(value)) => Some(tidy(*value)),
        Some(ResolvedOption::Resource(_)) => Some(match resource(plan, unit, name) {
            Some(inner) => filled(plan, inner.contract.0.phrase, inner, value),
            None => "none".into(),
        }),
        _ => value(name),
    };
    particular(phrase, &UnitScope(unit), &name).unwrap_or_else(|problem| {
        debug_assert!(false, "phrase of {}: {problem}", unit.contract.0.name);
        unit.contract.0.noun.to_owned()
    })
}

fn resource<'p>(plan: &'p Plan, unit: &Unit, name: &str) -> Option<&'p Unit> {
    plan.resource(unit.contract.0.option(name)?.kind, unit.option(name)?)
}

/// The kind of the resource that an option of a unit names, in the form used by formulas.
pub(crate) fn resource_kind(plan: &Plan, unit: &Unit, name: &str) -> Option<String> {
    match resource(plan, unit, name)?.option("kind")? {
        ResolvedOption::Choice(kind) => Some((*kind).to_owned()),
        _ => None,
    }
}

/// The memory that a sequence occupies between passes, in words; empty if there is none.
fn memory(plan: &Plan) -> String {
    if plan.mode != Mode::Causal {
        return String::new();
    }
    let row = |has_window: bool| {
        let own = plan.key_values().map(|(_, rows)| rows);
        let own = own.filter(|rows| plan.caches[rows.cache].window().is_some() == has_window);
        let mut rows = own.map(|rows| TensorType::F16.row_bytes(rows.width()));
        rows.try_fold(0u64, |sum, row| sum.checked_add(row?))
    };
    let all = [
        (row(false), "KV cache (f16)", "per token"),
        (row(true), "KV cache (f16)", "per token within the window"),
        (plan.recurrent_bytes(1), "recurrent state", "per sequence"),
    ];
    let known = all.into_iter().filter(|(n, ..)| *n != Some(0));
    let known = known.map(|(n, what, per)| {
        let amount = n.map_or_else(|| "more than can be counted".to_owned(), bytes);
        format!("{what}: {amount} {per}")
    });
    known.collect::<Vec<_>>().join(", ")
}

/// The weights with one purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WeightShare {
    pub what: String,
    /// Number of tensors of each element type.
    pub types: BTreeMap<&'static str, usize>,
    #[serde(rename = "tensors")]
    pub n_tensors: usize,
    /// Number of elements.
    #[serde(rename = "weights")]
    pub n_weights: u64,
    /// Bytes as stored.
    pub bytes: u64,
}

/// The weights of a model by purpose, in the order of their first use; each tensor counts once.
pub fn weight_shares(plan: &Plan) -> Vec<WeightShare> {
    let mut shares: Vec<WeightShare> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut add = |what: &str, tensors: &[Option<usize>]| {
        for at in tensors.iter().flatten().filter(|at| seen.insert(**at)) {
            let found = shares.iter().position(|share| share.what == what);
            let found = found.unwrap_or_else(|| {
                shares.push(WeightShare {
                    what: what.to_owned(),
                    ..WeightShare::default()
                });
                shares.len() - 1
            });
            let (share, tensor) = (&mut shares[found], &plan.tensors[*at]);
            share.n_tensors += 1;
            share.n_weights += tensor.shape.iter().product::<u64>();
            share.bytes += tensor.bytes;
            if let Some(ty) = tensor.ty {
                *share.types.entry(ty.name()).or_default() += 1;
            }
        }
    };
    let norm = |norm: &Option<NormUse>| norm.as_ref().map_or([None, None], |n| [n.weight, n.bias]);
    let ends = [&plan.embed].into_iter().chain(&plan.per_layer);
    for unit in ends.chain(plan.mixes()) {
        add(unit.contract.0.short(), &unit.weights);
    }
    for slot in plan.layers.iter().flat_map(|layer| &layer.slots) {
        for branch in &slot.branches {
            add(&branch.short(), &branch.block.weights);
            add("norms", &[&branch.pre, &branch.post].map(norm).concat());
        }
        let norms = [&slot.pre, &slot.post, &slot.after].map(norm);
        add("norms", norms.as_flattened());
    }
    plan.head
        .iter()
        .for_each(|head| add("norms", &norm(&head.norm)));
    let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
    for unit in plan.ropes.iter().chain(head) {
        add(unit.contract.0.short(), &unit.weights);
    }
    shares
}

/// The options and weights of a unit in a plan, for conditions and formulas.
pub(crate) struct UnitScope<'u>(pub(crate) &'u Unit);

impl Scope for UnitScope<'_> {
    fn name(&self, name: &str, _: bool) -> Result<Value, String> {
        if let Some(value) = self.0.option(name) {
            return Ok(value.to_value());
        }
        let steps = self.0.path.split('.').filter(|_| name == "depth");
        let depth = steps.filter_map(|step| step.parse().ok()).next();
        depth
            .map(Value::Int)
            .ok_or_else(|| format!("there is no option `{name}`"))
    }

    fn has(&self, key: &str) -> Result<bool, String> {
        let specs = self.0.contract.0.weights;
        let at = specs.iter().position(|weight| weight.key == key);
        let at = at.ok_or_else(|| format!("there is no weight `{key}`"))?;
        Ok(self.0.weights.get(at).is_some_and(Option::is_some))
    }

    fn dim(&self, _: &str, _: i64) -> Result<i64, String> {
        Err("a formula does not depend on sizes".into())
    }

    fn count(&self, _: &str) -> Result<i64, String> {
        Err("a formula does not depend on arrays".into())
    }
}

/// Whether an option of a unit has an effect, according to its contract.
pub fn has_effect(spec: &OptionSpec, unit: &Unit) -> bool {
    let holds = Expr::of_program(spec.when).map(|when| when.evaluate(&UnitScope(unit)));
    !matches!(holds, Ok(Ok(Value::Bool(false))))
}
