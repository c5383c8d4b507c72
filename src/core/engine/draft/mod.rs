//! Speculative decoding: draft tokens that one pass verifies together.
//!
//! A draft token is accepted only if the sampler, given the model's logits, chooses the same token. The distribution of completions is
//! therefore the same as without drafts, whatever tokens are proposed. This file: the drafts of one sequence in one step, of up to three
//! drafters, and what becomes of them. Not here: which of them a step reads (`control.rs`), drafters with weights (the model has them).

mod acceptance;
mod control;
mod index;
mod options;
mod shared;

use std::sync::Arc;

use crate::model::Draft;

use acceptance::{Acceptance, Class};
use index::{Continuation, TokenIndex};

pub(super) use control::{DraftControl, StepRows};
pub(super) use options::N_DRAFTED;
pub use options::{DraftCounts, DraftLimits, DraftOptions, DraftTotals, DrafterKind, N_DRAFTERS};
pub(super) use shared::SharedDrafts;

/// Tokens that a step adds to the index of a sequence, so that a long prompt delays no other sequence.
const MOST_INDEXED: usize = 4096;
/// Last tokens of a sequence that are looked up elsewhere.
const N_LAST: usize = index::LONGEST_MATCH;

/// The tokens that a drafter proposes, each with what is known of it.
#[derive(Debug, Default)]
struct Proposal {
    tokens: Vec<u32>,
    classes: Vec<Class>,
}

impl Proposal {
    /// The tokens that were looked up, before the first that stands for a row of a medium.
    fn looked_up(is_own: bool, found: &[Continuation], n_vocab: usize) -> Self {
        let found = found.iter().take_while(|of| (of.token as usize) < n_vocab);
        let tokens = found.map(|of| (of.token, Class::of_lookup(is_own, *of)));
        let (tokens, classes) = tokens.unzip();
        Self { tokens, classes }
    }
}

/// The draft tokens of a sequence that a step read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepDraft {
    pub(super) kind: DrafterKind,
    pub(super) n_drafted: usize,
    pub(super) n_accepted: usize,
}

/// Drafts the next tokens of a sequence.
#[derive(Debug)]
pub(super) struct Drafter {
    options: DraftOptions,
    limits: DraftLimits,
    n_vocab: usize,
    index: TokenIndex,
    /// Maximum number of tokens of the present step; 0: none is drafted.
    n_step: usize,
    /// What each drafter proposes in this step.
    proposals: [Proposal; N_DRAFTERS],
    /// The drafter whose tokens the step reads, and their number.
    read: (DrafterKind, usize),
    own: Acceptance,
    /// What became of proposals since it was last reported.
    outcomes: Vec<(Class, bool)>,
    /// What the last step read, until it is reported.
    last: Option<StepDraft>,
    /// Number of tokens of the sequence that a drafter with weights has read.
    n_read_by_model: usize,
}

impl Drafter {
    /// A drafter of tokens below `n_vocab`; none if nothing is to be drafted.
    pub(super) fn new(options: DraftOptions, limits: DraftLimits, n_vocab: usize) -> Option<Self> {
        let options = match limits.n_max {
            Some(_) => options.of_asking(),
            None => options,
        };
        let most = limits.n_max.unwrap_or(options.most);
        if most == 0 || options.drafters == [false; N_DRAFTERS] {
            return None;
        }
        Some(Self {
            options: DraftOptions { most, ..options },
            limits,
            n_vocab,
            index: TokenIndex::default(),
            n_step: 0,
            proposals: Default::default(),
            read: (DrafterKind::Lookup, 0),
            own: Acceptance::default(),
            outcomes: Vec::new(),
            last: None,
            n_read_by_model: 0,
        })
    }

    fn is_on(&self, kind: DrafterKind) -> bool {
        self.options.drafters[kind as usize]
    }

    /// Whether its sequence takes part in the drafts that requests share.
    pub(super) fn is_shared(&self) -> bool {
        self.is_on(DrafterKind::Shared)
    }

    /// Begins a step after `tokens`, which reads at most `n` draft tokens of this sequence.
    pub(super) fn begin(&mut self, tokens: &[u32], n: usize) {
        if self.is_on(DrafterKind::Lookup) {
            let unknown = tokens.iter().skip(self.index.len());
            unknown.take(MOST_INDEXED).for_each(|t| self.index.push(*t));
        }
        self.n_step = n.min(self.options.most).min(N_DRAFTED);
        self.read = (DrafterKind::Lookup, 0);
        self.proposals = Default::default();
    }

    /// Looks up what may follow `tokens` in them, and in the answers of the same client and scales.
    pub(super) fn look_up(
        &mut self,
        tokens: &[u32],
        shared: &mut SharedDrafts,
        (client, scales): (&Arc<str>, &[f32]),
    ) {
        let n = self.n_step;
        if n > 0 && self.index.len() == tokens.len() {
            self.proposals[0] = Proposal::looked_up(true, &self.index.follow(n), self.n_vocab);
        }
        if n > 0 && self.is_shared() {
            let last = &tokens[tokens.len().saturating_sub(N_LAST)..];
            let found = shared.follow(client, scales, last, n);
            self.proposals[1] = Proposal::looked_up(false, &found, self.n_vocab);
        }
    }

    /// Maximum number of tokens that a drafter with weights makes for this step.
    pub(super) fn n_of_model(&self, most: usize) -> usize {
        match self.is_on(DrafterKind::Model) {
            true => self.n_step.min(most),
            false => 0,
        }
    }

    /// Notes that a drafter with weights reads all `n` tokens of the sequence. Returns whether these are more new ones than a step brings.
    pub(super) fn catches_up(&mut self, n: usize) -> bool {
        let n_new = n.saturating_sub(self.n_read_by_model);
        self.n_read_by_model = n;
        n_new > self.options.most + 1
    }

    /// Takes the tokens of a drafter with weights: those before the first that the request or the vocabulary excludes.
    pub(super) fn take(&mut self, draft: &Draft) {
        let of = |at: usize| draft.probabilities.get(at).copied().unwrap_or(0.0);
        let is_fit = |(at, token): &(usize, &u32)| {
            (**token as usize) < self.n_vocab
                && (self.limits.p_min <= 0.0 || of(*at) >= self.limits.p_min)
        };
        let tokens = draft.tokens.iter().enumerate().take(self.n_step);
        let tokens: Vec<u32> = tokens.take_while(is_fit).map(|(_, token)| *token).collect();
        self.proposals[DrafterKind::Model as usize] = Proposal {
            classes: (0..tokens.len())
                .map(|at| Class::of_probability(of(at)))
                .collect(),
            tokens,
        };
    }

    /// For each token of these classes how likely it is that it and all before it are right.
    fn odds(&self, classes: impl Iterator<Item = Class>, all: &Acceptance) -> Vec<f64> {
        let mut odds = 1.0;
        let odds = classes.map(|class| {
            odds *= all.share(class, &self.own);
            odds
        });
        odds.collect()
    }

    /// The same of `n` tokens that a drafter with weights has yet to make.
    fn odds_of_model(&self, n: usize, all: &Acceptance) -> Vec<f64> {
        self.odds((0..n).map(Class::of_position), all)
    }

    /// The proposal of which the most tokens are expected to be right, with the odds of its tokens.
    fn best(&self, all: &Acceptance) -> (DrafterKind, Vec<f64>) {
        let proposals = DrafterKind::ALL.into_iter().zip(&self.proposals);
        let odds = proposals.map(|(kind, of)| (kind, self.odds(of.classes.iter().copied(), all)));
        let expected = |odds: &[f64]| odds.iter().sum::<f64>();
        // Of equal ones the first.
        let best = odds.reduce(|a, b| {
            if expected(&b.1) > expected(&a.1) {
                b
            } else {
                a
            }
        });
        best.unwrap_or((DrafterKind::Lookup, Vec::new()))
    }

    /// Has the step read the first `n` tokens of a drafter, or none if these are fewer than the request wants.
    fn choose(&mut self, kind: DrafterKind, n: usize) {
        self.read = (kind, if n < self.limits.n_min { 0 } else { n });
    }

    /// The draft tokens that the step reads.
    pub(super) fn tokens(&self) -> &[u32] {
        let (kind, n) = self.read;
        &self.proposals[kind as usize].tokens[..n]
    }

    /// Keeps only the first `n` draft tokens, which the pass reads.
    pub(super) fn truncate(&mut self, n: usize) {
        self.read.1 = self.read.1.min(n);
    }

    /// Ends the step, in which these tokens were chosen: notes what became of all proposals, also of those that were not read.
    pub(super) fn learn(&mut self, chosen: &[u32]) -> StepDraft {
        for (kind, of) in DrafterKind::ALL.into_iter().zip(&self.proposals) {
            let tried = chosen.iter().zip(&of.tokens).enumerate();
            for (at, (token, drafted)) in tried {
                let is_right = token == drafted;
                self.outcomes.push((of.classes[at], is_right));
                if kind == DrafterKind::Model {
                    self.outcomes.push((Class::of_position(at), is_right));
                }
                if !is_right {
                    break;
                }
            }
        }
        for (class, is_right) in &self.outcomes {
            self.own.count(*class, *is_right);
        }
        let (kind, n_drafted) = self.read;
        let right = self.tokens().iter().zip(chosen);
        let n_accepted = right.take_while(|(a, b)| a == b).count();
        let step = StepDraft {
            kind,
            n_drafted,
            // The last chosen token is not read yet, whether or not it ends the completion.
            n_accepted: n_accepted.min(chosen.len().saturating_sub(1)),
        };
        self.last = Some(step);
        self.read.1 = 0;
        self.proposals = Default::default();
        step
    }

    /// Adds what became of proposals to that of all sequences, once.
    fn report(&mut self, all: &mut Acceptance) -> Option<StepDraft> {
        for (class, is_right) in self.outcomes.drain(..) {
            all.count(class, is_right);
        }
        self.last.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked_up(options: DraftOptions, limits: DraftLimits, tokens: &[u32]) -> Drafter {
        let mut drafter = Drafter::new(options, limits, 10_000).expect("it is on");
        drafter.begin(tokens, 8);
        let client = "a".into();
        drafter.look_up(tokens, &mut SharedDrafts::default(), (&client, &[]));
        drafter
    }

    const TEXT: [u32; 9] = [1, 2, 3, 4, 5, 6, 1, 2, 3];

    fn of(most: usize) -> DraftOptions {
        DraftOptions {
            most,
            ..DraftOptions::ON
        }
    }

    #[test]
    fn proposals_are_learned_from_whether_they_are_read_or_not() {
        let mut all = Acceptance::default();
        let mut drafter = looked_up(of(4), DraftLimits::default(), &TEXT);
        let (kind, before) = drafter.best(&all);
        assert_eq!((kind, before.len()), (DrafterKind::Lookup, 4));
        assert!(
            drafter.tokens().is_empty(),
            "nothing is read unless it is chosen"
        );
        drafter.learn(&[4]);
        drafter.report(&mut all);
        let mut other = looked_up(of(4), DraftLimits::default(), &TEXT);
        let (_, after) = other.best(&all);
        assert!(after[0] > before[0], "{before:?} {after:?}");
        other.choose(DrafterKind::Lookup, 3);
        assert_eq!(other.tokens(), [4, 5, 6]);
        let step = StepDraft {
            kind: DrafterKind::Lookup,
            n_drafted: 3,
            n_accepted: 2,
        };
        assert_eq!(other.learn(&[4, 5, 9]), step);
        let reported = all.clone();
        assert_eq!(other.report(&mut all), Some(step));
        assert_ne!(reported, all);
        let reported = all.clone();
        assert_eq!(other.report(&mut all), None);
        assert_eq!(reported, all, "each outcome counts once");
    }

    #[test]
    fn requests_limit_their_drafts() {
        assert!(Drafter::new(of(0), DraftLimits::default(), 100).is_none());
        let none = DraftLimits {
            n_max: Some(0),
            ..DraftLimits::default()
        };
        assert!(Drafter::new(DraftOptions::ON, none, 100).is_none());
        let limits = DraftLimits {
            n_max: Some(3),
            n_min: 2,
            p_min: 0.5,
        };
        let mut drafter = looked_up(of(8), limits, &TEXT);
        assert_eq!(drafter.best(&Acceptance::default()).1.len(), 3);
        drafter.choose(DrafterKind::Lookup, 1);
        assert!(drafter.tokens().is_empty(), "fewer than the request wants");
        drafter.choose(DrafterKind::Lookup, 2);
        assert_eq!(drafter.tokens(), [4, 5]);
        let draft = |tokens: &[u32], probabilities: &[f32]| Draft {
            tokens: tokens.to_vec(),
            probabilities: probabilities.to_vec(),
        };
        let mut taken = |of: &Draft| {
            drafter.take(of);
            drafter.proposals[2].tokens.clone()
        };
        assert_eq!(taken(&draft(&[7, 8, 9, 10], &[0.9; 4])), [7, 8, 9]);
        assert_eq!(taken(&draft(&[7, 8, 9], &[0.9, 0.4, 0.9])), [7]);
        assert_eq!(taken(&draft(&[7, 10_000, 9], &[0.9; 3])), [7]);
        assert_eq!(taken(&draft(&[7, 8], &[0.9])), [7]);
        assert!(taken(&draft(&[7], &[f32::NAN])).is_empty());
    }

    #[test]
    fn a_long_prompt_is_indexed_over_several_steps() {
        let long: Vec<u32> = (0..MOST_INDEXED as u32 + 10).chain([5, 6]).collect();
        let mut drafter = looked_up(of(4), DraftLimits::default(), &long);
        assert!(drafter.best(&Acceptance::default()).1.is_empty());
        drafter.begin(&long, 8);
        drafter.look_up(&long, &mut SharedDrafts::default(), (&"a".into(), &[]));
        assert_eq!(drafter.proposals[0].tokens, [7, 8, 9, 10]);
    }
}
