//! Sources: the tokens that sequences of some models read before their own.
//!
//! A sequence has one source from its start to its end. Layers that read it compute all of it in one pass,
//! each source by itself, so that no bit depends on what else runs. What its tokens attend to of it is kept in the
//! cache, in front of what is kept of the tokens: position p of the tokens is position `n_source + p` there. The
//! prefix cache has one tree for each source.

use std::collections::BTreeSet;

use super::batch::Batch;
use super::cache::SequenceId;
use super::error::Error;
use super::lifecycle::Model;
use super::token_sources::key;

impl Model {
    /// Whether sequences have a source, without which no token of theirs is computed.
    pub fn reads_source(&self) -> bool {
        self.plan.source.is_some()
    }

    /// Gives a sequence a source. What was there of it is released.
    ///
    /// # Errors
    /// A model that reads none, a source that is empty or longer than a pass, an unknown token.
    pub fn set_source(&mut self, sequence: SequenceId, source: &[u32]) -> Result<(), Error> {
        self.release(sequence);
        // Where the new one is refused, the old one is not taken for it.
        self.sources.own.remove(&sequence);
        self.check_source(source)?;
        self.sources.own.insert(sequence, source.to_vec());
        self.set_prefix_key(sequence);
        Ok(())
    }

    /// Gives a source to all sequences that have none of their own, before any runs.
    ///
    /// # Errors
    /// As [`Self::set_source`].
    pub fn set_default_source(&mut self, source: &[u32]) -> Result<(), Error> {
        self.check_source(source)?;
        self.sources.default = source.to_vec();
        let key = key(&self.adapters.default_key(), source);
        let n_source = source.len() as u32;
        self.block_manager.set_default_key(&key, n_source);
        Ok(())
    }

    fn check_source(&self, source: &[u32]) -> Result<(), Error> {
        let fault = |found: String, expected: String| Err(Error::Source { found, expected });
        if !self.reads_source() {
            return fault(
                "a source".into(),
                "none: the model reads tokens alone".into(),
            );
        }
        let (n, n_batch) = (source.len(), self.options.n_batch);
        if n == 0 || n > n_batch {
            return fault(format!("{n} tokens"), format!("1 to {n_batch} tokens"));
        }
        let n_vocab = self.plan.n_vocab;
        match source.iter().find(|token| u64::from(**token) >= n_vocab) {
            Some(token) => fault(format!("the token {token}"), format!("ids below {n_vocab}")),
            None => Ok(()),
        }
    }

    /// Tells the prefix cache how a sequence is computed.
    pub(super) fn set_prefix_key(&mut self, sequence: SequenceId) {
        let source = self.sources.of(sequence);
        let mut computed = self.adapters.key_of(sequence);
        let lab = self.labs.get(&sequence);
        computed.extend(lab.iter().flat_map(|lab| lab.key()));
        let key = key(&computed, source);
        let n_source = source.len() as u32;
        self.block_manager.set_prefix_key(sequence, &key, n_source);
    }

    /// A batch with its places among the tokens of each sequence, where those in the cache are others.
    pub(super) fn of_tokens(&self, batch: &Batch) -> Option<Batch> {
        if !self.reads_source() {
            return None;
        }
        let mut of_tokens = batch.clone();
        for (id, position) in &mut of_tokens.places {
            *position = position.saturating_sub(self.block_manager.n_source(*id));
        }
        Some(of_tokens)
    }

    /// The tokens of a batch at their places in the cache, after their sources, and the sources that are read in
    /// the same pass. Where something is kept, sources that were not read yet are read before, each in a pass.
    pub(super) fn after_sources(&mut self, batch: &Batch) -> Result<(Batch, Batch), Error> {
        let sequences: BTreeSet<SequenceId> = batch.places.iter().map(|(id, _)| *id).collect();
        let mut together = Batch::default();
        self.sources.values.clear();
        for id in sequences {
            let source = self.sources.of(id);
            if source.is_empty() {
                return Err(Error::Source {
                    found: format!("none of sequence {id}"),
                    expected: "one: the model reads it before the first token".into(),
                });
            }
            let is_cached = self.options.n_ctx > 0;
            if is_cached && self.block_manager.next(id) > 0 {
                continue;
            }
            let mut alone = Batch::default();
            let list = if is_cached { &mut alone } else { &mut together };
            for (position, token) in (0..).zip(source) {
                list.push(*token, id, position, false);
            }
            if is_cached {
                self.pass((&Batch::default(), &alone), &[], None)?;
                let values = self.values_of_pass()?;
                self.sources.values.extend(values);
            }
        }
        let n_batch = self.options.n_batch;
        if together.len() > n_batch {
            return Err(Error::Source {
                found: format!("{} tokens of all sources", together.len()),
                expected: format!("at most {n_batch} in a pass"),
            });
        }
        let mut placed = batch.clone();
        for (id, position) in &mut placed.places {
            *position += self.sources.of(*id).len() as u32;
        }
        Ok((placed, together))
    }
}
