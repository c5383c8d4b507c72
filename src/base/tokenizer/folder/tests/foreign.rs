//! Folders without `tokenizer.json`: the tokens of texts are those of each format's own library.
//!
//! `scripts/tokenizer_fixtures.py` writes the folders with `cases.json`: small ones lie in the repository,
//! large ones, of the vocabularies next to it, where `BENCH_TOKENIZERS` says.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::*;

fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/it/fixtures/tokenizers");
    let more = std::env::var_os("BENCH_TOKENIZERS").map(PathBuf::from);
    let mut found: Vec<_> = std::iter::once(root)
        .chain(more)
        .flat_map(|root| std::fs::read_dir(root).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("cases.json").exists())
        .collect();
    found.sort();
    found
}

fn fixture(name: &str) -> PathBuf {
    let found = folders().into_iter().find(|path| path.ends_with(name));
    found.unwrap_or_else(|| panic!("no fixture {name}"))
}

#[test]
fn tokens_are_those_of_the_library() {
    let mut wrong = Vec::new();
    let folders = folders();
    assert!(folders.len() >= 8);
    for path in folders {
        let tokenizer = match read(&path) {
            Ok(folder) => folder.into_tokenizer(),
            Err(error) => {
                wrong.push(format!("{error}"));
                continue;
            }
        };
        let cases: Json =
            serde_json::from_slice(&std::fs::read(path.join("cases.json")).unwrap()).unwrap();
        // Whether the library recognises special tokens, and adds them.
        let flag = |key: &str| cases[key].as_bool().unwrap_or(false);
        let (special, adds) = (flag("special"), flag("adds"));
        let cases = cases["cases"].as_array().unwrap();
        let mut differ = 0;
        for case in cases {
            let text = case[0].as_str().unwrap();
            let expected: Vec<u32> = serde_json::from_value(case[1].clone()).unwrap();
            let found = tokenizer.encode(text, adds, special).unwrap();
            if found != expected {
                differ += 1;
                if differ <= 3 {
                    wrong.push(format!(
                        "{}: {text:?}\n  {found:?}\n  not {expected:?}",
                        path.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A copy of a fixture with other files.
fn with_files(name: &str, files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

/// The message over a fixture with other files.
fn refused(name: &str, files: &[(&str, &[u8])]) -> String {
    let folder = with_files(name, files);
    let message = match read(folder.path()) {
        Ok(_) => panic!("{name} was read"),
        Err(error) => error.to_string(),
    };
    message.replace(&folder.path().display().to_string(), "DIR")
}

#[test]
fn one_file_counts_where_several_are_there() {
    let ranks = std::fs::read(fixture("ranks").join("small.tiktoken")).unwrap();
    let of = |folder: &TempDir| read(folder.path()).unwrap().tokenizer().vocab_len();
    let pieces = of(&with_files("bpe_bytes", &[]));
    assert_eq!(
        of(&with_files(
            "bpe_bytes",
            &[("x.tiktoken", &ranks), ("vocab.txt", b"[UNK]")]
        )),
        pieces
    );
    let json = trained(
        &json!({}),
        &json!({"type": "BPE", "vocab": {}, "merges": []}),
        BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(300)
            .build(),
    );
    assert_ne!(
        of(&with_files(
            "bpe_bytes",
            &[("tokenizer.json", json.as_bytes())]
        )),
        pieces
    );
    // Half of a pair is not a vocabulary.
    let alone = folder(&[("vocab.json", "{}")]);
    assert!(!super::super::has_vocabulary(alone.path()));
    assert!(super::super::has_vocabulary(&fixture("merges")));
}

#[test]
fn files_are_found_under_all_names_that_they_are_published_with() {
    let of = |name: &str, files: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        for (from, to) in files {
            let from = fixture(name).join(from);
            std::fs::copy(from, folder.path().join(to)).unwrap();
        }
        read(folder.path()).map(|folder| folder.tokenizer().vocab_len())
    };
    let pieces = of("bpe_bytes", &[("tokenizer.model", "tokenizer.model")]).unwrap();
    for name in ["tokenizer.model.v1", "tokenizer.model.v7m1"] {
        assert_eq!(
            of("bpe_bytes", &[("tokenizer.model", name)]).unwrap(),
            pieces
        );
    }
    // The latest version counts.
    let two = [
        ("cases.json", "tokenizer.model.v1"),
        ("tokenizer.model", "tokenizer.model.v3"),
    ];
    assert_eq!(of("bpe_bytes", &two).unwrap(), pieces);
    let tekken = of("tekken", &[("tekken.json", "tekken.json")]).unwrap();
    assert_eq!(
        of("tekken", &[("tekken.json", "tekken_240718.json")]).unwrap(),
        tekken
    );
}

#[test]
fn numbers_of_a_class_are_not_guessed() {
    let class = |name: &str| format!(r#"{{"tokenizer_class": "{name}"}}"#);
    let unknown = class("MBartTokenizer");
    let known = class("XLMRobertaTokenizer");
    let text = std::fs::read(fixture("unigram_no_unknown").join("tokenizer.model")).unwrap();
    let spoken = std::fs::read(fixture("bpe_rules").join("tokenizer.model")).unwrap();
    insta::assert_snapshot!(
        [
            refused("xlmr", &[("tokenizer_config.json", b"{}")]),
            refused("xlmr", &[("tokenizer_config.json", unknown.as_bytes())]),
            refused("xlmr", &[("sentencepiece.bpe.model", &text)]),
            refused("xlmr", &[("sentencepiece.bpe.model", b"")]),
            refused(
                "bpe_rules",
                &[("tokenizer.model", &without_unknown(&spoken))]
            ),
        ]
        .join("\n")
    );
    assert!(
        read(with_files("xlmr", &[("tokenizer_config.json", known.as_bytes())]).path()).is_ok()
    );
}

/// A model without its first piece, which stands for the unknown.
fn without_unknown(model: &[u8]) -> Vec<u8> {
    assert_eq!(model[0], b'\n');
    model[2 + usize::from(model[1])..].to_vec()
}

#[test]
fn added_tokens_and_flags_of_a_folder_count() {
    let config = json!({
        "legacy": false, "add_bos_token": true, "add_eos_token": true, "bos_token": "<s>", "eos_token": "<|im_end|>",
        "added_tokens_decoder": {
            "761": {"content": "<|im_start|>", "special": true, "rstrip": true},
            "762": {"content": "<|im_end|>", "special": true},
        },
    });
    let path = with_files(
        "bpe_bytes",
        &[("tokenizer_config.json", config.to_string().as_bytes())],
    );
    let folder = read(path.path()).unwrap();
    let tokenizer = folder.tokenizer();
    let plain = |text| tokenizer.encode(text, false, false).unwrap();
    let ids = |text| tokenizer.encode(text, true, true).unwrap();
    assert_eq!(tokenizer.token_text(762).unwrap(), "<|im_end|>");
    assert!(tokenizer.is_end_of_generation(762));
    // A space is put before the text, not after a special token, and this one swallows what follows.
    let bare = tokenizer.encode_continuation("the").unwrap();
    assert_ne!(bare, plain("the"));
    assert_eq!(
        ids("<|im_start|>  the"),
        [&[1, 761], &bare[..], &[762]].concat()
    );
    assert_eq!(ids("<|im_start|>")[..2], [1, 761]);
    assert_eq!(ids("the").last(), Some(&762));
    // Plain text holds no control token; a symbol of the model is one in every text.
    assert!(
        !plain("<|im_end|><s>")
            .iter()
            .any(|id| [1, 762].contains(id))
    );
    let symbol = tokenizer.id_of("<sep>").unwrap();
    assert!(plain("a<sep>b").contains(&symbol));
    let keys = folder.for_file().unwrap();
    assert_eq!(keys.metadata.str("tokenizer.ggml.model"), Some("llama"));
    assert_eq!(tokenizer.decode(&plain("the weights")), b"the weights");
}

#[test]
fn ranks_that_are_none_are_refused() {
    let of = |text: &str| refused("ranks", &[("small.tiktoken", text.as_bytes())]);
    let all: String = (0..=255u8)
        .map(|byte| {
            let digit = |n: u8| {
                char::from(
                    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
                        [usize::from(n)],
                )
            };
            format!("{}{}== {byte}\n", digit(byte >> 2), digit((byte & 3) << 4))
        })
        .collect();
    let runs: String = (1..900)
        .map(|n| {
            format!(
                "{} {}\n",
                "YWFh".repeat(n / 3) + ["", "YQ==", "YWE="][n % 3],
                1000 + n
            )
        })
        .skip(1)
        .collect();
    insta::assert_snapshot!(
        [
            of("!!! 1"),
            of("YQ== 1\nYQ== 2"),
            of("YQ== 1\nYg== 1"),
            of("YQ== 1"),
            of("YQ== 99999999999"),
            of(&format!("{} 1", "YWFh".repeat(400))),
            of(&(all.clone() + &runs)),
            of("version https://git-lfs.github.com/spec/v1\noid sha256:0"),
            refused(
                "ranks",
                &[("tokenizer_config.json", br#"{"tokenizer_class": "Nobody"}"#)]
            ),
            refused("ranks", &[("tokenizer_config.json", b"{}")]),
            refused("tekken", &[("tekken.json", b"{\"vocab\": 1}")]),
            refused("merges", &[("merges.txt", b"a b\nabc\n")]),
            refused("merges", &[("merges.txt", b"no such\n")]),
        ]
        .join("\n")
    );
}

#[test]
fn broken_models_are_refused_and_none_panics() {
    let model = std::fs::read(fixture("bpe_bytes").join("tokenizer.model")).unwrap();
    let of = |bytes: &[u8]| refused("bpe_bytes", &[("tokenizer.model", bytes)]);
    // Every piece starts with its tag and length.
    let doubled = [&model[..], &model[..9], &[]].concat();
    insta::assert_snapshot!(
        [
            of(&model[..model.len() - 1]),
            of(&model[..3]),
            of(b"\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
            of(b"\n\x02\n\x00"),
            of(b"\n\x05\n\x01a\x18\x09"),
            of(b"\n\x05\n\x01a\x18\x02\n\x05\n\x01b\x18\x02"),
            of(b"\n\x03\n\x01a\x12\x02\x18\x03"),
            of(b"\n\x05\n\x01a\x18\x02\x12\x03\x98\x02\x01"),
            of(b"\n\x05\n\x01a\x18\x02\x1a\x02\x28\x00"),
            of(b"\n\x05\n\x01a\x18\x06\n\x05\n\x01b\x18\x02"),
        ]
        .join("\n")
    );
    assert!(!of(&doubled).is_empty());
    let mut seed = 1u32;
    for _ in 0..300 {
        let mut bytes = model.clone();
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let at = seed as usize % bytes.len();
        bytes[at] ^= 1 << (seed >> 29);
        let path = folder(&[]);
        std::fs::write(path.path().join("tokenizer.model"), &bytes).unwrap();
        if let Ok(folder) = read(path.path()) {
            let _ids = folder
                .tokenizer()
                .encode("the weights  of <sep> é日", true, true);
        }
    }
}
