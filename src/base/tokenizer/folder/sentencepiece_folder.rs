//! Describes a folder whose vocabulary is a SentencePiece model, as the metadata of a GGUF file.
//!
//! The algorithms here match SentencePiece even in ties, so nothing has to be tried: the keys describe everything, some
//! of them this project's own. Tokens that other files declare split a text first; user-defined symbols of the model
//! that no file declares are matched within it.

use crate::weights::{Array, Metadata, Value};

use super::super::vocab::TokenKind;
use super::super::{Tokenizer, keys, load};
use super::added;
use super::classes::{self, ClassForm, TokenizerClass};
use super::files::{FolderFiles, VocabularyFormat};
use super::ids::{DefaultRoles, RoleIds};
use super::sentencepiece::{PieceAlgorithm, SentencePieceModel};
use super::tokens::{self, FolderToken, TokenSlots, TokenSpelling, looks_special};
use super::{Error, FolderTokenizer, templates};

pub(super) fn read(files: &FolderFiles) -> Result<FolderTokenizer, Error> {
    let mut model = SentencePieceModel::read(files)?;
    let class = match files.vocabulary.kind {
        VocabularyFormat::Renumbered => Some(classes::required(files, ClassForm::Pieces)?),
        _ => classes::find(files, ClassForm::Pieces)?,
    };
    if let Some(class) = class {
        let renumbered = model.renumber(&class.leading, class.replaced, class.unknown());
        renumbered.map_err(|what| files.damaged(what))?;
    }
    let (tokens, symbols) = tokens_and_symbols(files, &model, class)?;
    let own = own(&model, class, &tokens);
    let mut metadata = Metadata::default();
    write(files, &model, &symbols, &tokens, &mut metadata)?;
    RoleIds::read(files, &own, &tokens)?.write(&tokens, &mut metadata);
    templates::write(files, &mut metadata)?;
    let tokenizer = Tokenizer::from_metadata(&metadata);
    FolderTokenizer::new(files, metadata, tokenizer)
}

/// The tokens, and the ids of those that are matched within texts.
fn tokens_and_symbols(
    files: &FolderFiles,
    model: &SentencePieceModel,
    class: Option<&TokenizerClass>,
) -> Result<(Vec<FolderToken>, Vec<u32>), Error> {
    let mut slots = TokenSlots::new(files)?;
    for (id, piece) in (0..).zip(&model.pieces) {
        slots.put(
            id,
            FolderToken::new(piece.text.clone(), piece.kind.unwrap_or(TokenKind::Unused)),
        )?;
    }
    let declared = added::read(files)?;
    for (id, text) in
        (model.pieces.len() as u32..).zip(class.map(TokenizerClass::special).unwrap_or_default())
    {
        if !declared
            .iter()
            .any(|other| other.id == id || other.token.content == text)
        {
            let strips_left = class.is_some_and(|class| class.strips_left.contains(&text));
            slots.put(
                id,
                FolderToken {
                    strips_left,
                    ..FolderToken::new(text, TokenKind::Control)
                },
            )?;
        }
    }
    for other in &declared {
        let token = &other.token;
        let piece = model.pieces.get(other.id as usize);
        let kind = match piece.and_then(|piece| piece.kind) {
            Some(TokenKind::Unknown) => TokenKind::Unknown,
            _ if token.special || looks_special(&token.content) => TokenKind::Control,
            _ => TokenKind::UserDefined,
        };
        // A folder may give another text to a piece that training left unused.
        slots.replace(
            other.id,
            FolderToken {
                strips_left: token.lstrip,
                strips_right: token.rstrip,
                ..FolderToken::new(token.content.clone(), kind)
            },
        )?;
    }
    let is_declared = |id: u32| declared.binary_search_by_key(&id, |other| other.id).is_ok();
    let symbols = (0..)
        .zip(&model.pieces)
        .filter(|(id, piece)| piece.kind == Some(TokenKind::UserDefined) && !is_declared(*id))
        .map(|(id, _)| id)
        .collect();
    Ok((slots.filled(), symbols))
}

fn own(
    model: &SentencePieceModel,
    class: Option<&TokenizerClass>,
    tokens: &[FolderToken],
) -> DefaultRoles {
    let mut own = DefaultRoles::of_class(class, tokens);
    own.unknown = model.unknown();
    own.roles.extend(model.roles());
    own
}

fn write(
    files: &FolderFiles,
    model: &SentencePieceModel,
    symbols: &[u32],
    tokens: &[FolderToken],
    metadata: &mut Metadata,
) -> Result<(), Error> {
    let name = match model.algorithm {
        PieceAlgorithm::Unigram => load::Algorithm::Likelihood.model_name(),
        PieceAlgorithm::Pairs => load::Algorithm::Scores.model_name(),
    };
    metadata.insert(keys::MODEL, Value::Str(name.to_owned()));
    metadata.insert(
        keys::PRE,
        Value::Str(super::super::pretokenizer::DEFAULT.to_owned()),
    );
    tokens::write(tokens, TokenSpelling::Escaped, metadata);
    let score = |id: usize| model.pieces.get(id).map_or(0.0, |piece| piece.score);
    let scores = (0..tokens.len()).map(score).collect();
    metadata.insert(keys::SCORES, Value::Array(Array::F32(scores)));
    metadata.insert(keys::SYMBOLS, Value::Array(Array::U32(symbols.to_vec())));

    // With `legacy` off, `add_prefix_space` determines the space before a text.
    let config = &files.tokenizer_config;
    let is_own = config.flag("legacy")? == Some(false);
    let adds_space = match is_own {
        true => config.flag("add_prefix_space")?.unwrap_or(true),
        false => model.normaliser.adds_space,
    };
    let flags = [
        (keys::ADD_SPACE_PREFIX, adds_space),
        (keys::REMOVE_EXTRA_SPACES, model.normaliser.merges_spaces),
        (keys::SPACE_IS_LAST, model.space_is_last),
        (keys::SPACE_AT_START_ONLY, is_own),
    ];
    for (key, flag) in flags {
        metadata.insert(key, Value::Bool(flag));
    }
    if !model.normaliser.table.is_empty() {
        let table = Array::U8(model.normaliser.table.clone());
        metadata.insert(keys::CHARSMAP, Value::Array(table));
    }
    Ok(())
}
