//! Pooling: the hidden states of a sequence become one vector, `y = head(pool(x))`.
//!
//! Pooling turns the hidden states after the final norm `[n_embd, n_tokens]` into one vector of `n_embd` elements
//! ([`pooled`], on the host, in f64). [`build`] computes what follows from that vector `[n_embd, 1]`: the head of a
//! classifier or reranker, or the dense layers of an embedding model. The dense layers are those of
//! sentence-transformers' `modules.json`; the classification heads are those of `...ForSequenceClassification` in
//! transformers. That of `...ForTokenClassification` reads the hidden state of each token.

use super::build::UnitBuilder;
use crate::arch::{ActRef, Contract, RowWidth};
use crate::plan::{Pooling, Unit};
use crate::{options, rules, weights};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        kind: Pooling => "(pool_kind)", "how the hidden states of a sequence become one vector: `mean`, `first`, `last`, `max`, `mean_sqrt` (sum over the square root of the number of tokens), `weighted` (mean weighted by the position counted from 1), `late_mean` (mean of what the layers make of each), `each` (not at all: the layers apply to the vector of each token)";
        act: ActRef => "(cls_act)", when "has('cls')", "activation after `cls`, see `[act.NAME]`";
        eps: f32 => "if(has('cls.norm'), layer_eps, 0)", when "has('cls.norm')", "epsilon of `cls.norm`, added to the variance";
        softmax: bool => "cls_softmax", "whether the scores of the classes become probabilities";
        dense_act: ActRef => "(dense_act)", when "has('dense_2')", "activation after `dense_2` and after `dense_3`, as `act`";
        normalise: bool => "pool_normalise", "whether the vector is divided by its Euclidean length";
    }
}

/// The contract of `[pool]`; a definition without it has the defaults.
pub(super) static CONTRACT: Contract = Contract {
    name: "pool",
    title: "Pooling",
    noun: "pooling",
    phrase: "",
    summary: "Makes one vector of the hidden states of a sequence, or the scores of its classes. Runs only where an embedding is requested, or where the model is a classifier.",
    formula: "y = pool(x){has('cls'): ; y = act(cls . y)}{has('cls.norm'): ; y = norm(y)}{has('cls.output'): ; y = cls.output . y}{has('dense_2'): ; y = dense_act(dense_2 . y)}{has('dense_3'): ; y = dense_act(dense_3 . y)}{normalise: ; y = y / |y|}",
    options: Config::OPTIONS,
    weights: weights! {
        cls: Matrix "cls.weight" ["n_embd", "dim('cls', 1)"] optional, "first layer of a classification head";
        cls.bias: Bias "cls.bias" ["dim('cls', 1)"] optional, "bias of `cls`";
        cls.norm: Scale "cls.norm.weight" ["dim('cls', 1)"] optional, "weight of the layer norm after `cls`";
        cls.norm.bias: Bias "cls.norm.bias" ["dim('cls', 1)"] optional, "bias of the layer norm after `cls`";
        cls.output: Matrix "cls.output.weight" ["if(has('cls'), dim('cls', 1), n_embd)", "dim('cls.output', 1)"] optional, "projection to the scores of the classes";
        cls.output.bias: Bias "cls.output.bias" ["dim('cls.output', 1)"] optional, "bias of `cls.output`";
        dense_2: Matrix "dense_2.weight" ["n_embd", "dim('dense_2', 1)"] optional, "first dense layer after pooling";
        dense_2.bias: Bias "dense_2.bias" ["dim('dense_2', 1)"] optional, "bias of `dense_2`";
        dense_3: Matrix "dense_3.weight" ["dim('dense_2', 1)", "dim('dense_3', 1)"] optional, "second dense layer after pooling";
        dense_3.bias: Bias "dense_3.bias" ["dim('dense_3', 1)"] optional, "bias of `dense_3`";
    },
    rows: RowWidth::Any,
    rules: rules! {
        "(has('dense_2') or not has('dense_3')) and (has('cls') or not has('cls.norm'))", "`dense_3` follows `dense_2`, and `cls.norm` follows `cls`";
    },
    ..Contract::BLOCK
};

/// One vector of `width` elements, pooled from the rows of a sequence, which follow each other; or all rows, if the layers
/// read each. At least one row.
pub(crate) fn pooled(rows: &[f32], width: usize, pooling: Pooling) -> Vec<f32> {
    let n = rows.len() / width.max(1);
    let sum = |i: usize, weight: &dyn Fn(usize) -> f64| -> f64 {
        let column = rows.iter().skip(i).step_by(width);
        let terms = column.enumerate().map(|(at, v)| weight(at) * f64::from(*v));
        terms.sum()
    };
    let elements = |of: &dyn Fn(usize) -> f64| (0..width).map(|i| of(i) as f32).collect();
    let count = n as f64;
    match pooling {
        Pooling::First => rows[..width].to_vec(),
        Pooling::Last => rows[(n - 1) * width..].to_vec(),
        // The layers read every row.
        Pooling::Each | Pooling::LateMean => rows.to_vec(),
        Pooling::Mean => elements(&|i| sum(i, &|_| 1.0) / count),
        Pooling::MeanSqrt => elements(&|i| sum(i, &|_| 1.0) / count.sqrt()),
        Pooling::Weighted => {
            let total = count * (count + 1.0) / 2.0;
            elements(&|i| sum(i, &|at| (at + 1) as f64) / total)
        }
        Pooling::Max => {
            let largest = |i: usize| rows.iter().skip(i).step_by(width).copied();
            let largest = |i| largest(i).fold(f32::NEG_INFINITY, f32::max);
            (0..width).map(largest).collect()
        }
    }
}

/// Whether the unit computes anything between pooling and normalisation.
pub(crate) fn has_layers(unit: &Unit) -> bool {
    unit.weights.iter().any(Option::is_some) || Config::read(&unit.options).softmax
}

/// Divides a vector by its Euclidean length, if the unit normalises. A zero vector stays zero.
pub(crate) fn normalise(unit: &Unit, vector: &mut [f32]) {
    if !Config::read(&unit.options).normalise {
        return;
    }
    let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    // The lower bound of torch's `normalize`.
    let length = length.sqrt().max(1e-12);
    vector
        .iter_mut()
        .for_each(|v| *v = (f64::from(*v) / length) as f32);
}

/// The layers after pooling: `[n_embd, n_rows]` to `[width, n_rows]`.
pub(crate) fn build(b: &UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let _scope = b.g.scope("pool", &b.unit.path);
    let c = Config::read(&b.unit.options);
    let mut y = x.clone();
    if b.weight("cls").is_some() {
        y = b.activate(c.act, &b.linear("cls", &y)?)?;
    }
    if let Some(weight) = b.weight("cls.norm") {
        let normed = b.g.mul(&b.g.layer_norm(&y, c.eps)?, weight)?;
        y = b.with_bias("cls.norm.bias", normed)?;
    }
    if b.weight("cls.output").is_some() {
        y = b.linear("cls.output", &y)?;
    }
    if c.softmax {
        y = b.softmax(&y)?;
    }
    for key in ["dense_2", "dense_3"] {
        if b.weight(key).is_some() {
            y = b.activate(c.dense_act, &b.linear(key, &y)?)?;
        }
    }
    y.set_name(&format!("{}.pooled", b.unit.path));
    Ok(y)
}
