//! Shared code of blocks with a recurrent state: sequences in groups of equal length, convolution over time, the
//! previous token, the results of scans.
//!
//! ggml's operators over time take equally many tokens of each sequence, so an operator runs once for each group of
//! sequences that have equally many tokens in the pass. Everything else in a block runs over all tokens. Invariant: the
//! rows of states are written after all groups have read theirs.

use super::build::UnitBuilder;
use super::refused;
use crate::arch::NormRef;
use lab_base::ggml::{Graph, Result, Tensor};

/// Maximum number of operations that a further group adds to a block; an upper estimate.
pub(super) const NODES_PER_GROUP: usize = 48;

/// A group while the graph is built.
pub(super) struct GroupTokens {
    /// The place of the group among the groups of the pass.
    index: usize,
    /// Number of tokens of the groups before it, and of all groups.
    first_token: u64,
    n_all: u64,
    /// Number of sequences.
    pub(super) n_seqs: u64,
    /// Number of tokens of each sequence.
    pub(super) n_steps: u64,
}

impl GroupTokens {
    /// The columns of the group's tokens in `x [.., n_tokens]`, contiguous, as a tensor of `shape`.
    pub(super) fn of(&self, g: &Graph, x: &Tensor, shape: [u64; 4]) -> Result<Tensor> {
        if self.n_seqs * self.n_steps == self.n_all {
            return g.reshape(x, shape);
        }
        let flat = g.reshape(x, [x.elements(), 1, 1, 1])?;
        let first = self.first_token * (x.elements() / self.n_all);
        part(g, &flat, first, shape)
    }

    /// The two parts of the result of a scan: rows `[width, n_tokens]` of the group's tokens, then the new states
    /// `[size, n_seqs]`.
    pub(super) fn scanned(
        &self,
        g: &Graph,
        scan: &Tensor,
        width: u64,
        size: u64,
    ) -> Result<(Tensor, Tensor)> {
        let flat = g.reshape(scan, [scan.elements(), 1, 1, 1])?;
        let n = self.n_seqs * self.n_steps;
        let rows = part(g, &flat, 0, [width, n, 1, 1])?;
        let states = part(g, &flat, width * n, [size, self.n_seqs, 1, 1])?;
        Ok((rows, states))
    }

    /// A part of the state of each sequence: all rows `[size, rows]`, and the row that each sequence reads, i32
    /// `[n_seqs]`.
    pub(super) fn rows(&self, b: &UnitBuilder<'_, '_>, part: &str) -> Result<(Tensor, Tensor)> {
        b.states.rows(&b.unit.path, part, self.index)
    }

    /// A part of the state of each sequence: `[size, n_seqs]`.
    pub(super) fn read_state(&self, b: &UnitBuilder<'_, '_>, part: &str) -> Result<Tensor> {
        b.states.read(b.g, &b.unit.path, part, self.index)
    }
}

/// Elements of `flat [n]` from `first` on, as a contiguous tensor of `shape`.
fn part(g: &Graph, flat: &Tensor, first: u64, shape: [u64; 4]) -> Result<Tensor> {
    let element = flat.strides()[0];
    let stride = |dims: usize| shape[..dims].iter().product::<u64>() as usize * element;
    let strides = [stride(1), stride(2), stride(3)];
    g.view(flat, shape, strides, first as usize * element)
}

/// `n` sums of columns `step` apart, each column times its part of `weight [k, channels]`:
/// `columns [n + (k - 1) * step, channels, n_seqs]` -> `[channels, n, n_seqs]`.
fn shifted_sum(
    g: &Graph,
    columns: &Tensor,
    weight: &Tensor,
    (n, step): (u64, u64),
) -> Result<Tensor> {
    let ([_, channels, n_seqs, _], strides) = (columns.shape(), columns.strides());
    let steps = [strides[1], strides[2], strides[3]];
    let of_weight = weight.strides();
    let term = |j: u64| {
        let offset = (j * step) as usize * strides[0];
        let shifted = g.view(columns, [n, channels, n_seqs, 1], steps, offset)?;
        let shifted = g.cont(&g.permute(&shifted, [1, 0, 2, 3])?)?; // [channels, n, n_seqs]
        let part = [of_weight[1], of_weight[2], of_weight[3]];
        let part = g.view(weight, [1, channels, 1, 1], part, j as usize * of_weight[0])?;
        g.mul(&shifted, &g.reshape(&g.cont(&part)?, [channels, 1, 1, 1])?)
    };
    let mut sum = term(0)?;
    for j in 1..weight.shape()[0] {
        sum = g.add(&sum, &term(j)?)?;
    }
    Ok(sum)
}

impl UnitBuilder<'_, '_> {
    /// Runs an operator over time that carries the part `part` of the state. For each group `operator`
    /// gives the rows of its tokens `[width, n_tokens]` and the new states `[size, n_seqs]`. Returns the
    /// rows of all tokens and writes the states.
    pub(super) fn over_time(
        &mut self,
        part: &str,
        operator: impl Fn(&Self, &GroupTokens) -> Result<(Tensor, Tensor)>,
    ) -> Result<Tensor> {
        let (g, groups) = (self.g, self.groups);
        let mut all: Option<(Tensor, Tensor)> = None;
        let mut first_token = 0;
        for (index, group) in groups.iter().enumerate() {
            let group = GroupTokens {
                index,
                first_token,
                n_all: self.n_tokens,
                n_seqs: group.n_seqs as u64,
                n_steps: group.n_steps as u64,
            };
            first_token += group.n_seqs * group.n_steps;
            let (rows, states) = operator(self, &group)?;
            all = Some(match all {
                None => (rows, states),
                Some((before, states_before)) => (
                    g.concat(&before, &rows, 1)?,
                    g.concat(&states_before, &states, 1)?,
                ),
            });
        }
        let (rows, states) = all.ok_or_else(|| {
            refused(
                "over_time",
                format!("{}: the pass has no sequences", self.unit.path),
            )
        })?;
        let unit = self.unit;
        self.states.write(g, &unit.path, part, &states)?;
        Ok(rows)
    }

    /// Convolves `x [channels, n_tokens]` over time, each channel by itself, with the last columns of earlier passes
    /// (`part`) before it: `y[c, t] = sum over j of w[j, c] x[c, t - k + 1 + j]` with `weight [k, channels]`.
    pub(super) fn convolve(&mut self, part: &str, weight: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.convolve_apart(part, weight, x, 1)
    }

    /// [`Self::convolve`] with columns `step` positions apart:
    /// `y[c, t] = sum over j of w[j, c] x[c, t - step * (k - 1 - j)]`.
    pub(super) fn convolve_apart(
        &mut self,
        part: &str,
        weight: &Tensor,
        x: &Tensor,
        step: u64,
    ) -> Result<Tensor> {
        let (g, channels, kernel) = (self.g, x.shape()[0], weight.shape()[0]);
        let kept = (kernel - 1) * step;
        let is_on_processor = self.unit.device == 0;
        self.over_time(part, |b, group| {
            let (n, n_seqs) = (group.n_steps, group.n_seqs);
            let x = group.of(g, x, [channels, n, n_seqs, 1])?;
            if is_on_processor && Graph::can_convolve(kernel, step) {
                let (states, ids) = group.rows(b, part)?;
                let y = g.convolve(&x, &states, &ids, weight, step)?;
                return group.scanned(g, &y, channels, kept * channels);
            }
            // [n, channels, n_seqs]
            let x = match n {
                1 => g.reshape(&x, [1, channels, n_seqs, 1])?,
                _ => g.cont(&g.permute(&x, [1, 0, 2, 3])?)?,
            };
            let before = group.read_state(b, part)?;
            let before = g.reshape(&before, [kept, channels, n_seqs, 1])?;
            let columns = g.concat(&before, &x, 0)?; // [kept + n, channels, n_seqs]
            let strides = columns.strides();
            let steps = [strides[1], strides[2], strides[3]];
            let offset = n as usize * strides[0];
            let last = g.view(&columns, [kept, channels, n_seqs, 1], steps, offset)?;
            let last = g.reshape(&g.cont(&last)?, [kept * channels, n_seqs, 1, 1])?;
            let y = match step {
                1 => g.ssm_conv(&columns, weight)?, // [channels, n, n_seqs]
                _ => shifted_sum(g, &columns, weight, (n, step))?,
            };
            Ok((g.reshape(&y, [channels, n * n_seqs, 1, 1])?, last))
        })
    }

    /// The previous token's column less the token's: `x(t-1) - x(t)` for `x [channels, n_tokens]`, with the last column
    /// of earlier passes (`part`) before it, and zeros before the start of a sequence.
    pub(super) fn change_from_previous(&mut self, part: &str, x: &Tensor) -> Result<Tensor> {
        let (g, channels) = (self.g, x.shape()[0]);
        let before = self.over_time(part, |b, group| {
            let (n, n_seqs) = (group.n_steps, group.n_seqs);
            let x = group.of(g, x, [channels, n, n_seqs, 1])?;
            let before = group.read_state(b, part)?;
            let before = g.reshape(&before, [channels, 1, n_seqs, 1])?;
            let columns = g.concat(&before, &x, 1)?; // [channels, 1 + n, n_seqs]
            let strides = columns.strides();
            let columns = |first: u64, wanted: u64| {
                let steps = [strides[1], strides[2], strides[3]];
                let offset = first as usize * strides[1];
                let part = g.view(&columns, [channels, wanted, n_seqs, 1], steps, offset)?;
                g.reshape(&g.cont(&part)?, [channels, wanted * n_seqs, 1, 1])
            };
            Ok((columns(0, n)?, columns(n, 1)?))
        })?;
        g.sub(&before, x)
    }

    /// Interpolations between each token and the previous one: `x + by * change` for `by [channels, n_tokens, inputs]`,
    /// each `[channels, n_tokens]`.
    pub(super) fn interpolate<const N: usize>(
        &self,
        x: &Tensor,
        change: &Tensor,
        by: &Tensor,
    ) -> Result<[Tensor; N]> {
        let (g, [channels, n, ..]) = (self.g, x.shape());
        let all = g.add(&g.mul(by, change)?, x)?;
        let strides = all.strides();
        let input = |i: usize| {
            let steps = [strides[1], strides[2], strides[3]];
            g.view(&all, [channels, n, 1, 1], steps, i * strides[2])
        };
        let inputs: Result<Vec<Tensor>> = (0..N).map(input).collect();
        inputs?
            .try_into()
            .map_err(|_| refused("between", "one for each"))
    }

    /// Repeats each key head for the heads that read it: `[d * k_heads, n_tokens]` -> `[d, heads, n_tokens]`.
    pub(super) fn repeat_heads(&self, x: &Tensor, d: u64, heads: u64) -> Result<Tensor> {
        let (g, n) = (self.g, self.n_tokens);
        let k_heads = x.elements() / (d * n);
        if k_heads == heads {
            return g.reshape(x, [d, heads, n, 1]);
        }
        let x = g.reshape(x, [d, 1, k_heads, n])?;
        let x = g.repeat(&x, [d, heads / k_heads, k_heads, n])?;
        g.reshape(&x, [d, heads, n, 1])
    }

    /// Normalises each of `heads` parts of `y [width, n_tokens]` by itself, and applies the weight `norm` of all parts
    /// and its bias.
    pub(super) fn normalise_heads(&self, norm: NormRef, heads: u64, y: &Tensor) -> Result<Tensor> {
        let (g, [width, n, ..]) = (self.g, y.shape());
        let by_head = g.reshape(y, [width / heads, heads, n, 1])?;
        let y = self.normalise_with(norm, None, &by_head)?;
        let y = g.reshape(&y, [width, n, 1, 1])?;
        let y = match self.weight("norm") {
            Some(weight) => g.mul(&y, weight)?,
            None => y,
        };
        self.with_bias("norm.bias", y)
    }
}
