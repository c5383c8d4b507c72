//! Which draft tokens a step reads, and whether a drafter with weights makes some: what brings the most tokens in the time of a step.
//!
//! What passes and drafts cost is measured while they serve: passes that only decode, by their numbers of rows, and drafts by their
//! numbers of sequences. Sequences share a pass, so a draft token of one delays the others. It is read where the tokens that are
//! expected of the step grow by more than its time. What does not pay is tried again within a small share of the time of all steps.

use std::cmp::Ordering;
use std::time::Duration;

use super::acceptance::Acceptance;
use super::{Drafter, DrafterKind, StepDraft};

/// Number of rows up to which passes are measured.
const MOST_ROWS: usize = 320;

/// Times of passes that decode, by their numbers of rows.
#[derive(Debug)]
struct PassCosts {
    /// Seconds, and the number of passes that were measured.
    known: Vec<(f64, u32)>,
    /// Passes from which a time is known: the fastest of them counts.
    n_needed: u32,
}

impl PassCosts {
    fn new(n_needed: u32) -> Self {
        Self {
            known: vec![(0.0, 0); MOST_ROWS + 1],
            n_needed,
        }
    }

    /// First passes that do not count: they build graphs and allocate, which no later one does.
    const COLD: u32 = 1;

    /// Number of passes of `n_rows` rows from which their time is known.
    fn n_known(&self, n_rows: usize) -> u32 {
        let n = self.known.get(n_rows).map_or(0, |(_, n)| *n);
        n.saturating_sub(Self::COLD)
    }

    fn learn(&mut self, n_rows: usize, seconds: f64) {
        /// Passes of which the fastest counts.
        const FIRST: u32 = 4;
        let Some((cost, n)) = self.known.get_mut(n_rows) else {
            return;
        };
        *n = n.saturating_add(1);
        // Other programs make passes slower, never faster.
        *cost = match n.saturating_sub(Self::COLD) {
            0 => return,
            1 => seconds,
            n if n <= FIRST => cost.min(seconds),
            _ if seconds < *cost => *cost + 0.3 * (seconds - *cost),
            _ => *cost + 0.05 * (seconds - *cost).min(*cost),
        };
    }

    /// Seconds of a pass of `n_rows` rows: between those of the nearest numbers of rows that are known, and not above the next. More
    /// rows than any known pass had are taken to cost nothing, so that they are tried.
    fn of(&self, n_rows: usize) -> Option<f64> {
        let known = |at: &usize| self.n_known(*at) >= self.n_needed;
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

/// Share of the time of passes that may be spent on drafts that are not expected to pay, so that changed costs and a changed acceptance
/// are found out.
const TRIED: f64 = 0.005;
/// Passes that such a trial may take at most.
const LONGEST_TRIAL: f64 = 4.0;
/// Passes that trials may have taken beyond what was left for them.
const LONGEST_DEBT: f64 = 64.0;
/// Passes without drafts of as many rows before drafts are read.
const PLAIN: u32 = 2;
/// Steps after which one reads no drafts, so that the time without them stays known.
const REFRESHED: usize = 64;

/// What a step reads without drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct StepRows {
    pub(in crate::engine) n_rows: usize,
    /// Sequences of which each expects a token.
    pub(in crate::engine) n_decoding: usize,
}

/// A number of draft tokens with what is expected of it.
#[derive(Clone, Copy, Debug, Default)]
struct DraftChoice {
    n: usize,
    /// Tokens that the step is expected to bring.
    expected: f64,
    /// Seconds that it takes.
    time: f64,
}

impl DraftChoice {
    /// Tokens for each second. What costs nothing that is known is tried.
    fn rate(&self) -> f64 {
        self.expected / self.time.max(1e-9)
    }
}

/// Decides for each step what is drafted and read.
#[derive(Debug)]
pub(in crate::engine) struct DraftControl {
    costs: PassCosts,
    /// Seconds of a pass of a drafter with weights, by the number of sequences. A draft of n tokens is taken to be n + 1 of them: the
    /// first reads the tokens that were accepted before. A block is taken to be two, whatever its length.
    drafting: PassCosts,
    drafts_blocks: bool,
    acceptance: Acceptance,
    /// Seconds left for drafts that are not expected to pay.
    for_trials: f64,
    /// Whether the present step drafts to find out whether that pays.
    is_trial: bool,
    /// Seconds that drafts took in this step.
    drafted: f64,
    /// Whether times say what passes cost. Otherwise all is drafted and read.
    is_timed: bool,
    /// Steps since one without drafts.
    n_drafting: usize,
}

impl DraftControl {
    /// A control of drafts. `is_timed`: whether times say what passes cost. Otherwise all is drafted and read.
    /// `drafts_blocks`: whether the drafter with weights makes all tokens of a draft in one pass.
    pub(in crate::engine) fn new(is_timed: bool, drafts_blocks: bool) -> Self {
        Self {
            // What was disturbed when it was first measured would not be tried again.
            costs: PassCosts::new(2),
            drafting: PassCosts::new(3),
            drafts_blocks,
            acceptance: Acceptance::default(),
            for_trials: 0.0,
            is_trial: false,
            drafted: 0.0,
            is_timed,
            n_drafting: 0,
        }
    }

    /// Passes of the drafter for a draft of `n` tokens.
    fn passes_of(&self, n: usize) -> f64 {
        match self.drafts_blocks {
            true => 2.0,
            false => (n + 1) as f64,
        }
    }

    /// Whether a step of these rows may have drafts: it is known what it costs without.
    pub(in crate::engine) fn may_draft(&self, rows: StepRows) -> bool {
        let is_known = self.costs.n_known(rows.n_rows) >= PLAIN && self.n_drafting < REFRESHED;
        is_known || !self.is_timed || rows.n_rows > MOST_ROWS
    }

    /// Notes the time of a drafter with weights for at most `n` tokens of each of `n_sequences` sequences. `catches_up`: it read more
    /// of them than the last step brought, such as a prompt. That is done once, and does not count as what a draft costs.
    pub(in crate::engine) fn drafted(
        &mut self,
        (n_sequences, n): (usize, usize),
        catches_up: bool,
        time: Duration,
    ) {
        let seconds = time.as_secs_f64();
        self.drafted = seconds;
        let n_passes = self.passes_of(n);
        if std::mem::take(&mut self.is_trial) {
            // What a trial takes beyond what was expected is saved before the next one.
            let expected = self.drafting.of(n_sequences).unwrap_or(0.0) * n_passes;
            self.for_trials -= (seconds - expected).max(0.0);
        }
        if !catches_up {
            self.drafting.learn(n_sequences, seconds / n_passes);
        }
    }

    /// Notes the time of a pass that only decoded, in which `n_accepted` draft tokens were accepted. Returns the seconds that drafts
    /// saved in this step; below 0 if it took longer than passes without drafts would have.
    pub(in crate::engine) fn measured(
        &mut self,
        (rows, n_read): (StepRows, usize),
        n_accepted: usize,
        time: Duration,
    ) -> f64 {
        let seconds = time.as_secs_f64();
        self.costs.learn(n_read, seconds);
        let plain = self.costs.of(rows.n_rows);
        let pass = plain.unwrap_or(seconds);
        let left = self.for_trials + TRIED * seconds;
        self.for_trials = left.max(-LONGEST_DEBT * pass).min(LONGEST_TRIAL * pass);
        let has_drafts = n_read > rows.n_rows || self.drafted > 0.0;
        self.n_drafting = if has_drafts { self.n_drafting + 1 } else { 0 };
        let took = seconds + std::mem::take(&mut self.drafted);
        let n_tokens = rows.n_decoding + n_accepted;
        let passes = n_tokens as f64 / rows.n_decoding.max(1) as f64;
        match plain.filter(|_| has_drafts) {
            Some(plain) => passes * plain - took,
            None => 0.0,
        }
    }

    /// Notes what became of the proposals for a sequence. Returns what its step read, if it has ended since the last call.
    pub(in crate::engine) fn learn(&mut self, drafter: &mut Drafter) -> Option<StepDraft> {
        drafter.report(&mut self.acceptance)
    }

    /// The numbers of draft tokens, none included, that bring the most tokens in the time of the step, and the best above none. `odds`
    /// fall. `drafting`: seconds before the pass.
    fn best(&self, rows: StepRows, odds: &[f64], drafting: f64) -> (DraftChoice, DraftChoice) {
        let plain = self.costs.of(rows.n_rows).unwrap_or(0.0);
        let mut choice = DraftChoice {
            n: 0,
            expected: rows.n_decoding as f64,
            time: plain + drafting,
        };
        let none = choice;
        let mut best = DraftChoice::default();
        for (n, odds) in (1..).zip(odds) {
            let time = self.costs.of(rows.n_rows + n).unwrap_or(plain) + drafting;
            choice = DraftChoice {
                n,
                expected: choice.expected + odds,
                time,
            };
            if choice.rate() > best.rate() {
                best = choice;
            }
        }
        (none, best)
    }

    /// Whether a choice is taken in place of another one: it is better, or what it loses is left for trials.
    fn is_taken(&mut self, choice: DraftChoice, other: DraftChoice) -> bool {
        if choice.n == 0 || choice.rate() > other.rate() {
            return choice.n > 0;
        }
        let lost = choice.time - choice.expected / other.rate();
        let is_tried = lost <= self.for_trials;
        if is_tried {
            self.for_trials -= lost;
        }
        is_tried
    }

    /// For each sequence how many tokens a drafter with weights is to make, which makes at most `most` of each; 0: none. Where drafts were
    /// looked up that bring more, it makes none.
    pub(in crate::engine) fn ask_model(
        &mut self,
        drafters: &[Option<&mut Drafter>],
        rows: StepRows,
        (most, n_drafted): (usize, usize),
    ) -> Vec<usize> {
        let all_of_it = |of: &Option<&mut Drafter>| of.as_ref().map_or(0, |of| of.n_of_model(most));
        if !self.is_timed {
            return drafters.iter().map(all_of_it).collect();
        }
        let looked_up = drafters.iter().map(|of| match of {
            Some(drafter) => drafter.best(&self.acceptance).1,
            None => Vec::new(),
        });
        let looked_up: Vec<Vec<f64>> = looked_up.collect();
        let of_model = drafters.iter().map(|of| match of {
            Some(drafter) => drafter.odds_of_model(all_of_it(of), &self.acceptance),
            None => Vec::new(),
        });
        let of_model: Vec<Vec<f64>> = of_model.collect();
        let (none, found) = self.best(
            rows,
            &in_order(looked_up.iter().map(Vec::as_slice), n_drafted),
            0.0,
        );
        let other = if found.rate() > none.rate() {
            found
        } else {
            none
        };
        let mut best = (DraftChoice::default(), vec![0; drafters.len()]);
        for n in 1..=of_model.iter().map(Vec::len).max().unwrap_or(0) {
            let mut asked = vec![0; drafters.len()];
            let odds = looked_up.iter().zip(&of_model).enumerate();
            let odds = odds.map(|(at, (looked_up, of_model))| {
                let of_model = &of_model[..n.min(of_model.len())];
                match of_model.iter().sum::<f64>() > looked_up.iter().sum::<f64>() {
                    true => {
                        asked[at] = of_model.len();
                        of_model
                    }
                    false => looked_up.as_slice(),
                }
            });
            let odds = in_order(odds, n_drafted);
            let n_asked = asked.iter().filter(|n| **n > 0).count();
            if n_asked == 0 {
                continue;
            }
            let drafting = match self.drafting.of(n_asked) {
                Some(pass) => pass * self.passes_of(n),
                // The first drafts are short: what they cost is not known.
                None if n == 1 => 0.0,
                None => break,
            };
            let (_, choice) = self.best(rows, &odds, drafting);
            if choice.rate() > best.0.rate() {
                best = (choice, asked);
            }
        }
        let is_taken = self.is_taken(best.0, other);
        self.is_trial = is_taken && best.0.rate() <= other.rate();
        match is_taken {
            true => best.1,
            false => vec![0; drafters.len()],
        }
    }

    /// Chooses the draft tokens of each drafter that the step reads, at most `most` together.
    pub(in crate::engine) fn choose(
        &mut self,
        drafters: &mut [Option<&mut Drafter>],
        rows: StepRows,
        most: usize,
    ) {
        let mut kinds: Vec<DrafterKind> = Vec::with_capacity(drafters.len());
        let mut all: Vec<(f64, usize)> = Vec::new();
        for (at, drafter) in drafters.iter().enumerate() {
            let (kind, odds) = match drafter {
                Some(drafter) => drafter.best(&self.acceptance),
                None => (DrafterKind::Lookup, Vec::new()),
            };
            kinds.push(kind);
            all.extend(odds.into_iter().map(|odds| (odds, at)));
        }
        // The likeliest first. Of one sequence no token is likelier than those before it.
        all.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal));
        all.truncate(most);
        let odds: Vec<f64> = all.iter().map(|(odds, _)| *odds).collect();
        let (none, best) = self.best(rows, &odds, 0.0);
        let n_best = match (self.is_timed, self.is_taken(best, none)) {
            (false, _) => all.len(),
            (true, true) => best.n,
            (true, false) => 0,
        };
        let mut chosen = vec![0; drafters.len()];
        all[..n_best].iter().for_each(|(_, at)| chosen[*at] += 1);
        for ((drafter, kind), n) in drafters.iter_mut().zip(kinds).zip(chosen) {
            if let Some(drafter) = drafter {
                drafter.choose(kind, n);
            }
        }
    }
}

/// The highest odds, at most `most`, in falling order.
fn in_order<'a>(all: impl Iterator<Item = &'a [f64]>, most: usize) -> Vec<f64> {
    let mut odds: Vec<f64> = all.flat_map(|of| of.iter().copied()).collect();
    odds.sort_by(|a, b| b.partial_cmp(a).unwrap_or(Ordering::Equal));
    odds.truncate(most);
    odds
}

#[cfg(test)]
mod tests {
    use super::super::{DraftLimits, DraftOptions, SharedDrafts};
    use super::*;
    use crate::model::Draft;

    fn millis(n: f64) -> Duration {
        Duration::from_secs_f64(n / 1e3)
    }

    fn rows(n: usize) -> StepRows {
        StepRows {
            n_rows: n,
            n_decoding: n,
        }
    }

    /// A control that knows the costs of passes of these numbers of rows, in milliseconds.
    fn knowing(costs: &[(usize, f64)]) -> DraftControl {
        let mut control = DraftControl::new(true, false);
        for (n_rows, cost) in costs {
            for _ in 0..4 {
                control.costs.learn(*n_rows, millis(*cost).as_secs_f64());
            }
        }
        control
    }

    fn begin(drafter: &mut Drafter, text: &[u32], n: usize) {
        drafter.begin(text, n);
        drafter.look_up(text, &mut SharedDrafts::default(), (&"a".into(), &[]));
    }

    /// A drafter of at most `n` tokens after a text of a period, whose drafts were all right or all wrong so far.
    fn drafter(n: usize, are_right: bool) -> Drafter {
        let text: Vec<u32> = (0..20).chain(0..6).collect();
        let drafter = Drafter::new(DraftOptions::ON, DraftLimits::default(), 1000);
        let mut drafter = drafter.expect("it is on");
        for _ in 0..50 {
            begin(&mut drafter, &text, n);
            let wrong = if are_right { 0 } else { 100 };
            let chosen: Vec<u32> = (6..6 + n as u32).map(|t| t + wrong).collect();
            drafter.learn(&chosen);
        }
        begin(&mut drafter, &text, n);
        drafter
    }

    /// The numbers of draft tokens that a step reads of each drafter.
    fn chosen(
        control: &mut DraftControl,
        mut drafters: Vec<Option<&mut Drafter>>,
        most: usize,
    ) -> Vec<usize> {
        let n = drafters.len();
        control.choose(&mut drafters, rows(n), most);
        let read = drafters
            .iter()
            .map(|of| of.as_ref().map_or(0, |of| of.tokens().len()));
        read.collect()
    }

    #[test]
    fn drafts_are_read_where_they_bring_more_than_their_rows_cost() {
        let (mut good, mut bad) = (drafter(6, true), drafter(6, false));
        // Rows that cost little.
        let mut cheap = knowing(&[(1, 10.0), (7, 16.0), (13, 22.0)]);
        assert_eq!(chosen(&mut cheap, vec![Some(&mut good)], 32), [6]);
        assert_eq!(chosen(&mut cheap, vec![Some(&mut bad)], 32), [0]);
        assert_eq!(chosen(&mut cheap, vec![Some(&mut good), None], 4), [4, 0]);
        // Of two sequences the one whose drafts are right gets them.
        let both = vec![Some(&mut bad), Some(&mut good)];
        assert_eq!(chosen(&mut cheap, both, 32), [0, 6]);
        // Rows that cost what a token brings.
        let mut dear = knowing(&[(1, 10.0), (7, 80.0)]);
        assert_eq!(chosen(&mut dear, vec![Some(&mut good)], 32), [0]);
        // A step up to three rows, and a cliff after them.
        let mut cliff = knowing(&[(1, 10.0), (3, 12.0), (4, 40.0), (7, 42.0)]);
        assert_eq!(chosen(&mut cliff, vec![Some(&mut good)], 32), [2]);
        // What is not known is tried.
        let mut one = knowing(&[(1, 10.0)]);
        assert_eq!(chosen(&mut one, vec![Some(&mut good)], 32), [6]);
    }

    #[test]
    fn without_times_all_is_drafted_and_read() {
        let mut bad = drafter(6, false);
        let mut control = DraftControl::new(false, false);
        assert!(control.may_draft(rows(1)));
        let asked = control.ask_model(&[Some(&mut bad)], rows(1), (4, 32));
        assert_eq!(asked, [4]);
        assert_eq!(chosen(&mut control, vec![Some(&mut bad)], 32), [6]);
    }

    #[test]
    fn a_pass_that_was_disturbed_changes_little() {
        let mut control = knowing(&[(1, 10.0); 20]);
        let before = control.costs.of(1).expect("known");
        control.measured((rows(1), 1), 0, Duration::from_secs(9));
        let after = control.costs.of(1).expect("known");
        assert!(after < 1.06 * before, "{before} {after}");
    }

    #[test]
    fn a_first_draft_that_builds_graphs_does_not_end_drafting() {
        let mut good = drafter(6, true);
        let mut control = knowing(&[(1, 10.0), (7, 16.0)]);
        let asked = control.ask_model(&[Some(&mut good)], rows(1), (4, 32));
        assert_eq!(asked, [0], "look-ups are better");
        let mut empty = Drafter::new(DraftOptions::ON, DraftLimits::default(), 1000).expect("on");
        let mut asked = |control: &mut DraftControl| {
            empty.begin(&[1], 6);
            control.ask_model(&[Some(&mut empty)], rows(1), (4, 32))
        };
        assert_eq!(asked(&mut control), [1], "the first drafts are short");
        control.drafted((1, 1), true, millis(2000.0));
        assert_eq!(asked(&mut control), [1]);
        for disturbed in [2000.0, 2.0, 500.0] {
            control.drafted((1, 1), false, millis(disturbed));
            assert_eq!(asked(&mut control), [1]);
        }
        control.drafted((1, 1), false, millis(2.0));
        assert!(asked(&mut control)[0] > 1);
    }

    #[test]
    fn the_time_that_drafts_save_is_that_of_the_passes_without() {
        let mut control = knowing(&[(2, 10.0), (6, 14.0)]);
        assert_eq!(control.measured((rows(2), 2), 0, millis(10.0)), 0.0);
        // Six tokens by one pass of two sequences: three passes without drafts.
        let saved = control.measured((rows(2), 6), 4, millis(14.0));
        assert!((saved - 0.016).abs() < 1e-6, "{saved}");
        control.drafted((2, 4), false, millis(20.0));
        let saved = control.measured((rows(2), 6), 0, millis(14.0));
        assert!((saved + 0.024).abs() < 1e-6, "{saved}");
    }

    /// Passes and drafts with known costs, and a text of which the drafters know so much.
    #[derive(Clone, Copy)]
    struct World {
        /// Milliseconds of a pass of one row, and of each further row.
        pass: (f64, f64),
        /// Milliseconds of a pass of the drafter with weights, and the share of its tokens that is right; none: there is none.
        model: Option<(f64, f64)>,
        /// The period of the text; 0: it has none, and the same two tokens are followed by others each time.
        period: u32,
        n_sequences: usize,
    }

    /// The time of `n_steps` steps, over that of the same tokens without drafts.
    fn time_of(world: World, n_steps: usize) -> f64 {
        let mut random = 1u64;
        let mut draw = move |n: u32| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (random >> 40) as u32 % n
        };
        let mut control = DraftControl::new(true, false);
        let n = world.n_sequences;
        let new = || Drafter::new(DraftOptions::ON, DraftLimits::default(), 1000).expect("on");
        let mut drafters: Vec<Drafter> = (0..n).map(|_| new()).collect();
        let mut texts: Vec<Vec<u32>> = vec![vec![1]; n];
        // Of each sequence the tokens that come next.
        let mut ahead: Vec<Vec<u32>> = vec![Vec::new(); n];
        let (mut time, mut n_tokens) = (0.0, 0);
        for _ in 0..n_steps {
            for (text, ahead) in texts.iter().zip(&mut ahead) {
                while ahead.len() < 40 {
                    let at = (text.len() + ahead.len()) as u32;
                    // Few tokens, so that pairs of them come again.
                    ahead.push(if world.period > 0 {
                        at % world.period
                    } else {
                        draw(12)
                    });
                }
            }
            let rows = rows(n);
            let mut n_read = n;
            let mut drafting = 0.0;
            if control.may_draft(rows) {
                for (drafter, text) in drafters.iter_mut().zip(&texts) {
                    begin(drafter, text, 16);
                }
                let mut all: Vec<Option<&mut Drafter>> = drafters.iter_mut().map(Some).collect();
                if let Some((cost, right)) = world.model {
                    let asked = control.ask_model(&all, rows, (4, 32));
                    let longest = asked.iter().copied().max().unwrap_or(0);
                    if longest > 0 {
                        drafting = cost * (longest + 1) as f64;
                        let n_asked = asked.iter().filter(|n| **n > 0).count();
                        control.drafted((n_asked, longest), false, millis(drafting));
                        for ((drafter, ahead), asked) in all.iter_mut().zip(&ahead).zip(asked) {
                            let tokens = ahead.iter().take(asked).map(|token| {
                                let is_right = f64::from(draw(1000)) < 1000.0 * right;
                                if is_right { *token } else { 999 }
                            });
                            let tokens: Vec<u32> = tokens.collect();
                            let probabilities = vec![0.95; tokens.len()];
                            let draft = Draft {
                                tokens,
                                probabilities,
                            };
                            drafter.as_mut().expect("it is there").take(&draft);
                        }
                    }
                }
                control.choose(&mut all, rows, 32);
                n_read += all
                    .iter()
                    .flatten()
                    .map(|of| of.tokens().len())
                    .sum::<usize>();
            } else {
                drafters
                    .iter_mut()
                    .zip(&texts)
                    .for_each(|(of, text)| of.begin(text, 0));
            }
            let pass = world.pass.0 + world.pass.1 * (n_read - 1) as f64;
            let mut n_accepted = 0;
            for ((drafter, text), ahead) in drafters.iter_mut().zip(&mut texts).zip(&mut ahead) {
                let right = drafter.tokens().iter().zip(&*ahead);
                let n_right = right.take_while(|(a, b)| a == b).count();
                let chosen: Vec<u32> = ahead.drain(..=n_right).collect();
                n_accepted += n_right;
                drafter.learn(&chosen);
                control.learn(drafter);
                text.extend(chosen);
            }
            control.measured((rows, n_read), n_accepted, millis(pass));
            time += pass + drafting;
            n_tokens += n + n_accepted;
        }
        let plain = world.pass.0 + world.pass.1 * (n - 1) as f64;
        time / (plain * n_tokens as f64 / n as f64)
    }

    #[test]
    fn drafts_that_do_not_pay_cost_less_than_a_fiftieth() {
        for n_sequences in [1, 3, 8] {
            // A device on which rows cost half a pass, a bad drafter, and one that costs more than the model itself.
            for model in [None, Some((3.0, 0.1)), Some((15.0, 0.5))] {
                let world = World {
                    pass: (10.0, 5.0),
                    model,
                    period: 0,
                    n_sequences,
                };
                let time = time_of(world, 3000);
                assert!(time < 1.02, "{n_sequences} {model:?}: {time}");
            }
        }
    }

    #[test]
    fn what_pays_is_found() {
        let world = World {
            pass: (10.0, 1.0),
            model: None,
            period: 30,
            n_sequences: 1,
        };
        let time = time_of(world, 400);
        assert!(time < 0.25, "{time}");
        // A text that repeats nothing, and a drafter of a twentieth of the cost that is mostly right.
        let drafted = World {
            model: Some((0.5, 0.8)),
            period: 0,
            ..world
        };
        let time = time_of(drafted, 1000);
        assert!(time < 0.6, "{time}");
        // Look-ups are taken where they bring more, and cost nothing.
        let both = World {
            period: 30,
            ..drafted
        };
        let time = time_of(both, 400);
        assert!(time < 0.25, "{time}");
        for n_sequences in [2, 6] {
            let time = time_of(
                World {
                    n_sequences,
                    ..drafted
                },
                500,
            );
            assert!(time < 0.8, "{n_sequences}: {time}");
        }
    }
}
