//! Tokens with a role: BOS, EOS, padding, unknown, end of generation.
//!
//! `tokenizer_config.json` and `special_tokens_map.json` name the token of a role by text, `config.json` and
//! `generation_config.json` by id; the first one found counts. Of tokens that end an answer, all count.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use tokenizers::{Encoding, ModelWrapper, Token};

use crate::weights::{Array, Metadata, Value};

use super::super::keys;
use super::super::library_encoder::guarded;
use super::super::roles;
use super::super::vocab::TokenKind;
use super::Error;
use super::classes::TokenizerClass;
use super::files::{FolderFiles, JsonObject};
use super::tokenizer_json::TokenizerJson;
use super::tokens::FolderToken;

#[derive(Debug, Default)]
pub(super) struct RoleIds {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    unk: Option<u32>,
    pub(super) sep: Option<u32>,
    pad: Option<u32>,
    mask: Option<u32>,
    ends: BTreeSet<u32>,
    /// The tokens that a text starts with, and those that it ends with.
    pub(super) frame: (Vec<u32>, Vec<u32>),
    /// Whether, between the texts of a pair, the separator follows the end of the first.
    doubles_end: bool,
}

/// The roles that a vocabulary file or its class defines.
#[derive(Debug, Default)]
pub(super) struct DefaultRoles {
    pub(super) unknown: Option<u32>,
    /// The tokens that a text starts with, and those that it ends with. `None`: only the BOS token at the start, whichever
    /// it is, as in llama.cpp and in the software that most SentencePiece models are trained with.
    frame: Option<(Vec<u32>, Vec<u32>)>,
    /// The tokens between the texts of a pair.
    between: Vec<u32>,
    /// Whether the token at the end of a text is also its separator, as in WordPiece.
    is_wordpiece: bool,
    /// Tokens for roles that no other file defines.
    pub(super) roles: Vec<(&'static str, u32)>,
}

impl DefaultRoles {
    /// The roles that the library knows, and those of the class, if one was requested.
    pub(super) fn read(
        files: &FolderFiles,
        parsed: &TokenizerJson,
        class: Option<&TokenizerClass>,
        tokens: &[FolderToken],
    ) -> Result<Self, Error> {
        let of_text = |text: &Option<String>| parsed.library.token_to_id(text.as_deref()?);
        let model = parsed.library.get_model();
        let unknown = match model {
            ModelWrapper::BPE(bpe) => of_text(&bpe.unk_token),
            ModelWrapper::WordPiece(pieces) => of_text(&Some(pieces.unk_token.clone())),
            ModelWrapper::WordLevel(words) => of_text(&Some(words.unk_token.clone())),
            ModelWrapper::Unigram(_) => parsed.unk_id,
        };
        let mut this = Self::of_class(class, tokens);
        this.unknown = unknown;
        this.is_wordpiece = matches!(model, ModelWrapper::WordPiece(_));
        if class.is_none() {
            let path = files.tokenizer_path();
            let found = around(parsed);
            let [first, between, last] = found.map_err(|message| Error::Refused {
                path: path.clone(),
                message,
            })?;
            let tokens = tokens.len();
            let mut framing = first.iter().chain(&last);
            if let Some(id) = framing.find(|id| **id as usize >= tokens) {
                return Err(Error::IdOutOfRange {
                    path,
                    key: "post_processor".into(),
                    id: (*id).into(),
                    tokens,
                });
            }
            this.between = between;
            this.frame = Some((first, last));
        }
        Ok(this)
    }

    pub(super) fn of_class(class: Option<&TokenizerClass>, tokens: &[FolderToken]) -> Self {
        let Some(class) = class else {
            return Self::default();
        };
        let by_text = by_text(tokens);
        let id = |text: &str| by_text.get(text).copied();
        let ids = |texts: &[String]| texts.iter().filter_map(|text| id(text)).collect();
        Self {
            frame: Some((ids(&class.first), ids(&class.last))),
            roles: class
                .roles()
                .filter_map(|(role, text)| Some((role, id(text)?)))
                .collect(),
            ..Self::default()
        }
    }
}

/// The ids of tokens by text; of several with the same text, the last one.
fn by_text(tokens: &[FolderToken]) -> FxHashMap<&str, u32> {
    (0..)
        .zip(tokens)
        .filter(|(_, token)| token.kind != TokenKind::Unused)
        .map(|(id, token)| (token.text.as_str(), id))
        .collect()
}

impl RoleIds {
    pub(super) fn read(
        files: &FolderFiles,
        own: &DefaultRoles,
        tokens: &[FolderToken],
    ) -> Result<Self, Error> {
        let sources = RoleSources {
            files,
            own,
            by_text: by_text(tokens),
            text_config: files.config.object("text_config")?,
            tokens: tokens.len(),
        };
        let ends = sources.all("eos")?;
        let mut this = Self {
            bos: sources.one("bos")?,
            eos: match sources.by_text("eos")? {
                Some(id) => Some(id),
                None => ends.first().copied().or_else(|| sources.own("eos")),
            },
            unk: match own.unknown {
                Some(id) => Some(id),
                None => sources.by_text("unk")?.or_else(|| sources.own("unk")),
            },
            sep: sources.one("sep")?,
            pad: sources.one("pad")?,
            mask: sources.one("mask")?,
            ends: ends.into_iter().collect(),
            frame: Default::default(),
            doubles_end: false,
        };
        let only_bos = || (this.bos.into_iter().collect(), Vec::new());
        this.frame = own.frame.clone().unwrap_or_else(only_bos);
        this.ends.extend(this.eos);
        let is_wordpiece = own.is_wordpiece;
        if let [first] = *this.frame.0
            && (this.bos.is_none() || is_wordpiece)
        {
            this.bos = Some(first);
        }
        if let [last] = *this.frame.1 {
            match is_wordpiece {
                true => this.sep = Some(last),
                false => this.eos = this.eos.or(Some(last)),
            }
        }
        this.apply_flags(&files.tokenizer_config)?;
        let sep = this.sep.filter(|_| !is_wordpiece);
        this.doubles_end =
            sep.is_some_and(|sep| own.between == [&this.frame.1[..], &[sep]].concat());
        Ok(this)
    }

    /// Flags of `tokenizer_config.json` override `tokenizer.json`, as in training software, but only where a flag can
    /// express the setting.
    fn apply_flags(&mut self, config: &JsonObject) -> Result<(), Error> {
        let ends = [
            ("add_bos_token", self.bos, &mut self.frame.0),
            ("add_eos_token", self.eos, &mut self.frame.1),
        ];
        for (key, id, end) in ends {
            let Some(adds) = config.flag(key)? else {
                continue;
            };
            let is_plain = end.is_empty() || id.is_some_and(|id| **end == [id]);
            if is_plain {
                *end = id.filter(|_| adds).into_iter().collect();
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, tokens: &[FolderToken], metadata: &mut Metadata) {
        let named = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("unknown", self.unk),
            // The format spells it so.
            ("seperator", self.sep),
            ("padding", self.pad),
            ("mask", self.mask),
        ];
        let mut put = |role: &str, id: u32| {
            metadata.insert(format!("tokenizer.ggml.{role}_token_id"), Value::U32(id));
        };
        for (role, id) in named {
            if let Some(id) = id {
                put(role, id);
            }
        }
        // Two further keys hold tokens that end an answer; other such tokens are known by their text.
        let is_special = |token: &&FolderToken| token.kind != TokenKind::Normal;
        let has = |known: &dyn Fn(&str) -> bool| {
            let mut special = tokens.iter().filter(is_special);
            special.any(|token| known(&token.text))
        };
        let text = |id: u32| tokens.get(id as usize).map_or("", |token| &token.text);
        let mut others = self
            .ends
            .iter()
            .copied()
            .filter(|id| Some(*id) != self.eos && !roles::ends_by_text(text(*id)));
        if !has(&roles::is_end_of_turn)
            && let Some(id) = others.next()
        {
            put("eot", id);
        }
        if !has(&roles::is_end_of_message)
            && let Some(id) = others.next()
        {
            put("eom", id);
        }
        let all = self.ends.iter().copied().collect();
        metadata.insert(roles::ENDS, Value::Array(Array::U32(all)));
        let is = |end: &[u32], id: Option<u32>| id.is_some_and(|id| end == [id]);
        let adds = [
            ("tokenizer.ggml.add_bos_token", is(&self.frame.0, self.bos)),
            ("tokenizer.ggml.add_eos_token", is(&self.frame.1, self.eos)),
        ];
        for (key, adds) in adds {
            metadata.insert(key, Value::Bool(adds));
        }
        if self.doubles_end {
            metadata.insert(keys::ADD_SEP, Value::Bool(true));
        }
    }
}

struct RoleSources<'a> {
    files: &'a FolderFiles,
    own: &'a DefaultRoles,
    by_text: FxHashMap<&'a str, u32>,
    text_config: JsonObject,
    tokens: usize,
}

impl RoleSources<'_> {
    fn one(&self, role: &str) -> Result<Option<u32>, Error> {
        Ok(match self.by_text(role)? {
            Some(id) => Some(id),
            None => self.all(role)?.first().copied().or_else(|| self.own(role)),
        })
    }

    /// The token that the vocabulary itself or its class defines.
    fn own(&self, role: &str) -> Option<u32> {
        let mut roles = self.own.roles.iter();
        roles.find(|(other, _)| *other == role).map(|(_, id)| *id)
    }

    /// The token that a file names by text. A text that is not a token names none.
    fn by_text(&self, role: &str) -> Result<Option<u32>, Error> {
        let key = format!("{role}_token");
        for object in [&self.files.tokenizer_config, &self.files.special_tokens] {
            if let Some(text) = object.token(&key)?
                && let Some(id) = self.by_text.get(text).copied()
            {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// The tokens that the files name by id.
    fn all(&self, role: &str) -> Result<Vec<u32>, Error> {
        let key = format!("{role}_token_id");
        let mut found = Vec::new();
        for object in [
            &self.files.generation,
            &self.files.config,
            &self.text_config,
        ] {
            for id in object.ids(&key)? {
                if id < self.tokens as u64 {
                    found.push(id as u32);
                } else if role != "pad" {
                    // Files often name a padding token that is never used.
                    let error = Error::IdOutOfRange {
                        path: object.path().to_owned(),
                        key: object.full(&key),
                        id,
                        tokens: self.tokens,
                    };
                    // Settings of generation are often those of a model with more tokens. No answer has such a token.
                    match std::ptr::eq(object, &self.files.generation) {
                        true => tracing::warn!("{error}: the id is not used"),
                        false => return Err(error),
                    }
                }
            }
        }
        Ok(found)
    }
}

/// The tokens that the library adds before a text, between two texts, and after the last.
fn around(parsed: &TokenizerJson) -> Result<[Vec<u32>; 3], String> {
    /// The token that stands for a text.
    const TEXT: u32 = u32::MAX;
    let text = || Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
    let process = |pair: Option<Encoding>| {
        let processed = guarded(|| parsed.library.post_process(text(), pair, true))?;
        let parts = processed.get_ids().split(|id| *id == TEXT);
        Ok::<Vec<Vec<u32>>, String>(parts.map(<[u32]>::to_vec).collect())
    };
    let Ok([first, last]) = <[_; 2]>::try_from(process(None)?) else {
        return Ok([const { Vec::new() }; 3]);
    };
    let between = match process(Some(text())).as_deref() {
        Ok([start, between, end]) if *start == first && *end == last => between.clone(),
        _ => Vec::new(),
    };
    Ok([first, between, last])
}
