//! Pictures of a drawing: the layout of boxes, then SVG text.
//!
//! All layout is in pixels and done by code of this folder ([`graph_layout`] within blocks), so that pictures are the same on
//! every machine and tests can check the rectangles. Colours are classes of a style sheet; whatever a colour expresses
//! is also expressed by a word, a letter or a shape.

mod documents;
mod execution;
mod fragment;
mod graph_layout;
mod grid;
mod layer;
mod overlay;
mod shape;
mod stack;
mod text;
mod unit_box;

pub use documents::{compared, comparison, document, kind};
pub use execution::execution;
pub use fragment::{Anchor, DrawItem, Fragment, PathSegment, Point, Rect, SHEET, Theme, escape};
pub use grid::{Chart, Grid, GridCell, HeatMap, MAX_CELLS, chart};
pub(super) use layer::slots;
pub(super) use overlay::legend;
pub(super) use stack::{LEGEND, column, layers_of, notes};
pub use stack::{layers, stack};
pub use text::{TextStyle, width};
pub(super) use unit_box::{cost_text, opened};
