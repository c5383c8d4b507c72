//! Reads how a folder prepares pictures: the processor file (`stmaps/*.processor.toml`) for its class, whose values are expressions over
//! the folder's configurations, evaluated to the rules of `lab_media`.
//!
//! Which file applies follows from its lists of `processor_class` and of the type of the image processor. The text of a file says what
//! kind of value stands where only by the rules it becomes: where they have a number or a list, a string is an expression; where they
//! have a text, `{expression}` in it stands for its value.

mod evaluate;
mod library;
mod scope;
#[cfg(test)]
mod tests;

pub use library::{ENDING, ProcessorError, Processors};
