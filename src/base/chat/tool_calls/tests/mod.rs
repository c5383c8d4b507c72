//! Every format with calls as models write them, in one piece and in many.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::util::test_rows::rows;

mod literals;
mod mended;
pub(crate) mod samples;
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

/// Formats and texts with two calls.
fn samples() -> Vec<(String, String)> {
    let calls = [("get_weather", WEATHER), ("search_docs", SEARCH)];
    let calls = calls.map(|(name, text)| (name, serde_json::from_str(text).expect("JSON")));
    let sample = |name: String| (name.clone(), samples::sample(&name, &calls));
    samples::names().map(sample).collect()
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
    let ids = |format: &str, text: &str| -> Vec<Option<String>> {
        let calls = read(&mut parser(format), &[text]).calls;
        calls.into_iter().map(|(_, id, _)| id).collect()
    };
    let all: HashMap<String, String> = samples().into_iter().collect();
    let numbers = [0, 1].map(|n| {
        Some(format!(
            "functions.{}:{n}",
            ["get_weather", "search_docs"][n]
        ))
    });
    assert_eq!(ids("numbered", &all["numbered"]), numbers);
    assert_eq!(ids("json-in-tags", &all["json-in-tags"]), [None, None]);
    let text = "[TOOL_CALLS]get_weather[ARGS]{}[TOOL_CALLS]search_docs[CALL_ID]a1B2c3D4e[ARGS]{}";
    assert_eq!(
        ids("name-after-mark", text),
        [None, Some("a1B2c3D4e".into())]
    );
}

const NO_CALLS: &str = r#"
json-in-tags ¦ Use <tool_call> tags like this.
json-in-tags ¦ <tool_call>⏎{"name": "no_such_tool", "arguments": {}}⏎</tool_call>
json-in-tags ¦ <tool_call>⏎{"name": "get_wea
json-in-tags ¦ <tool_call>⏎{"nome": 1}⏎</tool_call> and more
json-in-tags ¦ a < b, <tool
bare-json ¦ {"a": 1}
bare-json ¦ Hello {"name": "get_weather", "parameters": {}}
list-after-mark ¦ [TOOL_CALLS] are marks [1]
functions-in-tags ¦ <tool_call>⏎<function=nothing>⏎
bare-call-list ¦ [1, 2, 3]
channels ¦ plain text
plain ¦ ```json⏎{"x": 1}⏎```⏎
"#;

#[test]
fn what_is_no_call_is_content() {
    for [name, text] in rows(NO_CALLS) {
        let found = read(&mut parser(&name), &[&text]);
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
        let format = format(&samples[which % samples.len()].0);
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
