//! The media of a sequence: rows of a tower in place of tokens.
//!
//! A token of a medium has an id above every vocabulary, [`FIRST_MEDIA_ID`] and following. Equal ids stand for equal rows, so that
//! the prefix cache knows a medium by its tokens. The graph reads the row of such a token in place of its embedding.

use std::ops::Range;
use std::sync::Arc;

use super::error::{Error, Result};
use crate::plan::MediaAttention;

/// The first token id of media.
pub const FIRST_MEDIA_ID: u32 = 1 << 31;

/// Rows of a tower, f32.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MediaRows {
    /// `[width, n]`.
    pub rows: Vec<f32>,
    /// Elements of a row: those of the hidden state, then those that later layers add.
    pub width: usize,
    /// The grid (time, height, width) of the rows that the tower makes of each view.
    pub grids: Vec<[u64; 3]>,
}

/// Consecutive tokens of a medium in a sequence.
#[derive(Clone, Debug)]
pub struct MediaSpan {
    /// The position of the first one.
    pub at: u32,
    /// The id of the first one; the others follow.
    pub first_id: u32,
    /// Their number.
    pub n: u32,
    /// The rows of the medium.
    pub rows: Arc<MediaRows>,
    /// The first row of the span among these.
    pub from: usize,
    /// The grid of the rows (time, height, width), where they have positions of their own on it.
    pub grid: Option<[u32; 3]>,
    /// How the tokens attend to each other.
    pub attention: MediaAttention,
}

/// The media of a sequence, in the order of their positions.
#[derive(Clone, Debug)]
pub struct SequenceMedia {
    spans: Vec<MediaSpan>,
    /// For each span: its position, and that of the token after it, among positions of rotations.
    rotated: Vec<[u32; 2]>,
    /// The tokens of the prompt, where all of it attends in both directions.
    prefix: Vec<u32>,
}

impl SequenceMedia {
    /// The media of these spans in a prompt. The tokens of a span with a grid take as many positions of rotations as the largest side of
    /// the grid.
    ///
    /// # Errors
    /// Spans overlap, are empty, or have other numbers of rows than their grids or media.
    pub fn new(spans: Vec<MediaSpan>, prompt: &[u32]) -> Result<Self> {
        let (mut next, mut rotated_next) = (0, 0);
        let mut rotated = Vec::with_capacity(spans.len());
        for span in &spans {
            let fault = |found: String, expected: &str| {
                Err(Error::Media {
                    found,
                    expected: expected.into(),
                })
            };
            if span.at < next || span.n == 0 {
                let found = format!("{} rows at position {}", span.n, span.at);
                return fault(found, "spans with rows, one after another");
            }
            let of_grid = span.grid.map(|grid| grid.iter().product::<u32>());
            if of_grid.is_some_and(|n| n != span.n) {
                return fault(
                    format!("{} rows of the grid {:?}", span.n, span.grid),
                    "a row for each cell",
                );
            }
            let end = span.from + span.n as usize;
            if span.rows.width == 0 || span.rows.rows.len() < end * span.rows.width {
                let found = format!("{} numbers", span.rows.rows.len());
                return fault(found, "a row for each token of a medium");
            }
            if span.first_id < FIRST_MEDIA_ID {
                return fault(
                    format!("the id {}", span.first_id),
                    "an id above the vocabulary",
                );
            }
            let start = rotated_next + (span.at - next);
            let steps = match span.grid {
                Some(grid) => grid.into_iter().max().unwrap_or(0),
                None => span.n,
            };
            rotated.push([start, start + steps]);
            (next, rotated_next) = (span.at + span.n, start + steps);
        }
        let mut attentions = spans.iter().map(|span| span.attention);
        let prefix = match attentions.any(|attention| attention == MediaAttention::Prefix) {
            true => prompt.to_vec(),
            false => Vec::new(),
        };
        Ok(Self {
            spans,
            rotated,
            prefix,
        })
    }

    /// The span of a position, and its place among the spans.
    fn span(&self, position: u32) -> Option<(usize, &MediaSpan)> {
        let at = self
            .spans
            .partition_point(|span| span.at <= position)
            .checked_sub(1)?;
        let span = &self.spans[at];
        (position < span.at + span.n).then_some((at, span))
    }

    /// Whether a token is one of a medium, or the one before or after it, which mark its begin and its end.
    pub(super) fn is_marked(&self, position: u32) -> bool {
        let around = [
            position.checked_sub(1),
            Some(position),
            position.checked_add(1),
        ];
        around
            .into_iter()
            .flatten()
            .any(|position| self.span(position).is_some())
    }

    /// The positions that the token at a position attends to because of media, in a layer that may have a window. A window
    /// limits how far back a token of a medium attends, as in a text.
    pub(super) fn around(&self, position: u32, has_window: bool) -> Option<Range<u32>> {
        let n = self.prefix.len() as u32;
        if position < n {
            return Some(0..n);
        }
        let (_, span) = self.span(position)?;
        match span.attention {
            MediaAttention::Window if !has_window => None,
            MediaAttention::Causal | MediaAttention::Prefix => None,
            MediaAttention::Both | MediaAttention::Window => Some(position..span.at + span.n),
        }
    }

    /// What the results of all tokens depend on besides the tokens before them: the whole prompt, where it attends in both
    /// directions.
    pub(super) fn key(&self) -> &[u32] {
        &self.prefix
    }

    /// The positions by which a token is rotated: time, height, width.
    pub(super) fn rotated(&self, position: u32) -> [u32; 3] {
        if let Some((at, span)) = self.span(position)
            && let Some([_, height, width]) = span.grid
        {
            let (start, cell) = (self.rotated[at][0], position - span.at);
            let cells = [cell / (height * width), cell / width % height, cell % width];
            return cells.map(|cell| start + cell);
        }
        let before = self
            .spans
            .partition_point(|span| span.at <= position)
            .checked_sub(1);
        let rotated = match before {
            None => position,
            Some(at) => {
                let span = &self.spans[at];
                match position.checked_sub(span.at + span.n) {
                    Some(after) => self.rotated[at][1] + after,
                    None => self.rotated[at][0] + (position - span.at),
                }
            }
        };
        [rotated; 3]
    }

    /// The id of the token at a position, if it is one of a medium.
    pub(super) fn id(&self, position: u32) -> Option<u32> {
        let (_, span) = self.span(position)?;
        Some(span.first_id + (position - span.at))
    }

    /// The row of the token `id` at a position.
    pub(super) fn row(&self, position: u32, id: u32) -> Option<&[f32]> {
        let (_, span) = self.span(position)?;
        let at = position - span.at;
        let width = span.rows.width;
        let start = (span.from + at as usize) * width;
        (id == span.first_id + at).then(|| &span.rows.rows[start..start + width])
    }
}

/// The media of a pass.
#[derive(Debug, Default)]
pub(super) struct MediaOfPass {
    /// Rows `[width, n]`, f32.
    pub(super) rows: Vec<f32>,
    /// The token of each row.
    pub(super) places: Vec<i32>,
    /// The tokens that branches for media are for; empty if the model has no such branch.
    pub(super) tokens: Vec<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(at: u32, n: u32, grid: Option<[u32; 3]>) -> MediaSpan {
        MediaSpan {
            at,
            first_id: FIRST_MEDIA_ID + at,
            n,
            rows: Arc::new(MediaRows {
                rows: vec![0.0; n as usize],
                width: 1,
                grids: Vec::new(),
            }),
            from: 0,
            grid,
            attention: MediaAttention::Both,
        }
    }

    #[test]
    fn text_after_a_grid_goes_on_after_its_largest_side() {
        let spans = vec![span(2, 6, Some([1, 2, 3])), span(9, 2, None)];
        let media = SequenceMedia::new(spans, &[]);
        let media = media.expect("sound spans");
        let all: Vec<[u32; 3]> = (0..13).map(|at| media.rotated(at)).collect();
        let same = |p: u32| [p; 3];
        let grid = [
            [2, 2, 2],
            [2, 2, 3],
            [2, 2, 4],
            [2, 3, 2],
            [2, 3, 3],
            [2, 3, 4],
        ];
        let expected: Vec<[u32; 3]> = [same(0), same(1)]
            .into_iter()
            .chain(grid)
            .chain((5..10).map(same))
            .collect();
        assert_eq!(all, expected);
        assert_eq!(media.around(4, false), Some(4..8));
        assert_eq!(media.around(8, false), None);
        let marked: Vec<u32> = (0..13).filter(|at| media.is_marked(*at)).collect();
        assert_eq!(marked, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let spans = vec![MediaSpan {
            attention: MediaAttention::Window,
            ..span(2, 6, None)
        }];
        let media = SequenceMedia::new(spans, &[]).expect("a sound span");
        assert_eq!(
            (media.around(4, true), media.around(4, false)),
            (Some(4..8), None)
        );
    }

    #[test]
    fn spans_that_do_not_fit_are_refused() {
        let cases = [
            ("overlap", vec![span(2, 6, None), span(7, 1, None)]),
            ("empty", vec![span(2, 0, None)]),
            ("grid", vec![span(2, 6, Some([1, 2, 2]))]),
            (
                "rows",
                vec![MediaSpan {
                    from: 1,
                    ..span(0, 3, None)
                }],
            ),
            (
                "id",
                vec![MediaSpan {
                    first_id: 7,
                    ..span(0, 3, None)
                }],
            ),
        ];
        for (name, spans) in cases {
            let media = SequenceMedia::new(spans, &[]);
            assert!(media.is_err(), "{name}");
        }
    }
}
