//! `bench chat` through pipes.

use std::fs::File;
use std::path::{Path, PathBuf};

use lab_sampling::PARAMETERS;
use serde_json::{Value, json};

use crate::support::command::{Ran, ended, printed, program, scratch, text};
use crate::support::server::Server;
use crate::tools::{TAGGED, calling, model, plain_template, serve, template};

/// A conversation with these lines.
pub(crate) fn talk(arguments: &[&str], lines: &str) -> Ran {
    let folder = scratch();
    let path = written(folder.path(), "lines", lines);
    let lines = File::open(path).expect("it was written");
    ended(program(&[&["chat"], arguments].concat()).stdin(lines))
}

/// What is printed in a conversation without failures.
#[track_caller]
pub(crate) fn said(arguments: &[&str], lines: &str) -> String {
    let ran = talk(arguments, lines);
    assert!(ran.is_fine(), "{lines}: {}", ran.err);
    ran.out
}

pub(crate) fn written(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a writable folder");
    path
}

pub(crate) fn saved(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("it was saved");
    serde_json::from_str(&text).expect("JSON")
}

/// The server's answer to a conversation.
fn answered(server: &Server, messages: &[Value], extra: &Value) -> Value {
    let mut body = json!({ "model": "default", "temperature": 0, "seed": 0, "messages": messages });
    for (name, value) in extra.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let (_, models) = server.json("GET", "/v1/models", &Value::Null);
    body["model"] = models["data"][0]["id"].clone();
    let (status, answer) = server.json("POST", "/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
    answer["choices"][0].clone()
}

pub(crate) fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

#[test]
fn answers_are_those_of_run() {
    let prompt = "What is 17 plus 5?";
    for arguments in [
        &[][..],
        &["-n", "3"],
        &["--system", "You are kind.", "--stop", "22"],
        &["--temperature", "1.5", "--seed", "7", "--top-k", "9"],
        &["--logit-bias", "40=3.5", "--logit-bias", "41=-inf"],
        &["--regex", "[0-9]{3,5} apples", "--repeat-penalty", "1.3"],
        &["--temperature", "1.2", "--samplers", "top_k,temperature"],
        &["--dry-multiplier", "2", "--dry-sequence-breaker", "a"],
        &["-m", "tiny-diffusion", "-n", "16", "--steps", "8"],
    ] {
        let run = printed(&[&["run", prompt], arguments].concat());
        assert_eq!(said(arguments, prompt), run, "{arguments:?}");
    }
}

#[test]
fn a_conversation_has_the_answers_of_the_server() {
    let server = Server::start(&[]);
    let folder = scratch();
    let file = folder.path().join("messages.json");
    let mut messages = vec![json!({ "role": "system", "content": "You are kind." })];
    let (mut lines, mut expected) = ("/system You are kind.\n".to_owned(), String::new());
    for question in ["Hello", "What is 17 plus 5?", "Two\nlines\\"] {
        messages.push(user(question));
        let choice = answered(&server, &messages, &json!({}));
        let content = choice["message"]["content"].as_str().expect("content");
        messages.push(json!({ "role": "assistant", "content": content }));
        expected += &format!("{content}\n");
        lines += &match question {
            "Two\nlines\\" => "\"\"\"\nTwo\nlines\\\n\"\"\"\n".to_owned(),
            other => format!("{other}\n"),
        };
    }
    lines += &format!("/save {}\n", text(&file));
    assert_eq!(said(&[], &lines), expected);
    assert_eq!(saved(&file), json!(messages));

    // The same again from the file, with another last question.
    messages.truncate(5);
    messages.push(user("Hi\nyou"));
    let choice = answered(&server, &messages, &json!({ "max_tokens": 2 }));
    let lines = format!(
        "/load {}\n/undo\n/set max_tokens 2\nHi\\\nyou\n",
        text(&file)
    );
    let content = choice["message"]["content"].as_str().expect("content");
    assert_eq!(said(&[], &lines), format!("{content}\n"));

    // And the rest of that answer.
    messages.push(choice["message"].clone());
    let fields = json!({ "continue_final_message": true });
    let rest = answered(&server, &messages, &fields)["message"]["content"].clone();
    let rest = rest.as_str().expect("content");
    let more = format!(
        "/set max_tokens default\n/continue\n/save --force {}\n",
        text(&file)
    );
    assert_eq!(said(&[], &(lines + &more)), format!("{content}\n{rest}\n"));
    let last = saved(&file)[6]["content"].clone();
    assert_eq!(last, format!("{content}{rest}"));
}

#[test]
fn log_probabilities_are_listed_without_colours() {
    let server = Server::start(&[]);
    let wanted = json!({ "logprobs": true });
    let choice = answered(&server, &[user("Hello")], &wanted);
    let entries = choice["logprobs"]["content"].as_array().expect("entries");
    let line = |entry: &Value| {
        let (logprob, token) = (entry["logprob"].as_f64(), entry["token"].as_str());
        format!(
            "{:10.4} {:?}\n",
            logprob.expect("a number"),
            token.expect("a text")
        )
    };
    let list: String = entries.iter().map(line).collect();
    let content = choice["message"]["content"].as_str().expect("content");
    assert_eq!(
        said(&[], "/logprobs\nHello\n/logprobs\nHello\n/undo\n"),
        format!(
            "{content}\n{list}{}",
            said(&[], "Hello\n/undo\nHello\nHello").split_off(2 * content.len() + 2)
        )
    );
}

#[test]
fn answers_are_made_again_and_messages_undone() {
    let at_random = &["--temperature", "1.9", "--seed", "3"];
    let run = |seed: &str| {
        printed(&[
            "run",
            "Tell me a story",
            "--temperature",
            "1.9",
            "--seed",
            seed,
        ])
    };
    let [first, second, third] = ["3", "4", "5"].map(run);
    assert!(first != second && second != third, "{first}{second}{third}");
    assert_eq!(
        said(
            at_random,
            "Tell me a story\n/retry\n/retry\n/undo\nTell me a story\n"
        ),
        format!("{first}{second}{third}{first}")
    );
    let folder = scratch();
    let file = folder.path().join("left.json");
    let lines = format!(
        "Hi\nHello\n/undo\n/undo\n/save {0}\n/load {0}\n",
        text(&file)
    );
    let ran = talk(&[], &lines);
    assert_eq!(saved(&file), json!([]));
    assert!(
        ran.err.contains("expected an array of messages"),
        "{}",
        ran.err
    );
    let lines = format!("Hi\n/reset\n/save --force {}\n", text(&file));
    said(&["--system", "You are kind."], &lines);
    assert_eq!(
        saved(&file),
        json!([{ "role": "system", "content": "You are kind." }])
    );
}

#[test]
fn settings_are_the_fields_of_requests() {
    let all = said(
        &["--top-k", "40"],
        "/set\n/set top_k 7\n/set top_k\n/set top_k default\n/set top_k\n/set stop [\"a\", \"b\"]\n/set stop\n",
    );
    for parameter in PARAMETERS {
        let start = format!("{} = ", parameter.name);
        let line = all.lines().find(|line| line.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("{}: {all}", parameter.name));
        assert!(line.ends_with(&parameter.help()), "{line}");
    }
    for line in [
        "top_k = 40    ",
        "temperature = 0.0    ",
        "seed = 0\n",
        "samplers = [\"logit_bias\",",
        "logit_bias = []",
    ] {
        assert!(all.contains(line), "{line}: {all}");
    }
    let end = "top_k = 7\ntop_k = 40\nstop = [\"a\",\"b\"]\n";
    assert!(all.ends_with(end), "{all}");
    // What is set holds.
    let run = printed(&["run", "Hello", "--temperature", "1.9", "--seed", "3"]);
    assert_eq!(said(&[], "/set temperature 1.9\n/set seed 3\nHello\n"), run);
}

#[test]
fn mistakes_are_said_and_change_nothing() {
    let folder = scratch();
    let file = |name: &str, content: &str| text(&written(folder.path(), name, content)).to_owned();
    let (no_json, no_schema) = (
        file("no.json", "{"),
        file("bad.json", "{\"type\": \"blue\"}"),
    );
    let no_messages = file("messages.json", "[{\"role\": \"user\", \"content\": 1}]");
    let no_tools = file("tools.json", "[{\"type\": \"function\"}]");
    let grammar = file("bad.gbnf", "root ::= nothing\n");
    let mistakes = [
        (
            "/retri".to_owned(),
            "there is no command /retri; did you mean /retry?",
        ),
        ("/".to_owned(), "there is no command /; "),
        ("/reset now".to_owned(), "/reset takes nothing after it"),
        ("/save".to_owned(), "/save needs the name of a file"),
        ("/retry".to_owned(), "there is no message to answer"),
        ("/undo".to_owned(), "there is no message to undo"),
        ("/continue".to_owned(), "there is nothing to continue"),
        (
            "/set temprature 1".to_owned(),
            "unknown parameter: `temprature`; did you mean `temperature`?",
        ),
        (
            "/set temprature".to_owned(),
            "unknown parameter: `temprature`; did you mean `temperature`?",
        ),
        (
            "/set temperature hot".to_owned(),
            "`temperature`: found `\"hot\"`, expected a number",
        ),
        ("/set top_p 3".to_owned(), "expected a number from 0 to 1"),
        (
            "/set temperature -1".to_owned(),
            "expected a finite number, 0 or more",
        ),
        ("/set messages []".to_owned(), "`messages` is not a setting"),
        (
            "/set logit_bias {\"9999999\": 1}".to_owned(),
            "`9999999` is not a token id below",
        ),
        (
            "/set response_format {\"type\": \"x\"}".to_owned(),
            "`response_format.type` is `x`",
        ),
        (format!("/schema {no_json}"), "no.json: EOF while parsing"),
        (format!("/schema {no_schema}"), "`json_schema`: "),
        ("/schema nowhere".to_owned(), "nowhere: No such file"),
        (format!("/grammar {grammar}"), "`grammar`: "),
        (
            format!("/tools {no_tools}"),
            "`tools[0].function` is missing",
        ),
        (
            format!("/load {no_messages}"),
            "`messages[0].content` is neither a string",
        ),
    ];
    let lines: String = mistakes
        .iter()
        .map(|(line, _)| format!("{line}\n"))
        .collect();
    let ran = talk(&[], &format!("{lines}Hello\n"));
    let mut rest = ran.err.as_str();
    for (line, expected) in &mistakes {
        let found = rest.split_once(expected);
        rest = found.unwrap_or_else(|| panic!("{line}: {}", ran.err)).1;
    }
    let failed = format!("error: {} of the inputs failed", mistakes.len());
    assert!(rest.contains(&failed), "{rest}");
    assert_eq!((ran.code, ran.out), (1, printed(&["run", "Hello"])));
    let ran = talk(&[], "\"\"\"\nHi");
    let expected = "the input ended before the \"\"\" that ends a block";
    assert!(ran.err.contains(expected), "{}", ran.err);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    // A message that does not fit is not kept.
    let ran = talk(
        &["--ctx", "64"],
        &format!("{}\nHello\n", "word ".repeat(200)),
    );
    assert!(ran.err.contains("and the context holds 64"), "{}", ran.err);
    assert_eq!((ran.code, ran.out), (1, printed(&["run", "Hello"])));
    let ran = talk(&["--top-p", "2"], "");
    assert!(ran.code != 0 && ran.err.contains("top"), "{}", ran.err);
    assert_eq!(said(&[], "\n  \n//help\n"), printed(&["run", "/help"]));
    assert!(
        said(&[], "/help\n/info\n/quit\nHello\n")
            .contains("context: 0 of 512 tokens, 0 messages\nlast answer: no answer yet\n")
    );
}

#[test]
fn constraints_hold_until_they_are_undone() {
    let folder = scratch();
    let schema = json!({ "type": "object", "properties": { "n": { "enum": [4, 7] } }, "required": ["n"], "additionalProperties": false });
    let schema = written(folder.path(), "schema.json", &schema.to_string());
    let grammar = written(
        folder.path(),
        "g.gbnf",
        "root ::= \"\\x1b[31m\" \"a\\tb\\x07\"\n",
    );
    let lines = format!(
        "/schema {}\nHello\n/undo\n/grammar {}\nHello\n/undo\n/grammar\nHello\n",
        text(&schema),
        text(&grammar)
    );
    let out = said(&["--regex", "[ab]{5}"], &lines);
    let (object, rest) = out.split_once('\n').expect("lines");
    let object: Value = serde_json::from_str(object).expect("JSON");
    assert!([4, 7].map(|n| json!({ "n": n })).contains(&object), "{out}");
    // What a model wrote does not control the terminal.
    let plain = printed(&["run", "Hello"]);
    assert_eq!(rest, format!("\\u{{1b}}[31ma\tb\\u{{7}}\n{plain}"));
}

#[test]
fn reasoning_goes_to_stderr_and_stays_in_the_conversation() {
    let folder = scratch();
    let path = model(folder.path(), "thinking.gguf", &template("", "<think>\n"));
    let server = serve(&path);
    let limits = json!({ "thinking_budget": 3, "ignore_eos": true, "max_tokens": 60 });
    let choice = answered(&server, &[user("2+2=?")], &limits);
    let file = folder.path().join("saved.json");
    let lines = format!(
        "/set thinking_budget 3\n/set ignore_eos true\n/set max_tokens 60\n2+2=?\n/save {}\n",
        text(&file)
    );
    let ran = talk(&["-m", text(&path)], &lines);
    let text = |name: &str| choice["message"][name].as_str().expect("a text");
    assert!(!text("reasoning_content").is_empty(), "{choice}");
    assert_eq!(ran.out, format!("{}\n", text("content")), "{}", ran.err);
    assert!(
        ran.err.starts_with(text("reasoning_content")),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("[cut at the limit]"), "{}", ran.err);
    let own = json!({ "role": "assistant", "content": text("content"), "reasoning_content": text("reasoning_content") });
    assert_eq!(saved(&file)[1], own);
}

#[test]
fn calls_are_shown_and_take_their_results() {
    let folder = scratch();
    let path = model(
        folder.path(),
        "calling.gguf",
        &plain_template(&calling("", TAGGED, "")),
    );
    let tools = json!([{ "type": "function", "function": { "name": "get_weather", "parameters": {
        "type": "object", "additionalProperties": false, "required": ["city"],
        "properties": { "city": { "type": "string", "enum": ["Bonn", "Trier"] } },
    } } }]);
    let server = serve(&path);
    let must = json!({ "tools": tools, "tool_choice": "required", "parallel_tool_calls": false });
    let asked = user("What is the weather in Bonn?");
    let choice = answered(&server, std::slice::from_ref(&asked), &must);
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str();
    let arguments = arguments.expect("arguments");

    let file = folder.path().join("saved.json");
    let tools_file = written(folder.path(), "tools.json", &tools.to_string());
    let lines = format!(
        "/tools {}\n/set tool_choice required\n/set parallel_tool_calls false\nWhat is the weather in Bonn?\n/continue\n/set tool_choice auto\n{{\"sky\": \"blue\"}}\n/save {}\n",
        text(&tools_file),
        text(&file)
    );
    let ran = talk(&["-m", text(&path)], &lines);
    assert!(
        ran.err.contains("the last answer calls tools"),
        "{}",
        ran.err
    );
    let messages = saved(&file);
    assert_eq!(messages[0], asked);
    let call = &messages[1]["tool_calls"][0];
    assert_eq!(
        call["function"],
        json!({ "name": "get_weather", "arguments": arguments })
    );
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "name": "get_weather", "content": "{\"sky\": \"blue\"}" });
    assert_eq!(messages[2], result);
    let so_far = &messages.as_array().expect("messages")[..3];
    let last = answered(&server, so_far, &json!({ "tools": tools }));
    let content = last["message"]["content"].as_str().expect("content");
    assert_eq!(
        messages[3],
        json!({ "role": "assistant", "content": content })
    );
    assert_eq!(
        ran.out,
        format!("call get_weather {arguments}\n{content}\n")
    );

    // A call that is cut off is not one of the conversation.
    let lines = format!(
        "/tools {}\n/set tool_choice required\n/set max_tokens 41\nHi\n/save --force {}\n",
        text(&tools_file),
        text(&file)
    );
    let ran = talk(&["-m", text(&path)], &lines);
    assert!(ran.out.starts_with("call get_weather"), "{}", ran.out);
    assert!(
        ran.err.contains("is left out of the conversation"),
        "{}",
        ran.err
    );
    assert_eq!(saved(&file)[1]["tool_calls"], Value::Null);
}

#[test]
fn a_model_without_a_template_cannot_chat() {
    let folder = scratch();
    let path = crate::support::command::made_up(folder.path(), "llama", &[]);
    let ran = talk(&["-m", text(&path)], "Hi\n");
    assert!(
        ran.code == 1 && ran.err.contains("no chat template"),
        "{}",
        ran.err
    );
}

#[test]
fn a_saved_conversation_is_replaced_only_with_force() {
    let folder = scratch();
    let file = folder.path().join("a talk.json");
    let at = text(&file);
    said(&[], &format!("Hi\n/save {at}\n"));
    let before = saved(&file);
    let ran = talk(&[], &format!("Hello\n/save {at}\n/save --force\n"));
    assert_eq!(ran.code, 1);
    let expected = format!("{at}: is there already; --force replaces it");
    assert!(ran.err.contains(&expected), "{}", ran.err);
    assert!(
        ran.err.contains("/save needs the name of a file"),
        "{}",
        ran.err
    );
    assert_eq!(saved(&file), before);
    said(
        &[],
        &format!("/load {at}\n/undo\nHello\n/save --force {at}\n"),
    );
    assert_eq!(saved(&file)[0], user("Hello"));
    // The model is an input.
    let model = folder.path().join("m.gguf");
    std::fs::copy("models/tiny-chat.gguf", &model).expect("a model");
    let lines = format!("Hi\n/save --force {}\n", text(&model));
    let ran = talk(&["-m", text(&model)], &lines);
    assert!(ran.err.contains("is an input"), "{}", ran.err);
}

#[test]
fn a_full_context_is_an_error_with_a_hint() {
    let long = "word ".repeat(200);
    let ran = talk(&["--ctx", "64"], &format!("{long}\n"));
    for part in ["and the context holds 64", "/undo", "/reset", "--ctx N"] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    assert!(!ran.err.contains("`messages`"), "{}", ran.err);
    let lines = "/set ignore_eos true\nHello\n/info\n";
    let out = said(&["--ctx", "64"], lines);
    let context = out.lines().find(|line| line.starts_with("context: "));
    let context = context.expect("a line of /info");
    assert!(
        context.starts_with("context: full, as it holds 64 tokens"),
        "{context}"
    );
    assert!(context.contains("/undo or /reset"), "{context}");
}
