//! The state that a block stores between passes, as its contract declares it: sizes are expressions that are not
//! evaluated here.

/// State that a block stores between passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSpec {
    /// No state.
    None,
    /// Keys and values of every position.
    KeyValue {
        /// The option that names the cache.
        cache: &'static str,
        /// Number of elements of a key row.
        k: &'static str,
        /// Number of elements of a value row.
        v: &'static str,
        /// Number of heads that share a row.
        heads: &'static str,
        /// Whether the values are the first elements of the keys, so that only keys are stored.
        v_in_k: &'static str,
        /// The option that names the layer whose rows are used; none: always those of the unit.
        layer: Option<&'static str>,
        /// Number of elements of the row by which keys are selected; 0: none.
        index: &'static str,
        /// The rows from which keys of whole spans of positions are made, where the cache has such keys.
        pooled: Option<PooledSpec>,
    },
    /// A state of fixed size for each sequence: parts by name, with their numbers of elements.
    Recurrent(&'static [(&'static str, &'static str)]),
}

/// Rows of positions from which the keys of whole spans are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PooledSpec {
    /// The option that names the cache that holds them, or `none`.
    pub cache: &'static str,
    /// Number of elements of a row.
    pub width: &'static str,
    /// Number of positions of a span.
    pub span: &'static str,
    /// Number of positions from which a key is made, the last ones of the span.
    pub reach: &'static str,
}
