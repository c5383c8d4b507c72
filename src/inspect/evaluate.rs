//! How well a model predicts a text, and how far its predictions are from those of another: perplexity, divergence, agreement.
//!
//! A text is read in windows. The second half of each window is scored, so that every scored token has a context of at least half
//! a window, as llama-perplexity does. Errors are standard errors over the scored tokens as if these were independent.

use serde::Serialize;

use lab_base::util::distances::{kl_divergence, likeliest, log_probabilities};
use lab_core::model::{self, Batch, Model};

/// Tokens of a pass: what two models need for their logits is bounded by this.
pub const PASS: usize = 64;

/// A number with its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub value: f64,
    /// The standard error.
    pub error: f64,
}

impl Measured {
    /// The mean of values.
    pub fn mean(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let value = values.iter().sum::<f64>() / n;
        let squares = values.iter().map(|v| (v - value).powi(2)).sum::<f64>();
        let error = (squares / (n - 1.0).max(1.0) / n).sqrt();
        Self { value, error }
    }

    /// A quantile of values, and half the distance of the ranks one standard deviation below and above its own.
    pub fn quantile(values: &[f64], share: f64) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len() as f64;
        let at = |rank: f64| sorted[(rank.max(0.0) as usize).min(sorted.len() - 1)];
        let (rank, spread) = (share * (n - 1.0), (n * share * (1.0 - share)).sqrt());
        Self {
            value: at(rank.round()),
            error: (at((rank + spread).ceil()) - at((rank - spread).floor())) / 2.0,
        }
    }
}

/// What a text says of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Scored tokens.
    pub tokens: usize,
    pub perplexity: Measured,
    /// In comparison with another model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Divergence>,
}

/// How far the predictions of a model are from those of another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// Perplexity of the other model.
    pub perplexity: Measured,
    /// Mean Kullback-Leibler divergence from the other model's distribution, in nats.
    pub kl_mean: Measured,
    /// Its 99th percentile.
    pub kl_99: Measured,
    pub kl_max: f64,
    /// Share of the tokens with the same likeliest next token.
    pub same_top: Measured,
}

/// The windows of a text: `size` tokens each, of which the first is BOS if there is one. A text shorter than a window is one
/// window; of a longer one the rest is left out.
pub fn windows(tokens: &[u32], size: usize, bos: Option<u32>) -> Vec<Vec<u32>> {
    let n_own = size - usize::from(bos.is_some());
    let n_own = n_own.min(tokens.len()).max(1);
    let whole = tokens.chunks_exact(n_own);
    whole
        .map(|own| bos.into_iter().chain(own.iter().copied()).collect())
        .collect()
}

/// The logits of the scored positions of windows, row by row.
#[derive(Clone, Debug, Default)]
pub struct ScoredLogits {
    logits: Vec<f32>,
    width: usize,
}

impl ScoredLogits {
    pub fn bytes_for(windows: &[Vec<u32>], n_vocab: u64) -> u64 {
        let scored: usize = windows
            .iter()
            .map(|window| window.len() - first_scored(window))
            .sum();
        scored as u64 * n_vocab * 4
    }

    /// Computes them.
    ///
    /// # Errors
    /// A pass fails.
    pub fn of(model: &mut Model, windows: &[Vec<u32>]) -> Result<Self, model::Error> {
        let mut rows = Self {
            width: model.row_width(),
            ..Self::default()
        };
        read(model, windows, &mut |logits, _| {
            rows.logits.extend_from_slice(logits)
        })?;
        Ok(rows)
    }

    fn row(&self, at: usize) -> &[f32] {
        &self.logits[at * self.width..][..self.width]
    }
}

/// The first position of a window whose prediction is scored.
fn first_scored(window: &[u32]) -> usize {
    (window.len() / 2).min(window.len() - 1)
}

/// Reads windows one after another: `each` gets the logits of each scored position and the token that follows, if one does.
fn read(
    model: &mut Model,
    windows: &[Vec<u32>],
    each: &mut dyn FnMut(&[f32], Option<u32>),
) -> Result<(), model::Error> {
    let width = model.row_width();
    let mut batch = Batch::default();
    for window in windows {
        model.forget(0, 0);
        let first = first_scored(window);
        for start in (0..window.len()).step_by(PASS) {
            batch.clear();
            let end = (start + PASS).min(window.len());
            for (at, token) in window.iter().enumerate().take(end).skip(start) {
                batch.push(*token, 0, at as u32, at >= first);
            }
            let logits = model.forward(&batch)?;
            let scored = (start.max(first)..end).zip(logits.chunks(width));
            for (at, row) in scored {
                each(row, window.get(at + 1).copied());
            }
        }
    }
    model.forget(0, 0);
    Ok(())
}

/// Evaluates a model on windows, against the logits of another model if they are given.
///
/// # Errors
/// A pass fails.
pub fn evaluate(
    model: &mut Model,
    windows: &[Vec<u32>],
    against: Option<&ScoredLogits>,
) -> Result<Evaluation, model::Error> {
    let mut scores = Scores::default();
    let mut at = 0;
    read(model, windows, &mut |row, next| {
        scores.add(row, next, against.map(|rows| rows.row(at)));
        at += 1;
    })?;
    Ok(scores.evaluation())
}

/// Evaluates a model against another pass by pass, for logits that are too many to be kept.
///
/// # Errors
/// A pass fails.
pub fn evaluate_beside(
    model: &mut Model,
    other: &mut Model,
    windows: &[Vec<u32>],
) -> Result<Evaluation, model::Error> {
    let mut scores = Scores::default();
    for window in windows {
        let window = std::slice::from_ref(window);
        let rows = ScoredLogits::of(other, window)?;
        let mut at = 0;
        read(model, window, &mut |row, next| {
            scores.add(row, next, Some(rows.row(at)));
            at += 1;
        })?;
    }
    Ok(scores.evaluation())
}

/// Scores of the tokens so far.
#[derive(Default)]
struct Scores {
    /// Negative log-probabilities of the tokens that followed, of the model and of the other one.
    losses: [Vec<f64>; 2],
    kl: Vec<f64>,
    same_top: Vec<f64>,
}

impl Scores {
    fn add(&mut self, row: &[f32], next: Option<u32>, other: Option<&[f32]>) {
        for (losses, row) in self.losses.iter_mut().zip([Some(row), other]) {
            if let (Some(row), Some(next)) = (row, next) {
                losses.extend(log_probabilities(row, [next].into_iter()).map(|v| -v));
            }
        }
        if let Some(other) = other {
            self.kl.push(kl_divergence(other, row));
            let is_same = likeliest(other) == likeliest(row);
            self.same_top.push(f64::from(u8::from(is_same)));
        }
    }

    fn evaluation(&self) -> Evaluation {
        let perplexity = |losses: &[f64]| {
            let mean = Measured::mean(losses);
            let value = mean.value.exp();
            Measured {
                value,
                error: value * mean.error,
            }
        };
        let against = (!self.kl.is_empty()).then(|| Divergence {
            perplexity: perplexity(&self.losses[1]),
            kl_mean: Measured::mean(&self.kl),
            kl_99: Measured::quantile(&self.kl, 0.99),
            kl_max: self.kl.iter().copied().fold(0.0, f64::max),
            same_top: Measured::mean(&self.same_top),
        });
        Evaluation {
            tokens: self.losses[0].len(),
            perplexity: perplexity(&self.losses[0]),
            against,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_into_windows_that_begin_with_bos() {
        let tokens: Vec<u32> = (10..20).collect();
        assert_eq!(
            windows(&tokens, 5, None),
            [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]
        );
        assert_eq!(
            windows(&tokens, 5, Some(1)),
            [[1, 10, 11, 12, 13], [1, 14, 15, 16, 17]]
        );
        assert_eq!(windows(&tokens[..2], 5, Some(1)), [[1, 10, 11]]);
        assert!(windows(&[], 5, Some(1)).is_empty());
    }

    #[test]
    fn errors_are_those_of_a_mean_and_of_a_rank() {
        let mean = Measured::mean(&[1.0, 3.0]);
        assert_eq!((mean.value, mean.error), (2.0, 1.0));
        let values: Vec<f64> = (0..1001).map(f64::from).collect();
        let high = Measured::quantile(&values, 0.99);
        assert_eq!(high.value, 990.0);
        // The rank has a standard deviation of the root of 1001 * 0.99 * 0.01, which is 3.15.
        assert!((3.0..=4.0).contains(&high.error), "{}", high.error);
    }

    #[test]
    fn perplexity_and_divergence_are_those_of_the_formulas() {
        let mut scores = Scores::default();
        let (p, q) = (
            [0.5f32.ln(), 0.25f32.ln(), 0.25f32.ln()],
            [0.25f32.ln(), 0.5f32.ln(), 0.25f32.ln()],
        );
        scores.add(&q, Some(1), Some(&p));
        scores.add(&p, Some(0), Some(&p));
        let found = scores.evaluation();
        assert!((found.perplexity.value - 2.0).abs() < 1e-6);
        let against = found.against.expect("another model");
        // The other model gave the two tokens 1/4 and 1/2.
        assert!((against.perplexity.value - 8.0f64.sqrt()).abs() < 1e-6);
        let kl = 0.5 * 2.0f64.ln() + 0.25 * 0.5f64.ln();
        assert!((against.kl_mean.value - kl / 2.0).abs() < 1e-6);
        assert!((against.kl_max - kl).abs() < 1e-6);
        assert_eq!(against.same_top.value, 0.5);
    }
}
