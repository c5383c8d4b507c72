//! The notes at boxes, and the legend of the colours.

/// The note at a box; by default nothing is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BoxNote {
    /// The number with its unit; empty if there is none.
    pub text: String,
    /// The number without its unit.
    pub short: String,
    /// The index of the colour among [`LEVELS`], palest first; `None` without a number.
    pub level: Option<usize>,
    /// The colour as classes of the style sheet; empty if nothing is shown.
    pub class: &'static str,
    /// The place of the first difference, if it is in this box.
    pub first: Option<String>,
}

impl BoxNote {
    /// The whole note in words; empty if there is nothing.
    pub(in crate::diagram) fn sentence(&self) -> String {
        let first = self.first.as_ref();
        let first = first.map(|first| format!("first difference: {first}"));
        let number = (!self.text.is_empty()).then(|| self.text.clone());
        let both: Vec<String> = number.into_iter().chain(first).collect();
        both.join("; ")
    }
}

/// Number of colours of a scale.
pub const LEVELS: usize = 9;

/// The classes of boxes by colour, palest first, and the class of a box without a number.
pub(in crate::diagram) const HOT: [&str; LEVELS] = [
    "hot o0", "hot o1", "hot o2", "hot o3", "hot o4", "hot o5", "hot o6", "hot o7", "hot o8",
];

pub(in crate::diagram) const COLD: &str = "hot none";

/// A colour, and the range of numbers that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColourRange {
    /// The index of the colour among [`LEVELS`].
    pub level: usize,
    /// The range of the numbers: `< 1`, `1 to 2`, or `about 7`.
    pub text: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Legend {
    /// The measured quantity, with its unit.
    pub title: String,
    /// The ranges of the colours, palest first; unused colours are left out.
    pub shades: Vec<ColourRange>,
    /// Remarks: whether the numbers may belong to another model, how they are combined, and which are in no box.
    pub lines: Vec<String>,
    /// The first difference of a comparison.
    pub first: Option<String>,
    /// The note of each layer, counted over all stacks.
    pub layers: Vec<BoxNote>,
}
