//! Folders made in the test: vocabularies trained by the library, with the parts of real families.

#![expect(clippy::unwrap_used, reason = "a failure is a failed test")]

#[cfg(test)]
mod decoders;
#[cfg(test)]
mod exact;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod large;
#[cfg(test)]
mod metadata;

use std::sync::LazyLock;

use proptest::prelude::Strategy;
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokenizers::Tokenizer as Library;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::weights::Metadata;

use super::super::Tokenizer;
use super::{FileKeys, FolderTokenizer, read};

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

/// A folder that was read, which lasts as long.
struct OpenedFolder {
    _dir: TempDir,
    read: FolderTokenizer,
}

impl std::ops::Deref for OpenedFolder {
    type Target = FolderTokenizer;

    fn deref(&self) -> &FolderTokenizer {
        &self.read
    }
}

/// A folder with these files.
fn opened(files: &[(&str, &str)]) -> OpenedFolder {
    let dir = folder(files);
    let read = read(dir.path()).unwrap();
    OpenedFolder { _dir: dir, read }
}

/// A folder of a `tokenizer.json` alone.
fn of(tokenizer: &str) -> OpenedFolder {
    opened(&[("tokenizer.json", tokenizer)])
}

/// Texts to train on: this repository's, and some in other scripts.
static CORPUS: LazyLock<Vec<String>> = LazyLock::new(|| {
    const FILES: &[&str] = &["README.md", "ARCHITECTURE.md", "docs/blocks.md"];
    const MORE: &str = "Où est le café? Éric l'a naïvement déjà vu, señor. Größe, Übung, straße.\n\
        Привет, мир! Как дела? Γειά σου κόσμε. 你好,世界。今天天气很好,我们去公园。\n\
        日本語のテキストです。カタカナとひらがな。 don't we'll they're it's I'm you've he'd\n\
        1 12 123 1234 12345 3.14 1,000,000 the   quick\t\tbrown  fox\n\n\njumps 🙂🚀 over\r\n";
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let texts = FILES
        .iter()
        .map(|name| std::fs::read_to_string(root.join(name)).unwrap());
    let texts = texts.map(|text| text.chars().take(30_000).collect::<String>());
    texts.chain((0..20).map(|_| MORE.to_owned())).collect()
});

/// Special tokens as conversations use them, the last one for all texts.
const SPECIALS: &[(&str, bool)] = &[
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<tool_call>", false),
];

/// The library with these parts and an empty model.
fn library(parts: &Json, model: &Json) -> Library {
    let mut file = json!({"version": "1.0", "added_tokens": [], "model": model});
    for (key, value) in parts.as_object().unwrap() {
        file[key] = value.clone();
    }
    serde_json::from_value(file).unwrap()
}

/// A `tokenizer.json`: these parts around a model trained on the corpus.
fn trained(parts: &Json, model: &Json, trainer: impl Into<TrainerWrapper>) -> String {
    let mut library = library(parts, model);
    library.train(&mut trainer.into(), CORPUS.iter()).unwrap();
    let tokens = SPECIALS
        .iter()
        .map(|(text, special)| tokenizers::AddedToken::from(*text, *special).normalized(false));
    library.add_tokens(tokens).unwrap();
    library.to_string(false).unwrap()
}

/// Byte-level merges after these steps of a pre-tokenizer.
fn merges(steps: &Json, normalizer: &Json, ignore_merges: bool) -> String {
    let parts = json!({
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    });
    let model = json!({"type": "BPE", "vocab": {}, "merges": [], "ignore_merges": ignore_merges});
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(1500)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect());
    trained(&parts, &model, trainer.build())
}

/// A step that cuts by a pattern.
fn split(pattern: &str) -> Json {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

/// The byte-level step after patterns.
fn bytes(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

const THREE_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const ONE_DIGIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const WITH_MARKS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const PUNCTUATED: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const CASED: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Pairs of a name of a pre-tokenizer and a `tokenizer.json` that cuts texts like it.
static BYTE_LEVEL: LazyLock<Vec<(&str, String)>> = LazyLock::new(|| {
    let none = Json::Null;
    let digits = json!({"type": "Digits", "individual_digits": true});
    let plain = |steps: Json| merges(&steps, &none, false);
    vec![
        ("gpt-2", plain(json!([bytes(true)]))),
        ("starcoder", plain(json!([digits, bytes(true)]))),
        (
            "llama-bpe",
            merges(&json!([split(THREE_DIGITS), bytes(false)]), &none, true),
        ),
        ("dbrx", plain(json!([split(THREE_DIGITS), bytes(false)]))),
        (
            "qwen2",
            merges(
                &json!([split(ONE_DIGIT), bytes(false)]),
                &json!({"type": "NFC"}),
                false,
            ),
        ),
        (
            "qwen35",
            merges(
                &json!([split(WITH_MARKS), bytes(false)]),
                &json!({"type": "NFC"}),
                false,
            ),
        ),
        (
            "deepseek-v3",
            plain(json!([
                split(r"\p{N}{1,3}"),
                split("[一-龥\u{3040}-ゟ゠-ヿ]+"),
                split(PUNCTUATED),
                bytes(false),
            ])),
        ),
        (
            "bloom",
            plain(json!([split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), bytes(false)])),
        ),
    ]
});

/// What a part of a text may be: words, runs, characters of several scripts, special tokens.
/// Only characters that all versions of Unicode class alike.
const PARTS: &str = "(the|weights|Tensor|don't|We'LL|'s|[a-zA-Z]{1,6}|[0-9]{1,9}| {1,4}|[ \\t\\n\\r]{1,4}\
    |[!-/:-@\\[-`{-~]{1,3}|[à-öø-ÿ]{1,4}|[À-ÖØ-Þ]|[а-яёА-Я]{1,5}|[α-ωΑ-Ρ]{1,3}|[一-龠]{1,4}|[ぁ-んァ-ヶ]{1,4}\
    |[ا-ي]{1,3}|[🙂-🙄🚀-🚅]|[\u{300}-\u{308}]|[“”‘’—…€©]|\u{a0}|\u{3000}\
    |<\\|im_start\\|>|<\\|im_end\\|>|<tool_call>|<\\|endoftext\\|>)";

fn text(most: usize) -> impl Strategy<Value = String> {
    proptest::string::string_regex(&format!("{PARTS}{{0,{most}}}")).unwrap()
}

/// What differs between our tokens of a text and the library's: none, ideally.
fn difference(ours: &Tokenizer, library: &Library, text: &str) -> Option<String> {
    for add_special in [false, true] {
        let theirs = library
            .encode(text, add_special)
            .unwrap()
            .get_ids()
            .to_vec();
        let ids = ours.encode(text, add_special, true).unwrap();
        if ids != theirs {
            return Some(format!("{text:?}: {ids:?}, not {theirs:?}"));
        }
    }
    None
}

/// As [`difference`], of the texts that the tokens of a text decode to.
fn difference_decoded(ours: &Tokenizer, library: &Library, text: &str) -> Option<String> {
    let ids = library.encode(text, false).unwrap().get_ids().to_vec();
    let theirs = library.decode(&ids, false).unwrap();
    let decoded = ours.decode(&ids);
    (decoded != theirs.as_bytes()).then(|| {
        let decoded = String::from_utf8_lossy(&decoded);
        format!("{text:?}: {decoded:?}, not {theirs:?}")
    })
}

/// The strings of an array of a GGUF file.
fn strings(metadata: &Metadata, key: &str) -> Vec<String> {
    let strings = metadata.array(key).unwrap().as_strings().unwrap();
    let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
    strings.iter().map(text).collect()
}

/// The tokens of a GGUF file with their kinds.
fn tokens_of(metadata: &Metadata) -> Vec<(String, i64)> {
    let kinds = metadata.array("tokenizer.ggml.token_type").unwrap();
    let kind = |id| kinds.get(id).unwrap().as_i64().unwrap();
    let texts = strings(metadata, "tokenizer.ggml.tokens").into_iter();
    texts
        .enumerate()
        .map(|(id, text)| (text, kind(id)))
        .collect()
}

/// Every way to make the tokens of two others, with the index of the token, in the order of the tokens.
fn splits(tokens: &[String]) -> impl Iterator<Item = (usize, &str, &str)> {
    let known: std::collections::HashSet<&str> = tokens.iter().map(|t| &**t).collect();
    let all = tokens.iter().enumerate().flat_map(|(id, text)| {
        let cuts = text.char_indices().skip(1);
        cuts.map(move |(at, _)| (id, &text[..at], &text[at..]))
    });
    all.filter(move |(_, left, right)| known.contains(left) && known.contains(right))
}

/// A `tokenizer.json` of the tokens of a GGUF file: special ones are added, the model is completed
/// with all of them.
fn with_tokens(metadata: &Metadata, parts: &Json, mut model: Json) -> String {
    let tokens = tokens_of(metadata);
    let vocab: serde_json::Map<String, Json> = tokens
        .iter()
        .zip(0u32..)
        .map(|((text, _), id)| (text.clone(), id.into()))
        .collect();
    model["vocab"] = vocab.into();
    let mut library = library(parts, &model);
    let added = tokens.iter().filter(|(_, kind)| matches!(kind, 2..=4));
    let added = added.map(|(text, kind)| {
        tokenizers::AddedToken::from(text.as_str(), *kind != 4).normalized(false)
    });
    library.add_tokens(added).unwrap();
    library.to_string(false).unwrap()
}

/// A `tokenizer.json` of a GGUF file with byte-level merges, after these steps.
fn as_merges(metadata: &Metadata, steps: &Json, normalizer: &Json, ignore_merges: bool) -> String {
    let merges = strings(metadata, "tokenizer.ggml.merges");
    let model = json!({"type": "BPE", "merges": merges, "ignore_merges": ignore_merges});
    let parts = json!({
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": bytes(false),
    });
    with_tokens(metadata, &parts, model)
}

/// A post-processor that puts these tokens around a text, and the last ones also after each text of a pair.
fn framed(first: &[(&str, u32)], last: &[(&str, u32)]) -> Json {
    let token = |(text, _): &(&str, u32)| json!({"SpecialToken": {"id": text, "type_id": 0}});
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let [first_tokens, last_tokens] = [first, last].map(|part| part.iter().map(token));
    let text = |id: &str| [sequence(id)].into_iter().chain(last_tokens.clone());
    let single: Vec<Json> = first_tokens.chain(text("A")).collect();
    let pair: Vec<Json> = single.iter().cloned().chain(text("B")).collect();
    let entry = |(text, id): &(&str, u32)| {
        let entry = json!({"id": text, "ids": [id], "tokens": [text]});
        ((*text).to_owned(), entry)
    };
    let special = first.iter().chain(last).map(entry);
    json!({
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": special.collect::<serde_json::Map<_, _>>(),
    })
}

/// Spaces as U+2581, one before every text, the token `<s>` before all.
fn prefixed() -> Json {
    json!({
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "post_processor": framed(&[("<s>", 1)], &[]),
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
    })
}
