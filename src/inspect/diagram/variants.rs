//! The models of a definition that are drawn: its table `variants` says how each is made.

use crate::arch::{ArchDef, Stack};
use crate::files::synth::Request;
use crate::plan::{Plan, SlotPlan};

/// Names of the variants of a definition, the first one without, and what makes them.
pub fn variants(def: &ArchDef) -> Vec<(String, Request)> {
    let mut all = vec![(String::new(), Request::default())];
    for (name, text) in &def.variants {
        let mut request = Request::default();
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => request.set.push((key.to_owned(), value.to_owned())),
                None => request.with.push(word.to_owned()),
            }
        }
        match name.as_str() {
            "default" => all[0].1 = request,
            _ => all.push((name.clone(), request)),
        }
    }
    all
}

/// Slots and branches of a definition that no layer of a plan has.
pub(super) fn absent(def: &ArchDef, plan: &Plan) -> Vec<String> {
    let mut out = Vec::new();
    for (at, stack) in def.stacks.iter().enumerate() {
        let layers = plan.layers.iter().filter(|layer| layer.stack == at);
        let slots: Vec<&SlotPlan> = layers.flat_map(|layer| &layer.slots).collect();
        absent_in(stack, &slots, &mut out);
    }
    out
}

fn absent_in(stack: &Stack, planned: &[&SlotPlan], out: &mut Vec<String>) {
    for (at, slot) in stack.slots.iter().enumerate() {
        let own = planned.iter().filter(|own| own.at == at);
        if let Some(when) = slot.when.as_ref().filter(|_| own.clone().next().is_none()) {
            out.push(format!("slot {} (when {})", slot.name, when.source()));
        }
        for (at, branch) in slot.branches.iter().enumerate() {
            let mut branches = own.clone().flat_map(|slot| &slot.branches);
            if let Some(when) = &branch.when
                && !branches.any(|own| own.at == at)
            {
                let (name, when) = (branch.block.contract.short(), when.source());
                out.push(format!("{name} in {} (when {when})", slot.name));
            }
        }
    }
}
