//! What computes: from definitions and files to a model, and from requests to tokens.
//!
//! In the order of their dependencies:
//!
//! - [`arch`]: TOML text to a checked definition
//! - [`hf`]: a Hugging Face folder as a file with the names and shapes of a definition
//! - [`plan`]: definition and metadata to a [`plan::Plan`], which is executed, drawn and measured
//! - [`blocks`]: the maths, one file per block
//! - [`models`]: models as files: found, opened, converted, quantised, adapted, filled with random weights
//! - [`artifacts`]: arrays and vectors as files, and the results of lab requests
//! - [`model`]: a plan with its weights on devices, and the forward pass
//! - [`engine`]: requests to tokens: sequences, scheduler, the thread that owns the model

pub mod arch;
pub mod artifacts;
pub mod blocks;
pub mod engine;
pub mod hf;
pub mod model;
pub mod models;
pub mod plan;
