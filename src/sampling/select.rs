//! Partial selection: where to cut a list of logits so that the best remain.
//!
//! The order everywhere is by falling logit and, among equals, by rising position. Nothing here
//! sorts a vocabulary or moves a logit: a cut is found on a copy of the values that matter, and
//! the survivors are then read off in their old order.

/// Values that are looked at together, so that the compiler compares them in one go.
const BLOCK: usize = 16;

/// The border between the tokens that stay and the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    /// All above this stay.
    pub(super) logit: f32,
    /// And so many, the first ones, of those that equal it.
    pub(super) n_equal: usize,
}

impl Cut {
    /// The cut below the last of `best`, the values that are to stay.
    pub(super) fn below(best: &[f32], last: f32) -> Self {
        Self {
            logit: last,
            n_equal: best.iter().filter(|&&value| value == last).count(),
        }
    }

    /// The cut below all that are at least `floor`.
    pub(super) fn at_least(floor: f64) -> Self {
        let nearest = floor as f32;
        let is_below = f64::from(nearest) < floor;
        Self {
            logit: if is_below { nearest.next_up() } else { nearest },
            n_equal: usize::MAX,
        }
    }

    /// Writes the positions of those that stay, rising.
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

/// The cut that leaves the `n` best, `1 <= n`; fewer if fewer are above minus infinity.
pub(super) fn best(logits: &[f32], n: usize, scratch: &mut Vec<f32>) -> Cut {
    // Once this many have gathered they are thinned to the `n` best, and their least is the
    // floor that later ones must exceed; soon nearly all blocks fail at the first look.
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

/// Leaves the `n` best of at least `n` values, and returns the least of them.
fn thin(values: &mut Vec<f32>, n: usize) -> f32 {
    let (_, &mut last, _) = values.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a));
    values.truncate(n);
    last
}

/// The cut that leaves the fewest of the best values whose weights together reach `target`, or
/// all if none do. `weigh` sums the weights of values; there is at least one value.
pub(super) fn heaviest(values: &mut [f32], target: f64, weigh: impl Fn(&[f32]) -> f64) -> Cut {
    const SORTABLE: usize = 64;
    // All before `from` are better than those in `from..to`, and belong to the answer.
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
    use crate::sampling::reference_chain;

    fn survivors(cut: Cut, logits: &[f32]) -> Vec<u32> {
        let mut positions = Vec::new();
        cut.survivors(logits, &mut positions);
        positions
    }

    /// The `n` best by a full sort, banned ones left out, as rising positions.
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
            // A count is a weight whose sums are exact.
            let values: Vec<f32> = logits.iter().copied().filter(|l| l.is_finite()).collect();
            prop_assume!(!values.is_empty());
            let target = share * values.len() as f64;
            let cut = heaviest(&mut values.clone(), target, |v| v.len() as f64);
            let n = (target.ceil() as usize).max(1);
            prop_assert_eq!(survivors(cut, &values), sorted_best(&values, n));
        }
    }

    #[test]
    fn a_target_that_is_just_reached_needs_no_more() {
        let cut = heaviest(&mut [1.0, 3.0, 2.0], 2.0, |v| v.len() as f64);
        assert_eq!(survivors(cut, &[1.0, 3.0, 2.0]), [1, 2]);
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
