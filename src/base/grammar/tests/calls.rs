//! Calls that must come, in every format of `tools/`: right ones written by hand are accepted and read, wrong
//! ones are not accepted.

use serde_json::{Value, json};

use super::*;
use crate::chat::tool_calls::{CallBody, CallFormat, OutputParser, OutputPart, Tool, call_formats};

/// A format, the marks that vocabularies have as tokens, a call, and two of them.
pub(super) struct Row {
    pub(super) format: &'static str,
    pub(super) controls: &'static [&'static str],
    pub(super) one: String,
    two: String,
}

pub(super) const WEATHER: &str = r#"{"city": "Bonn", "days": 3}"#;
const TIME: &str = r#"{"zone": "a b"}"#;

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

/// A row whose calls stand between `open` and `close`, with `separator` between them.
fn row(
    format: &'static str,
    controls: &'static [&'static str],
    around: [&str; 3],
    calls: [&str; 2],
) -> Row {
    let [open, separator, close] = around;
    let [weather, time] = calls;
    Row {
        format,
        controls,
        one: format!("{open}{weather}{close}"),
        two: format!("{open}{weather}{separator}{time}{close}"),
    }
}

pub(super) fn rows() -> Vec<Row> {
    let object = |name: &str, arguments: &str, key: &str| {
        format!(r#"{{"name": "{name}", "{key}": {arguments}}}"#)
    };
    let [w, t] = [("get_weather", WEATHER), ("get_time", TIME)]
        .map(|(name, arguments)| object(name, arguments, "arguments"));
    let both = [w.as_str(), t.as_str()];
    let [named_w, named_t] = [("get_weather", WEATHER), ("get_time", TIME)]
        .map(|(name, arguments)| object(name, arguments, "parameters"));
    let actions = [
        format!(r#"{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {WEATHER}}}"#),
        format!(r#"{{"tool_call_id": "1", "tool_name": "get_time", "parameters": {TIME}}}"#),
    ];
    let coded = actions
        .clone()
        .map(|text| text.replacen("\"tool_call_id\": \"0\", ", "", 1))
        .map(|text| text.replacen("\"tool_call_id\": \"1\", ", "", 1));
    let pairs = |text: &str| {
        let key = |name: &str, value: &str| {
            format!("<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>\n")
        };
        match text {
            "get_weather" => key("city", "Bonn") + &key("days", "3"),
            _ => key("zone", "a b"),
        }
    };
    // Parameters between an opening, a line end or not, and a closing.
    let parameters = |open: &str, end: &str, close: &str, kinds: [&str; 2]| {
        let one =
            |name: &str, value: &str, kind: &str| format!("{open}{name}{kind}{end}{value}{close}");
        [
            one("city", "Bonn", kinds[0]) + &one("days", "3", kinds[1]),
            one("zone", "a b", kinds[0]),
        ]
    };
    let function = |[w, t]: [String; 2]| {
        [
            format!("<function=get_weather>\n{w}</function>"),
            format!("<function=get_time>\n{t}</function>"),
        ]
    };
    let invoke = |mark: &str, [w, t]: [String; 2]| {
        [("get_weather", w), ("get_time", t)].map(|(name, parameters)| {
            format!("<{mark}invoke name=\"{name}\">\n{parameters}</{mark}invoke>")
        })
    };
    let plain = function(parameters(
        "<parameter=",
        ">\n",
        "\n</parameter>\n",
        ["", ""],
    ));
    let seed = function(parameters("<parameter=", ">", "</parameter>\n", ["", ""]));
    let minimax = invoke(
        "",
        parameters("<parameter name=\"", "\">", "</parameter>\n", ["", ""]),
    );
    let marked = invoke(
        "｜DSML｜",
        parameters(
            "<｜DSML｜parameter name=\"",
            "\">",
            "</｜DSML｜parameter>\n",
            ["\" string=\"true", "\" string=\"false"],
        ),
    );
    let python = ["get_weather(city='Bonn', days=3)", "get_time(zone='a b')"];
    let both_of = |all: &'static str| {
        let of = |name: &str, number: &str, arguments: &str| {
            let text = all.replace("NAME", name).replace("NUMBER", number);
            text.replace("ARGUMENTS", arguments)
        };
        [of("get_weather", "0", WEATHER), of("get_time", "1", TIME)]
    };
    let texts = |all: &'_ [String; 2]| all.clone();
    let str_of = |all: [String; 2], format, controls, around: [&str; 3]| {
        row(format, controls, around, [&all[0], &all[1]])
    };
    let code = both_of(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```<｜tool▁call▁end｜>",
    );
    let names = both_of("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>");
    let numbered = both_of(
        "<|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>",
    );
    let message = "<|message_sep|>\n\nfunction call<|role_sep|>\n";
    let deepseek: &[&str] = &[
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
    ];
    let deepseek_around = ["<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"];
    let tag: &[&str] = &["<tool_call>", "</tool_call>"];
    vec![
        row(
            "json-in-tags",
            tag,
            [
                "<tool_call>\n",
                "\n</tool_call>\n<tool_call>\n",
                "\n</tool_call>",
            ],
            both,
        ),
        str_of(
            plain,
            "functions-in-tags",
            tag,
            [
                "<tool_call>\n",
                "\n</tool_call>\n<tool_call>\n",
                "\n</tool_call>",
            ],
        ),
        str_of(
            seed,
            "functions-in-seed-tags",
            &["<seed:tool_call>", "</seed:tool_call>"],
            ["<seed:tool_call>\n", "", "\n</seed:tool_call>"],
        ),
        str_of(
            minimax,
            "invoke",
            &["<minimax:tool_call>", "</minimax:tool_call>"],
            ["<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>"],
        ),
        str_of(
            marked,
            "invoke-marked",
            &["｜DSML｜"],
            ["<｜DSML｜tool_calls>\n", "\n", "\n</｜DSML｜tool_calls>"],
        ),
        str_of(
            ["get_weather", "get_time"].map(|name| format!("{name}\n{}", pairs(name))),
            "argument-pairs",
            &[
                "<tool_call>",
                "</tool_call>",
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
            ],
            ["<tool_call>", "</tool_call>\n<tool_call>", "</tool_call>"],
        ),
        row("bare-json", &[], ["", "; ", ""], [&named_w, &named_t]),
        row(
            "list-after-mark",
            &["[TOOL_CALLS]"],
            ["[TOOL_CALLS][", ", ", "]"],
            both,
        ),
        str_of(
            both_of("[TOOL_CALLS]NAME[ARGS]ARGUMENTS"),
            "name-after-mark",
            &["[TOOL_CALLS]", "[ARGS]"],
            ["", "", ""],
        ),
        str_of(
            texts(&actions),
            "action-list",
            &["<|START_ACTION|>", "<|END_ACTION|>"],
            ["<|START_ACTION|>[", ", ", "]<|END_ACTION|>"],
        ),
        str_of(
            coded,
            "actions-in-code",
            &[],
            ["Action: ```json\n[", ", ", "]\n```"],
        ),
        row(
            "list-after-role",
            &["<|tool_call|>"],
            ["<|tool_call|>[", ", ", "]"],
            both,
        ),
        row(
            "tool-list",
            &["<TOOLCALL>", "</TOOLCALL>"],
            ["<TOOLCALL>[", ", ", "]</TOOLCALL>"],
            both,
        ),
        row(
            "tool-list-in-tags",
            &[],
            ["<tool_calls>[", ", ", "]</tool_calls>"],
            both,
        ),
        str_of(
            both_of("{\"NAME\": ARGUMENTS}"),
            "map-in-list",
            &["<|tools_prefix|>", "<|tools_suffix|>"],
            ["<|tools_prefix|>[", ", ", "]<|tools_suffix|>"],
        ),
        str_of(names, "marked-names", deepseek, deepseek_around),
        str_of(code, "marked-code", deepseek, deepseek_around),
        str_of(
            numbered,
            "numbered",
            &[
                "<|tool_calls_section_begin|>",
                "<|tool_calls_section_end|>",
                "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>",
                "<|tool_call_end|>",
            ],
            [
                "<|tool_calls_section_begin|>",
                "",
                "<|tool_calls_section_end|>",
            ],
        ),
        str_of(
            both_of("<function=NAME>ARGUMENTS</function>"),
            "function-tags",
            &[],
            ["", "\n", ""],
        ),
        row(
            "marked-notation",
            &["<|tool_call>", "<tool_call|>", "<|\"|>"],
            [
                "<|tool_call>call:",
                "<tool_call|><|tool_call>call:",
                "<tool_call|>",
            ],
            [
                "get_weather{city:<|\"|>Bonn<|\"|>,days:3}",
                "get_time{zone:<|\"|>a b<|\"|>}",
            ],
        ),
        row(
            "call-list",
            &["<|tool_call_start|>", "<|tool_call_end|>"],
            ["<|tool_call_start|>[", ", ", "]<|tool_call_end|>"],
            python,
        ),
        row("bare-call-list", &[], ["[", ", ", "]"], python),
        str_of(
            both_of(" to=functions.NAME<|channel|>commentary json<|message|>ARGUMENTS<|call|>"),
            "channels",
            &[
                "<|channel|>",
                "<|message|>",
                "<|call|>",
                "<|start|>",
                "<|end|>",
            ],
            ["", "<|start|>assistant", ""],
        ),
        row(
            "message-of-function",
            &["<|message_sep|>", "<|role_sep|>"],
            [message, message, ""],
            both,
        ),
        row("plain", &[], ["", "", ""], both),
    ]
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

/// Whether the grammar accepts a text.
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
    assert!(out.iter().all(|text| text != one), "{}", row.format);
    out
}

#[test]
fn calls_that_must_come_are_enforced_and_read_in_every_format() {
    let rows = rows();
    for format in call_formats() {
        let row = rows.iter().find(|row| row.format == format.name);
        let row = row.unwrap_or_else(|| panic!("no row for {}", format.name));
        let name = &format.name;
        let weather = (
            "get_weather".to_owned(),
            serde_json::from_str(WEATHER).expect("JSON"),
        );
        let time = (
            "get_time".to_owned(),
            serde_json::from_str(TIME).expect("JSON"),
        );
        // Marks are text, or tokens of the vocabulary.
        for controls in [&[][..], row.controls] {
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
            assert_eq!(one, std::slice::from_ref(&weather), "{name}: {}", row.one);
            assert_eq!(two, [weather.clone(), time.clone()], "{name}: {}", row.two);
        }
    }
}

#[test]
fn a_string_without_characters_is_one_of_the_allowed_values() {
    let rows = rows();
    for (allowed, bonn) in [(json!([""]), false), (json!(["", "Bonn"]), true)] {
        let mut all = tools();
        all[0].parameters["properties"]["city"]["enum"] = allowed.clone();
        for format in call_formats() {
            let row = rows.iter().find(|row| row.format == format.name);
            let row = row.expect("a row for each format");
            let compiler = Arc::new(Compiler::without_forcing(byte_level_with(row.controls)));
            let answer = one_call(format, all.clone());
            let compiled = compiler.compile(answer);
            let compiled = compiled.unwrap_or_else(|e| panic!("{}, {allowed}: {e}", format.name));
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
