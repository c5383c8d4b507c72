//! Pools the hidden states of a sequence to one vector, or to the scores of classes.

use crate::blocks::pool;

use super::error::Error;
use super::lifecycle::Model;
use super::stage;

impl Model {
    /// The vector of a sequence, from the hidden states `[n_embd, n_tokens]` of all its tokens after the final
    /// norm. They are pooled, then pass through the model's dense layers. The result of a classifier is its scores
    /// `[n_classes]`.
    ///
    /// # Errors
    /// There are no hidden states, or a computation fails.
    pub fn pool(&mut self, rows: &[f32]) -> Result<Vec<f32>, Error> {
        let width = self.plan.n_embd as usize;
        if rows.is_empty() || !rows.len().is_multiple_of(width) {
            return Err(Error::Batch {
                found: format!("{} hidden values", rows.len()),
                expected: format!("at least one token of {width}"),
            });
        }
        let mut vector = pool::pooled(rows, width, self.plan.pooling());
        if pool::has_layers(&self.plan.pool) {
            let (graph, ends) = stage::build_pool(&self.graph_parts())?;
            self.graphs.load(graph)?;
            let executor = &mut self.graphs.executor;
            executor.write(&ends.hidden, &vector)?;
            executor.run()?;
            vector = vec![0.0; ends.result.elements() as usize];
            executor.read(&ends.result, &mut vector)?;
        }
        pool::normalise(&self.plan.pool, &mut vector);
        Ok(vector)
    }
}
