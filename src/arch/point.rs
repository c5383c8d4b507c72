//! Points: the values of contracts that have a name, and can be read and changed by it.

/// A value of a contract that has a name, and can be read and changed by it.
#[derive(Debug, PartialEq, Eq)]
pub struct PointSpec {
    /// Last part of its path.
    pub name: &'static str,
    /// Dimensions for one token in ggml order, as expressions over options and parameters.
    pub shape: &'static [&'static str],
    /// What the parts of a row are, where edits can select some of them.
    pub parts: Parts,
    /// Its name in TransformerLens, within a layer for values of layers.
    pub alias: Option<&'static str>,
    /// One phrase for the documentation.
    pub doc: &'static str,
}

impl PointSpec {
    /// A value with a row of numbers for each token.
    pub const fn new(
        name: &'static str,
        shape: &'static [&'static str],
        doc: &'static str,
    ) -> Self {
        Self {
            name,
            shape,
            parts: Parts::Neurons,
            alias: None,
            doc,
        }
    }

    /// One whose second dimension is heads.
    #[must_use]
    pub const fn of_heads(self) -> Self {
        Self {
            parts: Parts::Heads,
            ..self
        }
    }

    /// One whose elements are experts.
    #[must_use]
    pub const fn of_experts(self) -> Self {
        Self {
            parts: Parts::Experts,
            ..self
        }
    }

    /// One that TransformerLens has too.
    #[must_use]
    pub const fn known_as(self, alias: &'static str) -> Self {
        Self {
            alias: Some(alias),
            ..self
        }
    }

    /// One that can be read and not changed: numbers for pairs of keys and queries.
    #[must_use]
    pub const fn of_pairs(self) -> Self {
        Self {
            parts: Parts::Pairs,
            ..self
        }
    }

    /// One that can be read and not changed: indices.
    #[must_use]
    pub const fn of_indices(self) -> Self {
        Self {
            parts: Parts::Indices,
            ..self
        }
    }
}

/// What the parts of a row of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Elements.
    Neurons,
    /// Heads: the second dimension.
    Heads,
    /// Experts: the elements.
    Experts,
    /// A number for each key and head; cannot be changed.
    Pairs,
    /// Indices, which cannot be changed.
    Indices,
}

impl Parts {
    /// Their name.
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
