//! RPC workers that end or hang while a server uses them: the requests of that model end with a clear error, the
//! server and its other models go on, and the model is served again when the worker is back.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::command::{Port, scratch, text};
use crate::support::process::{Stream, eventually, kill, long, model, state};
use crate::support::server::Server;

/// Seconds that a step or a silent load may take.
const STEP_TIME: &str = "5";

struct Worker(Child);

impl Worker {
    fn start(port: u16) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_bench"))
            .args(["rpc-worker", "--threads", "1", "--port", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .expect("the program runs");
        eventually("the worker listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Self(child)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server whose model `one` is on a worker and whose model `two` is not.
fn server(folder: &std::path::Path, port: u16) -> Server {
    for name in ["one.gguf", "two.gguf"] {
        std::fs::write(folder.join(name), model()).expect("written");
    }
    let config = folder.join("bench.toml");
    let lines = format!("[per_model.one]\nrpc = [\"127.0.0.1:{port}\"]\n");
    std::fs::write(&config, lines).expect("written");
    let options = ["--models", text(folder), "--config", text(&config)];
    Server::split(&[&options[..], &["--step-time", STEP_TIME]].concat()).expecting_errors()
}

/// A port that leads to another one, until so many bytes went there.
fn cut_after(port: u16, limit: Arc<AtomicUsize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let own = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(worker) = TcpStream::connect(("127.0.0.1", port)) else {
                continue;
            };
            let twice = |stream: &TcpStream| stream.try_clone().expect("a handle");
            let back = (
                twice(&worker),
                twice(&client),
                Arc::new(AtomicUsize::new(usize::MAX)),
            );
            for (mut from, mut to, limit) in [(client, worker, Arc::clone(&limit)), back] {
                std::thread::spawn(move || {
                    let (mut buffer, mut sent) = (vec![0; 1 << 12], 0);
                    while let Ok(n @ 1..) = from.read(&mut buffer) {
                        sent += n;
                        let is_cut = sent > limit.load(Ordering::Relaxed);
                        if is_cut || to.write_all(&buffer[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                });
            }
        }
    });
    own
}

fn short(model: &str) -> Value {
    json!({ "model": model, "prompt": "1 2 3", "max_tokens": 2, "temperature": 0 })
}

/// The text of a completion.
fn completed(server: &Server, body: &Value) -> String {
    let answer = server.post("/v1/completions", body);
    let text = answer["choices"][0]["text"].as_str();
    text.expect("a text").to_owned()
}

#[track_caller]
fn died(answer: &Value, why: &str) {
    assert_eq!(answer["error"]["code"], "engine_died", "{answer}");
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(
        message.contains("`one`") && message.contains(why),
        "{message}"
    );
}

/// That a request was told of a worker that left, by its pass, or where that took too long by the end of its process; waits
/// for that end.
#[track_caller]
fn lost(server: &Server, answer: &Value) {
    let message = answer["error"]["message"].as_str().expect("a text");
    match answer["error"]["code"].as_str() {
        Some("worker_lost") => assert!(
            message.starts_with("RPC worker 127.0.0.1:")
                && message
                    .ends_with("closed the connection; the next request loads the model again"),
            "{message}"
        ),
        _ => died(answer, "an RPC worker was lost"),
    }
    eventually("the process has ended", || {
        state(server, "one")["state"] == "failed"
    });
}

#[test]
fn a_worker_that_is_killed_ends_the_requests_of_its_model_alone() {
    let folder = scratch();
    let reserved = Port::reserve();
    let port = reserved.number;
    let mut worker = Worker::start(port);
    let server = server(folder.path(), port);
    let expected = completed(&server, &short("two"));
    assert_eq!(completed(&server, &short("one")), expected);

    // While it decodes.
    let stream = Stream::start(&server, "/v1/completions", &long("one"));
    drop(worker);
    let (rest, _, last) = stream.rest();
    lost(&server, &last);
    assert!(!rest.contains("[DONE]"), "{rest}");
    assert_eq!(completed(&server, &short("two")), expected);

    // It is not there, then it is again.
    let (status, answer) = server.json("POST", "/v1/completions", &short("one"));
    assert!(status >= 500, "{answer}");
    worker = Worker::start(port);
    assert_eq!(completed(&server, &short("one")), expected);

    // While it reads a prompt.
    let prompt = "1 2 3 4 5 6 7 8 9 ".repeat(200);
    let reading = json!({ "model": "one", "prompt": prompt, "max_tokens": 2 });
    let answer = std::thread::scope(|scope| {
        let answer = scope.spawn(|| server.json("POST", "/v1/completions", &reading));
        eventually("the prompt is read", || {
            let slots = server.json("GET", "/slots?model=one", &Value::Null).1;
            slots.to_string().contains("\"is_processing\":true")
        });
        drop(worker);
        answer.join().expect("it lives")
    });
    assert!(answer.0 >= 500, "{}", answer.1);
    lost(&server, &answer.1);
    assert_eq!(completed(&server, &short("two")), expected);
}

#[test]
fn a_worker_that_hangs_is_given_up_within_a_stated_time() {
    let folder = scratch();
    let reserved = Port::reserve();
    let port = reserved.number;
    let worker = Worker::start(port);
    let server = server(folder.path(), port);

    // While the model is loaded.
    kill(worker.0.id(), Signal::STOP);
    let started = Instant::now();
    let (status, answer) = server.json("POST", "/v1/completions", &short("one"));
    assert!(started.elapsed() < Duration::from_secs(20));
    assert!(status >= 500, "{answer}");
    let why = "loading made no progress for 5s";
    let of_one = state(&server, "one");
    assert!(of_one["error"].to_string().contains(why), "{of_one}");
    kill(worker.0.id(), Signal::CONT);
    let expected = completed(&server, &short("two"));
    assert_eq!(completed(&server, &short("one")), expected);

    // While it decodes.
    let stream = Stream::start(&server, "/v1/completions", &long("one"));
    kill(worker.0.id(), Signal::STOP);
    let started = Instant::now();
    died(&stream.rest().2, "a step took longer than 5s");
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(completed(&server, &short("two")), expected);
    kill(worker.0.id(), Signal::CONT);
    assert_eq!(completed(&server, &short("one")), expected);
}

#[test]
fn a_worker_that_is_lost_while_weights_are_copied_to_it_is_an_error() {
    let folder = scratch();
    let reserved = Port::reserve();
    let port = reserved.number;
    let _worker = Worker::start(port);
    // In the middle of the weights.
    let limit = Arc::new(AtomicUsize::new(model().len() / 2));
    let server = server(folder.path(), cut_after(port, Arc::clone(&limit)));
    let (status, answer) = server.json("POST", "/v1/completions", &short("one"));
    assert_eq!(status, 503, "{answer}");
    assert_eq!(answer["error"]["code"], "model_not_available", "{answer}");
    let expected = completed(&server, &short("two"));
    limit.store(usize::MAX, Ordering::Relaxed);
    assert_eq!(completed(&server, &short("one")), expected);
}
