//! Models as files: found, opened, recognised, converted, quantised, adapted and made up.

pub mod convert;
pub mod lora;
pub mod models;
pub mod quantise;
pub mod recognise;
pub mod synth;
