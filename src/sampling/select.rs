//! Partial selection: finds where to cut a list of logits so that the best remain.
//!
//! The order is always by falling logit; of equal ones, by rising position. Nothing here sorts a vocabulary or moves a
//! logit: a cut is found on a copy of the relevant values, and the survivors are then read in their original order.

const BLOCK: usize = 16;

/// The border between the tokens that are kept and the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    /// Every token with a logit above this is kept.
    pub(super) logit: f32,
    /// Number of tokens with a logit equal to this that are kept, the first ones.
    pub(super) n_equal: usize,
}

impl Cut {
    /// No cut: what is listed does not decide.
    pub(super) const UNDECIDED: Self = Self {
        logit: f32::NEG_INFINITY,
        n_equal: 0,
    };

    /// The cut that keeps exactly `best`, whose least value is `last`.
    pub(super) fn below(best: &[f32], last: f32) -> Self {
        Self {
            logit: last,
            n_equal: best.iter().filter(|&&value| value == last).count(),
        }
    }

    /// The cut that keeps every logit of at least `floor`.
    pub(super) fn at_least(floor: f64) -> Self {
        let nearest = floor as f32;
        let is_below = f64::from(nearest) < floor;
        Self {
            logit: if is_below { nearest.next_up() } else { nearest },
            n_equal: usize::MAX,
        }
    }

    /// Writes the positions of the kept tokens, rising.
    pub(super) fn survivors(self, logits: &[f32], positions: &mut Vec<u32>) {
        positions.clear();
        let mut n_equal = self.n_equal;
        for (i, block) in logits.chunks(BLOCK).enumerate() {
            if !block.iter().fold(false, |any, &l| any | (l >= self.logit)) {
                continue;
            }
            for (j, &logit) in block.iter().enumerate() {
                let is_equal = logit == self.logit && n_equal > 0;
                n_equal -= usize::from(is_equal);
                if logit > self.logit || is_equal {
                    positions.push((i * BLOCK + j) as u32);
                }
            }
        }
    }
}

/// The cut that keeps the `n` best, `1 <= n`; fewer if fewer are above minus infinity.
pub(super) fn best(logits: &[f32], n: usize, scratch: &mut Vec<f32>) -> Cut {
    // Once the buffer holds this many values it is reduced to the `n` best, and their least is the floor that later
    // values must exceed. Soon nearly all blocks fail the first check.
    let room = n.saturating_mul(2).max(1024);
    let mut floor = f32::NEG_INFINITY;
    scratch.clear();
    for block in logits.chunks(BLOCK) {
        if !block.iter().fold(false, |any, &l| any | (l > floor)) {
            continue;
        }
        scratch.extend(block.iter().filter(|&&l| l > floor));
        if scratch.len() >= room {
            floor = thin(scratch, n);
        }
    }

    if scratch.len() < n {
        return Cut {
            logit: f32::NEG_INFINITY,
            n_equal: 0,
        };
    }
    let last = thin(scratch, n);
    Cut::below(scratch, last)
}

/// Keeps the `n` best of at least `n` values, and returns the least of them.
fn thin(values: &mut Vec<f32>, n: usize) -> f32 {
    let (_, &mut last, _) = values.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a));
    values.truncate(n);
    last
}

/// The cut that keeps the fewest best values whose weights together reach `target`, or all if they do not. `weigh`
/// returns the sum of the weights of values; there is at least one value.
pub(super) fn heaviest(values: &mut [f32], target: f64, weigh: impl Fn(&[f32]) -> f64) -> Cut {
    const SORTABLE: usize = 64;
    // All values before `from` are better than those in `from..to`, and are kept.
    let (mut from, mut to) = (0, values.len());
    let mut weight = 0.0;
    while to - from > SORTABLE {
        let half = (to - from) / 2;
        values[from..to].select_nth_unstable_by(half, |a, b| b.total_cmp(a));
        let upper = weigh(&values[from..from + half]);
        if weight + upper >= target {
            to = from + half;
        } else {
            weight += upper;
            from += half;
        }
    }

    values[from..to].sort_unstable_by(|a, b| b.total_cmp(a));
    let mut end = from;
    while end < to {
        weight += weigh(&values[end..=end]);
        end += 1;
        if weight >= target {
            break;
        }
    }
    Cut::below(&values[..end], values[end - 1])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference_chain;

    fn survivors(cut: Cut, logits: &[f32]) -> Vec<u32> {
        let mut positions = Vec::new();
        cut.survivors(logits, &mut positions);
        positions
    }

    fn sorted_best(logits: &[f32], n: usize) -> Vec<u32> {
        let mut order = reference_chain::falling(logits);
        order.truncate(n);
        order.sort_unstable();
        order
    }

    proptest! {
        #[test]
        fn best_is_the_head_of_a_full_sort(
            logits in reference_chain::logits(1..5000),
            n in 1..2000usize,
        ) {
            let cut = best(&logits, n, &mut Vec::new());
            prop_assert_eq!(survivors(cut, &logits), sorted_best(&logits, n));
        }

        #[test]
        fn heaviest_is_the_shortest_head_that_reaches_the_target(
            logits in reference_chain::logits(1..1000),
            share in 0.0..1.0f64,
        ) {
            // Counts as weights have exact sums.
            let values: Vec<f32> = logits.iter().copied().filter(|l| l.is_finite()).collect();
            prop_assume!(!values.is_empty());
            let target = share * values.len() as f64;
            let cut = heaviest(&mut values.clone(), target, |v| v.len() as f64);
            let n = (target.ceil() as usize).max(1);
            prop_assert_eq!(survivors(cut, &values), sorted_best(&values, n));
        }
    }

    #[test]
    fn a_target_out_of_reach_leaves_all() {
        let cut = heaviest(&mut [1.0, 2.0, 1.0], 9.0, |v| v.len() as f64);
        assert_eq!(survivors(cut, &[1.0, 2.0, 1.0]), [0, 1, 2]);
    }

    #[test]
    fn zeros_of_either_sign_are_equal() {
        let logits = [-0.0, 0.0, -1.0];
        assert_eq!(survivors(best(&logits, 1, &mut Vec::new()), &logits), [0]);
    }
}
