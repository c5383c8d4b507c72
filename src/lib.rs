//! An LLM inference server and lab bench: a model architecture is a TOML file, never code.
//!
//! The modules of `src/base.rs` and `src/core.rs`, and above them in the order of their dependencies:
//!
//! - [`api`]: HTTP, in the shapes of OpenAI's API
//! - [`inspect`]: a model in words and pictures, and what differs between two
//! - [`cli`]: the command line
//!
//! The three lists are three packages: one is compiled while the next is still checked, and only the first, which has
//! the loops over numbers and texts, is optimised in development too.

pub mod api;
pub mod cli;
pub mod inspect;

pub use lab_core::{
    arch, blocks, common, constraint, engine, files, ggml, model, plan, sampling, stmap, text,
    weights,
};
