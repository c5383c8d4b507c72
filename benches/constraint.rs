//! What constraints cost over a vocabulary of 150 000 tokens made here: making one ready, and the
//! mask for each token of a random answer. Percentiles, because the mean hides the slow masks.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use lab_base::grammar::{Compiler, Constraint};
use lab_base::tokenizer::Tokenizer;
use lab_base::weights::{Array, Metadata, StringArray, Value};
use serde_json::json;

/// Byte tokens and 150 000 words, half of them with a space before them; about as many bytes for
/// a token, and as many shared prefixes, as in vocabularies of models.
fn tokenizer() -> Tokenizer {
    const SYLLABLES: [&str; 24] = [
        "ba", "co", "den", "e", "fi", "gan", "hor", "in", "ka", "lo", "mer", "na", "or", "pe",
        "ra", "sti", "ta", "un", "ver", "zi", "日", "本", "é", "ж",
    ];
    const MARKS: [&str; 12] = [
        "{\"", "\":", "\",", "\":\"", "},", "}\n", "[]", "()", ";\n", "  ", "\n\n", "==",
    ];
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    tokens.extend((0..=255).map(|b| format!("<0x{b:02X}>")));
    tokens.extend(MARKS.map(str::to_owned));
    tokens.extend((0..1000).map(|n| n.to_string()));
    for n in 0u32.. {
        if tokens.len() >= 151_936 {
            break;
        }
        let mut rest = n / 2;
        let mut word = String::from(if n % 2 == 0 { "▁" } else { "" });
        while {
            word.push_str(SYLLABLES[(rest % 24) as usize]);
            rest /= 24;
            rest > 0
        } {}
        tokens.push(word);
    }
    let kinds = (0..tokens.len()).map(|i| match i {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        _ => 1,
    });
    let metadata: Metadata = [
        ("tokenizer.ggml.model", Value::Str("llama".into())),
        (
            "tokenizer.ggml.token_type",
            Value::Array(Array::I32(kinds.collect())),
        ),
        (
            "tokenizer.ggml.tokens",
            Value::Array(Array::Str(tokens.iter().collect::<StringArray>())),
        ),
    ]
    .into_iter()
    .collect();
    Tokenizer::from_metadata(&metadata).expect("a vocabulary")
}

const JSON_GBNF: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"#;

fn constraints() -> Vec<(&'static str, Constraint)> {
    let person = json!({ "type": "object", "properties": {
        "name": { "type": "string", "maxLength": 40 },
        "age": { "type": "integer", "minimum": 0, "maximum": 150 },
        "tags": { "type": "array", "items": { "enum": ["red", "green", "blue"] } },
        "text": { "type": "string" },
    }, "required": ["name", "age", "tags", "text"], "additionalProperties": false });
    let arithmetic = "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n\
        term ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\n\
        num ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n";
    vec![
        ("schema of a person", Constraint::JsonSchema(person)),
        ("any JSON object", Constraint::json_object()),
        (
            "regex of a date",
            Constraint::Regex("[0-9]{4}-[0-9]{2}-[0-9]{2}".into()),
        ),
        ("regex of words", Constraint::Regex("([a-z]+[ ,.])+".into())),
        ("GBNF of JSON", Constraint::Gbnf(JSON_GBNF.into())),
        ("GBNF of arithmetic", Constraint::Gbnf(arithmetic.into())),
    ]
}

fn row(name: &str, what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_micros();
    println!(
        "{name:20} {what:8} n {:5}  p50 {:7} us  p99 {:7} us  most {:7} us",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn main() {
    let tokenizer = Arc::new(tokenizer());
    let compiler = Arc::new(Compiler::new(Arc::clone(&tokenizer)));
    let start = Instant::now();
    compiler
        .compile(Constraint::Regex("a".into()))
        .expect("valid");
    println!(
        "{} tokens, the tree and its slices: {} ms",
        tokenizer.vocab_len(),
        start.elapsed().as_millis()
    );
    let mut seed = 1u64;
    for (name, constraint) in constraints() {
        let (mut ready, mut begun, mut masks, mut steps) = (vec![], vec![], vec![], vec![]);
        for _ in 0..10 {
            let start = Instant::now();
            let compiled = compiler.compile(constraint.clone()).expect("valid");
            ready.push(start.elapsed());
            let start = Instant::now();
            let mut matcher = compiled.matcher();
            begun.push(start.elapsed());
            for _ in 0..100 {
                let start = Instant::now();
                matcher.forced().expect("a way on");
                steps.push(start.elapsed());
                if matcher.is_stopped() {
                    break;
                }
                let start = Instant::now();
                let mask = matcher.mask().expect("a way on");
                masks.push(start.elapsed());
                let allowed: Vec<u32> = (0..tokenizer.vocab_len() as u32)
                    .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
                    .collect();
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let id = allowed[(seed >> 33) as usize % allowed.len()];
                if tokenizer.is_end_of_generation(id) {
                    break;
                }
                let start = Instant::now();
                matcher.accept(id).expect("allowed");
                steps.push(start.elapsed());
            }
        }
        row(name, "ready", &mut ready);
        row(name, "begin", &mut begun);
        row(name, "mask", &mut masks);
        row(name, "move on", &mut steps);
    }
}
