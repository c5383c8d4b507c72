//! The vocabulary of a Hugging Face folder.
//!
//! `tokenizer.json` is read by the library that defines it (`tokenizer_json`), which also encodes texts. Tokens (`tokens`),
//! roles (`ids`) and chat templates (`templates`) become keys of a GGUF file. For a file, further keys describe how texts
//! are tokenized (`gguf_keys`), and are compared with the library on texts (`verification`). Files in other formats are
//! converted (`convert`), except SentencePiece models, whose fields become keys (`sentencepiece_folder`). Not here:
//! weights and the model's parameters.
//!
//! Invariant: the tokenizer of a folder encodes as the folder's own library does.

mod added;
mod base64;
mod classes;
mod convert;
mod decoder;
mod error;
mod files;
mod folder_tokenizer;
mod gguf_keys;
mod ids;
mod library_folder;
mod read;
mod sentencepiece;
mod sentencepiece_folder;
mod templates;
#[cfg(test)]
mod tests;
mod tiktoken;
mod tokenizer_json;
mod tokens;
mod verification;

pub use error::Error;
pub use folder_tokenizer::FolderTokenizer;
pub use gguf_keys::FileKeys;
pub use read::{has_vocabulary, read};
