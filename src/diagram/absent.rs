//! What a definition allows and the drawn model does not have.

use std::collections::BTreeMap;

use super::build::Maker;
use super::formula::Resolved;
use super::variants::conditionals;
use crate::arch::Resolved::Choice;
use crate::arch::expr::Value;
use crate::arch::{Instance, Presence};
use crate::plan::{NormUse, Plan, Unit};

impl Maker<'_> {
    /// Slots and branches that no layer has.
    pub(super) fn absent(&self) -> Vec<String> {
        let all = conditionals(self.def, self.plan).into_iter();
        let absent = all.filter(|conditional| conditional.n_layers == 0 && !conditional.is_choice);
        absent.map(|conditional| conditional.text).collect()
    }

    /// For each part of the definition the optional weights that no layer has.
    pub(super) fn optional(&self) -> Vec<String> {
        // By the begin of a part in the definition: its words, and for each weight whether it is absent
        // wherever it may be.
        let mut parts: BTreeMap<usize, (String, BTreeMap<&str, bool>)> = BTreeMap::new();
        let plan = self.plan;
        let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
        let stages = [&plan.embed].into_iter().chain(&plan.per_layer).chain(head);
        for unit in stages.chain(plan.units()) {
            let Some(instance) = self.instance(&unit.path) else {
                continue;
            };
            let entry = parts.entry(instance.span.start).or_default();
            entry.0 = self.purpose(unit.contract.0.name, &unit.path);
            for (name, is_there) in optional(plan, unit, instance) {
                let is_absent = entry.1.entry(name).or_insert(true);
                *is_absent &= !is_there;
            }
        }
        let told = parts.into_values().filter_map(|(words, weights)| {
            let absent = weights.into_iter().filter(|(_, is_absent)| *is_absent);
            let names: Vec<&str> = absent.map(|(name, _)| name).collect();
            (!names.is_empty()).then(|| format!("{words}: {}", names.join(", ")))
        });
        told.chain(self.offsets_of_norms()).collect()
    }

    /// What may be of norms that subtract the mean: their offsets.
    fn offsets_of_norms(&self) -> Option<String> {
        let plan = self.plan;
        let slots = plan.layers.iter().flat_map(|layer| &layer.slots);
        let norms = slots.flat_map(|slot| {
            let branches = slot.branches.iter().flat_map(|b| [&b.pre, &b.post]);
            [&slot.pre, &slot.post, &slot.after]
                .into_iter()
                .chain(branches)
        });
        let head = plan.head.iter().map(|head| &head.norm);
        let mut norms = norms.chain(head).flatten().peekable();
        norms.peek()?;
        let may_have = |norm: &NormUse| {
            let kind = plan.norms[norm.norm].option("kind");
            kind == Some(&Choice("layer")) && norm.bias.is_none()
        };
        norms
            .all(may_have)
            .then(|| "norms: a .bias each".to_owned())
    }
}

/// Names of the optional weights that a unit may have, and whether it has them.
fn optional<'i>(plan: &Plan, unit: &Unit, instance: &'i Instance) -> Vec<(&'i str, bool)> {
    let has = |at: usize| unit.weights[at].is_some();
    let scope = Resolved { unit, has: &has };
    let all = instance.weights.iter().zip(&unit.weights);
    let optional = all.filter(|(weight, _)| weight.presence == Presence::Optional);
    let belongs = optional.filter(|(weight, place)| {
        place.is_some() || weight.when.evaluate(&scope) == Ok(Value::Bool(true))
    });
    // Where a tensor may stand in for another, that one is not there.
    let is_own = |at: usize, name: &str| plan.tensors[at].name.ends_with(name);
    belongs
        .map(|(weight, place)| {
            let name = weight.tensor.as_str();
            (name, place.is_some_and(|at| is_own(at, name)))
        })
        .collect()
}
