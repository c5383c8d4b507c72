//! The rows of a target that its drafter has not read yet, of one sequence.

/// Number of the last rows of a sequence that are kept at least until it is drafted for; twice as many leave down to it. The drafter never
/// reads what lies before them.
const KEPT_ROWS: usize = 256;

/// What a drafter knows of a sequence.
#[derive(Debug, Default)]
pub(super) struct DraftedSequence {
    /// The position of the target at which the drafter's sequence starts.
    pub(super) offset: u32,
    /// The position of the first row that the drafter has not read.
    pub(super) first: u32,
    /// The rows from there on, one after the other.
    pub(super) rows: Vec<f32>,
}

impl DraftedSequence {
    /// Number of rows that are not read.
    pub(super) fn n_rows(&self, width: usize) -> usize {
        self.rows.len() / width.max(1)
    }

    /// Adds the row of a position. Rows of later positions are not valid any more.
    pub(super) fn keep(&mut self, position: u32, row: &[f32]) {
        let n = self.n_rows(row.len());
        match position.checked_sub(self.first) {
            // It was read before, and is read again.
            None => return,
            Some(at) if at as usize <= n => self.rows.truncate(at as usize * row.len()),
            Some(_) => {
                self.rows.clear();
                self.first = position;
            }
        }
        self.rows.extend_from_slice(row);
        // Half of them leave at a time, so that few rows are moved.
        if self.n_rows(row.len()) >= 2 * KEPT_ROWS {
            self.rows.drain(..KEPT_ROWS * row.len());
            self.first += KEPT_ROWS as u32;
        }
    }

    /// Drops the rows from a position on.
    pub(super) fn forget(&mut self, from: u32, width: usize) {
        let n = from.saturating_sub(self.first) as usize;
        self.rows.truncate(n * width);
        if from < self.first {
            self.first = from;
        }
    }
}
