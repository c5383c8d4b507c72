//! Shows numbers of a model's values and units on its drawing: each box gets a colour and the number itself.
//!
//! [`Overlay::read`] reads five formats: the profiles of `bench perf --profile --json`, the reports of
//! `bench compare --json`, `bench lab drift --json` and `bench plan --json`, and an object of paths with numbers.
//! [`Overlay::apply`] finds the box of each number, and writes the combined number to this box and all that contain it:
//! times are added; of other quantities, the largest is shown with its layer. Nothing is measured here, and nothing has
//! coordinates. Every number of the file is in one box, or the legend lists it as outside.

mod apply;
mod box_index;
mod read;
mod scale;

pub(super) use box_index::annotate;
pub use box_index::{BoxId, BoxInLayer};
pub use read::{
    Aggregation, FirstDifference, LARGEST, MeasuredOp, Measurement, Overlay, OverlayError,
};
pub(super) use scale::digits;
