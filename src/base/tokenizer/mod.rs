//! Tokenizers, built from the metadata of a weight file.
//!
//! A [`Tokenizer`] splits a text at its special tokens (`specials`) and passes the rest to the algorithm that the file
//! names: SentencePiece by score (`spm`), byte-pair merges (`bpe`, with the words of `splitter` and `pretokenizer`),
//! `wordpiece`, `unigram`, longest match (`longest_match`), lowest cost (`lowest_cost`), or the library of the folder that the
//! vocabulary came in (`folder`, `library_encoder`). An algorithm is one file and one row of the table in `load`. Not here:
//! chat templates, and holding back the bytes of unfinished characters.
//!
//! Invariant: decoding works on bytes, because a token may end inside a character.

mod bpe;
mod byte_level;
mod chain;
mod encoder;
mod error;
pub mod folder;
mod frame;
mod keys;
mod library_encoder;
mod load;
mod longest_match;
mod lowest_cost;
mod normal_form;
mod normaliser;
mod pieces;
mod prefix_trie;
mod pretokenizer;
mod replacements;
mod roles;
mod specials;
mod splitter;
mod spm;
mod strip_rules;
#[cfg(test)]
mod tests;
mod text_index;
mod tokens;
mod unigram;
mod vocab;
mod wordpiece;

pub use encoder::Tokenizer;
pub use error::Error;
pub use frame::Frame;
pub use keys::unread;

use encoder::Encoder;

/// The character that represents a space in vocabularies.
const SPACE: &str = "\u{2581}";
