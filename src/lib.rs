//! An LLM inference server and lab bench: a model architecture is a TOML file, never code.
//!
//! The modules of `src/base.rs`, `src/core.rs`, `src/server.rs` and `src/inspection.rs`, and above them:
//!
//! - [`cli`]: the command line
//!
//! The five lists are five packages; `sampling` and `transport` are two more. Cargo compiles one while it still checks
//! the next, and optimises each as far as its work needs (`Cargo.toml`).

pub mod cli;

pub use lab_inspect::{
    api, arch, blocks, common, constraint, engine, files, ggml, inspect, model, plan, sampling,
    stmap, text, transport, weights,
};
