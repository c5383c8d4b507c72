//! The sequences of a model: where each continues, what is shared, how each ends.

use std::sync::Arc;

use super::adapters::LoadedAdapter;
use super::cache::{AfterCopies, CachedPrefix, SequenceId};
use super::lab::Lab;
use super::lifecycle::Model;

impl Model {
    /// Starts a sequence with the cached prefix of its tokens, without the last token. With recurrent states, the
    /// prefix ends with a block. A running sequence continues where it is.
    pub fn resume(&mut self, sequence: SequenceId, tokens: &[u32]) -> CachedPrefix {
        self.undo_prepared();
        let with_media = self.with_media(sequence, tokens, 0);
        let tokens = with_media.as_deref().unwrap_or(tokens);
        let source = self.sources.of(sequence);
        let n_source = source.len();
        let resumed = match n_source {
            0 => self.block_manager.resume(sequence, tokens),
            _ => {
                let all = [&source.tokens[..], tokens].concat();
                self.block_manager.resume(sequence, &all)
            }
        };
        let (resumed, is_copied) = self.copied(resumed);
        let n_cached = if is_copied { resumed.n_cached } else { 0 };
        CachedPrefix {
            n_cached: self.after_source(sequence, n_cached),
            n_known: resumed.n_known.saturating_sub(n_source),
            has_source: n_source > 0 && n_cached >= n_source,
            miss: resumed.miss.after(n_source),
        }
    }

    /// The tokens that are cached in the place of the first ones of `tokens` that are not, up to the end of a KV block; none if
    /// nothing is cached there, or if tokens are media or follow a source.
    pub fn cached_instead(&self, sequence: SequenceId, tokens: &[u32]) -> Option<Vec<u32>> {
        let is_text = !self.media.contains_key(&sequence) && self.sources.of(sequence).is_empty();
        let found = is_text.then(|| self.block_manager.cached_instead(sequence, tokens))??;
        Some(found.to_vec())
    }

    /// Converts the position `next` in the cache, at which a sequence continues, to a position among its tokens. A
    /// part of a source is released, because sources are read as a whole.
    fn after_source(&mut self, sequence: SequenceId, next: usize) -> usize {
        let n_source = self.sources.of(sequence).len();
        if next > 0 && next < n_source {
            self.block_manager.release(sequence);
        }
        next.saturating_sub(n_source)
    }

    /// Makes copies in the cache. Returns whether that succeeded; otherwise every sequence starts anew.
    fn copied<T>(&mut self, change: AfterCopies<T>) -> (T, bool) {
        let (result, copied) = change.make(|copy| self.copy_slots(copy));
        if let Err(error) = &copied {
            tracing::error!(%error, "a block is not copied");
            self.block_manager.abandon();
        }
        (result, copied.is_ok())
    }

    /// The position of the next token of a sequence; 0 if nothing of it is cached.
    pub fn next(&self, sequence: SequenceId) -> u32 {
        let n_source = self.sources.of(sequence).len() as u32;
        self.block_manager.next(sequence).saturating_sub(n_source)
    }

    /// Removes the positions of a sequence from `from` on, and earlier ones if the cache cannot be cut there
    /// (recurrent state, window that has moved on). Returns the position at which the sequence continues.
    pub fn forget(&mut self, sequence: SequenceId, from: u32) -> u32 {
        let n_source = self.sources.of(sequence).len() as u32;
        self.undo_prepared();
        // A fault of the first token may be a fault of the source.
        let from = if from == 0 { 0 } else { n_source + from };
        let next = self.block_manager.forget(sequence, from);
        let (next, is_copied) = self.copied(next);
        let next = self.after_source(sequence, if is_copied { next } else { 0 }) as u32;
        if let Some(drafter) = &mut self.drafter {
            // What lies before is read again with the same values.
            drafter.forget(sequence, from.saturating_sub(n_source));
        }
        next
    }

    /// Keeps the state of a sequence before its next pass, so that [`Self::forget`] can take that pass back, if there is room. Without
    /// recurrent states there is no need for it.
    pub fn hold(&mut self, sequence: SequenceId) {
        self.block_manager.hold(sequence);
    }

    /// Ends a sequence whose keys, values and states are wrong: its prefix does not stay cached.
    pub fn discard(&mut self, sequence: SequenceId) {
        self.undo_prepared();
        if let Some(drafter) = &mut self.drafter {
            drafter.release(sequence);
        }
        self.clear_slots(sequence);
        self.block_manager.discard(sequence);
    }

    /// Ends a sequence. Its blocks stay cached while there is room.
    pub fn release(&mut self, sequence: SequenceId) {
        if let Some(drafter) = &mut self.drafter {
            drafter.release(sequence);
        }
        self.release_prepared(sequence);
    }

    /// The adapters, in their order.
    pub fn adapters(&self) -> &[LoadedAdapter] {
        &self.adapters.all
    }

    /// Sets the scales for later sequences of this id, one for each adapter; missing ones are zero. The present
    /// sequence is released.
    pub fn set_scales(&mut self, sequence: SequenceId, scales: &[f32]) {
        self.begin(sequence, scales, None);
    }

    /// [`Self::set_scales`] with captures and edits. Results that are computed with edits are reused only with the
    /// same edits.
    pub fn begin(&mut self, sequence: SequenceId, scales: &[f32], lab: Option<&Arc<Lab>>) {
        self.release(sequence);
        self.forget_media(sequence);
        let had_lab = match lab {
            Some(lab) => self.labs.insert(sequence, Arc::clone(lab)),
            None => self.labs.remove(&sequence),
        };
        let has_key = had_lab.as_ref().or(lab).is_some();
        if self.adapters.all.is_empty() && !has_key {
            return;
        }
        if !self.adapters.all.is_empty() {
            self.adapters.set_scales(sequence, scales);
        }
        self.set_prefix_key(sequence);
    }
}
