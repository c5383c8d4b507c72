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
    rules.check()?;
    // A frame is a copy of the pixels.
    let max = limits.max_view_pixels / u64::from(rules.values.frames.get());
    let made = views(picture, rules, max)?;
    let mut all = Vec::with_capacity(made.pictures.len());
    for (picture, part) in &made.pictures {
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
            part: *part,
        });
    }
    let layout = layout(rules, picture.size(), &made, &all, index);
    Ok(Prepared { views: all, layout })
}

/// The longest text of a layout, in bytes, far above that of any special token: it is repeated for each row.
const MAX_TEXT: usize = 1024;

impl PictureRules {
    /// # Errors
    /// A text is too long.
    fn check(&self) -> Result<(), PictureError> {
        let layout = &self.layout;
        let one = [&self.marker, &self.row_token, &layout.before, &layout.after];
        let between = [
            &layout.between,
            &layout.columns,
            &layout.line,
            &layout.lines,
            &layout.row_lines,
        ];
        let around = layout.whole.iter().chain(&layout.tile);
        let mut all = one.into_iter().chain(between).chain(around);
        match all.find(|text| text.len() > MAX_TEXT) {
            Some(text) => Err(PictureError::Rules(format!(
                "a text of {} bytes, expected at most {MAX_TEXT}",
                text.len()
            ))),
            None => Ok(()),
        }
    }
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
        match u64::from(rows) * u64::from(columns) {
            n if !(1..=view.area()).contains(&n) => Err(PictureError::Rules(format!(
                "a view of {} by {} pixels has {n} rows",
                view.width, view.height
            ))),
            _ => Ok([1, rows as usize, columns as usize]),
        }
    }
}
