//! The token embedding: ids to the hidden state, `x = norm(tokens[id] * scale + types[type] + positions[pos])`. The row
//! of a tower takes the place of `tokens[id] * scale` where a token is one of a medium; with `scale_media`, that of `tokens[id]`.
//!
//! Ids `[n_tokens]` in, hidden state `[n_embd, n_tokens]` out, f32.

use std::sync::Arc;

use super::adapter_switches::AdapterSwitches;
use super::build::UnitBuilder;
use super::context::DerivedInput;
use crate::arch::{Contract, NormRef, RowWidth};
use crate::{options, points, rules, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        scale: f32 = "1", "factor of the embeddings; 1: none";
        scale_media: bool = "false", when "scale != 1", "whether the rows of media that take the place of embeddings are scaled too";
        norm: NormRef = "none", "norm of the sum";
        rank: u64 = "0", "rank of the adapters in the file, between which tokens switch; 0: there are none";
        switches: Vec<u64> = "0", when "rank > 0", "tokens that switch to adapters 1, 2 and so on";
        stand_ins: Vec<u64> = "0", when "rank > 0", "tokens whose rows of the token table the `switches` have, in the same order";
        gain: f32 = "15", when "rank > 0", "score of a switch token in the softmax over the tokens so far; any other token has the score `-gain`";
    }
}

/// The contract of `[embed]`.
pub(super) static CONTRACT: Contract = Contract {
    name: "embed",
    title: "Token embedding",
    noun: "a token table",
    phrase: "a token embedding{has('positions'):  with a table of positions}{has('types'):  with token types}{scale != 1: , scaled by {=scale}}{norm: , normed}{rank > 0: , adapters of rank {=rank} between which tokens switch}",
    summary: "Takes one row of the token table for each token.",
    formula: concat!(
        "x = {norm -> norm: tokens[{!rank > 0 -> stand_in: id}]{scale != 1:  * scale}{has('types'):  + types[0]}",
        "{has('positions'):  + positions[pos]}}",
    ),
    options: Config::OPTIONS,
    weights: weights! {
        tokens: Table "token_embd.weight" ["n_embd", "n_vocab"], "token embeddings";
        types: Table "token_types.weight" ["n_embd", "if(n_types > 0, n_types, dim('types', 1))"] never_quantised optional, "embeddings of token types; of type 1 are the tokens of the second text of a pair, of type 0 all others";
        positions: Table "position_embd.weight" ["n_embd", "n_ctx_train"] never_quantised optional, "position embeddings";
        norm: Scale "token_embd_norm.weight" ["n_embd"] when("norm"), "weight of the norm";
        norm.bias: Bias "token_embd_norm.bias" ["n_embd"] optional when("norm"), "bias of the norm";
    },
    rows: RowWidth::Any,
    points: points! {
        tokens: Neurons ["n_embd"] known_as("hook_embed"), "rows of the token table, scaled";
        x: Neurons ["n_embd"], "the first hidden state";
    },
    rules: rules! {
        "scale != 0", "`scale` is not zero";
        "gain >= 0", "`gain` is not negative";
    },
    ..Contract::BLOCK
};

/// The tokens that switch between adapters in the file, if there are any.
fn switches(c: &Config) -> Option<Arc<AdapterSwitches>> {
    let switches = || AdapterSwitches {
        tokens: c.switches.clone(),
        stand_ins: c.stand_ins.clone(),
        gain: c.gain,
    };
    (c.rank > 0).then(|| Arc::new(switches()))
}

/// The adapter in the file for each token, i32 `[1, n_tokens]`, if the file has adapters.
pub(crate) fn adapters(b: &UnitBuilder<'_, '_>) -> Result<Option<Tensor>> {
    let switches = switches(&Config::read(&b.unit.options));
    let input = |switches| b.input(DerivedInput::Adapters(switches));
    switches.map(input).transpose()
}

pub(crate) fn build(b: &UnitBuilder<'_, '_>, ids: &Tensor) -> Result<Tensor> {
    let _scope = b.g.scope_on("embed", &b.unit.path, b.unit.device);
    let c = Config::read(&b.unit.options);
    let stand_ins = switches(&c).map(|of| b.input(DerivedInput::StandIns(of, b.plan.n_vocab)));
    let stand_ins = stand_ins.transpose()?;
    let mut x = b.table_rows("tokens", stand_ins.as_ref().unwrap_or(ids))?;
    if c.scale != 1.0 {
        x = b.g.scale(&x, c.scale)?;
    }
    if let Some(media) = &b.media {
        let n_embd = x.shape()[0];
        let rows = match media.rows.shape()[0] == n_embd {
            true => media.rows.clone(),
            false => b.columns(&media.rows, 0, n_embd)?,
        };
        let rows = match c.scale_media && c.scale != 1.0 {
            true => b.g.scale(&rows, c.scale)?,
            false => rows,
        };
        // The scheduler may put the rows where the next part is: what they are written into must go there too, and the looked up rows
        // are where the table is.
        x = b.g.put_rows(&b.g.copy(&x)?, &rows, &media.places)?;
    }
    x = b.point("tokens", x)?;
    if let Some(types) = b.weight("types") {
        let rows = b.input(DerivedInput::Types(types.shape()[1]))?;
        x = b.g.add(&x, &b.table_rows("types", &rows)?)?;
    }
    if let Some(positions) = b.weight("positions") {
        let rows = b.input(DerivedInput::Rows(positions.shape()[1]))?;
        x = b.g.add(&x, &b.table_rows("positions", &rows)?)?;
    }
    if c.norm.0.is_some() {
        x = b.normalise_with(c.norm, b.weight("norm"), &x)?;
        x = b.with_bias("norm.bias", x)?;
    }
    b.point("x", x)
}
