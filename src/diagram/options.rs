//! The options of a part as the definition resolves them, so that two parts can be compared.
//!
//! Those of the rotation, the cache and the norms that a part names are among them, under the name of
//! the option that names them: `rope.kind`, `cache.size`. What the contract computes from other options
//! is no choice and left out, and so is the index of a layer.

use crate::arch::{Instance, Mode, OptionKind, OptionSpec, Resolved, Resource};
use crate::plan::{StatePlan, Unit};

use super::build::Maker;
use super::sizes::is_derived;
use super::{Op, PartOption, words};

/// The option of keys that another layer keeps, which says more than its index.
const OWNER: &str = "kv_layer";

impl Maker<'_> {
    /// Every choice of a unit with these operations, in the order of the contract.
    pub(super) fn chosen(
        &self,
        unit: &Unit,
        instance: Option<&Instance>,
        ops: &[Op],
    ) -> Vec<PartOption> {
        let mut out = Vec::new();
        self.choose(&mut out, "", unit, instance);
        // A norm may be named and not used.
        let mut names = ops.iter().flat_map(|op| &op.ops);
        let is_norm = |op: &String| matches!(op.as_str(), "RMS_NORM" | "NORM" | "GROUP_NORM");
        if unit.contract.0.name != "norm" && !names.any(is_norm) {
            out.retain(|option| !option.name.starts_with("norm"));
        }
        out
    }

    fn choose(
        &self,
        out: &mut Vec<PartOption>,
        prefix: &str,
        unit: &Unit,
        instance: Option<&Instance>,
    ) {
        for (at, (spec, value)) in unit
            .contract
            .0
            .options
            .iter()
            .zip(&unit.options)
            .enumerate()
        {
            let name = format!("{prefix}{}", spec.name);
            if let Some(option) = self.option(name.clone(), spec, at, unit, instance) {
                out.push(option);
            }
            if let (OptionKind::Resource(kind), Resolved::Resource(Some(place))) =
                (spec.kind, value)
            {
                let inner = match kind {
                    Resource::Rope => &self.plan.ropes[*place],
                    Resource::Cache => &self.plan.caches[*place].unit,
                    Resource::Norm => &self.plan.norms[*place],
                };
                let instance = self.instance(&inner.path);
                self.choose(out, &format!("{name}."), inner, instance);
            }
        }
    }

    /// One option; none if it is no choice.
    fn option(
        &self,
        name: String,
        spec: &'static OptionSpec,
        at: usize,
        unit: &Unit,
        instance: Option<&Instance>,
    ) -> Option<PartOption> {
        let value = &unit.options[at];
        let default = spec.default.unwrap_or_default();
        let is_owner = spec.name == OWNER;
        if (is_derived(spec) || default == "il") && !is_owner {
            return None;
        }
        let is_number = matches!(value, Resolved::Int(_) | Resolved::Float(_)) && !is_owner;
        let expr = instance.map(|instance| &instance.options[at].expr);
        let open = instance.and_then(|instance| self.open(unit, instance, at));
        let text = match (value, expr.filter(|_| self.is_symbolic && is_number)) {
            _ if is_owner => layer_of_keys(unit).to_owned(),
            _ if open.is_some() => open.clone().unwrap_or_default(),
            // Where a text is read as a whole, nothing is hidden from what comes before it.
            (Resolved::Bool(true), _) if spec.name == "causal" => {
                (self.plan.mode == Mode::Causal).to_string()
            }
            (_, Some(expr)) => expr.source().to_owned(),
            // Resources have names of the definition's own; what they are follows.
            (Resolved::Resource(place), _) => if place.is_some() { "yes" } else { "none" }.into(),
            _ => words::option(self.plan, spec.kind, value),
        };
        let is_literal = default.parse::<f64>().is_ok() && is_number;
        Some(PartOption {
            name,
            value: text,
            doc: spec.doc,
            is_number,
            is_off: is_literal && words::is_default(default, value),
            is_open: open.is_some(),
            is_ruled: !default.is_empty()
                && !default
                    .chars()
                    .all(|c| c.is_alphanumeric() || "_.".contains(c)),
        })
    }
}

fn layer_of_keys(unit: &Unit) -> &'static str {
    match &unit.state {
        Some(StatePlan::KeyValue(rows)) if rows.owner.is_some() => "an earlier one",
        _ => "its own",
    }
}
