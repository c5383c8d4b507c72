//! What computes: from definitions and files to a model, and from requests to tokens.
//!
//! The modules of `src/base.rs`, and above them in the order of their dependencies:
//!
//! - [`arch`]: TOML text to a checked definition
//! - [`stmap`]: a folder of safetensors as a file with the names and shapes of a definition
//! - [`plan`]: definition and metadata to a [`plan::Plan`], which is executed, drawn and measured
//! - [`blocks`]: the maths, one file per block
//! - [`files`]: models as files: found, opened, converted, quantised, adapted, filled with random weights
//! - [`model`]: a plan with its weights on devices, and the forward pass
//! - [`engine`]: requests to tokens: sequences, scheduler, the thread that owns the model

pub mod arch;
pub mod blocks;
pub mod engine;
pub mod files;
pub mod model;
pub mod plan;
pub mod stmap;

pub use lab_base::{common, constraint, ggml, sampling, text, weights};
