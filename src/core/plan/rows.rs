//! Widths of the values between blocks. They are checked, since ggml would silently repeat a tensor that is too narrow.

use super::Unit;
use super::facts::{LayerScope, UnitScope};
use super::planner::{Planned, Planner, Reported};
use crate::arch::expr::{Scope as _, Value};
use crate::arch::{ContractUse, RowWidth, Spanned};

impl Planner<'_> {
    /// The width of an input: a tap, or the given one.
    pub(super) fn tap(
        &mut self,
        tap: Option<&Spanned<String>>,
        path: &str,
        otherwise: u64,
    ) -> Planned<u64> {
        let Some(tap) = tap else {
            return Ok(otherwise);
        };
        match self.taps.get(&tap.value) {
            Some(width) => Ok(*width),
            None => {
                let problem = format!("{path}: the tap `{}` is read before it is saved", tap.value);
                self.problem_at(&tap.span, "tap", &problem)
            }
        }
    }

    /// Number of elements of a block's result. The inputs must have the widths that the block takes.
    pub(super) fn result_width(
        &mut self,
        instance: &ContractUse,
        unit: &Unit,
        (layer, given): (&LayerScope<'_>, &[(&'static str, u64)]),
        inputs: [Option<u64>; 2],
    ) -> Planned<u64> {
        let scope = UnitScope {
            layer,
            instance,
            options: &unit.options,
            given,
        };
        let [own, side] = inputs;
        if let (Some(found), Some(width)) = (side, &instance.side) {
            let takes = self.size(width, &scope, &unit.path)?;
            self.fits(unit, instance, found, (takes, width.source()))?;
        }
        match (instance.contract.rows, &instance.result) {
            (RowWidth::Any, _) => return own.ok_or(Reported),
            (RowWidth::To(_), Some(width)) => {
                if let Ok(Value::Int(takes)) = scope.name("n_embd", false) {
                    let own = own.ok_or(Reported)?;
                    self.fits(unit, instance, own, (takes as u64, "n_embd"))?;
                }
                return self.size(width, &scope, &unit.path);
            }
            _ => {}
        }
        let n_embd = self.taps.get("x").copied().ok_or(Reported)?;
        self.fits(unit, instance, own.ok_or(Reported)?, (n_embd, "n_embd"))?;
        Ok(n_embd)
    }

    /// Whether a block can read rows of `found` elements.
    fn fits(
        &mut self,
        unit: &Unit,
        instance: &ContractUse,
        found: u64,
        (takes, source): (u64, &str),
    ) -> Planned<()> {
        if takes == found {
            return Ok(());
        }
        let (path, block) = (&unit.path, instance.contract.name);
        let problem = format!(
            "{path}: reads rows of {found} elements, and `{block}` takes {takes} ({source})"
        );
        self.problem_at(&instance.span, source, &problem)
    }
}
