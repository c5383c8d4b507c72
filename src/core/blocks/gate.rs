//! Output gates: factors of the heads' results, before the output projection.
//!
//! A block that may have a gate has the options `gate` and `gate_act` and the weight `gate`.

use super::build::UnitBuilder;
use crate::arch::{ActRef, PointSpec};
use crate::{choices, point};
use lab_base::ggml::{Result, Tensor};

pub(super) const O_IN_POINT: PointSpec = point!(o_in: Heads ["dv", "heads"], "results of the heads as the output projection reads them; where a norm or gate comes between");

choices! {
    /// The part of the heads' results that has its own factor.
    pub(super) enum OutputGate {
        /// There is no gate.
        None = "none",
        Element = "element",
        Head = "head",
        /// Each element, projected together with the head's query.
        Query = "query",
    }
}

impl UnitBuilder<'_, '_> {
    /// Applies the captures and edits of [`O_IN_POINT`] to `y [dv * heads, n_tokens]`.
    pub(super) fn heads_read(&self, heads: u64, y: &Tensor) -> Result<Tensor> {
        let (g, shape) = (self.g, y.shape());
        let by_head = g.reshape(y, [shape[0] / heads.max(1), heads, self.n_tokens, 1])?;
        let by_head = self.point(O_IN_POINT.name, by_head)?;
        g.reshape(&by_head, shape)
    }

    /// `y [d * heads, n_tokens] * act(gate)`, where `gate` has the shape of `y`, or is `[heads, n_tokens]`.
    pub(super) fn gate_heads(&self, act: ActRef, y: &Tensor, gate: &Tensor) -> Result<Tensor> {
        let (g, n) = (self.g, self.n_tokens);
        let gate = self.activate(act, gate)?;
        let ([width, ..], [heads, ..]) = (y.shape(), gate.shape());
        if width == heads {
            return g.mul(y, &gate);
        }
        let by_head = g.reshape(y, [width / heads, heads, n, 1])?;
        let by_head = g.mul(&by_head, &g.reshape(&gate, [1, heads, n, 1])?)?;
        g.reshape(&by_head, [width, n, 1, 1])
    }
}
