//! Normalisation: `y = x / scale(x) * weight + bias` over the fastest dimension.
//!
//! `rms` divides by the root mean square (Zhang and Sennrich 2019), `layer` subtracts the mean and
//! divides by the standard deviation (Ba et al. 2016). Weight and bias may be absent.

use crate::arch::{Contract, RowWidth};
use crate::{choices, options, weights};

choices! {
    /// The divisor of a norm.
    pub(super) enum NormKind {
        /// The root mean square.
        Rms = "rms",
        /// The standard deviation, after subtracting the mean.
        Layer = "layer",
        /// One: the rows are only multiplied by the weight.
        Unit = "unit",
    }
}

options! {
    pub(super) struct NormOptions {
        kind: NormKind, "kind: `rms` (divides by the root mean square), `layer` (subtracts the mean, divides by the standard deviation) or `unit` (divides by one: only the weight and the bias have an effect)";
        eps: f32, "epsilon, added to the mean square or the variance";
    }
}

/// The contract of `[norm.NAME]`. `pre = "attn_norm"` uses the norm declared under that name, or the kind and eps of
/// `[norm.default]` with the weight of that name.
pub(super) static CONTRACT: Contract = Contract {
    name: "norm",
    title: "Norm",
    noun: "norms",
    phrase: "{kind == 'unit': a stored factor | {kind == 'layer': LayerNorm | RMSNorm}, eps {=eps}}",
    summary: "Normalises rows.",
    formula: concat!(
        "y = {kind == 'unit': x | {kind == 'rms': x / rms(x) | (x - mean(x)) / std(x)}}",
        "{has('weight'):  * weight}{has('bias'):  + bias}",
    ),
    options: NormOptions::OPTIONS,
    weights: weights! {
        weight: Scale "{name}.weight" ["width"], "weight of the norm";
        bias: Bias "{name}.bias" ["width"] optional, "bias of the norm";
    },
    rows: RowWidth::Any,
    ..Contract::BLOCK
};
