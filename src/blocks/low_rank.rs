//! Low-rank updates of weights (Hu et al. 2021, arXiv 2106.09685): `y = w . x + s * (up . (down . x))`.
//!
//! An adapter has two small matrices for each of some weights of a model, which stay as they are. `s`
//! is one number for each token of the pass, so that sequences with different adapters share a pass.
//! [`Build`](super::Build) adds the updates wherever a weight becomes a product, so no block knows of
//! them. Of a table (`x = w[id]`) the update is `s * (up . down[id])`.
//!
//! Invariant: a pass whose adapters are all off has the same operations as one without adapters.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use crate::ggml::{Error, Graph, Tensor};

/// The update of one weight `[n_in, n_out, ..]` by one adapter.
#[derive(Clone, Debug)]
pub struct Update {
    /// Which adapter, by its place in the list of them.
    pub adapter: usize,
    /// `[n_in, rank]`, or one for each expert or head; of a table `[rank, n_rows]`.
    pub down: Tensor,
    /// `[rank, n_out]`, or one for each expert or head.
    pub up: Tensor,
    /// Factor of the product, in addition to the scale of a token.
    pub factor: f32,
}

/// Updates by places in [`Plan::tensors`](crate::plan::Plan::tensors).
pub type Updates = HashMap<usize, Vec<Update>>;

/// The adapters of a pass.
#[derive(Default)]
pub struct AtWork<'a> {
    /// Updates of all adapters; none without adapters.
    pub updates: Option<&'a Updates>,
    /// The adapters that some token of the pass uses, each with the scales of the tokens, f32
    /// `[1, n_tokens]`.
    pub scales: Vec<(usize, Tensor)>,
    /// Weights that were updated so far, as places in the plan.
    pub updated: RefCell<BTreeSet<usize>>,
}

impl AtWork<'_> {
    /// The updates of a weight by the adapters of the pass, with the scales of the tokens.
    fn of(&self, at: usize) -> Vec<(&Update, &Tensor)> {
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

    /// `y` plus the updates of weight `at`: `first` and `second` are the products with the two
    /// matrices, and `shape` is that of the tokens' scales in what the first of them gives.
    pub(super) fn add(
        &self,
        g: &Graph,
        at: usize,
        y: Tensor,
        shape: [u64; 4],
        first: impl Fn(&Tensor) -> Result<Tensor, Error>,
        second: impl Fn(&Tensor, &Tensor) -> Result<Tensor, Error>,
    ) -> Result<Tensor, Error> {
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
