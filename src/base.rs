//! What knows no definition of a model: files of weights, the tensor library, text, sampling, constraints.
//!
//! Data flows down this list. A module imports only modules above it; [`sampling`], which imports none, is a package of
//! its own:
//!
//! - [`common`]: work on all cores, measurements, numbers in words
//! - [`weights`]: a file on disk as metadata and named tensors, whatever the format
//! - [`ggml`]: safe handles over the tensor library
//! - [`text`]: tokens to text and back
//! - [`sampling`]: logits to token, a chain of small stages
//! - [`constraint`]: what an answer must look like, as masks over the vocabulary

pub mod common;
pub mod constraint;
#[expect(unsafe_code, reason = "the safe layer over ggml")]
pub mod ggml;
pub mod text;
pub mod weights;

pub use lab_sampling as sampling;
