//! Pictures: decoded within limits, resized and cut by the rules of a processor, and laid out in a prompt.

mod decode;
mod error;
mod grid;
mod order;
mod prepare;
mod resample;
mod resize;
mod rules;
mod size;
#[cfg(test)]
mod tests;
mod text;
mod values;
mod views;

pub use decode::{PictureLimits, decode};
pub use error::PictureError;
pub use prepare::prepare;
pub use resize::Picture;
pub use rules::PictureRules;
pub use size::Extent;
