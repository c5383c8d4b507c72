//! Which texts a JSON Schema allows. The expected values are those of the specification: jsonschema of the decoded value,
//! `re.search` of a decoded string, exact integers.

use serde_json::{Value, json};

use super::*;

pub(super) static COMPILER: LazyLock<Arc<Compiler>> =
    LazyLock::new(|| Arc::new(Compiler::without_forcing(byte_level())));

pub(super) fn compiled(schema: &Value) -> CompiledConstraint {
    let compiled = COMPILER.compile(Constraint::JsonSchema(schema.clone()));
    compiled.unwrap_or_else(|error| panic!("{error}: {schema}"))
}

/// Whether an answer can be this text.
pub(super) fn allows_text(compiled: &CompiledConstraint, text: &str) -> bool {
    let mut matcher = compiled.matcher();
    for byte in text.bytes() {
        if matcher.is_stopped() || !allows(&matcher.mask().expect("a mask"), token(byte)) {
            return false;
        }
        matcher.accept(token(byte)).expect("the mask allows it");
    }
    matcher.may_stop().expect("alive")
}

/// The token of a single byte.
fn token(byte: u8) -> u32 {
    static TOKENS: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let tokenizer = &COMPILER.tokenizer;
        let of = |byte: u8| (0..256).find(|id| tokenizer.piece(*id) == [byte]);
        (0..=255).map(|byte| of(byte).expect("a token")).collect()
    });
    TOKENS[byte as usize]
}

/// Checks what a schema given as JSON text allows.
pub(super) fn check(schema: &str, fits: &[&str], others: &[&str]) {
    let schema: Value = serde_json::from_str(schema).expect("JSON");
    let compiled = compiled(&schema);
    for (texts, expected) in [(fits, true), (others, false)] {
        for text in texts {
            assert_eq!(allows_text(&compiled, text), expected, "{text:?}: {schema}");
        }
    }
}

/// Checks that a schema is refused, with this place.
pub(super) fn refuse(schema: &str, place: &str) {
    let schema: Value = serde_json::from_str(schema).expect("JSON");
    let error = COMPILER.compile(Constraint::JsonSchema(schema.clone()));
    let error = error
        .err()
        .unwrap_or_else(|| panic!("{schema}"))
        .to_string();
    assert!(error.starts_with(&format!("schema{place}: ")), "{error}");
}

#[test]
fn integers_have_all_their_digits() {
    check(
        r#"{"enum": [123456789012345678, 123456789012345679]}"#,
        &["123456789012345678", "123456789012345679"],
        &["123456789012345680", "123456789012345677"],
    );
    check(
        r#"{"const": 9007199254740993}"#,
        &["9007199254740993"],
        &["9007199254740992"],
    );
    check(
        r#"{"const": -9223372036854775808}"#,
        &["-9223372036854775808"],
        &["-9223372036854775807"],
    );
    check(
        r#"{"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740999}"#,
        &["9007199254740993", "9007199254740999"],
        &["9007199254740992", "9007199254741000", "900719925474099"],
    );
    check(
        r#"{"type": "integer", "minimum": 0, "maximum": 18446744073709551615}"#,
        &["0", "18446744073709551615", "9223372036854775808"],
        &["18446744073709551616", "-1", "-0", "01"],
    );
    check(
        r#"{"type": "integer", "exclusiveMinimum": -9007199254740993, "exclusiveMaximum": 9007199254740993}"#,
        &["-9007199254740992", "9007199254740992", "0"],
        &["-9007199254740993", "9007199254740993"],
    );
    check(
        r#"{"type": "number", "minimum": 9007199254740993}"#,
        &[
            "9007199254740993",
            "9007199254740993.5",
            "90071992547409930",
        ],
        &["9007199254740992", "9007199254740992.9"],
    );
    // Within constants, and combined.
    check(
        r#"{"const": {"ids": [9007199254740993, {"x": 18446744073709551615}]}}"#,
        &[r#"{"ids": [9007199254740993, {"x": 18446744073709551615}]}"#],
        &[r#"{"ids": [9007199254740992, {"x": 18446744073709551615}]}"#],
    );
    check(
        r#"{"enum": [9007199254740991, 9007199254740993, 9007199254740995], "minimum": 9007199254740993, "exclusiveMaximum": 9007199254740995}"#,
        &["9007199254740993"],
        &["9007199254740991", "9007199254740995", "9007199254740992"],
    );
    for (schema, place) in [
        (r#"{"const": 18446744073709551617}"#, "/const"),
        (
            r#"{"enum": [1, 123456789012345678901234567890]}"#,
            "/enum/1",
        ),
        (
            r#"{"properties": {"a": {"maximum": 18446744073709551617}}}"#,
            "/properties/a/maximum",
        ),
        (
            r#"{"type": "integer", "minimum": -18446744073709551617}"#,
            "/minimum",
        ),
        (r#"{"type": "integer", "multipleOf": 9007199254740993}"#, ""),
        (
            r#"{"type": "integer", "minimum": 9007199254740993, "multipleOf": 3}"#,
            "",
        ),
    ] {
        refuse(schema, place);
    }
}

#[test]
fn fractions_are_compared_as_decimals() {
    check(r#"{"const": 0.1}"#, &["0.1", "0.10"], &["0.2", "0.11", "0"]);
    check(r#"{"const": 2.0}"#, &["2", "2.0"], &["2.1", "20"]);
    check(
        r#"{"const": 1e-7}"#,
        &["1e-7", "1e-07", "0.0000001"],
        &["1e-8", "0"],
    );
    check(
        r#"{"enum": [-1.5, 3]}"#,
        &["-1.5", "3"],
        &["1.5", "-1", "3.5"],
    );
    check(
        r#"{"type": "number", "minimum": -1.25, "exclusiveMaximum": 10.5}"#,
        &["-1.25", "-1.2", "-1", "0", "0.0", "10.49", "9.99", "10"],
        &["-1.26", "-1.251", "-2", "10.5", "10.50", "11", "100"],
    );
    check(
        r#"{"type": "number", "exclusiveMinimum": 0, "maximum": 0.75}"#,
        &["0.01", "0.75", "0.7", "0.750"],
        &["0", "0.0", "0.76", "0.751", "1", "-0.5"],
    );
    check(
        r#"{"type": "number", "exclusiveMaximum": 0}"#,
        &["-0.5", "-12"],
        &["0", "-0", "-0.0", "1"],
    );
    check(
        r#"{"enum": [6, 7, 0.6, 9007199254740993, 9007199254740994], "multipleOf": 3}"#,
        &["6", "9007199254740993"],
        &["7", "0.6", "9007199254740994"],
    );
    check(
        r#"{"enum": [0.3, 0.35], "multipleOf": 0.1}"#,
        &["0.3"],
        &["0.35"],
    );
    check(
        r#"{"type": "integer", "minimum": 0.5, "maximum": 2.5}"#,
        &["1", "2"],
        &["0", "3", "1.5"],
    );
    check(
        r#"{"type": "object", "properties": {"p": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 9}, "n": {"type": "array", "items": {"multipleOf": 3}}}, "required": ["p", "n"]}"#,
        &[r#"{"p": 1.25, "n": [3, 9, "a"]}"#, r#"{"p":0.5,"n":[]}"#],
        &[
            r#"{"p": 1.255, "n": [3, 9]}"#,
            r#"{"p": 1.25, "n": [4]}"#,
            r#"{"p": 10, "n": []}"#,
        ],
    );
}

/// Random bounds and numbers, compared as integers of thousandths.
#[test]
fn numbers_are_within_their_bounds() {
    let mut random = 7u64;
    let mut below = |n: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % n
    };
    let text = |thousandths: i64| {
        let sign = if thousandths < 0 { "-" } else { "" };
        let size = thousandths.unsigned_abs();
        format!("{sign}{}.{:03}", size / 1000, size % 1000)
    };
    for _ in 0..60 {
        let scale = [1, 10, 1000, 250][below(4) as usize];
        let mut bound = || (below(4001) as i64 - 2000) * scale;
        let (low, high) = (bound(), bound());
        let (low, high) = (low.min(high), low.max(high));
        let [is_open_low, is_open_high] = [below(2) == 1, below(2) == 1];
        if low == high {
            continue;
        }
        let number = |v: i64| serde_json::from_str::<Value>(&text(v)).expect("JSON");
        let keys = [
            ["minimum", "exclusiveMinimum"][usize::from(is_open_low)],
            ["maximum", "exclusiveMaximum"][usize::from(is_open_high)],
        ];
        let schema = json!({ "type": "number", keys[0]: number(low), keys[1]: number(high) });
        let compiled = compiled(&schema);
        let near = |v: i64| [v - 1000, v - 1, v, v + 1, v + 1000, v * 10, v / 10];
        let far = (0..8).map(|_| below(8_000_001) as i64 - 4_000_000);
        for value in near(low).into_iter().chain(near(high)).chain(far) {
            let fits = if is_open_low {
                value > low
            } else {
                value >= low
            } && if is_open_high {
                value < high
            } else {
                value <= high
            };
            assert_eq!(
                allows_text(&compiled, &text(value)),
                fits,
                "{value}: {schema}"
            );
            if value % 1000 == 0 && value != 0 {
                let whole = (value / 1000).to_string();
                assert_eq!(allows_text(&compiled, &whole), fits, "{whole}: {schema}");
            }
        }
    }
}

#[test]
fn a_name_has_one_spelling() {
    let open = r#"{"properties": {"a": {"type": "integer"}, "\n\u0001/": {"type": "null"}}, "additionalProperties": true, "required": ["a"]}"#;
    check(
        open,
        &[
            r#"{"a":1,"b":"x"}"#,
            r#"{"a":1,"\n\u0001/":null}"#,
            r#"{"a":1,"\"\\\b":[]}"#,
        ],
        &[
            r#"{"a":1,"\u0061":"x"}"#,
            r#"{"a":1,"a":"x"}"#,
            r#"{"a":1,"\u000a\u0001/":1}"#,
            r#"{"a":1,"\n\u0001\/":1}"#,
            r#"{"\u0061":1}"#,
        ],
    );
    check(
        r#"{"properties": {"secret": false}, "additionalProperties": true}"#,
        &[r#"{"secrets":1}"#, "{}"],
        &[r#"{"secret":1}"#, r#"{"\u0073ecret":1}"#],
    );
    check(
        r#"{"patternProperties": {"^x": false, "y$": {"type": "integer"}}}"#,
        &[r#"{"a":"b","ay":1}"#],
        &[
            r#"{"xa":1}"#,
            r#"{"\u0078a":1}"#,
            r#"{"ay":"b"}"#,
            r#"{"xy":1}"#,
            r#"{"a\u0079":"b"}"#,
        ],
    );
}

#[test]
fn patterns_of_names_may_overlap() {
    let schema = r#"{"type": "object", "properties": {"ab": {"maximum": 5}}, "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 3}},
        "additionalProperties": {"type": "string"}}"#;
    check(
        schema,
        &[
            r#"{"ab":4}"#,
            r#"{"ac":1,"axb":3}"#,
            r#"{"cb":"x","z":"y"}"#,
            r#"{"cb":3.5}"#,
        ],
        &[
            r#"{"ab":2}"#,
            r#"{"ab":6}"#,
            r#"{"axb":2}"#,
            r#"{"axb":3.5}"#,
            r#"{"z":1}"#,
            r#"{"cb":2}"#,
        ],
    );
}

#[test]
fn objects_that_name_their_properties_are_closed() {
    check(
        r#"{"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}}"#,
        &["{}", r#"{"a":1}"#, r#"{"b":[1]}"#, r#"{"a": 1, "b": "x"}"#],
        &[r#"{"c":1}"#, r#"{"a":1,"c":1}"#, r#"{"b":1,"a":1}"#],
    );
    check(
        r#"{"type": "object", "properties": {}}"#,
        &["{}", "{ }"],
        &[r#"{"a":1}"#],
    );
    check(r#"{"type": "object"}"#, &["{}", r#"{"a":1}"#], &["[]"]);
    check(
        r#"{"type": "object", "properties": {"a": {}}, "additionalProperties": true}"#,
        &[r#"{"c":1}"#, r#"{"a":1,"c":1}"#],
        &[],
    );
    check(
        r#"{"properties": {"a": {}}, "additionalProperties": {"type": "null"}}"#,
        &[r#"{"c":null}"#],
        &[r#"{"c":1}"#],
    );
    // A name that is required is there, whether it is described or not.
    check(
        r#"{"type": "object", "properties": {"a": {}}, "required": ["b"]}"#,
        &[r#"{"a":1,"b":2}"#, r#"{"b":2}"#],
        &["{}", r#"{"b":2,"c":3}"#],
    );
    // What all schemas of a value say together is closed, not each of them.
    check(
        r##"{"allOf": [{"$ref": "#/$defs/base"}, {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}],
            "$defs": {"base": {"properties": {"a": {"type": "string"}}, "required": ["a"]}}}"##,
        &[r#"{"a":"x","b":1}"#],
        &[
            r#"{"a":"x"}"#,
            r#"{"a":"x","b":1,"c":2}"#,
            r#"{"a":1,"b":1}"#,
        ],
    );
    check(
        r#"{"type": "object", "properties": {"k": {}}, "anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"required": ["b"]}]}"#,
        &[r#"{"k":1,"a":2}"#, r#"{"k":1,"b":2}"#],
        &[r#"{"k":1}"#, r#"{"a":1,"b":2}"#],
    );
    check(
        r#"{"allOf": [{"properties": {"a": {}}, "additionalProperties": false}, {"properties": {"b": {}}}]}"#,
        &[r#"{"a":1}"#, "{}"],
        &[r#"{"b":1}"#],
    );
}

#[test]
fn references_are_resolved_as_uris() {
    check(
        r##"{"$id": "http://e.org/r", "$defs": {"y": {"type": "integer"}, "x": {"$id": "x", "$defs": {"y": {"type": "string"}}, "$ref": "#/$defs/y"}}, "$ref": "#/$defs/x"}"##,
        &["\"a\""],
        &["1"],
    );
    check(
        r##"{"$defs": {"List[int]": {"type": "integer"}}, "$ref": "#/$defs/List%5Bint%5D"}"##,
        &["1"],
        &["\"a\""],
    );
    check(
        r##"{"$defs": {"a/b~c é": {"type": "integer"}}, "$ref": "#/$defs/a~1b~0c%20%C3%A9"}"##,
        &["1"],
        &["\"a\""],
    );
    check(
        r##"{"$defs": {"a": {"$anchor": "here", "type": "integer"}}, "$ref": "#here"}"##,
        &["1"],
        &["\"a\""],
    );
    check(
        r##"{"definitions": {"a": {"$id": "#here", "type": "integer"}}, "$ref": "#here"}"##,
        &["1"],
        &["\"a\""],
    );
    check(
        r##"{"$id": "http://e.org/a/root", "$ref": "other#part", "$defs": {"o": {"$id": "/a/other", "$defs": {"p": {"$anchor": "part", "const": 1}}}}}"##,
        &["1"],
        &["2"],
    );
    check(
        r##"{"prefixItems": [{"type": "integer"}, {"$ref": "#/prefixItems/0"}], "type": "array", "minItems": 2}"##,
        &["[1,2]"],
        &["[1,\"a\"]"],
    );
    // Beside a reference other keywords hold too, also in a circle.
    check(
        r##"{"$ref": "#/$defs/tree", "required": ["name"], "$defs": {"tree": {"type": "object", "properties": {"name": {"type": "string"}, "child": {"$ref": "#/$defs/tree", "required": ["name"]}}}}}"##,
        &[r#"{"name":"a","child":{"name":"b"}}"#],
        &["{}", r#"{"name":"a","child":{}}"#],
    );
    for (schema, place) in [
        (r##"{"$ref": "#/$defs/x"}"##, "/$ref"),
        (r##"{"items": {"$ref": "#nowhere"}}"##, "/items/$ref"),
        (r##"{"$ref": "http://example.com/schema"}"##, "/$ref"),
        (r##"{"$ref": "#"}"##, ""),
        (
            r##"{"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/allOf/0"}}}"##,
            "/allOf/0",
        ),
        // No such value ends.
        (
            r##"{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}"##,
            "",
        ),
    ] {
        refuse(schema, place);
    }
}

#[test]
fn one_of_is_enforced_where_its_options_exclude_each_other() {
    check(
        r#"{"oneOf": [{"const": 1}, {"const": 2}]}"#,
        &["1", "2"],
        &["3"],
    );
    check(
        r#"{"oneOf": [{"const": 1.5}, {"enum": [2, "a", true]}, {"const": false}, {"type": "null"}]}"#,
        &["1.5", "2", "\"a\"", "true", "false", "null"],
        &["3"],
    );
    check(
        r#"{"oneOf": [{"type": "integer", "maximum": 3}, {"type": "number", "exclusiveMinimum": 3}]}"#,
        &["3", "3.5"],
        &["2.5"],
    );
    check(
        r#"{"type": "string", "oneOf": [{"pattern": "^a"}, {"pattern": "^b"}]}"#,
        &["\"ax\"", "\"b\""],
        &["\"c\""],
    );
    check(
        r##"{"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "$defs": {
            "cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "n": {"type": "integer"}}, "required": ["kind"]},
            "dog": {"type": "object", "properties": {"kind": {"const": "dog"}, "m": {}}, "required": ["kind"]}}}"##,
        &[r#"{"kind":"cat","n":1}"#, r#"{"kind":"dog","m":1}"#],
        &[r#"{"kind":"cat","m":1}"#, r#"{"kind":"cow"}"#],
    );
    // What stands beside the options helps to tell them apart.
    check(
        r#"{"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"], "properties": {"b": false}}, {"required": ["b"]}]}"#,
        &[r#"{"a":1}"#, r#"{"b":1}"#, r#"{"a":1,"b":1}"#],
        &["{}"],
    );
    check(
        r#"{"oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}], "type": "object"}"#,
        &[r#"{"a":1}"#, r#"{"b":1}"#],
        &["{}", r#"{"a":1,"b":1}"#],
    );
    check(
        r#"{"oneOf": [{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2}]}"#,
        &["[]", "[1,2]"],
        &["1"],
    );
    for (schema, place) in [
        (
            r#"{"items": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}"#,
            "/items/oneOf",
        ),
        (
            r#"{"oneOf": [{"type": "string"}, {"const": "a"}]}"#,
            "/oneOf",
        ),
        (r#"{"oneOf": [{"minimum": 2}, {"maximum": 1}]}"#, "/oneOf"),
        (
            r#"{"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}"#,
            "/oneOf",
        ),
    ] {
        refuse(schema, place);
    }
    check(
        r#"{"oneOf": [{"type": "integer"}, {"type": "number"}], "x-guidance": {"coerce_one_of": true}}"#,
        &["1", "1.5"],
        &["\"a\""],
    );
}

#[test]
fn annotations_and_keywords_without_effect_are_accepted() {
    let schema = r#"{"title": "t", "$comment": "c", "description": "d", "examples": [1], "default": {}, "deprecated": true, "readOnly": true, "writeOnly": false,
        "contentEncoding": "base64", "contentMediaType": "text/plain", "x-order": 3, "nullable": true, "$schema": "http://example.com/s", "discriminator": {"propertyName": "k"},
        "uniqueItems": false, "unevaluatedProperties": true, "dependentRequired": {}, "then": {}, "if": {}, "type": ["integer", "null"], "not": false}"#;
    let schema = schema.replace(r#""then": {}, "#, "");
    check(&schema, &["1", "null"], &["\"a\""]);
    check("true", &["1", "{\"a\":[null]}"], &["x"]);
    check(
        r#"{"items": true, "type": "array", "prefixItems": [{"type": "integer"}]}"#,
        &["[]", "[1,\"a\"]"],
        &["[\"a\"]"],
    );
    check(
        r#"{"items": [{"type": "integer"}], "additionalItems": false, "type": "array"}"#,
        &["[]", "[1]"],
        &["[1,2]"],
    );
    check(
        r#"{"type": "array", "prefixItems": [{"type": "integer"}, false], "items": {}}"#,
        &["[]", "[1]"],
        &["[1,2]"],
    );
    for (schema, place) in [
        (
            r#"{"properties": {"a": {"uniqueItems": true}}}"#,
            "/properties/a/uniqueItems",
        ),
        (
            r#"{"dependentRequired": {"a": ["b"]}}"#,
            "/dependentRequired",
        ),
        (r#"{"if": {}, "then": {}}"#, "/if"),
        (r#"{"type": "strnig"}"#, "/type"),
        (r#"{"enum": 3}"#, "/enum"),
        (r#"{"required": [3]}"#, "/required"),
        (r#"{"items": 3}"#, "/items"),
        (r#"{"x-guidance": {"no_such": 1}}"#, "/x-guidance/no_such"),
    ] {
        refuse(schema, place);
    }
}

#[test]
fn properties_are_counted() {
    let schema = r#"{"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"], "minProperties": 2, "maxProperties": 2}"#;
    check(
        schema,
        &[r#"{"a":1,"b":1}"#, r#"{"b":1,"c":1}"#],
        &[r#"{"b":1}"#, r#"{"a":1,"b":1,"c":1}"#, r#"{"a":1,"c":1}"#],
    );
    check(
        r#"{"type": "object", "maxProperties": 1}"#,
        &["{}", r#"{"a":1}"#],
        &[r#"{"a":1,"b":1}"#],
    );
    check(
        r#"{"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}, "minProperties": 2, "maxProperties": 3}"#,
        &[
            r#"{"a":1,"b":1}"#,
            r#"{"b":1,"c":1}"#,
            r#"{"a":1,"b":1,"c":2}"#,
        ],
        &[
            r#"{"a":1}"#,
            r#"{"b":1}"#,
            "{}",
            r#"{"a":1,"b":1,"c":2,"d":3}"#,
        ],
    );
    refuse(
        r#"{"type": "object", "properties": {"a": {}}, "minProperties": 2}"#,
        "",
    );
    refuse(
        r#"{"type": "object", "required": ["a", "b"], "maxProperties": 1}"#,
        "",
    );
}

#[test]
fn white_space_is_that_of_pretty_printed_json() {
    let schema = r#"{"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}"#;
    check(
        schema,
        &[
            "{\"a\":[1,2]}",
            "{\n  \"a\": [\n    1,\n    2\n  ]\n}",
            "{ \"a\" : [ 1 , 2 ] }",
            "{\r\n\t\"a\": []\r\n}",
        ],
        &["{\n\n\"a\":[]}", "{  \"a\":[]}", "{\r\n\r\n\"a\":[]}"],
    );
}
