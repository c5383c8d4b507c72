//! A prepared medium: the values that a tower reads, and the rows that it takes in a prompt.

/// A picture or a sound, prepared for a tower.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// What the tower reads, each view by itself: tiles and thumbnails of a picture, chunks of a sound.
    pub views: Vec<View>,
    /// What stands in the prompt in place of the medium, in order.
    pub layout: Vec<Piece>,
}

/// One input of a tower.
#[derive(Clone, Debug)]
pub struct View {
    /// The values, f32, the last axis of `shape` fastest.
    pub values: Vec<f32>,
    /// `[channels, height, width]` of pixels, `[bands, frames]` of a spectrogram, `[patches, values of a patch]` for example.
    pub shape: Vec<usize>,
    /// The patches of a picture as time, height and width: its pixels, if its values are not in patches. Of a sound, `[frames, 1, 1]`: the
    /// first frames, without those that are padding.
    pub patches: [usize; 3],
    /// The number of rows that the tower makes of it, as time, height and width.
    pub grid: [usize; 3],
    /// What of the medium it shows: left, top, right and bottom as shares of a picture, which padding exceeds; begin and end of a sound in
    /// seconds, as `[begin, 0, end, 1]`.
    pub part: [f64; 4],
}

impl View {
    /// What of the medium a row shows, of a tower whose rows are a grid of time, height and width: an area of a picture, or a time of a sound,
    /// in the terms of [`View::part`]. None if the rows are no grid over the medium, such as those of learned queries.
    #[must_use]
    pub fn shown_by(&self, row: usize, grid: [usize; 3]) -> Option<[f64; 4]> {
        let [left, top, right, bottom] = self.part;
        // The rows of a sound are those of its time, along whichever axis.
        let (at, n) = match (self.grid, grid) {
            ([_, 1, 1], [t, h, w]) if t * h * w == self.grid[0] => ([row, 0], [self.grid[0], 1]),
            (own, grid) if own == grid && self.is_covered() => {
                ([row % grid[2], row / grid[2]], [grid[2], grid[1]])
            }
            _ => return None,
        };
        let [x, y] = [0, 1].map(|axis| {
            let share = |at: usize| at as f64 / n[axis] as f64;
            [share(at[axis]), share(at[axis] + 1)]
        });
        let along =
            |from: f64, to: f64, [a, b]: [f64; 2]| [from + a * (to - from), from + b * (to - from)];
        let ([left, right], [top, bottom]) = (along(left, right, x), along(top, bottom, y));
        (at[1] < n[1]).then_some([left, top, right, bottom])
    }

    /// Whether the cells of its grid are about as high as they are wide.
    fn is_covered(&self) -> bool {
        let [_, height, width] = self.patches;
        let (high, wide) = (height * self.grid[2], width * self.grid[1]);
        high <= 2 * wide && wide <= 2 * high
    }
}

/// A part of what stands in the prompt in place of a medium.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Text with special tokens.
    Text(String),
    /// Rows of the tower, each in place of one token. The grid (time, height, width) gives their positions, where rows have several.
    Rows {
        /// Where the rows come from.
        rows: Vec<RowSource>,
        /// Their grid, whether a model has positions for it or not.
        grid: [usize; 3],
    },
}

/// Where a row in a prompt comes from.
#[derive(Clone, Debug)]
pub enum RowSource {
    /// A row of a view's result.
    View {
        /// The index of the view.
        view: usize,
        /// The row of its result.
        row: usize,
    },
    /// A weighted sum of rows: the view, the row of its result, the weight.
    Mixed(Vec<(usize, usize, f32)>),
    /// A learned row of the tower, by its name: the end of a line of pixels, for example.
    Learned(String),
}
