//! Our tokens of random texts are the library's, for every kind of vocabulary.

use proptest::prelude::*;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::models::unigram::UnigramTrainer;
use tokenizers::models::wordpiece::WordPieceTrainer;
use tokenizers::normalizers::precompiled::Precompiled;

use super::*;

/// A vocabulary as we and as the library run it.
struct Pair {
    name: String,
    folder: FolderTokenizer,
    library: Library,
}

impl Pair {
    fn new(name: &str, tokenizer: &str) -> Self {
        Self {
            name: name.to_owned(),
            folder: of(tokenizer),
            library: Library::from_bytes(tokenizer).unwrap(),
        }
    }

    fn check(&self, text: &str, decodes: bool) -> Result<(), TestCaseError> {
        let ours = self.folder.tokenizer();
        let found = difference(ours, &self.library, text);
        prop_assert!(
            found.is_none(),
            "{}: {}",
            self.name,
            found.unwrap_or_default()
        );
        if decodes {
            let found = difference_decoded(ours, &self.library, text);
            prop_assert!(
                found.is_none(),
                "{}: {}",
                self.name,
                found.unwrap_or_default()
            );
        }
        Ok(())
    }
}

static MERGES: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    BYTE_LEVEL
        .iter()
        .map(|(name, file)| Pair::new(name, file))
        .collect()
});

#[test]
fn pre_tokenizers_are_found_by_what_they_do() {
    for pair in MERGES.iter() {
        let metadata = pair.folder.for_file().unwrap();
        assert_eq!(metadata.str("tokenizer.ggml.pre"), Some(&*pair.name));
        assert_eq!(metadata.str("tokenizer.ggml.model"), Some("gpt2"));
        assert_eq!(pair.folder.differs_at(), None, "{}", pair.name);
    }
}

#[test]
fn case_beyond_ascii_is_the_library_s_and_files_get_the_nearest_name() {
    let file = merges(&json!([split(CASED), bytes(false)]), &Json::Null, false);
    let pair = Pair::new("cased", &file);
    let name = pair.folder.for_file().unwrap().str("tokenizer.ggml.pre");
    assert!(
        matches!(name, Some("gpt-4o" | "granite-embed-multi-97m")),
        "{name:?}"
    );
    assert!(pair.folder.differs_at().is_some());
    for text in ["ÉCOLE École camelCase", "ÜBERüber don't"] {
        pair.check(text, true).unwrap();
    }
}

/// Pieces of a byte-fallback vocabulary, and the merges that make them.
struct Pieces {
    tokens: Vec<String>,
    merges: Vec<(String, String)>,
}

/// Pieces trained on words that start with U+2581.
fn pieces() -> Pieces {
    let parts = json!({
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
    });
    let mut library = library(&parts, &json!({"type": "BPE", "vocab": {}, "merges": []}));
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(1200)
        .build();
    library
        .train(
            &mut TrainerWrapper::from(trainer),
            CORPUS.iter().flat_map(|text| text.lines()),
        )
        .unwrap();
    let file: Json = serde_json::from_str(&library.to_string(false).unwrap()).unwrap();
    let mut tokens: Vec<_> = library.get_vocab(false).into_iter().collect();
    tokens.sort_by_key(|(_, id)| *id);
    let pair = |pair: &Json| {
        let part = |at: usize| pair[at].as_str().unwrap().to_owned();
        (part(0), part(1))
    };
    Pieces {
        tokens: tokens.into_iter().map(|(text, _)| text).collect(),
        merges: file["model"]["merges"]
            .as_array()
            .unwrap()
            .iter()
            .map(pair)
            .collect(),
    }
}

/// `<unk> <s> </s>`, the bytes, the pieces, with these parts around.
fn byte_fallback(parts: &Json, pieces: &Pieces, merges: &[(String, String)]) -> String {
    let mut texts: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    texts.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    texts.extend(pieces.tokens.iter().cloned());
    let vocab: serde_json::Map<String, Json> = texts
        .into_iter()
        .zip(0u32..)
        .map(|(text, id)| (text, id.into()))
        .collect();
    let merges: Vec<Json> = merges.iter().map(|(l, r)| json!([l, r])).collect();
    let model = json!({
        "type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>",
        "fuse_unk": true, "byte_fallback": true,
    });
    let mut library = library(parts, &model);
    let special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"];
    let special = special.map(|text| tokenizers::AddedToken::from(text, true));
    library.add_tokens(special).unwrap();
    let user = tokenizers::AddedToken::from("<tool_call>", false).normalized(false);
    library.add_tokens([user]).unwrap();
    library.to_string(false).unwrap()
}

fn escaped() -> Json {
    json!({
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
    })
}

fn prefixed_first() -> Json {
    let mut parts = prefixed();
    parts["normalizer"] = Json::Null;
    parts["pre_tokenizer"] = json!({
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false,
    });
    parts
}

static BYTE_FALLBACK: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let pieces = pieces();
    let all: Vec<(String, String)> = splits(&pieces.tokens)
        .map(|(_, left, right)| (left.to_owned(), right.to_owned()))
        .collect();
    vec![
        Pair::new("prefixed", &byte_fallback(&prefixed(), &pieces, &all)),
        Pair::new("escaped", &byte_fallback(&escaped(), &pieces, &all)),
        Pair::new(
            "by rank",
            &byte_fallback(&escaped(), &pieces, &pieces.merges),
        ),
        Pair::new("first", &byte_fallback(&prefixed_first(), &pieces, &all)),
    ]
});

#[test]
fn byte_fallback_is_by_score_where_scores_say_it() {
    let reported = BYTE_FALLBACK.iter().map(|pair| {
        let metadata = pair.folder.for_file().unwrap();
        let key = |key: &str| metadata.str(&format!("tokenizer.ggml.{key}"));
        (
            &*pair.name,
            key("model").unwrap(),
            key("pre").unwrap(),
            pair.folder.differs_at().is_none(),
        )
    });
    assert_eq!(
        reported.collect::<Vec<_>>(),
        [
            ("prefixed", "llama", "default", true),
            ("escaped", "llama", "default", true),
            ("by rank", "gpt2", "sarvam-moe", true),
            // Only the first word gets a space, and that no key can say.
            ("first", "llama", "default", false),
        ]
    );
    let flag = |at: usize, key: &str| BYTE_FALLBACK[at].folder.metadata().bool(key);
    assert_eq!(flag(0, "tokenizer.ggml.add_space_prefix"), Some(true));
    assert_eq!(flag(1, "tokenizer.ggml.add_space_prefix"), Some(false));
    assert_eq!(flag(0, "tokenizer.ggml.add_bos_token"), Some(true));
    assert_eq!(flag(1, "tokenizer.ggml.add_bos_token"), Some(false));
}

/// A table of replacements as SentencePiece lays it out: 256 places for the children of a node.
fn replacements(texts: &[(&str, &str)]) -> Precompiled {
    let (mut nodes, mut out) = (vec![0u32; 0x200], Vec::new());
    // The root's children are in the second block.
    nodes[0] = 0x100 << 10;
    for (from, to) in texts {
        let (mut at, mut block) = (0, 0x100);
        for byte in from.bytes() {
            at = block ^ usize::from(byte);
            if nodes[at] == 0 {
                let next = nodes.len();
                nodes.resize(next + 0x100, 0);
                nodes[at] = u32::from(byte) | ((at ^ next) as u32) << 10;
            }
            block = at ^ (nodes[at] >> 10) as usize;
        }
        nodes[at] |= 1 << 8;
        nodes[block] = 1 << 31 | out.len() as u32;
        out.extend(to.bytes().chain([0]));
    }
    let mut bytes = (nodes.len() as u32 * 4).to_le_bytes().to_vec();
    bytes.extend(nodes.into_iter().flat_map(u32::to_le_bytes));
    bytes.extend(out);
    Precompiled::from(&bytes).unwrap()
}

fn unigram(parts: &Json) -> String {
    let model = json!({"type": "Unigram", "vocab": [["<unk>", 0.0]], "unk_id": 0});
    let trainer = UnigramTrainer::builder()
        .show_progress(false)
        .vocab_size(900)
        .unk_token(Some("<unk>".to_owned()))
        .special_tokens(vec![
            tokenizers::AddedToken::from("<s>", true),
            tokenizers::AddedToken::from("</s>", true),
            tokenizers::AddedToken::from("<unk>", true),
        ])
        .build()
        .unwrap();
    let mut file: Json = serde_json::from_str(&trained(parts, &model, trainer)).unwrap();
    // Published scores are SentencePiece's, of 32 bits. Beyond them lies what the threads of the trainer
    // rounded, which parts cuts of equal tokens in another order, and which no file can say.
    for entry in file["model"]["vocab"].as_array_mut().unwrap() {
        let score = entry[1].as_f64().unwrap();
        entry[1] = json!(f64::from(score as f32));
    }
    file.to_string()
}

static UNIGRAM: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let spaces = [
        "\t", "\n", "\r", "\u{a0}", "\u{3000}", "\u{2003}", "\u{2009}", "\u{2028}",
    ];
    let spaces = spaces.map(|space| (space, " "));
    let table = replacements(&[&spaces[..], &[("Q", "q"), ("é", "e")]].concat());
    let table = serde_json::to_value(table).unwrap();
    let words = json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always")]});
    let end = json!({
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
    });
    vec![
        Pair::new(
            "words",
            &unigram(&json!({"normalizer": table, "pre_tokenizer": words, "post_processor": end})),
        ),
        Pair::new(
            "spaces",
            &unigram(&json!({"pre_tokenizer": metaspace("never")})),
        ),
    ]
});

#[test]
fn likelihoods_and_replacements_arrive() {
    for pair in UNIGRAM.iter() {
        let metadata = pair.folder.for_file().unwrap();
        assert_eq!(
            metadata.str("tokenizer.ggml.model"),
            Some("t5"),
            "{}",
            pair.name
        );
    }
    let metadata = UNIGRAM[0].folder.metadata();
    assert!(
        metadata
            .array("tokenizer.ggml.precompiled_charsmap")
            .is_some()
    );
    assert_eq!(metadata.bool("tokenizer.ggml.add_eos_token"), Some(true));
    let tokenizer = UNIGRAM[0].folder.tokenizer();
    let ids = |text| tokenizer.encode(text, false, true).unwrap();
    assert_eq!(ids("Quick"), ids("quick"));
}

fn word_pieces(lowercase: bool) -> String {
    let parts = json!({
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
    });
    let model = json!({"type": "WordPiece", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]",
        "continuing_subword_prefix": "##", "max_input_chars_per_word": 100});
    let special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let special = special
        .map(|text| tokenizers::AddedToken::from(text, true))
        .to_vec();
    let trainer = WordPieceTrainer::builder()
        .show_progress(false)
        .vocab_size(1200)
        .special_tokens(special);
    trained(&parts, &model, trainer.build())
}

static WORD_PIECES: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    [false, true]
        .map(|lowercase| {
            Pair::new(
                if lowercase { "small" } else { "cased" },
                &word_pieces(lowercase),
            )
        })
        .into()
});

/// Our own tokenizers of the same: the library and they part only over rare characters.
static WORD_PIECES_OF_FILES: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let metadata = WORD_PIECES
        .iter()
        .map(|pair| pair.folder.for_file().unwrap());
    metadata
        .map(|metadata| Tokenizer::from_metadata(metadata).unwrap())
        .collect()
});

#[test]
fn word_pieces_are_spelled_for_files() {
    for (pair, lowercase) in WORD_PIECES.iter().zip([false, true]) {
        let metadata = pair.folder.for_file().unwrap();
        assert_eq!(metadata.str("tokenizer.ggml.model"), Some("bert"));
        assert_eq!(
            metadata.bool("tokenizer.ggml.normalizer.lowercase"),
            Some(lowercase)
        );
        assert_eq!(metadata.i64("tokenizer.ggml.bos_token_id"), Some(1));
        assert_eq!(metadata.i64("tokenizer.ggml.seperator_token_id"), Some(2));
    }
    let cased = &WORD_PIECES[0];
    let tokenizer = cased.folder.tokenizer();
    for (text, spelled) in [("the", "▁the"), ("##s", "s"), ("[MASK]", "[MASK]")] {
        let id = cased.library.token_to_id(text).unwrap();
        assert_eq!(tokenizer.token_text(id).unwrap(), spelled);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn merges_of_bytes(text in text(24)) {
        for pair in MERGES.iter() {
            pair.check(&text, true)?;
        }
    }

    #[test]
    fn merges_of_characters(text in text(24)) {
        for pair in BYTE_FALLBACK.iter() {
            pair.check(&text, true)?;
        }
    }

    #[test]
    fn likeliest_tokens(text in text(24)) {
        // The library replaces a letter with all its marks where the letter is to be replaced.
        let text = text.replace(|c| ('\u{300}'..='\u{36f}').contains(&c), "");
        for pair in UNIGRAM.iter() {
            pair.check(&text, false)?;
        }
    }

    #[test]
    fn pieces_of_words(text in text(24)) {
        for (pair, ours) in WORD_PIECES.iter().zip(WORD_PIECES_OF_FILES.iter()) {
            pair.check(&text, false)?;
            let found = difference(ours, &pair.library, &text);
            prop_assert!(found.is_none(), "{}: {}", pair.name, found.unwrap_or_default());
        }
    }
}
