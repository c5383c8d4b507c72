//! The vocabulary of a folder, after it was read.

use std::path::PathBuf;

use super::super::Tokenizer;
use super::Error;
use super::files::FolderFiles;
use crate::weights::Metadata;

/// The vocabulary and the chat templates of a folder.
#[derive(Debug)]
pub struct FolderTokenizer {
    /// The file that holds the vocabulary, for messages.
    path: PathBuf,
    metadata: Metadata,
    tokenizer: Tokenizer,
    /// How the metadata differs from the folder, if it does.
    difference: Option<Difference>,
}

#[derive(Clone, Debug)]
pub(super) enum Difference {
    /// Unusual texts are tokenized differently; the text is an example.
    Slight(String),
    /// The metadata cannot describe the tokenization; the text says why.
    Whole(String),
}

impl FolderTokenizer {
    /// The vocabulary as keys of a GGUF file. If no keys can describe how texts are tokenized, `tokenizer.ggml.model`
    /// and `tokenizer.ggml.pre` are absent.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tokenizer, which encodes like the folder's own library.
    pub fn into_tokenizer(self) -> Tokenizer {
        self.tokenizer
    }

    /// The tokenizer, which encodes like the folder's own library.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The metadata for a file that is to be tokenized like the folder.
    ///
    /// # Errors
    /// No keys can describe how the folder tokenizes.
    pub fn for_file(&self) -> Result<&Metadata, Error> {
        match &self.difference {
            Some(Difference::Whole(why)) => Err(Error::NotExpressible {
                path: self.path.clone(),
                why: why.clone(),
            }),
            _ => Ok(&self.metadata),
        }
    }

    /// What a file with the metadata tokenizes differently from the folder, or why no keys describe the folder; `None`
    /// if nothing differs.
    pub fn differs_at(&self) -> Option<&str> {
        match &self.difference {
            Some(Difference::Slight(text) | Difference::Whole(text)) => Some(text),
            None => None,
        }
    }
}

pub(super) fn assembled(
    files: &FolderFiles,
    metadata: Metadata,
    tokenizer: Result<Tokenizer, super::super::Error>,
    difference: Option<Difference>,
) -> Result<FolderTokenizer, Error> {
    let path = files.tokenizer_path();
    Ok(FolderTokenizer {
        tokenizer: tokenizer.map_err(|source| Error::Vocabulary {
            path: path.clone(),
            source,
        })?,
        path,
        metadata,
        difference,
    })
}
