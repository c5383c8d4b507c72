//! What the parts of a drawing are made with: the plan, its graph, and what is known of both.

use std::collections::HashMap;

use crate::arch::{ArchDef, Instance};
use crate::ggml::GraphOp;
use crate::plan::{Plan, Unit};

use super::ops::Reader;
use super::sample::Sample;

/// What the parts of a drawing are made with.
pub(super) struct DrawContext<'a> {
    pub(super) def: &'a ArchDef,
    pub(super) is_symbolic: bool,
    pub(super) sample: &'a Sample,
    pub(super) plan: &'a Plan,
    pub(super) steps: &'a [GraphOp],
    /// The pass of one token, of a model with a file that goes on by one.
    pub(super) single: Option<&'a [GraphOp]>,
    pub(super) reader: Reader<'a>,
    /// Operations by what they were built for.
    pub(super) places: HashMap<(&'a str, &'a str), Vec<usize>>,
    /// Uses of contracts by their paths, with what the definition says of them.
    pub(super) uses: HashMap<&'a str, (&'a Unit, Option<&'a Instance>)>,
    /// Short names of the blocks that have a role, by their paths.
    pub(super) roles: HashMap<&'a str, String>,
    /// Norms of a path that were taken before.
    pub(super) taken: HashMap<String, usize>,
    pub(super) placed: Vec<bool>,
}

impl DrawContext<'_> {
    /// Operations built for a place.
    pub(super) fn steps_at(&self, kind: &str, path: &str) -> Vec<usize> {
        self.places.get(&(kind, path)).cloned().unwrap_or_default()
    }

    pub(super) fn place(&mut self, steps: &[usize]) {
        for at in steps {
            self.placed[*at] = true;
        }
    }
}
