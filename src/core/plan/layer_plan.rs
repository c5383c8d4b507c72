//! Layers, slots and branches with their numbers, and the end of the model.

use super::Unit;
use crate::arch::{BranchTokens, Join};

/// A norm where it is used.
#[derive(Clone, Debug, PartialEq)]
pub struct NormUse {
    /// Path of the norm's result.
    pub path: String,
    /// Kind and eps, as an index into [`super::Plan::norms`].
    pub norm: usize,
    /// Weight, as an index into [`super::Plan::tensors`].
    pub weight: Option<usize>,
    /// Bias, as an index into [`super::Plan::tensors`].
    pub bias: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    /// Path, such as `layers.3`.
    pub path: String,
    /// Index in the stack.
    pub depth: u64,
    /// The layer of the file that has the tensors and metadata.
    pub il: u64,
    /// The stack, as an index into [`crate::arch::ArchDef::stacks`].
    pub stack: usize,
    /// The slots, in order.
    pub slots: Vec<SlotPlan>,
}

/// The blocks of layers, in the order of execution.
pub(super) fn blocks(layers: &[LayerPlan]) -> impl Iterator<Item = &Unit> + Clone {
    let slots = layers.iter().flat_map(|layer| &layer.slots);
    let branches = slots.flat_map(|slot| &slot.branches);
    branches.map(|branch| &branch.block)
}

/// One sublayer with at least one active branch; see the formula in `arch`.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotPlan {
    pub path: String,
    /// The index in [`crate::arch::Stack::slots`].
    pub at: usize,
    pub read: Option<Unit>,
    pub from: Option<String>,
    pub pre: Option<NormUse>,
    pub branches: Vec<BranchPlan>,
    pub post: Option<NormUse>,
    pub scale: Option<f64>,
    pub join: Join,
    pub after: Option<NormUse>,
    pub write: Option<Unit>,
}

/// One active branch.
#[derive(Clone, Debug, PartialEq)]
pub struct BranchPlan {
    pub name: String,
    /// The index in [`crate::arch::Slot::branches`].
    pub at: usize,
    pub tokens: BranchTokens,
    pub from: Option<String>,
    pub side: Option<String>,
    pub pre: Option<NormUse>,
    pub block: Unit,
    pub post: Option<NormUse>,
    pub factor: Option<f64>,
    pub save: Option<String>,
    /// Whether each row of the result follows its row of what the tap holds already.
    pub appends: bool,
}

impl BranchPlan {
    /// The purpose of the branch's block, if the definition names it.
    pub fn role(&self) -> Option<&str> {
        Some(self.name.as_str()).filter(|name| *name != self.block.contract.0.name)
    }

    /// The short name of the block, after its role if it has one: `shared MLP`.
    pub fn short(&self) -> String {
        let short = self.block.contract.0.short();
        match self.role() {
            Some(role) => format!("{role} {short}"),
            None => short.to_owned(),
        }
    }
}

/// The end of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadPlan {
    /// The mix that makes one of several hidden states.
    pub read: Option<Unit>,
    /// Final norm.
    pub norm: Option<NormUse>,
    /// Projection to logits, with their scale and softcap; none if the normed hidden state is the result.
    pub unit: Option<Unit>,
}

/// What a drafter reads of its target: for each token a row of values of the target at the token before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPlan {
    /// The values, one after the other: the hidden state of the target after so many layers.
    pub after: Vec<u64>,
    /// Whether the final norm of the target is applied to them.
    pub is_normed: bool,
    /// Elements of a hidden state of the target.
    pub width: u64,
    /// Number of layers that read these rows alone; they are the first ones of the plan.
    pub n_layers: usize,
    /// Whether the tensor of tokens has their distances from their own numbers.
    pub has_distances: bool,
    /// The blocks that it drafts; none if it goes on token by token.
    pub block: Option<DraftBlock>,
    /// Number of heads with weights of their own, of which each drafts one token.
    pub n_heads: u64,
}

/// Tokens that a drafter computes in one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftBlock {
    /// Their number: the last token of the sequence, then masks.
    pub len: u64,
    /// The token that stands for those that are to be drafted.
    pub mask: u32,
    /// Whether the row of the last token of the sequence drafts too.
    pub from_first: bool,
}

impl TargetPlan {
    /// Elements of a row.
    pub fn row_width(&self) -> u64 {
        self.width * self.after.len() as u64
    }
}

/// The source of sequences.
#[derive(Clone, Debug, PartialEq)]
pub struct SourcePlan {
    /// The embedding of the source's token ids, like that of the sequence.
    pub embed: Unit,
    /// The token with which every completion starts.
    pub start: u32,
    /// Whether the source is rows of the width of the hidden state, in the place of tokens.
    pub is_rows: bool,
    /// Number of layers that read the source; they are the first ones of the plan.
    pub n_layers: usize,
}
