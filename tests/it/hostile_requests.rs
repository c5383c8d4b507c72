//! What a request may send: features of autoencoders, captures of nothing, files that overflow, hosts, and what of the
//! server an engine process and the log get to know.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lab_base::weights::Value as Meta;
use serde_json::{Value, json};

use crate::contact::changed;
use crate::support::command::{bench, scratch, text};
use crate::support::process;
use crate::support::server::Server;
use crate::vectors::file;

/// Features are computed beside everything else, and no more once their client has left; too many are refused.
#[test]
fn features_of_an_autoencoder_stop_nobody() {
    const WIDTH: usize = 128;
    const N: usize = 24_000;
    let folder = scratch();
    let number = |i: usize| ((i * 7919) % 1000) as f32 / 1000.0 - 0.5;
    let array = |n: usize| (0..n).map(number).collect::<Vec<f32>>();
    let path = file(
        folder.path(),
        "sae.safetensors",
        &[
            ("W_enc", vec![WIDTH, N], array(WIDTH * N)),
            ("W_dec", vec![N, WIDTH], array(WIDTH * N)),
            ("b_enc", vec![N], array(N)),
            ("b_dec", vec![WIDTH], array(WIDTH)),
        ],
    );
    let server = Server::split(&["--lab-vectors", text(&path), "--lab-bytes", "512M"]);
    let body = |n: usize, n_tokens: usize| {
        let capture = json!({ "point": "layers.*.out", "positions": "all", "sae": "sae", "k": 1 });
        json!({ "prompt": vec![5; n_tokens], "lab": { "captures": vec![capture; n] } })
    };
    let few = server.post("/v1/lab/run", &body(1, 3));
    let captures = &few["results"][0]["lab"]["captures"];
    let n_layers = captures.as_array().expect("a list").len();
    let most = (1 << 38) / (64 * n_layers * WIDTH * N);
    assert!(most < 500, "{most} tokens");
    let (status, answer) = server.json("POST", "/v1/lab/run", &body(64, most + 1));
    assert_eq!(status, 400, "{answer}");
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(message.contains("274877906944"), "{message}");
    // Clients that leave.
    let clients: Vec<TcpStream> = (0..6)
        .map(|_| {
            server.send(
                "POST",
                "/v1/lab/run",
                "application/json",
                &body(30, most).to_string(),
            )
        })
        .collect();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        let asked = Instant::now();
        server.json("GET", "/health", &Value::Null);
        let plain = json!({ "prompt": "Hi", "max_tokens": 1 });
        server.post("/v1/completions", &plain);
        assert!(asked.elapsed() < Duration::from_secs(10));
    }
    drop(clients);
    let (id, _) = process::children(server.child.id()).remove(0);
    let work = || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).expect("it runs");
        let rest = stat.rsplit_once(')').expect("a name").1;
        let times: Vec<u64> = rest
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|n| n.parse().expect("a number"))
            .collect();
        times.iter().sum::<u64>()
    };
    process::eventually("the work ends", || {
        let before = work();
        std::thread::sleep(Duration::from_millis(500));
        work() - before < 10
    });
}

#[test]
fn a_capture_of_no_rows_has_the_shape_of_none() {
    let server = Server::shared();
    for reduce in ["none", "mean", "max", "norm", "top_k"] {
        for output in ["inline", "artifact"] {
            let capture =
                json!({ "point": "layers.0.out", "positions": "answer", "reduce": reduce });
            let other = json!({ "point": "layers.0.out", "reduce": "mean" });
            let body = json!({
                "prompt": "Hi", "lab": {
                    "captures": [capture, other], "output": output, "encoding": "numbers",
                },
            });
            let lab = server.post("/v1/lab/run", &body)["results"][0]["lab"].clone();
            let shape = lab["captures"][0]["shape"].as_array().expect("a shape");
            assert_eq!(shape[0], 0, "{reduce}: {lab}");
            let of_other = lab["captures"][1]["shape"].as_array().expect("a shape");
            assert_eq!(of_other.len(), 1, "{lab}");
            match output {
                "artifact" => assert!(lab["artifact"]["id"].is_string(), "{reduce}: {lab}"),
                _ => assert_eq!(lab["captures"][0]["data"], json!([]), "{reduce}: {lab}"),
            }
        }
    }
}

/// Numbers that overflow are the fault of the request, and `bench lab run` says so.
#[test]
fn edits_that_overflow_are_a_mistake_of_the_request() {
    let server = Server::start(&[]);
    let edit = json!({ "point": "layers.0.attn.v", "op": "scale", "scale": 3e38 });
    let body = json!({ "prompt": "Hi", "max_tokens": 2, "lab": { "edits": [edit, edit] } });
    let (status, answer) = server.json("POST", "/v1/completions", &body);
    let error = &answer["error"];
    assert_eq!(
        (status, &error["code"]),
        (400, &json!("non_finite_logits")),
        "{answer}"
    );
    assert_eq!(error["type"], "invalid_request_error");
    let log = server.log();
    assert!(!log.contains("ERROR"), "{log}");

    let folder = scratch();
    let plan = folder.path().join("plan.json");
    let written = json!({
        "captures": [{ "point": "layers.0.attn.v" }], "edits": [edit, edit],
    });
    std::fs::write(&plan, written.to_string()).expect("written");
    let arguments = [
        "lab",
        "run",
        "tiny-chat",
        "--prompt",
        "Hi",
        "--plan",
        text(&plan),
    ];
    let ran = bench(&arguments);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("not finite"), "{}", ran.err);
}

#[test]
fn an_engine_process_gets_no_keys() {
    let server = Server::with(&[], &[("BENCH_API_KEY", "a-secret-of-the-server")]);
    for (id, _) in process::children(server.child.id()) {
        for part in ["environ", "cmdline"] {
            let found = std::fs::read(format!("/proc/{id}/{part}")).expect("it runs");
            let found = String::from_utf8_lossy(&found);
            assert!(!found.contains("a-secret"), "{part}: {found}");
        }
    }
}

/// A model that loads as a file and whose graph no operation runs.
#[test]
fn a_model_that_cannot_be_built_is_not_servable() {
    let folder = scratch();
    let epsilon = "llama.attention.layer_norm_rms_epsilon";
    changed(
        folder.path(),
        "broken.gguf",
        &[(epsilon, Meta::F32(-1.0))],
        true,
    );
    changed(folder.path(), "sound.gguf", &[], true);
    let server = Server::split(&["--models", text(folder.path())]).expecting_errors();
    assert_eq!(process::state(&server, "sound")["state"], "not loaded");
    let broken = process::state(&server, "broken");
    assert_eq!(broken["state"], "not servable", "{broken}");
    assert!(
        broken["error"].as_str().is_some_and(|e| !e.is_empty()),
        "{broken}"
    );
    let (status, answer) = server.json("GET", "/v1/models/broken/diagram", &Value::Null);
    assert_eq!(status, 404, "{answer}");
    assert_eq!(answer["error"]["code"], "model_not_servable", "{answer}");
}

/// The status of a request with this head.
fn status_of(server: &Server, head: &str) -> u16 {
    let mut stream = TcpStream::connect(&server.address).expect("the server listens");
    stream.write_all(head.as_bytes()).expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok());
    status.unwrap_or_else(|| panic!("{head}: {answer}"))
}

#[test]
fn a_request_names_one_host_and_no_unknown_coding() {
    let server = Server::shared();
    let get = |target: &str, lines: &str| {
        status_of(
            &server,
            &format!("GET {target} HTTP/1.1\r\nconnection: close\r\n{lines}\r\n"),
        )
    };
    assert_eq!(get("/health", "host: localhost\r\n"), 200);
    assert_eq!(get("http://localhost/health", "host: localhost\r\n"), 200);
    assert_eq!(get("/health", ""), 400);
    assert_eq!(
        get("/health", "host: localhost\r\nhost: localhost\r\n"),
        400
    );
    assert_eq!(
        get("http://evil.example/health", "host: localhost\r\n"),
        400
    );
    let old = "GET /health HTTP/1.0\r\n\r\n";
    assert_eq!(status_of(&server, old), 200);
    let post = |coding: &str| {
        status_of(
            &server,
            &format!(
                "POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                 content-type: application/json\r\ntransfer-encoding: {coding}\r\n\r\n\
                 11\r\n{{\"content\": \"Hi\"}}\r\n0\r\n\r\n"
            ),
        )
    };
    assert_eq!(post("chunked"), 200);
    assert_eq!(post("gzip, chunked"), 501);
}

/// What a killed server leaves is removed by the next one.
#[test]
fn a_server_that_is_killed_leaves_nothing_for_long() {
    let folder = scratch();
    let temporary = [("TMPDIR", text(folder.path()))];
    let server = Server::with(&[], &temporary);
    let child = server.child.id();
    let engines = process::children(child);
    process::kill(child, rustix::process::Signal::KILL);
    process::eventually("the engine process ends", || {
        let is_there =
            |(id, _): &(u32, String)| std::path::Path::new(&format!("/proc/{id}")).exists();
        !engines.iter().any(is_there)
    });
    drop(server);
    let server = Server::with(&[], &temporary);
    let names = std::fs::read_dir(folder.path()).expect("readable");
    let names: Vec<String> = names
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let own = format!(".{}-0.part", server.child.id());
    let kept: Vec<&String> = names
        .iter()
        .filter(|name| name.ends_with(".part"))
        .collect();
    assert!(kept.len() == 1 && kept[0].ends_with(&own), "{names:?}");
}
