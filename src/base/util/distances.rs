//! Distances between computed numbers and reference numbers: of arrays, and of the distributions that rows of logits
//! define.

/// Mean of the squared differences over the mean square of `expected`; infinite if anything is not finite.
pub fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    let pairs = || {
        found
            .iter()
            .zip(expected)
            .map(|(a, b)| (f64::from(*a), f64::from(*b)))
    };
    let error: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    let power: f64 = pairs().map(|(_, b)| b * b).sum();
    match error {
        0.0 => 0.0,
        error if error.is_finite() => error / power,
        _ => f64::INFINITY,
    }
}

/// The NMSE of two arrays of equal length, and the index of the first differing element. Both may hold infinities, such
/// as those of a mask. An element differs if its error exceeds the error of each element of an array whose NMSE is
/// `tolerance` and whose errors are all equal.
pub fn first_difference(a: &[f32], b: &[f32], tolerance: f64) -> (f64, Option<usize>) {
    let pairs = || a.iter().zip(b);
    let (mut error, mut power) = (0.0, 0.0);
    for (x, y) in pairs() {
        // Equal infinities are not a difference.
        if x != y {
            error += (f64::from(*x) - f64::from(*y)).powi(2);
        }
        if y.is_finite() {
            power += f64::from(*y).powi(2);
        }
    }
    let nmse = match (error, power) {
        (0.0, _) => 0.0,
        (error, power) if error.is_finite() && power > 0.0 => error / power,
        _ => f64::INFINITY,
    };
    // The largest allowed error of an element: the one that all have if they are equal.
    let allowed = (tolerance * power / a.len().max(1) as f64).sqrt();
    // A NaN has an infinite distance, which no bound allows.
    let distance = |x: f32, y: f32| match (f64::from(x) - f64::from(y)).abs() {
        d if d.is_nan() => f64::INFINITY,
        d => d,
    };
    let first = pairs().position(|(x, y)| x != y && distance(*x, *y) > allowed);
    (nmse, first)
}

/// Root of the mean square of the elements that are finite.
pub fn rms(elements: &[f32]) -> f64 {
    let finite = || elements.iter().filter(|e| e.is_finite());
    let power: f64 = finite().map(|e| f64::from(*e).powi(2)).sum();
    (power / finite().count().max(1) as f64).sqrt()
}

/// The token with the largest logit of a row. Of equal ones, the lowest id.
pub fn likeliest(logits: &[f32]) -> Option<usize> {
    let found = logits
        .iter()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    found.map(|(at, _)| at)
}

/// The log-probabilities, in nats, of tokens under a row of logits; NaN for a token outside the row.
pub fn log_probabilities(
    logits: &[f32],
    ids: impl Iterator<Item = u32>,
) -> impl Iterator<Item = f64> {
    let total = log_total(logits);
    ids.map(move |id| {
        logits
            .get(id as usize)
            .map_or(f64::NAN, |v| f64::from(*v) - total)
    })
}

/// Kullback-Leibler divergence in nats, `sum of p ln(p / q)`, of the distributions that two rows of logits define. It
/// is infinite if any number is NaN.
pub fn kl_divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p_total, q_total) = (log_total(p), log_total(q));
    let terms = p.iter().zip(q).map(|(p, q)| {
        let (log_p, log_q) = (f64::from(*p) - p_total, f64::from(*q) - q_total);
        // A token of probability 0 adds nothing, whatever the other distribution says.
        if log_p == f64::NEG_INFINITY {
            0.0
        } else {
            log_p.exp() * (log_p - log_q)
        }
    });
    let sum: f64 = terms.sum();
    if sum.is_nan() {
        return f64::INFINITY;
    }
    // Rounding can make the sum of equal rows slightly negative.
    sum.max(0.0)
}

/// The logarithm of the sum of `exp(x)`.
fn log_total(row: &[f32]) -> f64 {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let most = f64::from(most);
    most + row
        .iter()
        .map(|x| (f64::from(*x) - most).exp())
        .sum::<f64>()
        .ln()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let found = kl_divergence(&p, &q);
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        // The divergence is not symmetric.
        let back = kl_divergence(&q, &p);
        assert!((back - plainly(&wide(&q), &wide(&p))).abs() < 1e-12);
        assert!((back - expected).abs() > 1e-3);
    }

    #[test]
    fn a_shift_is_no_divergence_and_a_ban_is_an_infinite_one() {
        let p = [3.0f32, 1.0, 0.0];
        let found = kl_divergence(&p, &p.map(|x| x + 700.0));
        assert!(found < 1e-6, "{found}");
        let banned = [3.0, f32::NEG_INFINITY, 0.0];
        assert_eq!(kl_divergence(&p, &banned), f64::INFINITY);
        assert!(kl_divergence(&banned, &p) > 0.0 && kl_divergence(&banned, &p).is_finite());
        assert_eq!(kl_divergence(&p, &[f32::NAN, 0.0, 0.0]), f64::INFINITY);
    }
}
