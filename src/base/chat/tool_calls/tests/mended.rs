//! Arguments in JSON that is malformed or cut off, text around calls, and calls in reasoning that is never closed.

use super::values::{json_of, read_as};
use super::*;
use crate::util::test_rows::rows;

#[test]
fn arguments_in_json_are_valid_or_the_call_is_content() {
    for (arguments, expected) in [
        (
            r#"{"cmd": "echo "hi"",}"#,
            Some(r#"{"cmd": "echo \"hi\""}"#),
        ),
        ("{}", Some("{}")),
        ("null", Some("{}")),
        ("\"\"", Some("{}")),
        (r#""{\"cmd\": \"a\"}""#, Some(r#"{"cmd": "a"}"#)),
        (
            "\"{\\\"cmd\\\": \\\"a\nb\\\"}\"",
            Some(r#"{"cmd": "a\nb"}"#),
        ),
        (r#"{"cmd": "abc"#, None),
        (r#"{"cmd" "a"}"#, None),
        ("[1]", None),
        ("5", None),
        ("\"abc\"", None),
        (r#""[1]""#, None),
    ] {
        let text =
            format!("<tool_call>\n{{\"name\": \"run\", \"arguments\": {arguments}}}\n</tool_call>");
        let (content, calls) = read_as("json-in-tags", json!({}), &text, false);
        match expected {
            Some(expected) => {
                assert_eq!(calls, [expected.to_owned()], "{text}");
                assert_eq!(content, "", "{text}");
            }
            None => {
                assert_eq!(
                    (content.as_str(), calls.len()),
                    (text.as_str(), 0),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn arguments_without_their_last_brackets_are_completed() {
    for (text, expected) in [
        ("{\"cmd\": \"a\"\n</tool_call>", Some(r#"{"cmd": "a"}"#)),
        ("{\"cmd\": \"a\", \n</tool_call>", Some(r#"{"cmd": "a"}"#)),
        ("{\"n\": 1\n</tool_call>", Some(r#"{"n": 1}"#)),
        ("{\"cmd\": \"a\"", Some(r#"{"cmd": "a"}"#)),
        ("{\"cmd\": [1", None),
        ("{\"cmd\": \"a", None),
        ("{\"cmd\":\n</tool_call>", None),
    ] {
        let text = format!("<tool_call>\n{{\"name\": \"run\", \"arguments\": {text}");
        let (content, calls) = read_as("json-in-tags", json!({}), &text, false);
        match expected {
            Some(expected) => {
                let found = calls[0].replace(['\n', ' '], "");
                assert_eq!(found, expected.replace(' ', ""), "{text}");
                assert_eq!(content, "", "{text}");
            }
            None => {
                assert_eq!(
                    (content.as_str(), calls.len()),
                    (text.as_str(), 0),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn long_arguments_leave_before_they_are_complete_and_are_valid_at_the_end() {
    let long = "x".repeat(5000);
    let start = format!("<tool_call>\n{{\"name\": \"run\", \"arguments\": {{\"cmd\": \"{long}");
    for rest in ["\"}}\n</tool_call>", "", "\", \"n\": oh}}\n</tool_call>"] {
        let text = format!("{start}{rest}");
        let (_, calls) = read_as("json-in-tags", json!({}), &text, false);
        assert_eq!(json_of(&calls), [json!({ "cmd": long })]);
    }
    let tool = Tool {
        name: "run".into(),
        parameters: json!({}),
    };
    let tags = Some(format("json-in-tags"));
    let mut parser = OutputParser::new(tags, Arc::new(vec![tool]), None, false);
    let spans = parser.push(&start);
    let is_text = |span: &OutputSpan| matches!(&span.part, Some(OutputPart::Arguments { text, .. }) if text.ends_with('x'));
    assert!(spans.iter().any(is_text), "{spans:?}");
}

#[test]
fn arguments_in_json_that_are_cut_off_stay_cut_off() {
    let text = r#"<tool_call>{"name": "run", "arguments": {"cmd": "a\n\u00e9", "n": [1, 2.5]}}</tool_call>"#;
    let start = text.find(r#"{"cmd"#).expect("arguments");
    let all = &text[start..text.len() - "}</tool_call>".len()];
    for (at, _) in all.char_indices().skip(1) {
        let (content, calls) = read_as("json-in-tags", json!({}), &text[..start + at], true);
        assert_eq!(content, "");
        assert_eq!(calls, [all[..at].to_owned()]);
    }
    let quoted = r#"<tool_call>{"name": "run", "arguments": "{\"cmd\": \"a"#;
    let (_, calls) = read_as("json-in-tags", json!({}), quoted, true);
    assert_eq!(calls, [r#"{"cmd": "a"#]);
}

#[test]
fn what_follows_arguments_without_the_end_of_their_object_is_not_lost() {
    let call = r#"<tool_call>{"name": "run", "arguments": {"a": 1}"#;
    for (rest, expected) in [
        ("\n</tool_call>\nDone.", "Done."),
        (", \"x\": [1]}\n</tool_call>\nDone.", "Done."),
        ("}\n</tool_call>\nDone.", "Done."),
    ] {
        let (content, calls) = read_as("json-in-tags", json!({}), &format!("{call}{rest}"), false);
        assert_eq!((content.as_str(), calls.len()), (expected, 1), "{rest}");
    }
}

/// Texts with `CALL` and `OTHER`, a call of no tool, and their content.
const APART: &str = "
I look.⏎CALL⏎Then I answer. ¦ I look.⏎Then I answer.
I look.⏎⏎CALL⏎⏎Then I answer.⏎ ¦ I look.⏎⏎Then I answer.⏎
I look.⏎CALLThen I answer. ¦ I look.⏎Then I answer.
I look.CALLThen I answer. ¦ I look.⏎Then I answer.
I look. CALL Then I answer. ¦ I look. Then I answer.
I look.⏎CALL⏎CALL⏎Then I answer. ¦ I look.⏎Then I answer.
I look.⏎CALL⏎Then⏎CALL⏎I answer. ¦ I look.⏎Then⏎I answer.
CALL⏎Then I answer. ¦ Then I answer.
I look.⏎CALL⏎ ¦ I look.
I look.⏎CALL⏎CALL ¦ I look.
I look.⏎CALL⏎OTHER ¦ I look.⏎OTHER
";

#[test]
fn texts_around_calls_stay_apart() {
    let call = "<tool_call>\n{\"name\": \"run\", \"arguments\": {}}\n</tool_call>";
    let other = "<tool_call>\n{\"name\": \"other\"}";
    for texts in rows::<2>(APART) {
        let [text, expected] = texts.map(|text| text.replace("CALL", call).replace("OTHER", other));
        let found = read_as("json-in-tags", json!({}), &text, false).0;
        assert_eq!(found, expected, "{text}");
    }
    let messages = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.";
    let found = read_as("channels", json!({}), messages, false).0;
    assert_eq!(found, "I look.\nIt is 4.");
}

#[test]
fn a_call_at_the_end_of_reasoning_that_is_never_closed_is_a_call() {
    let call =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\"}}\n</tool_call>";
    let read = |text: &str, is_cut: bool| {
        let found = read_up_to(&mut parser("json-in-tags"), &[text], is_cut);
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let in_pieces = read_up_to(&mut parser("json-in-tags"), &pieces, is_cut);
        assert_eq!(in_pieces, found, "{text}");
        (found.reasoning, found.content, found.calls.len())
    };
    let is =
        |reasoning: &str, content: &str, n: usize| (reasoning.to_owned(), content.to_owned(), n);
    let text = format!("<think>\nI run it.\n{call}");
    assert_eq!(read(&text, false), is("I run it.", "", 1));
    let text = format!("<think>\nI run it.\n{call}\n{call}\n");
    assert_eq!(read(&text, true), is("I run it.", "", 2));
    assert_eq!(read(&format!("<think>{call}"), false), is("", "", 1));
    // A block that is closed, a call within the text, no offered tool, no complete call.
    let quoted = format!("I could write\n{call}");
    let text = format!("<think>\n{quoted}\n</think>\n\nNo.");
    assert_eq!(read(&text, false), is(&quoted, "No.", 0));
    let within = format!("{quoted}\nor not");
    assert_eq!(
        read(&format!("<think>\n{within}"), false),
        is(&within, "", 0)
    );
    let other = quoted.replace("get_weather", "other");
    assert_eq!(read(&format!("<think>\n{other}"), false), is(&other, "", 0));
    let open = &quoted[..quoted.len() - "\"}}\n</tool_call>".len()];
    for is_cut in [false, true] {
        assert_eq!(read(&format!("<think>\n{open}"), is_cut), is(open, "", 0));
    }
}

proptest! {
    #[test]
    fn arguments_are_valid_json_however_the_text_goes_wrong(
        which in 0usize..25,
        at in 0usize..2000,
        junk in "[\"\\\\{}\\[\\],:<>/=a1 \n'()]{0,6}",
        cut in 0usize..2000,
        cuts in prop::collection::vec(0usize..2000, 0..20),
    ) {
        let samples = samples();
        let (name, text) = &samples[which % samples.len()];
        let boundary = |at: usize| {
            let mut at = at % (text.len() + 1);
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        let (at, cut) = (boundary(at), boundary(cut));
        let text = format!("{}{junk}{}", &text[..at], &text[at.max(cut)..]);
        let whole = read(&mut super::parser(name), &[&text]);
        for (_, _, arguments) in &whole.calls {
            let value = serde_json::from_str::<Value>(arguments);
            prop_assert!(value.is_ok_and(|value| value.is_object()), "{}: {} of {}", name, arguments, text);
        }
        let pieces = split(&text, &cuts);
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(read(&mut super::parser(name), &pieces), whole);
    }
}
