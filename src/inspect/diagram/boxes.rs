//! The parts of a drawing, as data without coordinates: kinds of layers with their slots and branches; boxes of parts with
//! operations and weights; the notes of a measurement, and the legend of its colours.

use serde::{Serialize, Serializer};

use lab_base::util::wording;
use lab_core::arch::Join;

/// Layers that are equal except for their index.
#[derive(Clone, Debug, Default)]
pub struct LayerKind {
    /// The id of the kind in pictures and pages.
    pub id: String,
    /// The letter of the kind: `A`, `B`, ...
    pub letter: String,
    /// A few words that distinguish the kind from the others.
    pub label: String,
    /// The indices of the layers, counted over all stacks.
    pub layers: Vec<usize>,
    pub slots: Vec<Slot>,
    /// The total weights of all layers of the kind.
    pub cost: Option<WeightCost>,
    pub note: BoxNote,
}

/// A sublayer: it reads the hidden state, and its result is written back.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The name in the definition.
    pub name: String,
    /// Path with `{il}` for the index of the layer.
    pub path: String,
    /// The mix that reads one hidden state from several.
    pub read: Option<UnitBox>,
    /// The tap that is read instead of the hidden state.
    pub from: Option<String>,
    /// The norm before the branches.
    pub pre: Option<UnitBox>,
    /// The branches, which run side by side and are added.
    pub branches: Vec<Branch>,
    /// The additions that sum the branches, as indices in the graph.
    pub sums: Vec<usize>,
    /// The norm after the sum.
    pub post: Option<UnitBox>,
    /// The factor after that norm.
    pub scale: Option<Factor>,
    /// How the result is combined with the hidden state.
    pub join: Join,
    /// The addition to the hidden state, as an index in the graph.
    pub joined: Option<usize>,
    /// The norm of the hidden state after the slot.
    pub after: Option<UnitBox>,
    /// The mix that writes several hidden states.
    pub write: Option<UnitBox>,
    /// The measurement that is shown at the wiring, if any.
    pub note: BoxNote,
}

#[derive(Clone, Debug)]
pub struct Branch {
    /// The tap that is read instead of the slot's input, which is the result of its norm `pre` if it has one.
    pub from: Option<String>,
    /// The tap that is the second input of the block.
    pub side: Option<String>,
    /// The norm before the block.
    pub pre: Option<UnitBox>,
    pub block: UnitBox,
    /// The norm after the block.
    pub post: Option<UnitBox>,
    /// The factor after that norm.
    pub factor: Option<Factor>,
    /// The tap name under which later slots and layers read the result.
    pub save: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    /// The value of the factor, or its name.
    pub text: String,
    /// The operation, as an index in the graph.
    pub step: usize,
}

impl Slot {
    /// The operations of the slot's wiring, as indices in the graph.
    pub fn wiring(&self) -> impl Iterator<Item = usize> {
        let of_branches = self.branches.iter().filter_map(|b| b.factor.as_ref());
        let factors = of_branches.chain(&self.scale).map(|factor| factor.step);
        factors.chain(self.sums.iter().copied()).chain(self.joined)
    }
}

/// A box that shows its operations when opened: a block, a stage or a norm.
#[derive(Clone, Debug, Default, Serialize)]
pub struct UnitBox {
    /// The id of the box in pictures and pages.
    #[serde(rename = "at")]
    pub id: String,
    /// The colours of the box, as a class of the style sheet.
    #[serde(skip)]
    pub class: &'static str,
    /// The name of its contract: `attention`, `norm`, ...
    #[serde(rename = "block")]
    pub kind: &'static str,
    /// Path with `{il}` for the index of the layer.
    #[serde(skip)]
    pub path: String,
    /// The paths of all units that the box represents.
    #[serde(rename = "layers", serialize_with = "n_of")]
    pub paths: Vec<String>,
    pub title: String,
    /// A plain sentence about what the part does.
    pub line: String,
    pub formula: String,
    /// Important numbers and options, in words.
    pub facts: Vec<String>,
    /// All options of the part in the definition, including those of its RoPE, cache and norms.
    #[serde(skip)]
    pub options: Vec<UnitOption>,
    /// The weights of the part, in the order of the contract.
    pub weights: Vec<BoxWeight>,
    /// The operations of the part, in the order of execution.
    pub ops: Vec<OpBox>,
    /// The values that flow between the operations.
    #[serde(skip)]
    pub edges: Vec<Edge>,
    /// The total weights of all units that the box represents; `None` without a file.
    pub cost: Option<WeightCost>,
    pub kept: Kept,
    /// The measurement that is shown at the box, if any.
    pub note: BoxNote,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitOption {
    /// The name in the contract, prefixed by the resource that it belongs to: `qk_norm`, `rope.kind`.
    pub name: String,
    /// The resolved value. Without a file, a number is the expression of the definition.
    pub value: String,
    /// The name of the resource, if `value` only says that there is one.
    pub resource: Option<String>,
    /// The description in the contract.
    pub doc: &'static str,
    /// Whether the option is a size or a factor, not a choice between ways to compute.
    pub is_number: bool,
    /// Whether the value is the number that turns a part of the contract off.
    pub is_off: bool,
    /// Whether the value is the contract's default.
    pub is_default: bool,
    /// Whether a file would decide the option and there is none: `value` is the text of the definition.
    pub is_open: bool,
    /// Whether the contract computes the default from other options.
    pub is_ruled: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoxWeight {
    /// The id of the weight in pictures and pages.
    #[serde(rename = "at")]
    pub id: String,
    /// The key in the contract.
    pub key: String,
    /// The name in the file, with `{il}` for the index of the layer.
    pub name: String,
    pub doc: &'static str,
    /// Dimensions, in ggml's order.
    #[serde(serialize_with = "shape")]
    pub shape: Vec<String>,
    /// Element types, the most frequent first; `None` without a file.
    pub types: Vec<&'static str>,
    /// The total of all tensors that the weight represents; `None` without a file.
    pub cost: Option<WeightCost>,
    /// Whether another part also uses the weight.
    #[serde(rename = "shared")]
    pub is_shared: bool,
    /// The tensors, as indices in the plan.
    #[serde(serialize_with = "n_of")]
    pub tensors: Vec<usize>,
}

/// A box within a part: one operation, or several that are shown as one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpBox {
    #[serde(rename = "at")]
    pub id: String,
    pub title: String,
    /// The computed operations, by ggml's names.
    pub ops: Vec<String>,
    /// The shape in which the operation is drawn.
    #[serde(skip)]
    pub shape: OpShape,
    /// The weights of the operation, as indices in [`UnitBox::weights`].
    pub weights: Vec<usize>,
    /// Dimensions of the result, in ggml's order.
    #[serde(rename = "shape", serialize_with = "shape")]
    pub result: Vec<String>,
    /// The name of the result, if it has one.
    pub value: Option<String>,
    /// The operations, as indices in the graph, in the order of execution.
    #[serde(skip)]
    pub steps: Vec<usize>,
    pub note: BoxNote,
}

/// The shape of an operation in a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpShape {
    /// A box, for an operation with weights.
    Weighted,
    /// A pill, for an operation without weights.
    Plain,
    /// A circle, for an addition or a product of two values.
    Sign(&'static str),
    /// A drum, for a read from or a write to memory that is kept between passes.
    RetainedMemory,
}

/// A value that flows into an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    pub from: EdgeSource,
    /// The operation that reads it, as an index in [`UnitBox::ops`].
    pub to: usize,
    /// The dimensions in which it is read, in ggml's order.
    pub shape: Vec<String>,
    /// Whether only a part of the value is read.
    pub is_part: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeSource {
    /// An operation, as an index in [`UnitBox::ops`].
    Op(usize),
    /// A value from outside the part, by name.
    Outside(String),
}

/// Serialises the length of a list that a page does not show.
fn n_of<T, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(list.len() as u64)
}

/// Serialises dimensions as text.
fn shape<S: Serializer>(dims: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&self::dims(dims))
}

/// Dimensions as text, in ggml's order, without dimensions of 1.
pub(super) fn dims(dims: &[String]) -> String {
    let shown = dims.iter().map(String::as_str).filter(|d| *d != "1");
    match shown.collect::<Vec<&str>>() {
        shown if shown.is_empty() => "1".into(),
        shown => shown.join(" \u{d7} "),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WeightCost {
    /// Number of elements.
    pub params: u64,
    /// Bytes as stored.
    pub bytes: u64,
    /// Bytes as a share of all bytes of the model.
    pub share: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// Bytes per position, with 16-bit keys and values, for caches without a window; `None` without a file or if there
    /// are none.
    pub per_token: Option<u64>,
    /// Bytes per position while a sliding window reaches it, for caches that drop older positions; `None` without a
    /// file or if there are none.
    pub in_window: Option<u64>,
    /// Bytes per sequence; `None` without a file or if there are none.
    pub per_sequence: Option<u64>,
    pub text: Vec<String>,
}

impl Kept {
    /// The numbers of bytes in words.
    pub(super) fn amounts(&self) -> Vec<String> {
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
