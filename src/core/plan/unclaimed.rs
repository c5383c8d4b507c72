//! The tensors of a file that are not used and that the definition does not expect.

use super::planner::Planner;
use crate::arch::expr::Value;
use crate::arch::fits_pattern;

impl Planner<'_> {
    /// The names of the unclaimed tensors, in the order of the file.
    pub(super) fn unclaimed(&self) -> Vec<String> {
        let expected = |name: &str| {
            self.facts
                .def
                .ignore
                .tensors
                .iter()
                .any(|p| fits_pattern(p, name))
        };
        // Prediction heads are further layers after the last one, and are not used.
        let global = self.facts.global();
        let number = |name: &str| match self.facts.param(name, &global, false) {
            Ok(Value::Int(n)) => n,
            _ => 0,
        };
        let n_layer = number("n_layer");
        let after_layers = n_layer..n_layer.saturating_add(number("n_nextn"));
        let prefixes = self.facts.def.stacks.iter();
        let prefixes: Vec<_> = prefixes
            .filter_map(|s| s.prefix.split_once("{il}"))
            .collect();
        let is_after = |name: &str| {
            prefixes.iter().any(|(before, after)| {
                let rest = name.strip_prefix(before).unwrap_or_default();
                let n_digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                let (il, rest) = rest.split_at(n_digits);
                let is_of = |il: i64| after_layers.contains(&il) && rest.starts_with(after);
                il.parse().is_ok_and(is_of)
            })
        };
        let names = self.facts.tensors.names().into_iter();
        names
            .filter(|name| !is_after(name))
            .filter(|name| !self.tensor_index.contains_key(*name) && !expected(name))
            .map(str::to_owned)
            .collect()
    }
}
