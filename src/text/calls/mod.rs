//! Reasoning and calls of tools in the text that a model writes.
//!
//! How models write them is data (`tools/*.tool.toml`, [`Format`]); which format a model has is found by
//! rendering its chat template ([`Dialect::probe`]). [`Parser`] reads text as it comes. Not here: HTTP,
//! and grammars that enforce a call. Pure. Invariant: the same text gives the same calls however it is
//! split, and every byte of the text is accounted for.

mod body;
mod channels;
mod cursor;
mod format;
mod header;
mod json;
mod notation;
mod parser;
mod probe;
#[cfg(test)]
mod tests;

pub use format::{Body, Format, Marks, formats, reasoning_marks};
pub use parser::{Parser, Part, Span, Tool};
pub use probe::Dialect;
