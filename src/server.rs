//! A model over HTTP, in words and in pictures.
//!
//! The modules of `src/base.rs` and `src/core.rs`, and above them in the order of their dependencies:
//!
//! - [`api`]: HTTP, in the shapes of OpenAI's API
//! - [`inspect`]: a model in words and pictures, and what differs between two

pub mod api;
pub mod inspect;

pub use lab_core::{
    arch, blocks, common, constraint, engine, files, ggml, model, plan, sampling, stmap, text,
    weights,
};
