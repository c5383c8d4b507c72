//! A model in words and in pictures.
//!
//! The modules of `src/base.rs`, `src/core.rs` and `src/server.rs`, and above them:
//!
//! - [`inspect`]: a model in words and pictures, and what differs between two

pub mod inspect;

pub use lab_server::{
    api, arch, blocks, common, constraint, engine, files, ggml, model, plan, sampling, stmap, text,
    transport, weights,
};
