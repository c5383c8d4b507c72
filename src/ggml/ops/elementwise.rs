//! Operations on each element by itself.

use ggml_sys as sys;

use super::super::Error;
use super::super::arena::Tensor;
use super::{Graph, fault};
use crate::weights::TensorType;

/// Activations of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `x * sigmoid(x)`.
    Silu,
    /// Tanh approximation of `x * Phi(x)`.
    Gelu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
}

impl Graph {
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
    /// Shapes that do not repeat, other types.
    pub fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.binary("add", sys::ggml_add, a, b)
    }

    /// `a * b` by elements, `b` repeated to the shape of `a`; f32.
    ///
    /// # Errors
    /// Shapes that do not repeat, other types.
    pub fn mul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.binary("mul", sys::ggml_mul, a, b)
    }

    /// `a * factor`; contiguous f32.
    ///
    /// # Errors
    /// Other types or layouts.
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
    /// Other types or layouts.
    pub fn unary(&self, a: &Tensor, kind: Unary) -> Result<Tensor, Error> {
        self.float("unary", a, true)?;
        let ctx = self.arena.reserve()?;
        // SAFETY: type and layout were checked.
        let ptr = unsafe {
            match kind {
                Unary::Silu => sys::ggml_silu(ctx, a.as_ptr()),
                Unary::Gelu => sys::ggml_gelu(ctx, a.as_ptr()),
                Unary::Sigmoid => sys::ggml_sigmoid(ctx, a.as_ptr()),
                Unary::Tanh => sys::ggml_tanh(ctx, a.as_ptr()),
            }
        };
        self.node("unary", ptr, &[a])
    }

    /// `silu(gate) * up`, same shapes, contiguous f32.
    ///
    /// # Errors
    /// Shapes that differ, other types.
    pub fn swiglu(&self, gate: &Tensor, up: &Tensor) -> Result<Tensor, Error> {
        self.float("swiglu", gate, true)?;
        self.float("swiglu", up, true)?;
        if gate.shape() != up.shape() {
            return fault("swiglu", format!("{gate:?} and {up:?} differ"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: types, shapes and layout were checked.
        let ptr = unsafe { sys::ggml_swiglu_split(ctx, gate.as_ptr(), up.as_ptr()) };
        self.node("swiglu", ptr, &[gate, up])
    }
}
