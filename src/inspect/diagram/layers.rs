//! Kinds of layers, their slots, and the ways through these.

use super::{Cost, Note, Part};
use crate::arch::Join;

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

impl Slot {
    /// Its operations in the wiring, as places in the graph.
    pub fn wiring(&self) -> impl Iterator<Item = usize> {
        let of_branches = self.branches.iter().filter_map(|b| b.factor.as_ref());
        let factors = of_branches.chain(&self.scale).map(|factor| factor.step);
        factors.chain(self.sums.iter().copied()).chain(self.joined)
    }
}
