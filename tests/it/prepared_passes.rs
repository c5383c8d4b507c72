//! Passes that are prepared, and those that are launched, while a device computes the pass before: no answer changes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::backends::{all_on_test0, sound};
use crate::lora;
use crate::support::server::{Server, with};

fn counted(server: &Server, name: &str) -> u64 {
    let (status, _, metrics) = server.raw("GET", "/metrics", "text/plain", "");
    assert_eq!(status, 200);
    let line = metrics.lines().find(|line| line.starts_with(name));
    let (_, n) = line.expect(name).rsplit_once(' ').expect("a number");
    n.parse().expect(name)
}

/// Requests of all samplers, lengths and ends.
fn requests() -> Vec<Value> {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let kinds = [
        json!({ "temperature": 0 }),
        json!({ "temperature": 1 }),
        json!({ "temperature": 0, "stop": [" a", "t"] }),
        json!({ "temperature": 0.8, "top_k": 40, "repeat_penalty": 1.3 }),
        json!({ "temperature": 0, "logit_bias": { "7": 100, "9": -100 } }),
        json!({ "temperature": 1.5, "top_p": 0.9, "presence_penalty": 1 }),
        json!({ "temperature": 0, "draft": 4 }),
        json!({ "temperature": 0, "min_tokens": 20, "max_tokens": 50, "ignore_eos": false }),
        json!({ "temperature": 0.7, "min_p": 0.05, "n": 2 }),
        json!({ "temperature": 1, "logprobs": true, "top_logprobs": 3, "max_tokens": 9 }),
        json!({ "temperature": 0, "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": schema } } }),
    ];
    let request = |(i, kind): (usize, &Value)| {
        let text = "word ".repeat(1 + i * 17 % 90);
        let own = json!({
            "messages": [{ "role": "user", "content": text }],
            "max_tokens": 12 + i * 29 % 70, "ignore_eos": true, "seed": i,
        });
        with(own, kind)
    };
    kinds
        .iter()
        .cycle()
        .take(3 * kinds.len())
        .enumerate()
        .map(request)
        .collect()
}

/// Greedy requests of all lengths and ends, and a few others among them.
fn greedy_requests() -> Vec<Value> {
    let request = |(i, own): (usize, Value)| {
        let stops = if i % 4 == 1 { [" a", "t"] } else { ["zq", "!"] };
        match i % 9 {
            8 => own,
            kind => json!({
                "messages": own["messages"], "max_tokens": own["max_tokens"], "ignore_eos": kind % 3 > 0,
                "min_tokens": if kind == 3 { 20 } else { 0 }, "temperature": 0, "stop": stops,
            }),
        }
    };
    requests().into_iter().enumerate().map(request).collect()
}

/// The texts of requests that come while others are computed, and clients that leave in between.
fn texts(server: &Server, requests: Vec<Value>) -> Vec<Vec<Value>> {
    std::thread::scope(|scope| {
        let asked = requests.into_iter().enumerate().map(|(i, request)| {
            std::thread::sleep(Duration::from_millis((i * 7 % 5) as u64 * 6));
            if i % 4 == 0 {
                let leaves = with(
                    request.clone(),
                    &json!({ "model": "tiny-chat", "stream": true, "max_tokens": 200 }),
                );
                scope.spawn(move || {
                    let body = leaves.to_string();
                    let stream =
                        server.send("POST", "/v1/chat/completions", "application/json", &body);
                    std::thread::sleep(Duration::from_millis(30));
                    drop(stream);
                });
            }
            scope.spawn(move || server.chat(request))
        });
        let asked: Vec<_> = asked.collect();
        let ended = asked
            .into_iter()
            .map(|asked| asked.join().expect("it ends"));
        ended
            .map(|(status, answer)| {
                assert_eq!(status, 200, "{answer}");
                let choices = answer["choices"].as_array().expect("a list").iter();
                choices
                    .map(|one| json!([one["message"]["content"], one["finish_reason"]]))
                    .collect()
            })
            .collect()
    })
}

/// The options of a cache in which completions are preempted and runs are moved.
const SMALL_CACHE: &[&str] = &["--parallel", "6", "--ctx", "256", "--cache", "800K"];

/// A server on the device of a library, which lacks something and has these latencies.
fn serve(library: &str, lacks: &str, latencies: &str, cache: &[&str]) -> Server {
    // Which passes compute a text changes how types of fewer bits round.
    let common = ["--in-process", "--kv-type", "f32", "--type", "f32"];
    let options = [&all_on_test0(library)[..], &common, cache].concat();
    let environment = [("MADE_UP_LACKS", lacks), ("MADE_UP_QUEUE", latencies)];
    Server::with(&options, &environment)
}

/// A device that gives whole rows prepares nothing. Where the cache is small, completions are preempted and runs are moved.
#[test]
fn texts_are_the_same_where_passes_are_prepared() {
    let (_folder, library) = sound();
    let library = library.display().to_string();
    let serve = |lacks, latencies, cache| serve(&library, lacks, latencies, cache);
    let cases: [(&str, &[&str]); 3] = [
        ("0,0,2000", &["--parallel", "6"]),
        ("0,0,2000", SMALL_CACHE),
        ("0,0,0", &["--parallel", "16"]),
    ];
    for (latencies, cache) in cases {
        let plain = serve("TOP_K", latencies, cache);
        let expected = texts(&plain, requests());
        assert_eq!(counted(&plain, "bench_passes_prepared_total"), 0);
        let server = serve("", latencies, cache);
        assert_eq!(texts(&server, requests()), expected, "{cache:?}");
        let [prepared, undone] = ["bench_passes_prepared_total", "bench_passes_undone_total"]
            .map(|name| counted(&server, name));
        assert!(
            prepared > 2 * undone,
            "{cache:?}: {undone} of {prepared} undone"
        );
        let is_small = cache.contains(&"--cache");
        assert_eq!(counted(&server, "bench_preemptions_total") > 0, is_small);
    }
}

/// A device that does not copy by itself has no pass launched before tokens are read.
#[test]
fn texts_are_the_same_where_passes_are_launched_ahead() {
    let (_folder, library) = sound();
    let library = library.display().to_string();
    let serve = |lacks, latencies, cache| serve(&library, lacks, latencies, cache);
    let cases: [(&str, &[&str]); 3] = [
        ("0,0,2000", &["--parallel", "6"]),
        ("0,0,2000", SMALL_CACHE),
        ("0,0,0", &["--parallel", "40"]),
    ];
    for (latencies, cache) in cases {
        let plain = serve("COPY_ASYNC", latencies, cache);
        let expected = texts(&plain, greedy_requests());
        assert_eq!(counted(&plain, "bench_passes_launched_ahead_total"), 0);
        let server = serve("", latencies, cache);
        assert_eq!(texts(&server, greedy_requests()), expected, "{cache:?}");
        let [ahead, undone] = [
            "bench_passes_launched_ahead_total",
            "bench_passes_undone_total",
        ]
        .map(|name| counted(&server, name));
        // Where all run at once, one that samples is nearly always among them.
        let runs_all = cache.contains(&"40");
        let counts = format!("{cache:?}: {ahead} ahead, {undone} undone");
        assert!(runs_all || ahead > undone, "{counts}");
    }
}

/// Which pass computes a text with an adapter, and with which scale, is known when the pass begins.
#[test]
fn nothing_is_launched_ahead_with_an_adapter() {
    let (folder, library) = sound();
    let library = library.display().to_string();
    let adapter = lora::of_shipped(folder.path(), 0.5);
    let adapter = adapter.display().to_string();
    let cache = ["--parallel", "6", "--lora", &adapter];
    let serve = |lacks| serve(&library, lacks, "0,0,2000", &cache);
    let expected = texts(&serve("COPY_ASYNC"), greedy_requests());
    let server = serve("");
    assert_eq!(texts(&server, greedy_requests()), expected);
    assert_eq!(counted(&server, "bench_passes_launched_ahead_total"), 0);
}

/// A completion that runs by itself: all its passes but the first ones begin before the token of the pass before is read.
#[test]
fn nearly_all_steps_of_long_greedy_completions_are_launched_ahead() {
    let (_folder, library) = sound();
    let library = library.display().to_string();
    let options = [
        &all_on_test0(&library)[..],
        &["--in-process", "--parallel", "4"],
    ]
    .concat();
    let server = Server::with(&options, &[("MADE_UP_QUEUE", "0,0,2000")]);
    let count = |name: &str| counted(&server, name);
    let before = ["bench_graphs_run_total", "bench_device_waits_total"].map(count);
    let n_tokens = 150;
    let (status, answer) =
        server.chat(json!({ "max_tokens": n_tokens, "ignore_eos": true, "temperature": 0 }));
    assert_eq!(status, 200, "{answer}");
    let after = ["bench_graphs_run_total", "bench_device_waits_total"].map(count);
    let [steps, waits] = [0, 1].map(|at| after[at] - before[at]);
    let ahead = count("bench_passes_launched_ahead_total");
    // The end is the best token now and then, and is banned.
    assert_eq!(count("bench_passes_undone_total"), 0);
    // The prompt takes a pass or, on a loaded machine, several.
    assert!(ahead + 12 >= n_tokens, "{ahead} of {n_tokens}");
    assert!(waits <= 3 * steps, "{waits} in {steps}");
    // What the host decides about a token keeps passes from beginning.
    for own in [
        json!({ "temperature": 1 }),
        json!({ "temperature": 0, "logprobs": true }),
        json!({ "temperature": 0, "repeat_penalty": 1.2 }),
    ] {
        server.chat(with(json!({ "max_tokens": 20, "ignore_eos": true }), &own));
        let now = count("bench_passes_launched_ahead_total");
        assert_eq!(now, ahead, "{own}");
    }
}

/// A completion that runs by itself.
#[test]
fn nearly_all_steps_of_long_completions_are_prepared() {
    let (_folder, library) = sound();
    let library = library.display().to_string();
    let options = [
        &all_on_test0(&library)[..],
        &["--in-process", "--parallel", "4"],
    ]
    .concat();
    let server = Server::with(&options, &[("MADE_UP_QUEUE", "0,0,2000")]);
    let before = counted(&server, "bench_graphs_run_total");
    let (status, answer) =
        server.chat(json!({ "max_tokens": 150, "ignore_eos": true, "temperature": 1 }));
    assert_eq!(status, 200, "{answer}");
    let steps = counted(&server, "bench_graphs_run_total") - before;
    let prepared = counted(&server, "bench_passes_prepared_total");
    assert!(prepared + 8 >= steps, "{prepared} of {steps}");
    assert!(counted(&server, "bench_passes_undone_total") <= 1);
    let processor = Server::start(&[]);
    processor.chat(json!({ "max_tokens": 20, "ignore_eos": true }));
    assert_eq!(counted(&processor, "bench_passes_prepared_total"), 0);
}
