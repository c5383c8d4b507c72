//! Where blocks keep what later passes need: cached, stateless and bidirectional execution differ in
//! these alone.

use crate::ggml::{Error, Graph, Tensor};
use crate::plan::KeyValuePlan;

/// Which rows the queries of a pass see.
#[derive(Clone)]
pub enum Sight {
    /// `[n_kv, n_tokens]`: 0 where visible, -inf where not.
    Mask(Tensor),
    /// Intervals of positions, and the pages on which the positions lie: see [`Pages`].
    Pages {
        /// i32 `[4, n_tokens]`.
        queries: Tensor,
        /// i32 `[m]`.
        table: Tensor,
    },
}

/// Keys and values that the queries of a pass may see.
pub struct Seen {
    /// `[k_row, n_kv]`: one row of all heads for each position.
    pub k: Tensor,
    /// `[v_row, n_kv]`; none if the values are the head of the keys.
    pub v: Option<Tensor>,
    /// Which of them.
    pub sight: Sight,
}

/// Where keys and values go, and what comes back to be attended to.
pub trait KeyValueStore {
    /// Stores the rows `k [k_row, n_tokens]` and `v [v_row, n_tokens]` of the unit at `path` and
    /// returns all rows that may be seen.
    ///
    /// # Errors
    /// As the operations it adds to the graph.
    fn append(
        &mut self,
        g: &Graph,
        path: &str,
        state: &KeyValuePlan,
        k: &Tensor,
        v: Option<&Tensor>,
    ) -> Result<Seen, Error>;

    /// The rows that a unit at `path` may see after it stored its own in this pass.
    ///
    /// # Errors
    /// It did not.
    fn stored(&self, path: &str, state: &KeyValuePlan) -> Result<Seen, Error>;
}

/// What is kept of each sequence.
pub trait StateStore {
    /// A part of the state of the unit at `path`: all rows `[size, rows]`, and which row each
    /// sequence of the pass reads, i32 `[n_seqs]`.
    ///
    /// # Errors
    /// There is none.
    fn rows(&self, path: &str, part: &str) -> Result<(Tensor, Tensor), Error>;

    /// Keeps `new [size, n_seqs]` for the next pass.
    ///
    /// # Errors
    /// As the operation.
    fn keep(&mut self, g: &Graph, path: &str, part: &str, new: &Tensor) -> Result<(), Error>;
}
