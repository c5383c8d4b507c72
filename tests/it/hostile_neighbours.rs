//! What one request does to others: numbers that are not finite, clients that do not read, requests with many
//! completions, large results.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab_core::arch::Mode;
use lab_core::model::{Batch, Lab, Model, Options};
use serde_json::{Value, json};

use crate::goldens::{EXACT, Golden, all_goldens, model as load, options};
use crate::lab::{affine, edit};
use crate::lora;
use crate::support::command::{made_up, scratch, text};
use crate::support::nmse;
use crate::support::process;
use crate::support::server::Server;

const VOCAB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-chat.gguf");

fn push(batch: &mut Batch, sequence: u32, tokens: &[u32]) {
    for (position, token) in (0..).zip(tokens) {
        batch.push(*token, sequence, position, true);
    }
}

/// An edit that makes a value infinite.
fn overflow(model: &Model, path: &str) -> Option<Lab> {
    let points = model.points();
    let at = *points.find(path).ok()?.first()?;
    let width = points.all[at].width() as usize;
    let infinite = affine(vec![f32::INFINITY; width], vec![0.0; width]);
    Some(edit(points, path, infinite))
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Models whose tokens attend to later ones, and their texts.
fn encoders() -> impl Iterator<Item = &'static Golden> {
    all_goldens().filter(|golden| golden.plan.mode != Mode::Causal && golden.plan.source.is_none())
}

#[test]
fn texts_of_a_pass_without_a_cache_do_not_see_numbers_of_each_other() {
    let mut n_models = 0;
    for golden in encoders() {
        for flash_attn in [false, true] {
            let settings = Options {
                n_batch: 4 * golden.tokens.len(),
                n_ctx: 0,
                flash_attn,
                ..options()
            };
            let mut alone = load(golden, settings.clone());
            let (one, other) = (&golden.tokens, &golden.tokens[..golden.tokens.len() / 2]);
            let mut of = |tokens: &[u32]| {
                let mut batch = Batch::default();
                push(&mut batch, 0, tokens);
                wide(alone.forward(&batch).expect("the pass runs"))
            };
            let expected = [of(one), of(other), of(one)].concat();
            let mut all = load(golden, settings);
            for path in ["layers.0.attn.k", "layers.0.attn.v"] {
                let Some(lab) = overflow(&all, path) else {
                    continue;
                };
                n_models += 1;
                all.begin(1, &[], Some(&Arc::new(lab)));
                let mut batch = Batch::default();
                push(&mut batch, 0, one);
                push(&mut batch, 1, one);
                push(&mut batch, 2, other);
                push(&mut batch, 3, one);
                let found = all.forward(&batch).expect("the pass runs");
                let width = found.len() / batch.len();
                let (first, rest) = found.split_at(one.len() * width);
                let rest = &rest[one.len() * width..];
                let found = [first, rest].concat();
                let error = nmse(&found, &expected);
                assert!(
                    error <= EXACT,
                    "{} {path} {flash_attn}: {error}",
                    golden.name
                );
            }
        }
    }
    assert!(n_models > 20, "{n_models}");
}

/// What a request does whose values overflow: it fails, and no other does, then or later.
#[test]
fn a_request_that_overflows_fails_alone_where_attention_reads_slots_of_others() {
    let folder = scratch();
    let of = |arch: &str| {
        made_up(
            folder.path(),
            arch,
            &["--vocab", VOCAB, "--set", "vocab_size=768"],
        )
    };
    let edits = |path: &str| {
        let edit = json!({ "point": path, "op": "scale", "scale": 3e38 });
        json!({ "edits": [edit, edit] })
    };
    for (arch, more) in [
        ("llama", &[][..]),
        ("gemma3", &[]),
        ("lfm2", &["--kv-type", "bf16"]),
        ("t5", &["--kv-type", "f32"]),
        ("jamba", &[]),
    ] {
        let model = of(arch);
        let options = [&["-m", text(&model), "--flash-attn", "off"], more].concat();
        let server = Server::start(&options);
        let plain = |n: usize| {
            let body = json!({
                "prompt": vec![20 + n; 10 + 20 * n], "max_tokens": 4, "temperature": 0,
                "ignore_eos": true, "logprobs": 1,
            });
            let (status, answer) = server.json("POST", "/v1/completions", &body);
            assert_eq!(status, 200, "{arch} {n}: {answer}");
            answer["choices"][0]["logprobs"]["token_logprobs"].clone()
        };
        let before: Vec<Value> = (0..6).map(plain).collect();
        for path in ["layers.0.attn.v", "layers.0.attn.k", "layers.1.attn.v"] {
            let hidden = json!({ "point": "layers.1.out", "op": "set", "vector": vec![1.0; 32] });
            let mut lab = edits(path);
            for is_hidden in [false, true] {
                if is_hidden {
                    lab["edits"]
                        .as_array_mut()
                        .expect("a list")
                        .push(hidden.clone());
                }
                let body = json!({ "prompt": vec![3; 100], "max_tokens": 2, "lab": lab });
                let (status, answer) = server.json("POST", "/v1/completions", &body);
                // A layer may have no such point, or rows of another width.
                assert!(status == 400 || status == 200, "{arch} {path}: {answer}");
                for (n, expected) in before.iter().enumerate() {
                    assert_eq!(&plain(n), expected, "{arch} {path} {is_hidden}: {answer}");
                }
            }
        }
    }
}

/// The same with the scale of an adapter, beside other requests that run at the same time.
#[test]
fn a_scale_that_overflows_fails_its_request_alone() {
    let folder = scratch();
    let adapter = lora::of_shipped(folder.path(), 1e4);
    let adapter = format!("{}=0", text(&adapter));
    let server = Server::start(&["--flash-attn", "off", "--lora", &adapter]);
    let plain = |n: usize| {
        let body = json!({
            "prompt": vec![20 + n; 10 + 20 * n], "max_tokens": 40, "temperature": 0, "ignore_eos": true,
        });
        let (status, answer) = server.json("POST", "/v1/completions", &body);
        assert_eq!(status, 200, "{n}: {answer}");
        answer["choices"][0]["text"].clone()
    };
    let before: Vec<Value> = (0..4).map(plain).collect();
    let body = json!({
        "prompt": vec![3; 400], "max_tokens": 1, "lora": [{ "id": 0, "scale": 3e38 }],
    });
    std::thread::scope(|scope| {
        let hostile = scope.spawn(|| {
            for _ in 0..8 {
                let (status, answer) = server.json("POST", "/v1/completions", &body);
                assert_eq!(status, 400, "{answer}");
                assert_eq!(answer["error"]["code"], "non_finite_logits", "{answer}");
            }
        });
        while !hostile.is_finished() {
            (0..before.len()).for_each(|n| drop(plain(n)));
        }
        hostile.join().expect("it fails as it should");
    });
    for (n, expected) in before.iter().enumerate() {
        assert_eq!(&plain(n), expected, "{n}");
    }
}

/// A source of more than half of the cache, which is read once.
#[test]
fn a_source_that_is_cached_takes_no_blocks_again() {
    let folder = scratch();
    let model = made_up(
        folder.path(),
        "t5",
        &["--vocab", VOCAB, "--set", "vocab_size=768"],
    );
    let server = Server::start(&["-m", text(&model), "--parallel", "1", "--ctx", "200"]);
    for n in [49, 129, 150, 190] {
        let body = json!({
            "prompt": vec![9; n], "max_tokens": 8, "ignore_eos": true, "temperature": 0,
        });
        let first = server.post("/v1/completions", &body)["choices"].clone();
        for _ in 0..2 {
            assert_eq!(
                server.post("/v1/completions", &body)["choices"],
                first,
                "{n}"
            );
        }
    }
}

/// A client that sends a request and reads nothing of the answer.
fn deaf(server: &Server, path: &str, body: &Value) -> TcpStream {
    let address = server.address.parse().expect("an address");
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    );
    let socket = socket.expect("a socket");
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4096).expect("it is a socket");
    let address: std::net::SocketAddr = address;
    rustix::net::connect(&socket, &address).expect("the server listens");
    let mut stream = TcpStream::from(socket);
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all((head + &body).as_bytes())
        .expect("it is sent");
    stream
}

/// An answer of some 10 MB.
fn large(model: &str, is_streamed: bool) -> Value {
    json!({
        "model": model, "prompt": "Hi", "n": 4, "n_probs": 60, "n_predict": 400, "ignore_eos": true,
        "stream": is_streamed,
    })
}

fn two_models(folder: &Path) {
    for name in ["a.gguf", "b.gguf"] {
        std::fs::copy(VOCAB, folder.join(name)).expect("copied");
    }
}

/// A client that never reads holds neither a model nor the end of the server.
#[test]
fn a_client_that_does_not_read_is_given_up() {
    for is_streamed in [true, false] {
        let folder = scratch();
        two_models(folder.path());
        let options = [
            "--models",
            text(folder.path()),
            "--max-loaded",
            "1",
            "--write-time",
            "1",
        ];
        let server = Server::split(&options);
        let silent = deaf(&server, "/completion", &large("a", is_streamed));
        std::thread::sleep(Duration::from_secs(1));
        let started = Instant::now();
        let body = json!({ "model": "b", "prompt": "Hi", "max_tokens": 1 });
        server.post("/v1/completions", &body);
        assert!(started.elapsed() < Duration::from_secs(30), "{is_streamed}");
        drop(silent);
        let silent = deaf(&server, "/completion", &large("b", is_streamed));
        std::thread::sleep(Duration::from_secs(1));
        let (status, _, _) = server.raw("POST", "/quit", "application/json", "");
        assert_eq!(status, 202);
        let log = server.ended();
        assert!(log.contains("does not read its answer"), "{log}");
        drop(silent);
    }
}

/// A client that reads slowly, but reads, gets all of its answer, streamed or not.
#[test]
fn a_client_that_reads_slowly_gets_its_answer() {
    let server = Server::split(&["--write-time", "5"]);
    for is_streamed in [true, false] {
        let mut stream = deaf(&server, "/completion", &large("default", is_streamed));
        let (mut answer, mut part) = (Vec::new(), vec![0; 256 << 10]);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(200));
            let n = stream.read(&mut part).expect("more of it");
            answer.extend_from_slice(&part[..n]);
        }
        // The end of a body.
        let head = String::from_utf8_lossy(&answer[..400]).to_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length: Option<usize> = length.and_then(|l| l.split_whitespace().next()?.parse().ok());
        let start = head.find("\r\n\r\n").expect("a head") + 4;
        while length.is_none_or(|n| answer.len() != start + n)
            && !answer.ends_with(b"\r\n0\r\n\r\n")
        {
            let n = stream.read(&mut part).expect("more of it");
            assert!(n > 0, "it is cut off after {} bytes", answer.len());
            answer.extend_from_slice(&part[..n]);
        }
        assert!(answer.len() > 4 << 20, "{}", answer.len());
        assert_eq!(length.is_none(), is_streamed);
    }
}

/// A model is unloaded when its requests are complete: then the answer comes, and until then it counts as loaded.
#[test]
fn unloading_ends_with_the_last_request() {
    let folder = scratch();
    two_models(folder.path());
    let server = Server::split(&["--models", text(folder.path()), "--max-loaded", "1"]);
    let busy = json!({
        "model": "a", "prompt": "Hi", "max_tokens": 480, "n": 16, "ignore_eos": true, "stream": true,
        "temperature": 0,
    });
    let stream = process::Stream::start(&server, "/v1/completions", &busy);
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| {
            let answer = server.post("/models/unload", &json!({ "model": "a" }));
            (answer, process::state(&server, "a")["state"].clone())
        });
        process::eventually("it is unloading", || {
            ["unloading", "not loaded"]
                .contains(&process::state(&server, "a")["state"].as_str().unwrap_or(""))
        });
        let other = scope.spawn(|| {
            let body = json!({ "model": "b", "prompt": "Hi", "max_tokens": 1 });
            server.post("/v1/completions", &body);
        });
        while !unload.is_finished() {
            let n = process::children(server.child.id()).len();
            assert!(n <= 1, "{n} engine processes");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (_, state) = unload.join().expect("it answers");
        assert_eq!(state, "not loaded");
        other.join().expect("it answers");
    });
    stream.rest();
}

/// Resident memory of the engine process in MB.
fn engine_memory(server: &Server) -> u64 {
    let (id, _) = process::children(server.child.id()).remove(0);
    process::resident(id) >> 10
}

/// Large answers are bounded, take a small multiple of their text, and their memory is returned.
#[test]
fn large_answers_take_memory_in_proportion_and_give_it_back() {
    let server = Server::split(&["--parallel", "4"]);
    server.post(
        "/v1/completions",
        &json!({ "prompt": "Hi", "max_tokens": 1 }),
    );
    let before = engine_memory(&server);
    let lens = |top_k: u64, n: usize| {
        json!({
            "prompt": vec![5; n], "lab": { "lens": { "top_k": top_k, "positions": "all" } },
        })
    };
    let (status, answer) = server.json("POST", "/v1/lab/run", &lens(700, 500));
    assert_eq!(status, 400, "{}", answer["error"]);
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(message.contains("--lab-bytes"), "{message}");
    // A list of 100 tokens for each of 480 tokens of 22 completions: above a million.
    let lists = |n: u64| json!({ "prompt": "Hi", "n_predict": 480, "ignore_eos": true, "n_probs": 100, "n": n });
    let (status, answer) = server.json("POST", "/completion", &lists(22));
    assert_eq!(
        (status, &answer["error"]["param"]),
        (400, &json!("logprobs")),
        "{answer}"
    );
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(
        message.contains("1056000") && message.contains("1048576"),
        "{message}"
    );
    let mut most = 0;
    for (path, body) in [("/v1/lab/run", lens(300, 200)), ("/completion", lists(12))] {
        let (status, _, text) = server.raw("POST", path, "application/json", &body.to_string());
        assert_eq!(status, 200);
        most = most.max(text.len() as u64 >> 20);
        let taken = engine_memory(&server) - before;
        assert!(
            taken < 100 + 8 * (text.len() as u64 >> 20),
            "{path}: {taken} MB for {}",
            text.len()
        );
    }
    assert!(most > 10, "{most} MB");
    process::eventually("the memory is returned", || {
        engine_memory(&server) < before + 40
    });
}

/// Without a maximum length, the lists end where they may have no more entries.
#[test]
fn completions_with_lists_end_where_the_lists_are_full() {
    let server = Server::shared();
    let body =
        json!({ "prompt": "Hi", "ignore_eos": true, "n_probs": 100, "n": 40, "temperature": 0 });
    let answer = server.post("/completion", &body);
    let all = answer.as_array().expect("a list");
    for one in all {
        assert_eq!(
            one["tokens_predicted"],
            (1 << 20) / 4000,
            "{}",
            one["stop_type"]
        );
    }
    let few = json!({ "prompt": "Hi", "ignore_eos": true, "n_probs": 3, "temperature": 0 });
    let answer = server.post("/completion", &few);
    assert!(answer["tokens_predicted"].as_u64() > Some(400), "{answer}");
}
