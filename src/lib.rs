//! An LLM inference server and lab bench: a model architecture is a TOML file, never code.
//!
//! The modules of `src/base.rs`, `src/core.rs` and `src/server.rs`, and above them:
//!
//! - [`cli`]: the command line
//!
//! The four lists are four packages: one is compiled while the next is still checked, and each is optimised as far as
//! what it does needs (`Cargo.toml`).

pub mod cli;

pub use lab_server::{
    api, arch, blocks, common, constraint, engine, files, ggml, inspect, model, plan, sampling,
    stmap, text, weights,
};
