//! Every format with calls as models write them, in one piece and in many.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

mod literals;
mod mended;
mod values;

fn tools() -> Arc<Vec<Tool>> {
    let weather = json!({ "type": "object", "properties": {
        "city": { "type": "string" }, "unit": { "enum": ["celsius", "kelvin"] }, "days": { "type": "integer" },
    } });
    let search = json!({ "type": "object", "properties": {
        "query": { "type": "string" }, "filters": { "type": "object" }, "limit": { "type": "integer" },
    } });
    let tool = |name: &str, parameters: Value| Tool {
        name: name.into(),
        parameters,
    };
    Arc::new(vec![
        tool("get_weather", weather),
        tool("search_docs", search),
    ])
}

fn format(name: &str) -> Arc<CallFormat> {
    let found = call_formats().iter().find(|format| format.name == name);
    Arc::clone(found.unwrap_or_else(|| panic!("no format {name}")))
}

/// What was read: content, reasoning and calls with their ids.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    content: String,
    reasoning: String,
    calls: Vec<(String, Option<String>, String)>,
}

fn read(parser: &mut OutputParser, pieces: &[&str]) -> Answer {
    read_up_to(parser, pieces, false)
}

/// What was read from a text that ended, or was cut off.
fn read_up_to(parser: &mut OutputParser, pieces: &[&str], is_cut: bool) -> Answer {
    let mut out = Answer::default();
    let mut spans: Vec<OutputSpan> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    spans.extend(parser.finish(is_cut));
    let text = pieces.concat();
    let mut at = 0;
    for span in spans {
        let bytes = &text[at..at + span.bytes];
        at += span.bytes;
        match span.part {
            None => {}
            Some(OutputPart::Content(text)) => {
                let is_joint = bytes.is_empty() && text.trim().is_empty();
                assert!(text == bytes || is_joint, "content is the text's own bytes");
                out.content.push_str(&text);
            }
            Some(OutputPart::Reasoning(text)) => out.reasoning.push_str(&text),
            Some(OutputPart::Call { index, id, name }) => {
                assert_eq!(index as usize, out.calls.len(), "numbers rise");
                out.calls.push((name, id, String::new()));
            }
            Some(OutputPart::Arguments { index, text }) => {
                assert_eq!(index as usize + 1, out.calls.len());
                out.calls[index as usize].2.push_str(&text);
            }
        }
    }
    assert_eq!(at, text.len(), "every byte is accounted for");
    out
}

fn think() -> MarkPair {
    MarkPair {
        open: "<think>".into(),
        close: "</think>".into(),
    }
}

fn parser(name: &str) -> OutputParser {
    OutputParser::new(Some(format(name)), tools(), Some(think()), false)
}

const WEATHER: &str = r#"{"city": "Köln", "unit": "celsius", "days": 2}"#;
const SEARCH: &str = r#"{"query": "umbrella \"big\" & 'red'", "filters": {"tags": ["a", "ü"], "exact": true}, "limit": 3}"#;

/// Format, text with two calls, and how many.
fn samples() -> Vec<(&'static str, String)> {
    let object = |name: &str, arguments: &str, key: &str| {
        format!(r#"{{"name": "{name}", "{key}": {arguments}}}"#)
    };
    let [w, s] = [
        object("get_weather", WEATHER, "arguments"),
        object("search_docs", SEARCH, "arguments"),
    ];
    let filters = r#"{"tags": ["a", "ü"], "exact": true}"#;
    let query = "umbrella \"big\" & 'red'";
    let function = |open: &str, key: &str, end: &str| {
        format!(
            "{open}<function=get_weather>\n<parameter=city>{key}Köln{end}</parameter>\n<parameter=unit>{key}celsius{end}</parameter>\n<parameter=days>{key}2{end}</parameter>\n</function>"
        )
    };
    let function_2 = |key: &str, end: &str| {
        format!(
            "<function=search_docs>\n<parameter=query>{key}{query}{end}</parameter>\n<parameter=filters>{key}{filters}{end}</parameter>\n<parameter=limit>{key}3{end}</parameter>\n</function>"
        )
    };
    let invoke = |tag: &str, parameter: &str, s: &str, o: &str| {
        format!(
            "<{tag}invoke name=\"get_weather\">\n<{tag}{parameter} name=\"city\"{s}>Köln</{tag}{parameter}>\n<{tag}{parameter} name=\"unit\"{s}>celsius</{tag}{parameter}>\n<{tag}{parameter} name=\"days\"{o}>2</{tag}{parameter}>\n</{tag}invoke>\n<{tag}invoke name=\"search_docs\">\n<{tag}{parameter} name=\"query\"{s}>{query}</{tag}{parameter}>\n<{tag}{parameter} name=\"filters\"{o}>{filters}</{tag}{parameter}>\n<{tag}{parameter} name=\"limit\"{o}>3</{tag}{parameter}>\n</{tag}invoke>"
        )
    };
    let pairs = |all: &[(&str, &str)]| -> String {
        let one = |(key, value): &(&str, &str)| {
            format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
        };
        all.iter().map(one).collect()
    };
    let in_python = "[get_weather(city='Köln', unit='celsius', days=2), search_docs(query='umbrella \"big\" & \\'red\\'', filters={'tags': ['a', 'ü'], 'exact': True}, limit=3)]";
    vec![
        ("json-in-tags", format!("<tool_call>\n{w}\n</tool_call>\n<tool_call>\n{s}\n</tool_call>")),
        ("functions-in-tags", format!("<tool_call>\n{}\n</tool_call>\n<tool_call>\n{}\n</tool_call>", function("", "\n", "\n"), function_2("\n", "\n"))),
        ("functions-in-seed-tags", format!("<seed:tool_call>\n{}\n{}\n</seed:tool_call>", function("", "", ""), function_2("", ""))),
        ("invoke", format!("<minimax:tool_call>\n{}\n</minimax:tool_call>", invoke("", "parameter", "", ""))),
        ("invoke-marked", format!("<｜DSML｜tool_calls>\n{}\n</｜DSML｜tool_calls>", invoke("｜DSML｜", "parameter", " string=\"true\"", " string=\"false\""))),
        ("argument-pairs", format!(
            "<tool_call>get_weather\n{}</tool_call>\n<tool_call>search_docs\n{}</tool_call>",
            pairs(&[("city", "Köln"), ("unit", "celsius"), ("days", "2")]),
            pairs(&[("query", query), ("filters", filters), ("limit", "3")]),
        )),
        ("bare-json", format!("{}; {}", object("get_weather", WEATHER, "parameters"), object("search_docs", SEARCH, "parameters"))),
        ("list-after-mark", format!("[TOOL_CALLS][{w}, {s}]")),
        ("name-after-mark", format!("[TOOL_CALLS]get_weather[ARGS]{WEATHER}[TOOL_CALLS]search_docs[CALL_ID]a1B2c3D4e[ARGS]{SEARCH}")),
        ("action-list", format!(
            "<|START_ACTION|>[\n    {{\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {WEATHER}}},\n    {{\"tool_call_id\": \"1\", \"tool_name\": \"search_docs\", \"parameters\": {SEARCH}}}\n]<|END_ACTION|>"
        )),
        ("actions-in-code", format!(
            "Action: ```json\n[\n{{\"tool_name\": \"get_weather\", \"parameters\": {WEATHER}}},\n{{\"tool_name\": \"search_docs\", \"parameters\": {SEARCH}}}\n]```"
        )),
        ("list-after-role", format!("<|tool_call|>[{w}, {s}]")),
        ("tool-list", format!("<TOOLCALL>[{w}, {s}]</TOOLCALL>")),
        ("tool-list-in-tags", format!("<tool_calls>[{w}, {s}]</tool_calls>")),
        ("map-in-list", format!("<|tools_prefix|>[{{\"get_weather\": {WEATHER}}}, {{\"search_docs\": {SEARCH}}}]<|tools_suffix|>")),
        ("marked-names", format!("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{WEATHER}<｜tool▁call▁end｜><｜tool▁call▁begin｜>search_docs<｜tool▁sep｜>{SEARCH}<｜tool▁call▁end｜><｜tool▁calls▁end｜>")),
        ("marked-code", format!("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{WEATHER}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>search_docs\n```json\n{SEARCH}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>")),
        ("numbered", format!("<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{WEATHER}<|tool_call_end|><|tool_call_begin|>functions.search_docs:1<|tool_call_argument_begin|>{SEARCH}<|tool_call_end|><|tool_calls_section_end|>")),
        ("function-tags", format!("<function=get_weather>{WEATHER}</function>\n<function=search_docs>{SEARCH}</function>")),
        ("marked-notation", "<|tool_call>call:get_weather{city:<|\"|>Köln<|\"|>,days:2,unit:<|\"|>celsius<|\"|>}<tool_call|><|tool_call>call:search_docs{filters:{exact:true,tags:[<|\"|>a<|\"|>,<|\"|>ü<|\"|>]},limit:3,query:<|\"|>umbrella \"big\" & 'red'<|\"|>}<tool_call|>".into()),
        ("call-list", format!("<|tool_call_start|>{in_python}<|tool_call_end|>")),
        ("bare-call-list", in_python.to_owned()),
        ("channels", format!("<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{WEATHER}<|call|><|start|>assistant to=functions.search_docs<|channel|>commentary json<|message|>{SEARCH}<|call|>")),
        ("message-of-function", format!("<|message_sep|>\n\nfunction call<|role_sep|>\n{w}<|message_sep|>\n\nfunction call<|role_sep|>\n{s}")),
        ("plain", format!("```json\n{w}\n```\n{s}")),
    ]
}

fn is_expected(name: &str, answer: &Answer) {
    assert_eq!(answer.content, "", "{name}");
    let calls = &answer.calls;
    assert_eq!(calls.len(), 2, "{name}: {answer:?}");
    for ((found, _, arguments), (tool, expected)) in calls
        .iter()
        .zip([("get_weather", WEATHER), ("search_docs", SEARCH)])
    {
        assert_eq!(found, tool, "{name}");
        let arguments: Value =
            serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{name}: {e}: {arguments}"));
        let expected: Value = serde_json::from_str(expected).expect("JSON");
        assert_eq!(arguments, expected, "{name}");
    }
}

#[test]
fn every_format_is_read() {
    let samples = samples();
    for format in call_formats() {
        assert!(
            samples.iter().any(|(name, _)| *name == format.name),
            "no sample of {}",
            format.name
        );
    }
    for (name, text) in &samples {
        is_expected(name, &read(&mut parser(name), &[text]));
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        is_expected(name, &read(&mut parser(name), &pieces));
    }
}

#[test]
fn ids_that_a_model_writes_are_kept() {
    let all = samples();
    let ids = |format: &str| -> Vec<Option<String>> {
        let (name, text) = all
            .iter()
            .find(|(name, _)| *name == format)
            .expect("a sample");
        let calls = read(&mut parser(name), &[text]).calls;
        calls.into_iter().map(|(_, id, _)| id).collect()
    };
    assert_eq!(
        ids("numbered"),
        [
            Some("functions.get_weather:0".into()),
            Some("functions.search_docs:1".into())
        ]
    );
    assert_eq!(ids("name-after-mark"), [None, Some("a1B2c3D4e".into())]);
    assert_eq!(ids("json-in-tags"), [None, None]);
}

#[test]
fn what_is_no_call_is_content() {
    for (name, text) in [
        ("json-in-tags", "Use <tool_call> tags like this."),
        (
            "json-in-tags",
            "<tool_call>\n{\"name\": \"no_such_tool\", \"arguments\": {}}\n</tool_call>",
        ),
        ("json-in-tags", "<tool_call>\n{\"name\": \"get_wea"),
        (
            "json-in-tags",
            "<tool_call>\n{\"nome\": 1}\n</tool_call> and more",
        ),
        ("json-in-tags", "a < b, <tool"),
        ("bare-json", "{\"a\": 1}"),
        (
            "bare-json",
            "Hello {\"name\": \"get_weather\", \"parameters\": {}}",
        ),
        ("list-after-mark", "[TOOL_CALLS] are marks [1]"),
        ("functions-in-tags", "<tool_call>\n<function=nothing>\n"),
        ("bare-call-list", "[1, 2, 3]"),
        ("channels", "plain text"),
        ("plain", "```json\n{\"x\": 1}\n```\n"),
    ] {
        let found = read(&mut parser(name), &[text]);
        assert_eq!(found.content, text, "{name}");
        assert!(found.calls.is_empty(), "{name}: {found:?}");
    }
}

#[test]
fn a_call_that_is_cut_off_keeps_what_was_written() {
    let text = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K";
    let found = read_up_to(&mut parser("json-in-tags"), &[text], true);
    assert_eq!(
        found.calls,
        [("get_weather".into(), None, "{\"city\": \"K".into())]
    );
    assert_eq!(found.content, "");
}

#[test]
fn content_may_stand_before_calls() {
    let (_, text) = &samples()[0];
    let text = format!("<think>\nLet me see.\n</think>\n\nI look it up.\n\n{text}");
    let found = read(&mut parser("json-in-tags"), &[&text]);
    assert_eq!(found.content, "I look it up.");
    assert_eq!(found.reasoning, "Let me see.");
    assert_eq!(found.calls.len(), 2);
}

#[test]
fn objects_may_have_other_orders_and_forms() {
    for text in [
        r#"<tool_call>{"arguments": {"city": "Köln"}, "name": "get_weather"}</tool_call>"#,
        r#"<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Köln\"}"}</tool_call>"#,
        r#"<tool_call>{"id": 3, "name":"get_weather","arguments":{"city": "Köln"} , "x": [1]}</tool_call>"#,
        r#"<tool_call>{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln"}}}</tool_call>"#,
    ] {
        let found = read(&mut parser("json-in-tags"), &[text]);
        assert_eq!(found.content, "", "{text}");
        assert_eq!(
            found.calls,
            [("get_weather".into(), None, r#"{"city": "Köln"}"#.into())],
            "{text}"
        );
    }
    let found = read(
        &mut parser("json-in-tags"),
        &[r#"<tool_call>{"name": "get_weather"}</tool_call>"#],
    );
    assert_eq!(found.calls[0].2, "{}");
    let found = read(
        &mut parser("functions-in-tags"),
        &["<tool_call>\n<function=get_weather>\n</function>\n</tool_call>"],
    );
    assert_eq!(found.calls[0].2, "{}");
}

#[test]
fn reasoning_is_read_where_the_prompt_opened_it_and_where_it_did_not() {
    let with = |is_open| OutputParser::new(None, tools(), Some(think()), is_open);
    let read = |is_open, text: &str| {
        let found = read(&mut with(is_open), &[text]);
        (found.reasoning, found.content)
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        read(false, "<think>\na b\n</think>\n\nc "),
        pair("a b", "c ")
    );
    assert_eq!(read(true, "\na b\n</think>\n\nc"), pair("a b", "c"));
    assert_eq!(read(true, "a b"), pair("a b", ""));
    assert_eq!(
        read(false, " plain <think> x"),
        pair("", " plain <think> x")
    );
    assert_eq!(read(false, "<think></think>x"), pair("", "x"));
    assert_eq!(read(false, "<thin"), pair("", "<thin"));
    assert_eq!(read(false, "   "), pair("", "   "));
}

#[test]
fn channels_part_reasoning_and_content() {
    let text = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.";
    let found = read(&mut parser("channels"), &[text]);
    assert_eq!(
        (found.reasoning.as_str(), found.content.as_str()),
        ("Let me see.", "It is 4.")
    );
    let text = "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{}<|call|>";
    let found = read(&mut parser("channels"), &[text]);
    assert_eq!(found.calls, [("get_weather".into(), None, "{}".into())]);
}

fn split(text: &str, cuts: &[usize]) -> Vec<String> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    places.retain(|at| text.is_char_boundary(*at));
    places.extend([0, text.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|pair| text[pair[0]..pair[1]].to_owned())
        .collect()
}

proptest! {
    #[test]
    fn any_split_gives_the_same_calls(which in 0usize..25, cuts in prop::collection::vec(0usize..2000, 0..40), end in 0usize..2000) {
        let samples = samples();
        let (name, text) = &samples[which % samples.len()];
        // A text that is cut off, too.
        let mut end = end % (2 * text.len());
        while !text.is_char_boundary(end.min(text.len())) { end += 1; }
        let text = &format!("<think>ab</think>{}", &text[..end.min(text.len())]);
        let whole = read(&mut parser(name), &[text]);
        let pieces = split(text, &cuts);
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(read(&mut parser(name), &pieces), whole);
    }

    #[test]
    fn nothing_is_lost_of_text_with_marks(which in 0usize..25, words in prop::collection::vec(0usize..14, 0..24), cuts in prop::collection::vec(0usize..400, 0..12)) {
        let samples = samples();
        let format = format(samples[which % samples.len()].0);
        let marks: Vec<&str> = format.starts().chain(format.closers()).collect();
        let plain = ["{", "}", "[", "\"name\": ", "\"get_weather\"", "get_weather", " ", "\n", "ü", "<think>", "</think>", "<", ":", "x"];
        let all: Vec<&str> = plain.iter().copied().chain(marks).collect();
        let text: String = words.iter().map(|w| all[(w * 7 + which) % all.len()]).collect();
        let pieces = split(&text, &cuts);
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let parser = || OutputParser::new(Some(Arc::clone(&format)), tools(), Some(think()), false);
        prop_assert_eq!(read(&mut parser(), &pieces), read(&mut parser(), &[text.as_str()]));
    }
}
