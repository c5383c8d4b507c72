//! A model whose next token is a hash of the sequence, and whose lens shows the place of a point and a position.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use crate::engine::compute::{BLOCK, Compute, LabCompute, PrefixBytes, SequenceCache};
use crate::model::{
    self, Batch, CacheMiss, CachedPrefix, CapturedRow, DirectHeads, DirectLogit, Draft,
    DraftRequest, EncodedMedia, Lab, NextPass, PassRow, PassSink, SequenceId,
};
use crate::models::lora::Adapter;
use crate::models::media::PromptMedia;
use lab_sampling::{RowLogits, TopLogits};

pub(super) const N_VOCAB: u32 = 40;
/// Sequences have these tokens, none of which ends a completion.
pub(super) const FIRST: u32 = 20;
pub(super) const N_TOKENS: u32 = 11;
/// A pass that holds this token fails.
pub(super) const POISON: u32 = FIRST + N_TOKENS;

/// Pieces of a medium.
pub(super) const PIECES: usize = 5;

/// After this token the logits are not numbers.
pub(super) const SICK: u32 = POISON + 1;

/// The token that follows a sequence: it depends on all of it, and repeats itself now and then.
pub(super) fn next_token(text: &[u32]) -> u32 {
    let period = (text[0] - FIRST) as usize + 2;
    if text.len() > 3 * period && text[0].is_multiple_of(2) {
        return text[text.len() - period];
    }
    let hash = text.iter().fold(17u64, |hash, token| {
        hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*token)
    });
    FIRST + (hash >> 7) as u32 % N_TOKENS
}

/// The tokens of the highest logits: those that sequences have, and all after them.
static HIGHEST: [u32; (N_VOCAB - FIRST) as usize] = {
    let mut ids = [0; (N_VOCAB - FIRST) as usize];
    let mut i = 0;
    while i < ids.len() {
        ids[i] = FIRST + i as u32;
        i += 1;
    }
    ids
};

/// The highest logits of a row.
fn top_of(row: &[f32]) -> PassRow<'_> {
    let top = TopLogits {
        n_vocab: row.len(),
        ids: &HIGHEST,
        logits: &row[FIRST as usize..],
        // The best of 20 outweighs all others.
        log_sum: 20.0,
    };
    PassRow {
        logits: RowLogits::Top(top),
        hidden: &[],
    }
}

/// A drafter that knows what follows, and is wrong where this says so.
#[derive(Clone, Copy, Debug)]
pub(super) struct FakeDrafter {
    /// The most tokens that it makes.
    pub(super) most: usize,
    /// One of so many tokens is wrong; 0: none is.
    pub(super) wrong: usize,
    /// The call that fails, from 1, and whether it panics; 0: none.
    pub(super) fails: (usize, bool),
}

#[derive(Default)]
pub(super) struct Fake {
    pub(super) drafter: Option<FakeDrafter>,
    /// Calls of the drafter, and sequences that were asked for.
    pub(super) n_drafts: (usize, usize),
    pub(super) n_batch: usize,
    pub(super) n_blocks: usize,
    pub(super) has_states: bool,
    /// Sequences whose next pass can be taken back, and the lengths to which the last passes can.
    pub(super) holds: HashSet<SequenceId>,
    pub(super) held: HashMap<SequenceId, usize>,
    pub(super) texts: HashMap<SequenceId, Vec<u32>>,
    pub(super) known: HashSet<Vec<u32>>,
    pub(super) logits: Vec<f32>,
    pub(super) n_read: usize,
    pub(super) labs: HashMap<SequenceId, Arc<Lab>>,
    pub(super) captured_rows: Vec<CapturedRow>,
    /// Adapters that were removed.
    pub(super) removed: Vec<usize>,
    /// Pieces of media that were computed; a medium has [`PIECES`].
    pub(super) n_pieces: usize,
    /// The piece whose computation fails; 0: none.
    pub(super) sick_piece: usize,
    /// The places that the engine expects of the next pass, of sequences that have not ended since.
    pub(super) predicted: Vec<(SequenceId, u32)>,
    /// Whether a sequence began or was cut since then.
    pub(super) is_other: bool,
    /// Tokens that are banned after each sequence, and those that it expects to be after that pass.
    pub(super) banned: HashMap<SequenceId, Arc<[u32]>>,
    pub(super) next_banned: Vec<Arc<[u32]>>,
    /// Whether the engine expects that pass to read the best tokens, and how often such a pass came.
    pub(super) are_best: bool,
    pub(super) n_ahead: usize,
    /// Passes that were predicted, and those that then came, where no sequence began or was cut.
    pub(super) n_predicted: usize,
    pub(super) n_right: usize,
    /// Rows of each look of a lens, with the sequence.
    pub(super) looks: Vec<(SequenceId, usize)>,
}

impl Fake {
    pub(super) fn used(&self) -> usize {
        self.texts.values().map(|t| t.len().div_ceil(BLOCK)).sum()
    }

    pub(super) fn fault(found: &str) -> model::Error {
        model::Error::Batch {
            found: found.into(),
            expected: "something else".into(),
        }
    }

    pub(super) fn remember(&mut self, id: SequenceId) {
        let text = self.texts.get(&id).cloned().unwrap_or_default();
        let ends = (BLOCK..=text.len()).step_by(BLOCK);
        for end in ends.filter(|end| !self.has_states || *end == text.len()) {
            self.known.insert(text[..end].to_vec());
        }
    }
}

impl Compute for Fake {
    fn pool(&mut self, rows: &[f32]) -> model::Result<Vec<f32>> {
        Ok(rows.to_vec())
    }

    fn forward(&mut self, batch: &Batch, sink: &mut dyn PassSink) -> model::Result<()> {
        assert!(!batch.is_empty() && batch.len() <= self.n_batch);
        if batch.tokens.contains(&POISON) {
            self.are_best = false;
            return Err(Self::fault("poison"));
        }
        self.n_read += batch.len();
        if !self.predicted.is_empty() && !self.is_other {
            self.n_predicted += 1;
            self.n_right += usize::from(self.predicted == batch.positions);
        }
        if self.is_ahead() {
            self.n_ahead += 1;
            assert_eq!(self.predicted, batch.positions, "it is of those that began");
            let of_places = |(id, _): &(SequenceId, u32)| {
                let best = next_token(&self.texts[id]);
                let mut ids = [best].into_iter().chain((0..N_VOCAB).rev());
                ids.find(|token| !self.banned[id].contains(token))
            };
            let best: Vec<_> = self.predicted.iter().map(of_places).collect();
            let read: Vec<_> = batch.tokens.iter().copied().map(Some).collect();
            assert_eq!(best, read, "it has read the best tokens");
            assert_eq!(self.next_banned, batch.banned, "they are banned after it");
        }
        let banned = batch.banned.iter().cloned();
        self.banned = batch
            .positions
            .iter()
            .map(|place| place.0)
            .zip(banned)
            .collect();
        let NextPass {
            batch: next,
            are_best,
        } = sink.launched();
        (self.predicted, self.is_other, self.are_best) = (next.positions, false, are_best);
        self.next_banned = next.banned;
        self.logits.clear();
        for (id, _) in &batch.positions {
            self.held.remove(id);
        }
        for id in self.holds.drain() {
            let len = self.texts.get(&id).map_or(0, Vec::len);
            self.held.insert(id, len);
        }
        for ((token, (id, position)), wanted) in batch
            .tokens
            .iter()
            .zip(&batch.positions)
            .zip(&batch.outputs)
        {
            let text = self.texts.entry(*id).or_default();
            assert_eq!(text.len(), *position as usize, "read in order");
            text.push(*token);
            let captures = self.labs.get(id).into_iter().flat_map(|lab| lab.captures());
            for capture in captures.filter(|c| c.positions.contains(*position)) {
                self.captured_rows.push(CapturedRow {
                    sequence: *id,
                    position: *position,
                    point: capture.point,
                    row: vec![capture.point as f32, *position as f32],
                });
            }
            if *wanted {
                let next = next_token(text);
                let sick = if text.contains(&SICK) { f32::NAN } else { 0.0 };
                let row =
                    (0..N_VOCAB).map(|t| if t == next { 20.0 } else { t as f32 * 0.1 } + sick);
                self.logits.extend(row);
            }
        }
        let ids: HashSet<SequenceId> = batch.positions.iter().map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.remember(id));
        assert!(self.used() <= self.n_blocks, "no more than there is");
        let rows = self.logits.chunks_exact(N_VOCAB as usize);
        for (at, row) in rows.enumerate() {
            if !batch.wants_top || !sink.rows(&[(at, top_of(row))]).is_empty() {
                sink.rows(&[(at, PassRow::of(row))]);
            }
        }
        Ok(())
    }

    fn drafter(&self) -> Option<usize> {
        self.drafter.map(|drafter| drafter.most)
    }

    fn draft(&mut self, wanted: &[DraftRequest<'_>]) -> model::Result<Vec<Draft>> {
        let drafter = self.drafter.expect("it is asked only if it is there");
        self.n_drafts.0 += 1;
        self.n_drafts.1 += wanted.len();
        match drafter.fails {
            (n, true) if n == self.n_drafts.0 => panic!("a drafter panics"),
            (n, false) if n == self.n_drafts.0 => return Err(Self::fault("sick drafter")),
            _ => {}
        }
        let drafts = wanted.iter().map(|of| {
            assert!((1..=drafter.most).contains(&of.most), "{of:?}");
            let (_, read) = of.tokens.split_last().expect("a token");
            assert_eq!(self.texts[&of.sequence], read, "all but the last are read");
            let mut text = of.tokens.to_vec();
            while text.len() < of.tokens.len() + of.most {
                text.push(next_token(&text));
            }
            let mut tokens = text.split_off(of.tokens.len());
            for (at, token) in tokens.iter_mut().enumerate() {
                if drafter.wrong > 0 && (of.tokens.len() + at).is_multiple_of(drafter.wrong) {
                    *token = FIRST + (*token - FIRST + 1) % N_TOKENS;
                }
            }
            let probabilities = vec![0.9; tokens.len()];
            Draft {
                tokens,
                probabilities,
            }
        });
        Ok(drafts.collect())
    }

    fn is_ahead(&self) -> bool {
        self.are_best && !self.is_other && !self.predicted.is_empty()
    }

    fn park_threads(&self) {}

    fn n_batch(&self) -> usize {
        self.n_batch
    }

    fn first_not_finite(&self, _: SequenceId, tokens: &[u32]) -> Option<String> {
        tokens
            .iter()
            .position(|t| *t == SICK)
            .map(|at| format!("token {at}"))
    }
}

impl SequenceCache for Fake {
    fn add_adapter(&mut self, _: &Adapter) -> model::Result<()> {
        Ok(())
    }

    fn remove_adapter(&mut self, id: usize) {
        self.removed.push(id);
    }

    fn resume(&mut self, id: SequenceId, tokens: &[u32]) -> CachedPrefix {
        let ends = (BLOCK..tokens.len()).step_by(BLOCK);
        self.is_other = true;
        let known = ends.rev().find(|end| self.known.contains(&tokens[..*end]));
        let n_cached = known.unwrap_or(0);
        self.texts.insert(id, tokens[..n_cached].to_vec());
        CachedPrefix {
            n_cached,
            n_known: n_cached,
            miss: CacheMiss::Nothing,
            ..CachedPrefix::default()
        }
    }

    fn next(&self, id: SequenceId) -> u32 {
        self.texts.get(&id).map_or(0, |text| text.len() as u32)
    }

    fn forget(&mut self, id: SequenceId, from: u32) -> u32 {
        let end = match self.has_states {
            true => self.held.remove(&id).expect("the state before is kept"),
            false => from as usize,
        };
        assert!(end <= from as usize, "what stays is not forgotten");
        self.is_other = true;
        self.texts.entry(id).or_default().truncate(end);
        self.next(id)
    }

    fn hold(&mut self, id: SequenceId) {
        self.holds.insert(id);
    }

    fn release(&mut self, id: SequenceId) {
        self.predicted.retain(|(of, _)| *of != id);
        self.texts.remove(&id);
    }

    fn discard(&mut self, id: SequenceId) {
        self.is_other = true;
        self.texts.remove(&id);
    }

    fn set_source(&mut self, _: SequenceId, _: &[u32]) {}

    fn encode_media(
        &mut self,
        _: &PromptMedia,
        encoded: &mut EncodedMedia,
        _: Instant,
    ) -> model::Result<bool> {
        self.n_pieces += 1;
        if self.n_pieces == self.sick_piece {
            return Err(Self::fault("sick media"));
        }
        let is_whole = self.n_pieces.is_multiple_of(PIECES);
        if is_whole {
            encoded.push(Arc::default());
        }
        Ok(is_whole)
    }

    fn set_media(&mut self, _: SequenceId, media: (&PromptMedia, &EncodedMedia), _: &[u32]) {
        assert_eq!(media.0.media.len(), media.1.n());
    }

    fn begin(&mut self, id: SequenceId, _: &[f32], lab: Option<&Arc<Lab>>) {
        self.release(id);
        match lab {
            Some(lab) => self.labs.insert(id, Arc::clone(lab)),
            None => self.labs.remove(&id),
        };
    }

    fn n_free_blocks(&self) -> Option<usize> {
        Some(self.n_blocks - self.used())
    }

    fn has_states(&self) -> bool {
        self.has_states
    }

    fn is_shared(&self) -> bool {
        true
    }
}

impl PrefixBytes for Fake {}

impl LabCompute for Fake {
    fn direct_logit(&mut self, _: u32) -> model::Result<DirectLogit> {
        Err(Self::fault("no head"))
    }

    fn direct_heads(&mut self, _: usize, _: &[f64]) -> model::Result<DirectHeads> {
        Err(Self::fault("no heads"))
    }

    fn captured_rows(&mut self) -> Vec<CapturedRow> {
        std::mem::take(&mut self.captured_rows)
    }

    fn lens(&mut self, id: SequenceId, (rows, size): (&[f32], usize)) -> model::Result<Vec<f32>> {
        assert!(!rows.is_empty() && self.labs.contains_key(&id));
        self.looks.push((id, rows.len() / size));
        let row = |row: &[f32]| {
            let best = (7 * row[0] as u32 + row[1] as u32) % N_VOCAB;
            (0..N_VOCAB).map(move |t| if t == best { 20.0 } else { t as f32 * 0.1 })
        };
        Ok(rows.chunks_exact(size).flat_map(row).collect())
    }
}
