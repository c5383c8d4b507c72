//! Reading the vocabulary and the chat templates of a folder.

use std::path::Path;

use super::convert::{self, VocabularySource};
use super::files::{self, FolderFiles};
use super::gguf_keys::{self, FileKeys};
use super::library_folder::LibraryFolder;
use super::{Error, FolderTokenizer, sentencepiece_folder};

/// Whether a folder has a file that holds a vocabulary.
pub fn has_vocabulary(folder: &Path) -> bool {
    files::vocabulary_of(folder).is_some()
}

/// Reads the vocabulary and the chat templates of a folder. Of several files that hold a vocabulary, the first in this
/// order counts: `tokenizer.json`, `tekken*.json`, `tokenizer.model` (SentencePiece's or tiktoken's) or a version of
/// it, `spiece.model`, `sentencepiece.bpe.model`, `tiktoken.model`, `*.tiktoken`, `vocab.json` with `merges.txt`,
/// `vocab.txt`.
///
/// # Errors
/// Files are missing, damaged, or contradict one another; the error names file and key.
pub fn read(folder: &Path) -> Result<FolderTokenizer, Error> {
    let mut files = FolderFiles::read(folder)?;
    match convert::of(&mut files)? {
        VocabularySource::Library(described) => {
            LibraryFolder::read(files, &described)?.into_tokenizer()
        }
        VocabularySource::Pieces => sentencepiece_folder::read(&files),
    }
}

impl FolderTokenizer {
    /// The metadata for a file that is to be tokenized like the folder, which is read again.
    ///
    /// # Errors
    /// The errors of [`read`], or no keys can describe how the folder tokenizes.
    pub fn for_file(&self) -> Result<FileKeys, Error> {
        let mut files = FolderFiles::read(&self.folder)?;
        match convert::of(&mut files)? {
            VocabularySource::Library(described) => {
                gguf_keys::of(&LibraryFolder::read(files, &described)?)
            }
            VocabularySource::Pieces => Ok(FileKeys {
                metadata: self.metadata().clone(),
                differs_at: None,
            }),
        }
    }
}
