//! Which texts a JSON Schema allows. The expected values are those of the specification: jsonschema of the decoded value,
//! `re.search` of a decoded string, exact integers.

use regex_automata::meta::Regex;
use serde_json::{Value, json};

use super::*;

static COMPILER: LazyLock<Arc<Compiler>> =
    LazyLock::new(|| Arc::new(Compiler::without_forcing(byte_level())));

fn compiled(schema: &Value) -> Compiled {
    let compiled = COMPILER.compile(Constraint::JsonSchema(schema.clone()));
    compiled.unwrap_or_else(|error| panic!("{error}: {schema}"))
}

/// Whether an answer can be this text.
fn allows_text(compiled: &Compiled, text: &str) -> bool {
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
fn check(schema: &str, fits: &[&str], others: &[&str]) {
    let schema: Value = serde_json::from_str(schema).expect("JSON");
    let compiled = compiled(&schema);
    for (texts, expected) in [(fits, true), (others, false)] {
        for text in texts {
            assert_eq!(allows_text(&compiled, text), expected, "{text:?}: {schema}");
        }
    }
}

/// Checks that a schema is refused, with this place.
fn refuse(schema: &str, place: &str) {
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

/// Patterns, strings that they match, and others.
const PATTERNS: &[(&str, &[&str], &[&str])] = &[
    // Quotation marks and backslashes are characters like others.
    (r#"^[^"]*$"#, &["", "a\\b", "é\n\u{1}"], &["a\"b", "\""]),
    (r#"^[^"\\]+$"#, &["a/b", "\u{7f}"], &["a\\b", "a\"b", ""]),
    (
        r#"^[^\\/:*?"<>|]+$"#,
        &["a b.txt", "é"],
        &["a\"b", "a\\b", "a/b"],
    ),
    (
        r"^[\x00-\x1f]$",
        &["\u{0}", "\n", "\u{1f}"],
        &["\"", "\\", " "],
    ),
    (r#"[^"]"#, &["a", "\"a"], &["\"", ""]),
    (r"^[^\n]*$", &["ab"], &["a\nb"]),
    (r#"^"\\$"#, &["\"\\"], &["\"", "\\"]),
    (
        "^.$",
        &["a", "\"", "\\", "\t", "😀"],
        &["\n", "\r", "\u{2028}", "aa"],
    ),
    // Classes of ECMA-262 have no operators.
    ("^[a-z&&[^b]]$", &["a]", "&]", "[]", "^]"], &["a", "b"]),
    ("^[[:alpha:]]$", &["a]", "[]", ":]", "p]"], &["a", "b"]),
    ("^[a~~b]$", &["a", "~"], &["c"]),
    ("^[+--b]$", &["+", ",", "-", "b"], &["c"]),
    (r"^[\w&&\d]$", &["a", "&", "1"], &["-"]),
    (r"^[\w-]+$", &["a-b"], &["a+b"]),
    (r"^[\d-x]$", &["1", "-", "x"], &["a"]),
    ("^[]$", &[], &["", "]"]),
    ("^[^]$", &["a", "\n", "]"], &[""]),
    (r"^[\]]$", &["]"], &["a"]),
    (r"^[\b]$", &["\u{8}"], &["b"]),
    // Escapes.
    (r"^\d$", &["7"], &["٣", "a"]),
    (r"^\w\W$", &["a-", "_é"], &["éa", "ab"]),
    (
        r"^\s\S$",
        &["\u{feff}a", "\u{a0}a", "\u{2028}x", " b"],
        &["\u{85}a", "a "],
    ),
    (r"^\<\>\-\/\#\@$", &["<>-/#@"], &["<>"]),
    (r"^\cJ\0\x41\u0042\u{43}$", &["\n\0ABC"], &["JABC"]),
    (r"^\ud83d\ude00$", &["😀"], &["a"]),
    (r"^[\u{1f600}-\u{1f602}]$", &["😁"], &["😃"]),
    (r"^\p{Lu}\P{Lu}$", &["Éa"], &["aa"]),
    ("^a/b$", &["a/b"], &["ab"]),
    // Quantifiers and braces.
    ("^a{2}$", &["aa"], &["a", "aaa"]),
    ("^a{,2}$", &["a{,2}"], &["a", ""]),
    ("^{}$", &["{}"], &[""]),
    ("^x{a}$", &["x{a}"], &["x"]),
    ("^a+?b*?c??$", &["a", "aabc"], &["b"]),
    ("^a{0}b$", &["b"], &["ab"]),
    // Anchors anywhere.
    ("b", &["abc", "b"], &["ac"]),
    ("^b", &["bc"], &["ab"]),
    ("b$", &["ab"], &["bc"]),
    ("^a|b$", &["ax", "xb"], &["xay", ""]),
    (
        "(^|,)a(,|$)",
        &["a", "x,a", "a,x", "x,a,y"],
        &["xa", "ax", "x,ay"],
    ),
    ("^(a|)$", &["a", ""], &["b"]),
    ("^^a$$", &["a"], &["aa"]),
    ("a^b", &[], &["ab", "a^b"]),
    ("a*^b", &["b", "bc"], &["ab"]),
    ("(^a)?b", &["ab", "xb", "b"], &["a"]),
    ("x*$^", &[""], &["x"]),
    ("(?<y>a)(?:b)", &["ab"], &["a"]),
    ("", &["", "a\"b"], &[]),
];

#[test]
fn patterns_are_those_of_ecma_262_over_the_decoded_string() {
    for (pattern, fits, others) in PATTERNS {
        if fits.is_empty() {
            refuse(
                &json!({ "type": "string", "pattern": pattern }).to_string(),
                "",
            );
            continue;
        }
        let compiled = compiled(&json!({ "type": "string", "pattern": pattern }));
        for (texts, expected) in [(fits, true), (others, false)] {
            for text in *texts {
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

#[test]
fn lengths_count_characters() {
    check(
        r#"{"type": "string", "minLength": 2, "maxLength": 3.0}"#,
        &[r#""\"\\""#, r#""é😀\n""#, "\"ab\""],
        &[r#""a""#, r#""abcd""#, r#""\n""#],
    );
    check(
        r#"{"type": "string", "pattern": "^[^a]*$", "maxLength": 2, "minLength": 1}"#,
        &[r#""\"""#, r#""b\\""#],
        &[r#""""#, r#""bbb""#, r#""a""#],
    );
    check(
        r#"{"type": "array", "minItems": 1.0, "maxItems": 2.0}"#,
        &["[1]", "[1, \"a\"]"],
        &["[]", "[1,2,3]"],
    );
    for (schema, place) in [
        (r#"{"type": "string", "maxLength": 1.5}"#, "/maxLength"),
        (r#"{"type": "string", "minLength": -1}"#, "/minLength"),
        (r#"{"type": "string", "minLength": 3, "maxLength": 2}"#, ""),
        (
            r#"{"type": "string", "pattern": "^aaa$", "maxLength": 2}"#,
            "",
        ),
        (r#"{"type": "array", "minItems": "2"}"#, "/minItems"),
    ] {
        refuse(schema, place);
    }
}

#[test]
fn formats_are_enforced_or_annotations() {
    let format = |format: &str, fits: &[&str], others: &[&str]| {
        let schema = json!({ "type": "string", "format": format }).to_string();
        let [fits, others] = [fits, others].map(|all| {
            all.iter()
                .map(|text| json!(text).to_string())
                .collect::<Vec<_>>()
        });
        let [fits, others] =
            [&fits, &others].map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
        check(&schema, &fits, &others);
    };
    format(
        "date",
        &["2024-02-29", "2000-02-29", "2023-12-31"],
        &["2023-02-29", "1900-02-29", "2023-04-31", "2023-1-1", ""],
    );
    format(
        "date-time",
        &["2023-01-02T03:04:05Z", "2023-01-02T03:04:05.25+01:00"],
        &[
            "2023-01-02 03:04:05Z",
            "2023-01-02T24:00:00Z",
            "2023-01-02T03:04:05",
        ],
    );
    format("time", &["23:59:59Z"], &["24:00:00Z", "23:59:59"]);
    format(
        "duration",
        &["P1Y2M3D", "PT1H", "P2W", "P1DT2S"],
        &["P", "1Y", "P1H", "PT"],
    );
    format(
        "email",
        &["a.b@c-d.org", "x+y@[127.0.0.1]"],
        &["a@", "a..b@c", "@b", "a\"b@c"],
    );
    format(
        "hostname",
        &["a", "a-b.c"],
        &["-a", "a-", "a..b", &"a".repeat(64)],
    );
    format(
        "ipv4",
        &["255.0.10.99"],
        &["256.0.0.1", "1.2.3", "01.2.3.4"],
    );
    format(
        "ipv6",
        &[
            "::",
            "::1",
            "1:2:3:4:5:6:7:8",
            "1::8",
            "fe80::a:b",
            "1:2:3:4:5:6:7::",
        ],
        &["1:2:3:4:5:6:7", "1::2::3", ":::", "12345::"],
    );
    format(
        "uuid",
        &["123e4567-e89b-12d3-a456-426614174000"],
        &["123e4567e89b12d3a456426614174000"],
    );
    format(
        "uri",
        &[
            "http://a.org/b?c#d",
            "urn:x:y",
            "mailto:a@b",
            "http://[::1]:80/",
        ],
        &["a/b", "http://a b", "http://\\", "http://a\"b"],
    );
    for name in ["binary", "int64", "uri-reference", "no-such", "unknown"] {
        format(name, &["", "anything \"\\"], &[]);
    }
    check(
        r#"{"format": "date", "properties": {"a": {}}}"#,
        &["3", "\"2023-01-01\""],
        &["\"x\""],
    );
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
        &[r#"{"secrets":1}"#, "{}", "3"],
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
