//! What one client does to the others: large requests, slow and half-closed connections, many at once, the end
//! of the server.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::command::allow_connections;
use crate::support::server::{Server, with};

/// The longest that `/health` took while `work` ran.
fn slowest_health(server: &Server, work: impl FnOnce() + Send) -> Duration {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                assert_eq!(server.json("GET", "/health", &Value::Null).0, 200);
                slowest = slowest.max(start.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
            slowest
        });
        work();
        is_over.store(true, Ordering::Relaxed);
        watch.join().expect("it lives")
    })
}

/// What comes until the server closes the connection.
fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn connect(server: &Server, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).expect("the server listens");
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).expect("a limit");
    stream.write_all(text.as_bytes()).expect("it is sent");
    stream
}

fn post(body: &str, n_bytes: usize) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {n_bytes}\r\n\r\n{body}"
    )
}

fn chat(extra: &Value) -> String {
    let body = with(
        json!({ "model": "tiny-chat", "messages": [{ "role": "user", "content": "2+2=?" }], "temperature": 0 }),
        extra,
    );
    body.to_string()
}

#[test]
fn large_requests_delay_nobody() {
    let server = Server::start(&[]);
    let n_bytes = 4 << 20;
    let text = "some words and 123 "
        .repeat(n_bytes / 16)
        .split_at(n_bytes)
        .0
        .to_owned();
    let prompts = chat(&json!({ "messages": [{ "role": "user", "content": text }] }));
    let breakers: Vec<String> = (0..100_000).map(|i| format!("b{i}")).collect();
    let breakers = chat(&json!({ "dry_multiplier": 1, "dry_sequence_breakers": breakers }));
    let slowest = slowest_health(&server, || {
        std::thread::scope(|scope| {
            for body in [&prompts, &prompts, &prompts, &prompts, &breakers] {
                let server = &server;
                scope.spawn(move || {
                    let (status, _, answer) =
                        server.raw("POST", "/v1/chat/completions", "application/json", body);
                    assert_eq!(status, 400, "{}", &answer[..answer.len().min(300)]);
                });
            }
            std::thread::sleep(Duration::from_millis(300));
            // A small request does not wait for the large ones either.
            let start = Instant::now();
            assert_eq!(server.chat(json!({ "max_tokens": 1 })).0, 200);
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "{:?}",
                start.elapsed()
            );
        });
    });
    // Debug builds on a busy machine: on its own the server answers within a few milliseconds.
    assert!(slowest < Duration::from_millis(1000), "{slowest:?}");
}

#[test]
fn sixteen_schemas_at_once_are_all_served() {
    let server = Server::start(&[]);
    std::thread::scope(|scope| {
        for i in 0..16 {
            let server = &server;
            scope.spawn(move || {
                let schema = json!({ "type": "object", "properties": { format!("k{i}"): { "enum": [i] } },
                    "required": [format!("k{i}")], "additionalProperties": false });
                let (status, answer) = server.chat(json!({ "json_schema": schema, "max_tokens": 40 }));
                assert_eq!(status, 200, "{answer}");
            });
        }
    });
}

#[test]
fn half_sent_headers_and_bodies_time_out() {
    let server = Server::start(&["--read-time", "1"]);
    let start = Instant::now();
    let mut head = connect(
        &server,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconte",
    );
    let mut body = connect(&server, &post("{\"model\"", 1000));
    rest(&mut head);
    let answer = rest(&mut body);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_half_closed_connection_gets_its_answer() {
    let server = Server::start(&[]);
    for extra in [
        json!({}),
        json!({ "stream": true }),
        json!({ "max_tokens": 100, "ignore_eos": true }),
    ] {
        let body = chat(&extra);
        let mut stream = connect(&server, &post(&body, body.len()));
        stream.shutdown(Shutdown::Write).expect("it is open");
        let answer = rest(&mut stream);
        let answer = answer.trim_start_matches("HTTP/1.1 100 Continue\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let end = if extra["stream"] == true {
            "[DONE]"
        } else {
            "\"usage\""
        };
        assert!(answer.contains(end), "{answer}");
    }
}

#[test]
fn a_body_that_is_cut_off_is_refused_at_once() {
    let server = Server::start(&[]);
    let start = Instant::now();
    for (body, n) in [("", 10), ("{\"model\"", 1000), ("{}", 3)] {
        let mut stream = connect(&server, &post(body, n));
        stream.shutdown(Shutdown::Write).expect("it is open");
        let answer = rest(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains("invalid_json"), "{answer}");
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn clients_that_leave_free_their_places() {
    let server = Server::start(&["--parallel", "1", "--ctx", "4096"]);
    let endless = chat(&json!({ "ignore_eos": true, "max_tokens": 4000 }));
    for _ in 0..4 {
        let stream = connect(&server, &post(&endless, endless.len()));
        std::thread::sleep(Duration::from_millis(200));
        drop(stream);
    }
    let start = Instant::now();
    assert_eq!(server.chat(json!({ "max_tokens": 2 })).0, 200);
    // One of them alone would take longer.
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_client_that_never_reads_holds_no_place() {
    let server = Server::start(&["--parallel", "1", "--ctx", "4096"]);
    // More bytes than the system keeps for a connection.
    let endless = chat(&json!({
        "ignore_eos": true, "max_tokens": 2000, "stream": true, "logprobs": true, "top_logprobs": 20
    }));
    let silent = connect(&server, &post(&endless, endless.len()));
    let (status, answer) = server.chat(json!({ "max_tokens": 2 }));
    assert_eq!(status, 200, "{answer}");
    drop(silent);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_of_the_log_stops_nobody() {
    let server = Server::start(&["--log", "/dev/full"]);
    for _ in 0..3 {
        assert_eq!(server.chat(json!({ "max_tokens": 2 })).0, 200);
    }
}

#[test]
fn idle_and_slow_connections_delay_nobody() {
    let server = Server::start(&[]);
    allow_connections();
    let idle: Vec<TcpStream> = (0..1000).map(|_| connect(&server, "")).collect();
    let mut slow: Vec<TcpStream> = (0..200)
        .map(|_| connect(&server, &post("{", 1000)))
        .collect();
    let slowest = slowest_health(&server, || {
        for _ in 0..5 {
            for stream in &mut slow {
                stream.write_all(b" ").expect("it is open");
            }
            assert_eq!(server.chat(json!({ "max_tokens": 2 })).0, 200);
        }
    });
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
    drop(idle);
}

/// Sends a signal by its name.
fn signal(server: &Server, name: &str) {
    let id = server.child.id().to_string();
    let status = Command::new("kill")
        .args([name, &id])
        .status()
        .expect("kill runs");
    assert!(status.success());
}

fn ended(server: &mut Server, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = server.child.try_wait().expect("it has a state") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

#[test]
fn signals_drain_and_a_second_one_ends() {
    for name in ["-TERM", "-INT"] {
        let mut server = Server::start(&["--ctx", "4096"]);
        let idle = connect(&server, "");
        let half = connect(&server, "POST /v1/chat/completions HTTP/1.1\r\nhost: 127");
        let body = chat(&json!({ "ignore_eos": true, "max_tokens": 200, "stream": true }));
        let mut stream = connect(&server, &post(&body, body.len()));
        let mut first = [0; 64];
        stream.read_exact(&mut first).expect("the stream begins");
        signal(&server, name);
        let text = rest(&mut stream);
        assert!(text.contains("[DONE]"), "the stream is cut off: {text}");
        let status = ended(&mut server, Duration::from_secs(5)).expect("it ends");
        assert!(status.success(), "{status}");
        drop((idle, half));
    }
    let mut server = Server::start(&["--ctx", "4096"]);
    let body = chat(&json!({ "ignore_eos": true, "max_tokens": 4000, "stream": true }));
    let mut stream = connect(&server, &post(&body, body.len()));
    let mut first = [0; 64];
    stream.read_exact(&mut first).expect("the stream begins");
    signal(&server, "-INT");
    std::thread::sleep(Duration::from_millis(200));
    assert!(
        server.child.try_wait().expect("a state").is_none(),
        "it drains"
    );
    signal(&server, "-INT");
    let status = ended(&mut server, Duration::from_secs(3)).expect("it ends at once");
    assert_eq!(status.code(), Some(1));
}

#[test]
fn refusals_state_when_to_retry() {
    let server = Server::start(&[
        "--parallel",
        "1",
        "--queue",
        "1",
        "--queue-time",
        "0.2",
        "--ctx",
        "4096",
    ]);
    let body = chat(&json!({ "ignore_eos": true, "max_tokens": 4000 }));
    let _running = connect(&server, &post(&body, body.len()));
    std::thread::sleep(Duration::from_millis(300));
    let waiting = chat(&json!({ "max_tokens": 1 }));
    let (status, head, _) =
        server.raw("POST", "/v1/chat/completions", "application/json", &waiting);
    assert!([429, 503].contains(&status), "{status}");
    assert!(
        head.contains("retry-after: 1") && head.contains("x-should-retry: true"),
        "{head}"
    );
}

#[test]
fn memory_comes_back_after_large_bodies() {
    let server = Server::start(&[]);
    let resident = || {
        let path = format!("/proc/{}/status", server.child.id());
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim()
            .trim_end_matches(" kB")
            .trim()
            .parse::<f64>()
            .ok()
    };
    let message = json!({ "role": "user", "content": "x".repeat(2400) });
    let body = chat(&json!({ "messages": vec![message; 2_000] }));
    let ask = || {
        let (status, ..) = server.raw("POST", "/v1/chat/completions", "application/json", &body);
        assert_eq!(status, 400);
    };
    let Some(mut before) = resident() else {
        // Only Linux says.
        return;
    };
    // A thread that works for the first time makes tables that stay, and which threads work is chance: floods follow
    // each other until one leaves nothing. What each of them left would be 15 MB and more.
    let is_back = (0..8).any(|_| {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(ask);
            }
        });
        let flooded = Instant::now();
        let limit = before * 1.05;
        while flooded.elapsed() < Duration::from_secs(5) {
            if resident().expect("it lives") < limit {
                return true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        before = resident().expect("it lives");
        false
    });
    assert!(is_back, "{before} kB stay, and more after each flood");
}

#[test]
fn a_client_that_is_refused_while_it_sends_reads_why() {
    const N_BYTES: usize = 5_000_000;
    let server = Server::start(&["--api-key", "secret"]);
    let head = |path: &str, key: &str, n: usize| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nx-api-key: {key}\r\n\
             content-type: application/json\r\ncontent-length: {n}\r\n\r\n"
        )
    };
    let chat = "/v1/chat/completions";
    for (head, status) in [
        (head(chat, "wrong", N_BYTES), "401"),
        (head(chat, "secret", 65 << 20), "413"),
        (head("/v1/chat", "secret", N_BYTES), "404"),
    ] {
        let mut stream = connect(&server, &head);
        // Slower than it is refused: a hundred pieces, and then the answer.
        for _ in 0..100 {
            stream
                .write_all(&vec![b' '; N_BYTES / 100])
                .expect("it is taken");
            std::thread::sleep(Duration::from_millis(10));
        }
        if status == "413" {
            stream.shutdown(Shutdown::Write).expect("the end");
        }
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(read.is_ok(), "{status}: {read:?} {answer}");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    // One that never ends is not read for ever.
    let started = Instant::now();
    let server = Server::start(&["--api-key", "secret", "--read-time", "1"]);
    let mut stream = connect(&server, &head(chat, "wrong", N_BYTES));
    while stream.write_all(b" ").is_ok() {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "it is still taken"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Each look at the clock of the calendar is 40 days after the one before.
#[cfg(target_os = "linux")]
const LEAPING_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec * now) {
    static long n_looks;
    int result = syscall(SYS_clock_gettime, id, now);
    if (result == 0 && id == CLOCK_REALTIME) {
        now->tv_sec += 40L * 24 * 60 * 60 * __atomic_add_fetch(&n_looks, 1, __ATOMIC_RELAXED);
    }
    return result;
}
"#;

#[test]
#[cfg(target_os = "linux")]
fn a_clock_that_leaps_ends_nothing() {
    let folder = crate::support::command::scratch();
    let (source, library) = (
        folder.path().join("clock.c"),
        folder.path().join("clock.so"),
    );
    std::fs::write(&source, LEAPING_CLOCK).expect("written");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .expect("the compiler that built ggml");
    assert!(status.success());
    let limits = "--answer-time 300 --queue-time 300 --idle-time 300 --read-time 60 --lab-time 300";
    let limits: Vec<&str> = limits.split(' ').collect();
    let preload = [("LD_PRELOAD", crate::support::command::text(&library))];
    let server = Server::with(&limits, &preload);
    let plain = Server::shared();
    let body = json!({ "messages": [{ "role": "user", "content": "2+2=?" }], "temperature": 0 });
    let (expected, first) = (
        plain.post("/v1/chat/completions", &body),
        server.post("/v1/chat/completions", &body),
    );
    let second = server.post("/v1/chat/completions", &body);
    let made = |answer: &Value| answer["created"].as_u64().expect("a time");
    assert!(
        made(&second) >= made(&first) + 40 * 24 * 60 * 60,
        "the clock does not leap"
    );
    for answer in [first, second] {
        assert_eq!(answer["choices"], expected["choices"]);
    }
    let events = server.stream(json!({}));
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let page = server.raw("GET", "/metrics", "text/plain", "").2;
    let deaths = page
        .lines()
        .filter(|line| line.starts_with("bench_engine_deaths_total{"));
    let deaths: Vec<&str> = deaths.collect();
    assert!(!deaths.is_empty(), "{page}");
    assert!(deaths.iter().all(|line| line.ends_with(" 0")), "{deaths:?}");
}
