//! For every kind of vocabulary, the tokens of random texts are the library's: those of the folder, and those of a file
//! with its keys.

use proptest::prelude::*;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::models::unigram::UnigramTrainer;
use tokenizers::models::wordpiece::WordPieceTrainer;
use tokenizers::normalizers::precompiled::Precompiled;

use super::*;

/// A vocabulary as a folder, a file and the library run it.
struct Kind {
    name: &'static str,
    folder: OpenedFolder,
    keys: FileKeys,
    file: Tokenizer,
    library: Library,
}

impl Kind {
    fn new(name: &'static str, tokenizer: &str) -> Self {
        let folder = of(tokenizer);
        let keys = folder.for_file().unwrap();
        Self {
            name,
            file: Tokenizer::from_metadata(&keys.metadata).unwrap(),
            folder,
            keys,
            library: Library::from_bytes(tokenizer).unwrap(),
        }
    }

    fn difference(&self, text: &str) -> Option<String> {
        let decodes = !matches!(
            self.file.kind(),
            Some("WordPiece" | "unigram, by likelihood")
        );
        let folder = self.folder.tokenizer();
        let found = difference(folder, &self.library, text)
            .or_else(|| difference_decoded(folder, &self.library, text).filter(|_| decodes))
            .or_else(|| difference(&self.file, &self.library, text).filter(|_| !self.differs()));
        found.map(|what| format!("{}: {what}", self.name))
    }

    /// Whether files part from folders over texts as [`text`] makes them.
    fn differs(&self) -> bool {
        PARTED.contains(&self.name)
    }
}

/// No key says that only the first word gets a space, or that letters beyond ASCII have a case.
const PARTED: &[&str] = &["first", "cased letters"];

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let byte_level = BYTE_LEVEL.iter().map(|(name, file)| Kind::new(name, file));
    let (pieces, by_rank) = pieces();
    let all = splits(&pieces).map(|(_, left, right)| json!([left, right]));
    let all: Vec<Json> = all.collect();
    let fallback =
        |name, parts: &Json, merges| Kind::new(name, &byte_fallback(parts, &pieces, merges));
    let cased = merges(&json!([split(CASED), bytes(false)]), &Json::Null, false);
    let more = vec![
        Kind::new("cased letters", &cased),
        fallback("prefixed", &prefixed(), &all),
        fallback("escaped", &escaped(), &all),
        fallback("by rank", &escaped(), &by_rank),
        fallback("first", &prefixed_first(), &all),
        Kind::new("words", &unigram(&of_words())),
        Kind::new(
            "spaces",
            &unigram(&json!({"pre_tokenizer": metaspace("never")})),
        ),
        Kind::new("upper and lower case", &word_pieces(false)),
        Kind::new("lower case", &word_pieces(true)),
    ];
    byte_level.chain(more).collect()
});

fn kind(name: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.name == name).unwrap()
}

#[test]
fn fields_become_keys() {
    let lines = KINDS.iter().map(|kind| {
        let key = |key: &str| kind.keys.metadata.str(&format!("tokenizer.ggml.{key}"));
        let (model, pre) = (key("model").unwrap(), key("pre").unwrap());
        let flags = [
            "add_space_prefix",
            "add_bos_token",
            "add_eos_token",
            "normalizer.lowercase",
        ];
        let is_on = |flag: &&str| {
            let key = format!("tokenizer.ggml.{flag}");
            kind.keys.metadata.bool(&key) == Some(true)
        };
        let on: Vec<&str> = flags.into_iter().filter(is_on).collect();
        let differs = kind.keys.differs_at.is_some();
        format!("{}: {model} {pre} {on:?} {differs}", kind.name)
    });
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"), @r#"
    gpt-2: gpt2 gpt-2 [] false
    starcoder: gpt2 starcoder [] false
    llama-bpe: gpt2 llama-bpe [] false
    dbrx: gpt2 dbrx [] false
    qwen2: gpt2 qwen2 [] false
    qwen35: gpt2 qwen35 [] false
    deepseek-v3: gpt2 deepseek-v3 [] false
    bloom: gpt2 bloom [] false
    cased letters: gpt2 granite-embed-multi-97m [] true
    prefixed: llama default ["add_space_prefix", "add_bos_token"] false
    escaped: llama default [] false
    by rank: gpt2 sarvam-moe [] false
    first: llama default ["add_space_prefix", "add_bos_token"] true
    words: t5 default ["add_space_prefix", "add_eos_token"] true
    spaces: t5 default [] false
    upper and lower case: bert default ["add_bos_token"] true
    lower case: bert default ["add_bos_token", "normalizer.lowercase"] true
    "#);
    let table = "tokenizer.ggml.precompiled_charsmap";
    assert!(kind("words").keys.metadata.array(table).is_some());
    let words = kind("words").folder.tokenizer();
    let ids = |text| words.encode(text, false, true).unwrap();
    assert_eq!(ids("Quick"), ids("quick"));
    let cased = kind("upper and lower case");
    let id = |role: &str| {
        cased
            .keys
            .metadata
            .i64(&format!("tokenizer.ggml.{role}_token_id"))
    };
    assert_eq!((id("bos"), id("seperator")), (Some(1), Some(2)));
    for (text, spelled) in [("the", "▁the"), ("##s", "s"), ("[MASK]", "[MASK]")] {
        let id = cased.library.token_to_id(text).unwrap();
        assert_eq!(cased.folder.tokenizer().token_text(id).unwrap(), spelled);
    }
}

#[test]
fn long_runs_of_one_character_are_encoded() {
    for kind in KINDS.iter() {
        for c in ["a", " ", "1", "\n", "é", "!"] {
            let found = kind
                .folder
                .tokenizer()
                .encode(&c.repeat(50_000), true, true);
            assert!(found.is_ok(), "{}: {c:?}: {found:?}", kind.name);
        }
    }
}

#[test]
fn case_beyond_ascii_is_the_library_s() {
    for text in ["ÉCOLE École camelCase", "ÜBERüber don't"] {
        assert_eq!(kind("cased letters").difference(text), None);
    }
}

fn metaspace(scheme: &str) -> Json {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true})
}

/// Pieces trained on words that start with U+2581, and the merges that make them.
fn pieces() -> (Vec<String>, Vec<Json>) {
    let parts = json!({"pre_tokenizer": metaspace("always")});
    let mut library = library(&parts, &json!({"type": "BPE", "vocab": {}, "merges": []}));
    let trainer = BpeTrainer::builder().show_progress(false).vocab_size(1200);
    let lines = CORPUS.iter().flat_map(|text| text.lines());
    library
        .train(&mut TrainerWrapper::from(trainer.build()), lines)
        .unwrap();
    let file = serde_json::to_value(&library).unwrap();
    let mut tokens: Vec<_> = library.get_vocab(false).into_iter().collect();
    tokens.sort_by_key(|(_, id)| *id);
    (
        tokens.into_iter().map(|(text, _)| text).collect(),
        file["model"]["merges"].as_array().unwrap().clone(),
    )
}

/// `<unk> <s> </s>`, the bytes, the pieces, with these parts around.
fn byte_fallback(parts: &Json, pieces: &[String], merges: &[Json]) -> String {
    let mut texts: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    texts.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    texts.extend(pieces.iter().cloned());
    let vocab: serde_json::Map<String, Json> = texts
        .into_iter()
        .zip(0u32..)
        .map(|(text, id)| (text, id.into()))
        .collect();
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

/// Words of which each gets a space, after replacements, with a token at the end.
fn of_words() -> Json {
    let spaces = [
        "\t", "\n", "\r", "\u{a0}", "\u{3000}", "\u{2003}", "\u{2009}", "\u{2028}",
    ];
    let spaces = spaces.map(|space| (space, " "));
    json!({
        "normalizer": replacements(&[&spaces[..], &[("Q", "q"), ("é", "e")]].concat()),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always")]},
        "post_processor": framed(&[], &[("</s>", 1)]),
    })
}

fn word_pieces(lowercase: bool) -> String {
    let parts = json!({
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": framed(&[("[CLS]", 1)], &[("[SEP]", 2)]),
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn tokens_are_the_library_s(text in text(24)) {
        for kind in KINDS.iter() {
            // The library replaces a letter with all its marks where the letter is to be replaced.
            let is_replaced = kind.name == "words";
            let is_kept = |c: &char| !is_replaced || !('\u{300}'..='\u{36f}').contains(c);
            let text: String = text.chars().filter(is_kept).collect();
            prop_assert_eq!(kind.difference(&text), None);
        }
    }
}
