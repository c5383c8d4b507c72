//! Activations: functions of each element of a hidden layer or of a gate, or of its rows.
//!
//! ```text
//! plain       act(x)
//! gated       act(gate) * up
//! clamped     min(act(gate), clamp) * bound(up)          after;  bound(v) = max(-clamp, min(v, clamp))
//!             act(min(gate, clamp)) * bound(up)          before
//! sparse      act(max(x - (mean(x) + cutoff * std(x)), 0))
//! situ        beta * tanh(gate / beta) * sigmoid(gate) * bound * tanh(up / bound)
//! swiglu_oai  g * sigmoid(1.702 * g) * (bound(up) + 1)   g = min(gate, clamp)
//! xielu       p * x^2 + beta * x                         x > 0;  p = softplus(alpha_p)
//!             n * (exp(min(x, eps)) - 1 - x) + beta * x  else;   n = beta + softplus(alpha_n)
//! ```
//! xIELU: Huang and Schlag 2024, arXiv 2411.13010. A kind without parameters needs no declaration to be named.

use super::build::{UnitBuilder, softcap};
use super::refused;
use crate::arch::{ActRef, Contract, RowWidth};
use crate::{choices, options, rules};
use lab_base::ggml::{Glu, Result, Tensor, Unary};

choices! {
    /// An elementwise function.
    pub(super) enum ActivationKind {
        /// `x * sigmoid(x)`.
        Silu = "silu",
        /// The tanh approximation of `x * Phi(x)` as llama.cpp computes it, on a processor by a table of half-precision
        /// numbers.
        Gelu = "gelu",
        /// The tanh approximation of `x * Phi(x)` in f32.
        GeluTanh = "gelu_tanh",
        /// `x * Phi(x)`, `Phi` the normal distribution.
        GeluErf = "gelu_erf",
        /// `max(x, 0)`.
        Relu = "relu",
        /// `max(x, 0)^2`.
        Relu2 = "relu2",
        /// `x * sigmoid(1.702 * x)`.
        QuickGelu = "quick_gelu",
        /// Hyperbolic tangent.
        Tanh = "tanh",
        /// `1 / (1 + exp(-x))`.
        Sigmoid = "sigmoid",
        /// `ln(1 + exp(x))`.
        Softplus = "softplus",
        /// `exp(x)` over the sum of that of the row.
        Softmax = "softmax",
        /// `beta * tanh(x / beta) * sigmoid(x)`.
        Situ = "situ",
        /// A clamped gate, see the module.
        SwigluOai = "swiglu_oai",
        /// Parabola and exponential, see the module.
        Xielu = "xielu",
    }
}

choices! {
    /// Whether a gate is clamped before or after its activation.
    pub(super) enum ClampAt {
        /// Before its activation.
        Before = "before",
        /// After its activation.
        After = "after",
    }
}

options! {
    pub(super) struct Activation {
        kind: ActivationKind, "function of an element: `silu`, `gelu` (tanh approximation, on a processor in half precision as llama.cpp computes it), `gelu_tanh` (tanh approximation in f32), `gelu_erf` (exact), `relu`, `relu2` (squared), `quick_gelu` (`x * sigmoid(1.702 * x)`), `tanh`, `sigmoid`, `softplus`, `softmax` (over the elements of a row), `situ` (`beta * tanh(x / beta) * sigmoid(x)`), `swiglu_oai` (`g * sigmoid(1.702 * g) * (up + 1)` of a clamped gate) or `xielu`";
        clamp: f32 = "0", "clamp of a gated layer: upper bound of the gate and bound of the absolute value of what it multiplies, above 0; 0: off";
        clamp_at: ClampAt = "after", when "clamp > 0", "whether the gate is clamped `before` or `after` its activation";
        cutoff: f32 = "0", when "cutoff > 0", "elements up to so many standard deviations above the mean of their row become 0, the others are what exceeds it, before the function; 0: off";
        alpha_n: f32 = "0", when "kind == 'xielu'", "xIELU: `beta + softplus(alpha_n)` is the factor of `exp(x) - 1 - x` at and below zero; any number";
        alpha_p: f32 = "0", when "kind == 'xielu'", "xIELU: `softplus(alpha_p)` is the factor of `x^2` above zero; any number";
        beta: f32 = "0", when "kind == 'xielu' or kind == 'situ'", "xIELU: slope at zero, the factor of `x`; 0: off. `situ`: the bound of what the sigmoid multiplies, above 0";
        bound: f32 = "0", when "bound > 0", "what a gate multiplies becomes `bound * tanh(x / bound)`; 0: off";
        eps: f32 = "0", when "kind == 'xielu'", "xIELU: upper bound of the exponent, near 0";
    }
}

/// The contract of `[act.NAME]`.
pub(super) static CONTRACT: Contract = Contract {
    name: "act",
    title: "Activation",
    noun: "an activation",
    phrase: "{=kind}{cutoff > 0:  of what exceeds the mean by {=cutoff} standard deviations}{clamp > 0: , clamped at {=clamp}}{kind == 'situ':  within {=beta}}{bound > 0: , up within {=bound}}",
    summary: "A function of each element of a hidden layer or of a gate. A kind that needs no parameters is named where it is used, without a declaration: `act = \"silu\"`.",
    formula: "y = act({cutoff > 0: max(x - mean(x) - cutoff * std(x), 0) | x}), with a gate: act(gate) * up{clamp > 0: , clamped: min(act(gate), clamp) * max(-clamp, min(up, clamp))}{bound > 0: , up bounded: act(gate) * bound * tanh(up / bound)}",
    options: Activation::OPTIONS,
    rows: RowWidth::Any,
    rules: rules! {
        "kind != 'swiglu_oai' or clamp > 0", "`swiglu_oai` has a positive `clamp`";
        "clamp >= 0", "`clamp` is not negative";
        "cutoff >= 0", "`cutoff` is not negative";
        "kind != 'situ' or beta > 0 and clamp == 0", "`situ` has a positive `beta` and no `clamp`";
        "bound == 0 or bound > 0 and clamp == 0 and kind != 'swiglu_oai'", "`bound` is positive, and what has one has no `clamp`";
    },
    ..Contract::BLOCK
};

/// The sharpness of the sigmoid in `swiglu_oai` and `quick_gelu`.
const OAI_ALPHA: f32 = 1.702;

impl UnitBuilder<'_, '_> {
    /// `act(x)`; unchanged without an activation.
    pub(super) fn activate(&self, act: ActRef, x: &Tensor) -> Result<Tensor> {
        match self.act(act) {
            Some(act) if act.clamp > 0.0 || act.bound > 0.0 => Err(refused(
                "activation",
                format!("`{:?}` with a bound needs a gate", act.kind),
            )),
            act => self.elements(act.as_ref(), &self.exceeding(act.as_ref(), x)?),
        }
    }

    /// `act(gate) * up`, both `[width, ..]`, whole rows or the same part of rows.
    pub(super) fn activate_gate(&self, act: ActRef, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        let g = self.g;
        let Some(act) = self.act(act) else {
            return g.mul(gate, up);
        };
        let gate = &self.exceeding(Some(&act), gate)?;
        if act.kind == ActivationKind::SwigluOai {
            return g.swiglu_oai(gate, up, OAI_ALPHA, act.clamp);
        }
        let is_plain = act.clamp == 0.0 && act.bound == 0.0;
        let glu = match act.kind {
            ActivationKind::Silu => Some(Glu::Silu),
            ActivationKind::Gelu => Some(Glu::Gelu),
            ActivationKind::GeluTanh => Some(Glu::GeluTanh),
            ActivationKind::GeluErf => Some(Glu::GeluErf),
            ActivationKind::Relu => Some(Glu::Relu),
            _ => None,
        };
        if let Some(glu) = glu.filter(|_| is_plain) {
            return g.glu(glu, gate, up);
        }
        // Activations of one argument read contiguous elements alone.
        let (gate, up) = (&g.cont(gate)?, &g.cont(up)?);
        if act.clamp > 0.0 {
            let up = g.clamp(up, -act.clamp, act.clamp)?;
            let bound = |x: &Tensor| g.clamp(x, f32::MIN, act.clamp);
            let gate = match act.clamp_at {
                ClampAt::Before => self.elements(Some(&act), &bound(gate)?)?,
                ClampAt::After => bound(&self.elements(Some(&act), gate)?)?,
            };
            return g.mul(&gate, &up);
        }
        if act.bound > 0.0 {
            let up = softcap(g, up, 1.0, act.bound)?;
            return g.mul(&self.elements(Some(&act), gate)?, &up);
        }
        g.mul(&self.elements(Some(&act), gate)?, up)
    }

    /// The hidden layer of an MLP, from its gate and up products, with their points.
    pub(super) fn hidden(&self, act: ActRef, gate: Option<Tensor>, up: Tensor) -> Result<Tensor> {
        let gate = gate.map(|gate| self.point("gate", gate)).transpose()?;
        let up = self.point("up", up)?;
        match gate {
            Some(gate) => self.activate_gate(act, &gate, &up),
            None => self.activate(act, &up),
        }
    }

    fn act(&self, act: ActRef) -> Option<Activation> {
        act.0
            .map(|at| Activation::read(&self.plan.acts[at].options))
    }

    /// The excess of `x [width, ..]` over the mean of its row plus `cutoff` standard deviations; `x` where the
    /// activation has no cutoff. The standard deviation is that of a sample.
    fn exceeding(&self, act: Option<&Activation>, x: &Tensor) -> Result<Tensor> {
        let g = self.g;
        let Some(act) = act.filter(|act| act.cutoff > 0.0) else {
            return Ok(x.clone());
        };
        let n = x.shape()[0] as f32;
        let mean = g.scale(&g.sum_rows(x)?, 1.0 / n)?;
        let centred = g.sub(x, &mean)?;
        let squares = g.sum_rows(&g.unary(&centred, Unary::Square)?)?;
        let variance = g.scale(&squares, act.cutoff * act.cutoff / (n - 1.0).max(1.0))?;
        let excess = g.sub(&centred, &g.unary(&variance, Unary::Sqrt)?)?;
        g.unary(&excess, Unary::Relu)
    }

    /// Applies the function to each element, without the clamp and the cutoff.
    fn elements(&self, act: Option<&Activation>, x: &Tensor) -> Result<Tensor> {
        let g = self.g;
        let Some(act) = act else { return Ok(x.clone()) };
        let op = match act.kind {
            ActivationKind::Silu => Unary::Silu,
            ActivationKind::Gelu => Unary::Gelu,
            ActivationKind::GeluTanh => Unary::GeluTanh,
            ActivationKind::GeluErf => Unary::GeluErf,
            ActivationKind::Relu => Unary::Relu,
            ActivationKind::Relu2 => return g.unary(&g.unary(x, Unary::Relu)?, Unary::Square),
            ActivationKind::QuickGelu => {
                let share = g.unary(&g.scale(x, OAI_ALPHA)?, Unary::Sigmoid)?;
                return g.mul(x, &share);
            }
            ActivationKind::Tanh => Unary::Tanh,
            ActivationKind::Sigmoid => Unary::Sigmoid,
            ActivationKind::Softplus => Unary::Softplus,
            ActivationKind::Softmax => return self.softmax(x),
            ActivationKind::Situ => {
                let share = g.unary(x, Unary::Sigmoid)?;
                return g.mul(&softcap(g, x, 1.0, act.beta)?, &share);
            }
            ActivationKind::Xielu => {
                return g.xielu(x, act.alpha_n, act.alpha_p, act.beta, act.eps);
            }
            ActivationKind::SwigluOai => {
                return Err(refused("activation", "`swiglu_oai` needs a gate"));
            }
        };
        g.unary(x, op)
    }
}
