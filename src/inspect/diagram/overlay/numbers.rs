//! The numbers of a file, with the values and units that they belong to.

use std::rc::Rc;

/// The numbers that are shown on a drawing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overlay {
    /// The measured quantity: `time of prefill 128 tokens`.
    pub quantity: String,
    /// The rule by which several numbers are combined.
    pub rule: Rule,
    /// The numbers. Each has at most [`LARGEST`] as its absolute value, or is infinite if it is an error that the file
    /// has as null.
    pub numbers: Vec<Number>,
    /// The model that the file names, if any.
    pub of: Option<String>,
    /// The first value that differs, in a comparison.
    pub first: Option<First>,
}

/// The rule by which several numbers are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The numbers are seconds and are added.
    Time,
    /// The largest number is used.
    #[default]
    Largest,
}

/// The largest absolute value of a number that is shown.
pub const LARGEST: f64 = 1e300;

/// A number, and the value or unit that it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    /// The path of a value, a unit, a slot or a layer.
    pub path: String,
    /// The operation of the unit at the path, if the number belongs to one.
    pub op: Option<Operation>,
    /// Seconds, or the quantity of the file.
    pub value: f64,
}

/// An operation of a use of a unit. [`crate::ggml::GraphOp`] has the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The kind of block.
    pub kind: String,
    /// The number of the use, among those of the same kind and path.
    pub nth: u64,
    /// The index of the operation in the use, without operations that only describe memory.
    pub at: usize,
    /// The names of all operations of the use; the list is shared by them.
    pub all: Rc<[String]>,
}

/// The error of a file without numbers, or whose numbers cannot be shown: what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Problem(pub(super) String);

/// The first value that differs, in a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct First {
    /// The path of the value.
    pub path: String,
    /// The NMSE above which values count as different.
    pub tolerance: Option<f64>,
}
