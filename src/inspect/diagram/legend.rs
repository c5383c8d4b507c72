//! What is noted at boxes, and what the colours mean.

/// What is noted at a box; by default nothing is shown on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Note {
    /// The number, with its unit; empty if there is none.
    pub text: String,
    /// The number alone.
    pub short: String,
    /// Which of the [`LEVELS`] colours, palest first; none without a number.
    pub level: Option<usize>,
    /// Its colour: classes of the style sheet; none if nothing is shown.
    pub class: &'static str,
    /// Where the first difference is, if it is in this box.
    pub first: Option<String>,
}

impl Note {
    /// All of it in words; empty if there is nothing.
    pub(in crate::inspect::diagram) fn sentence(&self) -> String {
        let first = self.first.as_ref();
        let first = first.map(|first| format!("first difference: {first}"));
        let number = (!self.text.is_empty()).then(|| self.text.clone());
        let both: Vec<String> = number.into_iter().chain(first).collect();
        both.join("; ")
    }
}

/// Colours of a scale.
pub const LEVELS: usize = 9;

/// Classes of boxes, palest first, and that of a box without a number.
pub(in crate::inspect::diagram) const HOT: [&str; LEVELS] = [
    "hot o0", "hot o1", "hot o2", "hot o3", "hot o4", "hot o5", "hot o6", "hot o7", "hot o8",
];

pub(in crate::inspect::diagram) const COLD: &str = "hot none";

/// A colour and the numbers that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shade {
    /// Which of the [`LEVELS`] colours.
    pub level: usize,
    /// Their range: `< 1`, `1 to 2`, or `about 7`.
    pub text: String,
}

/// What the colours of a drawing mean.
#[derive(Clone, Debug, PartialEq)]
pub struct Legend {
    /// What is measured, with its unit.
    pub title: String,
    /// What each colour stands for, palest first; colours that stand for nothing are left out.
    pub shades: Vec<Shade>,
    /// Whether the numbers may be another model's, how they come together, and what is in no box.
    pub lines: Vec<String>,
    /// Of a comparison, what differs first.
    pub first: Option<String>,
    /// The note of each layer, counted over all stacks.
    pub layers: Vec<Note>,
}
