//! Reading the vocabulary and the chat templates of a folder.

use std::path::Path;

use super::convert::{self, VocabularySource};
use super::describe::describe;
use super::files::{self, FolderFiles};
use super::ids::{DefaultRoles, RoleIds};
use super::tokenizer_json::TokenizerJson;
use super::{Error, FolderTokenizer, sentencepiece_folder, templates, tokens};
use crate::weights::Metadata;

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
    let described = match convert::of(&mut files)? {
        VocabularySource::Library(described) => described,
        VocabularySource::Pieces => return sentencepiece_folder::read(&files),
    };
    let parsed = TokenizerJson::read(&files, &described)?;
    let tokens = tokens::read(&files, &parsed)?;
    let own = DefaultRoles::read(&files, &parsed, described.class, &tokens)?;
    let ids = RoleIds::read(&files, &own, &tokens)?;
    let mut common = Metadata::default();
    ids.write(&tokens, &mut common);
    templates::write(&files, &mut common)?;
    describe(&files, parsed, &tokens, &ids, &common)
}
