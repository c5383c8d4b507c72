//! What computes: from definitions and files to a model, and from requests to tokens.
//!
//! Data flows down this list, and imports never point back up:
//!
//! - [`common`]: work on all cores, measurements, numbers in words
//! - [`weights`]: a file on disk as metadata and named tensors, whatever the format
//! - [`arch`]: TOML text to a checked definition
//! - [`stmap`]: a folder of safetensors as a file with the names and shapes of a definition
//! - [`plan`]: definition and metadata to a [`plan::Plan`], which is executed, drawn and measured
//! - [`ggml`]: safe handles over the tensor library
//! - [`blocks`]: the maths, one file per block
//! - [`text`]: tokens to text and back
//! - [`files`]: models as files: found, opened, converted, quantised, adapted, made up
//! - [`model`]: a plan with its weights on devices, and the forward pass
//! - [`sampling`]: logits to token, a chain of small stages
//! - [`constraint`]: what an answer must look like, as masks over the vocabulary
//! - [`engine`]: requests to tokens: sequences, scheduler, the thread that owns the model

pub mod arch;
pub mod blocks;
pub mod common;
pub mod constraint;
pub mod engine;
pub mod files;
#[expect(unsafe_code, reason = "the safe layer over ggml")]
pub mod ggml;
pub mod model;
pub mod plan;
pub mod sampling;
pub mod stmap;
pub mod text;
pub mod weights;
