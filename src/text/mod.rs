//! Tokens to text and back: tokenizers, chat templates and the gate that releases text.
//!
//! Everything here is pure: no model, no device, no clock. Called by the engine (the gate), the
//! API and the command line (tokenizer, templates).

pub mod template;
