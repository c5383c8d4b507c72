//! Adapters in a model file, between which tokens switch: the tensors that update the weights of its layers.

use super::facts::UnitScope;
use super::planner::{FileAdapters, Planned, Planner, Reported};
use super::{AdapterUpdatePlan, Unit};
use crate::arch::{ContractUse, ResolvedOption, WeightRole};

/// Name suffixes of the two matrices of an update; the first is multiplied first.
const DOWN: &str = ".lora_a";
const UP: &str = ".lora_b";

/// Maximum number of switching tokens: each token of a text is searched among them.
const MAX_SWITCHES: usize = 4096;

impl Planner<'_> {
    /// The adapters in the file, if tokens switch between any.
    pub(super) fn adapters(&mut self, embed: Option<&Unit>, n_vocab: u64) -> Option<FileAdapters> {
        let embed = embed?;
        let rank = embed.option_int("rank").filter(|rank| *rank > 0)?;
        let list = |name: &str| match embed.option(name) {
            Some(ResolvedOption::List(all)) => all.clone(),
            _ => Vec::new(),
        };
        let (switches, stand_ins) = (list("switches"), list("stand_ins"));
        if switches.len() != stand_ins.len() {
            return self
                .problem(format!(
                    "embed: {} `stand_ins` of {} `switches`",
                    stand_ins.len(),
                    switches.len()
                ))
                .ok();
        }
        if switches.len() > MAX_SWITCHES {
            return self
                .problem(format!(
                    "embed: {} `switches`, expected at most {MAX_SWITCHES}",
                    switches.len()
                ))
                .ok();
        }
        if let Some(beyond) = stand_ins.iter().find(|token| **token >= n_vocab) {
            return self
                .problem(format!(
                    "embed: stand_ins: expected tokens below {n_vocab}, found {beyond}"
                ))
                .ok();
        }
        if self.facts.def.reads_source() {
            return self
                .problem("embed: a model that reads a source has no `rank`".into())
                .ok();
        }
        let count = switches.len() as u64 + 1;
        Some(FileAdapters { rank, count })
    }

    /// Appends the weights of updates by adapters in the file, where a layer has them: `X.lora_a` and `X.lora_b` for a
    /// matrix `X.weight`, or for each part of a matrix.
    pub(super) fn updates(
        &mut self,
        path: &str,
        instance: &ContractUse,
        scope: &UnitScope<'_>,
        weights: &mut Vec<Option<usize>>,
    ) -> Planned<Vec<AdapterUpdatePlan>> {
        let in_layer = scope.layer.index.is_some();
        let Some(adapters) = self.adapters.filter(|_| in_layer) else {
            return Ok(Vec::new());
        };
        let mut updates = Vec::new();
        for (at, spec) in instance.contract.weights.iter().enumerate() {
            let placed = weights.get(at).copied().flatten();
            let planned = placed.map(|at| &self.tensors[at]);
            let Some((WeightRole::Matrix, &[n_in, n_rows])) =
                planned.map(|tensor| (tensor.role, tensor.shape.as_slice()))
            else {
                continue;
            };
            let key_of = |part: &&str| {
                instance
                    .contract
                    .weights
                    .iter()
                    .position(|w| w.key == *part)
            };
            let parts: Vec<usize> = match spec.parts {
                [] => vec![at],
                parts => parts.iter().filter_map(key_of).collect(),
            };
            let name_of = |part: &usize| {
                let name = scope.layer.tensor(&instance.weights[*part].tensor);
                name.strip_suffix(".weight").unwrap_or(&name).to_owned()
            };
            let names: Vec<String> = parts.iter().map(name_of).collect();
            let tensors = self.facts.tensors;
            let has = |name: &String, end: &str| tensors.has(&format!("{name}{end}"), false);
            if !names.iter().any(|name| has(name, DOWN) || has(name, UP)) {
                continue;
            }
            let mut sum = 0u64;
            for (part, name) in parts.into_iter().zip(names) {
                let n_out = match part == at {
                    true => n_rows,
                    false => {
                        let rows = instance.weights[part].shape.get(1).ok_or(Reported)?;
                        self.size(rows, scope, &format_args!("{path}: {name}"))?
                    }
                };
                sum = sum.saturating_add(n_out);
                let shapes = [
                    (DOWN, [n_in, adapters.rank, adapters.count]),
                    (UP, [adapters.rank, n_out, adapters.count]),
                ];
                updates.push(AdapterUpdatePlan {
                    weight: at,
                    down: weights.len(),
                });
                for (end, shape) in shapes {
                    let name = format!("{name}{end}");
                    if !tensors.has(&name, false) {
                        let hint = self.hint(&name);
                        return self.problem(format!(
                            "{path}: missing tensor `{name}` (update by adapters in the file){hint}"
                        ));
                    }
                    let place = self.tensor(path, name, shape.into(), &[], WeightRole::Matrix)?;
                    weights.push(Some(place));
                }
            }
            if sum != n_rows {
                return self.problem(format!(
                    "{path}: adapters in the file update {sum} of the {n_rows} rows of `{}`",
                    spec.key
                ));
            }
        }
        Ok(updates)
    }
}
