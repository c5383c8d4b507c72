//! Matrix products.

use super::super::error::Error;
use super::array::{PlainArray, PlainNode, dot};

/// `a [k, n, ..] . b [k, m, ..] -> [n, m, ..]`; a matrix of `a` may be used for several of `b`.
pub(super) fn mul_mat(node: &PlainNode) -> Result<PlainArray, Error> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let (per_j, per_k) = (b.shape[2] / a.shape[2], b.shape[3] / a.shape[3]);
    let mut out = PlainArray::zeros(node.shape());
    for at @ [_, j, k] in out.rows() {
        for (i, value) in out.row_mut(at).iter_mut().enumerate() {
            *value = dot(a.row([i, j / per_j, k / per_k]), b.row(at));
        }
    }
    Ok(out)
}

/// `a [k, n, experts]`, `b [k, 1 or used, m]`, `ids [used, m]` -> `[n, used, m]`.
pub(super) fn mul_mat_id(node: &PlainNode) -> Result<PlainArray, Error> {
    let (a, b, ids) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let mut out = PlainArray::zeros(node.shape());
    for at @ [used, token, _] in out.rows() {
        let expert = ids.index(used, [token, 0, 0]);
        let x = b.row([used % b.shape[1], token, 0]);
        for (i, value) in out.row_mut(at).iter_mut().enumerate() {
            *value = dot(a.row([i, expert, 0]), x);
        }
    }
    Ok(out)
}

/// `a [n, used, m]` plus the columns of `b [n, experts]` that `ids [used, m]` selects.
pub(super) fn add_id(node: &PlainNode) -> Result<PlainArray, Error> {
    let (mut a, b, ids) = (node.input(0)?, node.input(1)?, node.input(2)?);
    for at @ [used, token, _] in a.rows() {
        let column = b.row([ids.index(used, [token, 0, 0]), 0, 0]);
        for (value, more) in a.row_mut(at).iter_mut().zip(column) {
            *value += more;
        }
    }
    Ok(a)
}

/// Matrices `[to, from, n]`: the softmax of the factors after the first `2 * n_states`, normalised over `from`, then in
/// turn over `to` and `from`.
pub(super) fn sinkhorn(node: &PlainNode) -> Result<PlainArray, Error> {
    let [mixes, scale, base] = node.inputs([0, 1, 2])?;
    let (eps, rounds) = (node.param(0), node.int(1));
    let mut out = PlainArray::zeros(node.shape());
    let [n, ..] = out.shape;
    for token in 0..mixes.shape[1] {
        let factor = |to: usize, from: usize| {
            let at = 2 * n + to + n * from;
            mixes.at(at, [token, 0, 0]) * scale.values[2] + base.values[at]
        };
        let mut all: Vec<Vec<f64>> = Vec::new();
        for from in 0..n {
            let row: Vec<f64> = (0..n).map(|to| factor(to, from)).collect();
            let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = row.iter().map(|x| (x - most).exp()).sum();
            all.push(row.iter().map(|x| (x - most).exp() / total + eps).collect());
        }
        for round in 0..rounds {
            if round > 0 {
                for row in &mut all {
                    let total = row.iter().sum::<f64>() + eps;
                    row.iter_mut().for_each(|x| *x /= total);
                }
            }
            for to in 0..n {
                let total = all.iter().map(|row| row[to]).sum::<f64>() + eps;
                all.iter_mut().for_each(|row| row[to] /= total);
            }
        }
        for (from, row) in all.iter().enumerate() {
            out.row_mut([from, token, 0]).copy_from_slice(row);
        }
    }
    Ok(out)
}
