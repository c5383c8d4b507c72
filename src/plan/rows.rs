//! Widths of the values between blocks: ggml would silently repeat a tensor that is too narrow.

use super::Unit;
use super::assemble::Planner;
use super::facts::{LayerScope, UnitScope};
use crate::arch::{Instance, Spanned};

impl Planner<'_> {
    /// The width of an input: a tap, or the given one.
    pub(super) fn tap(
        &mut self,
        tap: Option<&Spanned<String>>,
        path: &str,
        otherwise: u64,
    ) -> Option<u64> {
        let Some(tap) = tap else {
            return Some(otherwise);
        };
        let width = self.taps.get(&tap.value).copied();
        if width.is_none() {
            let problem = format!("{path}: the tap `{}` is read before it is saved", tap.value);
            self.problem_at::<()>(&tap.span, "tap", &problem);
        }
        width
    }

    /// Elements of a block's result. Its inputs must be as wide as it takes them.
    pub(super) fn result_width(
        &mut self,
        instance: &Instance,
        unit: &Unit,
        layer: &LayerScope<'_>,
        inputs: [Option<u64>; 2],
    ) -> Option<u64> {
        let Some(rows) = &instance.rows else {
            return inputs[0];
        };
        let scope = UnitScope {
            layer,
            instance,
            options: &unit.options,
            given: None,
        };
        let (path, block) = (&unit.path, instance.contract.name);
        for (found, expr) in inputs
            .into_iter()
            .zip([Some(&rows.takes), rows.side.as_ref()])
        {
            let (Some(found), Some(expr)) = (found, expr) else {
                continue;
            };
            let takes = self.size(expr, &scope, path)?;
            if takes != found {
                let problem = format!(
                    "{path}: reads rows of {found} elements, and `{block}` takes {takes} ({expr})"
                );
                return self.problem_at(&instance.span, expr.source(), &problem);
            }
        }
        self.size(&rows.gives, &scope, path)
    }
}
