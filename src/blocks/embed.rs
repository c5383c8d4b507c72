//! Token ids to the stream: `x = tokens[id] * scale`.
//!
//! Ids `[n_tokens]` in, stream `[n_embd, n_tokens]` out, f32.

use super::build::Build;
use crate::arch::{Contract, Rule, StateSpec, WeightRole, WeightSpec};
use crate::ggml::{Error, Tensor};
use crate::options;
use crate::plan::Unit;

options! {
    /// Options of the embedding.
    pub(super) struct Config {
        scale: f32 = "1", "factor of the rows";
    }
}

/// `[embed]`.
pub(super) static CONTRACT: Contract = Contract {
    name: "embed",
    summary: "Takes one row of the token table for each token.",
    formula: "x = tokens[id] * scale",
    options: Config::OPTIONS,
    weights: &[WeightSpec {
        key: "tokens",
        tensor: "token_embd.weight",
        shape: &["n_embd", "n_vocab"],
        when: "true",
        optional: false,
        role: WeightRole::Table,
        doc: "token table",
    }],
    state: StateSpec::None,
    rules: &[Rule {
        holds: "scale != 0",
        message: "`scale` is not zero",
    }],
};

pub(crate) fn build(b: &Build<'_>, unit: &Unit, ids: &Tensor) -> Result<Tensor, Error> {
    let c = Config::read(&unit.options);
    let Some(table) = b.weight(unit, "tokens") else {
        return Err(Error::Arguments {
            op: "embed",
            message: "there is no token table".into(),
        });
    };
    let x = b.g.get_rows(table, ids)?;
    let x = if c.scale == 1.0 {
        x
    } else {
        b.g.scale(&x, c.scale)?
    };
    b.name(&unit.path, "x", &x);
    Ok(x)
}
