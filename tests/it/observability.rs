//! What operators and routers see: statuses by route, figures of processes, adapters, spans of clients, and who asks behind a proxy.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::lora::of_shipped;
use crate::model_routes::{Sample, sample};
use crate::support::command::{scratch, text};
use crate::support::process::{self, Stream, eventually};
use crate::support::server::Server;

/// The lines of a server's metrics.
pub(crate) fn samples(server: &Server) -> Vec<Sample> {
    let (status, _, page) = server.raw("GET", "/metrics", "text/plain", "");
    assert_eq!(status, 200);
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.map(sample).collect()
}

/// The value of the line that has these labels among its own.
fn value(all: &[Sample], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has = |sample: &&Sample| {
        let mut wanted = labels.iter();
        sample.0 == name && wanted.all(|(key, value)| label(sample, key) == Some(value))
    };
    all.iter().find(has).map(|sample| sample.2)
}

fn label<'s>(sample: &'s Sample, key: &str) -> Option<&'s str> {
    let found = sample.1.iter().find(|(name, _)| name == key);
    found.map(|(_, value)| value.as_str())
}

#[test]
fn statuses_are_counted_by_route_and_paths_of_strangers_are_one() {
    let server = Server::split(&[]);
    let body = json!({ "prompt": "1", "max_tokens": 1 });
    server.post("/v1/completions", &body);
    server.post("/v1/completions/", &body);
    server.json("POST", "/v1/completions", &json!({ "prompt": 5 }));
    for i in 0..30 {
        server.json("GET", &format!("/v1/models/m{i}"), &Value::Null);
        server.json("GET", &format!("/evil/{i}"), &Value::Null);
        server.raw(&format!("ODD{i}"), "/v1/models", "text/plain", "");
    }
    let all = samples(&server);
    let of = |method: &str, route: &str, status: &str| {
        let labels = [("method", method), ("route", route), ("status", status)];
        value(&all, "bench_http_requests_total", &labels)
    };
    assert_eq!(of("POST", "/v1/completions", "200"), Some(2.0));
    assert_eq!(of("POST", "/v1/completions", "400"), Some(1.0));
    assert_eq!(of("GET", "/v1/models/{id}", "404"), Some(30.0));
    assert_eq!(of("GET", "other", "404"), Some(30.0));
    assert_eq!(of("other", "/v1/models", "405"), Some(30.0));
    let n = all
        .iter()
        .filter(|s| s.0 == "bench_http_requests_total")
        .count();
    assert!(n < 10, "{n} lines");
}

#[test]
fn processes_have_their_figures() {
    let server = Server::split(&[]);
    let all = samples(&server);
    let engine = process::engine(&server, "tiny-chat");
    for (labels, id) in [
        (&[("process", "server")][..], server.child.id()),
        (&[("process", "engine"), ("model", "tiny-chat")], engine),
    ] {
        let of =
            |name: &str| value(&all, name, labels).unwrap_or_else(|| panic!("{name} {labels:?}"));
        // In KiB.
        let resident = process::resident(id) as f64;
        let found = of("process_resident_memory_bytes") / 1024.0;
        assert!(
            (found - resident).abs() < 32768.0 + resident / 2.0,
            "{found} {resident}"
        );
        assert!(of("process_virtual_memory_bytes") >= of("process_resident_memory_bytes"));
        assert!(of("process_cpu_seconds_total") > 0.0);
        assert!((3.0..of("process_max_fds")).contains(&of("process_open_fds")));
        assert!(of("process_threads") >= 1.0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let since = now.expect("after 1970").as_secs_f64() - of("process_start_time_seconds");
        assert!((0.0..600.0).contains(&since), "{since}");
    }
}

#[test]
fn the_log_has_the_trace_of_a_client_and_its_address() {
    for split in [false, true] {
        let options = ["--log-format", "json", "--trusted-proxy", "127.0.0.1"];
        let server = match split {
            true => Server::split(&options),
            false => Server::start(&options),
        };
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for kind in [
            format!(
                "application/json\r\ntraceparent: 00-{trace}-00f067aa0ba902b7-01\r\nx-request-id: traced"
            ),
            "application/json\r\ntraceparent: 00-evil-1-01\r\nx-request-id: broken".to_owned(),
            "application/json\r\nx-forwarded-for: 9.9.9.9, 1.2.3.4\r\nx-request-id: proxied"
                .to_owned(),
            // Only the server says this to an engine process.
            "application/json\r\nx-bench-address: 9.9.9.9\r\nx-request-id: lying".to_owned(),
        ] {
            let body = json!({ "prompt": "1", "max_tokens": 1 }).to_string();
            let (status, _, answer) = server.raw("POST", "/v1/completions", &kind, &body);
            assert_eq!(status, 200, "{answer}");
        }
        if split {
            // The lines of an engine process take a moment.
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        let log = server.log();
        let line = |id: &str| -> Value {
            let lines = log
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            let mut own = lines.filter(|line: &Value| line["id"] == id);
            own.next().unwrap_or_else(|| panic!("{id} in {log}"))
        };
        let traced = line("traced");
        assert_eq!(traced["trace_id"], trace, "{traced}");
        assert_eq!(traced["parent_id"], "00f067aa0ba902b7");
        assert_eq!(
            (&traced["sampled"], &traced["client"]),
            (&json!(true), &json!("127.0.0.1"))
        );
        assert_eq!(line("broken")["trace_id"], Value::Null);
        assert_eq!(line("proxied")["client"], "1.2.3.4");
        assert_eq!(line("lying")["client"], "127.0.0.1");
    }
}

/// Clients behind a trusted proxy have their turns by their addresses, where there are no keys.
#[test]
fn requests_of_one_address_do_not_keep_another_waiting() {
    let server = Server::split(&["--trusted-proxy", "127.0.0.1", "--parallel", "2"]);
    let complete = |address: &str, n: usize| {
        let kind = format!("application/json\r\nx-forwarded-for: {address}");
        let body = json!({ "prompt": [1, 2, 3, 4], "max_tokens": n, "ignore_eos": true });
        let (status, _, answer) = server.raw("POST", "/v1/completions", &kind, &body.to_string());
        assert_eq!(status, 200, "{answer}");
    };
    let n_done = AtomicUsize::new(0);
    let meanwhile = std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                complete("1.2.3.4", 100);
                n_done.fetch_add(1, Ordering::Relaxed);
            });
        }
        eventually("some have an answer", || {
            n_done.load(Ordering::Relaxed) >= 3
        });
        let before = n_done.load(Ordering::Relaxed);
        complete("5.6.7.8", 2);
        n_done.load(Ordering::Relaxed) - before
    });
    assert!(meanwhile <= 8, "{meanwhile} came before");
    // No address becomes a label.
    let all = samples(&server);
    let of_keys = all
        .iter()
        .filter(|sample| sample.0.starts_with("bench_key_"));
    assert_eq!(of_keys.count(), 0);
}

#[test]
fn the_document_names_the_path_of_a_trusted_proxy() {
    let kind = "text/plain\r\nx-forwarded-prefix: /llm/";
    let trusting = Server::start(&["--trusted-proxy", "127.0.0.0/8"]);
    let servers = |server: &Server| {
        let (_, _, text) = server.raw("GET", "/openapi.json", kind, "");
        let document: Value = serde_json::from_str(&text).expect("JSON");
        document["servers"].clone()
    };
    assert_eq!(servers(&trusting), json!([{ "url": "/llm" }]));
    assert_eq!(servers(&Server::shared()), Value::Null);
}

/// The state of a server as the endpoint picker of the Gateway API's inference extension reads it.
#[derive(Debug, Default)]
struct Endpoint {
    n_waiting: f64,
    n_running: f64,
    kv_usage: f64,
    max_adapters: usize,
    active: Vec<String>,
    waiting: Vec<String>,
    block_size: usize,
    n_blocks: usize,
}

impl Endpoint {
    fn read(server: &Server) -> Self {
        let all = samples(server);
        let latest = |name: &str| {
            let mut own = all.iter().filter(|sample| sample.0 == name);
            own.next().unwrap_or_else(|| panic!("{name}"))
        };
        let info = latest("vllm:lora_requests_info");
        let cache = latest("vllm:cache_config_info");
        let number = |sample: &Sample, key: &str| label(sample, key)?.parse().ok();
        let names = |key: &str| -> Vec<String> {
            let list = label(info, key).expect("the label").split(',');
            list.filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect()
        };
        Self {
            n_waiting: latest("vllm:num_requests_waiting").2,
            n_running: latest("vllm:num_requests_running").2,
            kv_usage: latest("vllm:kv_cache_usage_perc").2,
            max_adapters: number(info, "max_lora").expect("a number"),
            active: names("running_lora_adapters"),
            waiting: names("waiting_lora_adapters"),
            block_size: number(cache, "block_size").expect("a number"),
            n_blocks: number(cache, "num_gpu_blocks").expect("a number"),
        }
    }

    /// `lora-affinity-scorer`: 1 where the adapter is in use, 0.8 where one more fits, 0.6 where it waits.
    fn affinity(&self, model: &str) -> f64 {
        let has = |names: &[String]| names.iter().any(|name| name == model);
        match self.active.len() + self.waiting.len() < self.max_adapters {
            _ if has(&self.active) => 1.0,
            true => 0.8,
            false if has(&self.waiting) => 0.6,
            false => 0.0,
        }
    }

    /// `kv-cache-utilization-scorer`: what is free.
    fn free(&self) -> f64 {
        1.0 - self.kv_usage
    }
}

/// `queue-scorer`: from 1 for the shortest queue to 0 for the longest.
fn queue_scores(all: &[Endpoint]) -> Vec<f64> {
    let lengths = || all.iter().map(|endpoint| endpoint.n_waiting);
    let (least, most) = (
        lengths().fold(f64::MAX, f64::min),
        lengths().fold(0.0, f64::max),
    );
    let score = |n: f64| {
        if most == least {
            1.0
        } else {
            (most - n) / (most - least)
        }
    };
    lengths().map(score).collect()
}

/// The extension's scorers, replayed on the metrics of a busy and an idle server: the idle one is picked, but for the adapter that
/// the busy one has at work.
#[test]
fn an_endpoint_picker_picks_by_queue_cache_and_adapter() {
    let folder = scratch();
    of_shipped(folder.path(), 1.0);
    let options = [
        "--lora-dir",
        text(folder.path()),
        "--parallel",
        "1",
        "--ctx",
        "1024",
    ];
    let (busy, idle) = (Server::split(&options), Server::split(&options));
    let load = json!({ "lora_name": "tone", "lora_path": "chat.gguf" }).to_string();
    for server in [&busy, &idle] {
        let (status, _, answer) =
            server.raw("POST", "/v1/load_lora_adapter", "application/json", &load);
        assert_eq!(status, 200, "{answer}");
    }
    let all = || [Endpoint::read(&busy), Endpoint::read(&idle)];
    let at_rest = all();
    assert_eq!(queue_scores(&at_rest), [1.0, 1.0]);
    assert_eq!(
        at_rest.each_ref().map(|one| one.affinity("tone")),
        [0.8, 0.8]
    );
    for endpoint in &at_rest {
        assert!(
            endpoint.block_size * endpoint.n_blocks >= 1024,
            "{endpoint:?}"
        );
        assert_eq!((endpoint.max_adapters, endpoint.n_running), (1, 0.0));
    }
    // One stream has the only place, two wait: one with the adapter, and one without.
    let body = |model: &str| {
        json!({
            "model": model, "prompt": "1 2 3", "max_tokens": 900, "temperature": 0, "ignore_eos": true,
            "stream": true, "cache_prompt": false,
        })
    };
    let running = Stream::start(&busy, "/v1/completions", &body("tone"));
    let waiting = ["tone", "tiny-chat"].map(|model| {
        busy.send(
            "POST",
            "/v1/completions",
            "application/json",
            &body(model).to_string(),
        )
    });
    let mut now = all();
    eventually("two wait", || {
        now = all();
        now[0].n_waiting == 2.0
    });
    assert_eq!(now[0].n_running, 1.0, "{now:?}");
    assert_eq!(
        (&now[0].active, &now[0].waiting),
        (&vec!["tone".into()], &vec!["tone".into()])
    );
    assert_eq!(queue_scores(&now), [0.0, 1.0]);
    assert!(now[0].free() < now[1].free(), "{now:?}");
    assert_eq!(now.each_ref().map(|one| one.affinity("tone")), [1.0, 0.8]);
    assert_eq!(now.each_ref().map(|one| one.affinity("other")), [0.0, 0.8]);
    let queues = queue_scores(&now);
    let total = |i: usize, model: &str| queues[i] + now[i].free() + now[i].affinity(model);
    assert!(total(1, "tiny-chat") > total(0, "tiny-chat"));
    drop(running);
    drop(waiting);
    eventually("nothing is left", || {
        let one = Endpoint::read(&busy);
        one.n_running == 0.0 && one.n_waiting == 0.0
    });
}
