//! What the passes of a model take: their operations under the clock, and the weights they read.

use crate::ggml::{GraphOp, Misplaced, Profile};

use super::lifecycle::Model;

impl Model {
    /// Puts the passes that follow under the clock, operation by operation, which slows them a
    /// little.
    pub fn start_profile(&mut self) {
        let profile = Profile::new(&self.loaded.tensors);
        self.graphs.executor.set_profile(Some(profile));
    }

    /// Ends what [`Self::start_profile`] began; `None` if nothing did.
    pub fn end_profile(&mut self) -> Option<Profile> {
        self.graphs.executor.set_profile(None)
    }

    /// The operations of the last pass, in the order of execution; weights are places in the plan.
    /// None before the first pass.
    pub fn steps(&self) -> Vec<GraphOp> {
        let graph = self.graphs.executor.graph();
        graph.map_or_else(Vec::new, |graph| graph.walk(&self.loaded.tensors))
    }

    /// Operations of the last pass that ran on another device than their unit's.
    pub fn misplaced(&self) -> Vec<Misplaced> {
        self.graphs.executor.misplaced()
    }

    /// Bytes of weights that a pass like the last one reads: of tables the rows of its tokens, of experts
    /// at most as many as are selected. 0 before the first pass.
    pub fn weight_bytes_read(&self) -> u64 {
        let graph = self.graphs.executor.graph();
        graph.map_or(0, |graph| graph.bytes_read(&self.loaded.tensors))
    }
}
