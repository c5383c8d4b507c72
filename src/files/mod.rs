//! Models as files: finding, opening, recognising, converting, quantising, adapting and synthesising them.

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
