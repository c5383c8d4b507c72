//! A folder with a vocabulary that the library reads.

use tokenizers::ModelWrapper;

use super::super::Tokenizer;
use super::super::library_encoder::LibraryVocabulary;
use super::super::pieces::PieceSpelling;
use super::super::vocab::TokenKind;
use super::decoder::DecodedPieces;
use super::files::FolderFiles;
use super::ids::{DefaultRoles, RoleIds};
use super::tokenizer_json::{ConvertedJson, TokenizerJson};
use super::tokens::{self, FolderToken, TokenSpelling};
use super::{Error, FolderTokenizer, templates};
use crate::weights::Metadata;

pub(super) struct LibraryFolder {
    pub(super) files: FolderFiles,
    pub(super) parsed: TokenizerJson,
    pub(super) tokens: Vec<FolderToken>,
    pub(super) ids: RoleIds,
    /// Keys of roles and chat templates.
    pub(super) common: Metadata,
}

impl LibraryFolder {
    pub(super) fn read(files: FolderFiles, described: &ConvertedJson) -> Result<Self, Error> {
        let parsed = TokenizerJson::read(&files, described)?;
        let tokens = tokens::read(&files, &parsed)?;
        let own = DefaultRoles::read(&files, &parsed, described.class, &tokens)?;
        let ids = RoleIds::read(&files, &own, &tokens)?;
        let mut common = Metadata::default();
        ids.write(&tokens, &mut common);
        templates::write(&files, &mut common)?;
        Ok(Self {
            files,
            parsed,
            tokens,
            ids,
            common,
        })
    }

    /// The vocabulary, which the library encodes with.
    pub(super) fn into_tokenizer(self) -> Result<FolderTokenizer, Error> {
        let Self { parsed, tokens, .. } = self;
        let model = parsed.library.get_model();
        let is_byte_level = parsed.is_byte_level();
        let (spelling, pieces) = match model {
            ModelWrapper::WordPiece(_) => (TokenSpelling::Words, PieceSpelling::Escaped),
            _ if is_byte_level => (TokenSpelling::AsIs, PieceSpelling::ByteLevel),
            _ => (TokenSpelling::Escaped, PieceSpelling::Escaped),
        };
        let mut metadata = self.common;
        tokens::write(&tokens, spelling, &mut metadata);
        let decoded = DecodedPieces::of(&parsed, &tokens);
        let has_bytes = tokens.iter().any(|token| token.kind == TokenKind::Byte);
        // Likelihoods come with replacements.
        let is_plain = !matches!(model, ModelWrapper::Unigram(_));
        let vocabulary = LibraryVocabulary {
            spelling: pieces,
            keeps_bytes: is_byte_level || has_bytes && is_plain,
            adds_space: parsed.adds_space(),
            library: parsed.library,
            frame: self.ids.frame,
        };
        let tokenizer = Tokenizer::with_library(&metadata, vocabulary);
        let tokenizer = tokenizer.map(|tokenizer| match decoded {
            Some(decoded) => decoded.apply(tokenizer),
            None => tokenizer,
        });
        FolderTokenizer::new(&self.files, metadata, tokenizer)
    }
}
