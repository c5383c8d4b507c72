//! A box that opens to its operations: a block, a stage or a norm.

use serde::{Serialize, Serializer};

use super::{Cost, Kept, Note};

/// A block, a stage or a norm: a box that opens to its operations.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Part {
    /// Its name in pictures and pages.
    #[serde(rename = "at")]
    pub id: String,
    /// Its colours: a class of the style sheet.
    #[serde(skip)]
    pub class: &'static str,
    /// Name of its contract: `attention`, `norm`, ...
    #[serde(rename = "block")]
    pub kind: &'static str,
    /// Path with `{il}` for the index of the layer.
    #[serde(skip)]
    pub path: String,
    /// Paths of all that this box stands for.
    #[serde(rename = "layers", serialize_with = "n_of")]
    pub paths: Vec<String>,
    /// What it is called.
    pub title: String,
    /// What it does, in one plain line.
    pub line: String,
    /// What it computes.
    pub formula: String,
    /// Numbers and choices worth a word.
    pub facts: Vec<String>,
    /// Every choice of the definition, those of its rotation, cache and norms among them.
    #[serde(skip)]
    pub options: Vec<PartOption>,
    /// Its weights, in the order of the contract.
    pub weights: Vec<Weight>,
    /// Its operations, in the order of execution.
    pub ops: Vec<Op>,
    /// What flows between them.
    #[serde(skip)]
    pub edges: Vec<Edge>,
    /// All that this box stands for together; none without a file.
    pub cost: Option<Cost>,
    /// What it keeps between passes.
    pub kept: Kept,
    /// What a measurement says of it, if one is shown.
    pub note: Note,
}

/// A choice of the definition for a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOption {
    /// Its name in the contract, after those of the resources it is of: `qk_norm`, `rope.kind`.
    pub name: String,
    /// As resolved; a number without a file is what the definition says.
    pub value: String,
    /// What it is, in the contract's words.
    pub doc: &'static str,
    /// Whether it is a size or a factor rather than one of several ways to compute.
    pub is_number: bool,
    /// Whether it is the number by which the contract leaves something out.
    pub is_off: bool,
    /// Whether it is what the contract says by default.
    pub is_default: bool,
    /// Whether it is a choice of the file, and there is none: `value` is what the definition says.
    pub is_open: bool,
    /// Whether the contract computes its default from others.
    pub is_ruled: bool,
}

/// A weight of a part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weight {
    /// Its name in pictures and pages.
    #[serde(rename = "at")]
    pub id: String,
    /// Key in the contract.
    pub key: String,
    /// Name in the file, with `{il}` for the index of the layer.
    pub name: String,
    /// What it is, in words.
    pub doc: &'static str,
    /// Dimensions, ggml order.
    #[serde(serialize_with = "shape")]
    pub shape: Vec<String>,
    /// Element types, most frequent first; none without a file.
    pub types: Vec<&'static str>,
    /// All that this stands for together; none without a file.
    pub cost: Option<Cost>,
    /// Whether another part uses it as well.
    #[serde(rename = "shared")]
    pub is_shared: bool,
    /// The tensors, as places in the plan.
    #[serde(serialize_with = "n_of")]
    pub tensors: Vec<usize>,
}

/// A box within a part: one operation, or several that are one to a reader.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Op {
    /// Its name in pictures and pages.
    #[serde(rename = "at")]
    pub id: String,
    /// What it is called.
    pub title: String,
    /// What is computed, in ggml's names.
    pub ops: Vec<String>,
    /// How it is drawn.
    #[serde(skip)]
    pub shape: OpShape,
    /// Its weights, as places in [`Part::weights`].
    pub weights: Vec<usize>,
    /// Dimensions of the result, ggml order.
    #[serde(rename = "shape", serialize_with = "shape")]
    pub result: Vec<String>,
    /// Name of the result, where it has one.
    pub value: Option<String>,
    /// The operations, as places in the graph, in the order of execution.
    #[serde(skip)]
    pub steps: Vec<usize>,
    /// What a measurement says of it, if one is shown.
    pub note: Note,
}

/// How an operation is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpShape {
    /// With weights: a box.
    Weighted,
    /// Without: a pill.
    Plain,
    /// An addition or a product of two values: a circle.
    Sign(&'static str),
    /// Written to or read from what is kept: a drum.
    Kept,
}

/// What flows into an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// Where it comes from.
    pub from: End,
    /// The operation that reads it, a place in [`Part::ops`].
    pub to: usize,
    /// Dimensions in which it is read, ggml order.
    pub shape: Vec<String>,
    /// Whether only a part of the value is read.
    pub is_part: bool,
}

/// Where an edge comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// An operation, a place in [`Part::ops`].
    Op(usize),
    /// Something outside, by its name.
    Outside(String),
}

/// How many there are of something that a page does not list.
fn n_of<T, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(list.len() as u64)
}

/// Dimensions in words.
fn shape<S: Serializer>(dims: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&self::dims(dims))
}

/// Dimensions as text, in ggml's order, without those that are 1.
pub(super) fn dims(dims: &[String]) -> String {
    let shown = dims.iter().map(String::as_str).filter(|d| *d != "1");
    match shown.collect::<Vec<&str>>() {
        shown if shown.is_empty() => "1".into(),
        shown => shown.join(" \u{d7} "),
    }
}
