//! The built graphs of the latest shapes, and the executor that runs them.
//!
//! Prefill and decode steps alternate between few shapes. A graph that was built for a shape is loaded again as
//! long as its tensors have their memory. At most one entry has no graph: the executor has it loaded.

use lab_base::ggml::{Error, Executor, Graph, Result};

use super::graph::PassGraph;
use super::graph_shape::GraphShape;

/// Maximum number of graphs that are kept. The least recently used one is dropped first.
const N_KEPT: usize = 8;

/// The same where passes are padded: as many mixtures of decoding sequences and prompts are in use.
const N_KEPT_PADDED: usize = 64;

struct CachedGraph {
    shape: GraphShape,
    pass: PassGraph,
    /// None while the executor has it loaded.
    graph: Option<Graph>,
}

/// The graphs of a model.
pub(super) struct GraphCache {
    pub(super) executor: Executor,
    /// The kept graphs, the latest first.
    kept: Vec<CachedGraph>,
    n_most: usize,
    n_built: u64,
}

impl GraphCache {
    pub(super) fn new(executor: Executor, is_padded: bool) -> Self {
        Self {
            executor,
            kept: Vec::new(),
            n_most: if is_padded { N_KEPT_PADDED } else { N_KEPT },
            n_built: 0,
        }
    }

    /// Number of graphs of passes that were built.
    pub(super) fn n_built(&self) -> u64 {
        self.n_built
    }

    /// Inputs and outputs of the loaded graph.
    pub(super) fn loaded(&self) -> Option<&PassGraph> {
        let kept = self.kept.first().filter(|kept| kept.graph.is_none());
        kept.map(|kept| &kept.pass)
    }

    /// The shape of the loaded graph.
    pub(super) fn loaded_shape(&self) -> Option<&GraphShape> {
        let kept = self.kept.first().filter(|kept| kept.graph.is_none());
        kept.map(|kept| &kept.shape)
    }

    /// The executor, and the pass of the graph that it has loaded.
    pub(super) fn split(&mut self) -> Result<(&mut Executor, &PassGraph)> {
        let kept = self.kept.first().filter(|kept| kept.graph.is_none());
        match kept {
            Some(kept) => Ok((&mut self.executor, &kept.pass)),
            None => Err(Error::Computation("no graph is loaded".into())),
        }
    }

    /// Drops the loaded graph, so that it is not run again.
    pub(super) fn forget_loaded(&mut self) {
        self.executor.wait();
        self.kept.retain(|kept| kept.graph.is_some());
    }

    /// Drops all graphs.
    pub(super) fn clear(&mut self) {
        self.executor.wait();
        self.kept.clear();
    }

    /// Whether a graph of this shape can run without being built.
    pub(super) fn holds(&self, shape: &GraphShape) -> bool {
        let mut kept = self.kept.iter();
        kept.any(|kept| kept.shape == *shape && self.is_usable(kept))
    }

    fn is_usable(&self, kept: &CachedGraph) -> bool {
        let graph = kept.graph.as_ref();
        graph.is_none_or(|graph| self.executor.can_reload(graph))
    }

    /// Loads the graph of a shape for which [`Self::holds`] is true.
    pub(super) fn reload(&mut self, shape: &GraphShape) -> Result<()> {
        let Some(at) = self.kept.iter().position(|kept| kept.shape == *shape) else {
            return Err(Error::Computation("no graph of this shape is kept".into()));
        };
        let mut wanted = self.kept.remove(at);
        if let Some(graph) = wanted.graph.take() {
            self.load(graph)?;
        }
        self.kept.insert(0, wanted);
        Ok(())
    }

    /// Loads a new graph and keeps it for passes of its shape.
    pub(super) fn add(&mut self, shape: GraphShape, graph: Graph, pass: PassGraph) -> Result<()> {
        self.n_built += 1;
        self.load(graph)?;
        let new = CachedGraph {
            shape,
            pass,
            graph: None,
        };
        self.kept.insert(0, new);
        self.kept.truncate(self.n_most);
        Ok(())
    }

    /// Loads a graph that is not kept: that of a single stage.
    pub(super) fn load(&mut self, graph: Graph) -> Result<()> {
        let (before, result) = match self.executor.load(graph) {
            Ok(before) => (before, Ok(())),
            Err(error) => (None, Err(error)),
        };
        if let Some(kept) = self.kept.iter_mut().find(|kept| kept.graph.is_none()) {
            kept.graph = before;
        }
        let executor = &self.executor;
        let can_reload = |graph: &Graph| executor.can_reload(graph);
        self.kept
            .retain(|kept| kept.graph.as_ref().is_some_and(can_reload));
        result
    }
}
