//! Calls that must come, in every format of `tools/`: right ones written by hand are accepted and read, wrong
//! ones are not accepted.

use serde_json::{Value, json};

use super::*;
use crate::chat::tool_calls::tests::samples;
use crate::chat::tool_calls::{CallBody, CallFormat, OutputParser, OutputPart, Tool, call_formats};

/// A format, the marks that vocabularies have as tokens, a call, and two of them.
pub(super) struct Row {
    pub(super) controls: Vec<String>,
    pub(super) one: String,
    two: String,
}

pub(super) const WEATHER: &str = r#"{"city":"Bonn","days":3}"#;
const TIME: &str = r#"{"zone":"a b"}"#;

pub(super) fn tools() -> Vec<Tool> {
    let tool = |name: &str, properties: Value| {
        let required: Vec<&String> = properties.as_object().expect("an object").keys().collect();
        let parameters = json!({ "type": "object", "properties": properties, "required": required,
            "additionalProperties": false });
        Tool {
            name: name.into(),
            parameters,
        }
    };
    let city = json!({ "type": "string", "enum": ["Bonn", "Trier"] });
    let days = json!({ "type": "integer", "minimum": 1, "maximum": 9 });
    vec![
        tool("get_weather", json!({ "city": city, "days": days })),
        tool("get_time", json!({ "zone": { "type": "string" } })),
    ]
}

fn both() -> [(&'static str, Value); 2] {
    let all = [("get_weather", WEATHER), ("get_time", TIME)];
    all.map(|(name, text)| (name, serde_json::from_str(text).expect("JSON")))
}

pub(super) fn row(format: &CallFormat) -> Row {
    let sample = |calls: &[(&str, Value)]| samples::sample(&format.name, calls);
    Row {
        controls: samples::controls(&format.name),
        one: sample(&both()[..1]),
        two: sample(&both()),
    }
}

/// A compiler over a vocabulary with the marks of a format, and a call of the first tool with these parameters.
pub(super) fn compiled_call(
    format: &Arc<CallFormat>,
    row: &Row,
    parameters: &Value,
) -> (Arc<Compiler>, CompiledConstraint) {
    let compiler = Arc::new(Compiler::without_forcing(byte_level_with(&row.controls)));
    let mut tool = tools().remove(0);
    tool.parameters = parameters.clone();
    let compiled = compiler.compile(one_call(format, vec![tool]));
    let compiled = compiled.unwrap_or_else(|e| panic!("{}, {parameters}: {e}", format.name));
    (compiler, compiled)
}

pub(super) fn one_call(format: &Arc<CallFormat>, tools: Vec<Tool>) -> Constraint {
    Constraint::Answer(Box::new(AnswerSpec {
        format: Arc::clone(format),
        reasoning: ReasoningRule::None,
        tools,
        parallel_calls: false,
        content: ContentRule::None,
    }))
}

/// Where the grammar lets a text end that it accepts: after so many of its tokens. None if it does not accept
/// all of it.
fn ends(compiler: &Compiler, compiled: &CompiledConstraint, text: &str) -> Option<Vec<usize>> {
    let tokens = compiler
        .tokenizer
        .encode(text, false, true)
        .expect("tokens");
    let mut matcher = compiled.matcher();
    let mut ends = Vec::new();
    for (n, id) in (1..).zip(&tokens) {
        matcher.accept(*id).ok()?;
        if matcher.may_stop().expect("alive") {
            ends.push(n);
        }
    }
    ends.contains(&tokens.len()).then_some(ends)
}

pub(super) fn accepts(compiler: &Compiler, compiled: &CompiledConstraint, text: &str) -> bool {
    ends(compiler, compiled, text).is_some()
}

/// The calls that are read out of a text that comes token by token.
fn read(compiler: &Compiler, format: &Arc<CallFormat>, text: &str) -> Vec<(String, Value)> {
    let tokenizer = &compiler.tokenizer;
    let tokens = tokenizer.encode(text, false, true).expect("tokens");
    let mut parser = OutputParser::new(Some(Arc::clone(format)), Arc::new(tools()), None, false);
    let mut buffer = crate::chat::stop_buffer::StopBuffer::new(&[]);
    let pieces = tokens
        .into_iter()
        .map(|id| buffer.push(tokenizer.piece(id), ()).text);
    let mut spans: Vec<_> = pieces.flat_map(|piece| parser.push(&piece)).collect();
    spans.extend(parser.finish(false));
    let mut calls: Vec<(String, String)> = Vec::new();
    for part in spans.into_iter().filter_map(|span| span.part) {
        match part {
            OutputPart::Call { name, .. } => calls.push((name, String::new())),
            OutputPart::Arguments { text, .. } => calls.last_mut().expect("a call").1 += &text,
            other => panic!("{}: {other:?}", format.name),
        }
    }
    let parsed = calls.into_iter().map(|(name, text)| {
        let arguments = serde_json::from_str(&text);
        (
            name,
            arguments.unwrap_or_else(|e| panic!("{}: {e}: {text}", format.name)),
        )
    });
    parsed.collect()
}

/// Texts that a call must not be: another name, arguments that do not fit, more before or after it.
pub(super) fn wrong(row: &Row) -> Vec<String> {
    let one = &row.one;
    let mut out = vec![
        one.replace("get_weather", "get_whether"),
        one.replace("Bonn", "Rome"),
        format!("I look. {one}"),
        format!("{one} Done."),
    ];
    for value in ["three", "\"three\"", "true", "30"] {
        out.push(one.replace('3', value));
    }
    assert!(out.iter().all(|text| text != one), "{one}");
    out
}

#[test]
fn calls_that_must_come_are_enforced_and_read_in_every_format() {
    for format in call_formats() {
        let row = &row(format);
        let name = &format.name;
        let expected = both().map(|(name, arguments)| (name.to_owned(), arguments));
        // Marks are text, or tokens of the vocabulary.
        for controls in [&[][..], &row.controls] {
            let compiler = Compiler::without_forcing(byte_level_with(controls));
            let compiler = Arc::new(compiler);
            let compile_with = |tools: Vec<Tool>, many: bool, content: ContentRule| {
                let answer = AnswerSpec {
                    format: Arc::clone(format),
                    reasoning: ReasoningRule::None,
                    tools,
                    parallel_calls: many,
                    content,
                };
                let compiled = compiler.compile(Constraint::Answer(Box::new(answer)));
                compiled.unwrap_or_else(|error| panic!("{name}: {error}"))
            };
            let compile = |tools, many| compile_with(tools, many, ContentRule::None);
            let has_many = format.body != CallBody::Channels;
            let (many, single) = (compile(tools(), true), compile(tools(), false));
            let named = compile(tools()[..1].to_vec(), false);
            for compiled in [&many, &single, &named] {
                let ends = ends(&compiler, compiled, &row.one);
                let ends = ends.unwrap_or_else(|| panic!("{name}: {}", row.one));
                assert_eq!(ends.len(), 1, "{name}: a part of it is no call");
                for text in wrong(row) {
                    assert!(!accepts(&compiler, compiled, &text), "{name}: {text}");
                }
            }
            assert_eq!(
                accepts(&compiler, &many, &row.two),
                has_many,
                "{name}: {}",
                row.two
            );
            assert!(
                !accepts(&compiler, &single, &row.two),
                "{name}: {}",
                row.two
            );
            let other = compile(tools()[1..].to_vec(), true);
            assert!(
                !accepts(&compiler, &other, &row.one),
                "{name}: another is named"
            );
            // Where calls are marked, text may come before them, or alone.
            if has_many && !format.bare {
                let free = compile_with(tools(), true, ContentRule::Any);
                let before = format!("I look.\n\n{}", row.two);
                for text in ["2+2=4", &before] {
                    assert!(accepts(&compiler, &free, text), "{name}: {text}");
                }
                let text = before.replace("get_weather", "get_whether");
                assert!(!accepts(&compiler, &free, &text), "{name}: {text}");
            }
            // Or text that fits an expression, whose slashes are escaped or not.
            if format.channels.is_none() {
                let regex = Constraint::Regex(r"^(a/b|c\/d)$".into());
                let fits = compile_with(tools(), true, ContentRule::Fits(Box::new(regex)));
                for (text, is_fit) in [
                    ("a/b", true),
                    ("c/d", true),
                    (&row.one, true),
                    ("a/", false),
                ] {
                    assert_eq!(accepts(&compiler, &fits, text), is_fit, "{name}: {text}");
                }
            }
            let [one, two] = [&row.one, &row.two].map(|text| read(&compiler, format, text));
            assert_eq!(one, expected[..1], "{name}: {}", row.one);
            assert_eq!(two, expected, "{name}: {}", row.two);
        }
    }
}

#[test]
fn a_string_without_characters_is_one_of_the_allowed_values() {
    for (allowed, bonn) in [(json!([""]), false), (json!(["", "Bonn"]), true)] {
        let mut parameters = tools().remove(0).parameters;
        parameters["properties"]["city"]["enum"] = allowed.clone();
        for format in call_formats() {
            let row = row(format);
            let (compiler, compiled) = compiled_call(format, &row, &parameters);
            let empty = row.one.replace("Bonn", "");
            assert!(accepts(&compiler, &compiled, &empty), "{}", format.name);
            let found = accepts(&compiler, &compiled, &row.one);
            assert_eq!(found, bonn, "{}, {allowed}", format.name);
        }
    }
}

/// The library has a limited number of symbols, which all tools share.
#[test]
fn two_hundred_tools_of_forty_parameters_are_enforced() {
    let properties: serde_json::Map<_, _> = (0..40)
        .map(|i| (format!("p{i}"), json!({ "type": "string" })))
        .collect();
    let parameters = json!({ "type": "object", "properties": properties });
    let tools = (0..200).map(|i| Tool {
        name: format!("f{i}"),
        parameters: parameters.clone(),
    });
    let all = call_formats();
    let format = all.iter().find(|format| format.body == CallBody::Object);
    let answer = one_call(format.expect("a format"), tools.collect());
    let compiler = Arc::new(Compiler::without_forcing(byte_level()));
    let compiled = compiler.compile(answer);
    compiled.expect("few symbols for each parameter");
}
