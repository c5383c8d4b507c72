//! Operations that carry a state along time.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::{Graph, fault};
use crate::weights::TensorType;

impl Graph {
    /// Each channel convolved over time: `x [k - 1 + n, channels, seqs]`, `weight [k, channels]` ->
    /// `[channels, n, seqs]`; contiguous f32.
    ///
    /// # Errors
    /// Shapes that do not go together, other types.
    pub fn ssm_conv(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor, Error> {
        self.float("ssm_conv", x, true)?;
        self.float("ssm_conv", weight, true)?;
        let (sx, sw) = (x.shape(), weight.shape());
        if sx[1] != sw[1] || sx[0] < sw[0] || sx[3] != 1 || sw[2..] != [1, 1] {
            return fault("ssm_conv", format!("{x:?} with {weight:?}"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes, types and layout were checked.
        let ptr = unsafe { sys::ggml_ssm_conv(ctx, x.as_ptr(), weight.as_ptr()) };
        self.node("ssm_conv", ptr, &[x, weight])
    }

    /// The selective scan of Mamba (Gu and Dao 2023): `states [n, d, heads, rows]`,
    /// `x [d, heads, t, seqs]`, `dt [heads, t, seqs]`, `a [n or 1, heads]`, `b` and `c`
    /// `[n, groups, t, seqs]`, the row of each sequence `ids [seqs]` -> one row of all `x`, then
    /// all new states; f32. The softplus of `dt` is taken here.
    ///
    /// # Errors
    /// Shapes that do not go together, other types, ids without a bound.
    #[expect(clippy::too_many_arguments, reason = "the operation has as many")]
    pub fn ssm_scan(
        &self,
        states: &Tensor,
        x: &Tensor,
        dt: &Tensor,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        ids: &Tensor,
    ) -> Result<Tensor, Error> {
        for tensor in [states, x, dt, a, b, c] {
            self.float("ssm_scan", tensor, true)?;
        }
        let (ss, sx, sd, sa, sb) = (states.shape(), x.shape(), dt.shape(), a.shape(), b.shape());
        let [d, heads, n, seqs] = sx;
        let fits = ss[1] == d
            && ss[2] == heads
            && sd == [heads, n, seqs, 1]
            && (sa[0] == ss[0] || sa[0] == 1)
            && sa[1..] == [heads, 1, 1]
            && sb == c.shape()
            && sb[0] == ss[0]
            && sb[2..] == [n, seqs]
            && heads % sb[1] == 0
            && ids.shape() == [seqs, 1, 1, 1]
            && ids.ty() == TensorType::I32;
        if !fits {
            return fault(
                "ssm_scan",
                format!("{states:?}, {x:?}, {dt:?}, {a:?}, {b:?}, {c:?}, {ids:?}"),
            );
        }
        self.bounded("ssm_scan", ids, ss[3])?;
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes, types and layout were checked; the values of `ids` are bounded.
        let ptr = unsafe {
            sys::ggml_ssm_scan(
                ctx,
                states.as_ptr(),
                x.as_ptr(),
                dt.as_ptr(),
                a.as_ptr(),
                b.as_ptr(),
                c.as_ptr(),
                ids.as_ptr(),
                1,
            )
        };
        self.node("ssm_scan", ptr, &[states, x, dt, a, b, c, ids])
    }

    /// The gated delta rule (Yang et al. 2024): `q`, `k` `[d, k_heads, t, seqs]`,
    /// `v [d, heads, t, seqs]`, decay `g [1 or d, heads, t, seqs]` (its logarithm),
    /// `beta [1, heads, t, seqs]`, `state [d, d, heads, seqs]` -> `[d * heads, t * seqs]`, then all
    /// new states; f32. Head h of the values reads head `h % k_heads`; queries are divided by the
    /// root of d here.
    ///
    /// # Errors
    /// Shapes that do not go together, other types.
    pub fn gated_delta_net(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        g: &Tensor,
        beta: &Tensor,
        state: &Tensor,
    ) -> Result<Tensor, Error> {
        for tensor in [q, k, v, g, beta, state] {
            self.float("gated_delta_net", tensor, true)?;
        }
        let (sq, [d, heads, n, seqs]) = (q.shape(), v.shape());
        let gate = g.shape();
        let fits = sq == k.shape()
            && sq[0] == d
            && heads % sq[1] == 0
            && sq[2..] == [n, seqs]
            && (gate[0] == 1 || gate[0] == d)
            && gate[1..] == [heads, n, seqs]
            && beta.shape() == [1, heads, n, seqs]
            && state.shape() == [d, d, heads, seqs];
        if !fits {
            return fault(
                "gated_delta_net",
                format!("{q:?}, {k:?}, {v:?}, {g:?}, {beta:?}, {state:?}"),
            );
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes, types and layout were checked.
        let ptr = unsafe {
            sys::ggml_gated_delta_net(
                ctx,
                q.as_ptr(),
                k.as_ptr(),
                v.as_ptr(),
                g.as_ptr(),
                beta.as_ptr(),
                state.as_ptr(),
                1,
            )
        };
        self.node("gated_delta_net", ptr, &[q, k, v, g, beta, state])
    }

    /// Linear attention with a decay of each element of the keys, read before the position is added, and
    /// with a bonus for the position itself (Peng et al. 2024): `y = r (S + bonus k v)`, then
    /// `S = decay S + k v`. `k`, `v`, `r`, `decay` `[d, heads, t * seqs]`, `bonus [d, heads]`,
    /// `state [d * d * heads, seqs]` -> `[d * heads, t * seqs]`, then all new states; f32.
    ///
    /// # Errors
    /// Shapes that do not go together, other types.
    pub fn wkv6(
        &self,
        [k, v, r, decay]: [&Tensor; 4],
        bonus: &Tensor,
        state: &Tensor,
    ) -> Result<Tensor, Error> {
        let [d, heads, ..] = self.of_heads("wkv6", &[k, v, r, decay], state)?;
        self.float("wkv6", bonus, true)?;
        if bonus.elements() != d * heads {
            return fault("wkv6", format!("{bonus:?} with {k:?}"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes, types and layout were checked.
        let ptr = unsafe {
            sys::ggml_rwkv_wkv6(
                ctx,
                k.as_ptr(),
                v.as_ptr(),
                r.as_ptr(),
                bonus.as_ptr(),
                decay.as_ptr(),
                state.as_ptr(),
            )
        };
        self.node("wkv6", ptr, &[k, v, r, bonus, decay, state])
    }

    /// Gated linear attention (Yang et al. 2023): `S = decay S + k v`, then `y = scale q S`; otherwise
    /// as [`Self::wkv6`].
    ///
    /// # Errors
    /// Shapes that do not go together, other types.
    pub fn gated_linear_attention(
        &self,
        [k, v, q, decay]: [&Tensor; 4],
        state: &Tensor,
        scale: f32,
    ) -> Result<Tensor, Error> {
        self.of_heads("gated_linear_attention", &[k, v, q, decay], state)?;
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes, types and layout were checked.
        let ptr = unsafe {
            sys::ggml_gated_linear_attn(
                ctx,
                k.as_ptr(),
                v.as_ptr(),
                q.as_ptr(),
                decay.as_ptr(),
                state.as_ptr(),
                scale,
            )
        };
        self.node("gated_linear_attention", ptr, &[k, v, q, decay, state])
    }

    /// The generalised delta rule (Peng et al. 2025): `S = S decay + (S a) b + v k`, then `y = S r`.
    /// `r`, `decay`, `k`, `v`, `a`, `b` `[d, heads, t * seqs]`, d a multiple of 64,
    /// `state [d * d * heads, seqs]` -> `[d * heads, t * seqs]`, then all new states; f32.
    ///
    /// # Errors
    /// Shapes that do not go together, other types.
    pub fn wkv7(
        &self,
        [r, decay, k, v, a, b]: [&Tensor; 6],
        state: &Tensor,
    ) -> Result<Tensor, Error> {
        let [d, ..] = self.of_heads("wkv7", &[r, decay, k, v, a, b], state)?;
        // The processor reads whole vectors, up to 64 elements at a time.
        if !d.is_multiple_of(64) {
            return fault("wkv7", format!("heads of {d} elements, no multiple of 64"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes, types and layout were checked.
        let ptr = unsafe {
            sys::ggml_rwkv_wkv7(
                ctx,
                r.as_ptr(),
                decay.as_ptr(),
                k.as_ptr(),
                v.as_ptr(),
                a.as_ptr(),
                b.as_ptr(),
                state.as_ptr(),
            )
        };
        self.node("wkv7", ptr, &[r, decay, k, v, a, b, state])
    }

    /// The shape of `values [d, heads, t * seqs]`, which must be that of all, with `state [d * d * heads,
    /// seqs]`.
    fn of_heads(
        &self,
        op: &'static str,
        values: &[&Tensor],
        state: &Tensor,
    ) -> Result<[u64; 4], Error> {
        for tensor in values.iter().chain([&state]) {
            self.float(op, tensor, true)?;
        }
        let shape @ [d, heads, n, more] = values[0].shape();
        let [size, seqs, ..] = state.shape();
        let is_whole = n > 0 && seqs > 0 && n.is_multiple_of(seqs) && more == 1;
        let fits = size == d * d * heads && state.elements() == size * seqs;
        if !is_whole || !fits || values.iter().any(|v| v.shape() != shape) {
            return fault(op, format!("{values:?} with {state:?}"));
        }
        Ok(shape)
    }
}
