//! The interface of a stage of the chain.
//!
//! A stage removes or reweights the candidates of one step, given the tokens so far; it may keep state, which changes
//! only when tokens are accepted. A new stage is a file with a `build` function, and a row in `table.rs`; the file name
//! is the name that users write. The pick at the end of every chain is not a stage.

use std::fmt;

use super::candidates::Candidates;
use super::error::SampleError;
use super::history::{History, TokenOrigin};
use super::random::Random;
use super::select::Cut;
use super::softmax::sum_exp;

#[derive(Debug)]
pub(super) struct StageInput<'a> {
    pub(super) history: &'a History,
    pub(super) rng: &'a Random,
    pub(super) draw: u64,
}

impl StageInput<'_> {
    /// A random number in `[0, 1)`, the same in every call of this step with this `lane`. Each stage that draws, and
    /// the pick, has its own lane, so that its draws do not change those of the others.
    pub(super) fn uniform(&self, lane: u32) -> f64 {
        self.rng.uniform(self.draw, lane)
    }
}

pub(super) trait Stage: fmt::Debug + Send {
    /// Removes or reweights candidates.
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        step: &StageInput<'_>,
    ) -> Result<(), SampleError>;

    /// Called after the last `n_new` tokens of `history` were accepted.
    fn accept(&mut self, _history: &History, _n_new: usize, _origin: TokenOrigin) {}

    /// Records the token that was sampled after the chain, and its probability among the candidates. It must have no
    /// effect before that token is accepted: the token may be drawn again.
    fn drawn(&mut self, _token: u32, _probability: f64) {}

    /// Whether the highest logits of a row, so many, are worth a try before all are read.
    fn decides_by(&self, _n: usize) -> bool {
        true
    }

    /// The tokens that it removes, if it does the same in every step and changes nothing else.
    fn banned(&self) -> Option<Vec<u32>> {
        None
    }

    /// Whether the best candidate always stays the best. A greedy pick right after this stage can then skip it.
    fn keeps_best(&self) -> bool {
        false
    }
}

/// The candidates of which a part is to be kept.
#[derive(Clone, Copy)]
pub(super) struct CutInput<'a> {
    pub(super) logits: &'a [f32],
    /// The highest logit.
    pub(super) max: f32,
    /// The sum of e^(logit - max) of the candidates that are not listed; none if all are.
    pub(super) unlisted: Option<f64>,
}

impl CutInput<'_> {
    /// The sum of e^(logit - max) of all candidates.
    pub(super) fn total(&self) -> f64 {
        sum_exp(self.logits, self.max) + self.unlisted.unwrap_or(0.0)
    }
}

/// A function from candidates and a parameter to a cut; the buffer is scratch. If candidates that are not listed
/// decide, the cut is [`Cut::UNDECIDED`].
pub(super) type CutFn = fn(&CutInput<'_>, f64, &mut Vec<f32>) -> Cut;

/// A stage that keeps a part of the candidates, including the best. A number decides which.
#[derive(Debug)]
struct CutBy {
    value: f64,
    cut: CutFn,
    /// Whether every candidate matters.
    needs_all: bool,
}

impl Stage for CutBy {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        _step: &StageInput<'_>,
    ) -> Result<(), SampleError> {
        if self.needs_all {
            candidates.need_all()?;
        }
        let max = candidates.max()?;
        let unlisted = candidates.unlisted(max);
        let (logits, scratch) = candidates.logits_and_scratch();
        let mut cut = |unlisted| {
            let input = CutInput {
                logits,
                max,
                unlisted,
            };
            (self.cut)(&input, self.value, &mut scratch.values)
        };
        match unlisted {
            None => {
                let cut = cut(None);
                candidates.keep(cut)
            }
            Some((least, most)) => {
                let (one, other) = (cut(Some(least)), cut(Some(most)));
                candidates.keep_decided(one, other)
            }
        }
    }

    fn decides_by(&self, _n: usize) -> bool {
        !self.needs_all
    }

    fn keeps_best(&self) -> bool {
        true
    }
}

/// The stage of a cut; `None` if the number has its neutral value.
pub(super) fn cut(value: f64, off: f64, cut: CutFn) -> Option<Box<dyn Stage>> {
    stage_of(value, off, cut, false)
}

/// The stage of a cut for which every candidate matters.
pub(super) fn cut_of_all(value: f64, off: f64, cut: CutFn) -> Option<Box<dyn Stage>> {
    stage_of(value, off, cut, true)
}

fn stage_of(value: f64, off: f64, cut: CutFn, needs_all: bool) -> Option<Box<dyn Stage>> {
    let stage = CutBy {
        value,
        cut,
        needs_all,
    };
    (value != off).then(|| Box::new(stage) as Box<dyn Stage>)
}
