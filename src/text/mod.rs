//! Tokens to text and back: tokenizers, chat templates, the gate that releases text, and the reasoning and tool calls
//! in it.
//!
//! Everything here is pure: no model, no device, no clock. Called by the engine (the gate), the
//! API and the command line (tokenizer, templates).

pub mod calls;
pub mod gate;
pub mod template;
pub mod tokenizer;
