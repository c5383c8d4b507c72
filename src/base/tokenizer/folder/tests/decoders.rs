//! The texts of tokens are those of the folder's decoder; patterns have the classes of the format's own library.

use tokenizers::models::wordlevel::WordLevelTrainer;

use super::*;

/// Decoders that join and mark words in ways that the spelling of tokens does not imply.
fn decoders() -> Vec<Json> {
    let suffix = |suffix: &str| json!({"type": "BPEDecoder", "suffix": suffix});
    let word_piece = |prefix: &str, cleanup: bool| json!({"type": "WordPiece", "prefix": prefix, "cleanup": cleanup});
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let sequence = |decoders: &[Json]| json!({"type": "Sequence", "decoders": decoders});
    vec![
        Json::Null,
        suffix("</w>"),
        suffix("_w"),
        word_piece("##", true),
        word_piece("@@", false),
        word_piece("", false),
        replace("e", "E"),
        json!({"type": "Fuse"}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        sequence(&[replace("e", "E"), json!({"type": "Fuse"})]),
        sequence(&[
            suffix("</w>"),
            json!({"type": "Strip", "content": " ", "start": 0, "stop": 1}),
        ]),
    ]
}

/// Models whose tokens are marked for their place in a word, or not at all.
fn models() -> Vec<(Json, TrainerWrapper)> {
    let bpe = |prefix: Option<&str>, suffix: Option<&str>| {
        let model = json!({"type": "BPE", "vocab": {}, "merges": [], "unk_token": "<unk>",
            "continuing_subword_prefix": prefix, "end_of_word_suffix": suffix});
        let mut trainer = BpeTrainer::builder().show_progress(false).vocab_size(400);
        trainer = trainer.special_tokens(vec![tokenizers::AddedToken::from("<unk>", true)]);
        if let Some(prefix) = prefix {
            trainer = trainer.continuing_subword_prefix(prefix.to_owned());
        }
        if let Some(suffix) = suffix {
            trainer = trainer.end_of_word_suffix(suffix.to_owned());
        }
        (model, TrainerWrapper::from(trainer.build()))
    };
    let words = WordLevelTrainer::builder()
        .show_progress(false)
        .special_tokens(vec![tokenizers::AddedToken::from("<unk>", true)])
        .build()
        .unwrap();
    vec![
        bpe(None, Some("</w>")),
        bpe(None, Some("_w")),
        bpe(Some("##"), None),
        bpe(Some("@@"), None),
        bpe(None, None),
        (
            json!({"type": "WordLevel", "vocab": {}, "unk_token": "<unk>"}),
            words.into(),
        ),
    ]
}

#[test]
fn texts_are_those_of_the_decoder() {
    let mut wrong = Vec::new();
    for (model, trainer) in models() {
        let parts = json!({"pre_tokenizer": {"type": "BertPreTokenizer"}});
        let trained = trained(&parts, &model, trainer);
        for decoder in decoders() {
            let mut file: Json = serde_json::from_str(&trained).unwrap();
            file["decoder"] = decoder.clone();
            let text = file.to_string();
            let library: Library = text.parse().unwrap();
            let folder = of(&text);
            let tokenizer = folder.tokenizer();
            for text in [
                "the weights",
                "the",
                "don't, a model. 12 tensors?",
                "<|im_start|>the layer<|im_end|>",
            ] {
                wrong.extend(
                    difference_decoded(tokenizer, &library, text)
                        .map(|what| format!("{}, {decoder}: {what}", file["model"]["type"])),
                );
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// The expected words are those of Oniguruma, with which the format's package for Python reads patterns.
#[test]
fn classes_of_patterns_are_onigurumas() {
    let words = |pattern: &str, text: &str| -> Vec<String> {
        let parts = json!({
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": true},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            ]},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        });
        let model = json!({"type": "BPE", "vocab": {}, "merges": []});
        let trainer = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(256)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let folder = of(&trained(&parts, &model, trainer));
        let tokenizer = folder.tokenizer();
        let ids = tokenizer.encode(text, false, false).unwrap();
        let text = String::from_utf8(tokenizer.decode(&ids)).unwrap();
        text.split_whitespace().map(str::to_owned).collect()
    };
    for (pattern, text, expected) in [
        (r"[[:alpha:]]+\s?", "né бa2", "né бa"),
        (r"[[:alnum:]]+", "é٣_", "é٣"),
        (r"[[:upper:]]", "aÉbЖ", "ÉЖ"),
        (r"[[:space:][:digit:]]+", "a\u{2003}٣b", "٣"),
        (r"\w+", "a\u{200d}b²", "ab²"),
        (r"(?i:ss)", "aßb", "ß"),
        (r"\X", "e\u{301}", "e\u{301}"),
        (r"a\Rb", "a\r\nb", "a b"),
    ] {
        assert_eq!(words(pattern, text).join(" "), expected, "{pattern}");
    }
}
