//! A model over HTTP.
//!
//! The modules of `src/base.rs` and `src/core.rs`, and above them:
//!
//! - [`transport`]: HTTP connections
//! - [`api`]: HTTP, in the shapes of OpenAI's API

pub mod api;

pub use lab_transport as transport;

pub use lab_core::{
    arch, blocks, common, constraint, engine, files, ggml, model, plan, sampling, stmap, text,
    weights,
};
