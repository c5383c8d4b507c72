//! Vocabularies of real size: those next to the checkout, written as folders.
//!
//! The ids are compared with the library's and with those that llama.cpp gives (goldens).

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Golden {
    vocab: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    add_special: bool,
    parse_special: bool,
    ids: Vec<u32>,
}

/// Merges in the order that scores give them, as conversions to `tokenizer.json` do.
fn merges_of_scores(metadata: &Metadata) -> Vec<Json> {
    let tokens = strings(metadata, "tokenizer.ggml.tokens");
    let scores = metadata.array("tokenizer.ggml.scores").unwrap();
    let score = |id| scores.get(id).unwrap().as_f64().unwrap();
    let mut merges: Vec<_> = splits(&tokens)
        .map(|(id, left, right)| (score(id), left.chars().count(), left, right))
        .collect();
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    merges
        .into_iter()
        .map(|(.., left, right)| json!([left, right]))
        .collect()
}

fn by_score(metadata: &Metadata) -> String {
    let model = json!({
        "type": "BPE", "merges": merges_of_scores(metadata), "unk_token": "<unk>",
        "fuse_unk": true, "byte_fallback": true,
    });
    with_tokens(metadata, &prefixed(), model)
}

/// Writes a folder of the vocabulary of a golden, whose pre-tokenizer has to be found to be `pre`, and reads it.
fn comes_back(name: &str, pre: &str, write: impl Fn(&Metadata) -> String) {
    let Some(goldens) = goldens() else {
        // `golden_tokenizers` says so.
        return;
    };
    let golden = std::fs::read(goldens.join(format!("dev/{name}.json"))).unwrap();
    let golden: Golden = serde_json::from_slice(&golden).unwrap();
    let source = crate::weights::open(&goldens.join("vocab").join(&golden.vocab)).unwrap();
    let metadata = source.metadata();
    let file = write(metadata);
    let config = config(metadata);
    let folder = folder(&[("tokenizer.json", &file), ("config.json", &config)]);

    let found = read(folder.path()).unwrap();
    let keys = found.for_file().unwrap();
    assert_eq!(keys.differs_at, None);
    assert_eq!(keys.metadata.str("tokenizer.ggml.pre"), Some(pre));
    let of_file = Tokenizer::from_metadata(&keys.metadata).unwrap();
    let library = Library::from_bytes(&file).unwrap();
    for case in &golden.cases {
        let text = &case.text;
        let theirs = library
            .encode_fast(&**text, false)
            .unwrap()
            .get_ids()
            .to_vec();
        let ours = found.tokenizer().encode(text, false, true).unwrap();
        assert_eq!(ours, theirs, "{text:?}");
        assert_eq!(
            of_file.encode(text, false, true).unwrap(),
            theirs,
            "{text:?}"
        );
        if !case.add_special && case.parse_special && is_normal(text) && !text.contains("</s>") {
            assert_eq!(ours, case.ids, "{text:?}");
        }
    }
}

#[test]
fn a_vocabulary_of_bytes_comes_back() {
    comes_back("gpt-2", "gpt-2", |m| {
        as_merges(m, &json!([bytes(true)]), &Json::Null, false)
    });
}

#[test]
fn a_vocabulary_that_splits_numbers_after_three_digits_comes_back() {
    comes_back("llama-bpe", "llama-bpe", |m| {
        let steps = json!([split(THREE_DIGITS), bytes(false)]);
        as_merges(m, &steps, &Json::Null, true)
    });
}

#[test]
fn a_vocabulary_of_a_normal_form_comes_back() {
    comes_back("qwen2", "qwen2", |m| {
        let steps = json!([split(ONE_DIGIT), bytes(false)]);
        as_merges(m, &steps, &json!({"type": "NFC"}), false)
    });
}

#[test]
fn a_vocabulary_of_scores_comes_back() {
    comes_back("llama-spm", "default", by_score);
}

// llama.cpp takes every `</s>` of a vocabulary for the end of a text, also where it is a word.

/// Whether a text has the normal form that one of the folders brings texts to.
fn is_normal(text: &str) -> bool {
    unicode_normalization::is_nfc(text)
}

/// A `config.json` with the ids of a GGUF file.
fn config(metadata: &Metadata) -> String {
    let id = |role: &str| metadata.i64(&format!("tokenizer.ggml.{role}_token_id"));
    json!({"bos_token_id": id("bos"), "eos_token_id": id("eos")}).to_string()
}

fn goldens() -> Option<PathBuf> {
    let shared = match std::env::var_os("BENCH_SHARED") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
    };
    let folder = shared.join("golden/tokenizers");
    folder.is_dir().then_some(folder)
}
