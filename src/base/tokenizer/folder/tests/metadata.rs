//! What the files of a folder hold besides the way texts are cut arrives in the metadata.

use tokenizers::AddedToken;

use super::super::super::vocab::TokenKind;
use super::*;
use crate::weights::{Metadata, Value};

/// A small byte-level vocabulary: the bytes, `th`, `the`, then these tokens.
fn small(added: &[AddedToken]) -> String {
    of_merges(&["t h", "th e"], added)
}

/// A byte-level vocabulary: the bytes, what the merges make, then these tokens.
fn of_merges(merges: &[&str], added: &[AddedToken]) -> String {
    let alphabet = (0..=255u8).map(super::super::super::byte_level::letter_of);
    let merged = merges.iter().map(|merge| merge.replace(' ', ""));
    let vocab: serde_json::Map<String, Json> = alphabet
        .map(String::from)
        .chain(merged)
        .zip(0u32..)
        .map(|(text, id)| (text, id.into()))
        .collect();
    let model = json!({"type": "BPE", "vocab": vocab, "merges": merges});
    let parts = json!({"pre_tokenizer": bytes(true), "decoder": bytes(true)});
    let mut library = library(&parts, &model);
    library.add_tokens(added.iter().cloned()).unwrap();
    library.to_string(false).unwrap()
}

fn special(text: &str) -> AddedToken {
    AddedToken::from(text, true)
}

/// The tokenizer of a file with the keys of a folder.
fn of_file(folder: &FolderTokenizer) -> Tokenizer {
    Tokenizer::from_metadata(&folder.for_file().unwrap().metadata).unwrap()
}

/// The metadata of a folder of `small` and further files.
fn folder_with(added: &[AddedToken], files: &[(&str, &str)]) -> OpenedFolder {
    let tokenizer = small(added);
    opened(&[files, &[("tokenizer.json", &tokenizer)]].concat())
}

fn id(metadata: &Metadata, role: &str) -> Option<i64> {
    metadata.i64(&format!("tokenizer.ggml.{role}_token_id"))
}

#[test]
fn roles_arrive_from_every_file() {
    let tokens = ["<bos>", "<a>", "<b>", "<c>", "<d>", "<|im_end|>"].map(special);
    let named = r#"{"bos_token": "<bos>", "eos_token": {"content": "<a>"}}"#;
    let ends = r#"{"bos_token_id": 0, "eos_token_id": 260, "text_config": {"pad_token_id": 7}}"#;
    let list = r#"{"eos_token_id": [260, 259], "pad_token_id": -1, "bos_token_id": null}"#;
    let one = r#"{"eos_token_id": 258}"#;
    let beyond = r#"{"bos_token_id": 1000, "eos_token_id": [151645, 259]}"#;
    let mut found = Vec::new();
    // A text counts before an id, and an id of generation settings that the vocabulary lacks is left out.
    for [texts, config, generation] in [
        [named, ends, r#"{"eos_token_id": [259, 263, 261]}"#],
        ["{}", "{}", list],
        ["{}", one, beyond],
        ["{}", one, r#"{"eos_token_id": 264}"#],
    ] {
        let folder = folder_with(
            &tokens,
            &[
                ("tokenizer_config.json", texts),
                ("config.json", config),
                ("generation_config.json", generation),
            ],
        );
        let tokenizer = folder.tokenizer();
        let ends: Vec<u32> = tokenizer.ends_of_generation().collect();
        assert!(
            of_file(&folder)
                .ends_of_generation()
                .eq(ends.iter().copied())
        );
        let roles = ["bos", "eos", "padding", "eot", "eom"];
        let roles = roles.map(|role| id(folder.metadata(), role));
        found.push(format!("{roles:?} {ends:?}"));
    }
    // `<|im_end|>` is known by its text to end a turn, so one key is left for other tokens.
    insta::assert_snapshot!(found.join("\n"), @r"
    [Some(258), Some(259), Some(7), None, Some(260)] [259, 260, 261, 263]
    [None, Some(260), None, None, Some(259)] [259, 260, 263]
    [None, Some(259), None, None, Some(258)] [258, 259, 263]
    [None, Some(258), None, None, None] [258, 263]
    ");
}

#[test]
fn plain_words_get_no_role_for_their_text() {
    let end = AddedToken::from("<|im_end|>", false).normalized(false);
    let file = of_merges(&["/ s", "/s >", "< /s>"], &[end]);
    let folder = of(&file);
    let tokenizer = folder.tokenizer();
    assert_eq!(tokenizer.token_text(258).unwrap(), "</s>");
    assert_eq!(
        tokenizer.ends_of_generation().collect::<Vec<_>>(),
        [259],
        "only the one that is special"
    );
    let library = Library::from_bytes(&file).unwrap();
    assert_eq!(
        difference(tokenizer, &library, "<s>a</s> b<|im_end|>"),
        None
    );
    assert_eq!(folder.for_file().unwrap().differs_at, None);
}

#[test]
fn templates_arrive_with_their_names() {
    const CONFIG: (&str, &str) = ("tokenizer_config.json", r#"{"chat_template": "config"}"#);
    const NAMED: &str = r#"{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool use", "template": "t"}]}"#;
    let files = [
        CONFIG,
        ("chat_template.jinja", "file"),
        ("additional_chat_templates/rag.jinja", "rag"),
    ];
    for (files, expected) in [
        (&[][..], &[][..]),
        (&[CONFIG], &[("", "config")]),
        (&[("chat_template.json", CONFIG.1)], &[("", "config")]),
        (
            &[("tokenizer_config.json", NAMED)],
            &[("", "d"), (".tool_use", "t")],
        ),
        (&files, &[("", "file"), (".rag", "rag")]),
    ] {
        let folder = folder_with(&[], files);
        let templates = folder.metadata().iter().filter_map(|(key, value)| {
            let name = key.strip_prefix("tokenizer.chat_template")?;
            Some((name, value.as_str()?))
        });
        let mut templates: Vec<_> = templates.collect();
        templates.sort_unstable();
        assert_eq!(templates, expected, "{files:?}");
    }
    let folder = folder_with(&[], &files);
    let names = folder.metadata().array("tokenizer.chat_templates").unwrap();
    assert_eq!(names.get(0), Some(Value::Str("rag".to_owned())));
}

#[test]
fn the_vocabulary_is_as_long_as_the_model_s() {
    let folder = folder_with(
        &[special("<a>")],
        &[("config.json", r#"{"vocab_size": 300}"#)],
    );
    let tokenizer = folder.tokenizer();
    assert_eq!(tokenizer.vocab_len(), 300);
    assert_eq!(tokenizer.token_text(299).unwrap(), "[PAD299]");
    assert_eq!(tokenizer.piece(299), b"");
    assert!(!tokenizer.is_text(299));
    let kinds = folder
        .metadata()
        .array("tokenizer.ggml.token_type")
        .unwrap();
    assert_eq!(
        kinds.get(258).unwrap().as_i64(),
        Some(TokenKind::Control.code().into())
    );
    assert_eq!(
        kinds.get(259).unwrap().as_i64(),
        Some(TokenKind::Unused.code().into())
    );
}

#[test]
fn flags_say_what_begins_and_ends_a_text() {
    let tokens = ["<a>", "<b>"].map(special);
    let ids = |flags: &str| {
        let config = format!(r#"{{"bos_token": "<a>", "eos_token": "<b>", {flags}}}"#);
        let folder = folder_with(&tokens, &[("tokenizer_config.json", &config)]);
        let file = of_file(&folder);
        let ids = folder.tokenizer().encode("the", true, true).unwrap();
        assert_eq!(file.encode("the", true, true).unwrap(), ids);
        ids
    };
    assert_eq!(ids(r#""add_bos_token": null"#), [257]);
    assert_eq!(ids(r#""add_bos_token": true"#), [258, 257]);
    assert_eq!(
        ids(r#""add_bos_token": true, "add_eos_token": true"#),
        [258, 257, 259]
    );
}

#[test]
fn texts_of_pairs_are_apart_as_the_library_has_it() {
    let tokens = ["<a>", "<b>"].map(special);
    let once = framed(&[("<a>", 258)], &[("<b>", 259)]);
    let twice = json!({
        "type": "RobertaProcessing", "sep": ["<b>", 259], "cls": ["<a>", 258],
        "trim_offsets": true, "add_prefix_space": false,
    });
    let config = r#"{"bos_token": "<a>", "eos_token": "<b>", "sep_token": "<b>"}"#;
    for (processor, between) in [(once, vec![259]), (twice, vec![259, 259])] {
        let mut file: Json = serde_json::from_str(&small(&tokens)).unwrap();
        file["post_processor"] = processor;
        let text = file.to_string();
        let folder = opened(&[("tokenizer.json", &text), ("tokenizer_config.json", config)]);
        let frame = folder.tokenizer().frame().unwrap();
        assert_eq!(
            (&frame.start, &frame.between, &frame.end),
            (&vec![258], &between, &vec![259])
        );
        let file = of_file(&folder);
        assert_eq!(file.frame().unwrap(), frame);
        let pair = library_pair(&text, "the", "the");
        assert_eq!(
            pair,
            [&frame.start[..], &[257], &between, &[257], &frame.end].concat()
        );
    }
}

/// The tokens of a pair by the library.
fn library_pair(file: &str, first: &str, second: &str) -> Vec<u32> {
    let library: tokenizers::Tokenizer = file.parse().unwrap();
    let pair = library.encode_fast((first, second), true).unwrap();
    pair.get_ids().to_vec()
}

#[test]
fn tokens_of_other_files_are_added() {
    let files = [
        (
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"258": {"content": "<a>", "special": true}}}"#,
        ),
        ("added_tokens.json", r#"{"<a>": 258, "<b>": 259}"#),
    ];
    let folder = folder_with(&[], &files);
    let tokenizer = folder.tokenizer();
    assert_eq!(
        tokenizer.encode("the<a><b>", false, true).unwrap(),
        [257, 258, 259]
    );
    assert!(tokenizer.is_control(258) && !tokenizer.is_control(259));
    assert_eq!(tokenizer.encode("<b>", false, false).unwrap(), [259]);
}

#[test]
fn tokens_have_their_rules_in_the_folder_and_files_have_most() {
    for (token, differs) in [
        (special("<t>").lstrip(true), false),
        (special("<t>").rstrip(true), false),
        (special("<t>").single_word(true), true),
    ] {
        let tokens = [token, special("<none>")];
        let folder = folder_with(&tokens, &[]);
        let keys = folder.for_file().unwrap();
        assert_eq!(keys.differs_at.is_some(), differs, "{tokens:?}");
        let library = Library::from_bytes(small(&tokens)).unwrap();
        for text in ["a <t> b \n <none> <t>c", " <t>", "<t> <none> <t> ", "<t>"] {
            assert_eq!(difference(folder.tokenizer(), &library, text), None);
            if !differs {
                assert_eq!(difference(&of_file(&folder), &library, text), None);
            }
        }
    }
}

#[test]
fn words_that_nobody_knows_run_and_are_no_file() {
    let steps = json!([split("[aeiou]+|[^aeiou]"), bytes(false)]);
    let file = merges(&steps, &Json::Null, false);
    let library = Library::from_bytes(&file).unwrap();
    let folder = of(&file);
    let tokenizer = folder.tokenizer();
    for text in ["queueing", "the <|im_start|>weights<tool_call>", "", "é🙂"] {
        assert_eq!(difference(tokenizer, &library, text), None);
        assert_eq!(difference_decoded(tokenizer, &library, text), None);
    }
    let (start, call) = (
        library.token_to_id("<|im_start|>"),
        library.token_to_id("<tool_call>"),
    );
    let ids = tokenizer
        .encode("<|im_start|><tool_call>", false, false)
        .unwrap();
    assert!(
        !ids.contains(&start.unwrap()),
        "a control token was parsed unasked"
    );
    assert_eq!(ids.last(), call.as_ref());
    assert!(tokenizer.keeps_bytes());

    let message = folder.for_file().unwrap_err().to_string();
    let (_, message) = message.split_once("tokenizer.json: ").unwrap();
    assert_eq!(
        message,
        "no GGUF file can say how this text is tokenized: no known pre-tokenizer cuts texts into \
         the same words; the folder itself runs"
    );
    assert_eq!(folder.metadata().str("tokenizer.ggml.pre"), None);
    assert!(Tokenizer::from_metadata(folder.metadata()).is_err());
}

#[test]
fn whole_words_run_and_are_no_file() {
    let parts = json!({"pre_tokenizer": {"type": "Whitespace"}});
    let vocab = json!({"[UNK]": 0, "the": 1, "model": 2});
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"});
    let folder = of(&library(&parts, &model).to_string(false).unwrap());
    assert_eq!(
        folder
            .tokenizer()
            .encode("the other model", true, true)
            .unwrap(),
        [1, 0, 2]
    );
    assert_eq!(folder.tokenizer().unk(), Some(0));
    assert!(!folder.tokenizer().keeps_bytes());
    assert!(folder.for_file().is_err());
}

#[test]
fn the_vocabulary_of_the_shipped_model_comes_back() {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-chat.gguf");
    let source = crate::weights::open(std::path::Path::new(shipped)).unwrap();
    let metadata = source.metadata();
    let config = r#"{"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": false}"#;
    let tokenizer = as_merges(
        metadata,
        &json!([split(ONE_DIGIT), bytes(false)]),
        &json!({"type": "NFC"}),
        false,
    );
    let files = [
        ("tokenizer.json", &*tokenizer),
        ("tokenizer_config.json", config),
    ];
    let folder = opened(&files);
    let keys = folder.for_file().unwrap();
    assert_eq!(keys.differs_at, None);
    for (key, value) in metadata
        .iter()
        .filter(|(key, _)| key.starts_with("tokenizer.ggml."))
    {
        // The end of a turn is known by its text.
        if key != "tokenizer.ggml.eot_token_id" {
            assert_eq!(keys.metadata.get(key), Some(value), "{key}");
        }
    }
    let ours = Tokenizer::from_metadata(metadata).unwrap();
    assert_eq!(folder.tokenizer().eot(), ours.eot());
    assert!(
        ours.ends_of_generation()
            .eq(folder.tokenizer().ends_of_generation())
    );
}

#[test]
fn control_tokens_that_the_model_has_no_rows_for_are_left_out() {
    let tokens = [special("<a>"), special("<image>")];
    let folder = folder_with(&tokens, &[("config.json", r#"{"vocab_size": 259}"#)]);
    let tokenizer = folder.tokenizer();
    assert_eq!(tokenizer.vocab_len(), 259);
    let encoded = tokenizer.encode("<a><image>", false, true).unwrap();
    assert_eq!(encoded[0], 258);
    assert!(
        encoded.len() > 2 && encoded.iter().all(|id| *id < 259),
        "{encoded:?}"
    );
}

#[test]
fn a_frame_of_tokens_that_are_left_out_is_refused() {
    let mut file: Json = serde_json::from_str(&small(&[special("<a>")])).unwrap();
    file["post_processor"] = framed(&[("<a>", 258)], &[]);
    let file = file.to_string();
    let files = [
        ("tokenizer.json", file.as_str()),
        ("config.json", r#"{"vocab_size": 258}"#),
    ];
    let message = read(super::folder(&files).path()).unwrap_err().to_string();
    assert!(
        message.contains("`post_processor` is 258, but the vocabulary has 258 tokens"),
        "{message}"
    );
}
