//! Tokenizers, built from what a weight file says about its vocabulary.
//!
//! A [`Tokenizer`] splits a text at its special tokens (`specials`) and hands the rest to the
//! algorithm the file names: SentencePiece by score (`spm`), byte-pair merges (`bpe`, with the words
//! of `words` and `pretokenizer`), `wordpiece`, `unigram`, the `longest` token, the least `costs`, or the
//! library of the folder that the vocabulary came in (`folder`, `external`). An algorithm is one file and one row of the table in `load`.
//! Not here: chat templates, and holding back the bytes of unfinished characters.
//!
//! Invariant: decoding works on bytes, because a token may end inside a character.

mod bpe;
mod byte_level;
mod chain;
mod costs;
mod encoder;
mod error;
mod external;
pub mod folder;
mod frame;
mod keys;
mod load;
mod longest;
mod normal_form;
mod normaliser;
mod pieces;
mod prefixes;
mod pretokenizer;
mod quirks;
mod replacements;
mod roles;
mod specials;
mod spm;
#[cfg(test)]
mod tests;
mod tokens;
mod unigram;
mod vocab;
mod wordpiece;
mod words;

pub use encoder::Tokenizer;
pub use error::Error;
pub use frame::Frame;
pub use keys::unread;

use encoder::Encoder;

/// The character that vocabularies write for a space.
const SPACE: &str = "\u{2581}";
