//! Arguments that are literals of Python: what `ast.literal_eval` and `json.dumps` make of them.

use super::*;
use crate::util::test_rows::rows;

/// A value as a model writes it in a pythonic call, and its JSON; `None`: the call is content.
fn argument(written: &str) -> Option<String> {
    let tool = Tool {
        name: "run".into(),
        parameters: json!({ "type": "object", "properties": { "a": {}, "b": {} } }),
    };
    let text = format!("<|tool_call_start|>[run({written})]<|tool_call_end|>");
    let mut parser =
        OutputParser::new(Some(format("call-list")), Arc::new(vec![tool]), None, false);
    let found = super::read(&mut parser, &[&text]);
    match found.calls.as_slice() {
        [] => {
            assert_eq!(found.content, text);
            None
        }
        [(_, _, arguments)] => {
            assert_eq!(found.content, "", "{written}");
            Some(arguments.clone())
        }
        all => panic!("{written}: {all:?}"),
    }
}

/// Values as they are written, and as JSON: those of Python 3.12.
const LITERALS: &str = r##"
"grep \d+ f.txt" ¦ "grep \\d+ f.txt"
"\u00e9 \x41 \101 \0 \U0001F600" ¦ "é A A \u0000 😀"
"\a\b\f\v\r\n\t" ¦ "\u0007\b\f\u000b\r\n\t"
"C:\dir\sub \\ \' \" \/ \%" ¦ "C:\\dir\\sub \\ ' \" \\/ \\%"
"a\⏎b" ¦ "ab"
"\N{BULLET}" ¦ "\\N{BULLET}"
"\ud83d\ude00" ¦ "😀"
'it\'s' ¦ "it's"
'say "hi"' ¦ "say \"hi\""
r'\d\'x' ¦ "\\d\\'x"
R'\n' u'\n' ¦ "\\n\n"
'' ¦ ""
"""x⏎"y" 'z'""" ¦ "x\n\"y\" 'z'"
'''a''' "b" 'c' ¦ "abc"
'a'⏎  # a comment with ' and )⏎  'b' ¦ "ab"
'\7\78\377\400' ¦ "\u0007\u00078ÿĀ"
"(]}, '#x' ü" ¦ "(]}, '#x' ü"
1 ¦ 1
-5 ¦ -5
+5 ¦ 5
- 5 ¦ -5
0 ¦ 0
00 ¦ 0
1_000 ¦ 1000
12345678901234567890123 ¦ 12345678901234567890123
0xFF ¦ 255
-0b101 ¦ -5
0o17 ¦ 15
0x_ff_ff ¦ 65535
0x123456789ABCDEF0123456789 ¦ 90144042682896311822508713865
.5 ¦ 0.5
5. ¦ 5.0
-1.50 ¦ -1.50
1e5 ¦ 1e5
1.5E-3 ¦ 1.5e-3
1_0.2_5e+1_0 ¦ 10.25e+10
007.5 ¦ 7.5
True ¦ true
False ¦ false
None ¦ null
true ¦ true
null ¦ null
(800, 600) ¦ [800, 600]
() ¦ []
(1) ¦ 1
(1,) ¦ [1]
(('a')) ¦ "a"
[1, 'b', None,] ¦ [1, "b", null]
[] ¦ []
[⏎  [1],⏎  (2, [3]),⏎] ¦ [[1], [2, [3]]]
{1, 2} ¦ [1, 2]
{1} ¦ [1]
set() ¦ []
{} ¦ {}
{'a': {'b': (1, 2),},} ¦ {"a": {"b": [1, 2]}}
{1: 'a', 1.5: 'b', True: 'c', None: 'd', 1e16: 'e', 1e-5: 'f'} ¦ {"1": "a", "1.5": "b", "true": "c", "null": "d", "1e+16": "e", "1e-05": "f"}
{'a': 1, 'b': 2, 'a': 3} ¦ {"a": 3, "b": 2}
"##;

#[test]
fn literals_are_those_of_python() {
    for [written, expected] in rows(LITERALS) {
        let found = argument(&format!("a={written}")).unwrap_or_else(|| panic!("{written}"));
        assert!(found.starts_with("{\"a\": "), "{written}: {found}");
        let read = |text: &str| serde_json::from_str::<Value>(text);
        let value = read(&found).unwrap_or_else(|e| panic!("{written}: {e}: {found}"));
        assert_eq!(
            value["a"],
            read(&expected).expect("JSON"),
            "{written}: {found}"
        );
        if !expected.starts_with('"') {
            assert_eq!(found, format!("{{\"a\": {expected}}}"));
        }
    }
}

#[test]
fn arguments_are_named_or_take_the_names_of_the_tool_in_order() {
    for (written, expected) in [
        ("", "{}"),
        (" ", "{}"),
        ("a=1,", r#"{"a": 1}"#),
        ("b = 1 , a = 2", r#"{"b": 1, "a": 2}"#),
        ("a=1,\n    b=2,\n", r#"{"a": 1, "b": 2}"#),
        ("1", r#"{"a": 1}"#),
        ("'x', 2", r#"{"a": "x", "b": 2}"#),
        ("'x', b=[')']", r#"{"a": "x", "b": [")"]}"#),
        ("user-id=5", r#"{"user-id": 5}"#),
    ] {
        assert_eq!(argument(written).as_deref(), Some(expected), "{written}");
    }
}

#[test]
fn what_python_or_json_cannot_say_is_content() {
    for written in [
        "a=f'x'",
        "a=b'x'",
        "a=rb'x'",
        "a=x",
        "a=1+2",
        "a='x'+'y'",
        "a='x' % 1",
        "a=g(1)",
        "a=1j",
        "a=1+2j",
        "a=inf",
        "a=float('nan')",
        "a=1e400",
        "a=--5",
        "a=-True",
        "a=01",
        "a=1__0",
        "a=_1",
        "a=1_",
        "a=0x",
        "a=0b2",
        "a=1.2.3",
        "a=.",
        "a=...",
        "a=[1 2]",
        "a=[,]",
        "a=(,)",
        "a={1: 2, 3}",
        "a={1, 2: 3}",
        "a={(1, 2): 3}",
        "a={'x'}['x']",
        r"a='\x4'",
        r"a='\u12'",
        r"a='\UFFFFFFFF'",
        "a=1 b=2",
        "a=1, a=2",
        "a=1, 2",
        "1, a=2",
        "1, 2, 3",
        "**{'a': 1}",
        "*[1]",
        "a==1",
        "a=lambda: 1",
        "a=[x for x in y]",
        "a=",
        ",",
        "a=1,,",
    ] {
        assert_eq!(argument(written), None, "{written}");
    }
    let deep = format!("a={}{}", "[".repeat(300), "]".repeat(300));
    assert_eq!(argument(&deep), None);
}

#[test]
fn long_pythonic_calls_are_calls() {
    let body = "x = (1, \"two\")  # ''\n".repeat(4000);
    let found = argument(&format!("a='''{body}'''")).expect("a call");
    let found: Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!(found["a"], body);
}

#[test]
fn marked_notation_keeps_digits() {
    let tool = Tool {
        name: "run".into(),
        parameters: json!({}),
    };
    let text = "<|tool_call>call:run{a:12345678901234567890123,b:[1.10,<|\"|>x} \\d<|\"|>],c:{d:null}}<tool_call|>";
    let marked = Some(format("marked-notation"));
    let mut parser = OutputParser::new(marked, Arc::new(vec![tool]), None, false);
    let found = super::read(&mut parser, &[text]);
    let expected = r#"{"a": 12345678901234567890123, "b": [1.10, "x} \\d"], "c": {"d": null}}"#;
    assert_eq!(found.calls, [("run".into(), None, expected.into())]);
}
