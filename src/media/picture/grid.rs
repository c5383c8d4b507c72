//! Rules for the number of tiles into which a picture is cut.

use std::num::NonZeroU32;

use serde::Deserialize;

use super::error::PictureError;
use super::size::{Extent, near, proportional};

/// Maximum number of tiles that rules may allow, far above that of any processor.
const MAX_TILES: u32 = 1024;

/// A rule for the number of tiles.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Grid {
    /// The grid whose proportions are nearest; of several, the one with most tiles of which the picture has more than half the area.
    NearestRatio {
        /// The least number of tiles.
        min: NonZeroU32,
        /// The largest number of tiles.
        max: NonZeroU32,
    },
    /// The grid whose proportions are nearest by their logarithm, with about as many tiles as the picture has squares.
    NearestLogRatio {
        /// The side of a square, in pixels.
        side: NonZeroU32,
        /// The largest number of tiles.
        max: NonZeroU32,
    },
    /// The grid for which a picture is enlarged least or, if it must be shrunk, shrunk least; of several, the smallest.
    LeastEnlarged {
        /// The largest number of tiles.
        max: NonZeroU32,
        /// The grid for which it is enlarged most, instead.
        #[serde(default)]
        most: bool,
    },
    /// The canvas, of those listed as height and width, that keeps most pixels and, of several, wastes least.
    MostKept(Vec<[NonZeroU32; 2]>),
    /// The fewest tiles that hold a share of the picture without shrinking it, or those that hold most of it.
    FewestCovering {
        /// The largest number of tiles.
        max: NonZeroU32,
        /// The share, from 0 to 1.
        share: f64,
    },
    /// As many tiles as the picture has.
    Whole,
}

/// A number of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileGrid {
    pub(super) rows: u32,
    pub(super) columns: u32,
}

impl TileGrid {
    pub(super) fn count(self) -> u32 {
        self.rows * self.columns
    }

    fn ratio(self) -> f64 {
        f64::from(self.columns) / f64::from(self.rows)
    }

    /// The factor by which a picture fits into the canvas.
    fn scale(self, picture: Extent, tile: Extent) -> f64 {
        let ((h, w), (tile_h, tile_w)) = (picture.sides(), tile.sides());
        let of_width = f64::from(self.columns) * tile_w / w;
        of_width.min(f64::from(self.rows) * tile_h / h)
    }
}

impl Grid {
    /// The number of tiles; none if the picture is not cut.
    ///
    /// # Errors
    /// The rules allow too many tiles, or none.
    pub(super) fn of(
        &self,
        picture: Extent,
        tile: Option<Extent>,
    ) -> Result<Option<TileGrid>, PictureError> {
        let exact = || {
            let message = "this grid needs tiles of an exact size";
            tile.ok_or_else(|| PictureError::Rules(message.into()))
        };
        let none = || PictureError::Rules("no grid of tiles is allowed".into());
        Ok(match self {
            Self::NearestRatio { min, max } => {
                let grids = grids(min.get(), *max)?;
                Some(nearest(picture, exact()?, &grids).ok_or_else(none)?)
            }
            Self::NearestLogRatio { side, max } => nearest_log(picture, *side, *max)?,
            Self::LeastEnlarged { max, most } => {
                let (tile, grids) = (exact()?, grids(1, *max)?);
                let scales = || grids.iter().map(|grid| (*grid, grid.scale(picture, tile)));
                let enlarged = scales().filter(|(_, scale)| *scale >= 1.0);
                let (least, largest) = match enlarged.clone().next() {
                    Some(_) => (!most, enlarged.collect::<Vec<_>>()),
                    None => (false, scales().collect()),
                };
                // The first of equals: grids come in the order of their area.
                let best = largest.into_iter().reduce(|best, next| {
                    let is_better = match least {
                        true => next.1 < best.1,
                        false => next.1 > best.1,
                    };
                    if is_better { next } else { best }
                });
                Some(best.ok_or_else(none)?.0)
            }
            Self::MostKept(canvases) => {
                let canvas = most_kept(picture, canvases).ok_or_else(none)?;
                Some(whole(canvas, exact()?)?)
            }
            Self::FewestCovering { max, share } => {
                let tile = exact()?.height;
                Some(fewest_covering(picture, tile, &grids(1, *max)?, *share).ok_or_else(none)?)
            }
            Self::Whole => Some(whole(picture, exact()?)?),
        })
    }
}

/// All grids with a number of tiles, in the order of that number, then of their columns.
fn grids(min: u32, max: NonZeroU32) -> Result<Vec<TileGrid>, PictureError> {
    let max = max.get();
    if max > MAX_TILES {
        let message = format!("{max} tiles, expected at most {MAX_TILES}");
        return Err(PictureError::Rules(message));
    }
    let all = (1..=max)
        .flat_map(|columns| (1..=max / columns).map(move |rows| TileGrid { rows, columns }));
    let mut all: Vec<TileGrid> = all.filter(|grid| grid.count() >= min).collect();
    all.sort_by_key(|grid| grid.count());
    Ok(all)
}

/// The number of tiles of a canvas.
fn whole(canvas: Extent, tile: Extent) -> Result<TileGrid, PictureError> {
    let rows = canvas.height.get() / tile.height;
    let columns = canvas.width.get() / tile.width;
    match rows.checked_mul(columns) {
        Some(n) if (1..=MAX_TILES).contains(&n) => Ok(TileGrid { rows, columns }),
        _ => Err(PictureError::Rules(format!(
            "{columns} by {rows} tiles, expected 1 to {MAX_TILES}"
        ))),
    }
}

fn nearest(picture: Extent, tile: Extent, grids: &[TileGrid]) -> Option<TileGrid> {
    let (h, w) = picture.sides();
    let (tile_h, tile_w) = tile.sides();
    let mut best: Option<(TileGrid, f64)> = None;
    for grid in grids {
        let difference = (w / h - grid.ratio()).abs();
        let is_better = best.is_none_or(|(_, least)| {
            let half = 0.5 * tile_h * tile_w * f64::from(grid.count());
            difference < least || difference == least && h * w > half
        });
        if is_better {
            best = Some((*grid, difference));
        }
    }
    best.map(|(grid, _)| grid)
}

fn nearest_log(
    picture: Extent,
    side: NonZeroU32,
    max: NonZeroU32,
) -> Result<Option<TileGrid>, PictureError> {
    let (h, w) = picture.sides();
    let side = f64::from(side.get());
    let max = f64::from(max.get().min(MAX_TILES));
    let n = (w * h / (side * side)).ceil().min(max);
    if n <= 1.0 {
        return Ok(None);
    }
    let ratio = (w / h).ln();
    let mut best: Option<(TileGrid, f64)> = None;
    for n in [n - 1.0, n, n + 1.0] {
        if n == 1.0 || n > max {
            continue;
        }
        let n = n as u32;
        for rows in (1..=n).filter(|rows| n.is_multiple_of(*rows)) {
            let grid = TileGrid {
                rows,
                columns: n / rows,
            };
            let difference = (ratio - grid.ratio().ln()).abs();
            let is_better = best.is_none_or(|(other, least)| {
                difference < least || difference == least && rows > other.rows
            });
            if is_better {
                best = Some((grid, difference));
            }
        }
    }
    Ok(best.map(|(grid, _)| grid))
}

fn most_kept(picture: Extent, canvases: &[[NonZeroU32; 2]]) -> Option<Extent> {
    let (h, w) = picture.sides();
    let mut best: Option<(Extent, f64, f64)> = None;
    for &[height, width] in canvases {
        let canvas = Extent { height, width };
        let (canvas_h, canvas_w) = canvas.sides();
        let scale = (canvas_w / w).min(canvas_h / h);
        let kept = ((w * scale).floor() * (h * scale).floor()).min(w * h);
        let wasted = canvas_w * canvas_h - kept;
        let is_better = match best {
            None => true,
            Some((_, most, least)) => kept > most || kept == most && wasted < least,
        };
        if is_better {
            best = Some((canvas, kept, wasted));
        }
    }
    best.map(|(canvas, ..)| canvas)
}

/// The grid of those that hold a share. transformers measures a grid by its transposed: what it takes for rows becomes columns.
fn fewest_covering(
    picture: Extent,
    tile: NonZeroU32,
    grids: &[TileGrid],
    share: f64,
) -> Option<TileGrid> {
    let (height, width) = (picture.height.get(), picture.width.get());
    let tile = f64::from(tile.get());
    let held = |grid: &TileGrid| {
        let (rows, columns) = (grid.columns, grid.rows);
        let side = |length: u32, n: u32, i: u32| {
            let part = length / n;
            f64::from(if i == n - 1 { length - part * i } else { part })
        };
        let parts = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let areas = parts.map(|(row, column)| {
            let (h, w) = (side(height, rows, row), side(width, columns, column));
            let (long, short) = (h.max(w), h.min(w));
            match long > tile {
                true => tile * (short / long * tile),
                false => long * short,
            }
        });
        areas.sum::<f64>() / picture.area() as f64
    };
    let all: Vec<(TileGrid, f64)> = grids.iter().map(|grid| (*grid, held(grid))).collect();
    let enough = all.iter().filter(|(_, held)| *held > share);
    let fewest = enough.reduce(|best, next| {
        let is_better =
            next.0.count() < best.0.count() || next.0.count() == best.0.count() && next.1 > best.1;
        if is_better { next } else { best }
    });
    let most = all
        .iter()
        .reduce(|best, next| if next.1 > best.1 { next } else { best });
    fewest.or(most).map(|(grid, _)| *grid)
}

/// The size of a tile in the proportions of its part of the picture.
pub(super) fn proportional_tile(
    picture: Extent,
    grid: TileGrid,
    side: NonZeroU32,
    multiple: NonZeroU32,
) -> Result<Extent, PictureError> {
    let (h, w) = picture.sides();
    let part = |side: f64, n: u32| match NonZeroU32::new(n) {
        Some(count) => near(side, count) / f64::from(n),
        None => side,
    };
    let (h, w) = (part(h, grid.rows), part(w, grid.columns));
    let (h, w) = proportional(h, w, side, multiple, true);
    Extent::of(h, w)
}
