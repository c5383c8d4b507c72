//! Tokenizers over small vocabularies made by hand, and over metadata nobody should write.

#![expect(clippy::unwrap_used, reason = "a failure is a failed test")]

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::weights::{Array, Metadata, Value};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const BYTE: i32 = 6;

fn strings<T: AsRef<[u8]>>(items: &[T]) -> Value {
    Value::Array(Array::Str(items.iter().collect()))
}

/// A vocabulary of texts, kinds and scores.
pub(super) fn metadata<T: AsRef<str>>(model: &str, tokens: &[(T, i32, f32)]) -> Metadata {
    let texts: Vec<&str> = tokens.iter().map(|(text, ..)| text.as_ref()).collect();
    let types = tokens.iter().map(|&(_, kind, _)| kind).collect();
    let scores = tokens.iter().map(|&(.., score)| score).collect();
    [
        ("tokenizer.ggml.model", Value::Str(model.to_owned())),
        ("tokenizer.ggml.tokens", strings(&texts)),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(types))),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))),
    ]
    .into_iter()
    .collect()
}

/// `<unk> <s> </s>`, all bytes, then pieces with falling scores.
fn spm_metadata(pieces: &[&str]) -> Metadata {
    let mut tokens = vec![
        ("<unk>".to_owned(), UNKNOWN, 0.0),
        ("<s>".to_owned(), CONTROL, 0.0),
        ("</s>".to_owned(), CONTROL, 0.0),
    ];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), BYTE, 0.0)));
    tokens.push(("<tool>".to_owned(), USER, 0.0));
    let pieces = pieces.iter().zip(1u8..);
    tokens.extend(pieces.map(|(piece, rank)| ((*piece).to_owned(), NORMAL, -f32::from(rank))));
    metadata("llama", &tokens)
}

fn spm(pieces: &[&str]) -> Tokenizer {
    Tokenizer::from_metadata(&spm_metadata(pieces)).unwrap()
}

fn letter(byte: u8) -> char {
    let is_byte = |&c: &char| byte_level::byte_of(c) == Some(byte);
    ('\0'..='\u{200}').find(is_byte).unwrap()
}

/// All bytes, `<|end|>` (control), `<user>` (user-defined), then the results of the merges.
fn bpe_metadata(pre: &str, merges: &[&str]) -> Metadata {
    let mut tokens: Vec<_> = (0..=255)
        .map(|byte| (letter(byte).to_string(), NORMAL, 0.0))
        .collect();
    tokens.push(("<|end|>".to_owned(), CONTROL, 0.0));
    tokens.push(("<user>".to_owned(), USER, 0.0));
    tokens.extend(merges.iter().map(|m| (m.replace(' ', ""), NORMAL, 0.0)));
    let mut metadata = metadata("gpt2", &tokens);
    metadata.insert("tokenizer.ggml.pre", Value::Str(pre.to_owned()));
    metadata.insert("tokenizer.ggml.merges", strings(merges));
    metadata
}

fn bpe(pre: &str, merges: &[&str]) -> Tokenizer {
    Tokenizer::from_metadata(&bpe_metadata(pre, merges)).unwrap()
}

fn texts(tokenizer: &Tokenizer, text: &str, parse_special: bool) -> Vec<String> {
    let ids = tokenizer.encode(text, false, parse_special).unwrap();
    let text = |id| tokenizer.token_text(id).unwrap().into_owned();
    ids.into_iter().map(text).collect()
}

#[test]
fn texts_become_tokens() {
    let pieces = spm(&["he", "▁he", "ll", "l", "o", "h", "e", "▁"]);
    let spaces = bpe("gpt-2", &["Ġ Ġ", "Ġ b"]);
    let merges = ["b c", "a b", "ab c"];
    let longer = [("x[a", USER, 0.0), ("[abc]", USER, 0.0), ("x", NORMAL, 0.0)];
    let mut longer = metadata("llama", &longer);
    longer.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let mut stripping = spm_metadata(&["a", "▁"]);
    stripping.insert("general.name", Value::Str("Phi-3 mini".to_owned()));
    let [longer, stripping] = [longer, stripping].map(|m| Tokenizer::from_metadata(&m).unwrap());
    let cases: &[(&str, &Tokenizer, &str, &[&str])] = &[
        ("by score", &pieces, "hello", &["▁he", "ll", "o"]),
        ("bytes", &pieces, "é", &["▁", "<0xC3>", "<0xA9>"]),
        (
            "equal scores from the left",
            &spm(&["aa", "a", "▁"]),
            "aaaaa",
            &["▁", "aa", "aa", "a"],
        ),
        (
            "by rank",
            &bpe("gpt-2", &["b c", "a b", "a bc", "Ġ a"]),
            "abc ab",
            &["abc", "Ġ", "ab"],
        ),
        (
            "the last space is the word's",
            &spaces,
            "a  b",
            &["a", "Ġ", "Ġb"],
        ),
        ("the last of three", &spaces, "a   b", &["a", "ĠĠ", "Ġb"]),
        ("no word after spaces", &spaces, "a  ", &["a", "ĠĠ"]),
        (
            "merges of a word",
            &bpe("gpt-2", &merges),
            "abc",
            &["a", "bc"],
        ),
        ("a whole word", &bpe("llama-bpe", &merges), "abc", &["abc"]),
        (
            "longer special tokens first, wherever they stand",
            &longer,
            "x[abc]",
            &["x", "[abc]"],
        ),
        (
            "no white space taken",
            &spm(&["a", "▁"]),
            "<tool> a",
            &["<tool>", "▁", "▁", "a"],
        ),
        (
            "white space taken",
            &stripping,
            "<tool> \n a",
            &["<tool>", "▁", "a"],
        ),
        (
            "none by the start",
            &stripping,
            "<s> a",
            &["<s>", "▁", "▁", "a"],
        ),
    ];
    for (name, tokenizer, text, expected) in cases {
        assert_eq!(texts(tokenizer, text, true), *expected, "{name}");
    }
    assert_eq!(pieces.piece(pieces.id_of("<0xC3>").unwrap()), [0xc3]);
    assert_eq!(pieces.piece(pieces.id_of("▁he").unwrap()), b" he");
}

#[test]
fn a_space_prefix_is_added_to_a_text_and_removed_from_the_first_decoded_one() {
    let tokenizer = spm(&["a", "b", "▁"]);
    let ids = tokenizer.encode("a<s>b", true, true).unwrap();
    let spelled: Vec<_> = ids
        .iter()
        .map(|&id| tokenizer.token_text(id).unwrap())
        .collect();
    assert_eq!(spelled, ["<s>", "▁", "a", "<s>", "▁", "b"]);
    assert_eq!(tokenizer.decode(&ids), b"<s> a<s> b");
    assert_eq!(tokenizer.decode(&ids[1..]), b"a<s> b");
    assert_eq!(tokenizer.encode("", true, true).unwrap(), [1]);
}

#[test]
fn the_file_may_do_without_space_prefix_and_bos() {
    let mut metadata = spm_metadata(&["a"]);
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    metadata.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    metadata.insert("tokenizer.ggml.add_eos_token", Value::Bool(true));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let a = tokenizer.id_of("a").unwrap();
    assert_eq!(tokenizer.encode("a", true, true).unwrap(), [a, 2]);
    assert_eq!(tokenizer.encode("a", false, true).unwrap(), [a]);
    assert!(!tokenizer.adds_bos() && tokenizer.adds_eos());
}

#[test]
fn control_tokens_are_parsed_on_request_and_user_defined_ones_always() {
    let tokenizer = bpe("gpt-2", &[]);
    let (end, user) = (256, 257);
    let text = "<|end|><user>";
    assert_eq!(tokenizer.encode(text, false, true).unwrap(), [end, user]);
    let ids = tokenizer.encode(text, false, false).unwrap();
    assert_eq!(ids.len(), "<|end|>".len() + 1);
    assert_eq!(ids.last(), Some(&user));
    assert_eq!(tokenizer.decode(&ids), text.as_bytes());
    assert!(tokenizer.is_control(end) && !tokenizer.is_control(user));
    assert!(tokenizer.is_end_of_generation(end));
    assert_eq!(tokenizer.eot(), Some(end));
}

#[test]
fn tokens_known_by_their_text_end_a_generation() {
    let kinds = |texts: &[&str]| {
        let tokens: Vec<_> = texts.iter().map(|text| (*text, NORMAL, 0.0)).collect();
        let tokenizer = Tokenizer::from_metadata(&metadata("llama", &tokens)).unwrap();
        (0..texts.len() as u32)
            .map(|id| (tokenizer.is_end_of_generation(id), tokenizer.is_control(id)))
            .collect::<Vec<_>>()
    };
    let (end, plain) = ((true, true), (false, false));
    assert_eq!(kinds(&["a", "b", "c", "<|end|>"])[3], end);
    let harmony = kinds(&["a", "b", "c", "<|end|>", "<|return|>", "<|call|>"]);
    assert_eq!(harmony[3..], [plain, end, end]);
}

#[test]
fn models_without_a_tokenizer_say_so() {
    for model in ["none", "no_vocab", "test"] {
        let metadata = [("tokenizer.ggml.model", Value::Str(model.to_owned()))];
        let tokenizer = Tokenizer::from_metadata(&metadata.into_iter().collect()).unwrap();
        for text in ["", "a"] {
            let error = tokenizer.encode(text, true, true).unwrap_err();
            assert!(matches!(error, Error::NoTokenizer(name) if name == model));
        }
        assert_eq!(tokenizer.decode(&[0, 7]), b"");
    }
    let metadata = metadata("none", &[("one", NORMAL, 0.0)]);
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.decode(&[0]), b"one");
}

#[test]
fn metadata_that_cannot_be_used_is_refused() {
    let refused = |change: &dyn Fn(&mut Metadata)| {
        let mut metadata = bpe_metadata("gpt-2", &["a b"]);
        change(&mut metadata);
        Tokenizer::from_metadata(&metadata).unwrap_err().to_string()
    };
    let text = |text: &str| Value::Str(text.to_owned());
    insta::assert_snapshot!(
        [
            refused(&|m| *m = Metadata::default()),
            refused(&|m| m.insert("tokenizer.ggml.model", text("another"))),
            refused(&|m| m.insert("tokenizer.ggml.pre", text("nobody"))),
            refused(&|m| m.insert("tokenizer.ggml.pre", Value::U8(1))),
            refused(&|m| m.insert("tokenizer.ggml.tokens", Value::U8(1))),
            refused(&|m| m.insert("tokenizer.ggml.tokens", strings::<&str>(&[]))),
            refused(&|m| m.insert("tokenizer.ggml.merges", text("a b"))),
            refused(&|m| m.insert("tokenizer.ggml.scores", strings(&["1"]))),
            refused(&|m| {
                m.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1])));
            }),
            refused(&|m| {
                let entries = m.iter().filter(|(key, _)| !key.ends_with("merges"));
                *m = entries.map(|(key, v)| (key, v.clone())).collect();
            }),
        ]
        .join("\n"),
        @r"
    missing key `tokenizer.ggml.model`
    tokenizer model `another` is not supported
    unknown pre-tokenizer `nobody` (`tokenizer.ggml.pre`)
    `tokenizer.ggml.pre` is of type u8, expected a string
    `tokenizer.ggml.tokens` is of type u8, expected an array of strings
    `tokenizer.ggml.tokens` is empty
    `tokenizer.ggml.merges` is of type string, expected an array of strings
    `tokenizer.ggml.scores` is of type array, expected an array of numbers
    `tokenizer.ggml.token_type` has 1 entries, expected 259, one per token
    missing key `tokenizer.ggml.merges`
    "
    );
}

#[test]
fn odd_metadata_is_harmless() {
    let long = "x".repeat(70_000);
    let mut metadata = bpe_metadata(
        "gpt-2",
        &["a b", "a b", "zz yy", "nospace", "a ", " a", &long],
    );
    for key in ["bos", "eos", "padding", "eot", "fim_pre"] {
        let key = format!("tokenizer.ggml.{key}_token_id");
        metadata.insert(key, Value::I64(-1));
    }
    metadata.insert("tokenizer.ggml.unknown_token_id", Value::U32(u32::MAX));
    metadata.insert("tokenizer.ggml.add_bos_token", Value::Bool(true));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.unk()), (None, None));
    assert_eq!(texts(&tokenizer, "ab", true), ["ab"]);
    assert_eq!(tokenizer.encode("", true, true).unwrap(), [0; 0]);
    assert_eq!(tokenizer.piece(u32::MAX), b"");
    assert_eq!(tokenizer.decode(&[u32::MAX]), b"");
    assert_eq!(tokenizer.token_text(u32::MAX), None);
}

#[test]
fn odd_tokens_are_harmless() {
    let tokens = [
        ("<0x-1>", BYTE),
        ("", NORMAL),
        ("", CONTROL),
        ("same", NORMAL),
        ("same", NORMAL),
        ("<0x41", BYTE),
        ("nobody's kind", 99),
    ];
    let tokens = tokens.map(|(text, kind)| (text, kind, f32::NAN));
    let tokenizer = Tokenizer::from_metadata(&metadata("llama", &tokens)).unwrap();
    assert_eq!(tokenizer.piece(0), b"<0x-1>");
    assert_eq!(tokenizer.piece(1), b"[EMPTY_1]");
    assert_eq!(tokenizer.piece(6), b"");
    assert_eq!(tokenizer.id_of("same"), Some(4));
    // Token 0 is the unknown token where the file names none.
    assert_eq!(tokenizer.encode("?", false, true).unwrap(), [0]);
}

#[test]
fn tokens_that_are_not_text_are_kept_as_bytes() {
    let mut metadata = spm_metadata(&[]);
    metadata.insert(
        "tokenizer.ggml.tokens",
        strings(&[&b"\xff\xfe"[..], b"a", b"\xe2\x96"]),
    );
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.decode(&[0, 2]), b"\xff\xfe\xe2\x96");
}

#[test]
fn long_runs_of_one_character_take_no_quadratic_time() {
    let merges = ["a a", "aa aa", "aaaa aaaa", "Ġ Ġ", "1 1"];
    let bpe = bpe("llama-bpe", &merges);
    let spm = spm(&["aa", "aaaa", "a", "▁▁", "▁", "1"]);
    for c in ["a", " ", "1", "\n", "é"] {
        let text = c.repeat(200_000);
        for tokenizer in [&bpe, &spm] {
            let ids = tokenizer.encode(&text, false, true).unwrap();
            let decoded = tokenizer.decode(&ids);
            assert!(decoded == text.as_bytes(), "{c:?}");
        }
    }
}

static ROUND_TRIP: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let names = [
        "gpt-2",
        "llama-bpe",
        "qwen2",
        "deepseek-llm",
        "tekken",
        "jais-2",
    ];
    let merges = ["a b", "b c", "ab c", "Ġ a", "Ġ Ġ"];
    names.iter().map(|pre| bpe(pre, &merges)).collect()
});

proptest! {
    #[test]
    fn byte_level_texts_survive_the_round_trip(
        text in r"([a-c ]|\PC|[ \t\r\n]|<user>|<\|end\|>){0,40}",
        parse_special: bool,
    ) {
        for tokenizer in ROUND_TRIP.iter() {
            let ids = tokenizer.encode(&text, false, parse_special).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids), text.as_bytes());
        }
    }
}
