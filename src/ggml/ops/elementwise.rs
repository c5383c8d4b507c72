//! Elementwise operations.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::{Graph, fault};
use crate::weights::TensorType;

/// Activations of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `x * sigmoid(x)`.
    Silu,
    /// Tanh approximation of `x * Phi(x)`.
    Gelu,
    /// `x * Phi(x)`, `Phi` the normal distribution.
    GeluErf,
    /// `max(x, 0)`.
    Relu,
    /// `ln(1 + exp(x))`.
    Softplus,
    /// `exp(x)`.
    Exp,
    /// `x * x`.
    Square,
    /// Square root.
    Sqrt,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `|x|`.
    Abs,
    /// 1 where `x > 0`, else 0.
    Step,
}

/// Activations of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as the variants of `Unary`")]
pub enum Glu {
    Silu,
    Gelu,
    GeluErf,
    Relu,
}

impl Graph {
    /// `a - b`, `b` repeated to the shape of `a`; f32.
    ///
    /// # Errors
    /// The shape of `a` is not a multiple of that of `b`, or a type is not supported.
    pub fn sub(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.binary("sub", sys::ggml_sub, a, b)
    }

    /// `a / b` by elements, `b` repeated to the shape of `a`; f32.
    ///
    /// # Errors
    /// The shape of `a` is not a multiple of that of `b`, or a type is not supported.
    pub fn div(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.binary("div", sys::ggml_div, a, b)
    }

    fn binary(
        &self,
        op: &'static str,
        f: unsafe extern "C" fn(
            *mut sys::ggml_context,
            *mut sys::ggml_tensor,
            *mut sys::ggml_tensor,
        ) -> *mut sys::ggml_tensor,
        a: &Tensor,
        b: &Tensor,
    ) -> Result<Tensor, Error> {
        let (sa, sb) = (a.shape(), b.shape());
        if (0..4).any(|dim| !sa[dim].is_multiple_of(sb[dim])) {
            return fault(op, format!("{b:?} does not repeat to {a:?}"));
        }
        let float = a.ty() == TensorType::F32 && b.ty() == TensorType::F32;
        if !float || !a.has_dense_rows() || !b.has_dense_rows() {
            return fault(op, format!("{a:?} and {b:?}: expected dense rows of f32"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: `f` is one of ggml's element-wise operations; shapes and types were checked.
        let ptr = unsafe { f(ctx, a.as_ptr(), b.as_ptr()) };
        self.node(op, ptr, &[a, b])
    }

    /// `a + b`, `b` repeated to the shape of `a`; f32.
    ///
    /// # Errors
    /// The shape of `a` is not a multiple of that of `b`, or a type is not supported.
    pub fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.binary("add", sys::ggml_add, a, b)
    }

    /// `a * b` by elements, `b` repeated to the shape of `a`; f32.
    ///
    /// # Errors
    /// The shape of `a` is not a multiple of that of `b`, or a type is not supported.
    pub fn mul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.binary("mul", sys::ggml_mul, a, b)
    }

    /// `a * factor`; contiguous f32.
    ///
    /// # Errors
    /// A type or layout is not supported.
    pub fn scale(&self, a: &Tensor, factor: f32) -> Result<Tensor, Error> {
        self.float("scale", a, true)?;
        let ctx = self.arena.reserve()?;
        // SAFETY: type and layout were checked.
        let ptr = unsafe { sys::ggml_scale(ctx, a.as_ptr(), factor) };
        self.node("scale", ptr, &[a])
    }

    /// An activation; contiguous f32.
    ///
    /// # Errors
    /// A type or layout is not supported.
    pub fn unary(&self, a: &Tensor, kind: Unary) -> Result<Tensor, Error> {
        self.float("unary", a, true)?;
        let ctx = self.arena.reserve()?;
        // SAFETY: type and layout were checked.
        let ptr = unsafe {
            match kind {
                Unary::Silu => sys::ggml_silu(ctx, a.as_ptr()),
                Unary::Gelu => sys::ggml_gelu(ctx, a.as_ptr()),
                Unary::GeluErf => sys::ggml_gelu_erf(ctx, a.as_ptr()),
                Unary::Relu => sys::ggml_relu(ctx, a.as_ptr()),
                Unary::Softplus => sys::ggml_softplus(ctx, a.as_ptr()),
                Unary::Exp => sys::ggml_exp(ctx, a.as_ptr()),
                Unary::Square => sys::ggml_sqr(ctx, a.as_ptr()),
                Unary::Sqrt => sys::ggml_sqrt(ctx, a.as_ptr()),
                Unary::Sigmoid => sys::ggml_sigmoid(ctx, a.as_ptr()),
                Unary::Tanh => sys::ggml_tanh(ctx, a.as_ptr()),
                Unary::Abs => sys::ggml_abs(ctx, a.as_ptr()),
                Unary::Step => sys::ggml_step(ctx, a.as_ptr()),
            }
        };
        self.node("unary", ptr, &[a])
    }

    /// `act(gate) * up`, same shapes, contiguous f32.
    ///
    /// # Errors
    /// The shapes differ, or a type is not supported.
    pub fn glu(&self, kind: Glu, gate: &Tensor, up: &Tensor) -> Result<Tensor, Error> {
        self.float("glu", gate, true)?;
        self.float("glu", up, true)?;
        if gate.shape() != up.shape() {
            return fault("glu", format!("{gate:?} and {up:?} differ"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: types, shapes and layout were checked.
        let ptr = unsafe {
            let op = match kind {
                Glu::Silu => sys::GGML_GLU_OP_SWIGLU,
                Glu::Gelu => sys::GGML_GLU_OP_GEGLU,
                Glu::GeluErf => sys::GGML_GLU_OP_GEGLU_ERF,
                Glu::Relu => sys::GGML_GLU_OP_REGLU,
            };
            sys::ggml_glu_split(ctx, gate.as_ptr(), up.as_ptr(), op)
        };
        self.node("glu", ptr, &[gate, up])
    }

    /// `g * sigmoid(alpha * g) * (u + 1)` with `g = min(gate, limit)`, `u = clamp(up, limit)`;
    /// same shapes, contiguous f32.
    ///
    /// # Errors
    /// The shapes differ, or a type is not supported.
    pub fn swiglu_oai(
        &self,
        gate: &Tensor,
        up: &Tensor,
        alpha: f32,
        limit: f32,
    ) -> Result<Tensor, Error> {
        self.float("swiglu_oai", gate, true)?;
        self.float("swiglu_oai", up, true)?;
        if gate.shape() != up.shape() {
            return fault("swiglu_oai", format!("{gate:?} and {up:?} differ"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: types, shapes and layout were checked.
        let ptr = unsafe { sys::ggml_swiglu_oai(ctx, gate.as_ptr(), up.as_ptr(), alpha, limit) };
        self.node("swiglu_oai", ptr, &[gate, up])
    }

    /// xIELU (Huang and Schlag 2024): `x * (alpha_p * x + beta)` above zero,
    /// `alpha_n * (exp(min(x, eps)) - 1 - x) + beta * x` below; contiguous f32. The two alphas are
    /// as stored, before their softplus.
    ///
    /// # Errors
    /// A type or layout is not supported.
    pub fn xielu(
        &self,
        a: &Tensor,
        alpha_n: f32,
        alpha_p: f32,
        beta: f32,
        eps: f32,
    ) -> Result<Tensor, Error> {
        self.float("xielu", a, true)?;
        let ctx = self.arena.reserve()?;
        // SAFETY: type and layout were checked.
        let ptr = unsafe { sys::ggml_xielu(ctx, a.as_ptr(), alpha_n, alpha_p, beta, eps) };
        self.node("xielu", ptr, &[a])
    }

    /// `a` with every element limited to the range from `min` to `max`; contiguous f32.
    ///
    /// # Errors
    /// A type or layout is not supported.
    pub fn clamp(&self, a: &Tensor, min: f32, max: f32) -> Result<Tensor, Error> {
        self.float("clamp", a, true)?;
        let ctx = self.arena.reserve()?;
        // SAFETY: type and layout were checked.
        let ptr = unsafe { sys::ggml_clamp(ctx, a.as_ptr(), min, max) };
        self.node("clamp", ptr, &[a])
    }

    /// `a * factor + offset`; contiguous f32.
    ///
    /// # Errors
    /// A type or layout is not supported.
    pub fn affine(&self, a: &Tensor, factor: f32, offset: f32) -> Result<Tensor, Error> {
        self.float("affine", a, true)?;
        let ctx = self.arena.reserve()?;
        // SAFETY: type and layout were checked.
        let ptr = unsafe { sys::ggml_scale_bias(ctx, a.as_ptr(), factor, offset) };
        self.node("affine", ptr, &[a])
    }

    /// A tensor of the shape of `a` with all elements `value`; contiguous f32.
    ///
    /// # Errors
    /// A type or layout is not supported.
    pub fn fill(&self, a: &Tensor, value: f32) -> Result<Tensor, Error> {
        self.float("fill", a, true)?;
        let ctx = self.arena.reserve()?;
        // SAFETY: type and layout were checked.
        let ptr = unsafe { sys::ggml_fill(ctx, a.as_ptr(), value) };
        self.node("fill", ptr, &[a])
    }

    /// Sum of each row: `a [n, ..] -> [1, ..]`; f32.
    ///
    /// # Errors
    /// A type is not supported.
    pub fn sum_rows(&self, a: &Tensor) -> Result<Tensor, Error> {
        self.float("sum_rows", a, false)?;
        let ctx = self.arena.reserve()?;
        // SAFETY: type and layout were checked.
        let ptr = unsafe { sys::ggml_sum_rows(ctx, a.as_ptr()) };
        self.node("sum_rows", ptr, &[a])
    }
}
