//! Sources: what an encoder-decoder model reads before the tokens of a sequence: tokens, or rows in their place, such as the result of
//! a tower.
//!
//! A sequence has one source from its start to its end. The layers that read it compute all of it in one pass, each
//! source by itself, so that no bit depends on what else runs. The keys and values of the source are cached before
//! those of the tokens: position p of the tokens is position `n_source + p` of the cache. The prefix cache has one
//! tree for each source.

use std::collections::BTreeSet;

use super::batch::Batch;
use super::cache::SequenceId;
use super::error::{Error, Result};
use super::lifecycle::Model;
use super::pass::{PassTokens, RowDestination};
use super::token_sources::Source;

impl Model {
    /// Whether sequences need a source before their tokens can be computed.
    pub fn reads_source(&self) -> bool {
        self.plan.source.is_some()
    }

    /// Sets the source of a sequence. The present sequence is released. A model that reads rows reads the embeddings of these tokens, which
    /// mean something in comparisons alone.
    ///
    /// # Errors
    /// The model reads no source, the source is empty or longer than a pass, or a token is unknown.
    pub fn set_source(&mut self, sequence: SequenceId, source: &[u32]) -> Result<()> {
        self.begin_source(sequence);
        self.check_source(source)?;
        self.sources.own.insert(sequence, Source::of_tokens(source));
        self.set_prefix_key(sequence);
        Ok(())
    }

    /// Sets the source of a sequence as rows `[n_embd, n]`. The present sequence is released.
    ///
    /// # Errors
    /// The model reads no rows, or the rows are none, of another width, or more than a pass computes.
    pub fn set_source_rows(&mut self, sequence: SequenceId, rows: &[f32]) -> Result<()> {
        self.begin_source(sequence);
        let width = self.plan.n_embd as usize;
        if !self.reads_rows() {
            return Err(Error::Source {
                found: "rows".into(),
                expected: "tokens, or nothing: the model reads no rows".into(),
            });
        }
        let (n, n_batch) = (rows.len() / width.max(1), self.options.n_batch);
        if rows.is_empty() || !rows.len().is_multiple_of(width) || n > n_batch {
            return Err(Error::Source {
                found: format!("{} numbers", rows.len()),
                expected: format!("1 to {n_batch} rows of {width}"),
            });
        }
        let source = Source::of_rows(rows, width);
        self.sources.own.insert(sequence, source);
        self.set_prefix_key(sequence);
        Ok(())
    }

    /// Whether the source of a sequence is rows in the place of tokens.
    pub fn reads_rows(&self) -> bool {
        self.plan
            .source
            .as_ref()
            .is_some_and(|source| source.is_rows)
    }

    /// Releases a sequence and its source: if the new one is refused, the old one must not be used in its place.
    pub(super) fn begin_source(&mut self, sequence: SequenceId) {
        self.release(sequence);
        self.sources.own.remove(&sequence);
    }

    /// Sets the source of all sequences that have none of their own. To be called before any sequence starts.
    pub fn set_default_source(&mut self, source: &[u32]) -> Result<()> {
        self.check_source(source)?;
        let source = Source::of_tokens(source);
        let key = source.key(&self.adapters.default_key());
        let n_source = source.len() as u32;
        self.sources.default = source;
        self.block_manager.set_default_key(&key, n_source);
        Ok(())
    }

    fn check_source(&self, source: &[u32]) -> Result<()> {
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
            Some(token) => fault(
                format!("the token {token}, which is not in the vocabulary"),
                format!("ids below {n_vocab}"),
            ),
            None => Ok(()),
        }
    }

    /// Sets the prefix key of a sequence, made of its adapters, edits and source.
    pub(super) fn set_prefix_key(&mut self, sequence: SequenceId) {
        let source = self.sources.of(sequence);
        let mut computed = self.adapters.key_of(sequence);
        let lab = self.labs.get(&sequence);
        computed.extend(lab.iter().flat_map(|lab| lab.key()));
        let media = self.media.get(&sequence);
        computed.extend(media.iter().flat_map(|media| media.key()));
        let key = source.key(&computed);
        let n_source = source.len() as u32;
        self.block_manager.set_prefix_key(sequence, &key, n_source);
        self.announce_sequence(sequence, &key);
    }

    /// A batch with positions among the tokens of each sequence; none if the model reads no source.
    pub(super) fn of_tokens(&self, batch: &Batch) -> Option<Batch> {
        if !self.reads_source() {
            return None;
        }
        let mut of_tokens = batch.clone();
        for (id, position) in &mut of_tokens.positions {
            *position = position.saturating_sub(self.block_manager.n_source(*id));
        }
        Some(of_tokens)
    }

    /// The batch with positions in the cache, after the sources, and the sources that are read in the same pass.
    /// With a cache, sources that were not read yet are read first, each in its own pass.
    pub(super) fn after_sources(&mut self, batch: &Batch) -> Result<(Batch, Batch)> {
        let sequences: BTreeSet<SequenceId> = batch.positions.iter().map(|(id, _)| *id).collect();
        let mut together = Batch::default();
        let mut of_rows = sequences
            .iter()
            .map(|id| self.sources.of(*id).as_rows().is_some());
        let is_first = of_rows.next();
        if self.options.n_ctx == 0 && of_rows.any(|is_rows| Some(is_rows) != is_first) {
            return Err(Error::Source {
                found: "tokens and rows in one pass".into(),
                expected: "either".into(),
            });
        }
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
            for (position, token) in (0..).zip(&source.tokens) {
                list.push(*token, id, position, false);
            }
            if is_cached {
                self.pass(PassTokens::Source(&alone), RowDestination::Kept(&[]))?;
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
        for (id, position) in &mut placed.positions {
            *position += self.sources.of(*id).len() as u32;
        }
        Ok((placed, together))
    }
}
