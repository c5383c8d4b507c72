//! The interface of the engine loop to a model. Tests run the loop over a model with known logits.

use std::sync::Arc;
use std::time::Instant;

use crate::model::{
    self, Batch, CachedPrefix, CapturedRow, DirectHeads, DirectLogit, Draft, DraftRequest,
    EncodedMedia, KvEvent, Lab, Model, NotFinite, PassCounts, PassRow, PassSink, PrefixBlocks,
    SequenceId,
};
use crate::models::lora::Adapter;
use crate::models::media::PromptMedia;
use crate::plan::BLOCK_LEN;

/// Number of positions of a KV block.
pub(super) const BLOCK: usize = BLOCK_LEN as usize;

/// Number of rows of a pass for which all logits are kept until the pass ends, or as many as sequences run.
const KEPT_ROWS: usize = 64;

/// The sequences of the cache.
pub(super) trait SequenceCache {
    fn begin(&mut self, sequence: SequenceId, scales: &[f32], lab: Option<&Arc<Lab>>);
    /// See [`Model::set_source`]. After an error no token of the sequence is read.
    fn set_source(&mut self, sequence: SequenceId, source: &[u32]);
    /// See [`Model::encode_media`].
    fn encode_media(
        &mut self,
        media: &PromptMedia,
        encoded: &mut EncodedMedia,
        end: Instant,
    ) -> model::Result<bool>;
    /// See [`Model::set_prompt_media`]. After an error no token of the media is read.
    fn set_media(
        &mut self,
        sequence: SequenceId,
        media: (&PromptMedia, &EncodedMedia),
        prompt: &[u32],
    );
    fn resume(&mut self, sequence: SequenceId, tokens: &[u32]) -> CachedPrefix;
    /// See [`Model::cached_instead`].
    fn cached_instead(&self, _: SequenceId, _: &[u32]) -> Option<Vec<u32>> {
        None
    }
    fn next(&self, sequence: SequenceId) -> u32;
    fn forget(&mut self, sequence: SequenceId, from: u32) -> u32;
    /// See [`Model::hold`].
    fn hold(&mut self, _: SequenceId) {}
    fn release(&mut self, sequence: SequenceId);
    fn discard(&mut self, sequence: SequenceId);
    /// Free blocks of the cache; none if no block is kept between passes.
    fn n_free_blocks(&self) -> Option<usize>;
    /// Whether each sequence has a recurrent state, which cannot be rolled back.
    fn has_states(&self) -> bool;
    fn is_shared(&self) -> bool;
    /// See [`Model::add_adapter`].
    fn add_adapter(&mut self, adapter: &Adapter) -> model::Result<()>;
    /// Frees an adapter that no sequence uses.
    fn remove_adapter(&mut self, id: usize);
}

/// The blocks of the prefix cache as bytes. A cache without a layout has none.
pub(super) trait PrefixBytes {
    /// See [`Model::prefix_parts`].
    fn prefix_parts(&mut self, _: &[f32], _: &[u32]) -> Vec<u64> {
        Vec::new()
    }
    /// See [`Model::read_prefix`].
    fn read_prefix(
        &mut self,
        _: &[f32],
        _: &[u32],
        _: usize,
        _: &[u64],
    ) -> model::Result<PrefixBlocks> {
        Ok(PrefixBlocks::default())
    }
    /// See [`Model::write_prefix`].
    fn write_prefix(
        &mut self,
        _: &[f32],
        _: &[u32],
        _: &PrefixBlocks,
        _: &[u64],
    ) -> model::Result<()> {
        Ok(())
    }
    /// See [`Model::erase_prefix`].
    fn erase_prefix(&mut self, _: &[f32], _: &[u32]) -> usize {
        0
    }
    /// See [`Model::take_kv_events`].
    fn take_kv_events(&mut self) -> Vec<KvEvent> {
        Vec::new()
    }
}

impl PrefixBytes for Model {
    fn prefix_parts(&mut self, scales: &[f32], tokens: &[u32]) -> Vec<u64> {
        Self::prefix_parts(self, scales, tokens)
    }

    fn read_prefix(
        &mut self,
        scales: &[f32],
        tokens: &[u32],
        first: usize,
        wanted: &[u64],
    ) -> model::Result<PrefixBlocks> {
        Self::read_prefix(self, scales, tokens, first, wanted)
    }

    fn write_prefix(
        &mut self,
        scales: &[f32],
        before: &[u32],
        blocks: &PrefixBlocks,
        wanted: &[u64],
    ) -> model::Result<()> {
        Self::write_prefix(self, scales, before, blocks, wanted)
    }

    fn erase_prefix(&mut self, scales: &[f32], tokens: &[u32]) -> usize {
        Self::erase_prefix(self, scales, tokens)
    }

    fn take_kv_events(&mut self) -> Vec<KvEvent> {
        Self::take_kv_events(self)
    }
}

/// What a lab request computes besides passes.
pub(super) trait LabCompute {
    fn captured_rows(&mut self) -> Vec<CapturedRow>;
    fn lens(&mut self, sequence: SequenceId, rows: (&[f32], usize)) -> model::Result<Vec<f32>>;
    fn direct_logit(&mut self, token: u32) -> model::Result<DirectLogit>;
    fn direct_heads(&mut self, at: usize, along: &[f64]) -> model::Result<DirectHeads>;
}

/// Runs forward passes over the sequences of a cache.
pub(super) trait Compute: SequenceCache + PrefixBytes + LabCompute {
    /// Runs a pass and hands out its rows, in order unless the batch wants the highest logits. A pass that fails may have handed out
    /// some rows before.
    fn forward(&mut self, batch: &Batch, sink: &mut dyn PassSink) -> model::Result<()>;
    fn pool(&mut self, rows: &[f32]) -> model::Result<Vec<f32>>;
    /// The most tokens that its drafter with weights makes of a sequence; none: it has no drafter.
    fn drafter(&self) -> Option<usize> {
        None
    }
    /// Whether that drafter makes all tokens of a draft in one pass.
    fn drafts_blocks(&self) -> bool {
        false
    }
    /// The drafts of sequences, in their order. They are computed before the pass that reads them.
    fn draft(&mut self, _wanted: &[DraftRequest<'_>]) -> model::Result<Vec<Draft>> {
        Ok(Vec::new())
    }
    /// See [`Model::computes_elsewhere`].
    fn computes_elsewhere(&self) -> bool {
        false
    }
    /// See [`Model::is_ahead`].
    fn is_ahead(&self) -> bool {
        false
    }
    /// Whether the time of a pass says what it costs.
    fn takes_time(&self) -> bool {
        false
    }
    /// What passes did so far.
    fn work(&self) -> PassCounts {
        PassCounts::default()
    }
    fn park_threads(&self);
    fn n_batch(&self) -> usize;
    /// The first value that is not finite in a pass over these tokens, in words; see [`Model::first_not_finite`].
    fn first_not_finite(&self, sequence: SequenceId, tokens: &[u32]) -> Option<String>;
}

impl Compute for Model {
    fn forward(&mut self, batch: &Batch, sink: &mut dyn PassSink) -> model::Result<()> {
        let n_vocab = self.row_width();
        let n_kept = KEPT_ROWS.max(self.options().n_seqs);
        if batch.n_outputs() > n_kept && !batch.wants_hidden && !batch.wants_top {
            // Text diffusion or a scored prompt: too many logits to keep them all.
            return self.forward_each(batch, &mut |first, rows: &[f32]| {
                let rows = rows.chunks_exact(n_vocab).enumerate();
                let rows = rows.map(|(at, row)| (first + at, PassRow::of(row)));
                sink.rows(&rows.collect::<Vec<_>>());
            });
        }
        Self::forward_rows(self, batch, sink)
    }

    fn pool(&mut self, rows: &[f32]) -> model::Result<Vec<f32>> {
        Self::pool(self, rows)
    }

    fn computes_elsewhere(&self) -> bool {
        Self::computes_elsewhere(self)
    }

    fn is_ahead(&self) -> bool {
        Self::is_ahead(self)
    }

    fn drafter(&self) -> Option<usize> {
        Self::drafter(self)
    }

    fn drafts_blocks(&self) -> bool {
        Self::drafts_blocks(self)
    }

    fn draft(&mut self, wanted: &[DraftRequest<'_>]) -> model::Result<Vec<Draft>> {
        Self::draft(self, wanted)
    }

    fn takes_time(&self) -> bool {
        true
    }

    fn work(&self) -> PassCounts {
        Self::work(self)
    }

    fn park_threads(&self) {
        Self::park_threads(self);
    }

    fn n_batch(&self) -> usize {
        self.options().n_batch
    }

    fn first_not_finite(&self, sequence: SequenceId, tokens: &[u32]) -> Option<String> {
        let found: Result<Option<NotFinite>, _> = Self::first_not_finite(self, sequence, tokens);
        match found {
            Ok(found) => found.map(|found| found.to_string()),
            Err(error) => {
                tracing::warn!(%error, "the first value that is not finite was not found");
                None
            }
        }
    }
}

impl SequenceCache for Model {
    fn begin(&mut self, sequence: SequenceId, scales: &[f32], lab: Option<&Arc<Lab>>) {
        Self::begin(self, sequence, scales, lab);
    }

    fn set_source(&mut self, sequence: SequenceId, source: &[u32]) {
        if let Err(error) = Self::set_source(self, sequence, source) {
            tracing::error!(%error, sequence, "the source is not read");
        }
    }

    fn encode_media(
        &mut self,
        media: &PromptMedia,
        encoded: &mut EncodedMedia,
        end: Instant,
    ) -> model::Result<bool> {
        Self::encode_media(self, media, encoded, Some(end))
    }

    fn set_media(
        &mut self,
        sequence: SequenceId,
        media: (&PromptMedia, &EncodedMedia),
        prompt: &[u32],
    ) {
        if let Err(error) = Self::set_prompt_media(self, sequence, media, prompt) {
            tracing::error!(%error, sequence, "the media are not read");
        }
    }

    fn resume(&mut self, sequence: SequenceId, tokens: &[u32]) -> CachedPrefix {
        Self::resume(self, sequence, tokens)
    }

    fn cached_instead(&self, sequence: SequenceId, tokens: &[u32]) -> Option<Vec<u32>> {
        Self::cached_instead(self, sequence, tokens)
    }

    fn next(&self, sequence: SequenceId) -> u32 {
        Self::next(self, sequence)
    }

    fn forget(&mut self, sequence: SequenceId, from: u32) -> u32 {
        Self::forget(self, sequence, from)
    }

    fn hold(&mut self, sequence: SequenceId) {
        Self::hold(self, sequence);
    }

    fn release(&mut self, sequence: SequenceId) {
        Self::release(self, sequence);
    }

    fn discard(&mut self, sequence: SequenceId) {
        Self::discard(self, sequence);
    }

    fn n_free_blocks(&self) -> Option<usize> {
        (self.options().n_ctx > 0).then(|| self.free_slots() / BLOCK)
    }

    fn has_states(&self) -> bool {
        Self::has_states(self)
    }

    fn is_shared(&self) -> bool {
        Self::is_shared(self)
    }

    fn add_adapter(&mut self, adapter: &Adapter) -> model::Result<()> {
        Self::add_adapter(self, adapter)
    }

    fn remove_adapter(&mut self, id: usize) {
        Self::remove_adapter(self, id);
    }
}

impl LabCompute for Model {
    fn captured_rows(&mut self) -> Vec<CapturedRow> {
        Self::captured_rows(self)
    }

    fn lens(&mut self, sequence: SequenceId, rows: (&[f32], usize)) -> model::Result<Vec<f32>> {
        Self::lens(self, sequence, rows)
    }

    fn direct_logit(&mut self, token: u32) -> model::Result<DirectLogit> {
        Self::direct_logit(self, token)
    }

    fn direct_heads(&mut self, at: usize, along: &[f64]) -> model::Result<DirectHeads> {
        Self::direct_heads(self, at, along)
    }
}
