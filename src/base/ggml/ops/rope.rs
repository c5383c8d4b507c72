//! Rotary position embedding.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::{Graph, fault, pointer};
use crate::weights::TensorType;

/// The pairing of elements by a rope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (2j, 2j + 1).
    Norm,
    /// (j, j + dims / 2).
    Neox,
    /// As `Neox`, with interleaved sections.
    Interleaved,
}

/// The parameters of a rotary embedding, as ggml takes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeParams {
    pub pairing: RopePairing,
    pub sections: Option<[u64; 4]>,
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
    /// frequency `factors [dims / 2]` (f32). With sections there are four positions for each row:
    /// `pos [4 n]`.
    pub fn rope(
        &self,
        a: &Tensor,
        pos: &Tensor,
        factors: Option<&Tensor>,
        params: &RopeParams,
    ) -> Result<Tensor, Error> {
        self.check_rope(a, pos, factors, params)?;
        let ctx = self.arena.reserve()?;
        let mode = mode(params);
        let (dims, orig_ctx) = (
            params.dims as i32,
            params.orig_ctx.min(i32::MAX as u64) as i32,
        );
        // SAFETY: types and shapes were checked; no factors are null; ggml copies the sections.
        let ptr = unsafe {
            match params.sections {
                Some(sections) => sys::ggml_rope_multi(
                    ctx,
                    a.as_ptr(),
                    pos.as_ptr(),
                    pointer(factors),
                    dims,
                    sections.map(|n| n as i32).as_mut_ptr(),
                    mode,
                    orig_ctx,
                    params.base,
                    params.freq_scale,
                    params.ext_factor,
                    params.attn_factor,
                    params.beta_fast,
                    params.beta_slow,
                ),
                None => sys::ggml_rope_ext(
                    ctx,
                    a.as_ptr(),
                    pos.as_ptr(),
                    pointer(factors),
                    dims,
                    mode,
                    orig_ctx,
                    params.base,
                    params.freq_scale,
                    params.ext_factor,
                    params.attn_factor,
                    params.beta_fast,
                    params.beta_slow,
                ),
            }
        };
        self.node("rope", ptr, &[Some(a), Some(pos), factors])
    }

    fn check_rope(
        &self,
        a: &Tensor,
        pos: &Tensor,
        factors: Option<&Tensor>,
        params: &RopeParams,
    ) -> Result<(), Error> {
        let (sa, sp) = (a.shape(), pos.shape());
        let per_row = if params.sections.is_some() { 4 } else { 1 };
        let positions =
            sp[0] == per_row * sa[2] && sp[1..] == [1, 1, 1] && pos.ty() == TensorType::I32;
        let dims = params.dims.is_multiple_of(2) && params.dims > 0 && params.dims <= sa[0];
        self.float("rope", a, false)?;
        if !positions || !dims {
            return fault(
                "rope",
                format!("{a:?} at {pos:?}, {} dimensions", params.dims),
            );
        }
        if let Some(sections) = params.sections
            && (sections[..3].iter().all(|n| *n == 0)
                || sections.iter().any(|n| *n > params.dims)
                || params.pairing == RopePairing::Norm)
        {
            return fault(
                "rope",
                format!("sections {sections:?} of {:?}", params.pairing),
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
        Ok(())
    }
}

/// ggml's number for a pairing. ggml defines it by macros, so it is not part of the bindings.
const fn mode(params: &RopeParams) -> i32 {
    match (params.pairing, params.sections) {
        (RopePairing::Norm, _) => 0,
        (RopePairing::Neox, None) => 2,
        (RopePairing::Neox, Some(_)) => 8,
        (RopePairing::Interleaved, _) => 40,
    }
}
