//! An LLM inference server and lab bench: a model architecture is a TOML file, never code.
//!
//! The modules of `src/core.rs`, and above them in the order of their dependencies:
//!
//! - [`api`]: HTTP, in the shapes of OpenAI's API
//! - [`inspect`]: a model in words and pictures, and what differs between two
//! - [`cli`]: the command line
//!
//! The two lists are two packages: what computes is compiled while this part is still checked, and is optimised in
//! development too.

pub mod api;
pub mod cli;
pub mod inspect;

pub use lab_core::{
    arch, blocks, common, constraint, engine, files, ggml, model, plan, sampling, stmap, text,
    weights,
};
