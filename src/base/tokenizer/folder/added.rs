//! Tokens that a folder declares in addition to those of its vocabulary file: `added_tokens_decoder` of
//! `tokenizer_config.json`, then `added_tokens.json`.
//!
//! Invariant: sorted by id, and no declaration occurs twice.

use std::path::Path;

use serde_json::{Value as Json, json};
use tokenizers::AddedToken;

use super::Error;
use super::files::FolderFiles;

/// A token with its id, and the file that declares it.
pub(super) struct AddedTokenEntry<'a> {
    pub(super) id: u32,
    pub(super) token: AddedToken,
    pub(super) path: &'a Path,
}

/// An object with the fields of a token; those that it lacks are off.
fn token(entry: &Json) -> Option<AddedToken> {
    let mut whole = json!({
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false,
    });
    let fields = entry.as_object()?.clone();
    whole.as_object_mut()?.extend(fields);
    serde_json::from_value(whole).ok()
}

pub(super) fn read(files: &FolderFiles) -> Result<Vec<AddedTokenEntry<'_>>, Error> {
    let declared = files.tokenizer_config.object("added_tokens_decoder")?;
    let mut tokens = Vec::new();
    for (id, entry) in declared.iter() {
        let wrong = |expected| declared.wrong_type(id, entry, expected);
        let token = token(entry).ok_or_else(|| wrong("a token with `content`"))?;
        let id: u32 = id.parse().map_err(|_| wrong("a token under its id"))?;
        let path = files.tokenizer_config.path();
        tokens.push(AddedTokenEntry { id, token, path });
    }
    for (text, id) in files.added_tokens.iter() {
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = number.ok_or_else(|| files.added_tokens.wrong_type(text, id, "an id"))?;
        tokens.push(AddedTokenEntry {
            id,
            token: AddedToken::from(text.as_str(), false),
            path: files.added_tokens.path(),
        });
    }
    tokens.sort_by_key(|declared| declared.id);
    // Of two declarations of a token, the one in `tokenizer_config.json` sorts first.
    tokens.dedup_by(|other, first| {
        other.token.content == first.token.content && other.id == first.id
    });
    Ok(tokens)
}
