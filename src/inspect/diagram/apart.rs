//! Labels that distinguish the kinds of layers of a model.

use std::collections::BTreeSet;

use crate::arch::WeightRole;
use crate::plan::{BranchPlan, LayerPlan, StatePlan};

use super::context::DrawContext;
use super::{Kind, Slot};

/// Maximum number of distinguishing facts in the label of a kind.
const SHOWN: usize = 2;

impl DrawContext<'_> {
    /// Sets the labels of the kinds.
    pub(super) fn tell_apart(&self, kinds: &mut [Kind]) {
        let layer = |kind: &Kind| &self.plan.layers[kind.layers[0]];
        let mut labels: Vec<String> = kinds.iter().map(|kind| self.label(layer(kind))).collect();
        let plain = labels.clone();
        for (at, label) in labels.iter_mut().enumerate() {
            let likes = (0..kinds.len()).filter(|other| plain[*other] == plain[at]);
            let likes: Vec<&Kind> = likes.map(|other| &kinds[other]).collect();
            if likes.len() < 2 {
                continue;
            }
            let own = traits(&kinds[at]);
            let common = likes.iter().map(|kind| traits(kind));
            let common = common.reduce(|a, b| &a & &b).unwrap_or_default();
            let special: Vec<&str> = own.difference(&common).map(String::as_str).collect();
            if !special.is_empty() {
                let shown = &special[..special.len().min(SHOWN)];
                label.push_str(&format!(", {}", shown.join(", ")));
            }
        }
        for (kind, label) in kinds.iter_mut().zip(labels) {
            kind.label = label;
        }
    }

    fn label(&self, layer: &LayerPlan) -> String {
        let block = |branch: &BranchPlan| {
            let name = branch.short();
            let Some(StatePlan::KeyValue(rows)) = &branch.block.state else {
                return name;
            };
            let group = match self.plan.caches.len() {
                0 | 1 => String::new(),
                _ => format!("{} ", self.plan.caches[rows.cache].name),
            };
            let shared = match rows.owner {
                Some(_) => " with a shared KV cache",
                None => "",
            };
            format!("{group}{name}{shared}")
        };
        // A block without matrices only scales and adds, so labels leave it out.
        let is_factor = |branch: &BranchPlan| {
            let weights = branch.block.contract.0.weights;
            weights.iter().all(|spec| spec.role != WeightRole::Matrix)
        };
        let slots = layer.slots.iter();
        let slots = slots.filter(|slot| !slot.branches.iter().all(is_factor));
        let slots = slots.map(|slot| {
            let blocks: Vec<String> = slot.branches.iter().map(block).collect();
            blocks.join(" alongside ")
        });
        let slots: Vec<String> = slots.collect();
        match slots.is_empty() {
            true => "nothing".into(),
            false => slots.join(" + "),
        }
    }
}

/// The facts about a kind that may distinguish it from others.
fn traits(kind: &Kind) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for part in kind.slots.iter().flat_map(Slot::parts) {
        out.extend(part.facts.iter().cloned());
        out.extend(part.weights.iter().map(|w| format!("with {}", w.key)));
    }
    out
}
