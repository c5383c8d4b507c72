//! Operators against the engine's own and Jinja2's, callables against Jinja2's, and hostile templates.
//!
//! The templates are in `tests/goldens/template_cases.toml`. `scripts/make_template_goldens.py` made
//! `tests/goldens/template_filters.json` with the engine that transformers sets up: every filter, test
//! and method on generated arguments.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use minijinja::{Environment, Value, context};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::chat_template::MAX_BYTES;
use super::preprocess::syntax;
use super::*;
use crate::util::measure::thread_time;

/// Each takes under half a second.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
struct Cases {
    expressions: Vec<String>,
    statements: Vec<String>,
    fails: Vec<String>,
    gives: toml::map::Map<String, toml::Value>,
    hostile_rounds: toml::map::Map<String, toml::Value>,
    hostile: toml::map::Map<String, toml::Value>,
    hostile_syntax: toml::map::Map<String, toml::Value>,
    /// Forms of callables by the reason why their results are not compared.
    different: BTreeMap<String, Vec<String>>,
    /// Forms of callables that are refused, by the reason.
    not_offered: BTreeMap<String, Vec<String>>,
    /// Forms that are refused for some values, by the reason.
    stricter: BTreeMap<String, Vec<String>>,
}

fn cases() -> Cases {
    let text = include_str!("../../../../tests/goldens/template_cases.toml");
    toml::from_str(text).expect("the file is of this form")
}

fn string(value: &toml::Value) -> &str {
    value.as_str().expect("a text")
}

fn input(messages: &Json) -> RenderInput<'_> {
    static NO_KWARGS: LazyLock<Map<String, Json>> = LazyLock::new(Map::new);
    RenderInput {
        messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: &NO_KWARGS,
        bos_token: "<s>",
        eos_token: "</s>",
        now: Moment::from_unix_seconds(0),
    }
}

fn render(source: &str) -> Result<String, RenderError> {
    let template = ChatTemplate::new(source).expect("the template compiles");
    let messages = json!([
        {"role": "user", "content": "Hello <b>"},
        {"role": "assistant", "content": "Hi"},
    ]);
    template.render(&input(&messages))
}

/// The guarded template must give what the engine alone gives.
#[track_caller]
fn same(source: &str) {
    let mut env = Environment::new();
    env.set_syntax(syntax());
    let messages: Value = [
        context! { role => "user", content => "Hello <b>" },
        context! { role => "assistant", content => "Hi" },
    ]
    .into_iter()
    .collect();
    let variables = context! { messages, add_generation_prompt => true, bos_token => "<s>" };
    let plain = env.render_str(source, variables);
    let plain = plain.unwrap_or_else(|error| panic!("{source}: {error:#}"));
    assert_eq!(render(source), Ok(plain), "{source}");
}

#[test]
fn operators_and_their_operands_are_the_engines() {
    for expression in cases().expressions {
        same(&format!("{{{{ [{expression}] }}}}"));
        same(&format!("{{{{{expression}}}}}"));
        same(&format!("{{%- set x = {expression} -%}} [{{{{- x }}}}]"));
    }
}

#[test]
fn statements_are_the_engines() {
    for source in cases().statements {
        same(&source);
    }
}

#[test]
fn literal_text_keeps_its_white_space() {
    let long = "a long piece of text";
    for [open, close] in [
        ["{% ", " %}"],
        ["{%- ", " -%}"],
        ["{%+ ", " +%}"],
        ["{%- ", " %}"],
    ] {
        same(&format!(
            "  {open}if 1{close}\n  {long}  \n  {open}endif{close}\n\n  {long}\n"
        ));
        let (open, close) = (open.replace('%', "{"), close.replace('%', "}"));
        let (comment, end) = (open.replace("{{", "{#"), close.replace("}}", "#}"));
        for (open, close) in [(open, close), (comment, end)] {
            same(&format!(
                "  {open}1{close}\n  {long}  \n  {open}2{close}\n\n  {long}\n"
            ));
        }
    }
    same(&format!(
        "{{% raw -%}}\n  {long} {{%+ endraw %}}\n  {long}\n"
    ));
}

#[test]
fn markup_and_lists_are_pythons() {
    let cases = cases();
    for (source, expected) in &cases.gives {
        assert_eq!(render(source).as_deref(), Ok(string(expected)), "{source}");
    }
    for source in &cases.fails {
        let result = render(source);
        let is_failure = matches!(result, Err(RenderError::Runtime { line: 1, .. }));
        assert!(is_failure, "{source}: {result:?}");
    }
}

#[test]
fn messages_show_literals_as_they_are_written() {
    let Err(RenderError::Runtime { line, message }) = render("\n{{ messages[0]['x'].y }}") else {
        panic!("the attribute of an undefined value");
    };
    assert_eq!(line, 2);
    assert!(
        message.contains("`messages[0]['x']` is undefined"),
        "{message}"
    );
}

/// The engine panics there; the server and the rendering's thread go on.
#[test]
fn a_panic_of_the_engine_is_a_failure_of_the_template() {
    let source = "{% for m in messages %}{{ loop.cycle() }}{% endfor %}";
    let Err(RenderError::Runtime { message, .. }) = render(source) else {
        panic!("a cycle of nothing");
    };
    assert_eq!(message, "the template engine failed");
    assert_eq!(render("{{ 1 }}").as_deref(), Ok("1"));
}

#[test]
fn what_is_no_list_of_messages_is_refused() {
    let template = ChatTemplate::new("{{ messages | length }}").expect("it compiles");
    let refused = |messages: Json| {
        template
            .render(&input(&messages))
            .map_err(|error| error.to_string())
    };
    for (messages, expected) in [
        (
            json!({}),
            "messages: expected a list of messages, found an object",
        ),
        (
            json!(null),
            "messages: expected a list of messages, found null",
        ),
        (
            json!("a"),
            "messages: expected a list of messages, found a string",
        ),
        (
            json!([{}, []]),
            "messages[1]: expected an object, found a list",
        ),
    ] {
        assert_eq!(refused(messages), Err(expected.to_owned()));
    }
    assert_eq!(refused(json!([])).as_deref(), Ok("0"));
}

#[test]
fn integers_beyond_64_bits_keep_their_digits() {
    let template =
        ChatTemplate::new("{{ messages[0].n }} {{ messages[0].n + 1 }} {{ messages[0] | tojson }}");
    let text = r#"[{"n": 12345678901234567890123, "list": [-99999999999999999999, 1e22, "12345678901234567890123", "\\\" 12345678901234567890123"]}]"#;
    let messages = serde_json::from_str(&keep_long_integers(text)).expect("JSON");
    let text = template.expect("it compiles").render(&input(&messages));
    let expected = r#"12345678901234567890123 12345678901234567890124 {"n": 12345678901234567890123, "list": [-99999999999999999999, 1e+22, "12345678901234567890123", "\\\" 12345678901234567890123"]}"#;
    assert_eq!(text.as_deref(), Ok(expected));
    let plain = r#"{"a": 18446744073709551615, "b": "x"}"#;
    assert!(matches!(
        keep_long_integers(plain),
        std::borrow::Cow::Borrowed(_)
    ));
}

#[test]
fn a_template_beyond_any_size_is_refused() {
    let error = ChatTemplate::new(&"x".repeat(MAX_BYTES + 1)).expect_err("too long");
    assert!(error.message.contains("expected at most"), "{error}");
}

/// Each must end by itself, soon, with an error; on a thread with the stack that tests get.
#[track_caller]
fn is_refused(what: &str, source: &str) {
    let before = thread_time();
    let result = ChatTemplate::new(source).map(|_| render(source));
    let elapsed = thread_time() - before;
    assert!(!matches!(result, Ok(Ok(_))), "{what} was rendered");
    if let Ok(Err(error)) = result {
        let is_limit = matches!(error, RenderError::Limit(_) | RenderError::Runtime { .. });
        assert!(is_limit, "{what}: {error:?}");
    }
    assert!(elapsed < PATIENCE, "{what} took {elapsed:?}");
}

#[test]
fn hostile_data_is_refused() {
    let rounds = "{% for i in range(100000) %}{% for j in range(1000) %}";
    let end = "{% endfor %}{% endfor %}";
    let ns = "{% set ns = namespace(x='aaaaaaaaaaaaaaaa', l=[1], d={}) %}";
    let big = "{% set big = 'a' * 1000000 %}";
    for (what, body) in &cases().hostile_rounds {
        is_refused(what, &format!("{ns}{big}{rounds}{}{end}", string(body)));
    }
}

#[test]
fn hostile_single_steps_are_refused() {
    for (what, source) in &cases().hostile {
        is_refused(what, string(source));
    }
}

/// Some of these the engine could take; none may end the process.
#[test]
fn hostile_syntax_does_no_harm() {
    for (what, parts) in &cases().hostile_syntax {
        let parts = parts.as_array().expect("a list");
        let source: String = parts
            .iter()
            .enumerate()
            .map(|(at, part)| match part.as_integer() {
                Some(n) => string(&parts[at - 1]).repeat(n as usize - 1),
                None => string(part).to_owned(),
            })
            .collect();
        let before = thread_time();
        if ChatTemplate::new(&source).is_ok() {
            let _ = render(&source);
        }
        assert!(thread_time() - before < PATIENCE, "{what}");
    }
}

#[test]
fn filters_tests_and_methods_are_those_of_jinja2() {
    let text = include_str!("../../../../tests/goldens/template_filters.json");
    let file: Json = serde_json::from_str(text).expect("JSON");
    let list = |json: &Json| json.as_array().expect("a list").clone();
    let (values, forms) = (list(&file["values"]), list(&file["forms"]));
    let cases = cases();
    let special = [&cases.different, &cases.not_offered, &cases.stricter];
    let (mut n_cases, mut n_special, mut wrong) = (0, 0, Vec::new());
    for form in &forms {
        let form = list(form);
        let expression = form[0].as_str().expect("an expression");
        let [is_different, is_refused, is_stricter] =
            special.map(|reasons| reasons.values().flatten().any(|form| form == expression));
        n_special += usize::from(is_different || is_refused || is_stricter);
        for case in form[1..].chunks_exact(2).filter(|_| !is_different) {
            n_cases += 1;
            let value = case[0].as_u64().expect("an index") as usize;
            let value = values[value].as_str().expect("a literal");
            let expression = expression.replace('@', &format!("({value})"));
            let source = format!("{{{{ {expression} }}}}");
            let compiles = ChatTemplate::new(&source).is_ok();
            let found = compiles.then(|| render(&source).ok()).flatten();
            let expected = case[1].as_str().filter(|_| !is_refused);
            if found.as_deref() != expected && !(is_stricter && found.is_none()) {
                wrong.push(format!("{source}\n  {found:?}\n  expected {expected:?}"));
            }
        }
    }
    let listed = special
        .iter()
        .flat_map(|reasons| reasons.values().flatten());
    assert_eq!(n_special, listed.count(), "a form is no more");
    assert!(n_cases > 5000, "{n_cases} cases");
    let n = wrong.len();
    assert!(
        n == 0,
        "{n} of {n_cases} cases differ:\n{}",
        wrong.join("\n")
    );
}
