//! Rows brought to a common magnitude.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::{Graph, fault};

impl Graph {
    /// Rows divided by their root mean square; f32.
    ///
    /// # Errors
    /// Other types, a negative eps.
    pub fn rms_norm(&self, a: &Tensor, eps: f32) -> Result<Tensor, Error> {
        self.norm_op("rms_norm", sys::ggml_rms_norm, a, eps)
    }

    /// Rows minus their mean, divided by their standard deviation; f32.
    ///
    /// # Errors
    /// Other types, a negative eps.
    pub fn layer_norm(&self, a: &Tensor, eps: f32) -> Result<Tensor, Error> {
        self.norm_op("norm", sys::ggml_norm, a, eps)
    }

    /// Rows divided by `max(euclidean norm, eps)`; f32.
    ///
    /// # Errors
    /// Other types, a negative eps.
    pub fn l2_norm(&self, a: &Tensor, eps: f32) -> Result<Tensor, Error> {
        self.norm_op("l2_norm", sys::ggml_l2_norm, a, eps)
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
        let ctx = self.arena.reserve()?;
        // SAFETY: type, layout and eps were checked.
        let ptr = unsafe { f(ctx, a.as_ptr(), eps) };
        self.node(op, ptr, &[a])
    }
}
