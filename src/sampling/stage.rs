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

    /// Whether the best candidate always stays the best. A greedy pick right after this stage can then skip it.
    fn keeps_best(&self) -> bool {
        false
    }
}

/// A function from logits, their maximum and a parameter to a cut; the buffer is scratch.
pub(super) type CutFn = fn(&[f32], f32, f64, &mut Vec<f32>) -> Cut;

/// A stage that keeps a part of the candidates, including the best. A number decides which.
#[derive(Debug)]
struct CutBy {
    value: f64,
    cut: CutFn,
}

impl Stage for CutBy {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        _step: &StageInput<'_>,
    ) -> Result<(), SampleError> {
        let max = candidates.max()?;
        let (logits, scratch) = candidates.logits_and_scratch();
        let cut = (self.cut)(logits, max, self.value, &mut scratch.values);
        candidates.keep(cut);
        Ok(())
    }

    fn keeps_best(&self) -> bool {
        true
    }
}

/// The stage of a cut; `None` if the number has its neutral value.
pub(super) fn cut(value: f64, off: f64, cut: CutFn) -> Option<Box<dyn Stage>> {
    (value != off).then(|| Box::new(CutBy { value, cut }) as Box<dyn Stage>)
}
