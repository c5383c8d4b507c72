//! An LLM inference server and lab bench: a model architecture is a TOML file, never code.

pub mod sampling;
pub mod text;
pub mod weights;
