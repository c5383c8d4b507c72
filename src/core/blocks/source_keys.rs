//! Keys and values of the source, for each kind of block that makes them.

use super::refused;
use super::{GraphBuilder, attention};
use crate::plan::Unit;
use lab_base::ggml::{Error, Tensor};

/// The keys and values that a block makes of rows of the source.
fn keys_of_source(
    build: &GraphBuilder<'_>,
    unit: &Unit,
    x: &Tensor,
) -> Result<(Tensor, Tensor), Error> {
    match unit.contract.0.takes_source() {
        true => attention::keys_of_source(build, unit, x),
        false => Err(refused(
            "block",
            format!("`{}` makes no keys of a source", unit.contract.0.name),
        )),
    }
}

impl GraphBuilder<'_> {
    /// Stores the keys and values of a unit for rows of the source `[n_embd, n_tokens]`.
    ///
    /// # Errors
    /// An operation rejects its inputs, or the unit makes no keys of a source.
    pub fn keep_source(&mut self, unit: &Unit, x: &Tensor) -> Result<(), Error> {
        let _scope = self
            .g
            .scope_on(unit.contract.0.name, &unit.path, unit.device);
        let Some(state) = unit.key_values().filter(|_| self.keys_are_of_source(unit)) else {
            return Err(refused(
                "keep_source",
                format!("{} makes no keys of a source", unit.path),
            ));
        };
        let (k, v) = keys_of_source(self, unit, x)?;
        let (g, n) = (self.g, self.n_tokens);
        let rows = |x: &Tensor| g.reshape(x, [x.shape()[0] * x.shape()[1], n, 1, 1]);
        let kept = self
            .store
            .append(g, &unit.path, state, &rows(&k)?, Some(&rows(&v)?))?;
        // A pass over a source alone has no later operation that reads the rows.
        g.expand(&kept.k)?;
        kept.v.iter().try_for_each(|v| g.expand(v))
    }
}
