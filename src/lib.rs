//! An LLM inference server and lab bench: a model architecture is a TOML file, never code.
//!
//! The modules of `src/base.rs`, `src/core.rs`, `src/server.rs` and `src/inspection.rs`, and above them:
//!
//! - [`cli`]: the command line
//!
//! The five lists are five packages, and `sampling` is a sixth: one is compiled while the next is still checked, and each is optimised as far as
//! what it does needs (`Cargo.toml`).

pub mod cli;

pub use lab_inspect::{
    api, arch, blocks, common, constraint, engine, files, ggml, inspect, model, plan, sampling,
    stmap, text, transport, weights,
};
