//! Constraints nobody should send: an error in good time, or something that works; never the end
//! of the program.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::super::compiler::CompilePermit;
use super::super::deadline::Deadline;
use super::super::error::first_part;
use super::super::limits::{MAX_OVERDUE, TIME_LIMIT};
use super::*;

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

#[test]
fn schemas_are_refused_with_their_place() {
    let schema = |schema: Value| Constraint::JsonSchema(schema);
    refused(
        schema(json!(3)),
        &["schema: expected an object or a boolean"],
    );
    refused(schema(json!(false)), &["schema: nothing fits `false`"]);
    refused(
        schema(json!({ "properties": { "a/b": { "not": {} } } })),
        &["schema/properties/a~1b/not: `not` cannot be enforced"],
    );
    refused(
        schema(json!({ "items": [{}, { "uniqueItems": true }] })),
        &["schema/items/1/uniqueItems: "],
    );
    refused(
        schema(json!({ "anyOf": [{ "$ref": "#/$defs/x" }], "$defs": { "x": { "contains": {} } } })),
        &["schema/$defs/x/contains: `contains` cannot be enforced"],
    );
    refused(
        schema(json!({ "properties": { "a": { "$ref": "#/$defs/x" } } })),
        &["schema/properties/a/$ref: there is no `#/$defs/x`"],
    );
    refused(
        schema(json!({ "$ref": "http://example.com/schema" })),
        &["schema/$ref: `http://example.com/schema` is not inside the schema"],
    );
    refused(
        schema(json!({ "anyOf": {} })),
        &["schema/anyOf: expected an array of schemas"],
    );
    refused(
        schema(json!({ "properties": [] })),
        &["schema/properties: expected an object"],
    );
    refused(
        schema(json!({ "type": "strnig" })),
        &["schema/type: ", "strnig"],
    );
    refused(
        schema(json!({ "type": "string", "pattern": "(" })),
        &["schema/pattern: pattern, column 1: "],
    );
    refused(
        schema(
            json!({ "items": { "type": "integer", "minimum": 3, "maximum": 2 }, "minItems": 1, "type": "array" }),
        ),
        &["schema/items: nothing fits"],
    );
    refused(
        schema(json!({ "x-guidance": { "no_such": 1 } })),
        &["schema/x-guidance/no_such: "],
    );
    // What the specification does not know is an annotation.
    let annotated = json!({ "type": "null", "x-order": 3, "examples": [1] });
    compiler()
        .compile(schema(annotated))
        .expect("annotations are not faults");
    compiler()
        .compile(schema(json!(true)))
        .expect("everything fits");
}

#[test]
fn expressions_and_grammars_are_refused_with_their_place() {
    refused(
        Constraint::Regex("a(b".into()),
        &["regular expression: ", "unclosed group"],
    );
    refused(
        Constraint::Regex("(?=a)b".into()),
        &["regular expression: ", "look-around"],
    );
    refused(
        Constraint::Lark("start: a\n".into()),
        &["grammar: ", "unknown name", "\"a\""],
    );
    refused(
        Constraint::Lark("start: \"a\n".into()),
        &["grammar: ", "1("],
    );
    refused(
        Constraint::Lark("a: \"b\"".into()),
        &["grammar: no start rule found"],
    );
    refused(
        Constraint::Gbnf("root ::= \"a\" [".into()),
        &["grammar, line 1, column 14: the class has no closing `]`"],
    );
    refused(
        Constraint::Regex("a".repeat(MAX_BYTES + 1)),
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

#[test]
fn hostile_constraints_end_in_good_time() {
    let schema = |name, schema| survives(name, Constraint::JsonSchema(schema));
    let chain = |n: usize| {
        let defs: Map<_, _> = (0..n)
            .map(|i| {
                (
                    format!("d{i}"),
                    json!({ "$ref": format!("#/$defs/d{}", i + 1) }),
                )
            })
            .chain([(format!("d{n}"), json!({ "type": "null" }))])
            .collect();
        json!({ "$ref": "#/$defs/d0", "$defs": defs })
    };
    schema("chain of references", chain(6000));
    let nested = |n: usize| {
        let defs: Map<_, _> = (0..n)
            .map(|i| {
                let next = format!("#/$defs/d{}", i + 1);
                (
                    format!("d{i}"),
                    json!({ "allOf": [{ "$ref": next }, { "$ref": next }] }),
                )
            })
            .chain([(format!("d{n}"), json!({ "type": "object" }))])
            .collect();
        json!({ "$ref": "#/$defs/d0", "$defs": defs })
    };
    schema("doubling references", nested(200));
    schema("a circle", json!({ "$ref": "#" }));
    schema(
        "a circle with siblings",
        json!({ "type": "object", "allOf": [{ "$ref": "#" }] }),
    );
    schema(
        "many items",
        json!({ "type": "array", "minItems": 1_000_000_000 }),
    );
    schema(
        "long text",
        json!({ "type": "string", "minLength": 1_000_000_000u64 }),
    );
    schema(
        "huge numbers",
        json!({ "type": "number", "minimum": -1e308, "maximum": 1e308, "multipleOf": 1e-300 }),
    );
    schema(
        "many names",
        json!({ "type": "object", "properties":
        (0..3000).map(|i| (format!("p{i}"), json!({}))).collect::<Map<_, _>>() }),
    );
    schema(
        "many kinds",
        json!({ "enum": (0..20_000).map(|i| format!("v{i}")).collect::<Vec<_>>() }),
    );
    let options: Vec<_> = (0..1500)
        .map(|i| json!({ "type": "object", "properties": { "k": { "const": i } }, "required": ["k"] }))
        .collect();
    schema("exclusive options", json!({ "oneOf": options }));
    let products: Vec<_> = (0..16)
        .map(|_| json!({ "anyOf": [{ "minLength": 1 }, { "maxLength": 9 }, {"pattern": "a"}] }))
        .collect();
    schema(
        "a product of options",
        json!({ "type": "string", "allOf": products }),
    );

    schema(
        "anchors everywhere",
        json!({ "pattern": "(^|a)($|b)".repeat(400), "type": "string" }),
    );
    let anchors: Vec<_> = (0..500)
        .map(|i| json!({ "pattern": format!("{}{i}", "(^|a)".repeat(14)) }))
        .collect();
    schema("many patterns with anchors", json!({ "anyOf": anchors }));
    let names = (0..400).map(|i| (format!("a{{{i}}}.*b"), json!({})));
    schema(
        "names that overlap",
        json!({ "type": "object", "patternProperties": names.collect::<Map<_, _>>() }),
    );
    let patterns: Vec<_> = (0..400)
        .map(|i| json!({ "type": "string", "pattern": format!("^(a|b)*a(a|b){{{i}}}$") }))
        .collect();
    schema(
        "patterns that exclude each other",
        json!({ "oneOf": patterns }),
    );
    let doubled = |i: usize| {
        let one = json!({ "properties": { format!("a{i}"): { "type": "null" } }, "required": [format!("a{i}")] });
        json!({ "anyOf": [one, { "properties": { format!("b{i}"): true } }] })
    };
    let all: Vec<_> = (0..14).map(doubled).collect();
    schema(
        "a product of objects",
        json!({ "type": "object", "allOf": all, "additionalProperties": true }),
    );
    let nodes = (0..3000).map(|i| {
        let next = json!({ "$ref": format!("#/$defs/n{}", (i + 1) % 3000) });
        let inner = json!({ "type": "object", "properties": { "n": next }, "required": ["n"] });
        (
            format!("n{i}"),
            json!({ "anyOf": [inner, { "$ref": "#/$defs/end" }] }),
        )
    });
    let nodes = nodes.chain([("end".into(), json!(false))]);
    schema(
        "values without an end",
        json!({ "$ref": "#/$defs/n0", "$defs": nodes.collect::<Map<_, _>>() }),
    );
    schema(
        "counted properties",
        json!({ "type": "object", "minProperties": 400, "properties":
        (0..900).map(|i| (format!("p{i}"), json!({}))).collect::<Map<_, _>>() }),
    );

    let regex = |name, text: String| survives(name, Constraint::Regex(text));
    regex("counts of counts", "((a{1000}){1000}){1000}".into());
    regex(
        "alternatives",
        format!("({}){{500}}", "a|ab|".repeat(200) + "b"),
    );
    regex("many states", "(a|b)*a(a|b){500}".into());
    regex(
        "groups",
        format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000)),
    );

    let gbnf = |name, text: String| survives(name, Constraint::Gbnf(text));
    let doubling: String = (0..60)
        .map(|i| format!("a{i} ::= a{} a{}\n", i + 1, i + 1))
        .collect();
    gbnf(
        "doubling rules",
        format!("root ::= a0\n{doubling}a60 ::= \"x\"\n"),
    );
    gbnf(
        "counts of nothing",
        "root ::= \"a\" \"\"{2000}{2000}{2000}{2000}\nb ::= \"\"".into(),
    );
    gbnf(
        "counts of a rule of nothing",
        "root ::= \"a\" b{2000}{2000}{2000}{2000}\nb ::= \"\"".into(),
    );
    gbnf(
        "a long row of large parts",
        format!("a ::= [a-z]{{400}}\nroot ::= {}", "a ".repeat(120_000)),
    );
    gbnf("nothing fits", "root ::= root \"a\"".into());
    gbnf("empty circles", "root ::= root root | \"\"".into());
    gbnf(
        "long text",
        format!("root ::= \"{}\" root?", "ab".repeat(100_000)),
    );
    gbnf(
        "ambiguous",
        "root ::= root root root | \"a\" | \"aa\"".into(),
    );
    gbnf(
        "counts",
        "root ::= ((([a-z]{2000}){2000}){2000} root?){2000}".into(),
    );
    let rules: String = (0..9000)
        .map(|i| format!("a{i} ::= a{} | \"{i}\" root\n", i + 1))
        .collect();
    gbnf(
        "many rules",
        format!("root ::= a0\n{rules}a9000 ::= \"x\"\n"),
    );

    let lark = |name, text: String| survives(name, Constraint::Lark(text));
    lark(
        "groups",
        format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000)),
    );
    lark("tokens", "start: <[0-4000000000]>".into());
    lark("any tokens", "start: <[*]>*".into());
    let inner: String = (0..4000)
        .map(|i| format!("a{i}: a{} \"x\"\n", i + 1))
        .collect();
    lark("many rules", format!("start: a0\n{inner}a4000: \"y\"\n"));
}

/// What the library would be busy with for minutes is refused before it starts.
#[test]
fn large_schemas_are_refused_at_once() {
    let object = |n: usize| {
        let all = (0..n).map(|i| (format!("p{i}"), json!({})));
        json!({ "type": "object", "properties": all.collect::<Map<_, _>>() })
    };
    let started = Instant::now();
    refused(
        Constraint::JsonSchema(object(14_000)),
        &["schema/properties: 14000 properties, expected at most 1000"],
    );
    let many: Vec<_> = (0..20).map(|_| object(1000)).collect();
    refused(
        Constraint::JsonSchema(json!({ "anyOf": many })),
        &["schema/anyOf/16/properties/", "more than 16384 parts"],
    );
    let chain = (0..600).map(|i| {
        let next = format!("#/$defs/d{}", i + 1);
        (format!("d{i}"), json!({ "$ref": next }))
    });
    let mut chain: Map<_, _> = chain.collect();
    chain.insert("d600".into(), json!({}));
    refused(
        Constraint::JsonSchema(json!({ "$ref": "#/$defs/d0", "$defs": chain })),
        &["schema/$defs/d511: more than 512 schemas in each other"],
    );
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
