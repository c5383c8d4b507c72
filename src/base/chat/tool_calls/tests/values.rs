//! Where arguments end and what type they have, in formats with marks around each of them.

use super::*;
use crate::util::test_rows::rows;

/// The content and the arguments that a format reads out of a text, whole and in pieces; the tool is `run`.
pub(super) fn read_as(
    name: &str,
    properties: Value,
    text: &str,
    is_cut: bool,
) -> (String, Vec<String>) {
    let mut parameters = json!({ "type": "object" });
    parameters["properties"] = properties;
    read_with(name, parameters, text, is_cut)
}

fn read_with(name: &str, parameters: Value, text: &str, is_cut: bool) -> (String, Vec<String>) {
    let tools = Arc::new(vec![Tool {
        name: "run".into(),
        parameters,
    }]);
    let parser = || OutputParser::new(Some(format(name)), tools.clone(), Some(think()), false);
    let found = read_up_to(&mut parser(), &[text], is_cut);
    let pieces: Vec<String> = text.chars().map(String::from).collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    let in_pieces = read_up_to(&mut parser(), &pieces, is_cut);
    assert_eq!(in_pieces, found, "{name}: {text}");
    let calls = found.calls.into_iter().map(|(_, _, arguments)| arguments);
    (found.content, calls.collect())
}

/// The formats with marks around each parameter: the start of a call, the marks of a parameter `{name}` around its
/// value, and the end of a call.
const TAGGED: [[&str; 5]; 5] = [
    [
        "functions-in-tags",
        "<tool_call>\n<function=run>\n",
        "<parameter={name}>\n",
        "\n</parameter>",
        "\n</function>\n</tool_call>",
    ],
    [
        "functions-in-seed-tags",
        "<seed:tool_call>\n<function=run>\n",
        "<parameter={name}>",
        "</parameter>",
        "\n</function>\n</seed:tool_call>",
    ],
    [
        "invoke",
        "<minimax:tool_call>\n<invoke name=\"run\">\n",
        "<parameter name=\"{name}\">",
        "</parameter>",
        "\n</invoke>\n</minimax:tool_call>",
    ],
    [
        "invoke-marked",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"run\">\n",
        "<｜DSML｜parameter name=\"{name}\" string=\"true\">",
        "</｜DSML｜parameter>",
        "\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ],
    [
        "argument-pairs",
        "<tool_call>run\n",
        "<arg_key>{name}</arg_key>\n<arg_value>",
        "</arg_value>",
        "\n</tool_call>",
    ],
];

pub(super) fn json_of(all: &[String]) -> Vec<Value> {
    let one = |text: &String| serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    all.iter().map(one).collect()
}

#[test]
fn a_text_is_a_string_wherever_its_schema_allows_one() {
    let string = json!({ "type": "string" });
    for schema in [
        json!({ "anyOf": [string, { "type": "null" }] }),
        json!({ "oneOf": [{ "type": "null" }, string] }),
        json!({ "allOf": [string] }),
        json!({ "$ref": "#/$defs/Text" }),
        json!({ "anyOf": [{ "$ref": "#/$defs/Text" }, { "type": "integer" }] }),
        json!({ "type": ["string", "null"] }),
        json!({ "type": ["integer", "string"] }),
        json!({ "anyOf": [string, { "type": "object" }] }),
        json!({ "pattern": "^.*$" }),
        json!({ "minLength": 1 }),
        json!({ "format": "date" }),
        json!({ "allOf": [{ "description": "Any." }, { "anyOf": [string] }] }),
    ] {
        for text in [
            "90210",
            "true",
            r#"{"name": "x"}"#,
            "[1]",
            "1.10",
            "12345678901234567890123",
            "007",
            "None",
            "",
            "1e400",
        ] {
            for [name, start, open, close, end] in TAGGED {
                let parameters =
                    json!({ "properties": { "zip": schema }, "$defs": { "Text": string } });
                let open = open.replace("{name}", "zip");
                let written = format!("{start}{open}{text}{close}{end}");
                let (content, calls) = read_with(name, parameters, &written, false);
                assert_eq!(content, "", "{name}: {written}");
                let expected = json!({ "zip": text });
                assert_eq!(json_of(&calls), [expected], "{name}, {schema}: {text}");
            }
        }
    }
}

/// Schemas, texts and their JSON. Without a type a text is what it looks like, unless digits would be lost.
const TYPED: &str = r##"
{"anyOf": [{"type": "string"}, {"type": "null"}]} ¦ null ¦ null
{"type": ["string", "null"]} ¦ null ¦ null
{"type": "string"} ¦ null ¦ "null"
{"const": "5"} ¦ 5 ¦ "5"
{"enum": ["1", "2"]} ¦ 1 ¦ "1"
{"enum": [1, 2]} ¦ 1 ¦ 1
{"enum": [1, "auto"]} ¦ 1 ¦ 1
{"enum": [1, "auto"]} ¦ auto ¦ "auto"
{"enum": ["a", null]} ¦ null ¦ null
{"enum": ["a", "b"]} ¦ a⏎ ¦ "a"
{"type": "integer"} ¦ 12345678901234567890123 ¦ 12345678901234567890123
{"anyOf": [{"type": "integer"}, {"type": "null"}]} ¦ 5 ¦ 5
{"anyOf": [{"type": "integer"}, {"type": "null"}]} ¦ None ¦ null
{"type": "integer"} ¦ 007 ¦ 7
{"type": "integer"} ¦ +5 ¦ 5
{"type": "integer"} ¦ many ¦ "many"
{"type": "number"} ¦ 1.10 ¦ 1.10
{"type": "number"} ¦ ␣1e400␣ ¦ 1e400
{"type": "number"} ¦ .5 ¦ 0.5
{"type": "boolean"} ¦ True ¦ true
{"type": "boolean"} ¦ FALSE ¦ false
{"type": "array"} ¦ [12345678901234567890123, 1.10,] ¦ [12345678901234567890123, 1.10]
{"type": "array"} ¦ ['a', None] ¦ ["a", null]
{"type": "object"} ¦ {"a": "x⏎y"} ¦ {"a": "x\ny"}
{"$ref": "#/$defs/Nothing"} ¦ 5 ¦ 5
{"format": "int64"} ¦ 5 ¦ 5
{} ¦ 12345 ¦ 12345
{} ¦ 1.5 ¦ 1.5
{} ¦ 1.10 ¦ "1.10"
{} ¦ 007 ¦ "007"
{} ¦ 12345678901234567890123 ¦ "12345678901234567890123"
{} ¦ 1e400 ¦ "1e400"
{} ¦ [1.10] ¦ [1.10]
{} ¦ True ¦ true
{} ¦ plain ¦ "plain"
"##;

#[test]
fn a_text_has_the_type_that_its_schema_names() {
    for [schema, text, expected] in rows(TYPED) {
        let schema: Value = serde_json::from_str(&schema).expect("JSON");
        let parameters = json!({ "properties": { "v": schema } });
        let text = format!(
            "<tool_call>run\n<arg_key>v</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
        );
        let (_, calls) = read_with("argument-pairs", parameters, &text, false);
        assert_eq!(
            calls,
            [format!("{{\"v\": {expected}}}")],
            "{schema}: {text}"
        );
    }
}

#[test]
fn a_schema_that_refers_to_itself_costs_no_time() {
    let own = json!({ "$ref": "#/$defs/A" });
    let parameters = json!({
        "properties": { "v": own },
        "$defs": { "A": { "anyOf": [own, own, { "type": "string" }] } },
    });
    let text = "<tool_call>run\n<arg_key>v</arg_key>\n<arg_value>x</arg_value>\n</tool_call>";
    let (_, calls) = read_with("argument-pairs", parameters, text, false);
    assert_eq!(calls, ["{\"v\": \"x\"}"]);
}

#[test]
fn a_closing_mark_within_a_value_is_text() {
    for [name, start, open, close, end] in TAGGED {
        let mark = close.trim();
        for value in [
            format!("echo \"{mark}\" x"),
            format!("{mark} {mark}x"),
            format!("a\n{mark}\nb"),
            format!("a{mark}{mark}b"),
            format!("{mark}<b>"),
            format!("x {} y", end.trim()),
        ] {
            let properties = json!({ "content": { "type": "string" }, "n": { "type": "string" } });
            let [content, n] = ["content", "n"].map(|key| open.replace("{name}", key));
            let one = format!("{start}{content}{value}{close}{end}");
            let (rest, calls) = read_as(name, properties.clone(), &one, false);
            let expected = json!({ "content": value });
            assert_eq!(
                (rest.as_str(), json_of(&calls)),
                ("", vec![expected]),
                "{name}"
            );
            let two = format!("{start}{content}{value}{close}\n{n}{value}{close}{end}");
            let (rest, calls) = read_as(name, properties, &two, false);
            let expected = json!({ "content": value, "n": value });
            assert_eq!(
                (rest.as_str(), json_of(&calls)),
                ("", vec![expected]),
                "{name}"
            );
        }
    }
}

#[test]
fn white_space_at_the_ends_of_a_value_is_kept() {
    for [name, start, open, close, end] in TAGGED {
        for value in ["a\nb\n", "\n\na", "  a  ", "\n", "", "a\r\n"] {
            let open = open.replace("{name}", "content");
            let text = format!("{start}{open}{value}{close}{end}");
            let properties = json!({ "content": { "type": "string" } });
            let (_, calls) = read_as(name, properties, &text, false);
            let expected = json!({ "content": value });
            assert_eq!(json_of(&calls), [expected], "{name}: {text:?}");
        }
    }
}

#[test]
fn a_parameter_without_its_closing_mark_ends_where_the_next_mark_begins_a_line() {
    let properties = json!({ "cmd": { "type": "string" }, "n": { "type": "integer" } });
    for [name, start, open, close, end] in TAGGED {
        let [cmd, n] = ["cmd", "n"].map(|key| open.replace("{name}", key));
        let n = n.replace("string=\"true\"", "string=\"false\"");
        let read = |text: &str| {
            let (content, calls) = read_as(name, properties.clone(), text, false);
            (content, json_of(&calls))
        };
        let both = json!({ "cmd": "a", "n": 3 });
        let text = format!("{start}{cmd}a\n{n}3{close}{end}");
        assert_eq!(read(&text), (String::new(), vec![both.clone()]), "{text}");
        let text = format!("{start}{cmd}a{close}\n{n}3{end}");
        assert_eq!(read(&text), (String::new(), vec![both]), "{text}");
        let text = format!("{start}{cmd}a{end}");
        let one = json!({ "cmd": "a" });
        assert_eq!(read(&text), (String::new(), vec![one.clone()]), "{text}");
        let text = format!("{start}{cmd}a{end}\n{start}{n}3{close}{end}");
        let two = vec![one, json!({ "n": 3 })];
        assert_eq!(read(&text), (String::new(), two), "{text}");
        // The name of no parameter of the tool, and one that came already.
        for other in ["x", "cmd"] {
            let other = open.replace("{name}", other);
            let text = format!("{start}{cmd}a\n{other}3{close}{end}");
            let value = format!("a\n{other}3");
            assert_eq!(read(&text).1, [json!({ "cmd": value })], "{text}");
        }
    }
}

#[test]
fn a_call_that_is_cut_off_has_what_is_complete() {
    let properties = json!({ "cmd": { "type": "string" }, "n": { "type": "integer" } });
    for [name, start, open, close, end] in TAGGED {
        let [cmd, n] = ["cmd", "n"].map(|key| open.replace("{name}", key));
        let n = n.replace("string=\"true\"", "string=\"false\"");
        let text = format!("{start}{cmd}abc{close}\n{n}3{close}{end}");
        for (at, _) in text.char_indices().filter(|(at, _)| *at > start.len()) {
            for is_cut in [false, true] {
                let cut = &text[..at];
                let (content, calls) = read_as(name, properties.clone(), cut, is_cut);
                assert_eq!(content, "", "{name}: {cut}");
                let value = &json_of(&calls)[0];
                assert!(value.is_object(), "{name}: {value}");
                let cmd = value["cmd"].as_str().unwrap_or_default();
                let is_start = "abc".starts_with(cmd.trim_end_matches(['<', '\n']));
                assert!(is_start, "{name}: {value} of {cut}");
            }
        }
    }
}

#[test]
fn a_missing_mark_before_a_value_is_no_loss() {
    let properties = json!({ "cmd": { "type": "string" } });
    let many = json!({ "cmd": "how many" });
    for (text, expected) in [
        (
            "<tool_call>run<arg_key>cmd</arg_key>how many</arg_value></tool_call>",
            &many,
        ),
        (
            "<tool_call>run\n<arg_key>cmd</arg_key>\nhow many</arg_value>\n</tool_call>",
            &many,
        ),
        (
            "<tool_call>run\n<arg_key>cmd</arg_key>\n</tool_call>",
            &json!({}),
        ),
        ("<tool_call>run\n</tool_call>", &json!({})),
        ("<tool_call>run</tool_call>", &json!({})),
        ("<tool_call>run\n</arg_value></tool_call>", &json!({})),
        ("<tool_call>run\n<arg_key>cmd", &json!({})),
    ] {
        let (content, calls) = read_as("argument-pairs", properties.clone(), text, false);
        let found = json_of(&calls);
        assert_eq!(
            (content.as_str(), found),
            ("", vec![expected.clone()]),
            "{text}"
        );
    }
}
