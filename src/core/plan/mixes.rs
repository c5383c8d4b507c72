//! Several hidden states: the mixes that make, read and write them, and the check that each slot reads one state.

use super::facts::LayerScope;
use super::planner::{Planned, Planner};
use super::{LayerPlan, Plan, Unit};
use crate::arch::expr::Value;
use crate::arch::{ResolvedOption, Resource, Setting, Slot};

/// The place where a mix is used: `place` in its contract.
#[derive(Clone, Copy)]
pub(super) enum MixUse {
    /// The mix makes the hidden states.
    Start = 0,
    /// The mix reads or writes the hidden states within a layer.
    Within = 1,
    /// The mix ends the hidden states.
    End = 2,
}

impl Plan {
    /// The mixes that make, read and write several hidden states, in the order of execution.
    pub fn mixes(&self) -> impl Iterator<Item = &Unit> {
        let slots = self.layers.iter().flat_map(|layer| &layer.slots);
        let of_slots = slots.flat_map(|slot| slot.read.iter().chain(&slot.write));
        let read = self.head.iter().filter_map(|head| head.read.as_ref());
        self.write.iter().chain(of_slots).chain(read)
    }
}

impl Planner<'_> {
    /// The mixes by which a slot reads and writes.
    pub(super) fn mixes_of(
        &mut self,
        slot: &Slot,
        path: &str,
        scope: &LayerScope<'_>,
    ) -> Planned<[Option<Unit>; 2]> {
        let mut mix = |mix: &Option<Setting>, place: &str| {
            self.mix(
                mix.as_ref(),
                &format!("{path}.{place}"),
                scope,
                MixUse::Within,
            )
        };
        let (read, write) = (mix(&slot.read, "read"), mix(&slot.write, "write"));
        let write = write?;
        let appends = write.as_ref().and_then(|unit| unit.option("append"));
        if appends == Some(&ResolvedOption::Bool(true)) {
            self.states += 1;
        }
        Ok([read?, write])
    }

    /// Whether a slot with this mix reads all hidden states as one row.
    pub(super) fn reads_all(
        &mut self,
        read: Option<&Setting>,
        path: &str,
        scope: &LayerScope<'_>,
    ) -> Planned<bool> {
        let Some(read) = read else { return Ok(false) };
        // A value that is not a name is reported where the mix is planned.
        let Value::Str(name) = self.evaluate(&read.expr, scope, &path)? else {
            return Ok(false);
        };
        let of = |name: &str| self.facts.def.resource(Resource::Mix, name);
        let Some(instance) = of(&name).or_else(|| of("default")) else {
            return Ok(false);
        };
        let kind = instance
            .contract
            .options
            .iter()
            .position(|o| o.name == "kind");
        let Some(kind) = kind.and_then(|at| instance.options.get(at)) else {
            return Ok(false);
        };
        Ok(self.evaluate(&kind.expr, scope, &path)? == Value::Str("all".into()))
    }

    /// A mix by name: a declared mix, or the default with the weights of that name.
    pub(super) fn mix(
        &mut self,
        setting: Option<&Setting>,
        path: &str,
        scope: &LayerScope<'_>,
        at: MixUse,
    ) -> Planned<Option<Unit>> {
        let Some(setting) = setting else {
            return Ok(None);
        };
        let name = self.name(setting, Resource::Mix, (path, scope))?;
        let instance = self.named(Resource::Mix, &name, path)?;
        let given = [("place", at as u64), ("states", self.states)];
        let unit = self.unit(path, &instance, scope, &given)?;
        Ok(Some(unit))
    }

    /// Checks that, with several hidden states, each slot reads the one that it or an earlier slot of the layer read,
    /// and that what was read is written before the layer ends.
    pub(super) fn check_mixes(&mut self, layers: &[LayerPlan], are_several: bool) {
        for layer in layers.iter().filter(|_| are_several) {
            let mut open: Option<&Unit> = None;
            for slot in &layer.slots {
                let path = &slot.path;
                match (&slot.read, open) {
                    (Some(_), Some(before)) => self.report(format!(
                        "{path}: reads one of several hidden states before what {} gave is written",
                        before.path
                    )),
                    (None, None) => {
                        self.report(format!("{path}: reads none of the several hidden states"))
                    }
                    _ => {}
                }
                open = slot.read.as_ref().or(open);
                let Some(write) = &slot.write else {
                    // A row of all hidden states has another width than later slots read.
                    let of_all = Some(&ResolvedOption::Choice("all"));
                    if slot.read.as_ref().and_then(|read| read.option("kind")) == of_all {
                        self.report(format!(
                            "{path}: all hidden states are written by the slot that reads them"
                        ));
                    }
                    continue;
                };
                if let Some(read) = open.take()
                    && (&read.options, &read.weights) != (&write.options, &write.weights)
                {
                    self.report(format!(
                        "{path}: is written by another mix than {} reads by",
                        read.path
                    ));
                }
            }
            if let Some(read) = open {
                self.report(format!("{}: what it gives is not written", read.path));
            }
        }
    }
}
