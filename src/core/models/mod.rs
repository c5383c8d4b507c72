//! Models as files: finding, opening, recognising, converting, quantising, adapting and synthesising them.

pub mod convert;
pub mod lora;
pub mod media;
pub mod mmproj;
mod open;
pub mod prompts;
pub mod quantise;
pub mod recognise;
pub mod sampling_defaults;
pub mod synth;
pub mod towers;

pub use open::{
    DEFAULT_MODEL, Definitions, DefinitionsError, Error, FileStamp, ModelFiles, ModelSource,
    OpenedModel, abbreviated, by_name, is_servable, list, open, read, tokenizer_of, unread_keys,
};
