//! Token ids to the stream: `x = tokens[id] * scale`.
//!
//! Ids `[n_tokens]` in, stream `[n_embd, n_tokens]` out, f32.

use crate::arch::{Contract, Rule, StateSpec, WeightRole, WeightSpec};
use crate::options;

options! {
    /// Options of the embedding.
    pub(super) struct Config {
        scale: f32 = "1", "factor of the rows";
    }
}

/// `[embed]`.
pub static CONTRACT: Contract = Contract {
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
    rules: &[Rule { holds: "scale != 0", message: "`scale` is not zero" }],
};
