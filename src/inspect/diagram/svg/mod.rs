//! Pictures of a drawing: the layout of boxes, then SVG text.
//!
//! All layout is in pixels and done by code of this folder ([`flow`] within blocks), so that pictures are the same on
//! every machine and tests can check the rectangles. Colours are classes of a style sheet; whatever a colour expresses
//! is also expressed by a word, a letter or a shape.

mod documents;
mod execution;
mod flow;
mod grid;
mod layer;
mod overlay;
mod part;
mod scene;
mod shape;
mod stack;
mod style;
mod text;

pub use documents::{compared, comparison, document, kind};
pub use execution::execution;
pub use grid::{Cell, Chart, Grid, MAX_CELLS, chart};
pub(super) use layer::slots;
pub(super) use overlay::legend;
pub(super) use part::{cost_text, opened};
pub use scene::{Anchor, Item, Piece, Point, Rect, Seg, escape};
pub(super) use stack::{LEGEND, column, layers_of, notes};
pub use stack::{layers, stack};
pub use style::SHEET;
pub use text::{Style, width};
