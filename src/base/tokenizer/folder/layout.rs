//! Describes a `tokenizer.json` by keys of a GGUF file: a few candidate layouts, the most likely first.
//!
//! The right one is chosen elsewhere, by how they tokenize texts (`grading`). The layouts are those of llama.cpp's
//! converter: texts, kinds, scores and merges for each tokenizer model.

use std::borrow::Cow;

use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value as Json;
use tokenizers::ModelWrapper;

use crate::weights::{Array, Metadata, StringArray, Value};

use super::super::load::Algorithm;
use super::super::vocab::TokenKind;
use super::super::{SPACE, byte_level, keys, pretokenizer};
use super::grading;
use super::tokenizer_json::TokenizerJson;
use super::tokens::FolderToken;

pub(super) struct GgufLayout {
    model: &'static str,
    pre: &'static str,
    spelling: TokenSpelling,
    scores: Option<Vec<f32>>,
    has_merges: bool,
    more: Vec<(&'static str, Value)>,
    /// Whether every token must be tried, because the words alone do not decide.
    pub(super) is_doubtful: bool,
    /// A text that is known to be tokenized differently.
    pub(super) differs: Option<&'static str>,
}

#[derive(Clone, Copy)]
pub(super) enum TokenSpelling {
    AsIs,
    /// Spaces are escaped, except that those of user-defined tokens are plain.
    Escaped,
    /// As `Escaped`. The start of a word has U+2581, and its continuations have no `##`.
    Words,
}

impl GgufLayout {
    fn new(model: &'static str, spelling: TokenSpelling) -> Self {
        Self {
            model,
            pre: pretokenizer::DEFAULT,
            spelling,
            scores: None,
            has_merges: false,
            more: Vec::new(),
            is_doubtful: false,
            differs: None,
        }
    }

    pub(super) fn write(
        &self,
        tokens: &[FolderToken],
        parsed: &TokenizerJson,
        metadata: &mut Metadata,
    ) {
        metadata.insert(keys::MODEL, Value::Str(self.model.to_owned()));
        metadata.insert(keys::PRE, Value::Str(self.pre.to_owned()));
        write_tokens(tokens, self.spelling, metadata);
        if let Some(scores) = &self.scores {
            metadata.insert(keys::SCORES, Value::Array(Array::F32(scores.clone())));
        }
        if self.has_merges {
            write_merges(parsed, metadata);
        }
        for (key, value) in &self.more {
            metadata.insert(*key, value.clone());
        }
    }
}

/// Writes only the keys that all vocabularies have, for a vocabulary that no layout describes.
pub(super) fn write_plain(tokens: &[FolderToken], parsed: &TokenizerJson, metadata: &mut Metadata) {
    let spelling = match parsed.library.get_model() {
        ModelWrapper::WordPiece(_) => TokenSpelling::Words,
        _ if is_byte_level(parsed) => TokenSpelling::AsIs,
        _ => TokenSpelling::Escaped,
    };
    write_tokens(tokens, spelling, metadata);
    if !parsed.merges.is_empty() {
        write_merges(parsed, metadata);
    }
    let adds_space = Value::Bool(adds_space(parsed));
    metadata.insert(keys::ADD_SPACE_PREFIX, adds_space);
}

pub(super) fn write_tokens(
    tokens: &[FolderToken],
    spelling: TokenSpelling,
    metadata: &mut Metadata,
) {
    let texts: StringArray = tokens
        .iter()
        .map(|token| spelling.spell(token).into_owned())
        .collect();
    let kinds = tokens.iter().map(|token| token.kind.code()).collect();
    metadata.insert(keys::TOKENS, Value::Array(Array::Str(texts)));
    metadata.insert(keys::TOKEN_TYPE, Value::Array(Array::I32(kinds)));
    write_ids(keys::STRIPS_LEFT, tokens, |t| t.strips_left, metadata);
    write_ids(keys::STRIPS_RIGHT, tokens, |t| t.strips_right, metadata);
}

/// Writes the ids of the selected tokens, if there are any.
fn write_ids(
    key: &str,
    tokens: &[FolderToken],
    which: impl Fn(&FolderToken) -> bool,
    metadata: &mut Metadata,
) {
    let found = (0..).zip(tokens).filter(|(_, token)| which(token));
    let ids: Vec<u32> = found.map(|(id, _)| id).collect();
    if !ids.is_empty() {
        metadata.insert(key, Value::Array(Array::U32(ids)));
    }
}

fn write_merges(parsed: &TokenizerJson, metadata: &mut Metadata) {
    let merges = parsed.merges.iter();
    let lines: StringArray = merges
        .map(|(left, right)| format!("{left} {right}"))
        .collect();
    metadata.insert(keys::MERGES, Value::Array(Array::Str(lines)));
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

const CONTINUES: &str = "##";

pub(super) fn candidates(
    tokens: &[FolderToken],
    parsed: &TokenizerJson,
) -> Result<Vec<GgufLayout>, String> {
    match parsed.library.get_model() {
        ModelWrapper::BPE(bpe) => {
            let marks_words = |mark: &Option<String>| mark.as_ref().is_some_and(|m| !m.is_empty());
            if marks_words(&bpe.continuing_subword_prefix) || marks_words(&bpe.end_of_word_suffix) {
                return Err("tokens are marked for their place in a word".to_owned());
            }
            if bpe.dropout.is_some_and(|p| p > 0.0) {
                return Err("BPE dropout is not supported".to_owned());
            }
            if parsed
                .merges
                .iter()
                .any(|(l, r)| l.contains(' ') || r.contains(' '))
            {
                return Err("a merge holds a space".to_owned());
            }
            match is_byte_level(parsed) {
                true => byte_level_words(parsed, bpe.ignore_merges),
                false => characters(tokens, parsed),
            }
        }
        ModelWrapper::Unigram(_) => unigram(tokens, parsed),
        ModelWrapper::WordPiece(pieces) => {
            if pieces.continuing_subword_prefix != CONTINUES {
                let prefix = &pieces.continuing_subword_prefix;
                return Err(format!(
                    "the continuation prefix is `{prefix}`, expected `{CONTINUES}`"
                ));
            }
            Ok(vec![word_pieces(parsed)])
        }
        ModelWrapper::WordLevel(_) => Err("tokens are whole words".to_owned()),
    }
}

/// Whether tokens are spelled in the byte-level alphabet.
pub(super) fn is_byte_level(parsed: &TokenizerJson) -> bool {
    let parts = [&parsed.normalizer, &parsed.pre_tokenizer, &parsed.decoder];
    parts
        .iter()
        .any(|part| TokenizerJson::step(part, "ByteLevel").is_some())
}

/// Byte-level merges: one layout per pre-tokenizer that splits texts like the folder's.
fn byte_level_words(
    parsed: &TokenizerJson,
    ignore_merges: bool,
) -> Result<Vec<GgufLayout>, String> {
    let is_known = |byte: u8| {
        let letter = byte_level::letter_of(byte)
            .encode_utf8(&mut [0; 4])
            .to_owned();
        parsed.library.token_to_id(&letter).is_some()
    };
    // Bytes without a token are left out silently here; in the folder they become the unknown token.
    let unknown = parsed.library.get_model();
    if let ModelWrapper::BPE(bpe) = unknown
        && bpe.unk_token.is_some()
        && !(0..=u8::MAX).all(is_known)
    {
        return Err("bytes without a token become the unknown token".to_owned());
    }
    let form = parsed
        .normalizer
        .iter()
        .find_map(|step| match step["type"].as_str()? {
            "NFC" => Some("nfc"),
            "NFD" => Some("nfd"),
            "NFKC" => Some("nfkc"),
            "NFKD" => Some("nfkd"),
            _ => None,
        });
    let found = grading::pre_tokenizers(parsed, ignore_merges)?;
    let layouts = found.into_iter().map(|found| GgufLayout {
        pre: found.row.usual_name(),
        has_merges: true,
        more: form
            .map(|form| (keys::NORMAL_FORM, Value::Str(form.to_owned())))
            .into_iter()
            .collect(),
        is_doubtful: found.row.ignore_merges != ignore_merges,
        differs: found.differs,
        ..GgufLayout::new(Algorithm::Merges.model_name(), TokenSpelling::AsIs)
    });
    Ok(layouts.collect())
}

/// Merges of characters with byte fallback: by score if the merges are those that the scores of their tokens imply,
/// otherwise by rank.
fn characters(tokens: &[FolderToken], parsed: &TokenizerJson) -> Result<Vec<GgufLayout>, String> {
    let bytes = tokens.iter().filter(|token| token.kind == TokenKind::Byte);
    if bytes.count() < 256 {
        return Err("not every byte has a token".to_owned());
    }
    let adds_space = adds_space(parsed);
    let mut layouts = Vec::new();
    if let Some(scores) = scores(tokens, parsed) {
        layouts.push(GgufLayout {
            scores: Some(scores),
            more: vec![(keys::ADD_SPACE_PREFIX, Value::Bool(adds_space))],
            ..GgufLayout::new(Algorithm::Scores.model_name(), TokenSpelling::Escaped)
        });
    }
    let crosses_lines = |(left, right): &(String, String)| {
        let joined = format!("{left}{right}");
        joined.contains('\n') && joined.contains(|c| c != '\n')
    };
    if !adds_space && !parsed.merges.iter().any(crosses_lines) {
        layouts.push(GgufLayout {
            pre: pretokenizer::of_lines(),
            has_merges: true,
            ..GgufLayout::new(Algorithm::Merges.model_name(), TokenSpelling::Escaped)
        });
    }
    match layouts.is_empty() {
        false => Ok(layouts),
        true => Err("merges of characters whose order no scores give".to_owned()),
    }
}

/// Whether a space is added before a text.
fn adds_space(parsed: &TokenizerJson) -> bool {
    let metaspace = TokenizerJson::step(&parsed.pre_tokenizer, "Metaspace")
        .or_else(|| TokenizerJson::step(&parsed.normalizer, "Metaspace"));
    let by_scheme = metaspace.is_some_and(|step| step["prepend_scheme"] != "never");
    by_scheme || TokenizerJson::step(&parsed.normalizer, "Prepend").is_some()
}

/// Scores for which joining by score equals joining by the merges in their order: the later a token's merges, the lower
/// its score; tokens whose merges interleave share a score. `None` if merges are missing.
fn scores(tokens: &[FolderToken], parsed: &TokenizerJson) -> Option<Vec<f32>> {
    struct Merges {
        first: usize,
        last: usize,
        count: usize,
        score: f32,
    }
    let normal = tokens
        .iter()
        .filter(|token| token.kind == TokenKind::Normal);
    let texts: FxHashSet<&str> = normal.map(|token| token.text.as_str()).collect();
    let mut of_token: FxHashMap<&str, Merges> = FxHashMap::default();
    for (rank, (left, right)) in parsed.merges.iter().enumerate() {
        let Some(text) = texts.get(format!("{left}{right}").as_str()) else {
            continue;
        };
        let merges = of_token.entry(text).or_insert(Merges {
            first: rank,
            last: rank,
            count: 0,
            score: 0.0,
        });
        merges.last = rank;
        merges.count += 1;
    }
    let mut in_order: Vec<&mut Merges> = of_token.values_mut().collect();
    in_order.sort_unstable_by_key(|merges| merges.first);
    let (mut score, mut end) = (0.0, None);
    for merges in in_order {
        if end.is_none_or(|end| end < merges.first) {
            score -= 1.0;
        }
        end = end.max(Some(merges.last));
        merges.score = score;
    }
    // Joining by score joins any two pieces that together are a token.
    let ways = |text: &str| {
        let cuts = text.char_indices().skip(1);
        cuts.filter(|(at, _)| texts.contains(&text[..*at]) && texts.contains(&text[*at..]))
            .count()
    };
    let scores = tokens.iter().map(|token| {
        if token.kind != TokenKind::Normal {
            return Some(score - 1.0);
        }
        let merges = of_token.get(token.text.as_str());
        let is_complete = ways(&token.text) == merges.map_or(0, |merges| merges.count);
        is_complete.then(|| merges.map_or(score - 1.0, |merges| merges.score))
    });
    scores.collect()
}

/// Tokens by likelihood, with the four treatments of white space.
fn unigram(tokens: &[FolderToken], parsed: &TokenizerJson) -> Result<Vec<GgufLayout>, String> {
    const UNUSED: f32 = -10_000.0;
    let ModelWrapper::Unigram(model) = parsed.library.get_model() else {
        return Ok(Vec::new());
    };
    let scores: FxHashMap<&str, f64> = model.iter().map(|(text, s)| (text.as_str(), *s)).collect();
    let score = |token: &FolderToken| {
        scores
            .get(token.text.as_str())
            .map_or(UNUSED, |s| *s as f32)
    };
    let scores: Vec<f32> = tokens.iter().map(score).collect();
    let table = TokenizerJson::step(&parsed.normalizer, "Precompiled");
    let charsmap = match table.and_then(|step| step["precompiled_charsmap"].as_str()) {
        None => None,
        Some(text) => {
            Some(super::base64::decode(text).ok_or("the table of replacements is not base64")?)
        }
    };
    let adds = adds_space(parsed);
    let ways = [(adds, true), (adds, false), (!adds, true), (!adds, false)];
    let layouts = ways.into_iter().map(|(adds_space, merges_spaces)| {
        let mut more = vec![
            (keys::ADD_SPACE_PREFIX, Value::Bool(adds_space)),
            (keys::REMOVE_EXTRA_SPACES, Value::Bool(merges_spaces)),
        ];
        let table = charsmap.clone().map(|bytes| Value::Array(Array::U8(bytes)));
        more.extend(table.map(|table| (keys::CHARSMAP, table)));
        GgufLayout {
            scores: Some(scores.clone()),
            more,
            ..GgufLayout::new(Algorithm::Likelihood.model_name(), TokenSpelling::Escaped)
        }
    });
    Ok(layouts.collect())
}

fn word_pieces(parsed: &TokenizerJson) -> GgufLayout {
    let step = TokenizerJson::step(&parsed.normalizer, "BertNormalizer").unwrap_or(&Json::Null);
    let lowercase = step["lowercase"].as_bool().unwrap_or(false);
    let strips = step["strip_accents"].as_bool().unwrap_or(lowercase);
    GgufLayout {
        more: vec![
            (keys::LOWERCASE, Value::Bool(lowercase)),
            (keys::STRIP_ACCENTS, Value::Bool(strips)),
        ],
        ..GgufLayout::new(Algorithm::WordPiece.model_name(), TokenSpelling::Words)
    }
}
