//! The media of prompts: a model is given them, and a pass reads their rows.

use std::sync::Arc;
use std::time::Instant;

use super::batch::Batch;
use super::cache::SequenceId;
use super::error::{Error, Result};
use super::lifecycle::Model;
use super::media::{FIRST_MEDIA_ID, MediaOfPass, MediaSpan, SequenceMedia};
use super::media_towers::{EncodedMedia, MediaTowers};
use super::points::Points;
use crate::models::media::PromptMedia;

impl Model {
    /// Sets the media of a sequence, before its first token. Equal ids of media must stand for equal rows.
    pub fn set_media(&mut self, sequence: SequenceId, media: Arc<SequenceMedia>) {
        self.block_manager
            .set_media(sequence, Some(Arc::clone(&media)));
        self.media.insert(sequence, media);
        self.set_prefix_key(sequence);
    }

    /// Gives the model its towers.
    pub fn set_towers(&mut self, towers: MediaTowers) {
        let points = Points::clone(&self.points).with(towers.points().to_vec());
        self.points = Arc::new(points);
        self.towers = Some(towers);
    }

    /// The towers of the model.
    pub fn towers(&mut self) -> Option<&mut MediaTowers> {
        self.towers.as_mut()
    }

    /// Computes rows of media; see [`MediaTowers::encode`].
    ///
    /// # Errors
    /// The model has no tower for a medium, or a computation fails.
    pub fn encode_media(
        &mut self,
        media: &PromptMedia,
        encoded: &mut EncodedMedia,
        end: Option<Instant>,
    ) -> Result<bool> {
        match &mut self.towers {
            Some(towers) => towers.encode(media, encoded, end),
            None => Err(Error::Media {
                found: "media in the prompt".into(),
                expected: "none: the model has no tower".into(),
            }),
        }
    }

    /// Sets the media of the prompt of a sequence, before its first token; or, of a model that reads rows, the one medium whose rows are
    /// its source. All of their rows are computed.
    ///
    /// # Errors
    /// A medium has no rows, or its places do not fit them. Then no token of the sequence is read.
    pub fn set_prompt_media(
        &mut self,
        sequence: SequenceId,
        (of, encoded): (&PromptMedia, &EncodedMedia),
        prompt: &[u32],
    ) -> Result<()> {
        self.forget_media(sequence);
        if self.reads_rows() {
            self.begin_source(sequence);
        }
        let set = self.try_set_media(sequence, of, encoded, prompt);
        if let Err(error) = &set {
            self.media_faults.insert(sequence, error.to_string());
        }
        set
    }

    fn try_set_media(
        &mut self,
        sequence: SequenceId,
        of: &PromptMedia,
        encoded: &EncodedMedia,
        prompt: &[u32],
    ) -> Result<()> {
        let is_source = self.reads_rows();
        let Some(towers) = &mut self.towers else {
            return Err(Error::Media {
                found: "media in the prompt".into(),
                expected: "none: the model has no tower".into(),
            });
        };
        if is_source {
            let (1, Some(rows)) = (of.media.len(), encoded.rows.first()) else {
                return Err(Error::Source {
                    found: format!("{} media", of.media.len()),
                    expected: "one, with its rows".into(),
                });
            };
            return self.set_source_rows(sequence, &rows.rows);
        }
        let known: Vec<_> = of
            .media
            .iter()
            .zip(&encoded.rows)
            .map(|(medium, rows)| Ok((towers.id_of(medium, rows)?, Arc::clone(rows))))
            .collect::<Result<_>>()?;
        let mut spans = Vec::with_capacity(of.places.len());
        for place in &of.places {
            let Some((id, rows)) = known.get(place.medium) else {
                return Err(Error::Media {
                    found: format!("a place of medium {}", place.medium),
                    expected: format!("one of {} media", known.len()),
                });
            };
            spans.push(MediaSpan {
                at: place.at as u32,
                first_id: id + place.from as u32,
                n: place.n as u32,
                rows: Arc::clone(rows),
                from: place.from,
                grid: place.grid,
                attention: place.attention,
            });
        }
        let media = SequenceMedia::new(spans, prompt)?;
        self.set_media(sequence, Arc::new(media));
        Ok(())
    }

    /// The tokens of a sequence from a position on, with the ids of its media in their places; none if they are the same.
    pub(super) fn with_media(
        &self,
        sequence: SequenceId,
        tokens: &[u32],
        from: u32,
    ) -> Option<Vec<u32>> {
        let media = self.media.get(&sequence)?;
        let ids = tokens
            .iter()
            .zip(from..)
            .map(|(token, position)| media.id(position).unwrap_or(*token));
        Some(ids.collect())
    }

    /// A batch with the ids of media in their places; none if it has none.
    pub(super) fn batch_with_media(&self, batch: &Batch) -> Option<Batch> {
        if self.media.is_empty() {
            return None;
        }
        let mut changed = None;
        for (at, (sequence, position)) in batch.positions.iter().enumerate() {
            if let Some(id) = self
                .media
                .get(sequence)
                .and_then(|media| media.id(*position))
            {
                changed.get_or_insert_with(|| batch.clone()).tokens[at] = id;
            }
        }
        changed
    }

    /// Forgets the media of a sequence.
    pub fn forget_media(&mut self, sequence: SequenceId) {
        self.media_faults.remove(&sequence);
        if self.media.remove(&sequence).is_some() {
            self.block_manager.set_media(sequence, None);
            self.set_prefix_key(sequence);
        }
    }

    /// The rows of the tokens of a batch that are media.
    pub(super) fn media_of(&self, batch: &Batch) -> Result<MediaOfPass> {
        if !self.media_faults.is_empty()
            && let Some(fault) = batch
                .positions
                .iter()
                .find_map(|(id, _)| self.media_faults.get(id))
        {
            return Err(Error::Media {
                found: fault.clone(),
                expected: "media that can be read".into(),
            });
        }
        let mut of_pass = MediaOfPass::default();
        let tokens = batch.tokens.iter().zip(&batch.positions).enumerate();
        for (at, (id, (sequence, position))) in tokens.filter(|(_, (id, _))| **id >= FIRST_MEDIA_ID)
        {
            let media = self.media.get(sequence);
            let position = position - self.block_manager.n_source(*sequence);
            let Some(row) = media.and_then(|media| media.row(position, *id)) else {
                return Err(Error::Media {
                    found: format!("no row for the token {id} at position {position}"),
                    expected: "the media of the sequence".into(),
                });
            };
            let width = self.plan.media_width();
            if row.len() as u64 != width {
                return Err(Error::Media {
                    found: format!("rows of {} elements", row.len()),
                    expected: format!("rows of {width} elements, as the model reads them"),
                });
            }
            of_pass.rows.extend_from_slice(row);
            of_pass.places.push(at as i32);
        }
        if self.plan.has_branches_of_media() {
            let is_marked = |(sequence, position): &(SequenceId, u32)| {
                let position = position - self.block_manager.n_source(*sequence);
                self.media
                    .get(sequence)
                    .is_some_and(|media| media.is_marked(position))
            };
            let all = batch.positions.iter().enumerate();
            let marked = all.filter(|(_, place)| is_marked(place));
            of_pass.tokens = marked.map(|(at, _)| at as i32).collect();
        }
        Ok(of_pass)
    }
}
