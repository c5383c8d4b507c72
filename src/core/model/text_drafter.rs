//! A draft model with another vocabulary than its target: both read and write the same text.
//!
//! The target's tokens are told in the drafter's own ones, and its drafts in the target's. So a draft costs what its own tokens cost, and a
//! text that the drafter's vocabulary cannot tell has no drafts. Not here: how texts are told (`retokenise.rs`).

use std::collections::HashMap;

use crate::models::drafters::Vocabularies;

use super::cache::SequenceId;
use super::draft::{Draft, DraftModel, DraftRequest};
use super::drafter::{Drafter, MOST};
use super::error::{Error, Result};
use super::memory_use::MemoryUse;
use super::retokenise::RetokenisedText;

pub(super) struct TextDrafter {
    drafter: Drafter,
    vocabularies: Vocabularies,
    texts: HashMap<SequenceId, RetokenisedText>,
    /// The most own tokens of all sequences, which have room together.
    n_ctx: usize,
}

impl TextDrafter {
    /// Both drafters of `n_ctx` positions.
    pub(super) fn new(drafter: Drafter, vocabularies: Vocabularies, n_ctx: usize) -> Self {
        Self {
            drafter,
            vocabularies,
            texts: HashMap::new(),
            n_ctx,
        }
    }

    /// Follows a sequence to the end of its tokens. Returns the number of own tokens to draft for `most` of the target's; none if nothing
    /// can be drafted.
    fn follow(&mut self, request: &DraftRequest<'_>) -> Option<usize> {
        let sequence = request.sequence;
        let text = self.texts.entry(sequence).or_default();
        let kept = text.follow(request.tokens, &self.vocabularies);
        let n_own: usize = self
            .texts
            .values()
            .map(|text| text.own().len() + MOST)
            .sum();
        let text = self.texts.get_mut(&sequence)?;
        let Some(kept) = kept.filter(|_| n_own <= self.n_ctx) else {
            text.lose();
            self.drafter.release(sequence);
            return None;
        };
        self.drafter.forget(sequence, kept as u32);
        let (n_own, n) = (text.own().len(), text.n_tokens().max(1));
        // One more, since the last token may go on.
        let most = (request.most * n_own).div_ceil(n) + 1;
        Some(most.clamp(1, MOST)).filter(|_| request.most > 0)
    }
}

impl DraftModel for TextDrafter {
    fn memory(&self) -> MemoryUse {
        self.drafter.memory()
    }

    fn n_logits(&self) -> usize {
        self.drafter.n_logits()
    }

    fn most(&self) -> usize {
        self.drafter.most()
    }

    fn drafts_blocks(&self) -> bool {
        self.drafter.drafts_blocks()
    }

    /// It reads no rows.
    fn keep(&mut self, _: &[(SequenceId, u32)], _: &[f32]) {}

    fn release(&mut self, sequence: SequenceId) {
        self.texts.remove(&sequence);
        self.drafter.release(sequence);
    }

    fn forget(&mut self, sequence: SequenceId, from: u32) {
        if let Some(text) = self.texts.get_mut(&sequence) {
            text.truncate(from as usize);
            self.drafter.forget(sequence, text.own().len() as u32);
        }
    }

    fn draft(&mut self, wanted: &[DraftRequest<'_>]) -> Result<Vec<Draft>> {
        let most: Vec<Option<usize>> = wanted.iter().map(|of| self.follow(of)).collect();
        let texts = &self.texts;
        let own = wanted.iter().zip(&most).filter_map(|(request, most)| {
            Some(DraftRequest {
                sequence: request.sequence,
                tokens: texts.get(&request.sequence)?.own(),
                most: (*most)?,
            })
        });
        let drafts = self.drafter.draft(&own.collect::<Vec<_>>());
        if drafts.is_err() {
            wanted.iter().for_each(|of| self.release(of.sequence));
        }
        let mut drafts = drafts?.into_iter();
        let all = wanted.iter().zip(most).map(|(request, most)| {
            let told = most.and_then(|_| drafts.next()).and_then(|draft| {
                let text = self.texts.get(&request.sequence)?;
                Some(text.told(request.tokens, &draft, request.most, &self.vocabularies))
            });
            told.unwrap_or_default()
        });
        Ok(all.collect())
    }

    fn logits(&mut self, request: &DraftRequest<'_>) -> Result<Vec<f32>> {
        self.follow(request).ok_or_else(|| Error::Drafter {
            found: "a text that its vocabulary cannot tell".into(),
            expected: "one that it can".into(),
        })?;
        let tokens = self.texts.get(&request.sequence);
        self.drafter.logits(&DraftRequest {
            tokens: tokens.map_or(&[][..], |text| text.own()),
            ..*request
        })
    }
}
