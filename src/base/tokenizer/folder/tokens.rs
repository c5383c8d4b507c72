//! The tokens of a folder by id: texts and kinds. Gaps become unused tokens.
//!
//! A vocabulary has the length `vocab_size` of `config.json`, because the model has that many rows; ids without a token
//! are unused tokens. Control tokens beyond it, such as those for images, are left out: no text needs them, and in a
//! text they are read as plain text.

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use tokenizers::ModelWrapper;

use crate::weights::{Array, Metadata, StringArray, Value};

use super::super::vocab::{TokenKind, named_byte};
use super::super::{SPACE, keys};
use super::Error;
use super::files::FolderFiles;
use super::tokenizer_json::TokenizerJson;

/// Maximum number of tokens of a vocabulary: fifty times the largest known one.
const MOST_TOKENS: usize = 1 << 24;

/// Maximum number of tokens that a message lists.
const MAX_LISTED: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct FolderToken {
    /// The text as its file spells it.
    pub(super) text: String,
    pub(super) kind: TokenKind,
    /// Whether white space before the token belongs to it (`strips_right`: after it).
    pub(super) strips_left: bool,
    pub(super) strips_right: bool,
}

impl FolderToken {
    pub(super) fn new(text: String, kind: TokenKind) -> Self {
        Self {
            text,
            kind,
            strips_left: false,
            strips_right: false,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum TokenSpelling {
    AsIs,
    /// Spaces are escaped, except that those of user-defined tokens are plain.
    Escaped,
    /// As `Escaped`. The start of a word has U+2581, and its continuations have no `##`.
    Words,
}

/// Writes the keys of the tokens.
pub(super) fn write(tokens: &[FolderToken], spelling: TokenSpelling, metadata: &mut Metadata) {
    let texts: StringArray = tokens
        .iter()
        .map(|token| spelling.spell(token).into_owned())
        .collect();
    let kinds = tokens.iter().map(|token| token.kind.code()).collect();
    metadata.insert(keys::TOKENS, Value::Array(Array::Str(texts)));
    metadata.insert(keys::TOKEN_TYPE, Value::Array(Array::I32(kinds)));
    let strips = |which: fn(&FolderToken) -> bool| -> Vec<u32> {
        let found = (0..).zip(tokens).filter(|(_, token)| which(token));
        found.map(|(id, _)| id).collect()
    };
    for (key, ids) in [
        (keys::STRIPS_LEFT, strips(|token| token.strips_left)),
        (keys::STRIPS_RIGHT, strips(|token| token.strips_right)),
    ] {
        if !ids.is_empty() {
            metadata.insert(key, Value::Array(Array::U32(ids)));
        }
    }
}

impl TokenSpelling {
    fn spell(self, token: &FolderToken) -> Cow<'_, str> {
        let text = token.text.as_str();
        match (self, token.kind) {
            (Self::Escaped | Self::Words, TokenKind::UserDefined) => {
                text.replace(SPACE, " ").into()
            }
            (Self::Words, TokenKind::Normal) => match text.strip_prefix(CONTINUES) {
                Some(rest) => rest.into(),
                None => format!("{SPACE}{text}").into(),
            },
            _ => text.into(),
        }
    }
}

/// The prefix of a token that continues a word.
pub(super) const CONTINUES: &str = "##";

/// The tokens of a folder that the library reads, indexed by id.
pub(super) fn read(files: &FolderFiles, parsed: &TokenizerJson) -> Result<Vec<FolderToken>, Error> {
    let mut tokens = TokenSlots::new(files)?;
    let byte_fallback = match parsed.library.get_model() {
        ModelWrapper::BPE(bpe) => bpe.byte_fallback,
        ModelWrapper::Unigram(unigram) => unigram.byte_fallback(),
        _ => false,
    };
    let plain = |text: String, id: u32| {
        let kind = match text {
            _ if parsed.unk_id == Some(id) => TokenKind::Unknown,
            _ if byte_fallback && named_byte(text.as_bytes()).is_some() => TokenKind::Byte,
            _ => TokenKind::Normal,
        };
        FolderToken::new(text, kind)
    };
    match parsed.library.get_model() {
        ModelWrapper::Unigram(unigram) => {
            for (id, (text, _)) in (0..).zip(unigram.iter()) {
                tokens.put(id, plain(text.clone(), id))?;
            }
        }
        _ => {
            // Sorted by id, so that an error does not depend on the order of a hash map.
            let mut vocab: Vec<_> = parsed.library.get_vocab(false).into_iter().collect();
            vocab.sort_unstable_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
            for (text, id) in vocab {
                tokens.put(id, plain(text, id))?;
            }
        }
    }
    for (id, token) in parsed.library.get_added_tokens_decoder() {
        let kind = match token.special || looks_special(&token.content) {
            true => TokenKind::Control,
            false => TokenKind::UserDefined,
        };
        let token = FolderToken {
            text: token.content,
            kind,
            strips_left: token.lstrip,
            strips_right: token.rstrip,
        };
        tokens.put(id, token)?;
    }
    Ok(tokens.filled())
}

/// Whether the text of a token looks like that of a control token. llama.cpp's converter treats such tokens as control
/// tokens whatever their file says.
pub(super) fn looks_special(text: &str) -> bool {
    let framed = |start, end| text.starts_with(start) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || framed("<|", "|>")
        || framed("<｜", "｜>")
        || framed("<unused", ">")
}

/// The tokens by id, while they are collected.
pub(super) struct TokenSlots<'a> {
    files: &'a FolderFiles,
    tokens: FxHashMap<u32, FolderToken>,
    /// The length that the model's file requires.
    declared: Option<usize>,
    len: usize,
    /// Added tokens for which the model has no rows.
    left_out: Vec<String>,
}

impl<'a> TokenSlots<'a> {
    pub(super) fn new(files: &'a FolderFiles) -> Result<Self, Error> {
        const KEY: &str = "vocab_size";
        let config = &files.config;
        let text = config.object("text_config")?;
        let inner = config.object("thinker_config")?.object("text_config")?;
        let mut declared = None;
        for object in [&text, &inner, config] {
            let Some(found) = object.number(KEY)? else {
                continue;
            };
            let size = usize::try_from(found).ok().filter(|n| *n <= MOST_TOKENS);
            declared = Some(size.ok_or_else(|| Error::TooMany {
                path: config.path().to_owned(),
                key: object.full(KEY),
                found,
                limit: MOST_TOKENS,
            })?);
            break;
        }
        Ok(Self {
            files,
            tokens: FxHashMap::default(),
            declared,
            len: declared.unwrap_or(0),
            left_out: Vec::new(),
        })
    }

    /// Sets the token with this id, and replaces any other one.
    pub(super) fn replace(&mut self, id: u32, token: FolderToken) -> Result<(), Error> {
        self.tokens.remove(&id);
        self.put(id, token)
    }

    /// Sets the token with this id. An added token beyond the model's rows is left out.
    pub(super) fn put(&mut self, id: u32, token: FolderToken) -> Result<(), Error> {
        let limit = self.declared.unwrap_or(MOST_TOKENS);
        let is_added = matches!(token.kind, TokenKind::Control | TokenKind::UserDefined);
        if id as usize >= limit && self.declared.is_some() && is_added {
            self.left_out.push(token.text);
            return Ok(());
        }
        if id as usize >= limit {
            return Err(Error::TokenOutOfRange {
                path: self.files.tokenizer_path(),
                token: token.text,
                id,
                limit,
                by: match self.declared {
                    Some(_) => "`vocab_size` of config.json",
                    None => "there is no `vocab_size`",
                },
            });
        }
        self.len = self.len.max(id as usize + 1);
        let Some(other) = self
            .tokens
            .get(&id)
            .filter(|other| other.text != token.text)
        else {
            self.tokens.insert(id, token);
            return Ok(());
        };
        Err(Error::DoubledId {
            path: self.files.tokenizer_path(),
            id,
            first: other.text.clone(),
            second: token.text,
        })
    }

    /// The tokens; ids without one are unused tokens.
    pub(super) fn filled(mut self) -> Vec<FolderToken> {
        if !self.left_out.is_empty() {
            let path = self.files.tokenizer_path();
            let tokens = self.left_out.iter().take(MAX_LISTED);
            let tokens: Vec<_> = tokens.map(|text| format!("`{text}`")).collect();
            tracing::warn!(
                "{}: {} added tokens are beyond `vocab_size` of config.json and left out: {}",
                path.display(),
                self.left_out.len(),
                tokens.join(", ")
            );
        }
        let unused = |id: u32| FolderToken::new(format!("[PAD{id}]"), TokenKind::Unused);
        (0..self.len as u32)
            .map(|id| self.tokens.remove(&id).unwrap_or_else(|| unused(id)))
            .collect()
    }
}
