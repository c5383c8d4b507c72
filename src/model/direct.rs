//! The logit of a token as a linear map of the final hidden state: the final norm divides by a number that depends on the
//! state, and where that is taken from one state, the rest is linear.

use crate::arch::Resolved;

use super::error::Error;
use super::lifecycle::Model;
use super::stage;

/// A logit is the sum of the products of `direction` and the hidden state, and `constant`. Softcaps are not part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectLogit {
    /// `[n_embd]`.
    pub direction: Vec<f64>,
    /// What no hidden state has a part in: the biases of norm and head.
    pub constant: f64,
}

impl Model {
    /// The logit of a token as a linear map, with the scale (and the mean's share) of the final norm as of the hidden state
    /// `x [n_embd]` before it. Adapters are not part of it.
    ///
    /// # Errors
    /// A model without a head, a state of another width, or a failed computation.
    pub fn direct_logit(&mut self, token: u32, x: &[f32]) -> Result<DirectLogit, Error> {
        let n = self.plan.n_embd as usize;
        if x.len() != n || !n.is_multiple_of(2) || u64::from(token) >= self.plan.n_vocab {
            let message = format!(
                "token {token}, a state of {} numbers, expected {n}",
                x.len()
            );
            return Err(Error::Internal(message));
        }
        let missing = || Error::Internal("there is no head".into());
        let row = self.output_row(token, false, n)?.ok_or_else(missing)?;
        let bias = self
            .output_row(token, true, 1)?
            .map_or(0.0, |bias| f64::from(bias[0]));
        let head = self.plan.head.as_ref();
        let scale = match head.and_then(|head| head.unit.as_ref()?.option("scale")) {
            Some(Resolved::Float(scale)) => *scale,
            _ => 1.0,
        };
        let norm = head.and_then(|head| head.norm.as_ref());
        let norm = norm.map(|norm| &self.plan.norms[norm.norm]);
        let is_layer = norm.is_some_and(|n| n.option("kind") == Some(&Resolved::Choice("layer")));
        let eps = match norm.and_then(|norm| norm.option("eps")) {
            Some(Resolved::Float(eps)) => *eps,
            _ => 0.0,
        };
        let mut direction: Vec<f64> = row.iter().map(|e| f64::from(*e) * scale).collect();
        let mut constant = bias * scale;
        let Some([weight, offset]) = self.norm_weights(eps)? else {
            return Ok(DirectLogit {
                direction,
                constant,
            });
        };
        for ((e, weight), offset) in direction.iter_mut().zip(weight).zip(offset) {
            constant += *e * offset;
            *e *= weight;
        }
        let mean_of = |of: &dyn Fn(usize) -> f64| (0..n).map(of).sum::<f64>() / n as f64;
        let mean = if is_layer {
            mean_of(&|i| f64::from(x[i]))
        } else {
            0.0
        };
        let by = (mean_of(&|i| (f64::from(x[i]) - mean).powi(2)) + eps).sqrt();
        // To take the mean out of every state is to take it out of what it is multiplied by.
        let share = if is_layer {
            mean_of(&|i| direction[i])
        } else {
            0.0
        };
        direction.iter_mut().for_each(|e| *e = (*e - share) / by);
        Ok(DirectLogit {
            direction,
            constant,
        })
    }

    /// The row of a token of the output matrix, or its bias; none if the model has no such weight.
    fn output_row(
        &mut self,
        token: u32,
        is_bias: bool,
        n: usize,
    ) -> Result<Option<Vec<f32>>, Error> {
        let Some(((graph, ends), place)) = stage::build_row(&self.sources(), is_bias)? else {
            return Ok(None);
        };
        self.graphs.load(graph)?;
        let executor = &mut self.graphs.executor;
        executor.write_indices(&place, &[token as i32])?;
        executor.run()?;
        let mut row = vec![0.0; n];
        executor.read(&ends.result, &mut row)?;
        Ok(Some(row))
    }

    /// Weight and bias of the final norm, from what it makes of a state of mean 0 and mean square 1 and of its opposite; none
    /// if there is no norm.
    fn norm_weights(&mut self, eps: f64) -> Result<Option<[Vec<f64>; 2]>, Error> {
        let n = self.plan.n_embd as usize;
        let Some((graph, ends)) = stage::build_norm(&self.sources(), 2)? else {
            return Ok(None);
        };
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
        Ok(Some([
            weight.collect(),
            pairs().map(|(a, b)| (a + b) / 2.0).collect(),
        ]))
    }
}
