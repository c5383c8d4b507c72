//! A model with its drafter: loading it, its memory, its drafts.

use std::collections::HashSet;

use crate::models::drafters::OpenedDrafter;
use crate::plan::{Plan, TensorPlan};
use lab_base::weights::Weights;

use super::draft::{Draft, DraftRequest};
use super::drafter::Drafter;
use super::error::{Error, Result};
use super::estimate::Estimator;
use super::interleave::interleaved_names;
use super::lifecycle::Model;
use super::memory_use::MemoryUse;
use super::options::Options;
use super::text_drafter::TextDrafter;

/// The memory of a drafter that is not loaded, of a target with these weights and options.
///
/// # Errors
/// The drafter cannot run with these options.
pub fn drafter_memory(
    opened: &OpenedDrafter,
    (weights, target): (&Weights, &Plan),
    options: &Options,
) -> Result<MemoryUse> {
    let memory = |plan| -> Result<MemoryUse> {
        let mut estimator = Estimator::new(plan, &opened.weights)?;
        estimator.memory(&options.of_drafter(plan))
    };
    let mut own = memory(&opened.plan)?;
    for plan in &opened.further {
        own = own.with_model(&memory(plan)?);
    }
    let own_names = opened.plans().flat_map(interleaved_names).collect();
    let copied: [HashSet<&str>; 2] = [own_names, interleaved_names(target)];
    let is_copied = |of: &TensorPlan| {
        options.interleave && copied.iter().all(|names| names.contains(of.name.as_str()))
    };
    let (copied, mapped): (Vec<_>, Vec<_>) =
        opened.shared(weights, target).partition(|of| is_copied(of));
    let bytes = |all: Vec<&TensorPlan>| all.iter().map(|of| of.bytes).sum();
    Ok(own.without_shared(bytes(mapped), bytes(copied)))
}

impl Model {
    /// Loads its drafter, which is placed and reads the values of its passes from now on. The options of the model name these
    /// values ([`Options::for_drafter`]).
    ///
    /// # Errors
    /// The errors of [`Model::load`], or a drafter with another vocabulary.
    pub fn load_drafter(&mut self, mut opened: OpenedDrafter) -> Result<()> {
        let name = opened.name.clone();
        let vocabularies = opened.vocabularies.take();
        let drafter = Drafter::load(opened, self, vocabularies.is_some())?;
        self.drafter = Some(match vocabularies {
            Some(both) => Box::new(TextDrafter::new(drafter, both, self.options.n_ctx)),
            None => Box::new(drafter),
        });
        tracing::info!(drafter = name, "drafts the next tokens");
        Ok(())
    }

    /// The most tokens that its drafter drafts; none if it has no drafter.
    pub fn drafter(&self) -> Option<usize> {
        self.drafter.as_ref().map(|drafter| drafter.most())
    }

    /// Whether its drafter makes all tokens of a draft in one pass.
    pub fn drafts_blocks(&self) -> bool {
        let drafter = self.drafter.as_ref();
        drafter.is_some_and(|drafter| drafter.drafts_blocks())
    }

    /// The logits `[n_logits, n]` that its drafter computes, and `n_logits`: after each token of a sequence that this model has read since it began or was
    /// last drafted for, then after each token of the draft but the last.
    ///
    /// # Errors
    /// There is no drafter, no such token, more of them than a pass holds, or a computation fails.
    pub fn draft_logits(&mut self, wanted: &DraftRequest<'_>) -> Result<(Vec<f32>, usize)> {
        let Some(drafter) = &mut self.drafter else {
            return Err(Error::Drafter {
                found: "none".into(),
                expected: "a drafter".into(),
            });
        };
        Ok((drafter.logits(wanted)?, drafter.n_logits()))
    }

    /// Drafts for sequences, together: the tokens that its drafter holds for the likeliest.
    ///
    /// # Errors
    /// A computation of the drafter fails, or its cache is full. The sequences of the model are as before.
    pub fn draft(&mut self, wanted: &[DraftRequest<'_>]) -> Result<Vec<Draft>> {
        // Threads that wait for a pass of one model would delay those of the other.
        self.graphs.executor.rest();
        match &mut self.drafter {
            Some(drafter) => drafter.draft(wanted),
            None => Ok(vec![Draft::default(); wanted.len()]),
        }
    }
}
