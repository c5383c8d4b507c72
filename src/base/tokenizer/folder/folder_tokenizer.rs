//! The vocabulary of a folder, after it was read.

use std::path::PathBuf;

use super::super::{Error as Inner, Tokenizer};
use super::Error;
use super::files::FolderFiles;
use crate::weights::Metadata;

/// The vocabulary and the chat templates of a folder.
#[derive(Debug)]
pub struct FolderTokenizer {
    pub(super) folder: PathBuf,
    metadata: Metadata,
    tokenizer: Tokenizer,
}

impl FolderTokenizer {
    pub(super) fn new(
        files: &FolderFiles,
        metadata: Metadata,
        tokenizer: Result<Tokenizer, Inner>,
    ) -> Result<Self, Error> {
        Ok(Self {
            tokenizer: tokenizer.map_err(|source| Error::Vocabulary {
                path: files.tokenizer_path(),
                source,
            })?,
            folder: files.folder.clone(),
            metadata,
        })
    }

    /// Tokens, roles and chat templates as keys of a GGUF file. How texts are tokenized is not in them: see
    /// [`Self::for_file`].
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
}
