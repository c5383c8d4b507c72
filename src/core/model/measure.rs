//! Measures the passes of a model: the time of their operations, and the weights that they read.

use std::collections::BTreeMap;

use lab_base::ggml::{ColumnSums, GraphOp, MisplacedOp, Profile};

use super::lifecycle::Model;

impl Model {
    /// Measures the time of each operation of the passes that follow, which slows them a little.
    pub fn start_profile(&mut self) {
        let profile = Profile::new(&self.loaded.tensors);
        self.graphs.executor.set_profile(Some(profile));
    }

    /// Ends the measurement that [`Self::start_profile`] began; `None` if there is none.
    pub fn end_profile(&mut self) -> Option<Profile> {
        self.graphs.executor.set_profile(None)
    }

    /// Sums the squares of the values that weights are multiplied with in the passes that follow, which are computed one
    /// operation at a time.
    pub fn start_calibration(&mut self) {
        let profile = Profile::new(&self.loaded.tensors).with_inputs();
        self.graphs.executor.set_profile(Some(profile));
    }

    /// Ends what [`Self::start_calibration`] began: the sums by the name of the tensor. Empty if nothing began.
    pub fn end_calibration(&mut self) -> BTreeMap<String, ColumnSums> {
        let profile = self.graphs.executor.set_profile(None);
        let Some(sums) = profile.as_ref().and_then(Profile::inputs) else {
            return BTreeMap::new();
        };
        let tensors = self.plan().tensors.iter().zip(&self.loaded.tensors);
        let found = tensors
            .filter_map(|(planned, tensor)| Some((planned.name.clone(), sums.of(tensor)?.clone())));
        found.collect()
    }

    /// The operations of the last pass, in the order of execution, with weights as indices of the plan's tensors.
    /// Empty before the first pass.
    pub fn steps(&self) -> Vec<GraphOp> {
        let graph = self.graphs.executor.graph();
        graph.map_or_else(Vec::new, |graph| graph.walk(&self.loaded.tensors))
    }

    /// Operations of the last pass that ran on another device than their unit's.
    pub fn misplaced(&self) -> Vec<MisplacedOp> {
        self.graphs.executor.misplaced()
    }

    /// Bytes of weights that a pass like the last one reads. Of tables it reads the rows of its tokens, of experts
    /// at most the selected number. 0 before the first pass.
    pub fn weight_bytes_read(&self) -> u64 {
        let graph = self.graphs.executor.graph();
        graph.map_or(0, |graph| graph.bytes_read(&self.loaded.tensors))
    }
}
