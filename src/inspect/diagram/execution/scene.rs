//! One thing that happens, or one thing that is read or kept.

use super::Picture;

/// One thing that happens, or one thing that is read or kept.
#[derive(Clone, Debug)]
pub struct Scene {
    /// What it is called.
    pub title: String,
    /// What happens, in a plain sentence.
    pub line: String,
    /// Numbers and choices.
    pub facts: Vec<String>,
    /// The kinds of layers it is about, as places in [`super::super::Drawing::kinds`]; none if it is about all
    /// of the model.
    pub kinds: Vec<usize>,
    /// What is drawn.
    pub picture: Picture,
}

impl Scene {
    /// A scene about all of the model.
    pub(super) fn new(title: impl Into<String>, line: impl Into<String>, picture: Picture) -> Self {
        Self {
            title: title.into(),
            line: line.into(),
            facts: Vec::new(),
            kinds: Vec::new(),
            picture,
        }
    }

    pub(super) fn with_facts<T: Into<String>>(
        mut self,
        facts: impl IntoIterator<Item = T>,
    ) -> Self {
        self.facts.extend(facts.into_iter().map(Into::into));
        self
    }

    /// The scene as one about some kinds of layers; none if there are none.
    pub(super) fn of(self, kinds: Vec<usize>) -> Option<Self> {
        (!kinds.is_empty()).then_some(Self { kinds, ..self })
    }
}
