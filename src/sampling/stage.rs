//! The interface of a stage of the chain.
//!
//! A stage narrows or reweighs the candidates of one step, knowing the tokens so far; it may
//! keep state, which it changes only when tokens are accepted. A new one is a file with a
//! `build` function, and a row in `table.rs`; the file name is the name that users write. The
//! pick that ends every chain is not a stage.

use std::fmt;

use super::candidates::Candidates;
use super::error::SampleError;
use super::history::{History, Origin};
use super::random::Random;
use super::select::Cut;

/// What a stage may read of the step besides its candidates.
#[derive(Debug)]
pub(super) struct StageInput<'a> {
    /// The tokens so far, given and generated.
    pub(super) history: &'a History,
    /// The random numbers of this choice.
    pub(super) rng: &'a Random,
    /// Which of them.
    pub(super) draw: u64,
}

impl StageInput<'_> {
    /// A number in `[0, 1)`, the same in every call of this step with this `lane`. Who draws has
    /// a lane of its own, so that one stage's draws leave those of all others as they were.
    pub(super) fn uniform(&self, lane: u32) -> f64 {
        self.rng.uniform(self.draw, lane)
    }
}

/// One stage of the chain.
pub(super) trait Stage: fmt::Debug + Send {
    /// Narrows or reweighs the candidates.
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        step: &StageInput<'_>,
    ) -> Result<(), SampleError>;

    /// Learns that the last `n_new` tokens of `history` came in.
    fn accept(&mut self, _history: &History, _n_new: usize, _origin: Origin) {}

    /// Updates the state with the token that was sampled after the chain, and its probability among the candidates.
    /// Until that token is accepted nothing may follow from it: it may be drawn again.
    fn drawn(&mut self, _token: u32, _probability: f64) {}

    /// Whether the best candidate always stays the best, so that a greedy pick right after this
    /// stage can do without it.
    fn keeps_best(&self) -> bool {
        false
    }
}

/// What a cut keeps of logits whose largest is known; the buffer is scratch.
pub(super) type CutFn = fn(&[f32], f32, f64, &mut Vec<f32>) -> Cut;

/// Keeps a part of the candidates that a number decides, the best among them.
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

/// The stage of such a cut, unless the number has its neutral value.
pub(super) fn cut(value: f64, off: f64, cut: CutFn) -> Option<Box<dyn Stage>> {
    (value != off).then(|| Box::new(CutBy { value, cut }) as Box<dyn Stage>)
}
