//! Operations that carry a state over time.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::{Graph, fault};
use crate::weights::TensorType;

impl Graph {
    /// Convolves each channel over time: `x [k - 1 + n, channels, seqs]`, `weight [k, channels]` ->
    /// `[channels, n, seqs]`; contiguous f32.
    pub fn ssm_conv(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor, Error> {
        self.float("ssm_conv", x, true)?;
        self.float("ssm_conv", weight, true)?;
        let (sx, sw) = (x.shape(), weight.shape());
        if sx[1] != sw[1] || sx[0] < sw[0] || sx[3] != 1 || sw[2..] != [1, 1] {
            return fault("ssm_conv", format!("{x:?} with {weight:?}"));
        }
        // SAFETY: shapes, types and layout were checked.
        append!(self, "ssm_conv", sys::ggml_ssm_conv, [x, weight])
    }

    /// Convolves each channel over time, with the columns of earlier passes before it:
    /// `y[c, t] = sum over j of weight[j, c] x[c, t - step * (k - 1 - j)]`. `x [channels, n, seqs]`,
    /// `weight [k, channels]`, `states [kept * channels, rows]` with `kept = (k - 1) * step` columns, one channel after
    /// another, and the row of each sequence `ids [seqs]` -> one row of all y, `[channels, n, seqs]`, then the last
    /// columns `[kept * channels, seqs]`; contiguous f32. Only the processor has this operation.
    ///
    /// # Errors
    /// The shapes do not fit each other, a type is not supported, the ids have no bound, or there are more columns than
    /// [`Self::can_convolve`] allows.
    pub fn convolve(
        &self,
        x: &Tensor,
        states: &Tensor,
        ids: &Tensor,
        weight: &Tensor,
        step: u64,
    ) -> Result<Tensor, Error> {
        const OP: &str = "convolve";
        for tensor in [x, states, weight] {
            self.float(OP, tensor, true)?;
        }
        let ([channels, n, seqs, _], [length, ..]) = (x.shape(), weight.shape());
        let kept = length.saturating_sub(1).saturating_mul(step);
        let fits = x.shape()[3] == 1
            && n > 0
            && weight.shape()[1..] == [channels, 1, 1]
            && states.shape()[2..] == [1, 1]
            && states.shape()[0] == kept * channels
            && ids.shape() == [seqs, 1, 1, 1]
            && ids.ty() == TensorType::I32
            && Self::can_convolve(length, step);
        if !fits {
            let what = format!("{x:?}, {states:?}, {ids:?}, {weight:?}, step {step}");
            return fault(OP, what);
        }
        self.bounded(OP, ids, states.shape()[1])?;
        // SAFETY: shapes, types and layout were checked; the values of `ids` are bounded.
        append!(
            self,
            OP,
            sys::shim_convolve,
            [x, states, ids, weight],
            step as i32
        )
    }

    /// Whether [`Self::convolve`] supports a weight of `length` columns, `step` positions apart.
    pub fn can_convolve(length: u64, step: u64) -> bool {
        // SAFETY: constants.
        let (longest, most) = unsafe {
            (
                sys::shim_convolve_max_length(),
                sys::shim_convolve_max_kept(),
            )
        };
        let kept = length.saturating_sub(1).saturating_mul(step);
        (1..=longest as u64).contains(&length) && kept > 0 && kept <= most as u64
    }

    /// The selective scan of Mamba (Gu and Dao 2023): `states [n, d, heads, rows]`, `x [d, heads, t, seqs]`,
    /// `dt [heads, t, seqs]`, `a [n or 1, heads]`, `b` and `c` `[n, groups, t, seqs]`, the row of each sequence
    /// `ids [seqs]` -> one row of all `x`, then all new states; f32. The operation takes the softplus of `dt`.
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
        // SAFETY: shapes, types and layout were checked; the values of `ids` are bounded.
        append!(
            self,
            "ssm_scan",
            sys::ggml_ssm_scan,
            [states, x, dt, a, b, c, ids],
            1
        )
    }

    /// The gated delta rule (Yang et al. 2024): `q`, `k` `[d, k_heads, t, seqs]`,
    /// `v [d, heads, t, seqs]`, decay `g [1 or d, heads, t, seqs]` (its logarithm),
    /// `beta [1, heads, t, seqs]`, `state [d, d, heads, seqs]` -> `[d * heads, t * seqs]`, then all
    /// new states; f32. Head h of the values reads head `h % k_heads`; queries are divided by the
    /// root of d here.
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
        // SAFETY: shapes, types and layout were checked.
        append!(
            self,
            "gated_delta_net",
            sys::ggml_gated_delta_net,
            [q, k, v, g, beta, state],
            1
        )
    }

    /// Linear attention with a decay of each element of the keys, read before the position is added, and with a bonus
    /// for the position (Peng et al. 2024): `y = r (S + bonus k v)`, then `S = decay S + k v`. `k`, `v`, `r`, `decay`
    /// `[d, heads, t * seqs]`, `bonus [d, heads]`, `state [d * d * heads, seqs]` -> `[d * heads, t * seqs]`, then all
    /// new states; f32.
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
        // SAFETY: shapes, types and layout were checked.
        append!(
            self,
            "wkv6",
            sys::ggml_rwkv_wkv6,
            [k, v, r, bonus, decay, state]
        )
    }

    /// Gated linear attention (Yang et al. 2023): `S = decay S + k v`, then `y = scale q S`. The shapes are those of
    /// [`Self::wkv6`].
    pub fn gated_linear_attention(
        &self,
        [k, v, q, decay]: [&Tensor; 4],
        state: &Tensor,
        scale: f32,
    ) -> Result<Tensor, Error> {
        self.of_heads("gated_linear_attention", &[k, v, q, decay], state)?;
        // SAFETY: shapes, types and layout were checked.
        append!(
            self,
            "gated_linear_attention",
            sys::ggml_gated_linear_attn,
            [k, v, q, decay, state],
            scale
        )
    }

    /// The generalised delta rule (Peng et al. 2025): `S = S decay + (S a) b + v k`, then `y = S r`.
    /// `r`, `decay`, `k`, `v`, `a`, `b` `[d, heads, t * seqs]`, d a multiple of 64,
    /// `state [d * d * heads, seqs]` -> `[d * heads, t * seqs]`, then all new states; f32.
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
        // SAFETY: shapes, types and layout were checked.
        append!(
            self,
            "wkv7",
            sys::ggml_rwkv_wkv7,
            [r, decay, k, v, a, b, state]
        )
    }

    /// The shape of `values [d, heads, t * seqs]`, which all values must have, with `state [d * d * heads, seqs]`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ggml::tests::{loaded, put, result};
    use TensorType::{F32, I32};

    fn numbers(seed: usize, n: usize) -> Vec<f32> {
        let hash = |i: usize| (i + 1).wrapping_mul(seed * 2 + 0x9E37_79B9) >> 3;
        (0..n)
            .map(|i| (hash(i) % 2001) as f32 / 1000.0 - 1.0)
            .collect()
    }

    /// A convolution of `[channels, n, seqs]` with a weight of `length` columns `step` apart.
    struct Case {
        channels: usize,
        n: usize,
        ids: Vec<i32>,
        length: usize,
        step: usize,
    }

    impl Case {
        fn kept(&self) -> usize {
            (self.length - 1) * self.step
        }

        /// The operation over a table of three rows.
        fn run(&self, x: &[f32], states: &[f32], threads: usize) -> (Vec<f32>, Vec<f32>) {
            let g = Graph::new(16, 8).expect("a small graph");
            let input = |shape: [usize; 3]| {
                let shape = shape.map(|n| n as u64);
                g.input("t", F32, &shape).expect("a sound shape")
            };
            let of_x = input([self.channels, self.n, self.ids.len()]);
            let table = input([self.kept() * self.channels, 3, 1]);
            let weight = input([self.length, self.channels, 1]);
            let n_ids = self.ids.len() as u64;
            let ids = g
                .index_input("ids", I32, &[n_ids], 3)
                .expect("an index type");
            let out = g
                .convolve(&of_x, &table, &ids, &weight, self.step as u64)
                .expect("shapes fit");
            let mut executor = loaded(g, &[&out], threads);
            put(&mut executor, &of_x, x);
            put(&mut executor, &table, states);
            let own = self.weight();
            put(&mut executor, &weight, &own);
            executor
                .write_indices(&ids, &self.ids)
                .expect("as many values");
            executor.run().expect("it runs");
            let mut values = result::<f32>(&executor, &out);
            let last = values.split_off(x.len());
            (values, last)
        }

        fn weight(&self) -> Vec<f32> {
            numbers(7, self.length * self.channels)
        }

        fn inputs(&self) -> (Vec<f32>, Vec<f32>) {
            let x = numbers(3, self.channels * self.n * self.ids.len());
            (x, numbers(5, 3 * self.kept() * self.channels))
        }

        fn columns(&self, x: &[f32], states: &[f32], seq: usize, channel: usize) -> Vec<f32> {
            let (kept, row) = (self.kept(), self.ids[seq] as usize);
            let before = &states[kept * (self.channels * row + channel)..][..kept];
            let own = (0..self.n).map(|t| x[channel + self.channels * (t + self.n * seq)]);
            before.iter().copied().chain(own).collect()
        }
    }

    #[test]
    fn a_convolution_goes_on_from_the_columns_that_were_left() {
        for (channels, n, ids, length, step) in [
            (64, 1, vec![2], 4, 1),
            (200, 1, vec![0, 1], 4, 1),
            (37, 5, vec![1, 1, 0], 3, 1),
            (130, 2, vec![2, 0], 5, 3),
            (65, 300, vec![1], 2, 1),
            (3, 1, vec![0], 64, 2),
        ] {
            let case = Case {
                channels,
                n,
                ids,
                length,
                step,
            };
            let ((x, states), weight) = (case.inputs(), case.weight());
            let kept = case.kept();
            let (y, last) = case.run(&x, &states, 1);
            assert_eq!(case.run(&x, &states, 3), (y.clone(), last.clone()));
            for seq in 0..case.ids.len() {
                for channel in 0..channels {
                    let columns = case.columns(&x, &states, seq, channel);
                    for t in 0..n {
                        let products = (0..length).map(|j| {
                            let w = f64::from(weight[length * channel + j]);
                            w * f64::from(columns[t + j * step])
                        });
                        let expected: f64 = products.sum();
                        let found = f64::from(y[channel + channels * (t + n * seq)]);
                        assert!(
                            (found - expected).abs() < 1e-5,
                            "{channels} x {n}, {length} by {step}: {found} and {expected}"
                        );
                    }
                    let left = &last[kept * (channel + channels * seq)..][..kept];
                    assert_eq!(left, &columns[n..]);
                }
            }
        }
    }

    #[test]
    fn a_convolution_has_the_same_bits_in_pieces() {
        let whole = Case {
            channels: 131,
            n: 7,
            ids: vec![0],
            length: 4,
            step: 1,
        };
        let (x, mut states) = whole.inputs();
        let (y, last) = whole.run(&x, &states, 2);
        let one = Case { n: 1, ..whole };
        let mut pieces = Vec::new();
        for column in x.chunks(one.channels) {
            let (part, left) = one.run(column, &states, 1);
            states[..left.len()].copy_from_slice(&left);
            pieces.extend(part);
        }
        assert_eq!(pieces, y);
        assert_eq!(states[..last.len()], last);
    }

    #[test]
    fn a_convolution_of_other_shapes_is_refused() {
        let g = Graph::new(16, 8).expect("a small graph");
        let input = |shape: &[u64]| g.input("t", F32, shape).expect("a sound shape");
        let (x, weight, table) = (input(&[6, 2, 1]), input(&[4, 6]), input(&[18, 3]));
        let ids = |end| g.index_input("ids", I32, &[1], end).expect("an index type");
        let unchecked = g.input("ids", I32, &[1]).expect("an index type");
        assert!(g.convolve(&x, &table, &ids(3), &weight, 1).is_ok());
        for (what, result) in [
            (
                "ids beyond the table",
                g.convolve(&x, &table, &ids(4), &weight, 1),
            ),
            ("no bound", g.convolve(&x, &table, &unchecked, &weight, 1)),
            ("another step", g.convolve(&x, &table, &ids(3), &weight, 2)),
            (
                "other channels",
                g.convolve(&input(&[5, 2, 1]), &table, &ids(3), &weight, 1),
            ),
            (
                "two sequences",
                g.convolve(&input(&[6, 2, 2]), &table, &ids(3), &weight, 1),
            ),
        ] {
            assert!(result.is_err(), "{what}");
        }
        assert!(!Graph::can_convolve(1, 1) && !Graph::can_convolve(65, 1));
        assert!(!Graph::can_convolve(4, u64::MAX) && Graph::can_convolve(64, 2));
    }
}
