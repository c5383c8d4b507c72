//! Sizes as text: the numbers of a file, or the expressions of the definition and the contract.

use super::context::DrawContext;
use super::words;
use crate::describe::UnitScope;
use lab_core::arch::expr::Expr;
use lab_core::arch::{ContractUse, ResolvedOption, Resource};
use lab_core::plan::{StatePlan, Unit};

/// Maximum length of an expression that replaces the name of an option.
const SHORT: usize = 22;

impl DrawContext<'_> {
    /// An option as the number of the file, or as the expression of the definition or the contract.
    pub(super) fn size(&self, unit: &Unit, name: &str) -> String {
        let specs = unit.contract.0.options;
        let at = specs.iter().position(|spec| spec.name == name);
        at.map_or_else(String::new, |at| self.value(unit, at))
    }

    fn value(&self, unit: &Unit, at: usize) -> String {
        let spec = &unit.contract.0.options[at];
        match self.instance(&unit.path).filter(|_| self.is_symbolic) {
            Some(instance) => {
                let setting = &instance.options[at];
                let source = setting.expr.source();
                match setting.span.is_some() || setting.expr.as_name().is_some() {
                    true if source.len() <= SHORT => source.to_owned(),
                    true => spec.name.to_owned(),
                    false => self.text(unit, &setting.expr),
                }
            }
            None => words::option(self.plan, spec.kind, &unit.options[at]),
        }
    }

    /// An expression of a contract, with the options of a unit.
    fn text(&self, unit: &Unit, expr: &Expr) -> String {
        let name = |name: &str| {
            let is_option = unit.contract.0.option(name).is_some();
            is_option.then(|| self.size(unit, name))
        };
        expr.symbolic(&UnitScope(unit), &name)
    }

    /// Dimensions of a weight of a unit; `tensor` is its index in the plan.
    pub(super) fn weight_shape(&self, path: &str, tensor: usize) -> Vec<String> {
        let known = &self.plan.tensors[tensor];
        let used = self.uses.get(path).filter(|_| self.is_symbolic);
        let symbols = used.and_then(|(unit, instance)| {
            let at = unit.weights.iter().position(|at| *at == Some(tensor))?;
            let shape = &instance.as_ref()?.weights.get(at)?.shape;
            Some(shape.iter().map(|dim| self.text(unit, dim)).collect())
        });
        let dim = |n: &u64| match *n {
            n if !self.is_symbolic => n.to_string(),
            // The weights of a norm have the width of the norm.
            n if n == self.plan.n_embd => "n_embd".into(),
            1 => "1".into(),
            _ => "\u{2026}".into(),
        };
        symbols.unwrap_or_else(|| known.shape.iter().map(dim).collect())
    }

    /// The number of elements that a unit keeps per token or sequence, as text.
    pub(super) fn state_size(&self, unit: &Unit) -> String {
        let instance = self.instance(&unit.path).filter(|_| self.is_symbolic);
        let texts = instance.map(|own| own.state.iter().map(|expr| self.text(unit, expr)));
        let texts: Option<Vec<String>> = texts.map(Iterator::collect);
        let sizes: Vec<String> = match (&unit.state, texts) {
            (Some(StatePlan::KeyValue(rows)), texts) => {
                let all = [rows.k, rows.v, 0, 0, rows.index].map(|n| n.to_string());
                let is_kept = [true, !rows.v_in_k, false, false, rows.index > 0];
                let sizes = texts.unwrap_or(all.into()).into_iter().zip(is_kept);
                sizes.filter(|(_, kept)| *kept).map(|of| of.0).collect()
            }
            (Some(StatePlan::Recurrent(_)), Some(texts)) => texts,
            (Some(StatePlan::Recurrent(parts)), None) => {
                parts.iter().map(|part| part.size.to_string()).collect()
            }
            (None, _) => Vec::new(),
        };
        sizes.join(" + ")
    }

    /// The definition's text of a choice that the file decides. All its uses in the drawn model have the same value,
    /// and another model may choose differently.
    pub(super) fn open(&self, unit: &Unit, instance: &ContractUse, at: usize) -> Option<String> {
        let setting = &instance.options[at];
        let is_choice = !matches!(
            unit.options[at],
            ResolvedOption::Int(_) | ResolvedOption::Float(_)
        );
        if !self.is_symbolic || !is_choice || setting.expr.as_literal().is_some() {
            return None;
        }
        // A value that a contract computes is not a choice, unless it is a parameter that a block takes.
        let resources = Resource::ALL.map(Resource::name);
        let of_resource = resources.contains(&unit.contract.0.name);
        if setting.span.is_none() && (setting.expr.as_name().is_none() || of_resource) {
            return None;
        }
        let mut likes = self.plan.units().filter(|other| {
            let own = self.instance(&other.path);
            own.is_some_and(|own| std::ptr::eq(own, instance))
        });
        let is_same = likes.all(|like| like.options[at] == unit.options[at]);
        let name = setting.expr.as_name().unwrap_or(setting.expr.source());
        is_same.then(|| name.to_owned())
    }
}
