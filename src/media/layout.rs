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
