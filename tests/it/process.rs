//! Crashes of engine processes: effects and clean-up; and that answers are those of a single process.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::support::command::{made_up, scratch, text};
use crate::support::process::{
    JSON, Stream, children, engine, eventually, kill, long, model, resident, state, two_models,
};
use crate::support::server::Server;

#[test]
fn a_death_ends_the_requests_of_its_model_with_an_error_and_no_others() {
    let folder = scratch();
    let server = two_models(folder.path(), &[]).expecting_errors();
    let two = Stream::start(&server, "/v1/completions", &long("two"));
    let plain = Stream::start(&server, "/v1/completions", &long("one"));
    let mut whole = long("one");
    whole["stream"] = json!(false);
    let id = engine(&server, "one");
    let of_two = engine(&server, "two");
    assert_ne!(id, of_two);
    std::thread::scope(|scope| {
        let whole = scope.spawn(|| server.json("POST", "/v1/completions", &whole));
        eventually("two requests are active", || {
            let (_, slots) = server.json("GET", "/slots?model=one", &Value::Null);
            let slots = slots.as_array().expect("slots").clone();
            slots
                .iter()
                .filter(|slot| slot["is_processing"] == true)
                .count()
                == 2
        });
        kill(id, Signal::KILL);
        let (status, answer) = whole.join().expect("it lives");
        assert_eq!(status, 500, "{answer}");
        assert_eq!(answer["error"]["code"], "engine_died", "{answer}");
        let message = answer["error"]["message"].as_str().expect("a text");
        assert!(
            message.contains("`one`") && message.contains("SIGKILL"),
            "{message}"
        );
    });
    let (rest, _, last) = plain.rest();
    assert_eq!(last["error"]["code"], "engine_died", "{last}");
    assert!(!rest.contains("[DONE]"), "{rest}");

    // Nobody else notices.
    assert_eq!(
        server.json("GET", "/health", &Value::Null).1["status"],
        "ok"
    );
    let one = state(&server, "one");
    assert_eq!(one["state"], "failed", "{one}");
    assert!(
        one["error"]
            .as_str()
            .is_some_and(|how| how.contains("SIGKILL")),
        "{one}"
    );
    assert_eq!(state(&server, "two")["state"], "loaded");
    let page = server.raw("GET", "/metrics", "text/plain", "").2;
    for line in [
        "bench_engine_deaths_total{model=\"one\"} 1\n",
        "bench_engine_deaths_total{model=\"two\"} 0\n",
        "bench_model_loaded{model=\"one\"} 0\n",
        "bench_active_sequences{model=\"two\"} ",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    assert_eq!(engine(&server, "two"), of_two);
    let (rest, _, _) = two.rest();
    assert!(
        rest.contains("data: [DONE]") && !rest.contains("\"error\""),
        "{rest}"
    );

    // The next request starts it again. A stream ends in its dialect.
    let short = json!({ "model": "one", "prompt": "1", "max_tokens": 2 });
    server.post("/v1/completions", &short);
    assert_eq!(state(&server, "one")["state"], "loaded");
    let body = json!({
        "model": "one", "max_tokens": 3000, "stream": true,
        "messages": [{ "role": "user", "content": "1 2 3 4 5 6 7 8 9" }],
    });
    let (name, last) = aborted(&server, "/v1/messages", &body);
    assert_eq!(
        (name.as_str(), &last["type"]),
        ("event: error", &json!("error"))
    );
    let message = last["error"]["message"].as_str().expect("a text");
    assert!(message.contains("SIGABRT"), "{message}");

    server.post("/v1/completions", &short);
    let body = json!({ "model": "one", "stream": true, "input": "1 2 3 4 5 6 7 8 9" });
    let (name, last) = aborted(&server, "/v1/responses", &body);
    assert_eq!(
        (name.as_str(), &last["type"]),
        ("event: error", &json!("error"))
    );
    assert_eq!(last["code"], "engine_died", "{last}");
    assert!(last["sequence_number"].as_u64() > Some(0), "{last}");

    // Three within a minute are too many.
    let body = json!({ "model": "one", "prompt": "1" }).to_string();
    let (status, head, answer) = server.raw("POST", "/v1/completions", JSON, &body);
    assert_eq!(status, 503, "{answer}");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer["error"]["code"], "engine_restarting", "{answer}");
    let after = head
        .lines()
        .find_map(|line| line.strip_prefix("retry-after: "));
    let after: u64 = after.and_then(|after| after.parse().ok()).expect("seconds");
    assert!((1..=60).contains(&after), "{head}");
    let body = json!({ "model": "two", "prompt": "1", "max_tokens": 2 });
    assert_eq!(server.json("POST", "/v1/completions", &body).0, 200);
}

/// The last event of a stream whose engine process aborts after the first one.
fn aborted(server: &Server, path: &str, body: &Value) -> (String, Value) {
    let id = engine(server, "one");
    let stream = Stream::start(server, path, body);
    kill(id, Signal::ABORT);
    let (_, name, last) = stream.rest();
    (name, last)
}

#[test]
fn a_truncated_mapped_file_ends_its_model_alone() {
    let folder = scratch();
    let server = two_models(folder.path(), &[]).expecting_errors();
    server.post("/models/load", &json!({ "model": "two" }));
    let stream = Stream::start(&server, "/v1/completions", &long("one"));
    let file = std::fs::File::options()
        .write(true)
        .open(folder.path().join("one.gguf"))
        .expect("it opens");
    file.set_len(4096).expect("truncated");
    let (_, _, last) = stream.rest();
    let message = last["error"]["message"].as_str().expect("an error");
    // The engine may look at the file before it reads a page that is gone.
    let is_told = message.contains("SIGBUS") || message.contains("was changed while it was in use");
    assert!(is_told, "{message}");
    // What is left cannot be loaded, which is another error.
    let body = |model: &str| json!({ "model": model, "prompt": "1", "max_tokens": 2 });
    let (status, answer) = server.json("POST", "/v1/completions", &body("one"));
    assert_eq!(status, 503, "{answer}");
    assert_eq!(answer["error"]["code"], "model_not_available", "{answer}");
    assert_eq!(server.json("POST", "/v1/completions", &body("two")).0, 200);
    // A file that is whole again is served again.
    std::fs::write(folder.path().join("one.gguf"), model()).expect("written");
    assert_eq!(server.json("POST", "/v1/completions", &body("one")).0, 200);
}

#[test]
#[cfg(target_os = "linux")]
fn memory_that_cannot_be_allocated_ends_its_model_alone() {
    use rustix::process::{Resource, Rlimit, prlimit};
    let folder = scratch();
    let server = two_models(folder.path(), &[]).expecting_errors();
    let body = |model: &str, n_words: usize| {
        let prompt = vec!["word"; n_words].join(" ");
        json!({ "model": model, "prompt": prompt, "max_tokens": 2 })
    };
    for model in ["one", "two"] {
        server.post("/v1/completions", &body(model, 1));
    }
    let id = engine(&server, "one");
    // Below what it has: what it has stays, all further memory is refused. A limit of the address space would not refuse what
    // a heap of glibc has reserved there and makes writable later.
    let limit = Rlimit {
        current: Some(1 << 20),
        maximum: None,
    };
    let pid = Pid::from_raw(id as i32);
    prlimit(pid, Resource::Data, limit).expect("a process of ours");
    let (status, answer) = server.json("POST", "/v1/completions", &body("one", 500));
    assert_eq!(status, 500, "{answer}");
    assert_eq!(answer["error"]["code"], "engine_died", "{answer}");
    let two = body("two", 3);
    assert_eq!(server.json("POST", "/v1/completions", &two).0, 200);
    // The next request starts a process without the limit.
    server.post("/v1/completions", &body("one", 500));
    assert_ne!(engine(&server, "one"), id);
}

/// A model of some kilobytes, with this length of the context that it was trained for.
fn small(n_ctx: usize) -> Vec<u8> {
    let folder = scratch();
    let vocab = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-chat.gguf");
    let n_ctx = format!("n_ctx_train={n_ctx}");
    let path = made_up(folder.path(), "llama", &["--vocab", vocab, "--set", &n_ctx]);
    std::fs::read(path).expect("it is readable")
}

#[test]
fn a_file_that_is_changed_in_place_is_loaded_again_and_others_go_on() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("one.gguf"), small(256)).expect("written");
    std::fs::write(path("two.gguf"), small(256)).expect("written");
    let server = Server::split(&["--models", text(folder.path())]).expecting_errors();
    let asked = |model: &str| {
        let body = json!({ "model": model, "prompt": "1", "max_tokens": 2 });
        server.json("POST", "/v1/completions", &body)
    };
    assert_eq!((asked("one").0, asked("two").0), (200, 200));
    let (one, two) = (engine(&server, "one"), engine(&server, "two"));
    let trained = |model: &str| state(&server, model)["meta"]["n_ctx_train"].clone();
    assert_eq!(trained("one"), 256);

    // As `cp` does it: the same file, with other bytes.
    let other = small(512);
    std::fs::write(path("one.gguf"), &other).expect("written");
    let (status, answer) = asked("one");
    // A request that comes in time is told by its pass, or by the end of its process, or is the first of the new one.
    if status != 200 {
        assert!(status == 503 || status == 500, "{answer}");
        let message = answer["error"]["message"].as_str().expect("a text");
        assert!(message.contains("changed"), "{message}");
    }
    eventually("its process ends", || resident(one) == 0);
    // The server may not know yet that it has.
    eventually("the new file is loaded", || asked("one").0 == 200);
    assert_ne!(engine(&server, "one"), one);
    assert_eq!(trained("one"), 512);
    assert_eq!(asked("two").0, 200);
    assert_eq!(engine(&server, "two"), two);

    // One that takes its name is another file, and changes nothing of what is loaded.
    std::fs::write(path("new"), small(256)).expect("written");
    std::fs::rename(path("new"), path("two.gguf")).expect("renamed");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(asked("two").0, 200);
    assert_eq!(engine(&server, "two"), two);
    server.post("/models/unload", &json!({ "model": "two" }));

    // A new load notices what the file is by then.
    std::fs::write(path("two.gguf"), &other).expect("written");
    assert_eq!(trained("two"), 512);
    assert_eq!(asked("two").0, 200);
}

#[test]
fn a_process_that_hangs_is_ended_and_its_requests_with_it() {
    let folder = scratch();
    let server = two_models(folder.path(), &["--hang-time", "2"]).expecting_errors();
    let two = Stream::start(&server, "/v1/completions", &long("two"));
    let stream = Stream::start(&server, "/v1/completions", &long("one"));
    let mut whole = long("one");
    whole["stream"] = json!(false);
    let id = engine(&server, "one");
    let started = Instant::now();
    kill(id, Signal::STOP);
    std::thread::scope(|scope| {
        let whole = scope.spawn(|| server.json("POST", "/v1/completions", &whole));
        let (rest, _, last) = stream.rest();
        // Two seconds without an answer, and one for an answer that is on its way.
        let took = started.elapsed();
        assert!(took > Duration::from_secs(1), "{took:?}");
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!(last["error"]["code"], "engine_died", "{last}");
        let message = last["error"]["message"].as_str().expect("a text");
        assert!(message.contains("`one`"), "{message}");
        assert!(message.contains("did not answer for 2s"), "{message}");
        assert!(!rest.contains("[DONE]"), "{rest}");
        let (status, answer) = whole.join().expect("it lives");
        assert_eq!(status, 500, "{answer}");
        assert_eq!(answer["error"]["code"], "engine_died", "{answer}");
    });
    eventually("its memory is back", || resident(id) == 0);
    assert_eq!(state(&server, "one")["state"], "failed");
    assert_eq!(state(&server, "two")["state"], "loaded");
    let (rest, _, _) = two.rest();
    assert!(
        rest.contains("data: [DONE]") && !rest.contains("\"error\""),
        "{rest}"
    );
    let short = json!({ "model": "one", "prompt": "1", "max_tokens": 2 });
    server.post("/v1/completions", &short);
    let page = server.raw("GET", "/metrics", "text/plain", "").2;
    assert!(
        page.contains("bench_engine_deaths_total{model=\"one\"} 1\n"),
        "{page}"
    );
    assert!(
        page.contains("bench_engine_deaths_total{model=\"two\"} 0\n"),
        "{page}"
    );
}

#[test]
fn a_long_prefill_is_no_hang_and_a_process_may_hang_where_nobody_watches() {
    let folder = scratch();
    let server = two_models(folder.path(), &["--hang-time", "0.5"]);
    let started = Instant::now();
    let mut took = Duration::ZERO;
    // Each takes a while, whatever the machine: none of what was read before is read again.
    for first in 0..20 {
        let prompt = format!("{first} {}", "1 2 3 4 5 6 7 8 9 ".repeat(80));
        let body = json!({ "model": "one", "prompt": prompt, "max_tokens": 1 });
        server.post("/v1/completions", &body);
        took = started.elapsed();
        if took > Duration::from_secs(2) {
            break;
        }
    }
    let page = server.raw("GET", "/metrics", "text/plain", "").2;
    let deaths = "bench_engine_deaths_total{model=\"one\"} 0\n";
    assert!(page.contains(deaths), "after {took:?}: {page}");
    drop(server);

    let server = two_models(folder.path(), &["--hang-time", "0"]);
    let stream = Stream::start(&server, "/v1/completions", &long("one"));
    let id = engine(&server, "one");
    kill(id, Signal::STOP);
    std::thread::sleep(Duration::from_secs(2));
    kill(id, Signal::CONT);
    assert!(stream.rest().0.contains("data: [DONE]"));
}

#[test]
fn lines_of_a_process_that_are_not_of_its_log_have_its_name() {
    let folder = scratch();
    std::fs::write(folder.path().join("one.gguf"), model()).expect("written");
    // What the dynamic linker writes of it comes from no log.
    let odd = "/nowhere/marker.so";
    for format in ["text", "json"] {
        let options = ["--models", text(folder.path()), "--log-format", format];
        let server = Server::with(&options, &[("LD_PRELOAD", odd)]);
        let body = json!({ "model": "one", "prompt": "1", "max_tokens": 2 });
        server.post("/v1/completions", &body);
        assert_eq!(server.json("POST", "/quit", &json!({})).0, 202);
        let log = server.ended();
        let lines =
            |part: &str| -> Vec<&str> { log.lines().filter(|line| line.contains(part)).collect() };
        // The server's own comes before its log is.
        let (raw, named): (Vec<&str>, Vec<&str>) = lines(odd)
            .into_iter()
            .partition(|line| line.starts_with("ERROR: ld.so"));
        assert_eq!((raw.len(), named.len()), (1, 1), "{log}");
        // That of a request is as its process wrote it.
        let of_request = lines("/v1/completions");
        assert_eq!(of_request.len(), 1, "{log}");
        if format == "text" {
            assert!(named[0].contains(" WARN engine: ERROR: ld.so"), "{log}");
            assert!(named[0].ends_with(" engine=one"), "{log}");
            assert!(of_request[0].ends_with(" engine=one"), "{log}");
        } else {
            let fields = |line: &str| -> Value { serde_json::from_str(line).expect("JSON") };
            assert_eq!(fields(named[0])["engine"], "one", "{log}");
            assert!(
                fields(named[0])["message"]
                    .as_str()
                    .is_some_and(|m| m.contains(odd)),
                "{log}"
            );
            assert_eq!(fields(of_request[0])["engine"], "one", "{log}");
        }
    }
}

#[test]
fn the_load_of_a_process_tells_how_far_it_is() {
    let folder = scratch();
    let server = two_models(folder.path(), &["--type", "q8_0"]);
    let body = json!({ "model": "one", "stream": true });
    let events = server.events("/models/load", &body);
    let (done, events) = events.split_last().expect("events");
    assert_eq!(done, "[DONE]");
    let events: Vec<Value> = events
        .iter()
        .map(|event| serde_json::from_str(event).expect("JSON"))
        .collect();
    let (last, loading) = events.split_last().expect("events");
    assert_eq!(last["state"], "loaded", "{events:?}");
    let shares = loading.iter().map(|event| &event["progress"]);
    let shares: Vec<u64> = shares
        .filter_map(|share| share["loaded_bytes"].as_u64())
        .collect();
    assert!(shares.is_sorted(), "{events:?}");
    let totals: Vec<u64> = loading
        .iter()
        .filter_map(|event| event["progress"]["total_bytes"].as_u64())
        .collect();
    // However quick it is, the last share is told.
    assert!(
        totals.last().is_some_and(|total| *total > 1 << 20),
        "{events:?}"
    );
    assert_eq!(state(&server, "one")["state"], "loaded");
}

/// Folders of sockets that a server left.
fn left_folders(id: u32) -> usize {
    let start = format!("bench-{id}-");
    let all = std::fs::read_dir(std::env::temp_dir()).expect("it is readable");
    let names = all.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&start)).count()
}

#[test]
fn no_engine_process_outlives_its_server() {
    let folder = scratch();
    let mut server = two_models(folder.path(), &[]);
    let _one = Stream::start(&server, "/v1/completions", &long("one"));
    let _two = Stream::start(&server, "/v1/completions", &long("two"));
    let own = server.child.id();
    let ids = [engine(&server, "one"), engine(&server, "two")];
    assert_eq!(left_folders(own), 2);
    server.child.kill().expect("it is there");
    server.child.wait().expect("it ends");
    eventually("they end", || ids.iter().all(|id| resident(*id) == 0));
    eventually("nothing is left of them", || left_folders(own) == 0);
}

#[test]
fn signals_let_requests_come_to_their_end() {
    let folder = scratch();
    let mut server = two_models(folder.path(), &[]);
    let one = Stream::start(&server, "/v1/completions", &long("one"));
    // As a manager of services sends it: to every process.
    kill(engine(&server, "one"), Signal::TERM);
    kill(server.child.id(), Signal::TERM);
    let (rest, _, _) = one.rest();
    assert!(
        rest.contains("data: [DONE]") && !rest.contains("\"error\""),
        "{rest}"
    );
    let own = server.child.id();
    assert!(server.child.wait().expect("it ends").success());
    eventually("nothing is left", || left_folders(own) == 0);
}

#[test]
fn unloading_gives_all_memory_back() {
    let folder = scratch();
    let server = two_models(folder.path(), &["--max-loaded", "1", "--idle-time", "2"]);
    let body = |model: &str| json!({ "model": model, "prompt": "1", "max_tokens": 2 });
    server.post("/v1/completions", &body("one"));
    server.post("/models/unload", &json!({ "model": "one" }));
    let own = server.child.id();
    assert_eq!(children(own), [], "none is left when that is answered");
    let before = resident(own);
    for _ in 0..4 {
        server.post("/v1/completions", &body("one"));
        let id = engine(&server, "one");
        assert!(resident(id) > 4 << 10, "{}", resident(id));
        // Another one takes its place.
        server.post("/v1/completions", &body("two"));
        assert_eq!(resident(id), 0);
        let id = engine(&server, "two");
        server.post("/models/unload", &json!({ "model": "two" }));
        assert_eq!(resident(id), 0);
    }
    let after = resident(own);
    assert!(after < before + (4 << 10), "{before} KiB, then {after} KiB");
    server.post("/v1/completions", &body("one"));
    eventually("it is unloaded", || children(own).is_empty());
    assert_eq!(state(&server, "one")["state"], "not loaded");
    let page = server.raw("GET", "/metrics", "text/plain", "").2;
    assert!(
        page.contains("bench_engine_deaths_total{model=\"one\"} 0\n"),
        "{page}"
    );
}

/// An answer without what differs from one to the next.
fn lasting(mut answer: Value) -> Value {
    for key in ["id", "created", "created_at", "timings", "completed_at"] {
        if answer.get(key).is_some() {
            answer[key] = json!("?");
        }
    }
    // How many draft tokens are read depends on the times of passes.
    if let Some(details) = answer.pointer_mut("/usage/completion_tokens_details") {
        details["accepted_prediction_tokens"] = json!("?");
        details["rejected_prediction_tokens"] = json!("?");
    }
    if let Some(list) = answer.get_mut("output").and_then(Value::as_array_mut) {
        for item in list {
            item["id"] = json!("?");
        }
    }
    answer
}

#[test]
fn answers_are_those_of_a_single_process() {
    let (own, split) = (Server::start(&[]), Server::split(&[]));
    let messages = json!([{ "role": "user", "content": "2+2=?" }]);
    let requests = [
        (
            "POST",
            "/v1/chat/completions",
            json!({
                "messages": messages, "temperature": 0, "logprobs": true, "top_logprobs": 5,
            }),
        ),
        (
            "POST",
            "/v1/chat/completions",
            json!({
                "messages": messages, "seed": 7, "temperature": 1.5, "n": 3, "model": "default",
            }),
        ),
        (
            "POST",
            "/v1/completions",
            json!({
                "prompt": ["1 2 3", "a b"], "temperature": 0, "logprobs": 4, "echo": true, "max_tokens": 9,
            }),
        ),
        (
            "POST",
            "/v1/completions",
            json!({
                "prompt": "1 2 3", "max_tokens": 5, "temperature": 0, "prompt_logprobs": 2,
            }),
        ),
        (
            "POST",
            "/v1/chat/completions",
            json!({
                "messages": messages, "temperature": 0, "max_tokens": 40,
                "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": { "type": "integer" } } },
            }),
        ),
        (
            "POST",
            "/v1/messages",
            json!({ "messages": messages, "max_tokens": 20, "temperature": 0 }),
        ),
        (
            "POST",
            "/v1/responses",
            json!({ "input": "2+2=?", "temperature": 0 }),
        ),
        (
            "POST",
            "/completion",
            json!({ "prompt": "1 2 3", "n_predict": 5, "temperature": 0, "n_probs": 3, "seed": 1 }),
        ),
        ("POST", "/tokenize", json!({ "content": "2+2=?" })),
        ("POST", "/apply-template", json!({ "messages": messages })),
        ("POST", "/v1/embeddings", json!({ "input": "a" })),
        ("GET", "/props", Value::Null),
        ("GET", "/slots", Value::Null),
        ("GET", "/lora-adapters", Value::Null),
        ("GET", "/tokenizer_info", Value::Null),
        ("GET", "/v1/models/tiny-chat", Value::Null),
        // Refused by whoever finds it.
        (
            "POST",
            "/v1/chat/completions",
            json!({ "messages": messages, "temperatur": 0 }),
        ),
        (
            "POST",
            "/v1/chat/completions",
            json!({ "messages": messages, "model": 3 }),
        ),
        (
            "POST",
            "/v1/chat/completions",
            json!({ "messages": messages, "model": "tiny-cat" }),
        ),
        (
            "POST",
            "/v1/messages",
            json!({ "messages": 3, "max_tokens": 1 }),
        ),
        (
            "POST",
            "/v1/messages",
            json!({ "messages": messages, "max_tokens": 1, "model": "tiny-cat" }),
        ),
        ("POST", "/v1/completions", json!([])),
        ("GET", "/v1/completions", Value::Null),
        ("GET", "/props?model=tiny-cat", Value::Null),
    ];
    for (method, path, body) in requests {
        let (expected, found) = (
            own.json(method, path, &body),
            split.json(method, path, &body),
        );
        assert_eq!(found.0, expected.0, "{path} {body}: {}", found.1);
        assert_eq!(lasting(found.1), lasting(expected.1), "{path} {body}");
    }
    let streamed =
        json!({ "messages": messages, "temperature": 0, "logprobs": true, "top_logprobs": 3 });
    let events = |server: &Server| -> Vec<Value> {
        let all = server.events("/v1/chat/completions", &streamed);
        let value = |data: &String| serde_json::from_str(data).unwrap_or(Value::Null);
        all.iter().map(|data| lasting(value(data))).collect()
    };
    assert_eq!(events(&split), events(&own));
    for path in ["/lora-adapters", "/props", "/tokenizer_info", "/health"] {
        let (status, _, body) = split.raw("HEAD", path, "text/plain", "");
        assert_eq!((status, body.as_str()), (200, ""), "{path}");
    }
    let (_, head, _) = split.raw("POST", "/v1/chat/completions", "text/plain", "{}");
    assert!(head.contains("x-request-id: "), "{head}");
    assert_eq!(head.matches("content-length").count(), 1, "{head}");
    assert_eq!(head.matches("x-request-id").count(), 1, "{head}");
}

#[test]
fn a_client_that_leaves_stops_the_engine_process() {
    let folder = scratch();
    let server = two_models(folder.path(), &["--parallel", "1"]);
    for _ in 0..3 {
        drop(Stream::start(&server, "/v1/completions", &long("one")));
    }
    eventually("nothing is active", || {
        let (_, slots) = server.json("GET", "/slots?model=one", &Value::Null);
        slots[0]["is_processing"] == false
    });
    // Between two of them nothing is active either.
    let cancelled = "bench_requests_total{model=\"one\",outcome=\"cancelled\"} 3\n";
    eventually("all three are counted", || {
        let page = server.raw("GET", "/metrics", "text/plain", "").2;
        page.contains(cancelled)
    });
    // Each request has one line, with the name of its process.
    let log = server.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("path=\"/v1/completions\""));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 3, "{log}");
    let is_named = |line: &&str| line.ends_with("engine=one") && line.contains("cancelled");
    assert!(lines.iter().all(is_named), "{log}");
}
