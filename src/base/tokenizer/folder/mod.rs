//! The vocabulary of a Hugging Face folder, as the metadata that a GGUF file would hold.
//!
//! `tokenizer.json` is read by the library that defines it (`tokenizer_json`); tokens (`tokens`), roles (`ids`) and chat
//! templates (`templates`) become keys. A few layouts can describe how texts are tokenized (`layout`), and the right
//! one is found by trying them on texts (`grading`). A folder that no layout describes is encoded by the library. Files in
//! other formats are converted (`convert`), except SentencePiece models, whose fields become keys (`sentencepiece_folder`). Not here:
//! weights and the model's parameters.
//!
//! Invariant: the tokenizer of a folder encodes as the folder's own library does.

mod added;
mod base64;
mod classes;
mod convert;
mod decoder;
mod describe;
mod error;
mod files;
mod folder_tokenizer;
mod grading;
mod ids;
mod layout;
mod read;
mod sentencepiece;
mod sentencepiece_folder;
mod templates;
#[cfg(test)]
mod tests;
mod tiktoken;
mod tokenizer_json;
mod tokens;

pub use error::Error;
pub use folder_tokenizer::FolderTokenizer;
pub use read::{has_vocabulary, read};

use folder_tokenizer::assembled;
