//! The drawing of a model, and iterators over its parts.

use super::{Kept, LayerKind, LayerPattern, Legend, Scene, Slot, UnitBox, WeightCost};
use lab_core::arch::Mode;

#[derive(Clone, Debug)]
pub struct Drawing {
    /// The name of the model or definition.
    pub name: String,
    pub arch: String,
    pub mode: Mode,
    /// Whether sizes are symbols because there is no file.
    pub is_symbolic: bool,
    /// Names and values of properties of the whole model.
    pub facts: Vec<(String, String)>,
    /// The parts before the layers: tokens to hidden state, and further inputs of layers.
    pub begin: Vec<UnitBox>,
    /// The distinct kinds of layers, in the order of their first occurrence.
    pub kinds: Vec<LayerKind>,
    /// The kind of each layer, as an index in `kinds`.
    pub layers: Vec<usize>,
    /// The kinds of the layers that read the source, with repetitions counted. If there are any and it is tokens, the first
    /// stage belongs to them.
    pub source: Vec<LayerPattern>,
    pub source_rows: SourceRows,
    /// The kinds of the layers that read tokens, with repetitions counted.
    pub pattern: Vec<LayerPattern>,
    /// The parts after the layers: hidden state to result.
    pub end: Vec<UnitBox>,
    /// The total weights; `None` without a file.
    pub cost: Option<WeightCost>,
    pub kept: Kept,
    pub scenes: Vec<Scene>,
    /// Executed operations of the graph that no drawn part contains.
    pub unplaced: Vec<usize>,
    /// The towers that make rows for the model.
    pub towers: Vec<TowerDrawing>,
    /// The legend of the colours, if numbers are shown.
    pub overlay: Option<Legend>,
}

/// What the source of a drawing is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceRows {
    #[default]
    Tokens,
    /// Rows of a tower.
    Tower,
    /// Hidden states of the model that a drafter drafts for.
    Target,
}

/// A tower of a model.
#[derive(Clone, Debug)]
pub struct TowerDrawing {
    pub drawing: Drawing,
    /// What it reads, in words.
    pub reads: &'static str,
    /// Where its rows go in the model, in sentences.
    pub goes: Vec<String>,
}

/// Iterators over the parts of a drawing and of a slot in the order of execution, shared and mutable.
macro_rules! walks {
    ($name:ident, $iter:ident, $doc:literal, $($mutable:tt)?) => {
        impl Drawing {
            #[doc = concat!("Every part, each kind of layer once, in the order of execution", $doc)]
            pub fn $name(&$($mutable)? self) -> impl Iterator<Item = &$($mutable)? UnitBox> {
                let slots = self.kinds.$iter().flat_map(|kind| &$($mutable)? kind.slots);
                let inside = slots.flat_map(Slot::$name);
                self.begin.$iter().chain(inside).chain(&$($mutable)? self.end)
            }
        }

        impl Slot {
            #[doc = concat!("Its parts, in the order of execution", $doc)]
            pub fn $name(&$($mutable)? self) -> impl Iterator<Item = &$($mutable)? UnitBox> {
                let branches = self.branches.$iter().flat_map(|branch| {
                    let block = [&$($mutable)? branch.block];
                    branch.pre.$iter().chain(block).chain(&$($mutable)? branch.post)
                });
    let ends = self.post.$iter().chain(&$($mutable)? self.after).chain(&$($mutable)? self.write);
        self.read.$iter().chain(&$($mutable)? self.pre).chain(branches).chain(ends)
}
        }
    };
}

walks!(parts, iter, ".",);
walks!(parts_mut, iter_mut, ", to be changed.", mut);
