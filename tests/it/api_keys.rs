//! Keys with names and roles, from a file that changes while the server runs.

use std::path::Path;
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
