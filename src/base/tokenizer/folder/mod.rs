//! The vocabulary of a Hugging Face folder, as the metadata that a GGUF file would hold.
//!
//! `tokenizer.json` is read by the library that defines it (`parsed`); tokens (`tokens`), roles (`ids`) and chat
//! templates (`templates`) become keys. A few layouts can describe how texts are tokenized (`layout`), and the right
//! one is found by trying them on texts (`fit`). A folder that no layout describes is encoded by the library. Files in
//! other formats are converted (`source`), except SentencePiece models, whose fields become keys (`pieces`). Not here:
//! weights and the model's parameters.
//!
//! Invariant: the tokenizer of a folder encodes as the folder's own library does.

mod added;
mod classes;
mod contents;
mod decoder;
mod describe;
mod error;
mod files;
mod fit;
mod ids;
mod layout;
mod parsed;
mod pieces;
mod ranks;
mod read;
mod sentencepiece;
mod source;
mod templates;
#[cfg(test)]
mod tests;
mod tokens;

pub use contents::Folder;
pub use error::Error;
pub use read::{has_vocabulary, read};

use contents::assembled;
