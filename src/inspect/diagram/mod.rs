//! A model as something to look at: stack, kinds of layers, slots, blocks, operations.
//!
//! A [`Drawing`] is made from a plan and from the graph that the model builds of it
//! ([`crate::model::trace`]), so it cannot show what does not run. It is data without coordinates;
//! `svg` turns it into pictures. With a model file its numbers are those of the file. Without one sizes
//! are the expressions of the definition and of the contracts ([`symbols`]).
//!
//! What is folded into edges and not drawn as an operation: views, reshapes and permutations, copies of
//! layout, repetitions of the same elements, and bounds that bound nothing. A factor or offset that
//! directly follows a product, a convolution or a norm and is used by nothing else shares its box, and
//! so do the additions that sum the parts of one value.

mod apart;
mod build;
pub mod compare;
mod context;
mod error;
mod execution;
mod gallery;
pub mod html;
mod ids;
mod kinds;
mod ops;
pub mod overlay;
mod parts;
#[cfg(feature = "png")]
pub mod png;
mod sample;
pub mod svg;
mod symbols;
mod variants;
mod words;

pub use error::Error;
pub use execution::{Held, Loan, MASK, Picture, SMALL, Scene, View, WINDOW};
pub use gallery::{GalleryError, gallery};
pub use kinds::Run;
pub use overlay::{Legend, Note};
pub use sample::Sample;
pub use variants::variants;

use serde::Serialize;

use crate::arch::{Join, Mode};
use crate::common::wording;

/// A model.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// Name of the model or definition.
    pub name: String,
    /// Name of the architecture.
    pub arch: String,
    /// How it is executed.
    pub mode: Mode,
    /// Whether sizes are symbols, since there is no file.
    pub is_symbolic: bool,
    /// Name and value of what holds for the whole model.
    pub facts: Vec<(String, String)>,
    /// Tokens to the hidden state, and further inputs of layers.
    pub begin: Vec<Part>,
    /// Distinct kinds of layers, in the order in which they first occur.
    pub kinds: Vec<Kind>,
    /// The kind of each layer, a place in `kinds`.
    pub layers: Vec<usize>,
    /// The kinds of the layers that read the source, with repetitions counted; where there are such, the first stage is
    /// theirs.
    pub source: Vec<Run>,
    /// The kinds of the layers that read tokens, with repetitions counted.
    pub pattern: Vec<Run>,
    /// The hidden state to the result.
    pub end: Vec<Part>,
    /// All weights; none without a file.
    pub cost: Option<Cost>,
    /// What all layers keep between passes.
    pub kept: Kept,
    /// What happens when it runs.
    pub scenes: Vec<Scene>,
    /// Operations of the graph that were executed and belong to nothing drawn.
    pub unplaced: Vec<usize>,
    /// What the colours mean, if numbers are shown.
    pub overlay: Option<Legend>,
}

/// Elements and bytes of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Elements.
    pub params: u64,
    /// Bytes as stored.
    pub bytes: u64,
    /// Bytes of all, over those of the model.
    pub share: f64,
}

/// What is kept between passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// Bytes of each position, with 16-bit keys and values; none without a file.
    pub per_token: Option<u64>,
    /// The same where positions leave a sliding window: while it reaches them.
    pub in_window: Option<u64>,
    /// Bytes of each sequence; none without a file.
    pub per_sequence: Option<u64>,
    /// In words.
    pub text: Vec<String>,
}

impl Kept {
    /// The bytes in words.
    fn amounts(&self) -> Vec<String> {
        let of = |amount: Option<u64>, before: &str, after: &str| {
            amount.map(|n| format!("{before}: {} {after}", wording::bytes(n)))
        };
        let all = [
            of(self.per_token, "KV cache", "per token"),
            of(self.in_window, "KV cache", "per token in the window"),
            of(self.per_sequence, "state", "per sequence"),
        ];
        all.into_iter().flatten().collect()
    }
}

/// Layers that are equal but for their index.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Its name in pictures and pages.
    pub id: String,
    /// `A`, `B`, ...
    pub letter: String,
    /// What tells it from the others, in a few words.
    pub label: String,
    /// Indices of the layers, counted over all stacks.
    pub layers: Vec<usize>,
    /// What they do, in order.
    pub slots: Vec<Slot>,
    /// All layers of the kind together.
    pub cost: Option<Cost>,
    /// What a measurement says of them, if one is shown.
    pub note: Note,
}

/// One sublayer: what leaves the hidden state, and how it comes back.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Its name in the definition.
    pub name: String,
    /// Path with `{il}` for the index of the layer.
    pub path: String,
    /// What reads one of several hidden states.
    pub read: Option<Part>,
    /// The tap that is read instead of the hidden state.
    pub from: Option<String>,
    /// Before the branches.
    pub pre: Option<Part>,
    /// Side by side; their sum goes on.
    pub branches: Vec<Branch>,
    /// The additions that sum the branches, as places in the graph.
    pub sums: Vec<usize>,
    /// After the sum.
    pub post: Option<Part>,
    /// Factor after that.
    pub scale: Option<Factor>,
    /// How it meets the hidden state.
    pub join: Join,
    /// The addition to the hidden state, as a place in the graph.
    pub joined: Option<usize>,
    /// Norm of the hidden state after it.
    pub after: Option<Part>,
    /// What writes several hidden states.
    pub write: Option<Part>,
    /// What a measurement says of the wiring, if one is shown.
    pub note: Note,
}

/// One way through a slot.
#[derive(Clone, Debug)]
pub struct Branch {
    /// The tap that is read instead of what the slot's norm gives.
    pub from: Option<String>,
    /// The tap that is its second input.
    pub side: Option<String>,
    /// Before the block.
    pub pre: Option<Part>,
    /// The block.
    pub block: Part,
    /// After the block.
    pub post: Option<Part>,
    /// Factor after that.
    pub factor: Option<Factor>,
    /// The name under which later slots and layers read the result.
    pub save: Option<String>,
}

/// A factor in the wiring.
#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    /// Its value, or its name.
    pub text: String,
    /// The operation, as a place in the graph.
    pub step: usize,
}

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
    #[serde(rename = "layers", serialize_with = "html::n_of")]
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
    #[serde(serialize_with = "html::shape")]
    pub shape: Vec<String>,
    /// Element types, most frequent first; none without a file.
    pub types: Vec<&'static str>,
    /// All that this stands for together; none without a file.
    pub cost: Option<Cost>,
    /// Whether another part uses it as well.
    #[serde(rename = "shared")]
    pub is_shared: bool,
    /// The tensors, as places in the plan.
    #[serde(serialize_with = "html::n_of")]
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
    #[serde(rename = "shape", serialize_with = "html::shape")]
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

/// Walks over the parts of a drawing and of a slot in the order of execution, by reference or to change them.
macro_rules! walks {
    ($name:ident, $iter:ident, $doc:literal, $($mutable:tt)?) => {
        impl Drawing {
            #[doc = concat!("Every part, each kind of layer once, in the order of execution", $doc)]
            pub fn $name(&$($mutable)? self) -> impl Iterator<Item = &$($mutable)? Part> {
                let slots = self.kinds.$iter().flat_map(|kind| &$($mutable)? kind.slots);
                let inside = slots.flat_map(Slot::$name);
                self.begin.$iter().chain(inside).chain(&$($mutable)? self.end)
            }
        }

        impl Slot {
            #[doc = concat!("Its parts, in the order of execution", $doc)]
            pub fn $name(&$($mutable)? self) -> impl Iterator<Item = &$($mutable)? Part> {
                let branches = self.branches.$iter().flat_map(|branch| {
                    let block = [&$($mutable)? branch.block];
                    branch.pre.$iter().chain(block).chain(&$($mutable)? branch.post)
                });
                let ends = self.post.$iter().chain(&$($mutable)? self.after);
                let ends = ends.chain(&$($mutable)? self.write);
                let begin = self.read.$iter().chain(&$($mutable)? self.pre);
                begin.chain(branches).chain(ends)
            }
        }
    };
}

walks!(parts, iter, ".",);
walks!(parts_mut, iter_mut, ", to be changed.", mut);

impl Slot {
    /// Its operations in the wiring, as places in the graph.
    pub fn wiring(&self) -> impl Iterator<Item = usize> {
        let of_branches = self.branches.iter().filter_map(|b| b.factor.as_ref());
        let factors = of_branches.chain(&self.scale).map(|factor| factor.step);
        factors.chain(self.sums.iter().copied()).chain(self.joined)
    }
}
