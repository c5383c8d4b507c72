//! What the weights of a model are for, and what each use has of them.

use std::collections::BTreeMap;

use crate::plan::{BranchPlan, NormUse, Plan, TensorPlan, Unit};
use crate::weights::TensorType;

/// The tensors of one use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The use, such as `attention`.
    pub what: String,
    /// Element types in the file with the number of tensors of each, by name.
    pub types: Vec<(TensorType, usize)>,
    /// Tensors.
    pub n_tensors: usize,
    /// Weights (elements).
    pub n_weights: u64,
    /// Bytes in the file.
    pub bytes: u64,
}

/// The tensors of a plan by what they are for, in the order of their first use; a tensor with several
/// uses belongs to the first.
pub fn shares(plan: &Plan) -> Vec<Share> {
    let mut uses = Uses {
        plan,
        of: vec![None; plan.tensors.len()],
        order: Vec::new(),
    };
    uses.unit(&plan.embed);
    if let Some(unit) = &plan.per_layer {
        uses.unit(unit);
    }
    for slot in plan.layers.iter().flat_map(|layer| &layer.slots) {
        for branch in &slot.branches {
            uses.block(branch);
            uses.norms([&branch.pre, &branch.post]);
        }
        uses.norms([&slot.pre, &slot.post]);
        uses.norms([&slot.after, &None]);
    }
    for rope in &plan.ropes {
        uses.unit(rope);
    }
    if let Some(head) = &plan.head {
        uses.norms([&head.norm, &None]);
        if let Some(unit) = &head.unit {
            uses.unit(unit);
        }
    }
    uses.summed()
}

/// Which use each tensor has.
struct Uses<'p> {
    plan: &'p Plan,
    of: Vec<Option<String>>,
    order: Vec<String>,
}

impl Uses<'_> {
    fn claim(&mut self, what: &str, tensor: usize) {
        if self.of[tensor].is_none() {
            self.of[tensor] = Some(what.to_owned());
            if !self.order.iter().any(|known| known == what) {
                self.order.push(what.to_owned());
            }
        }
    }

    fn unit(&mut self, unit: &Unit) {
        self.all(unit.contract.0.short(), unit);
    }

    fn all(&mut self, what: &str, unit: &Unit) {
        for tensor in unit.weights.iter().flatten() {
            self.claim(what, *tensor);
        }
    }

    fn norms(&mut self, norms: [&Option<NormUse>; 2]) {
        for norm in norms.into_iter().flatten() {
            for tensor in norm.weight.iter().chain(&norm.bias) {
                self.claim("norms", *tensor);
            }
        }
    }

    fn block(&mut self, branch: &BranchPlan) {
        match branch.block.contract.0.name {
            "moe" => self.experts(&branch.block),
            _ => self.all(&branch.short(), &branch.block),
        }
    }

    /// What chooses experts apart from what they are.
    fn experts(&mut self, unit: &Unit) {
        for (spec, tensor) in unit.contract.0.weights.iter().zip(&unit.weights) {
            let is_router = spec.key.starts_with("router") || spec.key == "selection";
            let own = unit.contract.0.short();
            let what = if is_router { "routers" } else { own };
            tensor.iter().for_each(|at| self.claim(what, *at));
        }
    }

    fn summed(self) -> Vec<Share> {
        let share = |what: &String| {
            let uses = self.of.iter().zip(&self.plan.tensors);
            let own = uses.filter(|(of, _)| of.as_ref() == Some(what));
            share(what, own.map(|(_, tensor)| tensor))
        };
        self.order.iter().map(share).collect()
    }
}

fn share<'p>(what: &str, tensors: impl Iterator<Item = &'p TensorPlan>) -> Share {
    let mut types: BTreeMap<&str, (TensorType, usize)> = BTreeMap::new();
    let mut share = Share {
        what: what.to_owned(),
        types: Vec::new(),
        n_tensors: 0,
        n_weights: 0,
        bytes: 0,
    };
    for tensor in tensors {
        share.n_tensors += 1;
        share.n_weights += tensor.shape.iter().product::<u64>();
        share.bytes += tensor.bytes;
        if let Some(ty) = tensor.ty {
            types.entry(ty.name()).or_insert((ty, 0)).1 += 1;
        }
    }
    share.types = types.into_values().collect();
    share
}
