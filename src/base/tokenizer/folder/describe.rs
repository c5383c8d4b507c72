//! Selects the description that fits a folder's vocabulary, and the tokenizer that is exact.

use std::sync::Arc;

use super::super::Tokenizer;
use super::super::external::External;
use super::super::pieces::Spaces;
use super::contents::{Difference, assembled};
use super::decoder::Decoded;
use super::files::Files;
use super::fit::{self, Fit};
use super::ids::Ids;
use super::layout::{self, Layout};
use super::parsed::Parsed;
use super::tokens::Token;
use super::{Error, Folder};
use crate::weights::Metadata;

/// Selects the description that fits, and the tokenizer that is exact.
pub(super) fn describe(
    files: &Files,
    parsed: Parsed,
    tokens: &[Token],
    ids: &Ids,
    common: &Metadata,
) -> Result<Folder, Error> {
    let decoded = Decoded::of(&parsed, tokens);
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

pub(super) fn external(parsed: Parsed, tokens: &[Token], ids: &Ids) -> External {
    let is_byte_level = layout::is_byte_level(&parsed);
    let spaces = match is_byte_level {
        true => Spaces::ByteLevel,
        false => Spaces::Escaped,
    };
    let has_bytes = tokens
        .iter()
        .any(|token| token.kind == super::super::vocab::Kind::Byte);
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
