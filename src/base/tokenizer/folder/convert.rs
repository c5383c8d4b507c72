//! Converts files that hold a vocabulary in another format to the format of `tokenizer.json`.
//!
//! tiktoken ranks (`tiktoken`), `tekken.json`, `vocab.json` with `merges.txt`, and `vocab.txt` become a model of the
//! library with the parts of the published tokenizers; facts that no file states come from `classes`. SentencePiece
//! models are not converted, because the library normalises texts and breaks ties differently: see `sentencepiece_folder`.

use std::path::PathBuf;

use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tokenizers::AddedToken;

use super::Error;
use super::added;
use super::base64::decode;
use super::classes::{self, ClassForm, TokenizerClass};
use super::files::{FolderFiles, MERGES_FILE, VocabularyFormat};
use super::tiktoken::{self, TiktokenRanks};
use super::tokenizer_json::{ConvertedJson, SpecialToken, byte_level};

/// The file of a folder that holds its vocabulary.
pub(super) enum VocabularySource {
    Library(ConvertedJson),
    Pieces,
}

pub(super) fn of(files: &mut FolderFiles) -> Result<VocabularySource, Error> {
    let described = match files.vocabulary.kind {
        VocabularyFormat::Library => ConvertedJson {
            json: std::mem::take(&mut files.vocabulary.bytes),
            ..ConvertedJson::default()
        },
        VocabularyFormat::Renumbered => return Ok(VocabularySource::Pieces),
        VocabularyFormat::Model if tiktoken::is_model(&files.vocabulary.bytes) => {
            return Ok(VocabularySource::Pieces);
        }
        VocabularyFormat::Model => of_ranks(files)?,
        VocabularyFormat::Tekken => of_tekken(files)?,
        VocabularyFormat::Merges => of_merges(files)?,
        VocabularyFormat::Words => of_words(files)?,
    };
    Ok(VocabularySource::Library(described))
}

fn special(id: u32, text: String, is_control: bool) -> SpecialToken {
    let token = AddedToken::from(text, is_control).normalized(false);
    SpecialToken { id, token }
}

/// Converts tiktoken ranks: a line for each token, with its bytes in base64 and its rank.
fn of_ranks(files: &FolderFiles) -> Result<ConvertedJson, Error> {
    let ranks = TiktokenRanks::read(files)?;
    let class = classes::required(files, ClassForm::Ranks)?;
    let pattern = class.pattern.as_deref().unwrap_or_default();
    let declared = added::read(files)?;
    let mut specials: Vec<SpecialToken> = declared
        .into_iter()
        .map(|declared| SpecialToken {
            id: declared.id,
            token: declared.token,
        })
        .collect();
    // The class's special tokens exist unless the folder replaces them.
    for (id, text) in (ranks.end()..).zip(class.special()) {
        let is_taken = |other: &SpecialToken| other.id == id || other.token.content == text;
        if !specials.iter().any(is_taken) {
            specials.push(special(id, text, true));
        }
    }
    let json = ranks.describe(files, pattern, class.normal_form.as_deref(), &specials)?;
    Ok(ConvertedJson {
        json,
        implied: Vec::new(),
        class: Some(class),
    })
}

/// Converts `tekken.json`: the pattern, the special tokens, and the bytes of the others, whose ids follow.
fn of_tekken(files: &FolderFiles) -> Result<ConvertedJson, Error> {
    #[derive(Deserialize)]
    struct Tekken {
        config: Config,
        vocab: Vec<Entry>,
        special_tokens: Option<Vec<Declared>>,
    }
    #[derive(Deserialize)]
    struct Config {
        pattern: String,
        default_vocab_size: u32,
        default_num_special_tokens: u32,
    }
    #[derive(Deserialize)]
    struct Entry {
        rank: u32,
        token_bytes: String,
    }
    #[derive(Deserialize)]
    struct Declared {
        rank: u32,
        token_str: String,
        #[serde(default = "yes")]
        is_control: bool,
    }
    const fn yes() -> bool {
        true
    }
    let tekken: Tekken = parse(files.tokenizer_path(), &files.vocabulary.bytes)?;
    let class = classes::named(ClassForm::Ranks, classes::TEKKEN);
    let first = tekken.config.default_num_special_tokens;
    let Some(inner) = tekken.config.default_vocab_size.checked_sub(first) else {
        return Err(files.damaged("`config` has more special tokens than tokens"));
    };
    let mut ranks = TiktokenRanks::default();
    for entry in tekken.vocab.iter().filter(|entry| entry.rank < inner) {
        let bytes = decode(&entry.token_bytes);
        let bytes = bytes.ok_or_else(|| {
            files.damaged(format!(
                "`vocab`: rank {}: `token_bytes` is not base64",
                entry.rank
            ))
        })?;
        let id = entry.rank.checked_add(first);
        let id = id.ok_or_else(|| files.damaged("`config`: numbers of tokens beyond 32 bits"))?;
        ranks.add(files, bytes, id)?;
    }
    let specials: Vec<SpecialToken> = match tekken.special_tokens {
        Some(listed) => {
            let listed = listed.into_iter();
            listed
                .map(|token| special(token.rank, token.token_str, token.is_control))
                .collect()
        }
        None => {
            let listed = class.map(TokenizerClass::special).unwrap_or_default();
            (0..)
                .zip(listed)
                .map(|(id, text)| special(id, text, true))
                .collect()
        }
    };
    if let Some(beyond) = specials.iter().find(|special| special.id >= first) {
        return Err(files.damaged(format!(
            "`special_tokens`: rank {} where `default_num_special_tokens` is {first}",
            beyond.id
        )));
    }
    Ok(ConvertedJson {
        json: ranks.describe(files, &tekken.config.pattern, None, &specials)?,
        implied: Vec::new(),
        class,
    })
}

/// Converts `vocab.json`, an object of tokens and ids, and `merges.txt`, with a line for each merge.
fn of_merges(files: &FolderFiles) -> Result<ConvertedJson, Error> {
    let class = classes::required(files, ClassForm::Merges)?;
    let vocab: Map<String, Json> = parse(files.tokenizer_path(), &files.vocabulary.bytes)?;
    let text = files.text(MERGES_FILE)?.unwrap_or_default();
    let mut merges = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.is_empty() || line.starts_with("#version") {
            continue;
        }
        let parts: Vec<&str> = line.split(' ').collect();
        let [left, right] = parts[..] else {
            return Err(files.damaged(format!(
                "{MERGES_FILE}: line {number} has {} parts, expected two tokens with a space between",
                parts.len()
            )));
        };
        merges.push(json!([left, right]));
    }
    let implied = implied(files, class, |text| vocab.contains_key(text))?;
    let model = json!({"type": "BPE", "vocab": vocab, "merges": merges});
    let pattern = class.pattern.as_deref().unwrap_or_default();
    Ok(ConvertedJson {
        json: byte_level(pattern, class.normal_form.as_deref(), &[], &model),
        implied,
        class: Some(class),
    })
}

/// Converts `vocab.txt`, with a line for each token.
fn of_words(files: &FolderFiles) -> Result<ConvertedJson, Error> {
    let class = classes::required(files, ClassForm::Words)?;
    let text = std::str::from_utf8(&files.vocabulary.bytes).map_err(|source| Error::Utf8 {
        path: files.tokenizer_path(),
        source,
    })?;
    // Of several lines with the same text, the last one counts.
    let vocab: FxHashMap<&str, u32> = text.lines().zip(0..).collect();
    let config = &files.tokenizer_config;
    let unknown = match config.token("unk_token")? {
        Some(text) => text,
        None => class
            .roles()
            .find(|(role, _)| *role == "unk")
            .map_or("", |(_, text)| text),
    };
    let lowercase = config.flag("do_lower_case")?.unwrap_or(true);
    let file = json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": config.flag("tokenize_chinese_chars")?.unwrap_or(true),
            "strip_accents": config.flag("strip_accents")?,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    });
    Ok(ConvertedJson {
        json: file.to_string().into_bytes(),
        implied: implied(files, class, |text| vocab.contains_key(text))?,
        class: Some(class),
    })
}

/// The text of a token: a string, or an object with its `content`.
fn content(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// The tokens of the vocabulary that the folder's files or its class name as special by a role.
fn implied(
    files: &FolderFiles,
    class: &TokenizerClass,
    is_token: impl Fn(&str) -> bool,
) -> Result<Vec<AddedToken>, Error> {
    const ROLES: &[&str] = &["bos", "eos", "unk", "sep", "pad", "cls", "mask"];
    const MORE: &str = "additional_special_tokens";
    let mut texts: Vec<&str> = Vec::new();
    for object in [&files.tokenizer_config, &files.special_tokens] {
        for role in ROLES {
            texts.extend(object.token(&format!("{role}_token"))?);
        }
        let more = object.get(MORE).and_then(Json::as_array);
        texts.extend(more.into_iter().flatten().filter_map(content));
    }
    texts.extend(class.named_tokens());
    let mut seen = std::collections::BTreeSet::new();
    texts.retain(|text| is_token(text) && seen.insert(*text));
    let token = |text: &str| {
        let strips = class.strips_left.iter().any(|other| other == text);
        AddedToken::from(text, true)
            .normalized(false)
            .lstrip(strips)
    };
    Ok(texts.into_iter().map(token).collect())
}

fn parse<'a, T: Deserialize<'a>>(path: PathBuf, bytes: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|source| Error::Json { path, source })
}
