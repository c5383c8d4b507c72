//! Masks against brute force over several vocabularies, random answers, calls of tools, and hostile constraints.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod calls;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod schemas;
#[cfg(test)]
mod strings;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::gbnf::NaiveMatcher;
use super::*;
use crate::tokenizer::Tokenizer;
use crate::weights::{Array, Metadata, Value as Meta};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const BYTE: i32 = 6;

fn tokenizer(model: &str, tokens: Vec<(String, i32)>, more: Vec<(&str, Meta)>) -> Arc<Tokenizer> {
    let scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
    let (texts, kinds): (Vec<String>, Vec<i32>) = tokens.into_iter().unzip();
    let mut metadata: Metadata = [
        ("tokenizer.ggml.model", Meta::Str(model.to_owned())),
        (
            "tokenizer.ggml.tokens",
            Meta::Array(Array::Str(texts.iter().collect())),
        ),
        ("tokenizer.ggml.token_type", Meta::Array(Array::I32(kinds))),
        ("tokenizer.ggml.scores", Meta::Array(Array::F32(scores))),
    ]
    .into_iter()
    .collect();
    for (key, value) in more {
        metadata.insert(key, value);
    }
    Arc::new(Tokenizer::from_metadata(&metadata).expect("a vocabulary"))
}

/// All bytes in the byte-level alphabet, the results of merges, two control tokens.
fn byte_level() -> Arc<Tokenizer> {
    byte_level_with::<&str>(&[])
}

/// The same with further control tokens.
fn byte_level_with<T: AsRef<str>>(controls: &[T]) -> Arc<Tokenizer> {
    let is_plain = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut shifted = 0x100..;
    let mut tokens: Vec<_> = (0..=255u8)
        .map(|b| {
            let code = if is_plain(b) {
                b.into()
            } else {
                shifted.next().expect("endless")
            };
            (char::from_u32(code).expect("a letter").to_string(), NORMAL)
        })
        .collect();
    let merges = [
        "a b", "b c", "a a", "ab c", "Ġ a", "t r", "u e", "tr ue", "n u", "l l", "nu ll", "\" :",
        "{ \"", "} }", "1 2", "Ã ©",
    ];
    tokens.extend(merges.iter().map(|m| (m.replace(' ', ""), NORMAL)));
    tokens.push(("<|end|>".into(), CONTROL));
    tokens.push(("<|tool|>".into(), CONTROL));
    tokens.push(("<user>".into(), USER));
    tokens.extend(controls.iter().map(|text| (text.as_ref().into(), CONTROL)));
    let merges = Meta::Array(Array::Str(merges.iter().collect()));
    tokenizer(
        "gpt2",
        tokens,
        vec![
            ("tokenizer.ggml.pre", Meta::Str("gpt-2".into())),
            ("tokenizer.ggml.merges", merges),
        ],
    )
}

/// Byte tokens, pieces with spaces before them, one text twice.
fn sentence_piece() -> Arc<Tokenizer> {
    let mut tokens = vec![
        ("<unk>".to_owned(), UNKNOWN),
        ("<s>".to_owned(), CONTROL),
        ("</s>".to_owned(), CONTROL),
    ];
    tokens.extend((0..=255).map(|b| (format!("<0x{b:02X}>"), BYTE)));
    let pieces = [
        "▁a", "ab", "abc", "▁", "a", "b", "c", "▁▁", "{\"", "\":", "▁\"", "true", "é", "日本", "a",
        "12", "1", "2", "}", ",▁",
    ];
    tokens.extend(pieces.iter().map(|piece| ((*piece).to_owned(), NORMAL)));
    tokens.push(("<tool>".to_owned(), USER));
    tokenizer("llama", tokens, Vec::new())
}

static VOCABULARIES: LazyLock<[(&str, Arc<Compiler>); 2]> = LazyLock::new(|| {
    [
        ("byte level", byte_level()),
        ("sentence pieces", sentence_piece()),
    ]
    .map(|(name, tokenizer)| (name, Arc::new(Compiler::without_forcing(tokenizer))))
});

fn allows(mask: &[u32], id: u32) -> bool {
    mask.get(id as usize / 32)
        .is_some_and(|word| word >> (id % 32) & 1 == 1)
}

/// Walks `n_steps` beginnings of answers, the short ones first, and compares each mask with what
/// `judge` says of a text: whether it begins one that fits, and whether it is one.
fn compare(
    compiler: &Compiler,
    compiled: &CompiledConstraint,
    judge: &dyn Fn(&[u8]) -> (bool, bool),
    n_steps: usize,
) {
    let tokenizer = &compiler.tokenizer;
    let mut open = vec![(compiled.matcher(), Vec::new())];
    let mut seen = HashSet::new();
    let mut n_done = 0;
    while let Some((mut matcher, text)) = open.pop() {
        if n_done == n_steps {
            break;
        }
        n_done += 1;
        let mask = matcher.mask().expect("a way on");
        let mut ways = Vec::new();
        let (_, is_whole) = judge(&text);
        assert_eq!(
            matcher.may_stop().expect("alive"),
            is_whole,
            "{:?}",
            show(&text)
        );
        for id in 0..tokenizer.vocab_len() as u32 {
            let mut longer = text.clone();
            longer.extend_from_slice(tokenizer.piece(id));
            let expected = match () {
                () if tokenizer.is_end_of_generation(id) => is_whole && !matcher.is_stopped(),
                () if !tokenizer.is_text(id) => false,
                () => judge(&longer).0,
            };
            let found = allows(&mask, id);
            assert_eq!(
                found,
                expected,
                "{:?} then {:?}",
                show(&text),
                show(tokenizer.piece(id))
            );
            if found && !tokenizer.is_end_of_generation(id) && !seen.contains(&longer) {
                ways.push((id, longer));
            } else if !found && n_done % 16 == 1 && id % 7 == 0 {
                let refused = matcher.clone().accept(id);
                refused.expect_err("the mask does not allow it");
            }
        }
        // Some of the ways, spread over the vocabulary, and others in each step.
        let stride = ways.len().div_ceil(6).max(1);
        for (id, longer) in ways.into_iter().skip(n_done % stride).step_by(stride) {
            let mut next = matcher.clone();
            next.accept(id).expect("the mask allows it");
            seen.insert(longer.clone());
            open.insert(0, (next, longer));
        }
    }
}

fn show(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// What `naive` says of bytes that may end inside a character.
fn judge_bytes(naive: &dyn Fn(&str) -> (bool, bool), bytes: &[u8]) -> (bool, bool) {
    match std::str::from_utf8(bytes) {
        Ok(text) => naive(text),
        Err(error) if error.error_len().is_none() => {
            // Some character that begins so must fit: the first and the last one, and those that
            // the tests use.
            let (whole, rest) = bytes.split_at(error.valid_up_to());
            let whole = std::str::from_utf8(whole).expect("valid");
            let fits = |c| naive(&format!("{whole}{c}")).0;
            let used = ['é', 'è', 'ж', '日', '本', '月', '😀'];
            let used = used
                .into_iter()
                .filter(|c| c.to_string().as_bytes().starts_with(rest));
            (ends(rest).into_iter().chain(used).any(fits), false)
        }
        Err(_) => (false, false),
    }
}

/// The first and the last character whose UTF-8 begins so.
fn ends(beginning: &[u8]) -> Vec<char> {
    // The second byte has other bounds where shorter forms or surrogates would begin.
    let candidates = [0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf]
        .map(|next| [0x80, 0xbf].map(|fill| [beginning, &[next, fill, fill]].concat()));
    let first_char = |bytes: &Vec<u8>| {
        let chunk = bytes.utf8_chunks().next()?.valid();
        chunk.chars().next()
    };
    let all = || candidates.as_flattened().iter().filter_map(first_char);
    all().min().into_iter().chain(all().max()).collect()
}

fn check_gbnf(text: &str, n_steps: usize) {
    let rules = super::gbnf::parse(text).expect("a grammar");
    // Tokens of both vocabularies often make the same texts.
    let known = RefCell::new(HashMap::new());
    let naive = |text: &str| {
        let mut known = known.borrow_mut();
        *known.entry(text.to_owned()).or_insert_with(|| {
            let naive = NaiveMatcher::new(&rules, text);
            (naive.is_beginning(), naive.is_whole())
        })
    };
    for (name, compiler) in VOCABULARIES.iter() {
        let compiled = compiler.compile(Constraint::Gbnf(text.to_owned()));
        let compiled = compiled.unwrap_or_else(|error| panic!("{name}: {error}: {text}"));
        compare(
            compiler,
            &compiled,
            &|bytes| judge_bytes(&naive, bytes),
            n_steps,
        );
    }
}

#[test]
fn masks_of_grammars_are_exact() {
    for text in [
        "root ::= \"a\"* \"b\"",
        // A lexeme that would swallow what follows.
        "root ::= \"(\" root \")\" | [a-c]+ tail\ntail ::= \"c\" root?",
        "root ::= \"ab\" root | \"a\" \"bc\" root | \"c\"",
        "root ::= (\"a\" root \"b\")?",
        // Left recursion.
        "root ::= root \"+\" term | term\nterm ::= [ab]+ | \"(\" root \")\"",
        // Nothing, and nothing in many ways.
        "root ::= (\"a\"? | \"b\"*)* \"c\"? inner\ninner ::= \"(\" inner \")\" |",
        "root ::= \"é\"+ root? | [è日] \"本\" | \"a\"",
        // Rules that never come to an end are not way on.
        "root ::= (y | \"a\") z* z? \"b\"\ny ::= \"a\" y\nz ::= [bc] y",
        "root ::= [^a-z\\x00-\\x20]{2} | \"a\"{2,3} root",
        "root ::= ws \"{\" ws (pair (\",\" ws pair)*)? \"}\" ws\npair ::= str \":\" ws root\nstr ::= \"\\\"\" [a-c]* \"\\\"\" ws\nws ::= [ \\n]{0,2}",
    ] {
        check_gbnf(text, 14);
    }
}

/// An expression over a few characters and three rules.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => "[abc]{1,3}".prop_map(|text| format!("\"{text}\"")),
        2 => prop::sample::select(vec!["[ab]", "[^a]", "[a-c]", "\"\""]).prop_map(str::to_owned),
        2 => prop::sample::select(vec!["root", "x", "y"]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|all| all.join(" ")),
            prop::collection::vec(inner.clone(), 2..4)
                .prop_map(|all| format!("({})", all.join(" | "))),
            (
                inner,
                prop::sample::select(vec!["*", "+", "?", "{2}", "{1,2}"])
            )
                .prop_map(|(inner, op)| format!("({inner}){op}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn masks_of_random_grammars_are_exact(
        root in expression(), x in expression(), y in expression(),
    ) {
        let text = format!("root ::= {root}\nx ::= {x}\ny ::= {y}\n");
        let rules = super::gbnf::parse(&text).expect("a grammar");
        if !NaiveMatcher::new(&rules, "").is_beginning() {
            return Ok(());
        }
        check_gbnf(&text, 12);
    }
}
