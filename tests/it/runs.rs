//! `bench run`: where its prompt comes from, and how it ends.

use serde_json::{Value, json};

use crate::support::command::{
    bench, check_refused, ended, made_up, printed, program, scratch, text,
};
use crate::tools::{model, template};

#[test]
fn a_prompt_is_read_from_a_file_and_from_stdin() {
    let folder = scratch();
    let file = folder.path().join("prompt.txt");
    let answer = printed(&["run", "What is 17 plus 5?"]);
    for end in ["", "\n", "\r\n"] {
        std::fs::write(&file, format!("What is 17 plus 5?{end}")).expect("a writable folder");
        assert_eq!(printed(&["run", "-f", text(&file)]), answer, "{end:?}");
        for arguments in [&["run", "-"][..], &["run", "--file", "-"]] {
            let input = std::fs::File::open(&file).expect("a file");
            let ran = ended(program(arguments).stdin(input));
            assert!(ran.is_fine(), "{}", ran.err);
            assert_eq!(ran.out, answer, "{end:?}");
        }
    }
    // Longer than a command line can be.
    let long = "the sea is wide and deep ".repeat(10_000);
    std::fs::write(&file, &long).expect("a writable folder");
    let ran = bench(&["run", "--raw", "-f", text(&file)]);
    assert_eq!(ran.code, 1);
    for part in ["the prompt has ", " and the context holds 512; --ctx N"] {
        assert!(ran.err.contains(part), "{}", ran.err);
    }
    std::fs::write(&file, b"ab\xff").expect("a writable folder");
    check_refused(
        &["run", "-f", text(&file)],
        1,
        &["prompt.txt: not UTF-8 at byte 2"],
    );
    check_refused(&["run", "-f", "nowhere"], 1, &["nowhere: "]);
    check_refused(&["run"], 2, &["PROMPT"]);
    check_refused(&["run", "A", "Hi", "-f", "nowhere"], 1, &["given twice"]);
}

#[test]
fn the_model_of_a_run_may_stand_before_the_prompt() {
    let folder = scratch();
    let path = model(
        folder.path(),
        "other.gguf",
        &template("{{ messages[0].content }}", ""),
    );
    let (path, file) = (text(&path), folder.path().join("prompt.txt"));
    std::fs::write(&file, "Hi").expect("a writable folder");
    let answer = printed(&["run", "-n", "4", "-m", path, "Hi"]);
    assert_eq!(printed(&["run", "-n", "4", path, "Hi"]), answer);
    assert_eq!(
        printed(&["run", "-n", "4", path, "-f", text(&file)]),
        answer
    );
    check_refused(&["run", "-m", path, path, "Hi"], 1, &["given twice"]);
    check_refused(&["run", path], 1, &["is a model", "PROMPT`; `bench chat "]);
    check_refused(&["run", path, "Hi", "Ho"], 2, &["'Ho'"]);
}

#[test]
fn a_quiet_run_prints_the_completion_alone() {
    let ran = bench(&["run", "-q", "2+2=?"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(ran.out, printed(&["run", "2+2=?"]));
    assert!(
        bench(&["run", "2+2=?"])
            .err
            .contains(" completion tokens at ")
    );
}

#[test]
fn tools_and_reasoning_efforts_reach_the_template() {
    let folder = scratch();
    let own = "{% if tools %}{{ tools[0].function.name }}{% endif %}{{ reasoning_effort }}";
    let path = model(folder.path(), "efforts.gguf", &template(own, ""));
    let at = |name: &str| folder.path().join(name);
    let tools = r#"[{"type": "function", "function": {"name": "get_weather"}}]"#;
    std::fs::write(at("tools.json"), tools).expect("a writable folder");
    let tokens = |more: &[&str]| {
        let first = ["run", "Hi", "-n", "1", "-m", text(&path)];
        let ran = bench(&[&first[..], more].concat());
        assert!(ran.is_fine(), "{}", ran.err);
        let n = ran
            .err
            .trim_start_matches('[')
            .split(' ')
            .next()
            .map(str::parse::<usize>);
        n.expect("a line").expect("a number")
    };
    let file = at("tools.json");
    let plain = tokens(&[]);
    assert!(tokens(&["--tools", text(&file)]) > plain);
    assert!(tokens(&["--reasoning-effort", "low"]) > plain);
    let effort = ["run", "Hi", "--reasoning-effort", "huge"];
    check_refused(
        &effort,
        1,
        &["`reasoning_effort` is `huge`, expected one of"],
    );
    check_refused(
        &["run", "Hi", "--raw", "--tools", "x"],
        2,
        &["cannot be used with"],
    );
    let bare = made_up(folder.path(), "llama", &[]);
    check_refused(
        &["run", "Hi", "-m", text(&bare), "--system", "x"],
        1,
        &["no chat template"],
    );
}

#[test]
fn an_incomplete_answer_has_an_exit_code_of_its_own() {
    let folder = scratch();
    let schema = folder.path().join("person.json");
    let person = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age"],
        "properties": { "name": { "enum": ["Ann", "Bob"] }, "age": { "type": "integer", "minimum": 0, "maximum": 120 } },
    });
    std::fs::write(&schema, person.to_string()).expect("a writable folder");
    let run = ["run", "A person", "--json-schema", text(&schema)];
    let ran = bench(&[&run[..], &["-n", "4"]].concat());
    assert_eq!(ran.code, 3, "{}", ran.err);
    for part in ["error: the completion is incomplete", "--max-tokens N"] {
        assert!(ran.err.contains(part), "{}", ran.err);
    }
    let ran = bench(
        &[
            &["run", "Hi", "--regex", "[a-z]{2000}"][..],
            &["--ctx", "64"],
        ]
        .concat(),
    );
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.err.contains("--ctx N"), "{}", ran.err);
    // Quiet or not, the failure is said.
    let ran = bench(&[&run[..], &["-n", "4", "-q"]].concat());
    assert_eq!(ran.code, 3);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    // Whole at the limit is whole.
    let ran = bench(&["run", "Hi", "--regex", "[0-9]{3,}", "-n", "9"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = bench(&[&run[..], &["-n", "200"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        serde_json::from_str::<Value>(&ran.out).is_ok(),
        "{}",
        ran.out
    );
    // Without a constraint a cut is no failure.
    assert_eq!(bench(&["run", "Hi", "-n", "1"]).code, 0);
}
