//! Selects the description that fits a folder's vocabulary, and the tokenizer that is exact.

use std::sync::Arc;

use super::super::Tokenizer;
use super::super::library_encoder::LibraryEncoder;
use super::super::pieces::PieceSpelling;
use super::decoder::DecodedPieces;
use super::files::FolderFiles;
use super::folder_tokenizer::{Difference, assembled};
use super::grading::{self, Fit};
use super::ids::RoleIds;
use super::layout::{self, GgufLayout};
use super::tokenizer_json::TokenizerJson;
use super::tokens::FolderToken;
use super::{Error, FolderTokenizer};
use crate::weights::Metadata;

/// Selects the description that fits, and the tokenizer that is exact.
pub(super) fn describe(
    files: &FolderFiles,
    parsed: TokenizerJson,
    tokens: &[FolderToken],
    ids: &RoleIds,
    common: &Metadata,
) -> Result<FolderTokenizer, Error> {
    let decoded = DecodedPieces::of(&parsed, tokens);
    let with_texts = |tokenizer: Tokenizer| match decoded {
        Some(decoded) => decoded.apply(tokenizer),
        None => tokenizer,
    };
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
                return assembled(files, metadata, Ok(with_texts(tokenizer)), None);
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
    assembled(files, metadata, tokenizer.map(with_texts), Some(difference))
}

/// The tokenizer of a description, and how well it fits.
fn try_out(
    layout: &GgufLayout,
    metadata: &Metadata,
    parsed: &TokenizerJson,
    tokens: &[FolderToken],
    ids: &RoleIds,
) -> (Option<Tokenizer>, Fit) {
    let tokenizer = match Tokenizer::from_metadata(metadata) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return (None, Fit::Not(error.to_string())),
    };
    let fit = grading::grade(&tokenizer, parsed, tokens, &ids.frame, layout.is_doubtful);
    let fit = match (fit, layout.differs) {
        (Fit::Exact, Some(text)) => Fit::Near(text.to_owned()),
        (fit, _) => fit,
    };
    (Some(tokenizer), fit)
}

pub(super) fn external(
    parsed: TokenizerJson,
    tokens: &[FolderToken],
    ids: &RoleIds,
) -> LibraryEncoder {
    let is_byte_level = layout::is_byte_level(&parsed);
    let spaces = match is_byte_level {
        true => PieceSpelling::ByteLevel,
        false => PieceSpelling::Escaped,
    };
    let has_bytes = tokens
        .iter()
        .any(|token| token.kind == super::super::vocab::TokenKind::Byte);
    LibraryEncoder::new(
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
