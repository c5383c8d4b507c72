//! The inputs of a list of tokens: the tokens of a pass, or those of its sources.

use std::collections::HashMap;
use std::sync::Arc;

use crate::plan::Plan;
use lab_base::ggml::{Executor, Graph, Result, Tensor};
use lab_base::weights::TensorType;

use super::super::adapters::ModelAdapters;
use super::super::batch::Batch;
use super::super::cache::{BlockManager, NOBODY, SequenceId};
use super::super::media::SequenceMedia;
use super::data::PassData;
use super::derived::{DerivedTensors, TokenLookup};
use super::rows::{AdapterScales, TokenIds};

/// The inputs of a list of tokens.
pub(crate) struct ListInputs {
    /// Token ids; none if the list is empty, or has rows in their place.
    pub(crate) tokens: Option<TokenIds>,
    /// The rows of a source `[n_embd, n]`, f32; none if it is read as tokens.
    pub(crate) rows: Option<Tensor>,
    pub(crate) scales: AdapterScales,
    pub(crate) derived: DerivedTensors,
}

impl ListInputs {
    pub(super) fn new(
        g: &Graph,
        prefix: &'static str,
        n: usize,
        plan: &Plan,
        adapters: &[usize],
    ) -> Result<Self> {
        let n = n as u64;
        let adapters = if n > 0 { adapters } else { &[] };
        let tokens = (n > 0).then(|| TokenIds::new(g, prefix, n, plan.n_vocab));
        Ok(Self {
            tokens: tokens.transpose()?,
            rows: None,
            scales: AdapterScales::new(g, prefix, adapters, n)?,
            derived: DerivedTensors::new(prefix, n),
        })
    }

    /// The inputs of `n` rows in the place of tokens.
    pub(super) fn of_rows(
        g: &Graph,
        prefix: &'static str,
        n: usize,
        plan: &Plan,
        adapters: &[usize],
    ) -> Result<Self> {
        let n = n as u64;
        let name = format!("{prefix}rows");
        Ok(Self {
            tokens: None,
            rows: Some(g.input(&name, TensorType::F32, &[plan.n_embd, n])?),
            scales: AdapterScales::new(g, prefix, adapters, n)?,
            derived: DerivedTensors::new(prefix, n),
        })
    }

    /// The token ids, if the tokens decide nothing else.
    pub(crate) fn only_ids(&self) -> Option<&Tensor> {
        let ids = self.tokens.as_ref().map(|tokens| &tokens.0);
        ids.filter(|_| !self.derived.follow_from_tokens())
    }

    pub(super) fn write(
        &self,
        executor: &mut Executor,
        batch: &Batch,
        adapters: &ModelAdapters,
        known: &dyn TokenLookup,
    ) -> Result<()> {
        if let Some(tokens) = &self.tokens {
            tokens.write(executor, batch)?;
        }
        self.derived.write(executor, batch, known)?;
        let sequences = batch.positions.iter().map(|(sequence, _)| *sequence);
        self.scales.write(executor, adapters, &sequences)
    }
}

/// Knowledge of the sequences whose tokens a pass reads.
pub(super) struct BatchTokens<'a> {
    block_manager: &'a BlockManager,
    media: &'a HashMap<SequenceId, Arc<SequenceMedia>>,
    /// The tokens of the pass by sequence and place; empty if the block manager has them.
    own: HashMap<(SequenceId, u32), u32>,
}

impl<'a> BatchTokens<'a> {
    /// Knowledge of sequences all of whose tokens have their places in the cache.
    pub(super) fn stored(
        block_manager: &'a BlockManager,
        media: &'a HashMap<SequenceId, Arc<SequenceMedia>>,
    ) -> Self {
        Self {
            block_manager,
            media,
            own: HashMap::new(),
        }
    }

    pub(super) fn new(data: &PassData<'a>) -> Self {
        let places = data.batch.positions.iter().copied();
        let is_kept = !data.allocated.slots.is_empty();
        let own = places.zip(data.batch.tokens.iter().copied());
        Self {
            block_manager: data.block_manager,
            media: data.of_sequences,
            own: if is_kept {
                HashMap::new()
            } else {
                own.collect()
            },
        }
    }
}

impl TokenLookup for BatchTokens<'_> {
    fn first(&self, sequence: SequenceId) -> u32 {
        match sequence {
            // The position of a row of nobody stands for a home.
            NOBODY => u32::MAX,
            _ => self.block_manager.n_source(sequence),
        }
    }

    fn token(&self, sequence: SequenceId, place: u32) -> Option<u32> {
        let own = self.own.get(&(sequence, place)).copied();
        own.or_else(|| self.block_manager.token(sequence, place))
    }

    fn rotated(&self, sequence: SequenceId, position: u32) -> [u32; 3] {
        match self.media.get(&sequence) {
            Some(media) => media.rotated(position),
            None => [position; 3],
        }
    }
}

/// Knowledge of the sources that a pass reads: positions count from 0, and no token is known.
pub(super) struct SourceTokens;

impl TokenLookup for SourceTokens {
    fn first(&self, _: SequenceId) -> u32 {
        0
    }

    fn token(&self, _: SequenceId, _: u32) -> Option<u32> {
        None
    }
}
