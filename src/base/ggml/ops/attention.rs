//! Attention operations: from scores to weighted sums of values.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::{Graph, fault, is_matrix_type, pointer};
use crate::weights::TensorType;

/// Scaling, cap and bias of the scores before the softmax.
#[derive(Clone, Copy, Debug)]
pub struct ScoreOptions<'a> {
    /// Factor of `q . k`.
    pub scale: f32,
    /// Scores become `softcap * tanh(score / softcap)`; 0: no cap.
    pub softcap: f32,
    /// Largest slope of a linear position bias (Press et al. 2022); 0: no bias. The mask holds the negated distances.
    pub max_bias: f32,
    /// The sinks `[heads]`: a further score of each head that takes part in the softmax and has no value.
    pub sinks: Option<&'a Tensor>,
}

impl ScoreOptions<'_> {
    pub(super) fn check(&self, op: &'static str, heads: u64, masked: bool) -> Result<(), Error> {
        let numbers = self.scale.is_finite()
            && self.softcap.is_finite()
            && self.softcap >= 0.0
            && self.max_bias.is_finite()
            && self.max_bias >= 0.0;
        if !numbers || (self.max_bias > 0.0 && !masked) {
            return fault(op, format!("{self:?}"));
        }
        match self.sinks {
            Some(sinks)
                if sinks.ty() != TensorType::F32
                    || sinks.shape() != [heads, 1, 1, 1]
                    || !sinks.is_contiguous() =>
            {
                fault(op, format!("sinks {sinks:?} for {heads} heads"))
            }
            _ => Ok(()),
        }
    }
}

impl Graph {
    /// `softmax(a * scale + mask)` over rows: `a [n_kv, n_q, heads, n]`, `mask [n_kv, >= n_q, 1, n]`; f32.
    /// The softcap is not applied here, but before.
    pub fn soft_max(
        &self,
        a: &Tensor,
        mask: Option<&Tensor>,
        scores: &ScoreOptions<'_>,
    ) -> Result<Tensor, Error> {
        self.float("soft_max", a, true)?;
        scores.check("soft_max", a.shape()[2], mask.is_some())?;
        if let Some(mask) = mask {
            let (sa, sm) = (a.shape(), mask.shape());
            let fits = sm[0] == sa[0] && sm[1] >= sa[1] && sa[2] % sm[2] == 0 && sa[3] % sm[3] == 0;
            let typed =
                matches!(mask.ty(), TensorType::F32 | TensorType::F16) && mask.is_contiguous();
            if !fits || !typed {
                return fault("soft_max", format!("{a:?} with the mask {mask:?}"));
            }
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: types, shapes and layout were checked; no mask is null.
        let ptr = unsafe {
            let ptr = sys::ggml_soft_max_ext(
                ctx,
                a.as_ptr(),
                pointer(mask),
                scores.scale,
                scores.max_bias,
            );
            if let Some(sinks) = scores.sinks {
                sys::ggml_soft_max_add_sinks(ptr, sinks.as_ptr());
            }
            ptr
        };
        self.node("soft_max", ptr, &[Some(a), mask, scores.sinks])
    }

    /// `softmax(q . k * scale + mask) . v` without storing the scores: `q [dk, n_q, heads, n]`,
    /// `k [dk, n_kv, kv_heads, n]`, `v [dv, n_kv, kv_heads, n]`, `mask [n_kv, n_q, 1, n]` f16 -> `[dv, heads, n_q, n]`
    /// f32. The `n` batches are independent.
    pub fn flash_attn(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        scores: &ScoreOptions<'_>,
    ) -> Result<Tensor, Error> {
        scores.check("flash_attn", q.shape()[2], mask.is_some())?;
        let (sq, sk, sv) = (q.shape(), k.shape(), v.shape());
        let shapes = sq[0] == sk[0]
            && sk[1] == sv[1]
            && sk[2] == sv[2]
            && sq[2] % sk[2] == 0
            && [sk[3], sv[3]] == [sq[3]; 2];
        let rows = q.has_dense_rows() && k.has_dense_rows() && v.has_dense_rows();
        let types = q.ty() == TensorType::F32 && is_matrix_type(k.ty()) && is_matrix_type(v.ty());
        if !shapes || !rows || !types {
            return fault("flash_attn", format!("{q:?}, {k:?}, {v:?}"));
        }
        if let Some(mask) = mask {
            let sm = mask.shape();
            let fits = sm[0] == sk[1] && sm[1] >= sq[1] && sm[2] == 1 && sm[3] == sq[3];
            if !fits || mask.ty() != TensorType::F16 || !mask.is_contiguous() {
                return fault("flash_attn", format!("{q:?}, {k:?} with the mask {mask:?}"));
            }
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: types, shapes and layout were checked; no mask is null.
        let ptr = unsafe {
            let ptr = sys::ggml_flash_attn_ext(
                ctx,
                q.as_ptr(),
                k.as_ptr(),
                v.as_ptr(),
                pointer(mask),
                scores.scale,
                scores.max_bias,
                scores.softcap,
            );
            if let Some(sinks) = scores.sinks {
                sys::ggml_flash_attn_ext_add_sinks(ptr, sinks.as_ptr());
            }
            sys::ggml_flash_attn_ext_set_prec(ptr, sys::GGML_PREC_F32);
            ptr
        };
        let sources = [Some(q), Some(k), Some(v), mask, scores.sinks];
        self.node("flash_attn", ptr, &sources)
    }
}
