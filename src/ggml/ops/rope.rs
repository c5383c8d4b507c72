//! Rotary position embedding.

use ggml_sys as sys;

use super::super::Error;
use super::super::arena::Tensor;
use super::{Graph, fault};
use crate::weights::TensorType;

/// Which elements a rope pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (2j, 2j + 1).
    Norm,
    /// (j, j + dims / 2).
    Neox,
}

/// Numbers of a rotary embedding, as ggml takes them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are ggml's own")]
pub struct RopeParams {
    pub pairing: RopePairing,
    pub dims: u64,
    pub orig_ctx: u64,
    pub base: f32,
    pub freq_scale: f32,
    pub ext_factor: f32,
    pub attn_factor: f32,
    pub beta_fast: f32,
    pub beta_slow: f32,
}

impl Graph {
    /// Rotates `a [d, heads, n]` by the positions `pos [n]` (i32), with an optional divisor of each
    /// frequency `factors [dims / 2]` (f32).
    ///
    /// # Errors
    /// Shapes that do not go together, other types.
    pub fn rope(
        &self,
        a: &Tensor,
        pos: &Tensor,
        factors: Option<&Tensor>,
        params: &RopeParams,
    ) -> Result<Tensor, Error> {
        let (sa, sp) = (a.shape(), pos.shape());
        let positions = sp[0] == sa[2] && sp[1..] == [1, 1, 1] && pos.ty() == TensorType::I32;
        let dims = params.dims.is_multiple_of(2) && params.dims > 0 && params.dims <= sa[0];
        self.float("rope", a, false)?;
        if !positions || !dims {
            return fault(
                "rope",
                format!("{a:?} at {pos:?}, {} dimensions", params.dims),
            );
        }
        if let Some(factors) = factors
            && (factors.ty() != TensorType::F32
                || factors.shape()[0] < params.dims / 2
                || !factors.has_dense_rows())
        {
            return fault(
                "rope",
                format!("factors {factors:?} for {} dimensions", params.dims),
            );
        }
        let ctx = self.arena.reserve()?;
        let mode = match params.pairing {
            RopePairing::Norm => 0,
            RopePairing::Neox => sys_rope_neox(),
        };
        let factors_ptr = factors.map_or(std::ptr::null_mut(), Tensor::as_ptr);
        // SAFETY: types and shapes were checked; no factors are null.
        let ptr = unsafe {
            sys::ggml_rope_ext(
                ctx,
                a.as_ptr(),
                pos.as_ptr(),
                factors_ptr,
                params.dims as i32,
                mode,
                params.orig_ctx.min(i32::MAX as u64) as i32,
                params.base,
                params.freq_scale,
                params.ext_factor,
                params.attn_factor,
                params.beta_fast,
                params.beta_slow,
            )
        };
        match factors {
            Some(factors) => self.node("rope", ptr, &[a, pos, factors]),
            None => self.node("rope", ptr, &[a, pos]),
        }
    }
}

/// ggml's number for pairs half apart (a macro there, so not part of the bindings).
const fn sys_rope_neox() -> i32 {
    2
}
