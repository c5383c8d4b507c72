//! `tokenizer.json` as the library of the format reads it, and the little it does not tell.
//!
//! Tokens that other files of the folder add are added here too, as they are where models are
//! trained. Invariant: every token has the id that its file declares.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tokenizers::{AddedToken, Tokenizer as Library};

use super::super::external::guarded;
use super::Error;
use super::files::Files;

/// What a folder's `tokenizer.json` says.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) library: Library,
    /// Merges in the order of their rank; empty for models without.
    pub(super) merges: Vec<(String, String)>,
    /// Id of the unknown token of a model that names it by id.
    pub(super) unk_id: Option<u32>,
    /// The steps of each part, sequences taken apart.
    pub(super) normalizer: Vec<Json>,
    pub(super) pre_tokenizer: Vec<Json>,
    pub(super) decoder: Vec<Json>,
}

/// The parts of the file that the library keeps to itself.
#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    added_tokens: Vec<Declared>,
    model: RawModel,
}

#[derive(Deserialize)]
struct Declared {
    id: u32,
    content: String,
}

#[derive(Deserialize)]
struct RawModel {
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    unk_id: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

impl Parsed {
    pub(super) fn read(files: &Files) -> Result<Self, Error> {
        let path = files.tokenizer_path();
        let refused = |message| Error::Refused {
            path: path.clone(),
            message,
        };
        let mut library = guarded(|| Library::from_bytes(&files.tokenizer)).map_err(refused)?;
        let raw: Raw = serde_json::from_slice(&files.tokenizer).map_err(|source| Error::Json {
            path: path.clone(),
            source,
        })?;
        for token in &raw.added_tokens {
            check_id(&library, &path, &token.content, token.id)?;
        }
        add_tokens(&mut library, files)?;
        // Limits of a training run, which say nothing about the vocabulary.
        library
            .with_truncation(None)
            .map_err(|e| refused(e.to_string()))?;
        library.with_padding(None);

        let merge = |merge| match merge {
            Merge::Pair(left, right) => Some((left, right)),
            Merge::Line(line) => {
                let (left, right) = line.split_once(' ')?;
                Some((left.to_owned(), right.to_owned()))
            }
        };
        Ok(Self {
            merges: raw.model.merges.into_iter().filter_map(merge).collect(),
            unk_id: raw.model.unk_id,
            normalizer: steps(&library.get_normalizer()),
            pre_tokenizer: steps(&library.get_pre_tokenizer()),
            decoder: steps(&library.get_decoder()),
            library,
        })
    }

    /// The first step of a part that has this type.
    pub(super) fn step<'a>(part: &'a [Json], ty: &str) -> Option<&'a Json> {
        part.iter().find(|step| step["type"] == ty)
    }
}

/// The steps of a part of the library, in order.
fn steps(part: &impl Serialize) -> Vec<Json> {
    fn flatten(step: Json, out: &mut Vec<Json>) {
        let Json::Object(mut entries) = step else {
            return;
        };
        for key in ["normalizers", "pretokenizers", "decoders"] {
            if let Some(Json::Array(steps)) = entries.remove(key) {
                steps.into_iter().for_each(|step| flatten(step, out));
                return;
            }
        }
        out.push(Json::Object(entries));
    }
    let mut out = Vec::new();
    flatten(serde_json::to_value(part).unwrap_or_default(), &mut out);
    out
}

/// Adds the tokens that `tokenizer_config.json` and `added_tokens.json` declare besides.
fn add_tokens(library: &mut Library, files: &Files) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Token {
        content: String,
        #[serde(default)]
        single_word: bool,
        #[serde(default)]
        lstrip: bool,
        #[serde(default)]
        rstrip: bool,
        #[serde(default)]
        normalized: bool,
        #[serde(default)]
        special: bool,
    }
    let declared = files.tokenizer_config.object("added_tokens_decoder")?;
    let mut tokens = Vec::new();
    for (id, entry) in declared.iter() {
        let wrong = |expected| declared.wrong_type(id, entry, expected);
        let token = Token::deserialize(entry).map_err(|_| wrong("a token with `content`"))?;
        let id: u32 = id.parse().map_err(|_| wrong("a token under its id"))?;
        let token = AddedToken::from(token.content, token.special)
            .single_word(token.single_word)
            .lstrip(token.lstrip)
            .rstrip(token.rstrip)
            .normalized(token.normalized);
        tokens.push((id, token, declared.path()));
    }
    for (text, id) in files.added_tokens.iter() {
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = number.ok_or_else(|| files.added_tokens.wrong_type(text, id, "an id"))?;
        tokens.push((
            id,
            AddedToken::from(text.as_str(), false),
            files.added_tokens.path(),
        ));
    }
    tokens.sort_by_key(|(id, ..)| *id);
    // Of two declarations of a token that of `tokenizer_config.json` comes first.
    tokens.dedup_by(|other, first| other.1.content == first.1.content && other.0 == first.0);
    let known = library.get_added_vocabulary().get_vocab();
    let missing: Vec<AddedToken> = tokens
        .iter()
        .filter(|(_, token, _)| !known.contains_key(&token.content))
        .map(|(_, token, _)| token.clone())
        .collect();
    if !missing.is_empty() {
        guarded(|| library.add_tokens(missing)).map_err(|message| Error::Refused {
            path: files.tokenizer_config.path().to_owned(),
            message,
        })?;
    }
    for (id, token, path) in &tokens {
        check_id(library, path, &token.content, *id)?;
    }
    Ok(())
}

fn check_id(library: &Library, path: &Path, token: &str, declared: u32) -> Result<(), Error> {
    match library.token_to_id(token) {
        // A token without a text is in no text, and the library leaves it out.
        None => Ok(()),
        Some(id) if id == declared => Ok(()),
        Some(found) => Err(Error::MovedId {
            path: path.to_owned(),
            token: token.to_owned(),
            declared,
            found,
        }),
    }
}
