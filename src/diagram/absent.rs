//! What a definition allows and the drawn model does not have.

use std::collections::BTreeMap;

use super::build::Maker;
use super::formula::Resolved;
use super::variants::conditionals;
use crate::arch::expr::Value;
use crate::arch::{Instance, Presence};
use crate::plan::Unit;

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
        let units = self.plan.units();
        let stages = units.filter(|unit| unit.contract.0.name != "norm");
        for unit in stages {
            let Some(instance) = self.instance(&unit.path) else {
                continue;
            };
            let entry = parts.entry(instance.span.start).or_default();
            entry.0 = self.purpose(unit.contract.0.name, &unit.path);
            for (name, is_there) in optional(unit, instance) {
                let is_absent = entry.1.entry(name).or_insert(true);
                *is_absent &= !is_there;
            }
        }
        let told = parts.into_values().filter_map(|(words, weights)| {
            let absent = weights.into_iter().filter(|(_, is_absent)| *is_absent);
            let names: Vec<&str> = absent.map(|(name, _)| name).collect();
            (!names.is_empty()).then(|| format!("{words}: {}", names.join(", ")))
        });
        told.collect()
    }
}

/// Names of the optional weights that a unit may have, and whether it has them.
fn optional<'i>(unit: &Unit, instance: &'i Instance) -> Vec<(&'i str, bool)> {
    let has = |at: usize| unit.weights[at].is_some();
    let scope = Resolved { unit, has: &has };
    let all = instance.weights.iter().zip(&unit.weights);
    let optional = all.filter(|(weight, _)| weight.presence == Presence::Optional);
    let belongs = optional.filter(|(weight, place)| {
        place.is_some() || weight.when.evaluate(&scope) == Ok(Value::Bool(true))
    });
    belongs
        .map(|(weight, place)| (weight.tensor.as_str(), place.is_some()))
        .collect()
}
