//! The context that a pass gives its blocks: derived inputs, visible keys and values, recurrent states.
//!
//! Cached, stateless and bidirectional execution differ only in these. Blocks request values; the model
//! (`src/core/model/inputs/`) makes and writes the inputs of a pass.

use std::sync::Arc;

use crate::plan::{KeyValuePlan, RowLayout};
use lab_base::ggml::{Graph, Result, Tensor};

use super::adapter_switches::AdapterSwitches;
use super::grid::{Axis, GridRule, GridWindow, Resampling, RowGrid, RowParts, RowPlace};
use super::ngram_hashes::NgramHashes;
use super::position_bias::DistanceBuckets;
use super::rope::RopeDivisors;

/// An input that follows from the tokens and their positions, or from options alone.
#[derive(Clone, Debug, PartialEq)]
pub enum DerivedInput {
    /// i32 `[n_tokens]`: the first position of each token's span, of this length; 1: its own position.
    Positions(u64),
    /// i32 `[n_tokens]`: the negated positions.
    Back,
    /// f32 `[1, 1, n_tokens]`: `1 + scale * ln(1 + floor((pos + offset) / floor))`.
    Temperature {
        /// Strength of the temperature.
        scale: f32,
        /// Number of positions of one step.
        floor: f32,
        /// Offset that is added to the position.
        offset: f32,
    },
    /// i32 `[n_tokens]`: the positions as rows of a table of so many rows.
    Rows(u64),
    /// i32 `[4 n_tokens]`: the same positions three times, then zeros.
    Sections(u64),
    /// i32 `[4 n_tokens]`: the positions by these axes of time, height and width.
    Axes([usize; 4]),
    /// i32 `[n_hashes * n_tokens]`: the rows of each token's n-grams in a table of so many rows.
    Ngrams(Arc<NgramHashes>, u64),
    /// i32 `[1, n_tokens]`: the adapter in the file for each token.
    Adapters(Arc<AdapterSwitches>),
    /// i32 `[n_tokens]`: the row of each token in a table of so many rows.
    StandIns(Arc<AdapterSwitches>, u64),
    /// i32 `[n_tokens]`: the types of the tokens as rows of a table of so many rows.
    Types(u64),
    /// f32 `[dims / 2]`: divisors of the frequencies.
    Divisors(RopeDivisors),
    /// i32 `[2 far + 1]`: the bucket of each distance from -far to far.
    Buckets(DistanceBuckets),
    /// i32 `[4 n_rows]`: the places of each row of a tower by three axes, from a first position on, then zeros.
    GridPositions(RowGrid, [Axis; 3], u64),
    /// i32 `[n_rows]`: the place of each row of a tower in its input.
    RowPositions(RowGrid),
    /// i32 `[n_rows]`: the row of each row of a tower in a table of so many rows, by an axis.
    GridRows(RowGrid, Axis, u64),
    /// i32 `[cells * windows]`: the rows of the cells of each window; the row after all others for a missing cell.
    Neighbours(GridWindow, RowGrid),
    /// i32: the rows of the valid cells.
    Valid(RowGrid),
    /// f32 `[len, len, 1, parts]`: 0 where a row of a part is attended to, less than any score where it is missing.
    PartMask(RowParts),
    /// i32 `[2 n - 1]`: the row of a table of so many rows for each distance of a key and a query, from `n - 1` after the query to `n - 1`
    /// before it; the last number is the row of distance 0.
    DistanceRows(u64, u64, u64),
    /// i32: the rows of each input with so many learned ones, which follow all rows, at its start or else at its end.
    Learned(RowGrid, u64, bool),
    /// i32: the rows of each input at these places alone.
    RowsAt(RowGrid, RowPlace),
    /// i32: the rows of windows of this height and width, each filled up by the row after all others.
    FilledRows(RowGrid, [u64; 2]),
    /// i32 `[n_rows]`: the place of each row among [`Self::FilledRows`].
    FilledPlaces(RowGrid, [u64; 2]),
    /// i32 `[n * n]`: the row of each key and query of an axis of `n` places in a table of `2 n - 1` distances.
    Distances(u64),
    /// f32 `[height + width, n_rows]`: ones for the height and the width of each row.
    Indicators(RowGrid),
    /// f32 `[from, to]`: the weights by which one axis of a table is resampled.
    Resampling(Resampling),
    /// i32 `[n_rows]`: the rows of a tower, window by window.
    WindowRows(RowGrid, [u64; 3]),
    /// i32 `[n_rows]`: the place of each row among [`Self::WindowRows`].
    WindowPlaces(RowGrid, [u64; 3]),
    /// i32 `[4, n_rows]`: the interval of rows that each row attends to.
    Intervals(RowGrid, GridRule),
    /// f32 `[n_of_input, n_of_input]`: 0 where a row attends to another one, less than any score elsewhere.
    GridMask(RowGrid, GridRule),
    /// i32 `[n]`: the numbers from 0.
    BlockTable(u64),
    /// f32 `[n, n]`: the Hadamard matrix of this order, whose rows are orthonormal.
    Hadamard(u64),
    /// f32 `[1, heads]`: the logarithm of each head's decay, `-slope * 2^(-8 (i + 1) / heads)`.
    Decay {
        /// Number of heads.
        heads: u64,
        /// The factor of all decays.
        slope: f32,
    },
}

/// The derived inputs of a pass; each is made once, at its first use.
pub trait DerivedInputs {
    /// The tensor that holds `input` while the graph runs.
    fn get(&self, g: &Graph, input: DerivedInput) -> Result<Tensor>;
}

/// Runs of KV slots at equal distances, each with equally many queries of the pass. The queries follow in the order of
/// the pass's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Number of queries of each run.
    pub n_tokens: usize,
    /// Number of runs.
    pub n_runs: usize,
    /// The key row where the first run starts.
    pub first: usize,
    /// Number of rows from the start of one run to that of the next.
    pub stride: usize,
    /// Number of rows of each run that attention reads.
    pub n_kv: usize,
}

/// Runs of keys that the queries of a pass attend to.
#[derive(Clone)]
pub struct RunView {
    /// The rows of the runs.
    pub runs: Runs,
    /// `[n_kv, n_tokens, 1, n_runs]`: 0 where visible, -inf where not.
    pub mask: Tensor,
    /// The spans of the queries, where a selection chooses spans.
    pub spans: Option<SpanView>,
    /// i32 `[n_kv * n_tokens * n_runs]`, where scores have a bias by distance: the distance of each key and query as a
    /// row of a table of the distances from -far to far.
    pub distances: Option<Tensor>,
    /// The layout of the rows, where whole spans have further rows: the runs and the mask then cover these too.
    pub layout: Option<RowLayout>,
}

/// The rows of the spans that contain a pass's tokens, where keys are pooled: the rows of one token after
/// those of another. n is the number of tokens.
#[derive(Clone)]
pub struct SpanRows {
    /// i32 `[span * n]`: the rows to read; the token's own row for a position that does not exist.
    pub read: Tensor,
    /// i64 `[span * n]`: the same rows, to write.
    pub write: Tensor,
    /// f32 `[span, n]`: 0, or less than any gate for a position that does not exist.
    pub missing: Tensor,
}

/// The m spans of a cache that end in a pass and get their keys; some may occur more than once.
#[derive(Clone)]
pub struct EndedSpans {
    /// i32 `[reach * m]`: the rows from which the keys are made, those of one span after those of another.
    pub read: Tensor,
    /// f32 `[reach, m]`: 0, or less than any gate for a position before the first one, whose row is arbitrary.
    pub missing: Tensor,
    /// i32 `[m]`: the first position of each span.
    pub positions: Tensor,
    /// i64 `[m]`: the row of the span's key in the cache.
    pub write: Tensor,
    /// i64 `[span * m]`: the rows of the span's positions, where each position has one.
    pub write_each: Tensor,
}

/// The spans of each query's sequence among the rows of a view. n is the number of its queries.
#[derive(Clone)]
pub struct SpanView {
    /// i32 `[n_spans * span, n]`: the row of each position. A position that is not visible has the row of another one
    /// of its span, or any row that is not visible.
    pub rows: Tensor,
    /// i32 `[n_kv, n]`: the span of each row.
    pub spans: Tensor,
    /// f32 `[n_spans, n]`: the addend of a span's score: 0, or more than any score where the span is always
    /// selected.
    pub bonus: Tensor,
}

/// The keys that the queries of a pass attend to.
#[derive(Clone)]
pub enum AttentionView {
    /// Runs of keys, in the order of their queries.
    Runs(Vec<RunView>),
    /// Intervals of positions, and the KV blocks in which the positions lie: see
    /// [`KvBlocks`](lab_base::ggml::KvBlocks).
    Blocks {
        /// i32 `[4, n_tokens]`.
        queries: Tensor,
        /// i32 `[m]`.
        table: Tensor,
    },
}

/// Visible keys and values of a pass.
pub struct VisibleKeyValues {
    /// `[k_row, n_rows]`: one row of all heads for each position.
    pub k: Tensor,
    /// `[v_row, n_rows]`; none if the values are the head of the keys.
    pub v: Option<Tensor>,
    /// The keys and values to which each query attends.
    pub view: AttentionView,
}

/// The selected keys of the queries of a pass.
#[derive(Clone)]
pub(super) enum SelectedKeys {
    /// Lists for attention over KV blocks, and the number of positions of a block in them; none: everything.
    Lists(Option<Tensor>, u64),
    /// A mask `[n_kv, n_tokens, n_runs, 1 or kv_heads]` for each view; none: the mask of the view.
    Masks(Vec<Option<Tensor>>),
}

/// A unit that stores keys and values.
#[derive(Clone, Copy)]
pub struct KeyOwner<'a> {
    pub path: &'a str,
    pub state: &'a KeyValuePlan,
}

/// Stores keys and values, and returns the ones to attend to.
pub trait KeyValueStore {
    /// Stores the rows `k [k_row, n_tokens]` and `v [v_row, n_tokens]` of a unit and returns all visible rows.
    fn append(
        &mut self,
        g: &Graph,
        own: KeyOwner<'_>,
        k: &Tensor,
        v: Option<&Tensor>,
    ) -> Result<VisibleKeyValues>;

    /// The visible rows of a unit, which has stored its own in this pass.
    fn stored(&self, own: KeyOwner<'_>) -> Result<VisibleKeyValues>;

    /// Stores the rows `[index, n_tokens]` by which a unit selects keys, and returns all visible ones as keys.
    fn append_index(
        &mut self,
        g: &Graph,
        own: KeyOwner<'_>,
        rows: &Tensor,
    ) -> Result<VisibleKeyValues>;

    /// Stores the rows `[width, n_tokens]` from which a unit makes the keys of whole spans, and returns the rows of
    /// all stored positions.
    fn append_pooled(&mut self, g: &Graph, own: KeyOwner<'_>, rows: &Tensor) -> Result<Tensor>;

    /// The spans that end in the pass; none if no span does.
    fn ended(&self, state: &KeyValuePlan) -> Option<EndedSpans>;

    /// Stores keys `[k_row, n_tokens]`, which are the values too, and the keys of the spans that end, `[k_row, m]`.
    /// Returns all visible rows.
    fn append_with_ended(
        &mut self,
        g: &Graph,
        own: KeyOwner<'_>,
        k: &Tensor,
        ended: Option<&Tensor>,
    ) -> Result<VisibleKeyValues>;

    /// Stores the rows `[index, m]` by which a unit selects the spans that end, each for all positions of its span.
    /// Returns all visible ones as keys of positions.
    fn append_index_of_ended(
        &mut self,
        g: &Graph,
        own: KeyOwner<'_>,
        ended: Option<&Tensor>,
    ) -> Result<VisibleKeyValues>;

    /// The rows of the spans that contain the pass's tokens.
    fn span_rows(&self, state: &KeyValuePlan) -> Result<SpanRows>;
}

/// Sequences with equally many tokens in a pass. Their tokens follow each other, one sequence after
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceGroup {
    /// Number of sequences.
    pub n_seqs: usize,
    /// Number of tokens of each sequence.
    pub n_steps: usize,
}

/// The recurrent states of the sequences of a pass.
pub trait StateStore {
    /// A part of the state of the unit at `path`: all rows `[size, rows]`, and the row that each sequence of a group
    /// reads, i32 `[n_seqs]`.
    fn rows(&self, path: &str, part: &str, group: usize) -> Result<(Tensor, Tensor)>;

    /// A part of the state of each sequence of a group: `[size, n_seqs]`.
    fn read(&self, g: &Graph, path: &str, part: &str, group: usize) -> Result<Tensor>;

    /// Writes `new [size, n_seqs]`, a column for each sequence of the pass, for the next pass.
    fn write(&mut self, g: &Graph, path: &str, part: &str, new: &Tensor) -> Result<()>;
}
