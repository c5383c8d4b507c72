//! How much the distributions of the next token differ between two computations.

use crate::model::Value;

/// Kullback-Leibler divergences of B's distributions from A's, in natural logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// Positions compared.
    pub positions: usize,
    /// Mean of the positions.
    pub mean: f64,
    /// The largest.
    pub max: f64,
    /// Positions at which both find the same token likeliest.
    pub same_top: usize,
}

/// The path of what the head projects to.
const LOGITS: &str = "head.logits";

/// The divergence of the logits of `b` from those of `a`, position by position; `None` if a side
/// has none or they are of another shape.
pub fn divergence(a: &[Value], b: &[Value]) -> Option<Divergence> {
    let logits = |side: &[Value]| side.iter().position(|value| value.path == LOGITS);
    let (a, b) = (&a[logits(a)?], &b[logits(b)?]);
    let width = usize::try_from(*a.shape.first()?).ok().filter(|n| *n > 0)?;
    if a.shape != b.shape || a.elements.len() != b.elements.len() || a.elements.is_empty() {
        return None;
    }
    let rows = a.elements.chunks_exact(width);
    let rows = rows.zip(b.elements.chunks_exact(width));
    let each: Vec<f64> = rows.clone().map(|(p, q)| of_rows(p, q)).collect();
    Some(Divergence {
        positions: each.len(),
        mean: each.iter().sum::<f64>() / each.len() as f64,
        max: each.iter().copied().fold(0.0, f64::max),
        same_top: rows.filter(|(p, q)| top(p) == top(q)).count(),
    })
}

/// `sum of p ln(p / q)` of the distributions that two rows of logits stand for.
fn of_rows(p: &[f32], q: &[f32]) -> f64 {
    let (p_total, q_total) = (log_total(p), log_total(q));
    let terms = p.iter().zip(q).map(|(p, q)| {
        let (log_p, log_q) = (f64::from(*p) - p_total, f64::from(*q) - q_total);
        // A token that cannot come adds nothing, whatever the other side says.
        if log_p == f64::NEG_INFINITY {
            0.0
        } else {
            log_p.exp() * (log_p - log_q)
        }
    });
    let sum: f64 = terms.sum();
    if sum.is_nan() {
        // What is no number is the worst of all.
        return f64::INFINITY;
    }
    // Rounding can leave equal rows a little below zero.
    sum.max(0.0)
}

/// `ln of the sum of exp(x)`.
fn log_total(row: &[f32]) -> f64 {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let most = f64::from(most);
    most + row
        .iter()
        .map(|x| (f64::from(*x) - most).exp())
        .sum::<f64>()
        .ln()
}

fn top(row: &[f32]) -> Option<usize> {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(rows: &[&[f32]]) -> Vec<Value> {
        vec![Value {
            path: LOGITS.into(),
            shape: vec![rows[0].len() as u64, rows.len() as u64],
            is_per_token: true,
            elements: rows.concat(),
        }]
    }

    /// The textbook's way: probabilities first.
    fn plainly(p: &[f64], q: &[f64]) -> f64 {
        let share = |row: &[f64]| -> Vec<f64> {
            let total: f64 = row.iter().map(|x| x.exp()).sum();
            row.iter().map(|x| x.exp() / total).collect()
        };
        let pairs = share(p).into_iter().zip(share(q));
        pairs.map(|(p, q)| p * (p / q).ln()).sum()
    }

    #[test]
    fn divergences_are_the_textbook_ones() {
        let (p, q) = ([1.0f32, 2.0, -0.5, 0.25], [0.5f32, 2.5, 0.0, 0.25]);
        let wide = |row: &[f32]| row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let expected = plainly(&wide(&p), &wide(&q));
        let found = divergence(&logits(&[&p, &p]), &logits(&[&q, &p])).expect("logits");
        assert!((found.max - expected).abs() < 1e-12, "{found:?} {expected}");
        assert!((found.mean - expected / 2.0).abs() < 1e-12, "{found:?}");
        assert_eq!((found.positions, found.same_top), (2, 2));
        // From the other side it is another number.
        let back = divergence(&logits(&[&q]), &logits(&[&p])).expect("logits");
        assert!((back.max - plainly(&wide(&q), &wide(&p))).abs() < 1e-12);
        assert!((back.max - expected).abs() > 1e-3);
    }

    #[test]
    fn a_shift_is_no_divergence_and_a_ban_is_an_infinite_one() {
        let p = [3.0f32, 1.0, 0.0];
        let shifted = p.map(|x| x + 700.0);
        let found = divergence(&logits(&[&p]), &logits(&[&shifted])).expect("logits");
        assert!(found.max < 1e-6, "{found:?}");
        let banned = [3.0, f32::NEG_INFINITY, 0.0];
        let kl = |a: &[f32], b: &[f32]| divergence(&logits(&[a]), &logits(&[b])).map(|d| d.max);
        assert_eq!(kl(&p, &banned), Some(f64::INFINITY));
        assert!(kl(&banned, &p).is_some_and(|kl| kl > 0.0 && kl.is_finite()));
        assert_eq!(kl(&p, &[f32::NAN, 0.0, 0.0]), Some(f64::INFINITY));
        assert_eq!(kl(&p, &[1.0, 2.0]), None);
        assert_eq!(divergence(&[], &logits(&[&p])), None);
    }
}
