//! The numbers of a file, and what each belongs to.

use std::rc::Rc;

/// What is shown on a drawing.
#[derive(Clone, Debug, PartialEq)]
pub struct Overlay {
    /// What is measured: `time of prefill 128 tokens`.
    pub quantity: String,
    /// How several numbers come to one.
    pub rule: Rule,
    /// The numbers, each at most [`LARGEST`] from zero, or infinite where a value was no number.
    pub numbers: Vec<Number>,
    /// The model of which the file speaks, if it says so.
    pub of: Option<String>,
    /// Of a comparison, the first value that differs.
    pub first: Option<First>,
}

/// How several numbers come to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// They are seconds and add up.
    Time,
    /// The largest stands for all.
    Largest,
}

/// The largest number that is shown, and the least with a minus.
pub const LARGEST: f64 = 1e300;

/// A number and what it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    /// Path of a value, a unit, a slot or a layer.
    pub path: String,
    /// The operation of the unit or place at the path, if it is one's.
    pub op: Option<Operation>,
    /// Seconds, or whatever the quantity is.
    pub value: f64,
}

/// An operation of a use of a unit or place: [`crate::ggml::GraphOp`] has the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The kind of block.
    pub kind: String,
    /// Which use of the kind and the path.
    pub nth: u64,
    /// Which of its operations, counted from 0 without those that only describe memory.
    pub at: usize,
    /// All of its operations, by their names; the same list for each.
    pub all: Rc<[String]>,
}

/// Why a file is none of numbers, or its numbers cannot be shown: what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Problem(pub(super) String);

/// The first value that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct First {
    /// Its path.
    pub path: String,
    /// The NMSE above which a value differs.
    pub tolerance: Option<f64>,
}
