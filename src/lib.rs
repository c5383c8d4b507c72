//! An LLM inference server and lab bench: a model architecture is a TOML file, never code.

pub mod arch;
pub mod blocks;
#[expect(unsafe_code, reason = "the safe layer over ggml")]
pub mod ggml;
pub mod model;
pub mod plan;
pub mod text;
pub mod weights;
