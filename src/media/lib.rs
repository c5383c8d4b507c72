//! Pictures and sounds as a model reads them: files are decoded within limits, prepared by the rules of a processor, and laid out in a
//! prompt.
//!
//! Nothing here knows a model, a tower or ggml: the rules of a processor are data.

mod layout;
pub mod picture;
mod prompt;
pub mod sound;
pub mod transcript;

pub use layout::{Piece, Prepared, RowSource, View};
pub use prompt::{Medium, PromptError, PromptText, expand};
