//! Files that nobody should write: each is refused with a sentence that names file and key.

use proptest::prelude::*;

use super::*;

/// A vocabulary of three tokens.
const SMALL: &str = r#"{"version": "1.0", "added_tokens": [
    {"id": 2, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"}}"#;

/// The message of a folder that is refused, without the path of the folder.
fn refused(files: &[(&str, &str)]) -> String {
    let folder = folder(files);
    let message = read(folder.path()).unwrap_err().to_string();
    message.replace(&format!("{}/", folder.path().display()), "")
}

/// As [`refused`], of a good `tokenizer.json` and one more file.
fn refused_with(name: &str, text: &str) -> String {
    refused(&[("tokenizer.json", SMALL), (name, text)])
}

/// As [`refused`], of a `tokenizer.json` with a change.
fn refused_changed(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from));
    refused(&[("tokenizer.json", &SMALL.replace(from, to))])
}

#[test]
fn folders_are_refused_with_file_and_key() {
    insta::assert_snapshot!(
        [
            refused(&[("config.json", "{}")]),
            refused(&[("tokenizer.json/x", "")]),
            refused(&[("tokenizer.json", "")]),
            refused(&[("tokenizer.json", &SMALL[..200])]),
            refused(&[("tokenizer.json", "{}")]),
            refused_changed(r#""a": 1"#, r#""a": 0"#),
            refused_changed(r#""a": 1"#, r#""a": 4294967295"#),
            refused_changed(r#""a": 1"#, r#""a": 4294967296"#),
            refused_changed(r#""a": 1"#, r#""a": -1"#),
            refused_changed(r#""id": 2"#, r#""id": 7"#),
            refused_with("config.json", "[]"),
            refused_with("config.json", r#"{"vocab_size": 1}"#),
            refused_with("config.json", r#"{"vocab_size": 1000000000000}"#),
            refused_with("config.json", r#"{"vocab_size": "3"}"#),
            refused_with("config.json", r#"{"text_config": 3}"#),
            refused_with("config.json", r#"{"eos_token_id": 3}"#),
            refused_with("config.json", r#"{"text_config": {"bos_token_id": [1, "2"]}}"#),
            refused_with("generation_config.json", r#"{"eos_token_id": 1.5}"#),
            refused_with("tokenizer_config.json", r#"{"eos_token": 2}"#),
            refused_with("tokenizer_config.json", r#"{"add_bos_token": "yes"}"#),
            refused_with("tokenizer_config.json", r#"{"chat_template": [{"name": "x"}]}"#),
            refused_with("tokenizer_config.json", r#"{"added_tokens_decoder": {"x": {"content": "b"}}}"#),
            refused_with("tokenizer_config.json", r#"{"added_tokens_decoder": {"9": {"content": "b"}}}"#),
            refused_with("special_tokens_map.json", r#"{"bos_token": ["<s>"]}"#),
            refused_with("added_tokens.json", r#"{"b": "3"}"#),
            refused_with("added_tokens.json", r#"{"b": 5}"#),
        ]
        .join("\n"),
        @r"
    tokenizer.json: there is no such file, and without it the folder has no vocabulary
    tokenizer.json: not a regular file
    tokenizer.json: EOF while parsing a value at line 1 column 0
    tokenizer.json: EOF while parsing a string at line 3 column 35
    tokenizer.json: Model missing. at line 1 column 2
    tokenizer.json: tokens `[UNK]` and `a` both have id 0
    tokenizer.json: token `a` has id 4294967295, but 16777216 is the highest number of tokens (there is no `vocab_size`)
    tokenizer.json: invalid value: integer `4294967296`, expected u32 at line 4 column 97
    tokenizer.json: invalid value: integer `-1`, expected u32 at line 4 column 89
    tokenizer.json: token `<s>` is declared with id 7, but added tokens follow one another after the vocabulary, so it has id 2
    config.json: invalid type: sequence, expected a map at line 1 column 0
    tokenizer.json: token `a` has id 1, but 1 is the highest number of tokens (`vocab_size` of config.json)
    config.json: `vocab_size` is 1000000000000, at most 16777216 is possible
    config.json: `vocab_size` is a string, expected a whole number
    config.json: `text_config` is a number, expected an object
    config.json: `eos_token_id` is 3, but the vocabulary has 3 tokens
    config.json: `text_config.bos_token_id` is a list, expected an id or a list of ids
    generation_config.json: `eos_token_id` is a number, expected an id or a list of ids
    tokenizer_config.json: `eos_token` is a number, expected a token: a string, or an object with `content`
    tokenizer_config.json: `add_bos_token` is a string, expected true or false
    tokenizer_config.json: `chat_template` is a list, expected a string, or a list of objects with `name` and `template`
    tokenizer_config.json: `added_tokens_decoder.x` is an object, expected a token under its id
    tokenizer_config.json: token `b` is declared with id 9, but added tokens follow one another after the vocabulary, so it has id 3
    special_tokens_map.json: `bos_token` is a list, expected a token: a string, or an object with `content`
    added_tokens.json: `b` is a string, expected an id
    added_tokens.json: token `b` is declared with id 5, but added tokens follow one another after the vocabulary, so it has id 3
    "
    );
}

#[test]
fn files_that_are_not_text_are_refused() {
    for name in ["tokenizer.json", "config.json", "chat_template.jinja"] {
        let folder = folder(&[("tokenizer.json", SMALL)]);
        std::fs::write(folder.path().join(name), b"{\"a\": \"\xff\"}").unwrap();
        let message = read(folder.path()).unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn a_folder_that_is_none_is_refused() {
    let message = read(std::path::Path::new("/nowhere"))
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with("/nowhere/tokenizer.json: there is no such file"),
        "{message}"
    );
}

#[test]
fn depth_and_size_are_no_danger() {
    let deep = "[".repeat(1 << 20);
    assert!(refused_with("config.json", &deep).starts_with("config.json: "));
    assert!(refused(&[("tokenizer.json", &deep)]).starts_with("tokenizer.json: "));
    let step = r#"{"type": "Sequence", "pretokenizers": ["#;
    let steps = step.repeat(5000) + &"]}".repeat(5000);
    let nested = SMALL.replace(r#"{"type": "Whitespace"}"#, &steps);
    assert!(refused(&[("tokenizer.json", &nested)]).starts_with("tokenizer.json: "));
}

#[cfg(unix)]
#[test]
fn links_in_a_circle_are_refused() {
    let folder = folder(&[("tokenizer.json", SMALL)]);
    let path = folder.path().join("config.json");
    std::os::unix::fs::symlink(&path, &path).unwrap();
    let message = read(folder.path()).unwrap_err().to_string();
    assert!(message.contains("config.json: "), "{message}");
}

#[test]
fn a_damaged_table_of_replacements_does_no_harm() {
    // Nodes that point outside, of one table that claims less and one that claims more than it has.
    for table in [
        "CAAAAP////////8AAAA=",
        "/////wAAAAAAAA==",
        "BAAAAAAAAAAA",
        "AAAA",
        "!!",
    ] {
        let normalizer = json!({"type": "Precompiled", "precompiled_charsmap": table});
        let file = json!({
            "version": "1.0", "added_tokens": [], "normalizer": normalizer,
            "model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0]], "unk_id": 0},
        });
        let folder = folder(&[("tokenizer.json", &file.to_string())]);
        if let Ok(folder) = read(folder.path()) {
            let _ = folder.tokenizer().encode("abc é", true, true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any change of bytes gives a vocabulary or an error.
    #[test]
    fn changed_files_are_read_or_refused(
        changes in prop::collection::vec((0usize..600, any::<u8>()), 1..6),
        cut in 0usize..600,
    ) {
        let mut bytes = SMALL.as_bytes().to_vec();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if cut < 200 {
            bytes.truncate(cut);
        }
        let folder = folder(&[]);
        std::fs::write(folder.path().join("tokenizer.json"), bytes).unwrap();
        if let Ok(folder) = read(folder.path()) {
            let ids = folder.tokenizer().encode("a b <s>", true, true).unwrap_or_default();
            prop_assert!(ids.iter().all(|id| (*id as usize) < folder.tokenizer().vocab_len()));
        }
    }

    /// Any value under any key gives a vocabulary or an error.
    #[test]
    fn odd_values_are_read_or_refused(
        key in "(eos_token_id|bos_token|vocab_size|text_config|add_eos_token|chat_template|added_tokens_decoder)",
        value in "(null|true|-1|0|2|1e99|\"\"|\"<s>\"|\\[\\]|\\[1,2\\]|\\{\\}|\\{\"content\":1\\}|\\{\"3\":\\{\"content\":\"\"\\}\\})",
        name in "(config|tokenizer_config|generation_config|special_tokens_map)",
    ) {
        let text = format!("{{\"{key}\": {value}}}");
        let folder = folder(&[("tokenizer.json", SMALL), (&format!("{name}.json"), &text)]);
        if let Ok(folder) = read(folder.path()) {
            prop_assert!(folder.tokenizer().encode("a <s>", true, true).is_ok());
        }
    }
}
