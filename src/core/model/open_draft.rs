//! Drafts that are being made, and the pass that reads what is new of their sequences.

use super::batch::Batch;
use super::cache::SequenceId;
use super::draft::Draft;
use super::draft_rows::DraftRows;
use super::graph_shape::TargetRows;

/// A draft that is being made.
pub(super) struct OpenDraft {
    /// Its number among the requests.
    pub(super) at: usize,
    pub(super) sequence: SequenceId,
    pub(super) most: usize,
    /// The last token of the sequence.
    pub(super) last: u32,
    /// The position after what the drafter has read of the target.
    pub(super) end: u32,
    /// Its row among those of the last pass.
    pub(super) row: usize,
    /// The row that stands for that of the target at the next token.
    pub(super) next: Vec<f32>,
    pub(super) draft: Draft,
}

/// A pass over tokens that the target has read.
pub(super) struct ReadPass<'a> {
    pub(super) batch: Batch,
    pub(super) rows: DraftRows,
    /// The drafts whose first tokens it gives.
    pub(super) waiting: Vec<OpenDraft>,
    /// Where the logits of all rows go, if they are wanted.
    pub(super) all: Option<&'a mut Vec<f32>>,
}

impl<'a> ReadPass<'a> {
    pub(super) fn new(kind: TargetRows, all: Option<&'a mut Vec<f32>>) -> Self {
        Self {
            batch: Batch::default(),
            rows: DraftRows::of_kind(kind),
            waiting: Vec::new(),
            all,
        }
    }

    /// Adds a draft that begins after the last token, which has logits if the draft goes on token by token.
    pub(super) fn wait(&mut self, mut draft: OpenDraft, has_logits: bool) {
        if let Some(last) = self.batch.outputs.last_mut().filter(|_| has_logits) {
            *last = true;
        }
        draft.row = self.batch.n_outputs().saturating_sub(1);
        self.waiting.push(draft);
    }
}
