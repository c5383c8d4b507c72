//! Random answers under constraints: whatever a model prefers, the text fits.

use regex_automata::dfa::{Automaton, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::{Anchored, Input};
use serde_json::{Value, json};

use super::*;

/// A small generator, so that failures can be repeated.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % n
    }
}

/// An answer whose tokens are drawn evenly from what is allowed, and how many were forced. Of an
/// answer that may end, the end is drawn often, so that it comes.
fn answer(
    compiler: &Compiler,
    compiled: &CompiledConstraint,
    random: &mut Lcg,
) -> (Vec<u8>, usize) {
    let tokenizer = &compiler.tokenizer;
    let (mut matcher, mut text, mut n_forced) = (compiled.matcher(), Vec::new(), 0);
    for _ in 0..3000 {
        for id in matcher.forced().expect("a way on") {
            assert!(tokenizer.is_text(id));
            text.extend_from_slice(tokenizer.piece(id));
            n_forced += 1;
        }
        if matcher.is_stopped() {
            return (text, n_forced);
        }
        let mask = matcher.mask().expect("a way on");
        let allowed: Vec<u32> = (0..tokenizer.vocab_len() as u32)
            .filter(|id| allows(&mask, *id))
            .collect();
        let end = allowed
            .iter()
            .find(|id| tokenizer.is_end_of_generation(**id));
        let may_stop = matcher.may_stop().expect("alive");
        assert_eq!(
            end.is_some(),
            may_stop,
            "an end is allowed where it may come"
        );
        if end.is_some() && random.below(4) == 0 {
            return (text, n_forced);
        }
        // A quote ends most strings, and few other tokens do.
        let quotes: Vec<_> = allowed
            .iter()
            .filter(|id| matches!(tokenizer.piece(**id), b"\"" | b"}" | b"]"))
            .collect();
        let id = match quotes.as_slice() {
            [] => allowed[random.below(allowed.len())],
            _ if random.below(3) > 0 => allowed[random.below(allowed.len())],
            _ => *quotes[random.below(quotes.len())],
        };
        if tokenizer.is_end_of_generation(id) {
            return (text, n_forced);
        }
        matcher.accept(id).expect("the mask allows it");
        text.extend_from_slice(tokenizer.piece(id));
    }
    panic!("no end: {}", show(&text));
}

fn forcing() -> [(&'static str, Arc<Compiler>); 2] {
    [
        ("byte level", byte_level()),
        ("sentence pieces", sentence_piece()),
    ]
    .map(|(name, tokenizer)| (name, Arc::new(Compiler::new(tokenizer))))
}

/// What does not fit a schema, by the words of the specification (2020-12), for the keywords that
/// the tests use.
fn misfit(schema: &Value, value: &Value) -> Option<String> {
    let fault = |what: &str| Some(format!("{value} breaks {what} of {schema}"));
    let Some(fields) = schema.as_object() else {
        return if *schema == json!(false) {
            fault("false")
        } else {
            None
        };
    };
    let length = |n: Option<usize>| n.map(|n| n as f64);
    for (key, rule) in fields {
        let within = |found: Option<f64>| {
            let bound = rule.as_f64().expect("a number");
            found.is_none_or(|v| {
                if key.starts_with("min") {
                    v >= bound
                } else {
                    v <= bound
                }
            })
        };
        let fits = match key.as_str() {
            "type" => rule.as_array().map_or_else(
                || is_type(rule, value),
                |all| all.iter().any(|ty| is_type(ty, value)),
            ),
            "const" => value == rule,
            "enum" => rule.as_array().is_some_and(|all| all.contains(value)),
            "anyOf" => {
                let all = rule.as_array().expect("schemas");
                all.iter().any(|schema| misfit(schema, value).is_none())
            }
            "minimum" | "maximum" => within(value.as_f64()),
            "minLength" | "maxLength" => within(length(value.as_str().map(|v| v.chars().count()))),
            "minItems" | "maxItems" => within(length(value.as_array().map(Vec::len))),
            "items" => value
                .as_array()
                .is_none_or(|all| all.iter().all(|item| misfit(rule, item).is_none())),
            "required" => value.as_object().is_none_or(|object| {
                let mut names = rule.as_array().expect("names").iter();
                names.all(|name| object.contains_key(name.as_str().expect("a name")))
            }),
            "properties" => value.as_object().is_none_or(|object| {
                let mut rules = rule.as_object().expect("schemas").iter();
                rules.all(|(name, schema)| {
                    object.get(name).is_none_or(|v| misfit(schema, v).is_none())
                })
            }),
            "additionalProperties" => value.as_object().is_none_or(|object| {
                let known = fields.get("properties").and_then(Value::as_object);
                object.iter().all(|(name, v)| {
                    known.is_some_and(|known| known.contains_key(name)) || misfit(rule, v).is_none()
                })
            }),
            other => panic!("the test does not know `{other}`"),
        };
        if !fits {
            return fault(key);
        }
    }
    None
}

fn is_type(ty: &Value, value: &Value) -> bool {
    match ty.as_str().expect("a type") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|v| v.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("there is no type {other}"),
    }
}

#[test]
fn random_answers_fit_their_schema() {
    let schemas = [
        json!({ "type": "object", "properties": {
            "name": { "type": "string", "minLength": 2, "maxLength": 5 },
            "age": { "type": "integer", "minimum": -3, "maximum": 120 },
            "kind": { "enum": ["a", "abc", 12, null] },
        }, "required": ["name", "age", "kind"], "additionalProperties": false }),
        json!({ "type": "array", "minItems": 1, "maxItems": 3, "items": {
            "anyOf": [{ "const": true }, { "type": "number", "minimum": 0, "maximum": 2 }] } }),
        json!({ "type": "object", "properties": { "é \"日本": { "type": ["null", "boolean"] } },
            "additionalProperties": { "type": "integer", "minimum": 0, "maximum": 9 } }),
        json!({ "const": { "answer": [true, null, "ab"] } }),
    ];
    let mut random = Lcg(1);
    for (name, compiler) in forcing() {
        for schema in &schemas {
            let compiled = compiler.compile(Constraint::JsonSchema(schema.clone()));
            let compiled = compiled.unwrap_or_else(|error| panic!("{schema}: {error}"));
            for _ in 0..25 {
                let (text, _) = answer(&compiler, &compiled, &mut random);
                let value = serde_json::from_slice(&text)
                    .unwrap_or_else(|error| panic!("{name}: {error}: {}", show(&text)));
                assert_eq!(misfit(schema, &value), None, "{name}");
            }
        }
    }
}

#[test]
fn random_objects_and_recursive_values_are_json() {
    let tree = json!({ "$defs": { "node": { "anyOf": [
            { "type": "integer", "minimum": 0, "maximum": 9 },
            { "type": "array", "items": { "$ref": "#/$defs/node" }, "maxItems": 2 } ] } },
        "$ref": "#/$defs/node" });
    let mut random = Lcg(2);
    for (_, compiler) in forcing() {
        for constraint in [
            Constraint::json_object(),
            Constraint::JsonSchema(tree.clone()),
        ] {
            let compiled = compiler.compile(constraint.clone()).expect("a constraint");
            for _ in 0..10 {
                let (text, _) = answer(&compiler, &compiled, &mut random);
                // Read without its numbers' values: JSON has no largest number.
                serde_json::from_slice::<serde::de::IgnoredAny>(&text)
                    .unwrap_or_else(|error| panic!("{error}: {}", show(&text)));
                if constraint == Constraint::json_object() {
                    assert!(text.starts_with(b"{"), "{}", show(&text));
                }
            }
        }
    }
}

/// Whether bytes begin a text that the expression matches as a whole, and whether they are one: a
/// minimal automaton has no state without a way to a match but the dead one.
fn judge_regex(dfa: &dense::DFA<Vec<u32>>, bytes: &[u8]) -> (bool, bool) {
    let input = Input::new(bytes).anchored(Anchored::Yes);
    let mut state: StateID = dfa.start_state_forward(&input).expect("a start");
    for byte in bytes {
        state = dfa.next_state(state, *byte);
    }
    let is_whole = dfa.is_match_state(dfa.next_eoi_state(state));
    (is_whole || !dfa.is_dead_state(state), is_whole)
}

#[test]
fn masks_of_regular_expressions_are_exact() {
    for text in [
        "(ab|a)*c",
        "[0-9]{1,3}(,[0-9]{3})*",
        "a?b+c{2,4}|true|null",
        "é+[a-c日本]*",
        "[^\"\\\\]{0,3}\"",
        "(?i)trUe/\\.",
        "(a|ab)(c|bcd)(d*)",
    ] {
        let dfa = dense::Builder::new()
            .configure(dense::Config::new().minimize(true).accelerate(false))
            .syntax(regex_automata::util::syntax::Config::new())
            .build(&format!("(?:{text})\\z"))
            .expect("an expression");
        for (name, compiler) in VOCABULARIES.iter() {
            for text in [text.to_owned(), format!("^{text}$")] {
                if text.starts_with('^') && text.contains('|') {
                    continue;
                }
                let compiled = compiler.compile(Constraint::Regex(text.clone()));
                let compiled = compiled.unwrap_or_else(|error| panic!("{name}: {error}"));
                compare(compiler, &compiled, &|bytes| judge_regex(&dfa, bytes), 80);
            }
        }
    }
}

#[test]
fn an_empty_expression_allows_the_empty_answer_only() {
    for (_, compiler) in forcing() {
        for text in ["", "^$"] {
            let compiled = compiler
                .compile(Constraint::Regex(text.into()))
                .expect("valid");
            let (text, n_forced) = answer(&compiler, &compiled, &mut Lcg(3));
            assert_eq!((text.as_slice(), n_forced), (&b""[..], 0));
        }
    }
}

#[test]
fn what_must_come_is_forced_and_spelled_as_the_tokenizer_spells_it() {
    let schema = json!({ "type": "object", "properties": { "a": { "const": true } },
        "required": ["a"], "additionalProperties": false, "x-guidance": { "whitespace_flexible": false } });
    for (name, compiler) in forcing() {
        let compiled = compiler
            .compile(Constraint::JsonSchema(schema.clone()))
            .expect("valid");
        let mut matcher = compiled.matcher();
        let forced = matcher.forced().expect("a way on");
        let spelled = compiler
            .tokenizer
            .encode_continuation("{\"a\":true}")
            .expect("tokens");
        assert_eq!(forced, spelled, "{name}");
        assert!(matcher.is_stopped());
        assert!(matcher.forced().expect("complete").is_empty());
        assert_eq!(matcher.mask(), Ok(Vec::new()));
    }
}

#[test]
fn control_tokens_are_never_text_and_come_by_name_only() {
    for (_, compiler) in forcing() {
        let tokenizer = &compiler.tokenizer;
        let controls: Vec<u32> = (0..tokenizer.vocab_len() as u32)
            .filter(|id| !tokenizer.is_text(*id))
            .collect();
        assert!(controls.len() >= 2);
        for constraint in [Constraint::Regex("[^x]*".into()), Constraint::json_object()] {
            let mut matcher = compiler.compile(constraint).expect("valid").matcher();
            for _ in 0..3 {
                let mask = matcher.mask().expect("a way on");
                for id in controls
                    .iter()
                    .filter(|id| !tokenizer.is_end_of_generation(**id))
                {
                    assert!(!allows(&mask, *id));
                }
                let quote = tokenizer.encode_continuation("{").expect("a token")[0];
                if matcher.accept(quote).is_err() {
                    break;
                }
            }
        }
    }
    let compiler = Arc::new(Compiler::new(byte_level()));
    let tool = compiler.tokenizer.id_of("<|tool|>").expect("a token");
    let lark = "start: \"a\" <|tool|> \"b\"";
    let compiled = compiler
        .compile(Constraint::Lark(lark.into()))
        .expect("valid");
    let mut matcher = compiled.matcher();
    let spell = |text| {
        compiler
            .tokenizer
            .encode_continuation(text)
            .expect("tokens")
    };
    let expected = [spell("a"), vec![tool], spell("b")].concat();
    assert_eq!(matcher.forced().expect("a way on"), expected);
}
