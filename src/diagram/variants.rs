//! Which models of a definition are worth a drawing, found from its conditions.
//!
//! A definition says when a slot or branch is there. The first model is the one that `synth` makes by
//! default. What it lacks is looked for in models that differ from it in one parameter or optional
//! tensor: if that makes some layers different, they join the first model; if it makes all layers
//! different, it is another variant.

use std::collections::BTreeSet;

use crate::arch::expr::{Expr, Value};
use crate::arch::{ArchDef, Branch, OptionKind, ParamSource, Resolved, Resource, Slot};
use crate::plan::{LayerPlan, Plan, SlotPlan, Unit};
use crate::synth::{Request, design};

use super::open::Needs;

/// A slot or branch of a definition that depends on a condition.
pub(super) struct Conditional<'d> {
    /// In words.
    pub(super) text: String,
    /// A word for the name of a variant.
    tag: &'static str,
    slot: &'d str,
    pub(super) when: &'d Expr,
    /// Layers that have it.
    pub(super) n_layers: usize,
    /// Whether it is a choice of an option rather than something that is there or not.
    pub(super) is_choice: bool,
}

/// Everything in a definition that depends on a condition, and how many layers of a plan have it.
pub(super) fn conditionals<'d>(def: &'d ArchDef, plan: &Plan) -> Vec<Conditional<'d>> {
    let mut out = Vec::new();
    for stack in &def.stacks {
        for slot in &stack.slots {
            let is_own = |planned: &SlotPlan| is_slot(&planned.path, &stack.name, &slot.name);
            let mine = |layer: &&LayerPlan| layer.slots.iter().any(is_own);
            if let Some(when) = &slot.when {
                out.push(Conditional {
                    text: format!("slot {} (when {})", slot.name, when.source()),
                    tag: "",
                    slot: &slot.name,
                    when,
                    n_layers: plan.layers.iter().filter(mine).count(),
                    is_choice: false,
                });
            }
            for branch in &slot.branches {
                let Some(when) = &branch.when else { continue };
                let has = |layer: &&LayerPlan| {
                    let own = layer.slots.iter().filter(|s| is_own(s));
                    let mut blocks = own.flat_map(|s| &s.branches);
                    blocks.any(|b| is_of(plan, &b.block, branch))
                };
                let contract = branch.block.contract;
                let name = contract.short();
                out.push(Conditional {
                    text: format!("{name} in {} (when {})", slot.name, when.source()),
                    tag: contract.name,
                    slot: &slot.name,
                    when,
                    n_layers: plan.layers.iter().filter(has).count(),
                    is_choice: false,
                });
            }
            for branch in &slot.branches {
                let blocks = plan.layers.iter().flat_map(|layer| {
                    let own = layer.slots.iter().filter(|s| is_own(s));
                    own.flat_map(|s| &s.branches).map(|b| &b.block)
                });
                let same = |unit: &&Unit| is_of(plan, unit, branch);
                choices(
                    &mut out,
                    slot,
                    branch,
                    plan,
                    &blocks.filter(same).collect::<Vec<_>>(),
                );
            }
        }
    }
    out
}

/// Whether a path is `STACK.IL.SLOT`.
fn is_slot(path: &str, stack: &str, slot: &str) -> bool {
    let rest = path
        .strip_prefix(stack)
        .and_then(|rest| rest.strip_suffix(slot));
    let il = rest.and_then(|rest| rest.strip_prefix('.')?.strip_suffix('.'));
    il.is_some_and(|il| !il.is_empty() && il.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a block was planned for a branch: the same contract, with weights of the same names.
pub(super) fn is_of(plan: &Plan, unit: &Unit, branch: &Branch) -> bool {
    let names = unit.weights.iter().zip(&branch.block.weights);
    let mut pairs = names.filter_map(|(at, named)| Some(((*at)?, named)));
    std::ptr::eq(unit.contract.0, branch.block.contract)
        && pairs.all(|(at, named)| plan.tensors[at].name.ends_with(&named.tensor))
}

/// Caches and rotations that a branch chooses from.
fn choices<'d>(
    out: &mut Vec<Conditional<'d>>,
    slot: &'d Slot,
    branch: &'d Branch,
    plan: &Plan,
    units: &[&Unit],
) {
    let specs = branch.block.contract.options.iter();
    for (at, (spec, setting)) in specs.zip(&branch.block.options).enumerate() {
        let name = |place: usize| match spec.kind {
            OptionKind::Resource(Resource::Cache) => Some(plan.caches[place].name.as_str()),
            OptionKind::Resource(Resource::Rope) => plan.ropes[place].path.strip_prefix("rope."),
            _ => None,
        };
        let chooses = matches!(
            spec.kind,
            OptionKind::Resource(Resource::Cache | Resource::Rope)
        );
        let mut texts = BTreeSet::new();
        if chooses && setting.span.is_some() {
            let mut add = |text: &str| texts.insert(text.to_owned());
            setting.expr.for_each_text_result(&mut |text| {
                add(text);
            });
        }
        for text in texts {
            let is = |unit: &&&Unit| match unit.options[at] {
                Resolved::Resource(Some(place)) => name(place) == Some(text.as_str()),
                _ => text == "none",
            };
            out.push(Conditional {
                text: format!("{} {text} in {}", spec.name, slot.name),
                tag: "",
                slot: &slot.name,
                when: &setting.expr,
                n_layers: units.iter().filter(is).count(),
                is_choice: true,
            });
        }
    }
}

/// Names of the variants of a definition, the first one without, and what makes them.
///
/// # Errors
/// The definition has no model by default.
pub fn variants(def: &ArchDef) -> Result<Vec<(String, Request)>, crate::synth::Error> {
    let mut first = Request::default();
    let (_, mut plan) = design(def, &first)?;
    // Few layers hide in which order their kinds come.
    let mut many = first.clone();
    many.set.push(("block_count".into(), N_LAYERS.to_string()));
    if let Ok((_, deep)) = design(def, &many)
        && conditionals(def, &deep)
            .iter()
            .any(|c| 0 < c.n_layers && c.n_layers < deep.layers.len())
    {
        (first, plan) = (many, deep);
    }
    let mut others: Vec<Variant> = Vec::new();
    let lacking = conditionals(def, &plan);
    for at in (0..lacking.len()).filter(|at| lacking[*at].n_layers == 0) {
        let (_, plan) = design(def, &first)?;
        let before = conditionals(def, &plan);
        if before[at].n_layers > 0 || others.iter().any(|other| other.has[at]) {
            continue;
        }
        let [usual, mixed] = edits(def, before[at].when, &first);
        match search(def, &before, at, &usual).or_else(|| search(def, &before, at, &mixed)) {
            Some(Found::Joins(request)) => first = request,
            Some(Found::Differs(request, has)) if !before[at].is_choice => {
                let tag = match before[at].tag {
                    "" => before[at].slot,
                    tag => tag,
                };
                others.push(Variant {
                    tag: tag.to_owned(),
                    request,
                    has,
                });
            }
            _ => {}
        }
    }
    let others = others.into_iter().map(|other| (other.tag, other.request));
    Ok([(String::new(), first)].into_iter().chain(others).collect())
}

/// A model that is not the first one.
struct Variant {
    tag: String,
    request: Request,
    /// Which of the conditions hold in it.
    has: Vec<bool>,
}

/// A model in which a condition holds.
enum Found {
    /// For some layers, beside all that there was before.
    Joins(Request),
    /// For all layers, or in place of something; which conditions hold.
    Differs(Request, Vec<bool>),
}

/// The first request that makes a condition true for some layers, or else for all.
fn search(
    def: &ArchDef,
    before: &[Conditional<'_>],
    at: usize,
    requests: &[Request],
) -> Option<Found> {
    let mut differs = None;
    for request in requests {
        let Ok((_, plan)) = design(def, request) else {
            continue;
        };
        let after = conditionals(def, &plan);
        let n = after[at].n_layers;
        let mut pairs = before.iter().zip(&after);
        let keeps = pairs.all(|(b, a)| b.n_layers == 0 || a.n_layers > 0);
        if n > 0 && n < plan.layers.len() && keeps {
            return Some(Found::Joins(request.clone()));
        }
        if n > 0 && differs.is_none() {
            let has = after.iter().map(|conditional| conditional.n_layers > 0);
            differs = Some(Found::Differs(request.clone(), has.collect()));
        }
    }
    differs
}

/// Layers of a model in which not all are alike: enough for every interval of the definitions.
const N_LAYERS: usize = 12;

/// The request with one thing changed of all that a condition depends on: first what is one value for
/// all layers, then values that change from layer to layer.
fn edits(def: &ArchDef, when: &Expr, request: &Request) -> [Vec<Request>; 2] {
    let Needs { names, texts } = Needs::of(def, when);
    let set = |pairs: &[(&str, String)]| {
        let mut edited = request.clone();
        for (name, value) in pairs {
            edited.set.retain(|(known, _)| known != name);
            edited.set.push(((*name).to_owned(), value.clone()));
        }
        edited
    };
    let many = ("block_count", N_LAYERS.to_string());
    let mut usual = vec![set(std::slice::from_ref(&many))];
    let mut mixed = Vec::new();
    for name in &names {
        let Some(value) = usual_value(def, name) else {
            continue;
        };
        for text in ["1", &value.to_string(), "true"] {
            usual.push(set(&[(name, text.to_owned())]));
            usual.push(set(&[(name, text.to_owned()), many.clone()]));
        }
        for pair in [[0, value], [value, 0], [0, 1], [1, 0]] {
            let list = pair.iter().cycle().take(N_LAYERS).map(i64::to_string);
            let list: Vec<String> = list.collect();
            mixed.push(set(&[(name, list.join(",")), many.clone()]));
        }
        mixed.extend(["0", "false"].map(|text| set(&[(name, text.to_owned())])));
    }
    // Two lists whose values meet in every way.
    for (a, b) in names.iter().flat_map(|a| names.iter().map(move |b| (a, b))) {
        let list = |name: &str, period: usize| {
            let usual = usual_value(def, name)?;
            let on = |at: usize| {
                if (at / period).is_multiple_of(2) {
                    0
                } else {
                    usual
                }
            };
            let list: Vec<String> = (0..N_LAYERS).map(|at| on(at).to_string()).collect();
            Some(list.join(","))
        };
        if let (true, Some(one), Some(two)) = (a != b, list(a, 1), list(b, 2)) {
            mixed.push(set(&[(a, one), (b, two), many.clone()]));
        }
    }
    for text in &texts {
        let tensors = text.split("has('").skip(1);
        for tensor in tensors.filter_map(|rest| rest.split('\'').next()) {
            let mut edited = request.clone();
            let name = tensor.strip_suffix(".weight").unwrap_or(tensor);
            edited.with.push(name.to_owned());
            usual.push(edited);
        }
    }
    [usual, mixed]
}

/// A whole number that a parameter of the file may have.
fn usual_value(def: &ArchDef, name: &str) -> Option<i64> {
    let ParamSource::Key { synth, .. } = &def.params.get(name)?.source else {
        return None;
    };
    Some(match synth.as_ref().and_then(Expr::as_literal) {
        Some(Value::Int(value)) if *value > 0 => *value,
        _ => 4,
    })
}
