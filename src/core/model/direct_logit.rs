//! The logit of a token as a linear map of the final hidden state, and the contributions of attention heads to it.
//! A norm divides by a number that depends on its input. If that number is taken from one row, the rest is linear.

use crate::arch::ResolvedOption;
use crate::plan::{NormUse, Unit};

use super::error::{Error, Result};
use super::lifecycle::Model;
use super::points::HEADS_MATRIX;
use super::stage;

/// Maximum number of elements of a matrix that are read at once.
const MAX_NUMBERS: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormDivisor {
    /// Whether the mean is subtracted first.
    is_layer: bool,
    eps: f64,
}

impl NormDivisor {
    /// The divisor for the row `x`.
    pub fn of(&self, x: &[f32]) -> f64 {
        let n = x.len() as f64;
        let mean = match self.is_layer {
            true => x.iter().map(|e| f64::from(*e)).sum::<f64>() / n,
            false => 0.0,
        };
        let squares = x.iter().map(|e| (f64::from(*e) - mean).powi(2));
        (squares.sum::<f64>() / n + self.eps).sqrt()
    }
}

/// A logit is the product of `direction` and the hidden state, divided by the divisor of the final norm, plus
/// `constant`. Softcaps are not part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectLogit {
    /// The direction `[n_embd]`.
    pub direction: Vec<f64>,
    /// The part that no hidden state contributes to: the biases of norm and output head.
    pub constant: f64,
    /// The divisor of the final norm, if there is one.
    pub divisor: Option<NormDivisor>,
}

impl DirectLogit {
    /// The divisor for the hidden state `x` before the final norm.
    pub fn divisor_of(&self, x: &[f32]) -> f64 {
        self.divisor.map_or(1.0, |divisor| divisor.of(x))
    }
}

/// The contribution of heads to a product with the hidden state: the product of `direction` and their results,
/// divided by the divisors of the norms after them.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectHeads {
    /// The direction `[d * heads]`.
    pub direction: Vec<f64>,
    /// The divisors of the norms, in the order of their points.
    pub divisors: Vec<NormDivisor>,
}

impl Model {
    /// The logit of a token as a linear map. Adapters are not part of it.
    ///
    /// # Errors
    /// The model has no output head, the token is unknown, or a computation fails.
    pub fn direct_logit(&mut self, token: u32) -> Result<DirectLogit> {
        let head = self.plan.head.clone();
        let unit = head.as_ref().and_then(|head| head.unit.as_ref());
        let Some(unit) = unit.filter(|_| u64::from(token) < self.plan.n_vocab) else {
            return Err(Error::Internal(format!("token {token} has no logit")));
        };
        if unit.weight("dense").is_some() {
            return Err(Error::Internal("the logits are no linear map".into()));
        }
        let row = self.weight_rows((unit, "output"), token as usize, 1)?;
        let bias = match unit.weight("output.bias") {
            Some(_) => f64::from(self.weight_rows((unit, "output.bias"), token as usize, 1)?[0]),
            None => 0.0,
        };
        let scale = match unit.option("scale") {
            Some(ResolvedOption::Float(scale)) => *scale,
            _ => 1.0,
        };
        let mut direction: Vec<f64> = row.iter().map(|e| f64::from(*e) * scale).collect();
        let mut constant = bias * scale;
        let norm = head.as_ref().and_then(|head| head.norm.as_ref());
        let divisor = match norm {
            Some(norm) => Some(self.through(norm, &mut direction, &mut constant)?),
            None => None,
        };
        Ok(DirectLogit {
            direction,
            constant,
            divisor,
        })
    }

    /// The contribution of the heads at index `at` of [`Points::head_sums`](super::Points::head_sums) to a product
    /// of `direction [n_embd]` and the hidden state after their slot. Adapters are not part of it.
    ///
    /// # Errors
    /// There are no heads at this index, or a computation fails.
    pub fn direct_heads(&mut self, at: usize, direction: &[f64]) -> Result<DirectHeads> {
        let sum = self.points.head_sums.get(at);
        let [layer, slot, branch] = sum
            .map(|sum| sum.at)
            .ok_or_else(|| Error::Internal(format!("no heads {at}")))?;
        let slot = &self.plan.layers[layer].slots[slot];
        let (scale, post) = (slot.scale, slot.post.clone());
        let branch = slot.branches[branch].clone();
        let mut along = direction.to_vec();
        let mut divisors = Vec::new();
        for (factor, norm) in [(scale, post), (branch.factor, branch.post)] {
            along.iter_mut().for_each(|e| *e *= factor.unwrap_or(1.0));
            if let Some(norm) = norm {
                // Biases belong to no head.
                divisors.push(self.through(&norm, &mut along, &mut 0.0)?);
            }
        }
        divisors.reverse();
        let place = (&branch.block, HEADS_MATRIX);
        let mut out: Vec<f64> = Vec::new();
        let mut from = 0;
        while from < along.len() {
            let at_once = (MAX_NUMBERS / out.len().max(1)).clamp(1, along.len() - from);
            // The first row gives the length of the rows.
            let n = if out.is_empty() { 1 } else { at_once };
            let rows = self.weight_rows(place, from, n)?;
            let width = rows.len() / n;
            out.resize(width, 0.0);
            for (row, by) in rows.chunks_exact(width.max(1)).zip(&along[from..]) {
                for (sum, e) in out.iter_mut().zip(row) {
                    *sum += by * f64::from(*e);
                }
            }
            from += n;
        }
        Ok(DirectHeads {
            direction: out,
            divisors,
        })
    }

    /// Turns a direction for the result of a norm into one for its input, up to the divisor. Adds the bias to
    /// `constant`.
    fn through(
        &mut self,
        norm: &NormUse,
        direction: &mut [f64],
        constant: &mut f64,
    ) -> Result<NormDivisor> {
        let own = &self.plan.norms[norm.norm];
        let divisor = NormDivisor {
            is_layer: own.option("kind") == Some(&ResolvedOption::Choice("layer")),
            eps: match own.option("eps") {
                Some(ResolvedOption::Float(eps)) => *eps,
                _ => 0.0,
            },
        };
        let [weight, bias] = self.norm_weights(norm, divisor.eps)?;
        for ((e, weight), bias) in direction.iter_mut().zip(weight).zip(bias) {
            *constant += *e * bias;
            *e *= weight;
        }
        if divisor.is_layer {
            // Subtracting the mean from every state is the same as subtracting it from the direction.
            let mean = direction.iter().sum::<f64>() / direction.len() as f64;
            direction.iter_mut().for_each(|e| *e -= mean);
        }
        Ok(divisor)
    }

    /// `n` rows of a weight, or `n` numbers of a bias, from index `from` on.
    fn weight_rows(&mut self, place: (&Unit, &str), from: usize, n: usize) -> Result<Vec<f32>> {
        let ((graph, ends), places) = stage::build_rows(&self.graph_parts(), place, n)?;
        self.graphs.load(graph)?;
        let executor = &mut self.graphs.executor;
        let wanted: Vec<i32> = (from..from + n).map(|at| at as i32).collect();
        executor.write_indices(&places, &wanted)?;
        executor.run()?;
        let mut rows = vec![0.0; ends.result.elements() as usize];
        executor.read(&ends.result, &mut rows)?;
        Ok(rows)
    }

    /// Weight and bias of a norm, from its results for a state of mean 0 and mean square 1 and for the opposite
    /// state.
    fn norm_weights(&mut self, norm: &NormUse, eps: f64) -> Result<[Vec<f64>; 2]> {
        let n = self.plan.n_embd as usize;
        if !n.is_multiple_of(2) {
            return Err(Error::Internal(format!("hidden states of {n} numbers")));
        }
        let (graph, ends) = stage::build_norm(&self.graph_parts(), norm, 2)?;
        let sign = |i: usize| if i.is_multiple_of(2) { 1.0f32 } else { -1.0 };
        let probes: Vec<f32> = (0..n).map(sign).chain((0..n).map(|i| -sign(i))).collect();
        self.graphs.load(graph)?;
        let executor = &mut self.graphs.executor;
        executor.write(&ends.hidden, &probes)?;
        executor.run()?;
        let mut normed = vec![0.0f32; 2 * n];
        executor.read(&ends.result, &mut normed)?;
        let (plus, minus) = normed.split_at(n);
        let pairs = || {
            plus.iter()
                .zip(minus)
                .map(|(a, b)| (f64::from(*a), f64::from(*b)))
        };
        let by = (1.0 + eps).sqrt();
        let weight = pairs()
            .enumerate()
            .map(|(i, (a, b))| (a - b) / 2.0 * f64::from(sign(i)) * by);
        let offset = pairs().map(|(a, b)| (a + b) / 2.0);
        Ok([weight.collect(), offset.collect()])
    }
}
