//! The weights of experts by the sparse mixer (Liu, Gao, Chen 2024): each pick gets its weight separately, compared
//! with the remaining logits near it. The weights are not renormalised.
//!
//! ```text
//! for each pick, m the largest logit left:
//!   near = the j left with (m - s_j) / max(|s_j|, m) <= 2 * jitter
//!   w    = 1 / sum over near of exp(s_j - m)
//!   then the pick is left no more
//! ```
//! The mixture of experts calls this and picks by the same logits.

use super::refused;
use lab_base::ggml::{Graph, Result, ScoreOptions, Tensor, Unary};

/// The addend that takes a logit out of the softmax.
const OUT: f32 = -1e30;

/// The weights `[used, n_tokens]` of the largest logits, in descending order, of `logits [experts, n_tokens]`.
pub(super) fn weights(g: &Graph, logits: &Tensor, used: u64, jitter: f32) -> Result<Tensor> {
    let plain = ScoreOptions {
        scale: 1.0,
        softcap: 0.0,
        max_bias: 0.0,
        sinks: None,
    };
    let (mut left, mut weights) = (logits.clone(), None);
    for _ in 0..used {
        let best = g.top_k(&left, 1)?;
        let far = far(g, &left, &pick(g, &left, &best)?, jitter)?;
        let near = g.add(&left, &g.scale(&far, OUT)?)?;
        let weight = pick(g, &g.soft_max(&near, None, &plain)?, &best)?;
        left = without(g, &left, &best)?;
        weights = Some(match weights {
            None => weight,
            Some(before) => g.concat(&before, &weight, 0)?,
        });
    }
    weights.ok_or_else(|| refused("sparse_mixer", "nothing is picked"))
}

/// The element of each row of `x [n, n_tokens]` at `ids [1, n_tokens]` -> `[1, n_tokens]`.
fn pick(g: &Graph, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let [n, n_tokens, ..] = x.shape();
    let table = g.reshape(x, [1, n, n_tokens, 1])?;
    g.reshape(&g.get_rows(&table, ids)?, [1, n_tokens, 1, 1])
}

/// 1 where an element is too far below the largest, else 0.
fn far(g: &Graph, x: &Tensor, largest: &Tensor, jitter: f32) -> Result<Tensor> {
    // max(|x|, m) = m + relu(|x| - m)
    let above = g.sub(&g.unary(x, Unary::Abs)?, largest)?;
    let unit = g.add(&g.unary(&above, Unary::Relu)?, largest)?;
    let gap = g.div(&g.sub(x, largest)?, &unit)?;
    g.unary(&g.affine(&gap, -1.0, -2.0 * jitter)?, Unary::Step)
}

/// `x` with [`OUT`] added to the elements at `ids [1, n_tokens]`.
fn without(g: &Graph, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let [n, n_tokens, ..] = x.shape();
    let table = g.reshape(x, [1, n, n_tokens, 1])?;
    let one = g.view(&table, [1, 1, n_tokens, 1], [4, 4 * n as usize, 0], 0)?;
    let out = g.fill(&g.cont(&one)?, OUT)?;
    let out = g.put_rows(&g.fill(&table, 0.0)?, &out, ids)?;
    g.add(x, &g.reshape(&out, x.shape())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_base::ggml::Executor;
    use lab_base::weights::TensorType;

    /// The formula, one row at a time.
    fn naive(logits: &[f32], used: usize, jitter: f32) -> Vec<f32> {
        let mut left: Vec<usize> = (0..logits.len()).collect();
        let mut weights = Vec::new();
        for _ in 0..used {
            let value = |j: &usize| f64::from(logits[*j]);
            let best = *left
                .iter()
                .max_by(|a, b| value(a).total_cmp(&value(b)))
                .expect("some are left");
            let m = value(&best);
            let is_near = |j: &&usize| {
                let s = value(j);
                (m - s) / s.abs().max(m) <= 2.0 * f64::from(jitter)
            };
            let sum: f64 = left
                .iter()
                .filter(is_near)
                .map(|j| (value(j) - m).exp())
                .sum();
            weights.push((1.0 / sum) as f32);
            left.retain(|j| *j != best);
        }
        weights
    }

    #[test]
    fn every_pick_is_weighed_against_those_near_it() {
        const N: usize = 6;
        let mut rows: Vec<[f32; N]> = vec![
            [1.0, 0.995, 0.985, 0.97, -3.0, 0.5],
            [-1.0, -1.01, -1.03, -5.0, -1.5, -2.0],
            [0.0, 0.0, 1e-9, -1e-9, 3.0, -3.0],
            [100.0, 99.0, 98.5, 97.0, 0.0, -100.0],
            [-0.5, 0.25, 0.249, 0.2, 0.251, -0.25],
        ];
        let mut seed = 1u32;
        for _ in 0..40 {
            rows.push(std::array::from_fn(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 8) as f32 / 8_388_608.0 - 1.0
            }));
        }
        for jitter in [0.0, 0.01, 0.1, 0.6] {
            for used in [1, 2] {
                let mut g = Graph::new(128, 8).expect("a small graph");
                let shape = [N as u64, rows.len() as u64];
                let logits = g
                    .input("logits", TensorType::F32, &shape)
                    .expect("a matrix");
                let weights = weights(&g, &logits, used, jitter).expect("shapes fit");
                assert_eq!(weights.shape(), [used, rows.len() as u64, 1, 1]);
                g.output(&weights).expect("of this graph");
                let mut executor = Executor::new(&[], 1, 256).expect("the processor");
                executor.load(g).expect("it fits");
                executor
                    .write(&logits, rows.as_flattened())
                    .expect("as many values");
                executor.run().expect("it runs");
                let mut found = vec![0.0; rows.len() * used as usize];
                executor
                    .read(&weights, &mut found)
                    .expect("the result is there");
                for (row, found) in rows.iter().zip(found.chunks(used as usize)) {
                    let expected = naive(row, used as usize, jitter);
                    for (a, b) in found.iter().zip(&expected) {
                        assert!((a - b).abs() < 1e-6, "{row:?}: {found:?}, {expected:?}");
                    }
                }
            }
        }
    }
}
