//! Constraints nobody should send: an error in good time, or something that works; never the end
//! of the program.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::super::compiler::CompilePermit;
use super::super::deadline::Deadline;
use super::super::error::first_part;
use super::super::limits::{MAX_OVERDUE, TIME_LIMIT};
use super::*;
use crate::util::test_rows::rows;

/// A compiler that no other test waits for: a constraint that is given up still has its place.
fn compiler() -> Arc<Compiler> {
    Arc::new(Compiler::without_forcing(byte_level()))
}

fn refused(constraint: Constraint, parts: &[&str]) {
    static COMPILER: LazyLock<Arc<Compiler>> = LazyLock::new(compiler);
    let error = COMPILER
        .compile(constraint)
        .expect_err(parts[0])
        .to_string();
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    assert!(
        !error.contains("backtrace") && error.len() < 1000,
        "{error}"
    );
}

const REFUSED: &str = r##"
3 ¦ schema: expected an object or a boolean
false ¦ schema: nothing fits `false`
{"properties": {"a/b": {"not": {}}}} ¦ schema/properties/a~1b/not: `not` cannot be enforced
{"items": [{}, {"uniqueItems": true}]} ¦ schema/items/1/uniqueItems:␣
{"anyOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"contains": {}}}} ¦ schema/$defs/x/contains: `contains` cannot be enforced
{"properties": {"a": {"$ref": "#/$defs/x"}}} ¦ schema/properties/a/$ref: there is no `#/$defs/x`
{"$ref": "http://e.org/schema"} ¦ schema/$ref: `http://e.org/schema` is not inside the schema
{"anyOf": {}} ¦ schema/anyOf: expected an array of schemas
{"properties": []} ¦ schema/properties: expected an object
{"type": "strnig"} ¦ schema/type: "strnig"
{"type": "string", "pattern": "("} ¦ schema/pattern: pattern, column 1:␣
{"items": {"type": "integer", "minimum": 3, "maximum": 2}, "minItems": 1, "type": "array"} ¦ schema/items: nothing fits
{"x-guidance": {"no_such": 1}} ¦ schema/x-guidance/no_such:␣
"##;

#[test]
fn schemas_are_refused_with_their_place() {
    for [schema, message] in rows(REFUSED) {
        let schema = serde_json::from_str(&schema).expect("JSON");
        refused(Constraint::JsonSchema(schema), &[&message]);
    }
    // What the specification does not know is an annotation, and no fault.
    for sound in [
        json!({ "type": "null", "x-order": 3, "examples": [1] }),
        json!(true),
    ] {
        compiler()
            .compile(Constraint::JsonSchema(sound))
            .expect("it is sound");
    }
}

#[test]
fn expressions_and_grammars_are_refused_with_their_place() {
    let (regex, lark) = (
        |text: &str| Constraint::Regex(text.into()),
        |text: &str| Constraint::Lark(text.into()),
    );
    refused(regex("a(b"), &["regular expression: ", "unclosed group"]);
    refused(regex("(?=a)b"), &["regular expression: ", "look-around"]);
    refused(lark("start: a\n"), &["grammar: ", "unknown name", "\"a\""]);
    refused(lark("start: \"a\n"), &["grammar: ", "1("]);
    refused(lark("a: \"b\""), &["grammar: no start rule found"]);
    let gbnf = Constraint::Gbnf("root ::= \"a\" [".into());
    refused(
        gbnf,
        &["grammar, line 1, column 14: the class has no closing `]`"],
    );
    let long = regex(&"a".repeat(MAX_BYTES + 1));
    refused(
        long,
        &["the constraint has 262145 bytes, expected at most 262144"],
    );
}

/// Compiles and takes some steps; anything but a crash or a hang will do.
fn survives(name: &str, constraint: Constraint) {
    static COMPILER: LazyLock<Arc<Compiler>> = LazyLock::new(compiler);
    let compiler = &*COMPILER;
    let start = Instant::now();
    if let Ok(compiled) = compiler.compile(constraint) {
        let mut matcher = compiled.matcher();
        for _ in 0..20 {
            if matcher.forced().is_err() || matcher.is_stopped() {
                break;
            }
            let Ok(mask) = matcher.mask() else { break };
            let mut ids = 0..compiler.tokenizer.vocab_len() as u32;
            let allowed = ids.find(|id| allows(&mask, *id)).expect("a token");
            // The token is allowed, but what follows may need too much.
            if matcher.accept(allowed).is_err() {
                break;
            }
        }
    }
    let seconds = start.elapsed().as_secs();
    assert!(seconds <= TIME_LIMIT.as_secs() + 10, "{name}: {seconds} s");
}

fn map<K: Into<String>>(all: impl Iterator<Item = (K, Value)>) -> Map<String, Value> {
    all.map(|(key, value)| (key.into(), value)).collect()
}

/// `n` definitions, each of which has a reference to the next one in it, and a last one.
fn chain(n: usize, end: Value, make: impl Fn(usize, Value) -> Value) -> Value {
    let next = |i: usize| json!({ "$ref": format!("#/$defs/d{}", i + 1) });
    let all = (0..n).map(|i| (format!("d{i}"), make(i, next(i))));
    json!({ "$ref": "#/$defs/d0", "$defs": map(all.chain([(format!("d{n}"), end)])) })
}

fn properties(n: usize) -> Value {
    Value::Object(map((0..n).map(|i| (format!("p{i}"), json!({})))))
}

fn list<T: Into<Value>>(n: usize, make: impl Fn(usize) -> T) -> Value {
    (0..n).map(make).collect()
}

#[test]
fn hostile_constraints_end_in_good_time() {
    let doubled = |i: usize| {
        let one = json!({ "properties": { format!("a{i}"): { "type": "null" } }, "required": [format!("a{i}")] });
        json!({ "anyOf": [one, { "properties": { format!("b{i}"): true } }] })
    };
    let with_end = |_, next| {
        let inner = json!({ "type": "object", "properties": { "n": next }, "required": ["n"] });
        json!({ "anyOf": [inner, { "$ref": "#/$defs/d3000" }] })
    };
    let options =
        |i| json!({ "type": "object", "properties": { "k": { "const": i } }, "required": ["k"] });
    let products =
        |_| json!({ "anyOf": [{ "minLength": 1 }, { "maxLength": 9 }, {"pattern": "a"}] });
    let anchors = |i| json!({ "pattern": format!("{}{i}", "(^|a)".repeat(14)) });
    let patterns = |i| json!({ "type": "string", "pattern": format!("^(a|b)*a(a|b){{{i}}}$") });
    let names = map((0..400).map(|i| (format!("a{{{i}}}.*b"), json!({}))));
    let schemas = [
        (
            "chain of references",
            chain(6000, json!({ "type": "null" }), |_, next| next),
        ),
        (
            "doubling references",
            chain(
                200,
                json!({ "type": "object" }),
                |_, next| json!({ "allOf": [next, next] }),
            ),
        ),
        ("a circle", json!({ "$ref": "#" })),
        (
            "a circle with siblings",
            json!({ "type": "object", "allOf": [{ "$ref": "#" }] }),
        ),
        (
            "many items",
            json!({ "type": "array", "minItems": 1_000_000_000 }),
        ),
        (
            "long text",
            json!({ "type": "string", "minLength": 1_000_000_000u64 }),
        ),
        (
            "huge numbers",
            json!({ "type": "number", "minimum": -1e308, "maximum": 1e308, "multipleOf": 1e-300 }),
        ),
        (
            "many names",
            json!({ "type": "object", "properties": properties(3000) }),
        ),
        (
            "many kinds",
            json!({ "enum": list(20_000, |i| format!("v{i}")) }),
        ),
        ("exclusive options", json!({ "oneOf": list(1500, options) })),
        (
            "a product of options",
            json!({ "type": "string", "allOf": list(16, products) }),
        ),
        (
            "anchors everywhere",
            json!({ "pattern": "(^|a)($|b)".repeat(400), "type": "string" }),
        ),
        (
            "many patterns with anchors",
            json!({ "anyOf": list(500, anchors) }),
        ),
        (
            "names that overlap",
            json!({ "type": "object", "patternProperties": names }),
        ),
        (
            "patterns that exclude each other",
            json!({ "oneOf": list(400, patterns) }),
        ),
        (
            "a product of objects",
            json!({ "type": "object", "allOf": list(14, doubled), "additionalProperties": true }),
        ),
        ("values without an end", chain(3000, json!(false), with_end)),
        (
            "counted properties",
            json!({ "type": "object", "minProperties": 400, "properties": properties(900) }),
        ),
    ];
    for (name, schema) in schemas {
        survives(name, Constraint::JsonSchema(schema));
    }

    let groups = |a: &str| format!("{}{a}{}", "(".repeat(100_000), ")".repeat(100_000));
    let rules = |n: usize, make: &dyn Fn(usize, usize) -> String| {
        (0..n).map(|i| make(i, i + 1)).collect::<String>()
    };
    for (name, text) in [
        ("counts of counts", "((a{1000}){1000}){1000}".into()),
        (
            "alternatives",
            format!("({}){{500}}", "a|ab|".repeat(200) + "b"),
        ),
        ("many states", "(a|b)*a(a|b){500}".into()),
        ("groups", groups("a")),
    ] {
        survives(name, Constraint::Regex(text));
    }
    let doubling = rules(60, &|i, next| format!("a{i} ::= a{next} a{next}\n"));
    let many = rules(9000, &|i, next| {
        format!("a{i} ::= a{next} | \"{i}\" root\n")
    });
    for (name, text) in [
        (
            "doubling rules",
            format!("root ::= a0\n{doubling}a60 ::= \"x\"\n"),
        ),
        (
            "counts of nothing",
            "root ::= \"a\" \"\"{2000}{2000}{2000}{2000}\nb ::= \"\"".into(),
        ),
        (
            "counts of a rule of nothing",
            "root ::= \"a\" b{2000}{2000}{2000}{2000}\nb ::= \"\"".into(),
        ),
        (
            "a long row of large parts",
            format!("a ::= [a-z]{{400}}\nroot ::= {}", "a ".repeat(120_000)),
        ),
        ("nothing fits", "root ::= root \"a\"".into()),
        ("empty circles", "root ::= root root | \"\"".into()),
        (
            "long text",
            format!("root ::= \"{}\" root?", "ab".repeat(100_000)),
        ),
        (
            "ambiguous",
            "root ::= root root root | \"a\" | \"aa\"".into(),
        ),
        (
            "counts",
            "root ::= ((([a-z]{2000}){2000}){2000} root?){2000}".into(),
        ),
        (
            "many rules",
            format!("root ::= a0\n{many}a9000 ::= \"x\"\n"),
        ),
    ] {
        survives(name, Constraint::Gbnf(text));
    }
    let many = rules(4000, &|i, next| format!("a{i}: a{next} \"x\"\n"));
    for (name, text) in [
        ("groups", format!("start: {}", groups("\"a\""))),
        ("tokens", "start: <[0-4000000000]>".into()),
        ("any tokens", "start: <[*]>*".into()),
        ("many rules", format!("start: a0\n{many}a4000: \"y\"\n")),
    ] {
        survives(name, Constraint::Lark(text));
    }
}

/// What the library would be busy with for minutes is refused before it starts.
#[test]
fn large_schemas_are_refused_at_once() {
    let object = |n| json!({ "type": "object", "properties": properties(n) });
    let started = Instant::now();
    for (schema, parts) in [
        (
            object(14_000),
            &["schema/properties: 14000 properties, expected at most 1000"][..],
        ),
        (
            json!({ "anyOf": list(20, |_| object(1000)) }),
            &["schema/anyOf/16/properties/", "more than 16384 parts"],
        ),
        (
            chain(600, json!({}), |_, next| next),
            &["schema/$defs/d511: more than 512 schemas in each other"],
        ),
    ] {
        refused(Constraint::JsonSchema(schema), parts);
    }
    let elapsed = started.elapsed();
    assert!(elapsed < TIME_LIMIT / 2, "{elapsed:?}");
}

/// The documented number of properties, all of them optional.
#[test]
fn an_object_may_have_a_thousand_optional_properties() {
    let each = (0..1000).map(|i| (format!("p{i}"), json!({ "type": "integer" })));
    let schema = json!({ "type": "object", "properties": each.collect::<Map<_, _>>() });
    let compiler = compiler();
    let compiled = compiler.compile(Constraint::JsonSchema(schema));
    let mut matcher = compiled.expect("as documented").matcher();
    let text = r#"{"p0": 1, "p3": 2, "p500": 12, "p999": 3}"#;
    for id in compiler
        .tokenizer
        .encode_continuation(text)
        .expect("tokens")
    {
        assert!(allows(&matcher.mask().expect("a mask"), id), "{text}");
        matcher.accept(id).expect("the mask allows it");
    }
    assert!(matcher.may_stop().expect("alive"));
}

#[test]
fn assertions_and_dumps_of_the_library_are_not_shown() {
    let assertion = "panic: assertion failed: n < 3\n<backtrace>\n 0: main";
    assert_eq!(first_part(assertion), "too large for what enforces it");
    assert_eq!(first_part("no rule `a`\n<state>\nlong"), "no rule `a`");
}

#[test]
fn what_is_over_its_time_ends_and_keeps_no_place() {
    let compiler = compiler();
    let over = Deadline::default();
    over.end();
    let regex = || Constraint::Regex("[ab]+".into());
    let ended = compiler.compile_on_this_thread(regex(), true, &over);
    assert_eq!(ended.err(), Some(Error::TooSlow));
    // The library's own work ends too.
    let in_time = Deadline::default();
    let compiled = compiler
        .compile_on_this_thread(regex(), true, &in_time)
        .expect("sound");
    let mut watched = Matcher::new(
        in_time
            .guard(compiled.matcher.inner.deep_clone())
            .expect("in time"),
    );
    in_time.end();
    assert!(watched.mask().is_err());
    compiled.matcher().mask().expect("the compiled one goes on");

    let compiler = Arc::new(Compiler::new(byte_level()));
    let counts = || {
        let places = compiler.places();
        (places.running, places.overdue)
    };
    let held: Vec<_> = (0..compiler.n_places)
        .map(|_| CompilePermit::take(&compiler).expect("free"))
        .collect();
    for place in &held {
        compiler.release_overdue(&place.is_overdue);
        compiler.release_overdue(&place.is_overdue);
    }
    let lent = held.len().min(MAX_OVERDUE);
    assert_eq!(counts(), (held.len() - lent, lent));
    let more = CompilePermit::take(&compiler).expect("a place that was lent");
    drop((held, more));
    assert_eq!(counts(), (0, 0));
}

#[test]
fn more_at_once_than_there_are_places_wait() {
    let compiler = Arc::new(Compiler::new(byte_level()));
    let results: Vec<_> = std::thread::scope(|scope| {
        let compile = |i: usize| {
            let compiler = &compiler;
            scope.spawn(move || compiler.compile(Constraint::Regex("a".repeat(i + 1))))
        };
        let threads: Vec<_> = (0..4 * compiler.n_places).map(compile).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("it lives");
        threads.into_iter().map(join).collect()
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let mut compiler = Compiler::new(byte_level());
    compiler.wait_limit = Duration::from_millis(10);
    let compiler = Arc::new(compiler);
    let places: Vec<_> = (0..compiler.n_places)
        .map(|_| CompilePermit::take(&compiler))
        .collect();
    assert!(places.iter().all(Result::is_ok));
    let regex = Constraint::Regex("a".into());
    assert_eq!(compiler.compile(regex.clone()).err(), Some(Error::Busy));
    drop(places);
    compiler.compile(regex).expect("places are given back");
}
