//! Models as files: find, open, recognise, convert, quantise, adapt, synthesise.

pub mod arrays;
pub mod convert;
pub mod lora;
pub mod models;
pub mod npy;
pub mod prompts;
pub mod quantise;
pub mod recognise;
pub mod shelf;
pub mod synth;
pub mod vectors;
