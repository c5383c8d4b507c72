//! The highest logits of the rows of a pass, which a device selects: less than a kilobyte of a row comes back. All other logits stay
//! there until the next pass, and a row can be read whole until then.

use lab_base::ggml::{Executor, Graph, HostNumbers, Result, ScoreOptions, Tensor};
use lab_sampling::TopLogits;

/// The highest logits in a graph, for rows that want logits.
pub(super) struct TopTensors {
    /// Their tokens, i32 `[n_top, n_outputs]`, in no order.
    ids: Tensor,
    /// The logits, f32 `[1, n_top, n_outputs]`.
    logits: Tensor,
    /// Their probabilities, f32 `[1, n_top, n_outputs]`.
    shares: Tensor,
}

impl TopTensors {
    /// Selects the `n` highest of logits `[n_vocab, n_outputs]`.
    pub(super) fn of(g: &Graph, logits: &Tensor, n: u64) -> Result<Self> {
        let [n_vocab, n_rows, ..] = logits.shape();
        let column = |of: &Tensor| g.reshape(of, [1, n_vocab, n_rows, 1]);
        let ids = g.highest(logits, n)?;
        let scores = ScoreOptions {
            scale: 1.0,
            softcap: 0.0,
            max_bias: 0.0,
            sinks: None,
        };
        let shares = g.soft_max(logits, None, &scores)?;
        Ok(Self {
            logits: g.get_rows(&column(logits)?, &ids)?,
            shares: g.get_rows(&column(&shares)?, &ids)?,
            ids,
        })
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.ids, &self.logits, &self.shares].into_iter()
    }
}

/// The highest logits of the rows of the last pass.
pub(super) struct TopRows {
    /// For all rows the tokens, as the bits of numbers, then the logits, then the probabilities.
    numbers: HostNumbers,
    /// For each row the logarithm of the sum of e^logit over all tokens.
    log_sums: Vec<f64>,
    n_top: usize,
    n_vocab: usize,
}

impl TopRows {
    pub(super) fn new(numbers: HostNumbers, n_vocab: usize) -> Self {
        Self {
            numbers,
            log_sums: Vec::new(),
            n_top: 0,
            n_vocab,
        }
    }

    /// Reads the rows of a pass.
    pub(super) fn read(&mut self, executor: &Executor, tensors: &TopTensors) -> Result<()> {
        let [n_top, n_rows, ..] = tensors.ids.shape();
        self.n_top = n_top as usize;
        let n = self.n_top * n_rows as usize;
        self.numbers.resize(3 * n)?;
        let (ids, rest) = self.numbers.split_at_mut(n);
        let (logits, shares) = rest.split_at_mut(n);
        let parts = [ids, logits, shares].map(bytemuck::cast_slice_mut);
        executor.read_together(tensors.tensors().zip(parts))?;
        let (logits, shares) = self.numbers[n..].split_at(n);
        let rows = logits.chunks_exact(self.n_top);
        let rows = rows.zip(shares.chunks_exact(self.n_top));
        self.log_sums.clear();
        self.log_sums
            .extend(rows.map(|(logits, shares)| log_sum(logits, shares)));
        Ok(())
    }

    /// Whether no row has logits that are NaN or plus infinity.
    pub(super) fn are_finite(&self) -> bool {
        self.log_sums.iter().all(|sum| sum.is_finite())
    }

    /// A row. If one of its logits is no number, the sum is none either.
    pub(super) fn row(&self, at: usize) -> TopLogits<'_> {
        let n = self.numbers.len() / 3;
        let of_row = |first: usize| {
            let from = first + at * self.n_top;
            self.numbers.get(from..from + self.n_top).unwrap_or(&[])
        };
        TopLogits {
            n_vocab: self.n_vocab,
            ids: bytemuck::cast_slice(of_row(0)),
            logits: of_row(n),
            log_sum: self.log_sums.get(at).copied().unwrap_or(f64::NAN),
        }
    }
}

/// The logarithm of the sum of e^logit over all tokens of a row, by the probability of its best.
fn log_sum(logits: &[f32], shares: &[f32]) -> f64 {
    let best = logits.iter().zip(shares).max_by(|a, b| a.0.total_cmp(b.0));
    best.map_or(f64::NAN, |(logit, share)| {
        f64::from(*logit) - f64::from(*share).ln()
    })
}
