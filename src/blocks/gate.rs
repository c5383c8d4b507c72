//! Output gates: what heads give, times activated numbers, before the output projection.
//!
//! A block that may have one has the options `gate` and `gate_act` and the weight `gate`.

use super::build::Build;
use crate::arch::ActRef;
use crate::choices;
use crate::ggml::{Error, Tensor};

choices! {
    /// What has a number of its own in an output gate.
    pub(super) enum Gate {
        /// There is no gate.
        None = "none",
        /// Each element.
        Element = "element",
        /// Each head.
        Head = "head",
        /// Each element, projected together with the head's query.
        Query = "query",
    }
}

impl Build<'_> {
    /// `y [d * heads, n_tokens] * act(gate)`, where `gate` has the shape of `y`, or is `[heads, n_tokens]`.
    ///
    /// # Errors
    /// As the operations.
    pub(super) fn gate_heads(
        &self,
        act: ActRef,
        y: &Tensor,
        gate: &Tensor,
    ) -> Result<Tensor, Error> {
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
