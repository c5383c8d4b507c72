//! `tokenizer.json`, or another file converted to its format (`convert`), parsed by the format's library, with the few
//! fields that the library does not expose.
//!
//! Tokens that other files of the folder add are added here too, as in training software. Invariant: every token has
//! the id that its file declares.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use tokenizers::{AddedToken, Tokenizer as Library};

use super::super::library_encoder::guarded;
use super::Error;
use super::added;
use super::classes::TokenizerClass;
use super::files::FolderFiles;

/// A vocabulary in the format of `tokenizer.json`, with additional data.
#[derive(Default)]
pub(super) struct ConvertedJson {
    pub(super) json: Vec<u8>,
    /// Special tokens of the vocabulary that are declared only through a role.
    pub(super) implied: Vec<AddedToken>,
    pub(super) class: Option<&'static TokenizerClass>,
}

pub(super) struct SpecialToken {
    pub(super) id: u32,
    pub(super) token: AddedToken,
}

/// The contents of a folder's `tokenizer.json`.
#[derive(Debug)]
pub(super) struct TokenizerJson {
    pub(super) library: Library,
    /// Id of the unknown token, for models that define it by id.
    pub(super) unk_id: Option<u32>,
    /// The steps of the normaliser, with sequences flattened.
    pub(super) normalizer: Vec<Json>,
    pub(super) pre_tokenizer: Vec<Json>,
    pub(super) decoder: Vec<Json>,
}

/// The parts of the file that the library does not expose.
#[derive(Deserialize)]
struct RawJson {
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
    unk_id: Option<u32>,
}

impl TokenizerJson {
    pub(super) fn read(files: &FolderFiles, described: &ConvertedJson) -> Result<Self, Error> {
        let path = files.tokenizer_path();
        let refused = |message| Error::Refused {
            path: path.clone(),
            message,
        };
        let mut library = guarded(|| Library::from_bytes(&described.json)).map_err(refused)?;
        let raw: RawJson =
            serde_json::from_slice(&described.json).map_err(|source| Error::Json {
                path: path.clone(),
                source,
            })?;
        for token in &raw.added_tokens {
            check_id(&library, &path, &token.content, token.id)?;
        }
        add_tokens(&mut library, files, &described.implied)?;
        // Truncation and padding are settings of a training run, not of the vocabulary.
        library
            .with_truncation(None)
            .map_err(|e| refused(e.to_string()))?;
        library.with_padding(None);

        Ok(Self {
            unk_id: raw.model.unk_id,
            normalizer: steps(&library.get_normalizer()),
            pre_tokenizer: steps(&library.get_pre_tokenizer()),
            decoder: steps(&library.get_decoder()),
            library,
        })
    }

    /// The first step of a part with this type.
    pub(super) fn step<'a>(part: &'a [Json], ty: &str) -> Option<&'a Json> {
        part.iter().find(|step| step["type"] == ty)
    }

    /// Whether tokens are spelled in the byte-level alphabet.
    pub(super) fn is_byte_level(&self) -> bool {
        let parts = [&self.normalizer, &self.pre_tokenizer, &self.decoder];
        let mut parts = parts.into_iter();
        parts.any(|part| Self::step(part, "ByteLevel").is_some())
    }

    /// Whether a space is added before a text.
    pub(super) fn adds_space(&self) -> bool {
        let metaspace = Self::step(&self.pre_tokenizer, "Metaspace")
            .or_else(|| Self::step(&self.normalizer, "Metaspace"));
        let by_scheme = metaspace.is_some_and(|step| step["prepend_scheme"] != "never");
        by_scheme || Self::step(&self.normalizer, "Prepend").is_some()
    }
}

/// The steps of a part of the library, with sequences flattened.
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

/// Adds the tokens that other files declare, then those that a class implies.
fn add_tokens(
    library: &mut Library,
    files: &FolderFiles,
    implied: &[AddedToken],
) -> Result<(), Error> {
    let declared = added::read(files)?;
    let refused = |message| Error::Refused {
        path: files.tokenizer_config.path().to_owned(),
        message,
    };
    for tokens in [
        declared.iter().map(|d| &d.token).collect(),
        implied.iter().collect::<Vec<_>>(),
    ] {
        let known = library.get_added_vocabulary().get_vocab();
        let missing: Vec<AddedToken> = tokens
            .into_iter()
            .filter(|token| !known.contains_key(&token.content))
            .cloned()
            .collect();
        if !missing.is_empty() {
            guarded(|| library.add_tokens(missing)).map_err(refused)?;
        }
    }
    for declared in &declared {
        check_id(library, declared.path, &declared.token.content, declared.id)?;
    }
    Ok(())
}

fn check_id(library: &Library, path: &Path, token: &str, declared: u32) -> Result<(), Error> {
    match library.token_to_id(token) {
        // A token with an empty text occurs in no text, and the library leaves it out.
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

/// A `tokenizer.json` for a model whose tokens are spelled in the byte-level alphabet.
pub(super) fn byte_level(
    pattern: &str,
    normal_form: Option<&str>,
    specials: &[SpecialToken],
    model: &Json,
) -> Vec<u8> {
    let added = specials.iter().map(|SpecialToken { id, token }| {
        let mut token = json!(token);
        token["id"] = json!(id);
        token
    });
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let file = json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": normal_form.map(|form| json!({"type": form})),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            bytes,
        ]},
        "decoder": bytes,
        "model": model,
    });
    file.to_string().into_bytes()
}
