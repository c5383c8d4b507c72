//! Diagrams of a model: stack, kinds of layers, slots, blocks, operations.
//!
//! A [`Drawing`] is made from a plan and from the graph that the model builds for it ([`lab_core::model::trace`]), so it
//! cannot show anything that does not run. It is data without coordinates; `svg` turns it into pictures. With a model
//! file, its numbers are those of the file. Without one, sizes are the expressions of the definition and of the
//! contracts ([`symbols`]).
//!
//! Folded into edges, and not drawn as operations, are views, reshapes and permutations, copies of layout, repetitions
//! of the same elements, and clamps without effect. A factor or offset that directly follows a product, a convolution
//! or a norm and is used by nothing else shares its box, and so do the additions that sum the parts of one value.

mod boxes;
pub mod compare;
mod context;
mod drawing;
mod drawing_build;
mod execution;
mod gallery;
pub mod html;
mod ids;
mod kinds;
mod ops;
pub mod overlay;
#[cfg(feature = "png")]
pub mod png;
pub mod svg;
mod symbols;
mod towers;
mod traced_plan;
mod unit_boxes;
mod words;

pub use boxes::{
    BoxNote, BoxWeight, Branch, ColourRange, Edge, EdgeSource, Factor, Kept, LEVELS, LayerKind,
    Legend, OpBox, OpShape, Slot, UnitBox, UnitOption, WeightCost,
};
pub use drawing::{Drawing, SourceRows, TowerDrawing};
pub use execution::{
    BytesHeld, BytesRead, MASK_TOKENS, SMALL_WINDOW, Scene, ScenePicture, TEXT_TOKENS,
};
pub use gallery::{GalleryError, gallery};
pub use kinds::LayerPattern;
pub use traced_plan::{DiagramError, TracedPlan, variants};
