//! Keys with names and roles, from a file that changes while the server runs.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::command::{ended, program, scratch, text};
use crate::support::process::{eventually, kill};
use crate::support::server::Server;

fn entry(name: &str, key: &str, roles: &str) -> String {
    let digest = Sha256::digest(key.as_bytes());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[[key]]\nname = \"{name}\"\nsha256 = \"{digits}\"\nroles = {roles}\n\n")
}

fn write(path: &Path, entries: &[String]) {
    // In one piece, so that no half of it is read.
    let new = path.with_extension("new");
    std::fs::write(&new, entries.concat()).expect("it is written");
    std::fs::rename(&new, path).expect("it is put in place");
}

/// Status and answer to a request with a key.
fn ask(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let kind = format!("application/json\r\nx-api-key: {key}");
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let (status, _, answer) = server.raw(method, path, &kind, &body);
    (status, serde_json::from_str(&answer).unwrap_or_default())
}

#[test]
fn keys_of_a_file_have_names_and_roles_and_may_change() {
    let folder = scratch();
    let path = folder.path().join("keys.toml");
    let alice = |key: &str| entry("alice", key, "[\"use\", \"lab\"]");
    let bob = entry("bob", "b", "[\"use\"]");
    write(&path, &[alice("first-secret"), bob.clone()]);
    let server = Server::start(&["--keys", text(&path), "--admin-key", "root"]);
    let lab = json!({ "prompt": [1, 2], "lab": { "captures": [{ "point": "layers.0.attn.q" }] } });
    let models = json!({});
    for (key, path, body, status) in [
        ("", "/v1/lab/run", &lab, 401),
        ("x", "/v1/lab/run", &lab, 401),
        ("b", "/v1/lab/run", &lab, 403),
        ("first-secret", "/v1/lab/run", &lab, 200),
        ("root", "/v1/lab/run", &lab, 200),
        ("first-secret", "/models/unload", &models, 403),
        // It is let in, and has forgotten the name.
        ("root", "/models/unload", &models, 400),
    ] {
        let (found, answer) = ask(&server, key, "POST", path, body);
        assert_eq!(found, status, "{key} {path}: {answer}");
        if status == 403 {
            assert_eq!(answer["error"]["code"], "role_missing");
        }
    }
    let (_, answer) = ask(&server, "b", "POST", "/v1/lab/run", &lab);
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(
        message.contains("the key `bob` has no role `lab`"),
        "{message}"
    );

    // What alice stores is hers after her key has changed.
    let body = json!({ "model": "default", "input": "2+2=?", "max_output_tokens": 4 });
    let (status, stored) = ask(&server, "first-secret", "POST", "/v1/responses", &body);
    assert_eq!(status, 200, "{stored}");
    let stored = format!("/v1/responses/{}", stored["id"].as_str().expect("an id"));
    write(&path, &[alice("second-secret"), bob]);
    eventually("the new key is known", || {
        ask(&server, "second-secret", "GET", "/v1/models", &Value::Null).0 == 200
    });
    assert_eq!(
        ask(&server, "first-secret", "GET", "/v1/models", &Value::Null).0,
        401
    );
    assert_eq!(
        ask(&server, "second-secret", "GET", &stored, &Value::Null).0,
        200
    );
    assert_eq!(ask(&server, "b", "GET", &stored, &Value::Null).0, 404);

    // A file with a mistake changes nothing, and the signal ends nothing.
    std::fs::write(&path, "[[key]]\nname = \"c\"\n").expect("it is written");
    kill(server.child.id(), Signal::HUP);
    let written = Instant::now();
    while written.elapsed() < Duration::from_millis(1500) {
        let found = ask(&server, "second-secret", "GET", "/v1/models", &Value::Null);
        assert_eq!(found.0, 200);
        std::thread::sleep(Duration::from_millis(50));
    }
    eventually("the next one is read", || {
        write(&path, &[alice("third-secret")]);
        kill(server.child.id(), Signal::HUP);
        ask(&server, "third-secret", "GET", "/v1/models", &Value::Null).0 == 200
    });
    assert_eq!(ask(&server, "b", "GET", "/v1/models", &Value::Null).0, 401);
    let log = server.expecting_errors().log();
    assert!(
        log.contains("key=\"alice\"") && !log.contains("-secret"),
        "{log}"
    );
    assert!(log.contains("the keys stay as they were"), "{log}");
}

#[test]
fn a_keys_file_with_a_mistake_is_refused_at_the_start() {
    let folder = scratch();
    let path = folder.path().join("keys.toml");
    std::fs::write(&path, entry("alice", "a", "[\"boss\"]")).expect("it is written");
    let ran = ended(&mut program(&[
        "serve",
        "--keys",
        text(&path),
        "--port",
        "0",
    ]));
    assert!(!ran.is_fine());
    assert!(
        ran.err.contains("keys.toml") && ran.err.contains("boss"),
        "{}",
        ran.err
    );
}

/// Status, head and answer of a completion.
fn completed(server: &Server, key: &str, body: &Value) -> (u16, String, Value) {
    let kind = format!("application/json\r\nx-api-key: {key}");
    let (status, head, answer) = server.raw("POST", "/v1/completions", &kind, &body.to_string());
    (
        status,
        head,
        serde_json::from_str(&answer).unwrap_or_default(),
    )
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn a_key_has_limits_of_requests_tokens_lengths_and_models() {
    let folder = scratch();
    let path = folder.path().join("keys.toml");
    let limited = |name: &str, limits: &str| {
        entry(name, name, "[\"use\", \"lab\"]")
            .trim_end()
            .to_owned()
            + "\n"
            + limits
            + "\n"
    };
    let entries = [
        limited("bob", "requests_per_minute = 2"),
        limited("carol", "tokens_per_minute = 40"),
        limited("dave", "max_tokens = 4"),
        limited("erin", "models = [\"other*\"]"),
        limited("frank", "queue_share = 0.5"),
    ];
    write(&path, &entries);
    let options = ["--keys", text(&path), "--admin-key", "root"];
    for server in [Server::start(&options), Server::split(&options)] {
        let prompt = |n: u32| (1..=n).collect::<Vec<u32>>();
        let body = json!({ "prompt": prompt(10), "max_tokens": 4, "ignore_eos": true });
        for left in ["1", "0"] {
            let (status, head, answer) = completed(&server, "bob", &body);
            assert_eq!(status, 200, "{answer}");
            assert_eq!(header(&head, "x-ratelimit-limit-requests"), Some("2"));
            assert_eq!(header(&head, "x-ratelimit-remaining-requests"), Some(left));
        }
        let (status, head, answer) = completed(&server, "bob", &body);
        assert_eq!(
            (status, &answer["error"]["code"]),
            (429, &json!("rate_limit_exceeded"))
        );
        let after = header(&head, "retry-after").and_then(|after| after.parse::<u64>().ok());
        assert!(
            after.is_some_and(|after| (1..=30).contains(&after)),
            "{head}"
        );
        assert_eq!(header(&head, "x-ratelimit-remaining-requests"), Some("0"));
        let message = answer["error"]["message"].as_str().expect("a text");
        assert!(
            message.contains("the key `bob` may use 2 requests a minute"),
            "{message}"
        );
        // What only reads does not count, and others have their own limits.
        assert_eq!(
            ask(&server, "bob", "GET", "/v1/models", &Value::Null).0,
            200
        );

        let (status, head, answer) = completed(&server, "carol", &body);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(header(&head, "x-ratelimit-limit-tokens"), Some("40"));
        assert_eq!(header(&head, "x-ratelimit-remaining-tokens"), Some("30"));
        // The four tokens of the completion count too.
        let longer = json!({ "prompt": prompt(30), "max_tokens": 1 });
        let (status, head, answer) = completed(&server, "carol", &longer);
        assert_eq!(status, 429, "{answer}");
        assert!(header(&head, "retry-after").is_some(), "{head}");
        assert_eq!(completed(&server, "root", &longer).0, 200);
        let lines = json!({ "model": "default", "input": ["a", "b"] });
        let (status, answer) = ask(&server, "carol", "POST", "/v1/embeddings", &lines);
        assert_ne!(status, 500, "{answer}");

        let (status, answer) = ask(
            &server,
            "dave",
            "POST",
            "/v1/chat/completions",
            &json!({ "messages": [{ "role": "user", "content": "2+2=?" }], "max_completion_tokens": 5 }),
        );
        assert_eq!(status, 400, "{answer}");
        assert_eq!(answer["error"]["param"], "max_completion_tokens");
        let unlimited = json!({ "prompt": prompt(10), "ignore_eos": true });
        let (status, _, answer) = completed(&server, "dave", &unlimited);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["usage"]["completion_tokens"], 4, "{answer}");

        let (status, _, answer) = completed(&server, "erin", &body);
        assert_eq!(
            (status, &answer["error"]["code"]),
            (403, &json!("model_not_allowed"))
        );
        let (_, models) = ask(&server, "erin", "GET", "/v1/models", &Value::Null);
        assert_eq!(models["data"], json!([]));
        let (_, models) = ask(&server, "frank", "GET", "/v1/models", &Value::Null);
        assert_eq!(models["data"].as_array().map(Vec::len), Some(1));

        let (_, head, page) = server.raw("GET", "/metrics", "x\r\nx-api-key: root", "");
        assert!(head.starts_with("http/1.1 200"), "{head}");
        let of = |metric: &str| -> Vec<String> {
            let lines = page.lines().filter(|line| line.starts_with(metric));
            lines
                .map(|line| line.split_once("key=").expect("a key").1.to_owned())
                .collect()
        };
        assert_eq!(
            of("bench_key_requests_total"),
            [
                "\"bob\"} 2",
                "\"carol\"} 1",
                "\"dave\"} 1",
                "\"unnamed\"} 1"
            ]
        );
        assert!(of("bench_key_prompt_tokens_total").contains(&"\"bob\"} 20".to_owned()));
        assert!(of("bench_key_completion_tokens_total").contains(&"\"bob\"} 8".to_owned()));
    }
}

#[test]
fn artifacts_and_vectors_belong_to_their_key() {
    let folder = scratch();
    let path = folder.path().join("keys.toml");
    let of = |name: &str| entry(name, name, "[\"use\", \"lab\"]");
    write(&path, &[of("alice"), of("bob")]);
    let options = ["--keys", text(&path), "--admin-key", "root"];
    for server in [Server::start(&options), Server::split(&options)] {
        let lab = json!({ "prompt": [1, 2], "lab": {
            "captures": [{ "point": "layers.0.out" }], "output": "artifact" } });
        let (status, answer) = ask(&server, "alice", "POST", "/v1/lab/run", &lab);
        assert_eq!(status, 200, "{answer}");
        let kept = &answer["results"][0]["lab"]["artifact"];
        let url = kept["url"].as_str().expect("a path");
        let listed = |key: &str, path: &str| {
            let (_, answer) = ask(&server, key, "GET", path, &Value::Null);
            let data = answer["data"].as_array().expect("a list").iter();
            data.map(|one| one["id"].as_str().expect("an id").to_owned())
                .collect::<Vec<String>>()
        };
        let own = [kept["id"].as_str().expect("an id").to_owned()];
        assert_eq!(listed("alice", "/v1/lab/artifacts"), own);
        assert_eq!(listed("root", "/v1/lab/artifacts"), own);
        assert!(listed("bob", "/v1/lab/artifacts").is_empty());
        let status = |key: &str, method: &str, path: &str| {
            let kind = format!(
                "application/json\r\nx-api-key: {key}\r\nx-bench-client: {{\"owner\":\"alice\",\"manages\":true,\"limits\":{{}}}}"
            );
            let mut stream = server.send(method, path, &kind, "");
            let mut head = [0; 12];
            std::io::Read::read_exact(&mut stream, &mut head).expect("an answer");
            String::from_utf8_lossy(&head[9..]).into_owned()
        };
        assert_eq!(status("bob", "GET", url), "404");
        assert_eq!(status("bob", "DELETE", url), "404");
        assert_eq!(status("alice", "GET", url), "200");
        assert_eq!(status("root", "DELETE", url), "200");

        let row: Vec<f32> = (0..128).map(|i| (i as f32).sin()).collect();
        let mood = json!({ "id": "mood", "vectors": { "0": row } });
        let (found, answer) = ask(&server, "alice", "POST", "/v1/lab/vectors", &mood);
        assert_eq!(found, 200, "{answer}");
        let edit = |id: &str| {
            json!({ "prompt": [1, 2], "lab": { "captures": [{ "point": "layers.0.out" }],
                "edits": [{ "point": "layers.0.out", "op": "add", "vector": id }] } })
        };
        let run = |key: &str, id: &str| ask(&server, key, "POST", "/v1/lab/run", &edit(id)).0;
        assert_eq!((run("alice", "mood"), run("bob", "mood")), (200, 400));
        assert_eq!(
            (run("root", "alice~mood"), run("bob", "alice~mood")),
            (200, 400)
        );
        assert_eq!(listed("root", "/v1/lab/vectors"), ["alice~mood"]);
        assert_eq!(status("bob", "DELETE", "/v1/lab/vectors/mood"), "404");
        assert_eq!(status("alice", "DELETE", "/v1/lab/vectors/mood"), "200");
        assert!(listed("alice", "/v1/lab/vectors").is_empty());
    }
}

#[test]
fn two_hundred_requests_of_one_key_do_not_keep_another_waiting() {
    let folder = scratch();
    let path = folder.path().join("keys.toml");
    let of = |name: &str| entry(name, name, "[\"use\"]");
    write(&path, &[of("many"), of("one")]);
    // Most of them have no place in the queue; the other key has one.
    let server = Server::split(&["--keys", text(&path), "--queue", "100"]);
    let n_done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for i in 0..200_u32 {
            let (server, n_done) = (&server, &n_done);
            scope.spawn(move || {
                let prompt: Vec<u32> = (0..40).map(|at| 1 + (at * 7 + i) % 200).collect();
                let body = json!({ "prompt": prompt, "max_tokens": 100, "ignore_eos": true });
                let (status, _, answer) = completed(server, "many", &body);
                assert!(status == 200 || status == 429, "{answer}");
                if status == 200 {
                    n_done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("some have an answer", || {
            n_done.load(Ordering::Relaxed) >= 3
        });
        let before = n_done.load(Ordering::Relaxed);
        let body = json!({ "prompt": [1, 2, 3, 4], "max_tokens": 2, "ignore_eos": true });
        let (status, _, answer) = completed(&server, "one", &body);
        let meanwhile = n_done.load(Ordering::Relaxed) - before;
        assert_eq!(status, 200, "{answer}");
        assert!(meanwhile <= 10, "{meanwhile} came before");
    });
    assert!(n_done.load(Ordering::Relaxed) >= 100);
}
