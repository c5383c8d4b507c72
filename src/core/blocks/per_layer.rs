//! A further small input for each layer, made of the token and of its embedding.
//!
//! ```text
//! a       = table[id] * sqrt(width)               one row of all layers
//! p       = norm(proj . x / sqrt(n_embd))         normalised for each layer
//! ple[il] = (a[il] + p[il]) / sqrt(2)
//! ```
//! Token ids `[n_tokens]` and the hidden state `[n_embd, n_tokens]` in, `[width, n_layer, n_tokens]` out.

use super::build::{GraphBuilder, UnitBuilder};
use crate::arch::{Contract, NormRef, RowWidth};
use crate::{options, points, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        width: u64 => "n_ple", "elements for each layer; 0: there is no such input";
        layers: u64 => "n_layer", "layers";
        norm: NormRef => "default", "kind and eps of the norm";
    }
}

/// The contract of `[per_layer_input]`.
pub(super) static CONTRACT: Contract = Contract {
    name: "per_layer_input",
    title: "Input of each layer",
    noun: "inputs of layers",
    phrase: "{width > 0: {=width} further inputs for each layer}",
    summary: "Gives each layer a small input of its own, which its slots read as the tap `ple`.",
    formula: "ple = (table[id] * sqrt(width) + norm(proj . x / sqrt(n_embd))) / sqrt(2)",
    options: Config::OPTIONS,
    weights: weights! {
        table: Table "per_layer_token_embd.weight" ["width * layers", "n_vocab"] when("width > 0"), "token embeddings of every layer";
        proj: Matrix "per_layer_model_proj.weight" ["n_embd", "width * layers"] never_quantised when("width > 0"), "projection of the token embedding to the input of every layer";
        norm: Scale "per_layer_proj_norm.weight" ["width"] when("width > 0"), "weight of the norm of that projection";
    },
    rows: RowWidth::Any,
    points: points! {
        ple: Neurons ["width", "layers"], "inputs of all layers";
    },
    ..Contract::BLOCK
};

/// The inputs of all layers; none if the model has no such inputs.
pub(crate) fn build(b: &UnitBuilder<'_, '_>, ids: &Tensor, x: &Tensor) -> Result<Option<Tensor>> {
    let c = Config::read(&b.unit.options);
    let (g, n) = (b.g, b.n_tokens);
    if b.weight("table").is_none() {
        return Ok(None);
    }
    let _scope = g.scope_on("per_layer", &b.unit.path, b.unit.device);
    let shape = [c.width, c.layers, n, 1];
    let rows = g.scale(&b.table_rows("table", ids)?, (c.width as f32).sqrt())?;
    let projected = g.scale(&b.linear("proj", x)?, 1.0 / (x.shape()[0] as f32).sqrt())?;
    let projected = g.reshape(&projected, shape)?;
    let projected = b.normalise_with(c.norm, b.weight("norm"), &projected)?;
    let sum = g.add(&projected, &g.reshape(&rows, shape)?)?;
    let all = g.scale(&sum, std::f32::consts::FRAC_1_SQRT_2)?;
    b.point("ple", all).map(Some)
}

/// The input `[width, n_tokens]` of one layer.
pub(crate) fn of_layer(b: &GraphBuilder<'_>, all: &Tensor, il: u64) -> Result<Tensor> {
    let _scope = b.g.scope("per_layer", "ple");
    let (shape, strides) = (all.shape(), all.strides());
    let window = [shape[0], shape[2], 1, 1];
    let steps = [strides[2], strides[3], strides[3]];
    let layer = b.g.view(all, window, steps, il as usize * strides[1])?;
    b.g.cont(&layer)
}
