//! The kinds of layers, their slots, and the branches of these.

use super::{BoxNote, UnitBox, WeightCost};
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
