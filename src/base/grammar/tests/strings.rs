//! Which strings a JSON Schema allows: patterns of ECMA-262, lengths, formats. The expected values are those of
//! `re.search` of the decoded string, and of the documents that define the formats.

use regex_automata::meta::Regex;
use serde_json::json;

use super::schemas::{COMPILER, allows_text, check, compiled, refuse};
use super::*;
use crate::util::test_rows::rows;

/// Patterns, strings that they match, and others, in JSON.
const PATTERNS: &str = r##"
^[^"]*$ ¦ ["", "a\\b", "é\n\u0001"] ¦ ["a\"b", "\""]
^[^"\\]+$ ¦ ["a/b", "\u007f"] ¦ ["a\\b", "a\"b", ""]
^[^\\/:*?"<>|]+$ ¦ ["a b.txt", "é"] ¦ ["a\"b", "a\\b", "a/b"]
^[\x00-\x1f]$ ¦ ["\u0000", "\n", "\u001f"] ¦ ["\"", "\\", " "]
[^"] ¦ ["a", "\"a"] ¦ ["\"", ""]
^[^\n]*$ ¦ ["ab"] ¦ ["a\nb"]
^"\\$ ¦ ["\"\\"] ¦ ["\"", "\\"]
^.$ ¦ ["a", "\"", "\\", "\t", "😀"] ¦ ["\n", "\r", "\u2028", "aa"]
^[a-z&&[^b]]$ ¦ ["a]", "&]", "[]", "^]"] ¦ ["a", "b"]
^[[:alpha:]]$ ¦ ["a]", "[]", ":]", "p]"] ¦ ["a", "b"]
^[a~~b]$ ¦ ["a", "~"] ¦ ["c"]
^[+--b]$ ¦ ["+", ",", "-", "b"] ¦ ["c"]
^[\w&&\d]$ ¦ ["a", "&", "1"] ¦ ["-"]
^[\w-]+$ ¦ ["a-b"] ¦ ["a+b"]
^[\d-x]$ ¦ ["1", "-", "x"] ¦ ["a"]
^[]$ ¦ [] ¦ ["", "]"]
^[^]$ ¦ ["a", "\n", "]"] ¦ [""]
^[\]]$ ¦ ["]"] ¦ ["a"]
^[\b]$ ¦ ["\b"] ¦ ["b"]
^\d$ ¦ ["7"] ¦ ["٣", "a"]
^\w\W$ ¦ ["a-", "_é"] ¦ ["éa", "ab"]
^\s\S$ ¦ ["\ufeffa", "\u00a0a", "\u2028x", " b"] ¦ ["\u0085a", "a "]
^\<\>\-\/\#\@$ ¦ ["<>-/#@"] ¦ ["<>"]
^\cJ\0\x41\u0042\u{43}$ ¦ ["\n\u0000ABC"] ¦ ["JABC"]
^\ud83d\ude00$ ¦ ["😀"] ¦ ["a"]
^[\u{1f600}-\u{1f602}]$ ¦ ["😁"] ¦ ["😃"]
^[^\u0000-\ud7ff\ue000-\uffff]$ ¦ ["😀"] ¦ ["\ud7ff", "\ue000", "a"]
^\p{Lu}\P{Lu}$ ¦ ["Éa"] ¦ ["aa"]
^a/b$ ¦ ["a/b"] ¦ ["ab"]
^a{2}$ ¦ ["aa"] ¦ ["a", "aaa"]
^a{,2}$ ¦ ["a{,2}"] ¦ ["a", ""]
^{}$ ¦ ["{}"] ¦ [""]
^x{a}$ ¦ ["x{a}"] ¦ ["x"]
^a+?b*?c??$ ¦ ["a", "aabc"] ¦ ["b"]
^a{0}b$ ¦ ["b"] ¦ ["ab"]
b ¦ ["abc", "b"] ¦ ["ac"]
^b ¦ ["bc"] ¦ ["ab"]
b$ ¦ ["ab"] ¦ ["bc"]
^a|b$ ¦ ["ax", "xb"] ¦ ["xay", ""]
(^|,)a(,|$) ¦ ["a", "x,a", "a,x", "x,a,y"] ¦ ["xa", "ax", "x,ay"]
^(a|)$ ¦ ["a", ""] ¦ ["b"]
^^a$$ ¦ ["a"] ¦ ["aa"]
a^b ¦ [] ¦ ["ab", "a^b"]
a*^b ¦ ["b", "bc"] ¦ ["ab"]
(^a)?b ¦ ["ab", "xb", "b"] ¦ ["a"]
x*$^ ¦ [""] ¦ ["x"]
(?<y>a)(?:b) ¦ ["ab"] ¦ ["a"]
∅ ¦ ["", "a\"b"] ¦ []
"##;

#[test]
fn patterns_are_those_of_ecma_262_over_the_decoded_string() {
    for [pattern, fits, others] in rows(PATTERNS) {
        let [fits, others] =
            [fits, others].map(|all| serde_json::from_str::<Vec<String>>(&all).expect("JSON"));
        if fits.is_empty() {
            refuse(
                &json!({ "type": "string", "pattern": pattern }).to_string(),
                "",
            );
            continue;
        }
        let compiled = compiled(&json!({ "type": "string", "pattern": pattern }));
        for (texts, expected) in [(fits, true), (others, false)] {
            for text in texts {
                let text = json!(text).to_string();
                assert_eq!(allows_text(&compiled, &text), expected, "{text} {pattern}");
            }
        }
    }
    for (pattern, message) in [
        ("(?=a)b", "look-around"),
        ("a(?<!b)", "look-around"),
        (r"(a)\1", "back references"),
        (r"(?<n>a)\k<n>", "back references"),
        (r"\bword\b", "borders of words"),
        ("(?x)a b", "no group of ECMA-262"),
        ("(?i:a)", "no group of ECMA-262"),
        (r"\A", "no escape of ECMA-262"),
        ("a)", "`)` without `(`"),
        ("(a", "`(` without `)`"),
        ("[a", "`[` without `]`"),
        ("*a", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("a{2,1}", "out of order"),
        ("[b-a]", "out of order"),
        ("[a--b]", "out of order"),
        ("(^a)*", "within a repetition"),
        (r"\p{Nothing}", "no property"),
    ] {
        let schema = json!({ "properties": { "a": { "pattern": pattern } } });
        let error = COMPILER.compile(Constraint::JsonSchema(schema)).err();
        let error = error.unwrap_or_else(|| panic!("{pattern}")).to_string();
        assert!(
            error.starts_with("schema/properties/a/pattern: pattern, column "),
            "{error}"
        );
        assert!(error.contains(message), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Patterns whose meaning is the same in both dialects, searched by another program.
    #[test]
    fn random_patterns_match_what_another_engine_finds(
        parts in prop::collection::vec(prop::sample::select(vec![
            "a", "b?", "[^\"]", "[^\\\\]*", "\"", "\\\\", "(?:a|\"b|\\\\)+", "[\\x00-\\x1f]", "^", "$", "(?:^|b)", "(?:a|$)", "|", "[^a]{1,2}",
        ]), 1..5),
        texts in prop::collection::vec("[ab\"\\\\\n\u{1}é]{0,4}", 12),
    ) {
        let pattern = parts.concat();
        let reference = Regex::new(&pattern).expect("a pattern");
        let compiled = COMPILER.compile(Constraint::JsonSchema(json!({ "type": "string", "pattern": pattern })));
        for text in texts {
            let fits = reference.is_match(text.as_str());
            match &compiled {
                Ok(compiled) => prop_assert_eq!(allows_text(compiled, &json!(text).to_string()), fits, "{:?} {}", text, pattern),
                Err(_) => prop_assert!(!fits, "{:?} {}", text, pattern),
            }
        }
    }
}

/// Formats, strings that have them and others, separated by two blanks; the empty one has none.
const FORMATS: &str = r#"
date ¦ 2024-02-29  2000-02-29  2023-12-31 ¦ 2023-02-29  1900-02-29  2023-04-31  2023-1-1
date-time ¦ 2023-01-02T03:04:05Z  2023-01-02T03:04:05.25+01:00 ¦ 2023-01-02 03:04:05Z  2023-01-02T24:00:00Z  2023-01-02T03:04:05
time ¦ 23:59:59Z ¦ 24:00:00Z  23:59:59
duration ¦ P1Y2M3D  PT1H  P2W  P1DT2S ¦ P  1Y  P1H  PT
email ¦ a.b@c-d.org  x+y@[127.0.0.1] ¦ a@  a..b@c  @b  a"b@c
hostname ¦ a  a-b.c ¦ -a  a-  a..b  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
ipv4 ¦ 255.0.10.99 ¦ 256.0.0.1  1.2.3  01.2.3.4
ipv6 ¦ ::  ::1  1:2:3:4:5:6:7:8  1::8  fe80::a:b  1:2:3:4:5:6:7:: ¦ 1:2:3:4:5:6:7  1::2::3  :::  12345::
uuid ¦ 123e4567-e89b-12d3-a456-426614174000 ¦ 123e4567e89b12d3a456426614174000
uri ¦ http://a.org/b?c#d  urn:x:y  mailto:a@b  http://[::1]:80/ ¦ a/b  http://a b  http://\  http://a"b
"#;

#[test]
fn formats_are_enforced_or_annotations() {
    let format = |format: &str, fits: &[&str], others: &[&str]| {
        let schema = json!({ "type": "string", "format": format }).to_string();
        let quoted = |all: &[&str]| -> Vec<String> {
            all.iter().map(|text| json!(text).to_string()).collect()
        };
        check(&schema, &quoted(fits), &quoted(others));
    };
    for [name, fits, others] in rows(FORMATS) {
        let [fits, others] = [&fits, &others].map(|all| all.split("  ").collect::<Vec<_>>());
        format(&name, &fits, &others);
        format(&name, &[], &[""]);
    }
    for name in ["binary", "int64", "uri-reference", "no-such", "unknown"] {
        format(name, &["", "anything \"\\"], &[]);
    }
    check(
        r#"{"format": "date", "properties": {"a": {}}}"#,
        &["3", "\"2023-01-01\""],
        &["\"x\""],
    );
}
