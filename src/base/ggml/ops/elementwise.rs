//! Elementwise operations.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::{Graph, fault, pointer};
use crate::weights::TensorType;

/// Activations of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `x * sigmoid(x)`.
    Silu,
    /// Tanh approximation of `x * Phi(x)`, on a processor by ggml's table of half-precision numbers.
    Gelu,
    /// Tanh approximation of `x * Phi(x)` in f32.
    GeluTanh,
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
pub enum Glu {
    Silu,
    Gelu,
    GeluTanh,
    GeluErf,
    Relu,
}

impl Graph {
    /// The tanh approximation of GELU, times `up` if there is one; contiguous f32 of the same shape. Only the processor
    /// has this operation: ggml's own looks the results up in a table of half-precision numbers there.
    fn gelu(&self, op: &'static str, a: &Tensor, up: Option<&Tensor>) -> Result<Tensor, Error> {
        let ctx = self.arena.reserve()?;
        // SAFETY: the callers checked types, shapes and layout; a null pointer stands for no factor.
        let ptr = unsafe { sys::shim_gelu(ctx, a.as_ptr(), pointer(up)) };
        self.node(op, ptr, &[Some(a), up])
    }

    /// `a - b`, `b` repeated to the shape of `a`; f32.
    pub fn sub(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.binary("sub", sys::ggml_sub, a, b)
    }

    /// `a / b` by elements, `b` repeated to the shape of `a`; f32.
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
        // SAFETY: `f` is one of ggml's element-wise operations; shapes and types were checked.
        self.build(op, [a, b], |ctx, [a, b]| unsafe { f(ctx, a, b) })
    }

    /// `a + b`, `b` repeated to the shape of `a`; f32.
    pub fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.binary("add", sys::ggml_add, a, b)
    }

    /// `a * b` by elements, `b` repeated to the shape of `a`; f32.
    pub fn mul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.binary("mul", sys::ggml_mul, a, b)
    }

    /// `a * factor`; contiguous f32. The tensor itself if the factor is 1.
    pub fn scale(&self, a: &Tensor, factor: f32) -> Result<Tensor, Error> {
        self.float("scale", a, true)?;
        if factor == 1.0 {
            return Ok(a.clone());
        }
        // SAFETY: type and layout were checked.
        append!(self, "scale", sys::ggml_scale, [a], factor)
    }

    /// An activation; contiguous f32.
    pub fn unary(&self, a: &Tensor, kind: Unary) -> Result<Tensor, Error> {
        self.float("unary", a, true)?;
        if kind == Unary::GeluTanh && self.scopes.is_on_processor() {
            return self.gelu("unary", a, None);
        }
        // SAFETY: type and layout were checked.
        self.build("unary", [a], |ctx, [a]| unsafe {
            match kind {
                Unary::Silu => sys::ggml_silu(ctx, a),
                Unary::Gelu | Unary::GeluTanh => sys::ggml_gelu(ctx, a),
                Unary::GeluErf => sys::ggml_gelu_erf(ctx, a),
                Unary::Relu => sys::ggml_relu(ctx, a),
                Unary::Softplus => sys::ggml_softplus(ctx, a),
                Unary::Exp => sys::ggml_exp(ctx, a),
                Unary::Square => sys::ggml_sqr(ctx, a),
                Unary::Sqrt => sys::ggml_sqrt(ctx, a),
                Unary::Sigmoid => sys::ggml_sigmoid(ctx, a),
                Unary::Tanh => sys::ggml_tanh(ctx, a),
                Unary::Abs => sys::ggml_abs(ctx, a),
                Unary::Step => sys::ggml_step(ctx, a),
            }
        })
    }

    /// `act(gate) * up`, same shapes, f32. Rows may be parts of longer rows.
    pub fn glu(&self, kind: Glu, gate: &Tensor, up: &Tensor) -> Result<Tensor, Error> {
        self.check_gate("glu", gate, up)?;
        if kind == Glu::GeluTanh && self.scopes.is_on_processor() {
            return self.gelu("glu", &self.cont(gate)?, Some(&self.cont(up)?));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: types, shapes and layout were checked.
        let ptr = unsafe {
            let op = match kind {
                Glu::Silu => sys::GGML_GLU_OP_SWIGLU,
                Glu::Gelu | Glu::GeluTanh => sys::GGML_GLU_OP_GEGLU,
                Glu::GeluErf => sys::GGML_GLU_OP_GEGLU_ERF,
                Glu::Relu => sys::GGML_GLU_OP_REGLU,
            };
            sys::ggml_glu_split(ctx, gate.as_ptr(), up.as_ptr(), op)
        };
        self.node("glu", ptr, &[Some(gate), Some(up)])
    }

    /// Refuses a gate and a factor of other shapes, or whose rows are not at equal steps.
    fn check_gate(&self, op: &'static str, gate: &Tensor, up: &Tensor) -> Result<(), Error> {
        for a in [gate, up] {
            self.float(op, a, false)?;
            let (shape, strides) = (a.shape(), a.strides());
            let is_even = |dim: usize| {
                let step = (1..dim).fold(strides[1], |step, dim| step * shape[dim] as usize);
                shape[dim] == 1 || strides[dim] == step
            };
            if !(2..4).all(is_even) {
                return fault(op, format!("{a:?}: expected rows at equal steps"));
            }
        }
        match gate.shape() == up.shape() {
            true => Ok(()),
            false => fault(op, format!("{gate:?} and {up:?} differ")),
        }
    }

    /// `g * sigmoid(alpha * g) * (u + 1)` with `g = min(gate, limit)`, `u = clamp(up, limit)`;
    /// same shapes, f32. Rows may be parts of longer rows.
    pub fn swiglu_oai(
        &self,
        gate: &Tensor,
        up: &Tensor,
        alpha: f32,
        limit: f32,
    ) -> Result<Tensor, Error> {
        self.check_gate("swiglu_oai", gate, up)?;
        // SAFETY: types, shapes and layout were checked.
        append!(
            self,
            "swiglu_oai",
            sys::ggml_swiglu_oai,
            [gate, up],
            alpha,
            limit
        )
    }

    /// xIELU (Huang and Schlag 2024): `x * (alpha_p * x + beta)` above zero,
    /// `alpha_n * (exp(min(x, eps)) - 1 - x) + beta * x` below; contiguous f32. The two alphas are
    /// as stored, before their softplus.
    pub fn xielu(
        &self,
        a: &Tensor,
        alpha_n: f32,
        alpha_p: f32,
        beta: f32,
        eps: f32,
    ) -> Result<Tensor, Error> {
        self.float("xielu", a, true)?;
        // SAFETY: type and layout were checked.
        append!(
            self,
            "xielu",
            sys::ggml_xielu,
            [a],
            alpha_n,
            alpha_p,
            beta,
            eps
        )
    }

    /// `a` with every element limited to the range from `min` to `max`; contiguous f32.
    pub fn clamp(&self, a: &Tensor, min: f32, max: f32) -> Result<Tensor, Error> {
        self.float("clamp", a, true)?;
        // SAFETY: type and layout were checked.
        append!(self, "clamp", sys::ggml_clamp, [a], min, max)
    }

    /// `a * factor + offset`; contiguous f32.
    pub fn affine(&self, a: &Tensor, factor: f32, offset: f32) -> Result<Tensor, Error> {
        self.float("affine", a, true)?;
        // SAFETY: type and layout were checked.
        append!(self, "affine", sys::ggml_scale_bias, [a], factor, offset)
    }

    /// A tensor of the shape of `a` with all elements `value`; contiguous f32.
    pub fn fill(&self, a: &Tensor, value: f32) -> Result<Tensor, Error> {
        self.float("fill", a, true)?;
        // SAFETY: type and layout were checked.
        append!(self, "fill", sys::ggml_fill, [a], value)
    }

    /// Sum of each row: `a [n, ..] -> [1, ..]`; f32.
    pub fn sum_rows(&self, a: &Tensor) -> Result<Tensor, Error> {
        self.float("sum_rows", a, false)?;
        // SAFETY: type and layout were checked.
        append!(self, "sum_rows", sys::ggml_sum_rows, [a])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ggml::tests::{loaded, put, result};
    use TensorType::F32;

    /// What an activation makes of `x`, with `up` as a gate.
    fn activated(x: &[f32], up: Option<&[f32]>, threads: usize) -> Vec<f32> {
        let g = Graph::new(8, 4).expect("a small graph");
        let input = || g.input("t", F32, &[x.len() as u64]).expect("a sound shape");
        let (a, b) = (input(), input());
        let out = match up {
            Some(_) => g.glu(Glu::GeluTanh, &a, &b),
            None => g.unary(&a, Unary::GeluTanh),
        };
        let out = out.expect("shapes fit");
        let mut executor = loaded(g, &[&out], threads);
        put(&mut executor, &a, x);
        if let Some(up) = up {
            put(&mut executor, &b, up);
        }
        executor.run().expect("it runs");
        result(&executor, &out)
    }

    #[test]
    fn the_tanh_gelu_has_the_digits_of_f32() {
        // Not whole vectors, and more than the elements that a thread takes at a time.
        let x: Vec<f32> = (0..4999).map(|i| i as f32 * 0.004 - 10.0).collect();
        let up: Vec<f32> = x.iter().map(|x| 1.5 - x * 0.25).collect();
        // The result, and the number of digits that f32 leaves of it: an exponential has the rounding of its argument.
        let exact = |x: f32| {
            let x = f64::from(x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            let share = (4.0 + 2.0 * u.abs()) * f64::from(f32::EPSILON);
            (x / (1.0 + (-2.0 * u).exp()), share)
        };
        let (plain, gated) = (activated(&x, None, 1), activated(&x, Some(&up), 3));
        assert_eq!(plain, activated(&x, None, 3));
        for (i, x) in x.iter().enumerate() {
            let (expected, share) = exact(*x);
            let bound = share * expected.abs() + 1e-30;
            let found = f64::from(plain[i]);
            assert!(
                (found - expected).abs() <= bound,
                "{x}: {found}, {expected}"
            );
            assert_eq!(gated[i], plain[i] * up[i], "{x}");
        }
        let ends = activated(&[f32::INFINITY, 1e30, -1e30, 0.0, f32::NAN], None, 1);
        assert_eq!(ends[..4], [f32::INFINITY, 1e30, 0.0, 0.0]);
        assert!(ends[4].is_nan());
    }
}
