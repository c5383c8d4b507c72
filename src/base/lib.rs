//! Modules that do not depend on model definitions: weight files, the tensor library, tokenizers, chat templates, grammars.
//!
//! Data flows down this list; a module imports only modules above it:
//!
//! - [`util`]: work on all cores, measurements, numbers in words
//! - [`weights`]: a file on disk as metadata and named tensors, whatever the format
//! - [`ggml`]: safe handles over the tensor library
//! - [`tokenizer`]: tokens to text and back
//! - [`chat`]: chat templates, tool calls and reasoning in text, stop sequences
//! - [`grammar`]: constrained decoding: token masks

pub mod chat;
#[expect(unsafe_code, reason = "the safe layer over ggml")]
pub mod ggml;
pub mod grammar;
pub mod tokenizer;
pub mod util;
pub mod weights;
