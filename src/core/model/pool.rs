//! Pools the hidden states of a sequence to one vector, to the scores of classes, or to scores of each token.

use crate::blocks::pool;
use crate::plan::Pooling;

use super::error::{Error, Result};
use super::lifecycle::Model;
use super::stage;

/// Number of vectors in one graph.
const N_ROWS: usize = 256;

impl Model {
    /// The vector of a sequence, from the hidden states `[n_embd, n_tokens]` of all its tokens after the final
    /// norm. They are pooled, then pass through the model's dense layers. The result of a classifier is its scores
    /// `[n_classes]`, that of a classifier of tokens `[n_classes, n_tokens]`.
    pub fn pool(&mut self, rows: &[f32]) -> Result<Vec<f32>> {
        let width = self.plan.n_embd as usize;
        if rows.is_empty() || !rows.len().is_multiple_of(width) {
            return Err(Error::Batch {
                found: format!("{} hidden values", rows.len()),
                expected: format!("at least one token of {width}"),
            });
        }
        let pooling = self.plan.pooling();
        let mut vectors = pool::pooled(rows, width, pooling);
        if pool::has_layers(&self.plan.pool) {
            let made = vectors
                .chunks(N_ROWS * width)
                .map(|rows| self.pool_layers(rows, rows.len() / width));
            vectors = made.collect::<Result<Vec<_>, _>>()?.concat();
        }
        if pooling == Pooling::LateMean {
            let width = vectors.len() / (rows.len() / width);
            vectors = pool::pooled(&vectors, width, Pooling::Mean);
        }
        pool::normalise(&self.plan.pool, &mut vectors);
        Ok(vectors)
    }

    /// The layers after pooling, for each of these vectors.
    fn pool_layers(&mut self, vectors: &[f32], n_rows: usize) -> Result<Vec<f32>> {
        let (graph, ends) = stage::build_pool(&self.graph_parts(), n_rows)?;
        self.graphs.load(graph)?;
        let executor = &mut self.graphs.executor;
        executor.write(&ends.hidden, vectors)?;
        executor.run()?;
        let mut made = vec![0.0; ends.result.elements() as usize];
        executor.read(&ends.result, &mut made)?;
        Ok(made)
    }
}
