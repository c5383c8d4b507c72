//! Which models of a definition are worth a drawing, found from its conditions.
//!
//! A definition says when a slot or branch is there. The first model is the one that `synth` makes by
//! default. What it lacks is looked for in models that differ from it in one parameter or optional
//! tensor: if that makes some layers different, they join the first model; if it makes all layers
//! different, it is another variant.

use std::collections::BTreeSet;

use crate::arch::expr::{Expr, Value};
use crate::arch::{ArchDef, Branch, OptionKind, ParamSource, Resolved, Resource};
use crate::files::synth::{Error, Request, design};
use crate::plan::{Plan, SlotPlan, Unit};

/// Something in a definition that depends on a condition.
struct Conditional<'d> {
    /// In words.
    text: String,
    /// A word for the name of a variant; none for a choice of an option.
    tag: Option<&'d str>,
    when: &'d Expr,
    /// Layers that have it.
    n_layers: usize,
}

/// Slots and branches of a definition that no layer of a plan has.
pub(super) fn absent(def: &ArchDef, plan: &Plan) -> Vec<String> {
    let all = conditionals(def, plan).into_iter();
    let absent = all.filter(|conditional| conditional.n_layers == 0 && conditional.tag.is_some());
    absent.map(|conditional| conditional.text).collect()
}

/// Everything in a definition that depends on a condition, and how many layers of a plan have it.
fn conditionals<'d>(def: &'d ArchDef, plan: &Plan) -> Vec<Conditional<'d>> {
    let mut out = Vec::new();
    let stacks = def.stacks.iter().enumerate();
    let slots = stacks.flat_map(|(stack, own)| {
        own.slots
            .iter()
            .enumerate()
            .map(move |(at, slot)| (stack, at, slot))
    });
    for (stack, at, slot) in slots {
        let layers = plan.layers.iter().filter(|layer| layer.stack == stack);
        let own = layers
            .flat_map(|layer| &layer.slots)
            .filter(|own| own.at == at);
        let own: Vec<&SlotPlan> = own.collect();
        if let Some(when) = &slot.when {
            out.push(Conditional {
                text: format!("slot {} (when {})", slot.name, when.source()),
                tag: Some(&slot.name),
                when,
                n_layers: own.len(),
            });
        }
        for (at, branch) in slot.branches.iter().enumerate() {
            let branches = own.iter().flat_map(|slot| &slot.branches);
            let units = branches.filter(|own| own.at == at).map(|own| &own.block);
            let units: Vec<&Unit> = units.collect();
            if let Some(when) = &branch.when {
                let name = branch.block.contract.short();
                out.push(Conditional {
                    text: format!("{name} in {} (when {})", slot.name, when.source()),
                    tag: Some(branch.block.contract.name),
                    when,
                    n_layers: units.len(),
                });
            }
            choices(&mut out, branch, plan, &units);
        }
    }
    out
}

/// Caches and rotations that a branch chooses from.
fn choices<'d>(out: &mut Vec<Conditional<'d>>, branch: &'d Branch, plan: &Plan, units: &[&Unit]) {
    let specs = branch.block.contract.options.iter();
    for (at, (spec, setting)) in specs.zip(&branch.block.options).enumerate() {
        let OptionKind::Resource(kind @ (Resource::Cache | Resource::Rope)) = spec.kind else {
            continue;
        };
        let mut texts = BTreeSet::new();
        setting.expr.for_each_text_result(&mut |text| {
            texts.insert(text.to_owned());
        });
        for text in texts {
            let is = |unit: &&&Unit| match (&unit.options[at], kind) {
                (Resolved::Resource(Some(at)), Resource::Cache) => plan.caches[*at].name == text,
                (Resolved::Resource(Some(at)), _) => {
                    plan.ropes[*at].path.strip_prefix("rope.") == Some(&text)
                }
                _ => text == "none",
            };
            out.push(Conditional {
                n_layers: units.iter().filter(is).count(),
                text,
                tag: None,
                when: &setting.expr,
            });
        }
    }
}

/// Names of the variants of a definition, the first one without, and what makes them.
///
/// # Errors
/// The definition has no model by default.
pub fn variants(def: &ArchDef) -> Result<Vec<(String, Request)>, Error> {
    let mut first = Request::default();
    let (_, mut plan) = design(def, &first)?;
    // Few layers hide in which order their kinds come.
    let many = with(&first, &[("block_count", N_LAYERS.to_string())]);
    if let Ok((_, deep)) = design(def, &many) {
        let all = conditionals(def, &deep);
        let is_some = |c: &Conditional<'_>| 0 < c.n_layers && c.n_layers < deep.layers.len();
        if all.iter().any(is_some) {
            (first, plan) = (many, deep);
        }
    }
    let mut others: Vec<(String, Request, Vec<bool>)> = Vec::new();
    let lacking = conditionals(def, &plan);
    for at in (0..lacking.len()).filter(|at| lacking[*at].n_layers == 0) {
        let (_, plan) = design(def, &first)?;
        let before = conditionals(def, &plan);
        if before[at].n_layers > 0 || others.iter().any(|(.., has)| has[at]) {
            continue;
        }
        let found = edits(def, before[at].when, &first)
            .into_iter()
            .find_map(|requests| {
                let mut differs = None;
                for request in requests {
                    let Ok((_, plan)) = design(def, &request) else {
                        continue;
                    };
                    let after = conditionals(def, &plan);
                    let mut pairs = before.iter().zip(&after);
                    let keeps = pairs.all(|(b, a)| b.n_layers == 0 || a.n_layers > 0);
                    match after[at].n_layers {
                        0 => {}
                        n if n < plan.layers.len() && keeps => return Some((request, None)),
                        _ => {
                            let has = after.iter().map(|c| c.n_layers > 0).collect();
                            differs = differs.or(Some((request, Some(has))));
                        }
                    }
                }
                differs
            });
        match (found, before[at].tag) {
            (Some((request, None)), _) => first = request,
            (Some((request, Some(has))), Some(tag)) => others.push((tag.to_owned(), request, has)),
            _ => {}
        }
    }
    let others = others.into_iter().map(|(tag, request, _)| (tag, request));
    Ok([(String::new(), first)].into_iter().chain(others).collect())
}

/// Layers of a model in which not all are alike: enough for every interval of the definitions.
const N_LAYERS: usize = 12;

/// A request with other values for some parameters.
fn with(request: &Request, pairs: &[(&str, String)]) -> Request {
    let mut edited = request.clone();
    for (name, value) in pairs {
        edited.set.retain(|(known, _)| known != name);
        edited.set.push(((*name).to_owned(), value.clone()));
    }
    edited
}

/// The request with one thing changed of all that a condition depends on: first what is one value for
/// all layers, then values that change from layer to layer.
fn edits(def: &ArchDef, when: &Expr, request: &Request) -> [Vec<Request>; 2] {
    let mut needs = Needs::default();
    needs.add(def, when);
    let many = ("block_count", N_LAYERS.to_string());
    let mut usual = vec![with(request, std::slice::from_ref(&many))];
    let mut mixed = Vec::new();
    let list = |value: &dyn Fn(usize) -> i64| {
        let values: Vec<String> = (0..N_LAYERS).map(|at| value(at).to_string()).collect();
        values.join(",")
    };
    let names = needs.names.iter().map(String::as_str);
    let known = names.filter_map(|name| Some((name, usual_value(def, name)?)));
    let known: Vec<(&str, i64)> = known.collect();
    for (name, value) in &known {
        for text in ["1", &value.to_string(), "true"] {
            usual.push(with(request, &[(name, text.to_owned())]));
            usual.push(with(request, &[(name, text.to_owned()), many.clone()]));
        }
        for pair in [[0, *value], [*value, 0], [0, 1], [1, 0]] {
            mixed.push(with(
                request,
                &[(name, list(&|at| pair[at % 2])), many.clone()],
            ));
        }
        mixed.extend(["0", "false"].map(|text| with(request, &[(name, text.to_owned())])));
    }
    // Two lists whose values meet in every way.
    for ((a, of_a), (b, of_b)) in known.iter().flat_map(|a| known.iter().map(move |b| (a, b))) {
        if a != b {
            let one = list(&|at| if at % 2 == 0 { 0 } else { *of_a });
            let two = list(&|at| if at / 2 % 2 == 0 { 0 } else { *of_b });
            mixed.push(with(request, &[(a, one), (b, two), many.clone()]));
        }
    }
    let tensors = needs
        .texts
        .iter()
        .flat_map(|text| text.split("has('").skip(1));
    for tensor in tensors.filter_map(|rest| rest.split('\'').next()) {
        let mut edited = request.clone();
        let name = tensor.strip_suffix(".weight").unwrap_or(tensor);
        edited.with.push(name.to_owned());
        usual.push(edited);
    }
    [usual, mixed]
}

/// What an expression depends on, through derived parameters too: names, and the texts on the way.
#[derive(Default)]
struct Needs {
    names: BTreeSet<String>,
    texts: Vec<String>,
}

impl Needs {
    fn add(&mut self, def: &ArchDef, expr: &Expr) {
        self.texts.push(expr.source().to_owned());
        let mut own = Vec::new();
        expr.for_each_name(&mut |name, _| own.push(name.to_owned()));
        for name in own {
            let is_new = self.names.insert(name.clone());
            let source = def.params.get(&name).map(|param| &param.source);
            match source.filter(|_| is_new) {
                Some(ParamSource::Derived(inner)) => self.add(def, inner),
                Some(ParamSource::Key { default, .. }) => {
                    default.iter().for_each(|inner| self.add(def, inner));
                }
                None => {}
            }
        }
    }
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
