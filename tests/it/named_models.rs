//! Models by name: the program against a Hub of the tests, with a cache of its own.

use std::fs::File;
use std::path::Path;

use serde_json::{Value, json};

use crate::chat::written;
use crate::support::command::{ended, program, scratch};
use crate::support::server::Server;

#[path = "../../src/hub/tests/server.rs"]
mod hub_server;

use hub_server::{Behaviour, Server as Hub};

/// A Hub with the built-in model as a file of two quantisations, as a folder with sampling defaults, and with a file that is
/// no model.
fn hub() -> Hub {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let read = |path: &str| std::fs::read(models.join(path)).expect("a file of the repository");
    let mut files = vec![
        ("gguf/tiny-Q8_0.gguf", read("tiny-chat.gguf")),
        ("gguf/tiny-Q4_K_M.gguf", read("tiny-chat.gguf")),
        ("README.md", b"# A model".to_vec()),
    ];
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ] {
        files.push((name, read(&format!("tiny-chat/{name}"))));
    }
    let defaults = json!({ "temperature": 0.6, "top_k": 20, "eos_token_id": 1 });
    files.push(("generation_config.json", defaults.to_string().into_bytes()));
    Hub::start(&files, Behaviour::default())
}

/// The environment of a program that asks this Hub and uses a cache in this folder.
fn environment<'a>(hub: &'a Hub, home: &'a Path) -> [(&'static str, &'a str); 3] {
    let home = home.to_str().expect("UTF-8");
    [
        ("HF_ENDPOINT", &hub.endpoint),
        ("HF_HOME", home),
        ("HF_TOKEN", ""),
    ]
}

fn ran(hub: &Hub, home: &Path, arguments: &[&str]) -> crate::support::command::Ran {
    ended(program(arguments).envs(environment(hub, home)))
}

#[test]
fn a_model_is_downloaded_at_its_first_use_and_found_offline_after_it() {
    let (hub, home) = (hub(), scratch());
    let ask = ["run", "--quiet", "-m", "owner/repo:Q8_0", "2+2=?"];
    let first = ran(&hub, home.path(), &ask);
    assert!(first.is_fine(), "{}", first.err);
    let n_requests = hub.log.lock().expect("the log").len();
    assert!(n_requests > 0);
    let second = ended(
        program(&ask)
            .envs(environment(&hub, home.path()))
            .env("HF_HUB_OFFLINE", "1"),
    );
    assert!(second.is_fine(), "{}", second.err);
    assert_eq!(first.out, second.out);
    assert_eq!(hub.log.lock().expect("the log").len(), n_requests);
    // Nothing but the file that was named.
    assert_eq!(hub.count("GET", "Q4_K_M"), 0);
    // A name in the cache is no prompt.
    let forgotten = ran(&hub, home.path(), &["run", "owner/repo:Q8_0"]);
    let hint = "`bench chat owner/repo:Q8_0` is a conversation";
    assert!(forgotten.err.contains(hint), "{}", forgotten.err);
    let doctor = ran(&hub, home.path(), &["doctor", "owner/repo:Q8_0"]);
    let title = doctor.out.lines().next();
    assert_eq!(title, Some("owner/repo:Q8_0"), "{}", doctor.err);
    let command = "`bench run -m owner/repo:Q8_0 \"Hello\"`";
    assert!(doctor.out.contains(command), "{}", doctor.out);
    let listed = ran(&hub, home.path(), &["list", "--json"]);
    let listed: Value = serde_json::from_str(&listed.out).expect("JSON");
    assert_eq!(listed[0]["name"], "owner/repo:Q8_0");
    let removed = ran(&hub, home.path(), &["rm", "owner/repo:Q8_0"]);
    assert!(removed.is_fine(), "{}", removed.err);
    assert_eq!(ran(&hub, home.path(), &["list", "--json"]).out.trim(), "[]");
}

#[test]
fn names_that_are_not_there_are_told_from_paths() {
    let (hub, home) = (hub(), scratch());
    for (model, parts) in [
        (
            "owner/other",
            ["no file or folder `owner/other`", "was not found"],
        ),
        (
            "owner/repo:Q2_K",
            ["no GGUF file of `Q2_K`", "Q4_K_M, Q8_0"],
        ),
        ("owner/missing.gguf", ["owner/missing.gguf", "no such file"]),
        ("./owner/repo", ["./owner/repo", "no such file"]),
    ] {
        let ran = ran(&hub, home.path(), &["doctor", model]);
        let text = format!("{}{}", ran.out, ran.err).to_lowercase();
        for part in parts {
            assert!(
                text.contains(&part.to_lowercase()),
                "{model}: `{part}` is not in: {text}"
            );
        }
    }
    assert_eq!(hub.count("GET", "missing"), 0);
}

#[test]
fn a_server_of_the_cache_pulls_and_serves_by_name() {
    let (hub, home) = (hub(), scratch());
    let server = Server::with(&["--models"], &environment(&hub, home.path()));
    let (status, body) = server.json("GET", "/v1/models", &Value::Null);
    assert_eq!((status, &body["data"]), (200, &json!([])));
    let events = server.events(
        "/models/pull",
        &json!({ "model": "owner/repo", "stream": true }),
    );
    let last: Value = events
        .iter()
        .rev()
        .find_map(|event| serde_json::from_str(event).ok())
        .expect("an event");
    assert_eq!(last["served"], "owner/repo", "{events:?}");
    let recommended = json!({ "temperature": 0.6, "top_k": 20 });
    let (_, one) = server.json("GET", "/v1/models/owner/repo", &Value::Null);
    assert_eq!(
        (&one["state"], &one["sampling_defaults"]),
        (&json!("not loaded"), &recommended)
    );
    let answer = server.post(
        "/v1/chat/completions",
        &json!({
            "model": "owner/repo", "max_tokens": 8, "temperature": 0, "messages": [{ "role": "user", "content": "2+2=?" }],
        }),
    );
    assert_eq!(answer["choices"][0]["message"]["content"], "2+2=4");
    // What the model's authors recommend holds where a request sets nothing.
    let (_, props) = server.json("GET", "/props?model=owner/repo", &Value::Null);
    let params = &props["default_generation_settings"]["params"];
    assert_eq!(
        (&params["temperature"], &params["top_k"]),
        (&json!(0.6), &json!(20))
    );
    let (_, one) = server.json("GET", "/v1/models/owner/repo", &Value::Null);
    assert_eq!(one["sampling_defaults"], recommended);
    for (model, status) in [("not a name", 400), ("owner/other", 400)] {
        let (found, body) = server.json("POST", "/models/pull", &json!({ "model": model }));
        assert_eq!(found, status, "{body}");
        assert_eq!(body["error"]["param"], "model", "{body}");
    }
}

#[test]
fn ollamas_clients_pull_by_the_names_that_they_know() {
    let (hub, home) = (hub(), scratch());
    let server = Server::with(&["--models"], &environment(&hub, home.path()));
    let pull = |body: Value| {
        let (status, _, lines) =
            server.raw("POST", "/api/pull", "application/json", &body.to_string());
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        (status, lines.collect::<Vec<Value>>())
    };
    let (status, lines) = pull(json!({ "model": "hf.co/owner/repo:Q8_0" }));
    assert_eq!(status, 200);
    assert_eq!(
        lines.first(),
        Some(&json!({ "status": "pulling manifest" }))
    );
    assert_eq!(lines.last(), Some(&json!({ "status": "success" })));
    for progress in &lines[1..lines.len() - 1] {
        assert!(
            progress["completed"].as_u64() <= progress["total"].as_u64(),
            "{progress}"
        );
    }
    let (_, lines) = pull(json!({ "name": "owner/repo:latest", "stream": false }));
    assert_eq!(lines, [json!({ "status": "success" })]);
    let (_, tags) = server.json("GET", "/api/tags", &Value::Null);
    let names = tags["models"].as_array().expect("an array").iter();
    let names: Vec<&Value> = names.map(|model| &model["name"]).collect();
    assert_eq!(names, ["owner/repo:latest", "owner/repo:Q8_0"]);
    for name in names {
        let answer = server.post(
            "/api/chat",
            &json!({
                "model": name, "stream": false, "options": { "temperature": 0 },
                "messages": [{ "role": "user", "content": "2+2=?" }],
            }),
        );
        assert_eq!(answer["message"]["content"], "2+2=4");
    }
    let (status, lines) = pull(json!({ "model": "owner/other", "stream": false }));
    assert_eq!(status, 400, "{lines:?}");
    // A stream has begun before the Hub answers.
    let (status, lines) = pull(json!({ "model": "owner/other" }));
    assert_eq!(status, 200);
    let last = lines.last().expect("a line");
    assert!(
        last["error"]
            .as_str()
            .is_some_and(|text| text.contains("owner/other")),
        "{last}"
    );
}

#[test]
fn neutral_sampling_can_be_asked_for() {
    let (hub, home) = (hub(), scratch());
    let pulled = ran(&hub, home.path(), &["pull", "owner/repo:latest"]);
    assert!(pulled.is_fine(), "{}", pulled.err);
    assert!(pulled.out.starts_with("owner/repo: "), "{}", pulled.out);
    // The settings of a conversation are those that hold, also where nothing sets them.
    let lines = written(
        home.path(),
        "lines",
        "/set top_k\n/set temperature\n/bye\nHello\n",
    );
    let mut chat = program(&["chat", "-m", "owner/repo:latest"]);
    let chat = chat.envs(environment(&hub, home.path()));
    let said = ended(chat.stdin(File::open(lines).expect("it was written")));
    assert_eq!(said.out, "top_k = 20\ntemperature = 0.6\n", "{}", said.err);
    let options = ["-m", "owner/repo", "--sampling-defaults", "neutral"];
    let server = Server::with(&options, &environment(&hub, home.path()));
    let (_, props) = server.json("GET", "/props", &Value::Null);
    let params = &props["default_generation_settings"]["params"];
    assert_eq!(
        (&params["temperature"], &params["top_k"]),
        (&json!(1.0), &json!(0))
    );
}
