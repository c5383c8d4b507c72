//! Keys and values of the source, for each kind of block that makes them.

use super::refused;
use super::turn::Turns;
use super::{UnitBuilder, attention};
use lab_base::ggml::{Result, Tensor};

/// The keys and values that a block makes of rows of the source.
fn keys_of_source(b: &UnitBuilder<'_, '_>, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let contract = b.unit.contract.0;
    match contract.takes_source() {
        true => attention::keys_of_source(b, x),
        false => Err(refused(
            "block",
            format!("`{}` makes no keys of a source", contract.name),
        )),
    }
}

impl UnitBuilder<'_, '_> {
    /// Stores the keys and values of a unit for rows of the source `[n_embd, n_tokens]`.
    ///
    /// # Errors
    /// An operation rejects its inputs, or the unit makes no keys of a source.
    pub fn keep_source(&mut self, x: &Tensor) -> Result<()> {
        let unit = self.unit;
        if !self.keys_are_of_source(unit) {
            return Err(refused(
                "keep_source",
                format!("{} makes no keys of a source", unit.path),
            ));
        }
        self.keep_keys(x)
    }

    /// Stores the keys and values of a unit for rows `[n_embd, n_tokens]` that it does not attend from.
    ///
    /// # Errors
    /// An operation rejects its inputs, or the block makes no keys of other rows.
    pub fn keep_keys(&mut self, x: &Tensor) -> Result<()> {
        let unit = self.unit;
        let _scope = self
            .g
            .scope_on(unit.contract.0.name, &unit.path, unit.device);
        let own = self.key_owner()?;
        let (k, v) = keys_of_source(self, x)?;
        let turns = Turns::of(own.state, (k.shape()[0], v.shape()[0]), self.is_quantised);
        let (k, v) = (self.turn(&k, turns.keys)?, self.turn(&v, turns.values)?);
        let (g, n) = (self.g, self.n_tokens);
        let rows = |x: &Tensor| g.reshape(x, [x.shape()[0] * x.shape()[1], n, 1, 1]);
        let kept = self.store.append(g, own, &rows(&k)?, Some(&rows(&v)?))?;
        // A pass over a source alone has no later operation that reads the rows.
        g.expand(&kept.k)?;
        kept.v.iter().try_for_each(|v| g.expand(v))
    }
}
