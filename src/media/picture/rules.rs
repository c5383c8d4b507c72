//! The rules of an image processor, as data: how pictures are resized and cut, in which order their values lie, and what stands in the
//! prompt. The axes are independent; a processor is a point in their product.

use std::num::NonZeroU32;

use serde::Deserialize;

use crate::prompt::PromptText;

use super::grid::Grid;
use super::order::Order;
use super::resample::Filter;
use super::size::{Extent, Size};

/// The rules of an image processor.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PictureRules {
    /// The text of a rendered prompt in whose place a picture stands.
    pub marker: String,
    /// The token that holds the place of a row.
    pub row_token: String,
    /// The filter of all resizes.
    pub filter: Filter,
    /// Sizes to which the picture is resized, one after another, before anything else.
    #[serde(default)]
    pub first: Vec<Size>,
    /// The view of the whole picture.
    pub whole: Whole,
    /// How the picture is cut into tiles; none if it never is.
    #[serde(default)]
    pub tiles: Option<Tiles>,
    /// The values of a view.
    pub values: Values,
    /// The rows that the tower makes of a view.
    pub rows: RowCount,
    /// What stands in the prompt.
    #[serde(default)]
    pub layout: PromptLayout,
    /// What a prompt with pictures has besides them.
    #[serde(default)]
    pub prompt: PromptText,
}

impl PictureRules {
    /// These rules for one view of so many patches from top to bottom and from left to right, whatever the size of the
    /// picture; none if the sides cannot be counted.
    pub fn of_patches(&self, rows: u32, columns: u32) -> Option<Self> {
        let side = |n: u32| NonZeroU32::new(n.checked_mul(self.values.patch.get())?);
        let (height, width) = (side(rows)?, side(columns)?);
        Some(Self {
            first: Vec::new(),
            whole: Whole {
                size: Size::Exact(Extent { height, width }),
                canvas: None,
            },
            tiles: None,
            ..self.clone()
        })
    }
}

/// The view of the whole picture.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Whole {
    /// The size to which it is resized.
    pub size: Size,
    /// What it is padded or cropped to afterwards.
    #[serde(default)]
    pub canvas: Option<Canvas>,
}

/// What a resized picture is padded or cropped to.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Canvas {
    /// The square of its longer side; the picture is in the middle.
    Square {
        /// The colour of the rest.
        colour: [u8; 3],
    },
    /// The middle, padded with black where the picture is smaller.
    Centre(Extent),
    /// Multiples of a side; the picture is above and left of black.
    Multiple(NonZeroU32),
}

/// How a picture is cut into tiles.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiles {
    /// The number of tiles.
    pub grid: Grid,
    /// Only larger pictures are cut.
    #[serde(default)]
    pub larger_than: Option<Threshold>,
    /// The size of a tile.
    pub size: TileSize,
    /// How the picture fills the canvas of all tiles.
    #[serde(default)]
    pub fill: Fill,
    /// What is made of a picture for which one tile is enough.
    #[serde(default)]
    pub single: Single,
    /// The place of the whole picture among the views.
    pub whole: WholePlace,
}

/// The size above which a picture is cut.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Threshold {
    /// The longer side has more pixels.
    LongerSide(u32),
    /// The sides, rounded to a multiple but at least `least`, have a larger area.
    Area {
        /// In pixels.
        pixels: f64,
        /// To which sides are rounded.
        multiple: NonZeroU32,
        /// The least side.
        least: u32,
    },
}

/// The size of a tile.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TileSize {
    /// Height and width.
    Exact(Extent),
    /// The area of a square in the proportions of the part of the picture, sides rounded to multiples.
    Proportional {
        /// The side of the square.
        side: NonZeroU32,
        /// To which sides are rounded.
        multiple: NonZeroU32,
    },
}

/// How a picture fills the canvas of its tiles.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fill {
    /// Squeezed to it.
    #[default]
    Stretch,
    /// As large as fits, rounded up, in the middle of black.
    Centre,
    /// As large as fits, rounded down, above and left of black.
    Corner {
        /// A side to which smaller pictures are enlarged at most; none for the canvas.
        #[serde(default)]
        enlarge_to: Option<NonZeroU32>,
    },
}

/// What is made of a picture for which one tile is enough.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Single {
    /// The view of the whole picture alone.
    #[default]
    Whole,
    /// The tile alone, in the place of the whole picture.
    Tile,
    /// Both, as for several tiles.
    Both,
}

/// The place of the whole picture among the views.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum WholePlace {
    /// Before the tiles.
    First,
    /// After the tiles.
    Last,
    /// Nowhere, if there are tiles.
    Absent,
}

/// The values of a view.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Values {
    /// What a byte is multiplied by.
    pub scale: f64,
    /// Mean and deviation; none if values are not normalised.
    #[serde(default)]
    pub normalise: Option<Normalise>,
    /// Whether each step is rounded to bfloat16.
    #[serde(default)]
    pub bfloat16: bool,
    /// The side of a patch, in pixels; 1 for whole pictures.
    #[serde(default = "one")]
    pub patch: NonZeroU32,
    /// The side of a block of patches.
    #[serde(default = "one")]
    pub block: NonZeroU32,
    /// How often a picture is repeated as a frame.
    #[serde(default = "one")]
    pub frames: NonZeroU32,
    /// The order of the axes.
    pub order: Order,
}

/// Mean and deviation of the scaled values, by channel.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalise {
    /// What is subtracted.
    pub mean: [f64; 3],
    /// What is divided by.
    pub std: [f64; 3],
}

/// The rows that a tower makes of a view.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RowCount {
    /// One of each square of `merge` by `merge` patches, also of an incomplete one; pixels beyond the last whole patch have none.
    Patches {
        /// The side of a patch, in pixels.
        patch: NonZeroU32,
        /// The side of the square.
        merge: NonZeroU32,
    },
    /// A number that does not depend on the view: a square, if it is one.
    Fixed(NonZeroU32),
}

/// What stands in the prompt in place of a picture. In the texts, `{row}` and `{column}` are those of a tile, from 1, and `{index}` is
/// the number of the picture in the prompt, from 0.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PromptLayout {
    /// Text before everything.
    pub before: String,
    /// Text after everything.
    pub after: String,
    /// A learned row after everything but the text.
    pub last_row: Option<String>,
    /// Text before and after the rows of the whole picture.
    pub whole: [String; 2],
    /// Text between the whole picture and the tiles.
    pub between: String,
    /// Whether the tiles come before the whole picture.
    pub tiles_first: bool,
    /// Text before and after the rows of a tile.
    pub tile: [String; 2],
    /// Text between the tiles of a line.
    pub columns: String,
    /// Text after each line of tiles.
    pub line: String,
    /// Text between lines of tiles.
    pub lines: String,
    /// Text between the lines of rows of a view.
    pub row_lines: String,
    /// The tiles as one picture.
    pub mosaic: Option<Mosaic>,
}

/// The rows of all tiles as those of one picture, without lines of mere padding.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mosaic {
    /// The learned row after each line.
    pub line_row: String,
    /// The number of tiles above whose area rows are interpolated.
    #[serde(default)]
    pub max_tiles: Option<NonZeroU32>,
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}
