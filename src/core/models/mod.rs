//! Models as files: finding, opening, recognising, converting, quantising, adapting and synthesising them.

pub mod convert;
mod definitions;
pub mod drafters;
mod error;
pub mod lora;
pub mod media;
pub mod mmproj;
mod model_files;
mod open;
pub mod prompts;
pub mod quantise;
pub mod recognise;
pub mod sampling_defaults;
mod source;
pub mod synth;
pub mod towers;
pub mod transcription;

pub use definitions::{Definitions, DefinitionsError, DrafterChoice};
pub use error::Error;
pub use model_files::{ModelFiles, read, tokenizer_of};
pub use open::{OpenedModel, abbreviated, by_name, is_servable, list, open, unread_keys};
pub use source::{DEFAULT_MODEL, FileStamp, ModelSource};
