//! Activations of hidden layers, with a gate or without.

use super::build::Build;
use crate::choices;
use crate::ggml::{Error, Glu, Tensor, Unary};

choices! {
    /// The activation of a hidden layer.
    pub(super) enum Act {
        /// `x * sigmoid(x)`.
        Silu = "silu",
        /// The tanh approximation of `x * Phi(x)`.
        Gelu = "gelu",
        /// `x * Phi(x)`, `Phi` the normal distribution.
        GeluErf = "gelu_erf",
        /// `max(x, 0)`.
        Relu = "relu",
        /// `max(x, 0)^2`.
        Relu2 = "relu2",
        /// As gpt-oss: `g * sigmoid(alpha * g) * (u + 1)`, `g` and `u` clamped.
        SwigluOai = "swiglu_oai",
        /// `x * (alpha_p * x + beta)` above zero, an exponential below.
        Xielu = "xielu",
    }
}

choices! {
    /// Where a clamp sits in a gated layer.
    pub(super) enum ClampAt {
        /// The gate is bounded from above before its activation.
        Before = "before",
        /// The activated gate is bounded from above.
        After = "after",
    }
}

/// An activation with its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activation {
    pub(super) act: Act,
    /// Bound of gate and up; 0: none.
    pub(super) clamp: f32,
    pub(super) clamp_at: ClampAt,
    /// `alpha_n`, `alpha_p`, `beta`, `eps` of xIELU.
    pub(super) xielu: [f32; 4],
}

/// The sharpness of the sigmoid in `swiglu_oai`.
const OAI_ALPHA: f32 = 1.702;

impl Activation {
    /// `act(x)`.
    pub(super) fn plain(&self, b: &Build<'_>, x: &Tensor) -> Result<Tensor, Error> {
        let g = b.g;
        match self.act {
            Act::Silu => g.unary(x, Unary::Silu),
            Act::Gelu => g.unary(x, Unary::Gelu),
            Act::GeluErf => g.unary(x, Unary::GeluErf),
            Act::Relu => g.unary(x, Unary::Relu),
            Act::Relu2 => g.unary(&g.unary(x, Unary::Relu)?, Unary::Square),
            Act::Xielu => {
                let [alpha_n, alpha_p, beta, eps] = self.xielu;
                g.xielu(x, alpha_n, alpha_p, beta, eps)
            }
            Act::SwigluOai => Err(Error::Arguments {
                op: "activation",
                message: "`swiglu_oai` needs a gate".into(),
            }),
        }
    }

    /// `act(gate) * up`, both `[width, ..]` and contiguous.
    pub(super) fn gated(&self, b: &Build<'_>, gate: &Tensor, up: &Tensor) -> Result<Tensor, Error> {
        let g = b.g;
        if self.act == Act::SwigluOai {
            return g.swiglu_oai(gate, up, OAI_ALPHA, self.clamp);
        }
        if self.clamp > 0.0 {
            let up = g.clamp(up, -self.clamp, self.clamp)?;
            let gate = match self.clamp_at {
                ClampAt::Before => self.plain(b, &g.clamp(gate, f32::MIN, self.clamp)?)?,
                ClampAt::After => g.clamp(&self.plain(b, gate)?, f32::MIN, self.clamp)?,
            };
            return g.mul(&gate, &up);
        }
        let glu = match self.act {
            Act::Silu => Glu::Silu,
            Act::Gelu => Glu::Gelu,
            Act::GeluErf => Glu::GeluErf,
            Act::Relu => Glu::Relu,
            _ => return g.mul(&self.plain(b, gate)?, up),
        };
        g.glu(glu, gate, up)
    }
}
