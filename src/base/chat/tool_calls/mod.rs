//! Reasoning and tool calls in the text that a model writes.
//!
//! The formats in which models write them are data (`tools/*.tool.toml`, [`Format`]); the format of a model is found by
//! rendering its chat template ([`Dialect::probe`]). [`Parser`] parses text while it arrives. Not here: HTTP, and
//! grammars that enforce a call. Pure. Invariant: the same text yields the same calls however it is split, and every
//! byte of the text is accounted for.

mod body;
mod channels;
mod cursor;
mod format;
mod header;
mod json;
mod notation;
mod object;
mod parameter;
mod parser;
mod probe;
mod python;
mod schema;
#[cfg(test)]
mod tests;
mod unclosed;

pub use format::{Body, Format, Marks, formats, reasoning_marks};
pub use object::completed;
pub use parser::{Parser, Part, Span, Tool};
pub use probe::Dialect;
pub use schema::Schema;
