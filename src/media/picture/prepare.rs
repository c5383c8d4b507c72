//! A picture to what a tower reads and a prompt takes.

use crate::layout::{Prepared, View};

use super::decode::PictureLimits;
use super::error::PictureError;
use super::resize::Picture;
use super::rules::{PictureRules, RowCount};
use super::size::Extent;
use super::text::layout;
use super::views::views;

/// Prepares a picture, the `index`th in its prompt, from 0.
///
/// # Errors
/// The picture does not fit the rules, or they make more pixels of it than the limit.
pub fn prepare(
    picture: &Picture,
    rules: &PictureRules,
    index: usize,
    limits: &PictureLimits,
) -> Result<Prepared, PictureError> {
    // A frame is a copy of the pixels.
    let max = limits.max_view_pixels / u64::from(rules.values.frames.get());
    let made = views(picture, rules, max)?;
    let mut all = Vec::with_capacity(made.pictures.len());
    for picture in &made.pictures {
        let (values, shape) = rules.values.of(picture)?;
        let size = picture.size();
        let patch = rules.values.patch;
        all.push(View {
            values,
            shape,
            patches: [
                1,
                (size.height.get() / patch) as usize,
                (size.width.get() / patch) as usize,
            ],
            grid: rules.rows.of(size)?,
        });
    }
    let layout = layout(rules, picture.size(), &made, &all, index);
    Ok(Prepared { views: all, layout })
}

impl RowCount {
    /// The rows of a view, as time, height and width.
    fn of(self, view: Extent) -> Result<[usize; 3], PictureError> {
        let (rows, columns) = match self {
            Self::Patches { patch, merge } => {
                let rows = |side: u32| (side / patch).div_ceil(merge.get());
                (rows(view.height.get()), rows(view.width.get()))
            }
            Self::Fixed(count) => {
                let side = count.get().isqrt();
                match side * side == count.get() {
                    true => (side, side),
                    false => (1, count.get()),
                }
            }
        };
        match rows * columns {
            0 => Err(PictureError::Rules(format!(
                "a view of {} by {} pixels has no rows",
                view.width, view.height
            ))),
            _ => Ok([1, rows as usize, columns as usize]),
        }
    }
}
