//! What a block stores between passes, as its contract states it: sizes are expressions, and nothing is evaluated here.

/// State that a block stores between passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSpec {
    /// Nothing.
    None,
    /// Keys and values of every position.
    KeyValue {
        /// The option that names the cache.
        cache: &'static str,
        /// Elements of a key row.
        k: &'static str,
        /// Elements of a value row.
        v: &'static str,
        /// Heads that share a row.
        heads: &'static str,
        /// Whether the values are the first elements of the keys, so that only keys are stored.
        v_in_k: &'static str,
        /// The option that names the layer whose rows are used; none: always the unit's own.
        layer: Option<&'static str>,
        /// Elements of a row by which keys are selected; 0: none.
        index: &'static str,
        /// What keys of whole blocks of positions are made of, where the cache has such.
        pooled: Option<PooledSpec>,
    },
    /// A state of fixed size for each sequence: parts by name, with their numbers of elements.
    Recurrent(&'static [(&'static str, &'static str)]),
}

/// Rows of positions of which the keys of whole blocks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PooledSpec {
    /// The option that names the cache in which they are kept, or `none`.
    pub cache: &'static str,
    /// Their elements.
    pub width: &'static str,
    /// Positions of a block.
    pub span: &'static str,
    /// Positions of which a key is made, the last ones of the block.
    pub reach: &'static str,
}
