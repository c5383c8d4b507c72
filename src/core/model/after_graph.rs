//! What tokens before add to the logits of a block, and the graph that computes it.

use super::error::Result;
use super::lifecycle::Model;
use super::stage::{self, AfterTensors};

/// The graph of what tokens before add to logits, as long as nothing else was run since.
#[derive(Default)]
pub(super) struct AfterGraph {
    loaded: Option<AfterTensors>,
    n_built: u64,
}

impl AfterGraph {
    /// To be called when the model has run something else.
    pub(super) fn forget(&mut self) {
        self.loaded = None;
    }

    /// Number of graphs that were built.
    #[cfg(test)]
    pub(super) fn n_built(&self) -> u64 {
        self.n_built
    }
}

impl Model {
    /// What tokens before add to the logits of states `[n_embd, n]`: `[n_logits, n]`, and for each how likely its token is right; empty if
    /// the head does not say so. The graph of the last call is run again if it is for as many tokens.
    pub(super) fn after(
        &mut self,
        graph: &mut AfterGraph,
        before: &[u32],
        states: &[f32],
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let is_for = |ends: &AfterTensors| ends.before.shape()[0] == before.len() as u64;
        let ends = match graph.loaded.take().filter(is_for) {
            Some(ends) => ends,
            None => {
                let (new, ends) = stage::build_after(&self.graph_parts(), before.len())?;
                self.graphs.load(new)?;
                graph.n_built += 1;
                ends
            }
        };
        let mut added = vec![0.0; before.len() * self.row_width()];
        let n_right = ends.right.iter().len() * before.len();
        let mut right = vec![0.0; n_right];
        let executor = &mut self.graphs.executor;
        let ids: Vec<i32> = before.iter().map(|token| *token as i32).collect();
        executor.write_indices(&ends.before, &ids)?;
        if ends.right.is_some() {
            executor.write(&ends.hidden, states)?;
        }
        executor.run()?;
        executor.read(&ends.added, &mut added)?;
        if let Some(likely) = &ends.right {
            executor.read(likely, &mut right)?;
            right
                .iter_mut()
                .for_each(|x: &mut f32| *x = 1.0 / (1.0 + (-*x).exp()));
        }
        graph.loaded = Some(ends);
        Ok((added, right))
    }
}
