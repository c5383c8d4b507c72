//! How many draft tokens a step reads: as many as bring the most tokens in the time of the pass, none included.
//!
//! What a pass costs is measured while it serves: passes that only decode, by their numbers of rows. Sequences share a pass, so a draft
//! token of one delays the others. It is read where the tokens that are expected of the pass grow by more than its time.

use std::cmp::Ordering;
use std::time::Duration;

use super::draft::{Acceptance, Drafter};

/// Number of rows up to which passes are measured.
const MOST_ROWS: usize = 320;

/// Times of passes that decode, by their numbers of rows.
#[derive(Debug)]
struct PassCosts {
    /// Seconds, and the number of passes from which they are known.
    known: Vec<(f64, u32)>,
}

impl PassCosts {
    fn learn(&mut self, n_rows: usize, seconds: f64) {
        /// Passes of which the fastest counts.
        const FIRST: u32 = 4;
        let Some((cost, n)) = self.known.get_mut(n_rows) else {
            return;
        };
        *n = n.saturating_add(1);
        // Other programs make passes slower, never faster.
        *cost = match *n {
            1 => seconds,
            n if n <= FIRST => cost.min(seconds),
            _ if seconds < *cost => *cost + 0.3 * (seconds - *cost),
            _ => *cost + 0.05 * (seconds - *cost).min(*cost),
        };
    }

    /// Seconds of a pass of `n_rows` rows: between those of the nearest numbers of rows that are known, and not above the next. More
    /// rows than any known pass had are taken to cost nothing, so that they are tried.
    fn of(&self, n_rows: usize) -> Option<f64> {
        let known = |at: &usize| self.known.get(*at).is_some_and(|(_, n)| *n > 0);
        let cost = |at: usize| self.known[at].0;
        let before = (1..=n_rows.min(MOST_ROWS)).rev().find(known)?;
        if before == n_rows {
            return Some(cost(before));
        }
        let after = (n_rows + 1..=MOST_ROWS).find(known);
        let Some(after) = after else {
            return Some(cost(before));
        };
        let part = (n_rows - before) as f64 / (after - before) as f64;
        let (low, high) = (cost(before), cost(after).max(cost(before)));
        Some(low + part * (high - low))
    }
}

/// Decides for each step how many draft tokens are read.
#[derive(Debug)]
pub(super) struct DraftControl {
    costs: PassCosts,
    acceptance: Acceptance,
}

impl Default for DraftControl {
    fn default() -> Self {
        Self {
            costs: PassCosts {
                known: vec![(0.0, 0); MOST_ROWS + 1],
            },
            acceptance: Acceptance::default(),
        }
    }
}

impl DraftControl {
    /// Notes the time of a pass that only decoded.
    pub(super) fn measured(&mut self, n_rows: usize, time: Duration) {
        self.costs.learn(n_rows, time.as_secs_f64());
    }

    /// Notes what became of the draft of a sequence.
    pub(super) fn learn(&mut self, drafter: &mut Drafter) {
        drafter.report(&mut self.acceptance);
    }

    /// The number of draft tokens to read of each drafter, at most `most` together, in a pass that reads `n_rows` rows without them, of
    /// which each of `n_decoding` sequences expects a token.
    pub(super) fn choose(
        &self,
        drafters: &[Option<&Drafter>],
        (n_rows, n_decoding): (usize, usize),
        most: usize,
    ) -> Vec<usize> {
        let mut chosen = vec![0; drafters.len()];
        let mut all: Vec<(f64, usize)> = Vec::new();
        for (at, drafter) in drafters.iter().enumerate() {
            let odds = drafter.iter().flat_map(|of| of.odds(&self.acceptance));
            all.extend(odds.map(|odds| (odds, at)));
        }
        // The likeliest first. Of one sequence no token is likelier than those before it.
        all.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal));
        all.truncate(most);
        let n_best = match self.costs.of(n_rows) {
            // Nothing is known yet.
            None => all.len(),
            Some(cost) => {
                let mut expected = n_decoding as f64;
                let mut best = (expected / cost, 0);
                for (n, (odds, _)) in (1..).zip(&all) {
                    expected += odds;
                    let cost = self.costs.of(n_rows + n).unwrap_or(cost);
                    if expected / cost > best.0 {
                        best = (expected / cost, n);
                    }
                }
                best.1
            }
        };
        all[..n_best].iter().for_each(|(_, at)| chosen[*at] += 1);
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A control that knows the costs of passes of these numbers of rows, in milliseconds.
    fn knowing(costs: &[(usize, f64)]) -> DraftControl {
        let mut control = DraftControl::default();
        for (n_rows, cost) in costs {
            control.measured(*n_rows, Duration::from_secs_f64(cost / 1e3));
        }
        control
    }

    /// A drafter whose drafts of `n` tokens were all right or all wrong so far.
    fn drafter(n: usize, are_right: bool) -> Drafter {
        let text: Vec<u32> = (0..20).chain(0..6).collect();
        let mut drafter = Drafter::new(&text, n);
        for _ in 0..50 {
            drafter.propose(n);
            drafter.learn(if are_right { n } else { 0 });
        }
        drafter.propose(n);
        drafter
    }

    #[test]
    fn drafts_are_read_where_they_bring_more_than_their_rows_cost() {
        let (good, bad) = (drafter(6, true), drafter(6, false));
        // Rows that cost little.
        let cheap = knowing(&[(1, 10.0), (7, 16.0), (13, 22.0)]);
        assert_eq!(cheap.choose(&[Some(&good)], (1, 1), 32), [6]);
        assert_eq!(cheap.choose(&[Some(&bad)], (1, 1), 32), [0]);
        assert_eq!(cheap.choose(&[Some(&good), None], (2, 2), 4), [4, 0]);
        // Rows that cost what a token brings.
        let dear = knowing(&[(1, 10.0), (7, 80.0)]);
        assert_eq!(dear.choose(&[Some(&good)], (1, 1), 32), [0]);
        // A step up to three rows, and a cliff after them.
        let cliff = knowing(&[(1, 10.0), (3, 12.0), (4, 40.0), (7, 42.0)]);
        assert_eq!(cliff.choose(&[Some(&good)], (1, 1), 32), [2]);
        // Of two sequences the one whose drafts are right gets them.
        assert_eq!(cheap.choose(&[Some(&bad), Some(&good)], (2, 2), 32), [0, 6]);
    }

    #[test]
    fn what_is_not_known_is_tried() {
        let good = drafter(6, true);
        let nothing = DraftControl::default();
        assert_eq!(nothing.choose(&[Some(&good)], (1, 1), 32), [6]);
        let one = knowing(&[(1, 10.0)]);
        assert_eq!(one.choose(&[Some(&good)], (1, 1), 32), [6]);
    }

    #[test]
    fn a_pass_that_was_disturbed_changes_little() {
        let mut control = knowing(&[(1, 10.0); 20]);
        let before = control.costs.of(1).expect("known");
        control.measured(1, Duration::from_secs(9));
        let after = control.costs.of(1).expect("known");
        assert!(after < 1.06 * before, "{before} {after}");
    }
}
