//! What one use of a contract computes: its formula without what this use leaves out.

use crate::arch::expr::{Scope, Value};
use crate::arch::formula::{general, particular};
use crate::plan::Unit;

/// The formula of a unit; `has` says whether the weight at a place of the contract is there, and `is_open`
/// whether the value of the option at a place is not known, so that its name stands for it.
pub(super) fn formula(
    unit: &Unit,
    has: &dyn Fn(usize) -> bool,
    is_open: &dyn Fn(usize) -> bool,
) -> String {
    let contract = unit.contract.0;
    let formula = contract.formula;
    let is_named = |name: &str| {
        let at = contract
            .options
            .iter()
            .position(|option| option.name == name);
        at.is_some_and(is_open)
    };
    particular(formula, &Resolved { unit, has }, &is_named).unwrap_or_else(|problem| {
        debug_assert!(false, "formula of {}: {problem}", contract.name);
        general(formula)
    })
}

/// Options and weights as the plan has them.
pub(super) struct Resolved<'u> {
    pub(super) unit: &'u Unit,
    /// Whether the weight at a place of the contract is there.
    pub(super) has: &'u dyn Fn(usize) -> bool,
}

impl Scope for Resolved<'_> {
    fn name(&self, name: &str, _: bool) -> Result<Value, String> {
        let specs = self.unit.contract.0.options;
        let at = specs.iter().position(|option| option.name == name);
        let value = at.and_then(|at| self.unit.options.get(at));
        let mut steps = self.unit.path.split('.');
        if let (None, "il", Some(il)) = (value, name, steps.find_map(|step| step.parse().ok())) {
            return Ok(Value::Int(il));
        }
        value
            .map(|value| value.to_value())
            .ok_or_else(|| format!("there is no option `{name}`"))
    }

    fn has(&self, key: &str) -> Result<bool, String> {
        let specs = self.unit.contract.0.weights;
        let at = specs.iter().position(|weight| weight.key == key);
        at.map(self.has)
            .ok_or_else(|| format!("there is no weight `{key}`"))
    }

    fn dim(&self, _: &str, _: i64) -> Result<i64, String> {
        Err("a formula does not depend on sizes".into())
    }

    fn count(&self, _: &str) -> Result<i64, String> {
        Err("a formula does not depend on arrays".into())
    }
}
