//! What an orchestrator sees: the port is open before a model is loaded, `/readyz` says whether requests may come, and a server that is
//! about to end says so first.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::backends::{SMALL, synthesised};
use crate::support::command::{Port, ended, program, scratch, text};
use crate::support::process::kill;
use crate::support::server::{Server, with};

const CHAT: &str = "/v1/chat/completions";

/// Status and body of the answer to a request; none while nobody listens.
fn ask(port: u16, head: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    let request = format!(
        "{head} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[test]
fn a_port_in_use_is_known_before_anything_is_loaded() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let ran = ended(&mut program(&["serve", "--port", &port]));
    assert!(!ran.is_fine());
    assert!(
        ran.err.contains("--port N takes another one"),
        "{}",
        ran.err
    );
    assert!(
        !ran.err.contains("an engine process serves it"),
        "{}",
        ran.err
    );
}

#[test]
fn requests_wait_while_the_model_is_loaded_and_probes_say_so() {
    let folder = scratch();
    // Quantising it takes a moment.
    let set: Vec<&str> = SMALL
        .iter()
        .map(|pair| match pair.starts_with("n_ff=") {
            true => "n_ff=65536",
            false => pair,
        })
        .collect();
    let model = synthesised(folder.path(), "llama", &set);
    let port = Port::reserve();
    let number = port.number.to_string();
    let line = [
        "serve",
        "-m",
        text(&model),
        "--type",
        "q4_k",
        "--port",
        &number,
    ];
    let mut child = program(&line)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let get = |path: &str| ask(port.number, &format!("GET {path}"), "");
    let started = Instant::now();
    let (status, body) = loop {
        match get("/readyz") {
            Some(found) => break found,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(started.elapsed() < Duration::from_secs(60));
    };
    assert_eq!(status, 503, "{body}");
    let state: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(
        (&state["status"], &state["loading"][0]),
        (&json!("loading"), &json!("llama"))
    );
    assert_eq!(get("/livez").expect("an answer").0, 200);
    let body = json!({ "prompt": [1, 2, 3], "max_tokens": 2, "model": "default" }).to_string();
    let (status, answer) = ask(port.number, "POST /v1/completions", &body).expect("an answer");
    assert_eq!(status, 200, "{answer}");
    for path in ["/readyz", "/healthz", "/health"] {
        assert_eq!(get(path).expect("an answer").0, 200, "{path}");
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn a_server_that_is_about_to_end_says_so_and_takes_requests_for_a_while() {
    let server = Server::start(&["--drain-time", "2"]);
    assert_eq!(server.json("GET", "/readyz", &Value::Null).0, 200);
    kill(server.child.id(), Signal::TERM);
    let begun = Instant::now();
    let state = loop {
        let (status, state) = server.json("GET", "/readyz", &Value::Null);
        if status == 503 {
            break state;
        }
        assert!(begun.elapsed() < Duration::from_secs(2));
    };
    assert_eq!(state["status"], "draining");
    assert_eq!(server.json("GET", "/livez", &Value::Null).0, 200);
    let body = json!({ "messages": [{ "role": "user", "content": "2+2=?" }], "max_tokens": 2 });
    server.post(CHAT, &with(body, &json!({ "temperature": 0 })));
    server.ended();
    assert!(begun.elapsed() >= Duration::from_secs(2));
}
