//! The output head: hidden state to logits, `z = softcap(scale * (output . norm(x) + bias))`.
//!
//! Hidden state `[n_embd, n_rows]` in, logits `[n_vocab, n_rows]` out, f32. Without its own matrix the head projects
//! with the token table. A head may transform the state first, `dense_norm(act(dense . norm(x)))`: what is pooled is the
//! state before.

use super::build::{UnitBuilder, softcap};
use super::points;
use crate::arch::{ActRef, Contract, NormRef, RowWidth};
use crate::{options, points, rules, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        act: ActRef => "(if(has('dense'), head_act, 'none'))", when "has('dense')", "activation after `dense`, see `[act.NAME]`";
        dense_norm: NormRef => "(if(has('dense_norm'), 'default', 'none'))", when "has('dense_norm')", "kind and eps of the norm after `dense`";
        scale: f32 = "1", "factor of the logits; 1: none";
        softcap: f32 = "0", "softcap of the logits: they become `c * tanh(logit / c)`; 0: none";
        tokens: u64 = "n_vocab", "tokens that have a logit; a drafter may have logits of some alone";
        rank: u64 = "0", "of a drafter of blocks: elements of the rows by which the token before changes the logits; 0: it does not";
    }
}

/// The contract of `[head]`, without its `norm`.
pub(super) static CONTRACT: Contract = Contract {
    name: "head",
    title: "Head",
    noun: "a head",
    phrase: "a head{has('dense'): , after a dense layer with {=act}}{scale != 1: , logits scaled by {=scale}}{softcap > 0: , logit softcap {=softcap}}",
    summary: "Projects the last hidden state to a logit for each token of the vocabulary. An encoder has a head if the file has a weight of it.",
    formula: "{has('dense'): x = {dense_norm -> dense_norm: {=act}(dense . x)};  }z = {softcap > 0 -> softcap: {scale != 1 -> scale * : output . x{has('output.bias'):  + bias}}}",
    options: Config::OPTIONS,
    weights: weights! {
        dense: Matrix "head_dense.weight" ["n_embd", "n_embd"] optional, "dense layer before the projection";
        dense.bias: Bias "head_dense.bias" ["n_embd"] optional, "bias of `dense`";
        dense_norm: Scale "head_norm.weight" ["n_embd"] optional, "weight of the norm after `dense`";
        dense_norm.bias: Bias "head_norm.bias" ["n_embd"] optional, "bias of the norm after `dense`";
        output: Matrix "output.weight" ["n_embd", "tokens"] optional, "projection to the vocabulary; if absent, the token embeddings (tied)";
        output.bias: Bias "output.bias" ["tokens"] optional, "bias of the logits";
        before: Table "before.weight" ["rank", "n_vocab"] optional when("rank > 0"), "a row for each token, of the token before";
        before_out: Matrix "before_out.weight" ["rank", "tokens"] when("has('before')"), "projection of that row to what is added to the logits";
        confidence: Matrix "confidence.weight" ["n_embd + rank", "1"] never_quantised optional when("has('before')"), "projection of the state and that row to how likely the token is right";
        confidence.bias: Bias "confidence.bias" ["1"] optional when("has('confidence')"), "bias of `confidence`";
    },
    rows: RowWidth::Any,
    points: points! {
        ..points::NORM;
        transformed: Neurons ["n_embd"], "hidden state as the projection reads it; where a dense layer comes between";
        logits: Neurons ["tokens"], "logits; read for rows that have them";
    },
    rules: rules! {
        "scale != 0 and softcap >= 0", "`scale` is not zero and `softcap` not negative";
        "has('dense') or not has('dense_norm')", "`dense_norm` follows `dense`";
    },
    ..Contract::BLOCK
};

pub(crate) fn build(b: &UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let _scope = b.g.scope_on("head", &b.unit.path, b.unit.device);
    let c = Config::read(&b.unit.options);
    let mut z = b.linear("output", &transformed(b, &c, x)?)?;
    if c.softcap != 0.0 {
        z = softcap(b.g, &z, c.scale, c.softcap)?;
    } else if c.scale != 1.0 {
        z = b.g.scale(&z, c.scale)?;
    }
    b.point("logits", z)
}

/// What tokens before, i32 `[n]`, add to the logits of rows `x [n_embd, n]`: `[tokens, n]`, and the logit of how likely
/// the tokens are right `[1, n]`; none if the head does not say so.
pub(crate) fn after(
    b: &UnitBuilder<'_, '_>,
    before: &Tensor,
    x: &Tensor,
) -> Result<(Tensor, Option<Tensor>)> {
    let _scope = b.g.scope_on("head", &b.unit.path, b.unit.device);
    let rows = b.g.get_rows(&b.required_weight("before")?, before)?;
    let added = b.linear("before_out", &rows)?;
    let right = match b.weight("confidence") {
        Some(_) => {
            let both = b.g.concat(x, &rows, 0)?;
            Some(b.linear("confidence", &both)?)
        }
        None => None,
    };
    Ok((added, right))
}

/// What the projection reads of the hidden state `x [n_embd, n_rows]`.
fn transformed(b: &UnitBuilder<'_, '_>, c: &Config, x: &Tensor) -> Result<Tensor> {
    if b.weight("dense").is_none() {
        return Ok(x.clone());
    }
    let y = b.activate(c.act, &b.linear("dense", x)?)?;
    let y = b.normalise_with(c.dense_norm, b.weight("dense_norm"), &y)?;
    b.point("transformed", b.with_bias("dense_norm.bias", y)?)
}
