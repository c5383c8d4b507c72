//! Pads a pass with rows of nobody, so that few graphs serve the passes of many mixtures of sequences.
//!
//! Decoding sequences are rows of homes: a row of nobody stands for each home between them, so that one view reads all. The
//! tokens of a prompt are padded to a bucket. Rows of nobody read the first slot of a home, write to a block that nobody
//! reads, and want no result. Not here: which plans are padded ([`Options::pads`](super::options::Options::pads)).

use std::ops::Range;

use super::batch::Batch;
use super::buckets::{bucket, prompt_bucket};
use super::cache::{BlockManager, NOBODY, PADDING};
use super::sub_batch::SubBatch;

/// What is padded, from most to least.
const LEVELS: [Level; 3] = [Level::All, Level::Homes, Level::Nothing];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    All,
    /// The homes between decoding sequences, not prompts.
    Homes,
    Nothing,
}

/// Consecutive rows of a padded pass.
enum Rows {
    /// These rows of the pass without padding.
    Own(Range<usize>),
    /// Rows of nobody with a position.
    Nobody(u32, usize),
}

/// Pads a part to at most `most` rows, as far as there is room. Its results come in the order of the whole batch.
pub(super) fn padded(part: &SubBatch, manager: &BlockManager, most: usize) -> SubBatch {
    let mut rows = LEVELS
        .map(|level| rows_of(&part.batch, manager, level))
        .into_iter();
    let fits = |rows: &Vec<Rows>| rows.iter().map(Rows::len).sum::<usize>() <= most;
    let rows = rows.find(fits).unwrap_or_default();
    let (mut batch, mut results) = (Batch::default(), Vec::new());
    batch.wants_hidden = part.batch.wants_hidden;
    let mut wanted = part.outputs.iter();
    for rows in rows {
        match rows {
            Rows::Own(own) => {
                for i in own {
                    let wants = part.batch.outputs[i];
                    let place = if wants { wanted.next() } else { None };
                    results.extend(place.map(|place| (*place, batch.len())));
                    batch.push_from(&part.batch, i);
                }
            }
            Rows::Nobody(position, n) => {
                (0..n).for_each(|_| batch.push(0, NOBODY, position, false));
            }
        }
    }
    results.sort_unstable();
    SubBatch {
        batch,
        groups: part.groups.clone(),
        outputs: results.iter().map(|(place, _)| *place).collect(),
        rows: Some(results.into_iter().map(|(_, row)| row).collect()),
    }
}

impl Rows {
    fn len(&self) -> usize {
        match self {
            Self::Own(own) => own.len(),
            Self::Nobody(_, n) => *n,
        }
    }
}

/// Number of results of a padded pass: one for each home of decoding sequences, or more where more are wanted.
pub(super) fn n_results(batch: &Batch) -> usize {
    let wanted = batch.n_outputs();
    let of_one_row = batch
        .positions
        .chunk_by(|a, b| a.0 == b.0 && (a.0 != NOBODY || a.1 == b.1));
    let n_homes = of_one_row.filter(|rows| rows.len() == 1 && rows[0].1 != PADDING);
    match wanted {
        0 => 0,
        n => bucket(n.max(n_homes.count())),
    }
}

/// The rows of a pass, whose sequences follow each other by their numbers of tokens and homes.
fn rows_of(batch: &Batch, manager: &BlockManager, level: Level) -> Vec<Rows> {
    let mut out = Vec::new();
    if level == Level::Nothing {
        out.push(Rows::Own(0..batch.len()));
        return out;
    }
    let n_cells = manager.n_cells().unwrap_or(0);
    // Decoding sequences that take equally many homes: their homes in steps of that number, and their rows.
    let mut decoding: Vec<(usize, usize)> = Vec::new();
    let (mut at, mut n_homes) = (0, 1);
    for tokens in batch.positions.chunk_by(|(a, _), (b, _)| a == b) {
        let own = at..at + tokens.len();
        at = own.end;
        let cell = manager.cell(tokens[0].0).filter(|_| tokens.len() == 1);
        if cell.is_none_or(|cell| cell.n_homes != n_homes) {
            homes(&decoding, n_homes, n_cells, &mut out);
            decoding.clear();
        }
        if let Some(cell) = cell {
            n_homes = cell.n_homes;
            decoding.push((cell.home / n_homes, own.start));
            continue;
        }
        let n = own.len();
        out.push(Rows::Own(own));
        let n_more = prompt_bucket(n) - n;
        if level == Level::All && n_more > 0 {
            out.push(Rows::Nobody(PADDING, n_more));
        }
    }
    homes(&decoding, n_homes, n_cells, &mut out);
    out
}

/// The rows of decoding sequences, in the order of their homes: with a row of nobody for each home between them, or in
/// two parts where these would be too many.
fn homes(decoding: &[(usize, usize)], n_homes: usize, n_cells: usize, out: &mut Vec<Rows>) {
    let (Some((first, _)), Some((last, _))) = (decoding.first(), decoding.last()) else {
        return;
    };
    let n_cells_of_size = n_cells / n_homes;
    let n = bucket(last - first + 1).min(n_cells_of_size.max(last - first + 1));
    if n > 2 * bucket(decoding.len()) {
        let gap = |at: &usize| (decoding[*at].0 - decoding[at - 1].0, *at);
        let widest = (1..decoding.len()).max_by_key(gap).unwrap_or(1);
        let (before, after) = decoding.split_at(widest);
        homes(before, n_homes, n_cells, out);
        return homes(after, n_homes, n_cells, out);
    }
    let start = (*first).min(n_cells_of_size.saturating_sub(n));
    let mut own = decoding.iter().peekable();
    for cell in start..start + n {
        match own.next_if(|(home, _)| *home == cell) {
            Some((_, row)) => out.push(Rows::Own(*row..row + 1)),
            None => out.push(Rows::Nobody((cell * n_homes) as u32, 1)),
        }
    }
}
