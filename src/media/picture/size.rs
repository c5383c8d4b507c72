//! Rules for the size to which a picture is resized. The arithmetic, floats and their order included, is that of transformers, since a
//! side that differs by one changes the number of rows.

use std::num::{NonZeroU32, NonZeroU64};

use serde::Deserialize;

use super::error::PictureError;

/// The size of a picture, in pixels.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Height.
    pub height: NonZeroU32,
    /// Width.
    pub width: NonZeroU32,
}

impl Extent {
    /// A size, if both sides have pixels and can be counted.
    ///
    /// # Errors
    /// A side is 0, or too large for any picture.
    pub(super) fn of(height: f64, width: f64) -> Result<Self, PictureError> {
        let side = |side: f64| match (1.0..f64::from(u32::MAX)).contains(&side) {
            true => NonZeroU32::new(side as u32),
            false => None,
        };
        match (side(height), side(width)) {
            (Some(height), Some(width)) => Ok(Self { height, width }),
            _ => Err(PictureError::Unfit(format!(
                "it would be resized to {width} by {height} pixels"
            ))),
        }
    }

    pub(super) fn sides(self) -> (f64, f64) {
        (f64::from(self.height.get()), f64::from(self.width.get()))
    }

    pub(super) fn area(self) -> u64 {
        u64::from(self.height.get()) * u64::from(self.width.get())
    }
}

/// A rule for the size to which a picture is resized.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Size {
    /// This size, whatever the proportions.
    Exact(Extent),
    /// The shorter side has this length; the other one is rounded down.
    ShorterSide(NonZeroU32),
    /// The longer side has this length.
    LongerSide {
        /// In pixels.
        length: NonZeroU32,
        /// How the other side is rounded.
        rounding: Rounding,
        /// The least length of a side.
        #[serde(default)]
        least: u32,
    },
    /// Not larger than a size; sides are rounded up to multiples.
    Within {
        /// Height.
        height: NonZeroU32,
        /// Width.
        width: NonZeroU32,
        /// To which sides are rounded up.
        multiple: NonZeroU32,
    },
    /// Not larger than a number of patches in all and at a side.
    WithinPatches {
        /// The side of a patch, in pixels.
        patch: NonZeroU32,
        /// In all.
        max: NonZeroU32,
        /// At a side.
        max_side: NonZeroU32,
    },
    /// Both sides are rounded up to multiples, the shorter one after the longer one.
    Multiple(NonZeroU32),
    /// Both sides are rounded to multiples, between two areas.
    Area {
        /// To which sides are rounded.
        multiple: NonZeroU32,
        /// The least area of all frames, in pixels.
        min: u64,
        /// The largest area of all frames, in pixels.
        max: NonZeroU64,
        /// The number of frames.
        #[serde(default = "one")]
        frames: NonZeroU32,
        /// What is done with a side below the multiple.
        #[serde(default)]
        small: Small,
        /// The largest ratio of the sides; others are refused.
        #[serde(default)]
        max_ratio: Option<f64>,
    },
    /// As large as a number of patches allows, in the proportions of the picture; sides are rounded down to multiples.
    FillPatches {
        /// The side of a patch, in pixels.
        patch: NonZeroU32,
        /// The patches at a side that are pooled to one row.
        pool: NonZeroU32,
        /// The number of rows.
        max_rows: NonZeroU32,
    },
    /// At most the area of a square, exactly it if the picture has no tiles; sides are rounded to multiples.
    Proportional {
        /// The side of the square.
        side: NonZeroU32,
        /// To which sides are rounded.
        multiple: NonZeroU32,
    },
}

/// How a side is rounded.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// To the nearest number, half to even.
    Nearest,
    /// Down, then up to an even number; both sides are at most 4096.
    Even,
}

/// What is done with a side that is below the multiple.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Small {
    /// Nothing: it may be rounded to 0, and enlarged to the least area.
    #[default]
    Round,
    /// It is rounded to the multiple.
    AtLeast,
    /// The picture is enlarged first, rounded down.
    Enlarge,
    /// The picture is enlarged first, rounded to the nearest.
    EnlargeNearest,
}

/// The largest side of [`Rounding::Even`].
const MAX_EVEN_SIDE: f64 = 4096.0;

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

fn float(number: NonZeroU32) -> f64 {
    f64::from(number.get())
}

impl Size {
    /// The size to which a picture is resized.
    ///
    /// # Errors
    /// The picture does not fit the rule.
    pub(super) fn of(&self, picture: Extent, has_tiles: bool) -> Result<Extent, PictureError> {
        let (h, w) = picture.sides();
        let (height, width) = match *self {
            Self::Exact(size) => return Ok(size),
            Self::ShorterSide(length) => {
                let length = float(length);
                match w <= h {
                    true => ((length * h / w).floor(), length),
                    false => (length, (length * w / h).floor()),
                }
            }
            Self::LongerSide {
                length,
                rounding: Rounding::Nearest,
                least,
            } => {
                let scale = float(length) / h.max(w);
                let side = |side: f64| (side * scale).round_ties_even().max(f64::from(least));
                (side(h), side(w))
            }
            Self::LongerSide {
                length,
                rounding: Rounding::Even,
                least,
            } => {
                let even = |side: f64| side.floor() + side.floor() % 2.0;
                let (ratio, length) = (w / h, float(length));
                let least = f64::from(least).max(1.0);
                let (h, w) = match w >= h {
                    true => (even(length / ratio).max(least), length),
                    false => (length, even(length * ratio).max(least)),
                };
                bounded(h, w, MAX_EVEN_SIDE)
            }
            Self::Within {
                height,
                width,
                multiple,
            } => {
                let ratio = (h / float(height)).max(w / float(width));
                let side = |side: f64| match ratio > 1.0 {
                    true => up((side / ratio).floor().max(1.0), multiple),
                    false => up(side, multiple),
                };
                (side(h), side(w))
            }
            Self::WithinPatches {
                patch,
                max,
                max_side,
            } => {
                let patches = |side: f64| (side / float(patch)).floor().max(1.0);
                let longest = float(max_side) * float(patch);
                let of_all = (float(max) / (patches(h) * patches(w))).sqrt();
                let scale = [of_all, longest / h, longest / w];
                let scale = scale.into_iter().fold(1.0, f64::min);
                let side = |side: f64| (side * scale).floor().max(1.0).min(longest);
                (side(h), side(w))
            }
            Self::Multiple(multiple) => {
                let ratio = w / h;
                match w >= h {
                    true => {
                        let w = up(w, multiple);
                        (up((w / ratio).floor(), multiple), w)
                    }
                    false => {
                        let h = up(h, multiple);
                        (h, up((h * ratio).floor(), multiple))
                    }
                }
            }
            Self::Area {
                multiple,
                min,
                max,
                frames,
                small,
                max_ratio,
            } => {
                let (h, w) = enlarged(h, w, float(multiple), small);
                let ratio = h.max(w) / h.min(w);
                if let Some(most) = max_ratio.filter(|most| ratio > *most) {
                    return Err(PictureError::Unfit(format!(
                        "one side is {ratio:.0} times the other one, expected at most {most}"
                    )));
                }
                let at_least = match small {
                    Small::AtLeast => float(multiple),
                    _ => 0.0,
                };
                let (f, multiple) = (float(frames), float(multiple));
                let near = |side: f64| {
                    let side = (side / multiple).round_ties_even() * multiple;
                    side.max(at_least)
                };
                let (min, max) = (min as f64, max.get() as f64);
                let area = f * near(h) * near(w);
                if area > max {
                    let beta = (f * h * w / max).sqrt();
                    let down = |side: f64| (side / beta / multiple).floor() * multiple;
                    (down(h).max(multiple), down(w).max(multiple))
                } else if area < min {
                    let beta = (min / (f * h * w)).sqrt();
                    let up = |side: f64| (side * beta / multiple).ceil() * multiple;
                    (up(h), up(w))
                } else {
                    (near(h), near(w))
                }
            }
            Self::FillPatches {
                patch,
                pool,
                max_rows,
            } => fill(h, w, float(patch), float(pool), float(max_rows)),
            Self::Proportional { side, multiple } => proportional(h, w, side, multiple, !has_tiles),
        };
        Extent::of(height, width)
    }
}

/// A side rounded up to a multiple.
fn up(side: f64, multiple: NonZeroU32) -> f64 {
    (side / float(multiple)).ceil() * float(multiple)
}

/// Sides of at least a pixel in the proportions, none longer than a bound.
fn bounded(h: f64, w: f64, most: f64) -> (f64, f64) {
    let ratio = w / h;
    let (h, w) = match w >= h {
        true if w > most => ((most / ratio).floor(), most),
        false if h > most => (most, (most * ratio).floor()),
        _ => (h, w),
    };
    (h.max(1.0), w.max(1.0))
}

/// The sides of a picture, enlarged if one is below the multiple.
fn enlarged(h: f64, w: f64, multiple: f64, small: Small) -> (f64, f64) {
    match small {
        Small::Round | Small::AtLeast => (h, w),
        Small::Enlarge if h < multiple || w < multiple => {
            let scale = (multiple / h).max(multiple / w);
            ((h * scale).floor(), (w * scale).floor())
        }
        Small::Enlarge => (h, w),
        Small::EnlargeNearest => {
            let (h, w) = match h < multiple {
                true => (multiple, (w * multiple / h).round_ties_even()),
                false => (h, w),
            };
            match w < multiple {
                true => ((h * multiple / w).round_ties_even(), multiple),
                false => (h, w),
            }
        }
    }
}

/// The largest multiples that a number of patches allows. A side that would vanish has one multiple, and the other one as many as its
/// ratio to it.
fn fill(h: f64, w: f64, patch: f64, pool: f64, max_rows: f64) -> (f64, f64) {
    let multiple = pool * patch;
    let factor = (max_rows * pool * pool * (patch * patch) / (h * w)).sqrt();
    let side = |side: f64| (factor * side / multiple).floor() * multiple;
    let longest = max_rows * multiple;
    match (side(h), side(w)) {
        (0.0, width) if width > 0.0 => (multiple, ((w / h).floor() * multiple).min(longest)),
        (height, 0.0) if height > 0.0 => (((h / w).floor() * multiple).min(longest), multiple),
        sides => sides,
    }
}

/// The area of a square in the proportions of a picture, or the picture's own if it is smaller and not enlarged; sides are rounded to
/// multiples, at least one.
pub(super) fn proportional(
    h: f64,
    w: f64,
    side: NonZeroU32,
    multiple: NonZeroU32,
    enlarges: bool,
) -> (f64, f64) {
    let side = float(side);
    let (mut height, mut width) = (h, w);
    if h * w > side * side || enlarges {
        let ratio = w / h;
        height = (side / ratio.sqrt()).floor();
        width = (height * ratio).floor();
    }
    (near(height, multiple), near(width, multiple))
}

/// A side rounded to a multiple, at least one.
pub(super) fn near(side: f64, multiple: NonZeroU32) -> f64 {
    let multiple = float(multiple);
    ((side / multiple).round_ties_even() * multiple).max(multiple)
}
