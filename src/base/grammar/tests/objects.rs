//! Where a value is an object although its schema does not say so: conditions on objects alone, and arguments of calls.

use serde_json::{Value, json};

use super::calls::{WEATHER, accepts, compiled_call, one_call, row, tools, wrong};
use super::schemas::check;
use super::*;
use crate::chat::tool_calls::{CallBody, Tool, call_formats};

#[test]
fn conditions_on_objects_alone_mean_an_object() {
    for keywords in [
        r#""properties": {"a": {}}, "required": ["a"]"#,
        r#""required": ["a"]"#,
        r#""additionalProperties": {"type": "integer"}"#,
        r#""properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"description": "more"}]"#,
        r#""allOf": [{"properties": {"a": {}}}, {"description": "more"}]"#,
        r##""$ref": "#/$defs/a", "$defs": {"a": {"properties": {"a": {}}}}"##,
    ] {
        let others = &["1", "true", "null", "\"x\"", "[]"];
        check(&format!("{{{keywords}}}"), &[r#"{"a":1}"#], others);
    }
    check(
        r#"{"type": "array", "items": {"properties": {"a": {"required": ["b"]}}}}"#,
        &["[]", "[{}]", r#"[{"a":{"b":1}}]"#],
        &["[1]", "[null]", r#"[{"a":1}]"#],
    );
    // Whatever else is said of types holds.
    for (schema, other) in [
        (r#"{"type": ["object", "null"], "required": ["a"]}"#, "null"),
        (r#"{"required": ["a"], "minLength": 1}"#, "\"x\""),
        (r#"{"required": ["a"], "items": {"type": "null"}}"#, "[]"),
        (r#"{"required": ["a"], "enum": [3, {"a": 1}]}"#, "3"),
        (
            r#"{"anyOf": [{"type": "string"}, {"required": ["a"]}]}"#,
            "\"x\"",
        ),
        (r#"{"required": true}"#, "3"),
        (r#"{"required": [], "minProperties": 0}"#, "3"),
    ] {
        check(schema, &[r#"{"a":1}"#, other], &[]);
    }
}

#[test]
fn arguments_are_an_object_whatever_the_schema_says_of_its_type() {
    let parameters = &tools()[0].parameters;
    let conditions =
        json!({ "properties": parameters["properties"], "required": ["city", "days"] });
    let kinds = json!(["object", "null", "boolean"]);
    let definitions = json!({ "root": with_type(&conditions, &kinds) });
    for (schema, is_enforced) in [
        (json!({}), false),
        (json!({ "type": kinds }), false),
        (json!({ "type": kinds, "description": "any" }), false),
        (conditions.clone(), true),
        (with_type(&conditions, &kinds), true),
        (
            json!({ "anyOf": [conditions, { "type": "boolean" }] }),
            true,
        ),
        (
            json!({ "$ref": "#/$defs/root", "$defs": definitions }),
            true,
        ),
    ] {
        for format in call_formats() {
            if !matches!(
                format.body,
                CallBody::Object | CallBody::Map | CallBody::Named | CallBody::Channels
            ) {
                continue;
            }
            let name = &format.name;
            let row = &row(format);
            let (compiler, compiled) = compiled_call(format, row, &schema);
            assert!(accepts(&compiler, &compiled, &row.one), "{name}, {schema}");
            for value in ["true", "null", "1", "[]", "\"x\""] {
                let text = row.one.replace(WEATHER, value);
                assert_ne!(text, row.one);
                assert!(!accepts(&compiler, &compiled, &text), "{schema}: {text}");
            }
            let empty = row.one.replace(WEATHER, "{}");
            let found = accepts(&compiler, &compiled, &empty);
            assert_eq!(found, !is_enforced, "{schema}: {empty}");
        }
    }
    // Arguments that cannot be an object are refused with their place.
    let answer = one_call(
        &call_formats()[0],
        vec![Tool {
            name: "f".into(),
            parameters: json!({ "type": "string" }),
        }],
    );
    let compiler = Arc::new(Compiler::without_forcing(byte_level()));
    let refused = compiler.compile(answer);
    let refused = refused.expect_err("it is refused").to_string();
    assert_eq!(refused, "schema: nothing fits");
}

#[test]
fn arguments_on_their_own_are_those_of_all_parts_of_a_schema() {
    let parameters = &tools()[0].parameters;
    let part = |name: &str| json!({ "properties": { name: parameters["properties"][name] }, "required": [name] });
    let (city, days) = (part("city"), part("days"));
    let definitions = json!({ "city": city });
    for schema in [
        json!({ "allOf": [city, days] }),
        json!({ "$ref": "#/$defs/city", "allOf": [days], "$defs": definitions }),
        json!({ "anyOf": [{ "allOf": [city, days] }, { "type": "boolean" }] }),
        with_type(
            &json!({ "properties": parameters["properties"], "oneOf": [{ "required": ["city", "days"] }] }),
            &json!("object"),
        ),
    ] {
        for format in call_formats() {
            if !matches!(format.body, CallBody::Parameters | CallBody::Notation) {
                continue;
            }
            let name = &format.name;
            let row = &row(format);
            let (compiler, compiled) = compiled_call(format, row, &schema);
            assert!(accepts(&compiler, &compiled, &row.one), "{name}, {schema}");
            for text in wrong(row) {
                assert!(!accepts(&compiler, &compiled, &text), "{name}: {text}");
            }
        }
    }
}

fn with_type(schema: &Value, kinds: &Value) -> Value {
    let mut schema = schema.clone();
    schema["type"] = kinds.clone();
    schema
}
