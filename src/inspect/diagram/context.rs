//! The data from which the parts of a drawing are made: the plan, its graph, and indices over both.

use std::collections::HashMap;

use lab_base::ggml::GraphOp;
use lab_core::arch::{ArchDef, ContractUse};
use lab_core::plan::{Plan, Unit};

use super::ops::GraphReader;
use super::traced_plan::TracedPlan;

/// The data from which the parts of a drawing are made.
pub(super) struct DrawContext<'a> {
    pub(super) def: &'a ArchDef,
    pub(super) is_symbolic: bool,
    pub(super) sample: &'a TracedPlan,
    pub(super) plan: &'a Plan,
    pub(super) steps: &'a [GraphOp],
    pub(super) reader: GraphReader<'a>,
    pub(super) of_layer: Vec<usize>,
    /// Operations by the kind and path that they were built for.
    pub(super) places: HashMap<(&'a str, &'a str), Vec<usize>>,
    /// Units by path, with their instances in the definition.
    pub(super) uses: HashMap<&'a str, (&'a Unit, Option<&'a ContractUse>)>,
    /// Short names of the blocks that have a role, by path.
    pub(super) roles: HashMap<&'a str, String>,
    /// For each path, the number of norms that were already taken.
    pub(super) taken: HashMap<String, usize>,
    pub(super) placed: Vec<bool>,
}

impl DrawContext<'_> {
    /// The operations that were built for a kind and path.
    pub(super) fn steps_at(&self, kind: &str, path: &str) -> Vec<usize> {
        self.places.get(&(kind, path)).cloned().unwrap_or_default()
    }

    /// What is known with a file; `None` if sizes are symbols.
    pub(super) fn known<T>(&self, value: T) -> Option<T> {
        (!self.is_symbolic).then_some(value)
    }

    pub(super) fn place(&mut self, steps: &[usize]) {
        for at in steps {
            self.placed[*at] = true;
        }
    }
}
