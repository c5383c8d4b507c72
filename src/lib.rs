//! An LLM inference server and lab bench: a model architecture is a TOML file, never code.
//!
//! The packages, each of which imports only those above it:
//!
//! - `lab-sampling`: logits to token
//! - `lab-base`: weights, ggml, tokenizers, chat templates, grammars
//! - `lab-core`: definitions, maps, plans, blocks, models, the engine
//! - `lab-inspect`: a model in words and pictures
//! - `lab-server`: models over HTTP
//! - this one: [`cli`], the command line

pub mod cli;
