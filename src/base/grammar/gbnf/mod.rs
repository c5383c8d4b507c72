//! Translates GBNF, llama.cpp's grammar notation, to the Lark that the library reads.
//!
//! `parse` reads rules over characters, `prune` removes parts that match no text, `lexemes` finds the parts that can be
//! lexemes without changing what matches, `write` writes the result. Left recursion is allowed; llama.cpp refuses it.
//!
//! Invariant: the translation matches exactly the texts of the grammar.

mod automaton;
mod chars;
mod lexemes;
mod parse;
mod prune;
mod translate;
mod write;

#[cfg(test)]
mod tests;
pub(super) use translate::{is_gbnf, to_lark};
#[cfg(test)]
pub(super) use {parse::parse, tests::NaiveMatcher};
