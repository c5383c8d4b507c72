//! A model as a drawing, and walks over its parts.

use super::{Cost, Kept, Kind, Legend, Part, Run, Scene, Slot};
use crate::arch::Mode;

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
