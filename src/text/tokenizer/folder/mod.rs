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
mod error;
mod files;
mod fit;
mod ids;
mod layout;
mod parsed;
mod pieces;
mod ranks;
mod sentencepiece;
mod source;
mod templates;
mod tokens;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::weights::Metadata;

use super::Tokenizer;
use super::external::External;
use super::pieces::Spaces;

pub use error::Error;

use files::Files;
use fit::Fit;
use ids::{Ids, Own};
use layout::Layout;
use parsed::Parsed;
use source::Source;
use tokens::Token;

/// The vocabulary and the chat templates of a folder.
#[derive(Debug)]
pub struct Folder {
    /// The file that holds the vocabulary, for messages.
    path: PathBuf,
    metadata: Metadata,
    tokenizer: Tokenizer,
    /// The properties that the metadata cannot state, and whether they matter.
    difference: Option<Difference>,
}

/// Why the metadata of a folder does not say all.
#[derive(Clone, Debug)]
enum Difference {
    /// Unusual texts are tokenized otherwise: one of them.
    Slight(String),
    /// There is no way to say it.
    Whole(String),
}

/// Whether a folder has a file that holds a vocabulary.
pub fn has_vocabulary(folder: &Path) -> bool {
    files::vocabulary_of(folder).is_some()
}

/// Reads the vocabulary and the chat templates of a folder. Of several files that hold a vocabulary one
/// counts: `tokenizer.json`, `tekken*.json`, `tokenizer.model` (SentencePiece's or tiktoken's) or a version of
/// it, `spiece.model`, `sentencepiece.bpe.model`, `tiktoken.model`, `*.tiktoken`, `vocab.json` with `merges.txt`, `vocab.txt`.
///
/// # Errors
/// Files that are missing, damaged, or contradict one another; the error names file and key.
pub fn read(folder: &Path) -> Result<Folder, Error> {
    let mut files = Files::read(folder)?;
    let described = match source::of(&mut files)? {
        Source::Library(described) => described,
        Source::Pieces => return pieces::read(&files),
    };
    let parsed = Parsed::read(&files, &described)?;
    let tokens = tokens::read(&files, &parsed)?;
    let own = Own::read(&files, &parsed, described.class, &tokens)?;
    let ids = Ids::read(&files, &own, &tokens)?;
    let mut common = Metadata::default();
    ids.write(&tokens, &mut common);
    templates::write(&files, &mut common)?;
    describe(&files, parsed, &tokens, &ids, &common)
}

impl Folder {
    /// The vocabulary as the keys of a GGUF file. Where none of them can say how texts are
    /// tokenized, `tokenizer.ggml.model` and `tokenizer.ggml.pre` are absent.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tokenizer, which encodes as the folder says.
    pub fn into_tokenizer(self) -> Tokenizer {
        self.tokenizer
    }

    /// The tokenizer, which encodes as the folder says.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The metadata for a file that is to be tokenized as the folder is.
    ///
    /// # Errors
    /// A folder whose way of tokenizing no key can say.
    pub fn for_file(&self) -> Result<&Metadata, Error> {
        match &self.difference {
            Some(Difference::Whole(why)) => Err(Error::NotExpressible {
                path: self.path.clone(),
                why: why.clone(),
            }),
            _ => Ok(&self.metadata),
        }
    }

    /// A text that a file with the metadata tokenizes otherwise than the folder, where there is one.
    pub fn differs_at(&self) -> Option<&str> {
        match &self.difference {
            Some(Difference::Slight(text) | Difference::Whole(text)) => Some(text),
            None => None,
        }
    }
}

/// Finds the description that fits, and the tokenizer that is exact.
fn describe(
    files: &Files,
    parsed: Parsed,
    tokens: &[Token],
    ids: &Ids,
    common: &Metadata,
) -> Result<Folder, Error> {
    let (mut near, mut why) = (None, String::new());
    let layouts = layout::candidates(tokens, &parsed).unwrap_or_else(|reason| {
        why = reason;
        Vec::new()
    });
    for layout in layouts {
        let mut metadata = Metadata::default();
        layout.write(tokens, &parsed, &mut metadata);
        join(&mut metadata, common);
        match try_out(&layout, &metadata, &parsed, tokens, ids) {
            (Some(tokenizer), Fit::Exact) => {
                return assembled(files, metadata, Ok(tokenizer), None);
            }
            (_, Fit::Near(text)) if near.is_none() => near = Some((metadata, text)),
            (_, Fit::Not(reason)) if why.is_empty() => why = reason,
            _ => {}
        }
    }
    let (metadata, difference) = match near {
        Some((metadata, text)) => (metadata, Difference::Slight(text)),
        None => {
            let mut metadata = Metadata::default();
            layout::write_plain(tokens, &parsed, &mut metadata);
            join(&mut metadata, common);
            (metadata, Difference::Whole(why))
        }
    };
    let external = Arc::new(external(parsed, tokens, ids));
    let tokenizer = Tokenizer::with_external(&metadata, external);
    assembled(files, metadata, tokenizer, Some(difference))
}

/// A folder whose vocabulary has been read.
fn assembled(
    files: &Files,
    metadata: Metadata,
    tokenizer: Result<Tokenizer, super::Error>,
    difference: Option<Difference>,
) -> Result<Folder, Error> {
    let path = files.tokenizer_path();
    Ok(Folder {
        tokenizer: tokenizer.map_err(|source| Error::Vocabulary {
            path: path.clone(),
            source,
        })?,
        path,
        metadata,
        difference,
    })
}

/// The tokenizer of a description, and how well it fits.
fn try_out(
    layout: &Layout,
    metadata: &Metadata,
    parsed: &Parsed,
    tokens: &[Token],
    ids: &Ids,
) -> (Option<Tokenizer>, Fit) {
    let tokenizer = match Tokenizer::from_metadata(metadata) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return (None, Fit::Not(error.to_string())),
    };
    let fit = fit::grade(&tokenizer, parsed, tokens, &ids.frame, layout.is_doubtful);
    let fit = match (fit, layout.differs) {
        (Fit::Exact, Some(text)) => Fit::Near(text.to_owned()),
        (fit, _) => fit,
    };
    (Some(tokenizer), fit)
}

fn external(parsed: Parsed, tokens: &[Token], ids: &Ids) -> External {
    let is_byte_level = layout::is_byte_level(&parsed);
    let spaces = match is_byte_level {
        true => Spaces::ByteLevel,
        false => Spaces::Escaped,
    };
    let has_bytes = tokens
        .iter()
        .any(|token| token.kind == super::vocab::Kind::Byte);
    External::new(
        parsed.library,
        ids.frame.clone(),
        spaces,
        is_byte_level || has_bytes,
    )
}

fn join(metadata: &mut Metadata, more: &Metadata) {
    for (key, value) in more.iter() {
        metadata.insert(key, value.clone());
    }
}

#[cfg(test)]
mod tests;
