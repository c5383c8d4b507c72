//! Low-rank updates of weights (Hu et al. 2021, arXiv 2106.09685): `y = w . x + s * (up . (down . x))`.
//!
//! An adapter has two small matrices for each of some weights of a model, and does not change the weights. `s` is one
//! number for each token of the pass, so sequences with different adapters share a pass. [`UnitBuilder`](super::UnitBuilder) adds
//! the updates to every product of a weight, so no block refers to them. The update of a table (`x = w[id]`) is
//! `s * (up . down[id])`.
//!
//! A model file may have its own adapters, between which tokens switch: there is one matrix for each adapter, and a
//! token is multiplied with those of its adapter. These results follow from the tokens alone.
//!
//! Invariant: a pass whose adapters are all off has the same operations as one without adapters.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use lab_base::ggml::{Graph, Result, Tensor};

/// The update of one weight `[n_in, n_out, ..]` by one adapter.
#[derive(Clone, Debug)]
pub struct LowRankUpdate {
    /// The place of the adapter in the list of adapters.
    pub adapter: usize,
    /// `[n_in, rank]`, or one matrix for each expert or head; of a table `[rank, n_rows]`.
    pub down: Tensor,
    /// `[rank, n_out]`, or one matrix for each expert or head.
    pub up: Tensor,
    /// Factor of the product, in addition to the scale of a token.
    pub factor: f32,
}

/// Updates by the places of their weights in [`Plan::tensors`](crate::plan::Plan::tensors).
pub type LowRankUpdates = HashMap<usize, Vec<LowRankUpdate>>;

/// The adapters of a pass.
#[derive(Default)]
pub struct ActiveAdapters<'a> {
    /// The updates of all adapters; none without adapters.
    pub updates: Option<&'a LowRankUpdates>,
    /// The adapters that at least one token of the pass uses, each with the scales of the tokens, f32 `[1, n_tokens]`.
    pub scales: Vec<(usize, Tensor)>,
    /// The weights that were updated so far, as places in the plan.
    pub updated: RefCell<BTreeSet<usize>>,
}

impl ActiveAdapters<'_> {
    /// The updates of a weight by the adapters of the pass, with the scales of the tokens.
    fn of(&self, at: usize) -> Vec<(&LowRankUpdate, &Tensor)> {
        let updates = self.updates.and_then(|all| all.get(&at));
        let found = updates.into_iter().flatten().filter_map(|update| {
            let scales = self.scales.iter().find(|(id, _)| *id == update.adapter);
            Some((update, &scales?.1))
        });
        let found: Vec<_> = found.collect();
        if !found.is_empty() {
            self.updated.borrow_mut().insert(at);
        }
        found
    }

    /// `y` plus the updates of weight `at`: `first` and `second` are the products with the two matrices, and `shape` is
    /// the shape of the tokens' scales for the result of `first`.
    pub(super) fn add(
        &self,
        g: &Graph,
        at: usize,
        y: Tensor,
        shape: [u64; 4],
        first: impl Fn(&Tensor) -> Result<Tensor>,
        second: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut y = y;
        for (update, scales) in self.of(at) {
            let scales = g.reshape(scales, shape)?;
            let inner = g.mul(&first(&update.down)?, &scales)?;
            let inner = match update.factor {
                1.0 => inner,
                factor => g.scale(&inner, factor)?,
            };
            y = g.add(&y, &second(&update.up, &inner)?)?;
        }
        Ok(y)
    }
}

/// Maximum number of operations of the update of one weight.
pub const MAX_NODES: usize = 8;

/// Maximum number of operations of an update by adapters in the file.
pub(super) const NODES_OF_SWITCHED: usize = 8;
