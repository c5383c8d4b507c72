//! A learned bias of attention scores by the distance of key and query (Raffel et al. 2020).
//!
//! ```text
//! score(q, k) += table[head, bucket(pos_k - pos_q)]
//! ```
//! Each near distance has its own bucket, farther ones share buckets that widen with the logarithm, and all from
//! `max_distance` on share the last one. So the bias is a table of the distances from -far to far, which is made once
//! for a pass and read by position; [`DistanceBuckets`] maps distances to buckets.

use crate::arch::WeightSpec;
use crate::weight;

/// The key of the table among the weights of a block.
pub(crate) const TABLE: &str = "rel_bias";

/// The table of biases.
pub(super) const TABLE_WEIGHT: WeightSpec = weight!(rel_bias: Bias "attn_rel_b.weight" ["heads", "buckets"] optional, "bias of the scores of each head for each bucket of distances");

/// The key of the table of distances that queries are multiplied with.
pub(super) const DISTANCES: &str = "rel_k";

/// The rows of a table of distances from `n - 1` positions after the query to `n - 1` before it, `2 n - 1` of `rows`. Row `zero` is that of
/// distance 0, each further row that of a key one position earlier; distances without a row have that of the nearest one.
pub(crate) fn distance_rows(n: u64, rows: u64, zero: u64) -> Vec<i32> {
    let (n, last) = (n as i64, rows as i64 - 1);
    let row = |back: i64| (zero as i64 + back).clamp(0, last.max(0)) as i32;
    (1 - n..n).rev().map(row).collect()
}

/// The assignment of distances to buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistanceBuckets {
    /// Number of buckets.
    pub n: u64,
    /// The distance from which on all share the last bucket.
    pub far: u64,
    /// Whether keys after the query have no buckets: they share the bucket of distance 0.
    pub is_causal: bool,
}

impl DistanceBuckets {
    /// The buckets of the distances from -far to far, the position of the key minus that of the query.
    pub fn of_distances(&self) -> Vec<i32> {
        let far = self.far as i64;
        (-far..=far).map(|distance| self.of(distance)).collect()
    }

    fn of(&self, distance: i64) -> i32 {
        // Keys after the query have the second half of the buckets.
        let (n, first) = match self.is_causal {
            true => (self.n, 0),
            false => (self.n / 2, if distance > 0 { self.n / 2 } else { 0 }),
        };
        let distance = match self.is_causal {
            true => (-distance).max(0) as u64,
            false => distance.unsigned_abs(),
        };
        let n_exact = n / 2;
        let bucket = match distance < n_exact {
            true => distance,
            false => {
                // In single precision, as models are trained: a logarithm may lie on the border of two buckets.
                let exact = n_exact.max(1) as f32;
                let widened = (distance as f32 / exact).ln() * (n - n_exact) as f32;
                let all = (self.far as f64 / f64::from(exact)).ln();
                let bucket = (n_exact as f64 + f64::from(widened) / all) as f32;
                (bucket.floor() as u64).min(n.saturating_sub(1))
            }
        };
        (first + bucket) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula in powers: the bucket of a distance d of at least `exact` is `exact` plus the largest i < n - exact
    /// with (d / exact)^(n - exact) >= (far / exact)^i.
    fn by_powers(n: u64, far: u64, distance: u64) -> u64 {
        let exact = n / 2;
        if distance < exact {
            return distance;
        }
        let reached = |i: &u64| {
            let power = |x: u64, n: u64| (0..n).fold(1f64, |y, _| y * x as f64 / exact as f64);
            power(distance, n - exact) * (1.0 + 1e-9) >= power(far, *i)
        };
        exact + (1..n - exact).take_while(reached).count() as u64
    }

    #[test]
    fn distances_have_a_bucket_each_then_share_wider_ones() {
        let (n, far) = (32, 128);
        let both = DistanceBuckets {
            n,
            far,
            is_causal: false,
        };
        let found = both.of_distances();
        for distance in 0..=far {
            let expected = by_powers(n / 2, far, distance) as i32;
            assert_eq!(found[(far - distance) as usize], expected, "-{distance}");
            if distance > 0 {
                let after = found[(far + distance) as usize];
                assert_eq!(after, expected + n as i32 / 2, "{distance}");
            }
        }
        let causal = DistanceBuckets {
            is_causal: true,
            ..both
        };
        let found = causal.of_distances();
        for distance in 0..=far {
            let expected = by_powers(n, far, distance) as i32;
            assert_eq!(found[(far - distance) as usize], expected, "-{distance}");
            assert_eq!(found[(far + distance) as usize], 0, "{distance}");
        }
    }

    #[test]
    fn rows_of_distances_run_from_the_farthest_earlier_key_to_the_farthest_later_one() {
        // Keys 0 to 2 and queries 0 to 2: element n - 1 + k - q is the row of a key k that lies q - k before the query.
        let rows = distance_rows(3, 5, 2);
        for q in 0..3usize {
            for k in 0..3usize {
                let expected = 2 + q as i32 - k as i32;
                assert_eq!(rows[2 + k - q], expected, "{q} {k}");
            }
        }
        assert_eq!(distance_rows(4, 3, 0), [2, 2, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn every_distance_has_a_bucket_that_exists() {
        for (n, far) in [(1, 1), (2, 1), (3, 2), (4, 1), (8, 4), (32, 4096)] {
            for is_causal in [false, true] {
                let buckets = DistanceBuckets { n, far, is_causal };
                let all = buckets.of_distances();
                assert_eq!(all.len() as u64, 2 * far + 1);
                let exist = all.iter().all(|bucket| (0..n as i32).contains(bucket));
                assert!(exist, "{buckets:?}: {all:?}");
            }
        }
    }
}
