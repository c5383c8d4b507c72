//! A scene: one step of the execution, or one kind of memory that is read or kept.

use super::Picture;

/// A scene: one step of the execution, or one kind of memory that is read or kept.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The title of the scene.
    pub title: String,
    /// A plain sentence about what happens.
    pub line: String,
    /// Important numbers and options, in words.
    pub facts: Vec<String>,
    /// The kinds of layers that the scene is about, as indices in [`super::super::Drawing::kinds`]; empty if it is
    /// about the whole model.
    pub kinds: Vec<usize>,
    /// The picture of the scene.
    pub picture: Picture,
}

impl Scene {
    /// A scene about the whole model.
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

    /// The scene, restricted to some kinds of layers; `None` if there are none.
    pub(super) fn of(self, kinds: Vec<usize>) -> Option<Self> {
        (!kinds.is_empty()).then_some(Self { kinds, ..self })
    }
}
