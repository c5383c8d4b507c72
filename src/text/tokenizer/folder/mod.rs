//! The vocabulary of a Hugging Face folder, as the metadata that a GGUF file would hold.
//!
//! `tokenizer.json` is read by the library that defines it (`parsed`); tokens (`tokens`), roles
//! (`ids`) and chat templates (`templates`) become keys. How texts are tokenized is described in
//! one of a few ways (`layout`), and what it does to texts decides which is right (`fit`). A folder
//! that none describes runs through the library. Files of other forms are brought into that one
//! (`source`), except SentencePiece models, whose fields become keys (`pieces`). Not here: weights and the
//! model's parameters.
//!
//! Invariant: the tokenizer of a folder encodes as the folder's own library does.

mod added;
mod classes;
mod contents;
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
