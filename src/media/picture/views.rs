//! The views of a picture: the whole of it, and tiles.

use std::num::NonZeroU32;

use super::error::PictureError;
use super::grid::{TileGrid, proportional_tile};
use super::resample::CHANNELS;
use super::resize::Picture;
use super::rules::{Canvas, Fill, PictureRules, Single, Threshold, TileSize, Tiles, WholePlace};
use super::size::Extent;

const BLACK: [u8; CHANNELS] = [0; CHANNELS];

/// The views of a picture.
pub(super) struct Views {
    /// Each with the part of the whole picture that it shows: left, top, right and bottom as shares.
    pub(super) pictures: Vec<(Picture, [f64; 4])>,
    /// The index of the view of the whole picture.
    pub(super) whole: Option<usize>,
    /// The tiles and the index of the first one; they follow one another line by line.
    pub(super) tiles: Option<(TileGrid, usize)>,
}

/// Counts pixels, up to a limit.
struct Budget {
    used: u64,
    max: u64,
}

impl Budget {
    fn take(&mut self, size: Extent) -> Result<Extent, PictureError> {
        self.used = self.used.saturating_add(size.area());
        match self.used > self.max {
            true => Err(PictureError::TooMany {
                found: self.used,
                max: self.max,
            }),
            false => Ok(size),
        }
    }
}

/// The views of a picture, which together have at most `max` pixels.
///
/// # Errors
/// The picture does not fit the rules, or they make too many pixels of it.
pub(super) fn views(
    picture: &Picture,
    rules: &PictureRules,
    max: u64,
) -> Result<Views, PictureError> {
    let mut budget = Budget { used: 0, max };
    let mut resized: Option<Picture> = None;
    for size in &rules.first {
        let picture = resized.as_ref().unwrap_or(picture);
        let size = size.of(picture.size(), false)?;
        resized = Some(resize(picture, size, rules, max)?);
    }
    let picture = resized.as_ref().unwrap_or(picture);
    let size = picture.size();

    let cut = match &rules.tiles {
        Some(tiles) if is_larger(size, tiles.larger_than.as_ref()) => {
            let exact = match tiles.size {
                TileSize::Exact(tile) => Some(tile),
                TileSize::Proportional { .. } => None,
            };
            tiles.grid.of(size, exact)?.map(|grid| (tiles, grid))
        }
        _ => None,
    };
    let single = cut.as_ref().filter(|(_, grid)| grid.count() == 1);
    let single = single.map(|(tiles, _)| tiles.single);
    let has_tiles = cut.is_some() && single.is_none_or(|single| single == Single::Both);
    if single == Some(Single::Tile)
        && let Some((tiles, grid)) = cut
    {
        let pictures = tile_pictures(picture, tiles, grid, rules, &mut budget)?;
        return Ok(Views {
            pictures,
            whole: Some(0),
            tiles: None,
        });
    }
    let whole = |budget: &mut Budget| whole_picture(picture, rules, has_tiles, budget);
    let Some((tiles, grid)) = cut.filter(|_| has_tiles) else {
        return Ok(Views {
            pictures: vec![whole(&mut budget)?],
            whole: Some(0),
            tiles: None,
        });
    };
    let (mut pictures, mut whole_at, mut first) = (Vec::new(), None, 0);
    if tiles.whole == WholePlace::First {
        pictures.push(whole(&mut budget)?);
        (whole_at, first) = (Some(0), 1);
    }
    pictures.extend(tile_pictures(picture, tiles, grid, rules, &mut budget)?);
    if tiles.whole == WholePlace::Last {
        whole_at = Some(pictures.len());
        pictures.push(whole(&mut budget)?);
    }
    Ok(Views {
        pictures,
        whole: whole_at,
        tiles: Some((grid, first)),
    })
}

/// The picture at another size. It is as wide as the result before it is as high, which may be larger than both.
fn resize(
    picture: &Picture,
    size: Extent,
    rules: &PictureRules,
    max: u64,
) -> Result<Picture, PictureError> {
    let mut budget = Budget { used: 0, max };
    if size != picture.size() {
        budget.take(size)?;
    }
    if size.width > picture.size().width {
        budget.used = 0;
        budget.take(Extent {
            height: picture.size().height,
            width: size.width,
        })?;
    }
    Ok(picture.resized(size, rules.filter))
}

/// Whether a picture is larger than the size above which it is cut.
fn is_larger(picture: Extent, threshold: Option<&Threshold>) -> bool {
    let (h, w) = picture.sides();
    match threshold {
        None => true,
        Some(Threshold::LongerSide(pixels)) => h.max(w) > f64::from(*pixels),
        Some(Threshold::Area {
            pixels,
            multiple,
            least,
        }) => {
            let multiple = f64::from(multiple.get());
            let side = |side: f64| {
                let side = (side / multiple).round_ties_even() * multiple;
                side.max(f64::from(*least))
            };
            side(h) * side(w) > *pixels
        }
    }
}

fn whole_picture(
    picture: &Picture,
    rules: &PictureRules,
    has_tiles: bool,
    budget: &mut Budget,
) -> Result<(Picture, [f64; 4]), PictureError> {
    let size = rules.whole.size.of(picture.size(), has_tiles)?;
    let centre = |canvas: Extent| {
        let middle = |canvas: NonZeroU32, side: NonZeroU32| {
            let (canvas, side) = (i64::from(canvas.get()), i64::from(side.get()));
            // The larger half of a difference is below and to the right.
            match canvas > side {
                true => -((canvas - side) / 2),
                false => (side - canvas) / 2,
            }
        };
        (
            middle(canvas.height, size.height),
            middle(canvas.width, size.width),
            canvas,
        )
    };
    let (top, left, canvas, colour) = match &rules.whole.canvas {
        None => (0, 0, size, BLACK),
        Some(Canvas::Square { colour }) => {
            let side = size.height.max(size.width);
            let (top, left, canvas) = centre(Extent {
                height: side,
                width: side,
            });
            (top, left, canvas, *colour)
        }
        Some(Canvas::Centre(canvas)) => {
            let (top, left, canvas) = centre(*canvas);
            (top, left, canvas, BLACK)
        }
        Some(Canvas::Multiple(multiple)) => {
            let multiple = f64::from(multiple.get());
            let (h, w) = size.sides();
            let up = |side: f64| (side / multiple).ceil() * multiple;
            (0, 0, Extent::of(up(h), up(w))?, BLACK)
        }
    };
    let canvas = budget.take(canvas)?;
    let resized = resize(picture, size, rules, budget.max)?;
    let window = resized.window(top, left, canvas, colour);
    Ok((window, part(size, top, left, canvas)))
}

/// The part of a picture of a size that a window on it shows.
fn part(size: Extent, top: i64, left: i64, window: Extent) -> [f64; 4] {
    let share = |at: i64, side: NonZeroU32| at as f64 / f64::from(side.get());
    let end = |at: i64, side: NonZeroU32| at + i64::from(side.get());
    [
        share(left, size.width),
        share(top, size.height),
        share(end(left, window.width), size.width),
        share(end(top, window.height), size.height),
    ]
}

fn tile_pictures(
    picture: &Picture,
    tiles: &Tiles,
    grid: TileGrid,
    rules: &PictureRules,
    budget: &mut Budget,
) -> Result<Vec<(Picture, [f64; 4])>, PictureError> {
    let size = picture.size();
    let tile = match tiles.size {
        TileSize::Exact(tile) => tile,
        TileSize::Proportional { side, multiple } => proportional_tile(size, grid, side, multiple)?,
    };
    let (tile_h, tile_w) = tile.sides();
    let (rows, columns) = (f64::from(grid.rows), f64::from(grid.columns));
    let canvas = budget.take(Extent::of(tile_h * rows, tile_w * columns)?)?;
    let (canvas_h, canvas_w) = canvas.sides();
    // The canvas, the size of the picture on it, and where the canvas begins on the picture.
    let (filled, inner, from_top, from_left) = match tiles.fill {
        Fill::Stretch => (resize(picture, canvas, rules, budget.max)?, canvas, 0, 0),
        Fill::Centre => {
            let double = |side: f64| (side, Precision::Double);
            let inner = fitted(size, double(canvas_h), double(canvas_w), f64::ceil)?;
            let (h, w) = inner.sides();
            let half = |rest: f64| -((rest / 2.0).floor() as i64);
            let resized = resize(picture, inner, rules, budget.max)?;
            let (top, left) = (half(canvas_h - h), half(canvas_w - w));
            (resized.window(top, left, canvas, BLACK), inner, top, left)
        }
        Fill::Corner { enlarge_to } => {
            let most = |side: f64, canvas: f64| {
                let most = enlarge_to.map(|most| side.max(f64::from(most.get())));
                match most.filter(|most| *most <= canvas) {
                    Some(most) => (most, Precision::Double),
                    None => (canvas, Precision::Single),
                }
            };
            let (h, w) = size.sides();
            let inner = fitted(size, most(h, canvas_h), most(w, canvas_w), f64::floor)?;
            let resized = resize(picture, inner, rules, budget.max)?;
            (resized.window(0, 0, canvas, BLACK), inner, 0, 0)
        }
    };
    let places = (0..grid.rows).flat_map(|row| (0..grid.columns).map(move |column| (row, column)));
    let tile_at = |(row, column): (u32, u32)| {
        let top = i64::from(row) * i64::from(tile.height.get());
        let left = i64::from(column) * i64::from(tile.width.get());
        let shown = part(inner, top + from_top, left + from_left, tile);
        (filled.window(top, left, tile, BLACK), shown)
    };
    Ok(places.map(tile_at).collect())
}

/// The precision of a factor.
#[derive(Clone, Copy)]
enum Precision {
    Single,
    Double,
}

/// The largest size within a height and a width in the proportions of a picture. transformers computes the factors of some sides in
/// single precision, which decides whether 95.999 is rounded down.
fn fitted(
    picture: Extent,
    (height, of_height): (f64, Precision),
    (width, of_width): (f64, Precision),
    round: fn(f64) -> f64,
) -> Result<Extent, PictureError> {
    let (h, w) = picture.sides();
    let factor = |to: f64, from: f64, precision: Precision| match precision {
        Precision::Single => f64::from(to as f32 / from as f32),
        Precision::Double => to / from,
    };
    let times = |side: f64, factor: f64, precision: Precision| match precision {
        Precision::Single => f64::from(side as f32 * factor as f32),
        Precision::Double => side * factor,
    };
    let (by_width, by_height) = (factor(width, w, of_width), factor(height, h, of_height));
    match by_width < by_height {
        true => {
            let side = round(times(h, by_width, of_width));
            Extent::of(side.min(height).max(1.0), width)
        }
        false => {
            let side = round(times(w, by_height, of_height));
            Extent::of(height, side.min(width).max(1.0))
        }
    }
}
