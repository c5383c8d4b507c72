//! Reasoning and tool calls in the text that a model writes.
//!
//! The formats in which models write them are data (`tools/*.tool.toml`, [`CallFormat`]); the format of a model is found by
//! rendering its chat template ([`ChatDialect::probe`]). [`OutputParser`] parses text while it arrives. Not here: HTTP, and
//! grammars that enforce a call. Pure. Invariant: the same text yields the same calls however it is split, and every
//! byte of the text is accounted for.

mod arguments;
mod channels;
mod cursor;
mod dialect;
mod format;
mod header;
mod json;
mod json_repair;
mod notation;
mod open_call;
mod parameter;
mod parser;
mod python;
#[cfg(test)]
pub(crate) mod tests;
mod tool_schema;
mod unclosed_reasoning;

pub use dialect::ChatDialect;
pub use format::{CallBody, CallFormat, MarkPair, call_formats, reasoning_marks};
pub use json_repair::completed_arguments;
pub use parser::{OutputParser, OutputPart, OutputSpan, Tool};
pub use tool_schema::ToolSchema;
