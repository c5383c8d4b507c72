//! Order statistics of measurements.

/// Order statistics of measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub count: usize,
    pub min: f64,
    /// The median: half of the measurements are at most this.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    pub max: f64,
    pub mean: f64,
}

impl Summary {
    /// The summary of measurements in any order; `None` without measurements or if one is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(Self {
            count: sorted.len(),
            min: sorted[0],
            p50: percentile(&sorted, 50),
            p90: percentile(&sorted, 90),
            p99: percentile(&sorted, 99),
            max: sorted[sorted.len() - 1],
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
        })
    }
}

/// The smallest value of `sorted` (rising, not empty) that is at least as large as `percent` per cent of the values.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(values: &[f64]) -> Summary {
        Summary::of(values).expect("there are values")
    }

    /// The definition itself: the smallest value that is at least as large as this share of the values.
    fn by_counting(values: &[f64], percent: usize) -> f64 {
        let is_enough = |limit: f64| {
            100 * values.iter().filter(|v| **v <= limit).count() >= percent * values.len()
        };
        values
            .iter()
            .copied()
            .filter(|v| is_enough(*v))
            .fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn percentiles_are_what_counting_says() {
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / 1000.0
        };
        for n in (1..40).chain([99, 100, 101, 200, 1000]) {
            let values: Vec<f64> = (0..n).map(|_| random()).collect();
            let found = summary(&values);
            assert_eq!(found.p50, by_counting(&values, 50), "{n}");
            assert_eq!(found.p90, by_counting(&values, 90), "{n}");
            assert_eq!(found.p99, by_counting(&values, 99), "{n}");
            assert!(found.min <= found.p50 && found.p50 <= found.p90);
            assert!(found.p90 <= found.p99 && found.p99 <= found.max);
            assert_eq!(found.count, n);
        }
    }

    #[test]
    fn known_values() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let s = summary(&hundred);
        assert_eq!(
            (s.min, s.p50, s.p90, s.p99, s.max, s.mean),
            (1.0, 50.0, 90.0, 99.0, 100.0, 50.5)
        );
        let s = summary(&[3.0]);
        assert_eq!((s.min, s.p50, s.p99, s.max), (3.0, 3.0, 3.0, 3.0));
        assert_eq!(summary(&[2.0, 1.0]).p50, 1.0);
        assert_eq!(summary(&[3.0, 1.0, 2.0]).p50, 2.0);
    }

    #[test]
    fn nothing_and_what_is_no_number_have_no_summary() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(Summary::of(&[f64::INFINITY]), None);
    }
}
