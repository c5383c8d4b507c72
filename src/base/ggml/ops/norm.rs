//! Normalisation of rows.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::{Graph, fault};

impl Graph {
    /// Rows divided by their root mean square; f32.
    pub fn rms_norm(&self, a: &Tensor, eps: f32) -> Result<Tensor, Error> {
        self.norm_op("rms_norm", sys::ggml_rms_norm, a, eps)
    }

    /// Rows minus their mean, divided by their standard deviation; f32.
    pub fn layer_norm(&self, a: &Tensor, eps: f32) -> Result<Tensor, Error> {
        self.norm_op("norm", sys::ggml_norm, a, eps)
    }

    /// Rows divided by `max(euclidean norm, eps)`; f32.
    pub fn l2_norm(&self, a: &Tensor, eps: f32) -> Result<Tensor, Error> {
        self.norm_op("l2_norm", sys::ggml_l2_norm, a, eps)
    }

    /// Matrices `[4, 4, n]` whose rows and columns sum to about one: the softmax over each row of
    /// `scale[2] * mixes + base` from element 8 on, with `rounds` rounds of Sinkhorn's normalisation. `mixes [24, n]`,
    /// `scale [3]`, `base [24]`; f32.
    pub fn sinkhorn(
        &self,
        mixes: &Tensor,
        scale: &Tensor,
        base: &Tensor,
        eps: f32,
        rounds: u64,
    ) -> Result<Tensor, Error> {
        const OP: &str = "sinkhorn";
        for a in [mixes, scale, base] {
            self.float(OP, a, true)?;
        }
        let n = mixes.shape()[1];
        let shapes = [mixes.shape(), scale.shape(), base.shape()];
        let fits = shapes == [[24, n, 1, 1], [3, 1, 1, 1], [24, 1, 1, 1]];
        if !fits || eps.is_nan() || eps < 0.0 || !(1..1 << 16).contains(&rounds) {
            return fault(OP, format!("{rounds} rounds of {shapes:?}, eps {eps}"));
        }
        let [m, s, b] = [mixes, scale, base].map(Tensor::as_ptr);
        // SAFETY: types, layouts, shapes and numbers were checked.
        self.build(OP, [mixes, scale, base], |ctx, [_, _, _]| unsafe {
            sys::ggml_dsv4_hc_comb(ctx, m, s, b, eps, rounds as i32)
        })
    }

    fn norm_op(
        &self,
        op: &'static str,
        f: unsafe extern "C" fn(
            *mut sys::ggml_context,
            *mut sys::ggml_tensor,
            f32,
        ) -> *mut sys::ggml_tensor,
        a: &Tensor,
        eps: f32,
    ) -> Result<Tensor, Error> {
        self.float(op, a, false)?;
        if eps.is_nan() || eps < 0.0 {
            return fault(op, format!("eps is {eps}"));
        }
        // SAFETY: type, layout and eps were checked.
        self.build(op, [a], |ctx, [a]| unsafe { f(ctx, a, eps) })
    }
}
