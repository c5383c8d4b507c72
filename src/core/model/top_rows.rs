//! The highest logits of the rows of a pass, which a device selects: less than a kilobyte of a row comes back. All other logits stay
//! there until the next pass, and a row can be read whole until then. The tokens with the highest logits can be the tokens of the next
//! pass without the host.

use lab_base::ggml::{Executor, Graph, Readback, Result, ScoreOptions, Tensor};
use lab_sampling::TopLogits;

use super::inputs::NextTokens;

/// The highest logits in a graph, for rows that want logits.
pub(super) struct TopTensors {
    /// Their tokens, i32 `[n_top, n_outputs]`, in no order.
    ids: Tensor,
    /// The logits, f32 `[1, n_top, n_outputs]`.
    logits: Tensor,
    /// Their probabilities, f32 `[1, n_top, n_outputs]`.
    shares: Tensor,
    /// For each row of the pass the best token of its result, i32 `[n_tokens]`: that with the highest logit of those that are not
    /// banned. None if devices make no tokens of the next pass.
    pub(super) best: Option<Tensor>,
}

impl TopTensors {
    /// Selects the `n` highest of logits `[n_vocab, n_outputs]`, and of these the best token if `next` wants it.
    pub(super) fn of(
        g: &Graph,
        logits: &Tensor,
        n: u64,
        next: Option<&NextTokens>,
    ) -> Result<Self> {
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
        let highest = g.get_rows(&column(logits)?, &ids)?;
        let best = next.map(|next| best(g, (&ids, &highest), n_vocab, next));
        let best = best.transpose()?;
        Ok(Self {
            shares: g.get_rows(&column(&shares)?, &ids)?,
            logits: highest,
            ids,
            best,
        })
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> + Clone {
        [&self.ids, &self.logits, &self.shares]
            .into_iter()
            .chain(&self.best)
    }
}

/// The best token of each result, in the order of the rows of the pass: i32 `[n_tokens]`.
fn best(
    g: &Graph,
    (ids, logits): (&Tensor, &Tensor),
    n_vocab: u64,
    next: &NextTokens,
) -> Result<Tensor> {
    let [n_top, n_rows, ..] = ids.shape();
    let banned = g.times_listed(ids, &next.banned)?;
    let logits = g.sub(logits, &g.scale(&banned, 1e30)?)?;
    // Vulkan's selection counts neither infinity nor what is no number, and its places among these have no meaning.
    let logits = g.clamp(&logits, f32::MIN, f32::MAX)?;
    let places = g.highest(&g.reshape(&logits, [n_top, n_rows, 1, 1])?, 1)?;
    let best = g.get_rows(&g.reshape(ids, [1, n_top, n_rows, 1])?, &places)?;
    let (best, _) = g.ids_below(&g.reshape(&best, [1, n_rows, 1, 1])?, n_vocab)?;
    let of_rows = g.get_rows(&best, &next.results)?;
    g.reshape(&of_rows, [next.results.elements(), 1, 1, 1])
}

/// The highest logits of the rows of the last pass.
pub(super) struct TopRows {
    /// For all rows the tokens, as the bits of numbers, then the logits, then the probabilities; then the best tokens.
    numbers: Readback,
    /// For each row the logarithm of the sum of e^logit over all tokens.
    log_sums: Vec<f64>,
    n_top: usize,
    n_rows: usize,
    n_vocab: usize,
}

impl TopRows {
    pub(super) fn new(numbers: Readback, n_vocab: usize) -> Self {
        Self {
            numbers,
            log_sums: Vec::new(),
            n_top: 0,
            n_rows: 0,
            n_vocab,
        }
    }

    /// Begins to read the rows of a pass.
    pub(super) fn begin_read(&mut self, executor: &Executor, tensors: &TopTensors) -> Result<()> {
        let [n_top, n_rows, ..] = tensors.ids.shape();
        (self.n_top, self.n_rows) = (n_top as usize, n_rows as usize);
        self.log_sums.clear();
        executor.begin_read(&mut self.numbers, tensors.tensors())
    }

    /// Whether these rows can be waited for while devices go on.
    pub(super) fn end_alone(&self) -> bool {
        self.numbers.ends_alone()
    }

    /// Whether no pass was launched since their reading began.
    pub(super) fn is_last(&self, executor: &Executor) -> bool {
        self.numbers.is_last(executor)
    }

    /// Waits for the rows whose reading has begun.
    pub(super) fn end_read(&mut self, executor: &Executor) -> Result<()> {
        executor.end_read(&mut self.numbers)?;
        let (logits, shares) = (self.part(1), self.part(2));
        let rows = logits.chunks_exact(self.n_top.max(1));
        let rows = rows.zip(shares.chunks_exact(self.n_top.max(1)));
        self.log_sums = rows
            .map(|(logits, shares)| log_sum(logits, shares))
            .collect();
        Ok(())
    }

    /// The ids, logits or probabilities of all rows.
    fn part(&self, at: usize) -> &[f32] {
        let n = self.n_top * self.n_rows;
        self.numbers
            .numbers()
            .get(at * n..(at + 1) * n)
            .unwrap_or(&[])
    }

    /// The best token of each row of the pass, as its device has found it; empty if devices make no tokens of the next pass.
    pub(super) fn best(&self) -> &[u32] {
        let all = self.numbers.numbers();
        bytemuck::cast_slice(all.get(3 * self.n_top * self.n_rows..).unwrap_or(&[]))
    }

    /// Whether no row has logits that are NaN or plus infinity.
    pub(super) fn are_finite(&self) -> bool {
        self.log_sums.iter().all(|sum| sum.is_finite())
    }

    /// A row. If one of its logits is no number, the sum is none either.
    pub(super) fn row(&self, at: usize) -> TopLogits<'_> {
        let of_row = |part: usize| {
            let mut rows = self.part(part).chunks_exact(self.n_top.max(1));
            rows.nth(at).unwrap_or(&[])
        };
        TopLogits {
            n_vocab: self.n_vocab,
            ids: bytemuck::cast_slice(of_row(0)),
            logits: of_row(1),
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
