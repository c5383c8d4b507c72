//! Points: named values of contracts that can be captured and edited.

/// A named value of a contract that can be captured and edited.
#[derive(Debug, PartialEq, Eq)]
pub struct PointSpec {
    /// Last part of the value's path.
    pub name: &'static str,
    /// Dimensions for one token in ggml order, as expressions over options and parameters.
    pub shape: &'static [&'static str],
    /// The kind of the parts of a row, where edits can select parts.
    pub parts: PointParts,
    /// The name in TransformerLens; within a layer for values of layers.
    pub alias: Option<&'static str>,
    /// One phrase for the documentation.
    pub doc: &'static str,
}

impl PointSpec {
    /// A value with a row of such parts for each token.
    pub const fn new(
        parts: PointParts,
        name: &'static str,
        shape: &'static [&'static str],
        doc: &'static str,
    ) -> Self {
        Self {
            name,
            shape,
            parts,
            alias: None,
            doc,
        }
    }

    /// Sets the name in TransformerLens.
    #[must_use]
    pub const fn known_as(self, alias: &'static str) -> Self {
        Self {
            alias: Some(alias),
            ..self
        }
    }
}

/// The kinds of parts of a row of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointParts {
    /// The elements.
    Neurons,
    /// The heads: the second dimension.
    Heads,
    /// The experts: the elements.
    Experts,
    /// Numbers for pairs of keys and queries, a number for each key and head; they cannot be edited.
    Pairs,
    /// Indices, which cannot be edited.
    Indices,
}

impl PointParts {
    /// The name of the parts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Neurons => "neurons",
            Self::Heads => "heads",
            Self::Experts => "experts",
            Self::Pairs => "pairs",
            Self::Indices => "indices",
        }
    }
}
