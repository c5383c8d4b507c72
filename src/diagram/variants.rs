//! Which models of a definition are worth a drawing, found from its conditions.
//!
//! A definition says when a slot or branch is there. The first model is the one that `synth` makes by
//! default. What it lacks is looked for in models that differ from it in one parameter or optional
//! tensor: if that makes some layers different, they join the first model; if it makes all layers
//! different, it is another variant.

use std::collections::BTreeSet;

use crate::arch::expr::{Expr, Value};
use crate::arch::{ArchDef, ParamSource};
use crate::plan::{LayerPlan, Plan};
use crate::synth::{Request, design};
use crate::weights::TensorType;

use super::words;

/// A slot or branch of a definition that depends on a condition.
pub(super) struct Conditional<'d> {
    /// In words.
    pub(super) text: String,
    /// A word for the name of a variant.
    tag: &'static str,
    slot: &'d str,
    when: &'d Expr,
    /// Layers that have it.
    pub(super) n_layers: usize,
}

/// Everything in a definition that depends on a condition, and how many layers of a plan have it.
pub(super) fn conditionals<'d>(def: &'d ArchDef, plan: &Plan) -> Vec<Conditional<'d>> {
    let mut out = Vec::new();
    for stack in &def.stacks {
        for slot in &stack.slots {
            let of = |layer: &LayerPlan| format!("{}.{}.{}", stack.name, layer.il, slot.name);
            let mine = |layer: &&LayerPlan| layer.slots.iter().any(|s| s.path == of(layer));
            if let Some(when) = &slot.when {
                out.push(Conditional {
                    text: format!("slot {} (when {})", slot.name, when.source()),
                    tag: "",
                    slot: &slot.name,
                    when,
                    n_layers: plan.layers.iter().filter(mine).count(),
                });
            }
            for branch in &slot.branches {
                let Some(when) = &branch.when else { continue };
                let contract = branch.block.contract;
                let has = |layer: &&LayerPlan| {
                    let own = layer.slots.iter().filter(|s| s.path == of(layer));
                    let mut blocks = own.flat_map(|s| &s.branches);
                    blocks.any(|b| std::ptr::eq(b.block.contract.0, contract))
                };
                let name = words::short(contract.name);
                out.push(Conditional {
                    text: format!("{name} in {} (when {})", slot.name, when.source()),
                    tag: contract.name,
                    slot: &slot.name,
                    when,
                    n_layers: plan.layers.iter().filter(has).count(),
                });
            }
        }
    }
    out
}

/// Names of the variants of a definition, the first one without, and what makes them.
///
/// # Errors
/// The definition has no model by default.
pub fn variants(def: &ArchDef) -> Result<Vec<(String, Request)>, crate::synth::Error> {
    let mut first = Request {
        seed: 0,
        set: Vec::new(),
        meta: Vec::new(),
        with: Vec::new(),
        ty: TensorType::F32,
        vocabulary: None,
    };
    let (_, plan) = design(def, &first)?;
    let mut others: Vec<(String, Request)> = Vec::new();
    let lacking = conditionals(def, &plan);
    for (at, _) in lacking.iter().enumerate().filter(|(_, c)| c.n_layers == 0) {
        let (_, plan) = design(def, &first)?;
        let before = conditionals(def, &plan);
        if before[at].n_layers > 0 {
            continue;
        }
        let mut variant = None;
        for request in edits(def, before[at].when, &first) {
            let Ok((_, plan)) = design(def, &request) else {
                continue;
            };
            let after = conditionals(def, &plan);
            let n = after[at].n_layers;
            let keeps = before
                .iter()
                .zip(&after)
                .all(|(b, a)| b.n_layers == 0 || a.n_layers > 0);
            if n > 0 && n < plan.layers.len() && keeps {
                first = request;
                variant = None;
                break;
            }
            if n > 0 && variant.is_none() {
                variant = Some(request);
            }
        }
        if let Some(request) = variant {
            let tag = match before[at].tag {
                "" => before[at].slot,
                tag => tag,
            };
            if others.iter().all(|(known, _)| known != tag) {
                others.push((tag.to_owned(), request));
            }
        }
    }
    let mut all = vec![(String::new(), first)];
    all.extend(others);
    Ok(all)
}

/// Layers of a model in which not all are alike: enough for every interval of the definitions.
const N_LAYERS: usize = 8;

/// The request with one thing changed of all that a condition depends on, simplest first.
fn edits(def: &ArchDef, when: &Expr, request: &Request) -> Vec<Request> {
    let mut names = BTreeSet::new();
    let mut texts = vec![when.source().to_owned()];
    collect(def, when, &mut names, &mut texts);
    let mut out = Vec::new();
    let mut set = |pairs: &[(&str, String)]| {
        let mut edited = request.clone();
        for (name, value) in pairs {
            edited.set.retain(|(known, _)| known != name);
            edited.set.push(((*name).to_owned(), value.clone()));
        }
        out.push(edited);
    };
    let many = ("block_count", N_LAYERS.to_string());
    set(std::slice::from_ref(&many));
    for name in names {
        let Some(ParamSource::Key { synth, .. }) = def.params.get(&name).map(|p| &p.source) else {
            continue;
        };
        let usual = synth.as_ref().and_then(Expr::as_literal);
        let usual = match usual {
            Some(Value::Int(value)) if *value > 0 => *value,
            _ => 4,
        };
        for value in [1, usual] {
            set(&[(&name, value.to_string())]);
            set(&[(&name, value.to_string()), many.clone()]);
        }
        for pair in [[0, usual], [usual, 0], [0, 1], [1, 0]] {
            let list: Vec<String> = pair
                .iter()
                .cycle()
                .take(N_LAYERS)
                .map(i64::to_string)
                .collect();
            set(&[(&name, list.join(",")), many.clone()]);
        }
        set(&[(&name, "0".into())]);
        set(&[(&name, "false".into())]);
        set(&[(&name, "true".into())]);
    }
    for text in &texts {
        for tensor in text
            .split("has('")
            .skip(1)
            .filter_map(|rest| rest.split('\'').next())
        {
            let mut edited = request.clone();
            let name = tensor.strip_suffix(".weight").unwrap_or(tensor);
            edited.with.push(name.to_owned());
            out.push(edited);
        }
    }
    out
}

/// Parameters that an expression depends on, through others too, and the texts of all on the way.
fn collect(def: &ArchDef, expr: &Expr, names: &mut BTreeSet<String>, texts: &mut Vec<String>) {
    let mut own = Vec::new();
    expr.for_each_name(&mut |name, _| own.push(name.to_owned()));
    for name in own {
        if !names.insert(name.clone()) {
            continue;
        }
        let inner = match def.params.get(&name).map(|param| &param.source) {
            Some(ParamSource::Derived(inner)) => Some(inner),
            Some(ParamSource::Key { default, .. }) => default.as_ref(),
            None => None,
        };
        if let Some(inner) = inner {
            texts.push(inner.source().to_owned());
            collect(def, inner, names, texts);
        }
    }
}
