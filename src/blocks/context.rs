//! The context of a pass for its blocks: derived inputs, visible keys and values, states.
//!
//! Cached, stateless and bidirectional execution differ in these alone. Blocks request values; the model
//! (`src/model/inputs/`) makes and writes the inputs of a pass.

use crate::ggml::{Error, Graph, Tensor};
use crate::plan::KeyValuePlan;

use super::rope::Mixture;

/// An input that follows from the tokens' positions, or from options alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DerivedInput {
    /// i32 `[n_tokens]`: the positions.
    Positions,
    /// f32 `[1, 1, n_tokens]`: `1 + scale * ln(1 + floor((pos + offset) / floor))`.
    Temperature {
        /// Strength.
        scale: f32,
        /// Positions of one step.
        floor: f32,
        /// Added to the position.
        offset: f32,
    },
    /// i32 `[n_tokens]`: the positions as rows of a table of so many.
    Rows(u64),
    /// i32 `[4 n_tokens]`: the positions three times, then zeros.
    Sections,
    /// i32 `[n_tokens]`: the types of the tokens as rows of a table of so many.
    Types(u64),
    /// f32 `[dims / 2]`: divisors of the frequencies.
    Divisors(Mixture),
}

/// The derived inputs of a pass; each is made once, at its first use.
pub trait DerivedInputs {
    /// The tensor that holds `input` while the graph runs.
    ///
    /// # Errors
    /// As an input of the graph.
    fn get(&self, g: &Graph, input: DerivedInput) -> Result<Tensor, Error>;
}

/// The keys that the queries of a pass attend to.
#[derive(Clone)]
pub enum AttentionView {
    /// `[n_kv, n_tokens]`: 0 where visible, -inf where not.
    Mask(Tensor),
    /// Intervals of positions, and the KV blocks in which the positions lie: see
    /// [`KvBlocks`](crate::ggml::KvBlocks).
    Blocks {
        /// i32 `[4, n_tokens]`.
        queries: Tensor,
        /// i32 `[m]`.
        table: Tensor,
    },
}

/// Visible keys and values of a pass.
pub struct VisibleKeyValues {
    /// `[k_row, n_kv]`: one row of all heads for each position.
    pub k: Tensor,
    /// `[v_row, n_kv]`; none if the values are the head of the keys.
    pub v: Option<Tensor>,
    /// Which of them each query attends to.
    pub view: AttentionView,
}

/// Writes keys and values, and returns those to attend to.
pub trait KeyValueStore {
    /// Stores the rows `k [k_row, n_tokens]` and `v [v_row, n_tokens]` of the unit at `path` and
    /// returns all visible rows.
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
    ) -> Result<VisibleKeyValues, Error>;

    /// The visible rows of a unit at `path`, after it has stored its own in this pass.
    ///
    /// # Errors
    /// It did not.
    fn stored(&self, path: &str, state: &KeyValuePlan) -> Result<VisibleKeyValues, Error>;
}

/// The recurrent states of the sequences of a pass.
pub trait StateStore {
    /// A part of the state of the unit at `path`: all rows `[size, rows]`, and which row each
    /// sequence of a group reads, i32 `[n_seqs]`.
    ///
    /// # Errors
    /// There is none.
    fn rows(&self, path: &str, part: &str, group: usize) -> Result<(Tensor, Tensor), Error>;

    /// Writes `new [size, n_seqs]`, a column for each sequence of the pass, for the next pass.
    ///
    /// # Errors
    /// As the operation.
    fn write(&mut self, g: &Graph, path: &str, part: &str, new: &Tensor) -> Result<(), Error>;
}
