//! Backend libraries that are loaded at run time: one copy of ggml's core, and refusals that say why.
//!
//! The library is a device made up for these tests (`tests/backend/made_up.c`).

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::devices::Worker;
use crate::support::command::{Ran, ended, program, scratch};
use crate::support::server::{Server, with};
use crate::support::{nmse, parse_npy};

/// What the program has, as it says when it refuses another.
fn identity() -> String {
    let folder = scratch();
    let other = made_up(folder.path(), "other", "other sources", 0);
    let refusal = devices(&other).err;
    let (_, rest) = refusal
        .split_once("this program has ")
        .expect("it is named");
    rest.trim_end().to_owned()
}

/// Compiles the library.
pub(crate) fn made_up(folder: &Path, name: &str, identity: &str, api_offset: i32) -> PathBuf {
    let path = folder.join(format!("libggml-{name}.so"));
    let include = Path::new(env!("GGML_INCLUDE"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/backend/made_up.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compiler = compiler.split_whitespace();
    let status = Command::new(compiler.next().expect("a program"))
        .args(compiler)
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-D_GNU_SOURCE", "-I"])
        .arg(include)
        .arg("-I")
        .arg(include.with_file_name("src"))
        .arg(format!("-DIDENTITY=\"{identity}\""))
        .arg(format!("-DAPI_OFFSET={api_offset}"))
        .arg(source)
        .arg("-o")
        .arg(&path)
        .status();
    assert!(status.expect("there is a compiler").success());
    path
}

/// The library of the program's own sources.
pub(crate) fn sound() -> (TempDir, PathBuf) {
    let folder = scratch();
    let path = made_up(folder.path(), "made-up", &identity(), 0);
    (folder, path)
}

fn devices(library: &Path) -> Ran {
    let library = library.display().to_string();
    ended(&mut program(&["devices", "--backend", &library]))
}

#[test]
fn a_library_uses_the_programs_copy_of_ggml() {
    let (_folder, path) = sound();
    let symbols = Command::new("nm").arg("-D").arg(&path).output();
    let symbols = String::from_utf8(symbols.expect("nm runs").stdout).expect("text");
    let defined: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split_once(" T ").map(|(_, name)| name))
        .collect();
    assert_eq!(defined, ["ggml_backend_init"], "its only function");

    let ran = devices(&path);
    assert!(ran.is_fine(), "{}", ran.err);
    assert!(ran.out.contains("\nTest0: gpu, made up, "), "{}", ran.out);
    // Its message comes out of the program's log, and it sees the program's processor.
    let message = "ggml: made up: 1 devices in the registry that I see";
    assert!(ran.err.contains(message), "{}", ran.err);
}

#[test]
fn libraries_are_found_in_the_folder_of_a_variable() {
    let (folder, _) = sound();
    let ran = ended(program(&["devices"]).env("BENCH_BACKEND_DIR", folder.path()));
    assert!(ran.out.contains("Test0"), "{}{}", ran.out, ran.err);
    let ran = ended(program(&["devices"]).env("BENCH_BACKEND_DIR", folder.path().join("none")));
    assert!(ran.is_fine() && !ran.out.contains("Test0"), "{}", ran.out);
    assert!(ran.err.contains("none: No such file"), "{}", ran.err);
}

#[test]
fn other_sources_and_broken_files_are_refused() {
    let (folder, path) = sound();
    let refused = |library: &Path, expected: &str| {
        let ran = devices(library);
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(ran.err.contains(expected), "{expected}: {}", ran.err);
        assert!(
            ran.err.contains(&library.display().to_string()),
            "{}",
            ran.err
        );
    };
    let at = folder.path();
    refused(&at.join("libggml-missing.so"), "No such file");
    refused(at, "not a file");
    let other = made_up(at, "other", "ggml 0.1.0 of elsewhere", 0);
    let both = format!(
        "a backend of ggml 0.1.0 of elsewhere; this program has {}",
        identity()
    );
    refused(&other, &both);
    let newer = made_up(at, "newer", &identity(), 1);
    refused(
        &newer,
        "a backend of ggml's interface 4; this program has interface 3",
    );

    let whole = std::fs::read(&path).expect("it was written");
    let broken = at.join("libggml-broken.so");
    for (bytes, expected) in [
        (
            &b"not a library at all, but a text that is longer than a header of 64 bytes"[..],
            "not a library",
        ),
        (&[], "not a library"),
        (&whole[..40], "not a library"),
        (&whole[..whole.len() / 2], "an incomplete library"),
        (&whole[..whole.len() - 1], "an incomplete library"),
    ] {
        std::fs::write(&broken, bytes).expect("it can be written");
        refused(&broken, expected);
    }
    // A header of another machine, and a table of symbols that leads nowhere.
    let mut foreign = whole.clone();
    foreign[18] = 0xff;
    std::fs::write(&broken, &foreign).expect("it can be written");
    refused(&broken, "cannot be loaded");
}

/// A model of an architecture.
pub(crate) fn synthesised(folder: &Path, arch: &str, set: &[&str]) -> PathBuf {
    let model = folder.join(format!("{arch}.gguf"));
    let path = model.display().to_string();
    let mut line = vec!["synth", arch, "--with", "output", "-o", &path];
    set.iter().for_each(|pair| line.extend(["--set", pair]));
    let made = ended(&mut program(&line));
    assert!(made.is_fine(), "{}", made.err);
    model
}

/// A command on a model whose layers are all on the made-up device, which lacks some operations.
fn on_device(command: &str, model: &Path, library: &Path, lacks: &str, options: &[&str]) -> Ran {
    let (model, library) = (model.display().to_string(), library.display().to_string());
    let mut line = vec![command, "-m", &model, "--backend", &library];
    line.extend(options);
    if command != "devices" {
        line.extend(["--gpu-layers", "all"]);
    }
    ended(program(&line).env("MADE_UP_LACKS", lacks))
}

pub(crate) const SMALL: [&str; 8] = [
    "vocab_size=96",
    "n_ctx_train=256",
    "block_count=2",
    "n_embd=64",
    "n_head=4",
    "n_head_kv=2",
    "n_ff=96",
    "rms_eps=0.001",
];

#[test]
fn operations_that_a_device_lacks_are_listed_and_computed_elsewhere() {
    let (folder, library) = sound();
    let model = synthesised(folder.path(), "llama", &SMALL);
    let rows = |device: &str, lacks: &str| {
        let out = folder.path().join("out.npy");
        let name = out.display().to_string();
        let options = [
            "--tokens",
            "1,2,3,4,5",
            "--force",
            "-o",
            &name,
            "--device",
            device,
        ];
        let ran = on_device("logits", &model, &library, lacks, &options);
        assert!(ran.is_fine(), "{}", ran.err);
        parse_npy(&std::fs::read(out).expect("it was written")).values
    };
    let expected = rows("none", "");
    for lacks in ["", "RMS_NORM,SWIGLU", "ROPE,SOFT_MAX,ADD"] {
        let found: Vec<f32> = rows("Test0", lacks).iter().map(|x| *x as f32).collect();
        assert!(nmse(&found, &expected) < 1e-12, "{lacks}");
    }

    let listed = |lacks: &str| {
        let ran = on_device("devices", &model, &library, lacks, &["--json"]);
        assert!(ran.is_fine(), "{}", ran.err);
        let all: Value = serde_json::from_str(&ran.out).expect("JSON");
        all[1].clone()
    };
    let whole = listed("");
    assert_eq!(whole["lacks"], json!([]));
    assert_eq!(whole["name"], "Test0");
    assert_eq!(whole["kv_cache_types"].as_array().map(Vec::len), Some(9));
    let less = listed("ROPE,SET_ROWS:q8_0,FLASH_ATTN_EXT:q4_0");
    let types = less["kv_cache_types"].as_array().expect("a list");
    assert!(
        !types.contains(&json!("q8_0")) && !types.contains(&json!("q4_0")),
        "{types:?}"
    );
    assert_eq!(types.len(), 7);
    // Queries and keys of two layers.
    let lacks = less["lacks"].as_array().expect("a list");
    assert_eq!(lacks.len(), 1, "{lacks:?}");
    assert_eq!(lacks[0]["operation"], "ROPE");
    assert_eq!(lacks[0]["types"], json!(["f32", "f32", "i32"]));
    let uses = [&lacks[0]["uses_in_prefill"], &lacks[0]["uses_in_decode"]];
    assert_eq!(uses, [&json!(4), &json!(4)]);

    let elsewhere = |lacks: &str| {
        let options = [
            "--device",
            "Test0",
            "--profile",
            "--json",
            "-p",
            "8",
            "-n",
            "2",
            "-r",
            "1",
        ];
        let ran = on_device("perf", &model, &library, lacks, &options);
        assert!(ran.is_fine(), "{}", ran.err);
        let report: Value = serde_json::from_str(&ran.out).expect("JSON");
        report["runs"][0]["profiles"][0]["operations_elsewhere"].clone()
    };
    assert_eq!(elsewhere(""), json!({}));
    assert_eq!(elsewhere("ROPE"), json!({ "ROPE of attention": 4 }));
}

/// What a device cannot do to the rows it keeps would end the process within ggml's scheduler, or copy them at each
/// step.
#[test]
fn a_cache_that_a_device_cannot_use_is_an_error() {
    let (folder, library) = sound();
    let model = synthesised(folder.path(), "llama", &SMALL);
    let out = folder.path().join("out.npy").display().to_string();
    let refused = |lacks: &str, flash: &str| {
        let tokens = ["--tokens", "1,2,3", "-o", &out, "--device", "Test0"];
        let options = [&tokens[..], &["--flash-attn", flash, "--kv-type", "f16"]].concat();
        let ran = on_device("logits", &model, &library, lacks, &options);
        match ran.is_fine() {
            true => None,
            false => Some(ran.err),
        }
    };
    for (lacks, flash) in [("SET_ROWS", "on"), ("SET_ROWS", "off"), ("MUL_MAT", "off")] {
        let found = refused(lacks, flash).expect("it is refused");
        let message = format!("Test0 does not run {lacks} over f16");
        assert!(found.contains(&message), "{found}");
    }
    // There is another way than flash attention.
    assert_eq!(refused("FLASH_ATTN_EXT", "on"), None);
}

/// Attention by block tables on a device: a prompt in pieces, requests that run together and share a prefix, and the
/// same without tables.
#[test]
fn devices_read_block_tables() {
    let (folder, library) = sound();
    let model = synthesised(folder.path(), "llama", &SMALL);
    let ids: Vec<String> = (0..70).map(|i| (i * 7 % 96).to_string()).collect();
    let out = folder.path().join("out.npy");
    let logits = |device: &str, tables: &str| {
        let (model, library) = (model.display().to_string(), library.display().to_string());
        let (ids, out_name) = (ids.join(","), out.display().to_string());
        let line = [
            ["logits", "-m", &model, "--backend", &library],
            ["--tokens", &ids, "--force", "-o", &out_name],
            ["--device", device, "--flash-attn", "on", "--chunk"],
        ];
        let line = [&line.concat()[..], &["9"]].concat();
        let ran = ended(program(&line).env("BENCH_DEVICE_TABLES", tables));
        assert!(ran.is_fine(), "{}", ran.err);
        let used = ran.err.contains("attention by a table of blocks of 16");
        assert_eq!(used, device != "none" && tables == "1", "{}", ran.err);
        parse_npy(&std::fs::read(&out).expect("it was written")).values
    };
    let expected = logits("none", "1");
    for tables in ["0", "1"] {
        let found: Vec<f32> = logits("Test0", tables).iter().map(|x| *x as f32).collect();
        assert!(nmse(&found, &expected) < 1e-10, "{tables}");
    }

    // Prompts with a common start, of which half come again, in passes of their own lengths.
    let start = "The first of all numbers is one, and the second is two. ".repeat(3);
    let requests: Vec<String> = (0..12)
        .map(|i| {
            let prompt = format!("{start}{}", "And then? ".repeat(i % 6));
            let body = json!({ "prompt": prompt, "max_tokens": 3 + i, "temperature": 0, "ignore_eos": true });
            json!({ "custom_id": format!("r{i}"), "method": "POST", "url": "/v1/completions", "body": body })
                .to_string()
        })
        .collect();
    let file = folder.path().join("in.jsonl");
    std::fs::write(&file, requests.join("\n") + "\n").expect("the folder is writable");
    let answers = |device: &str| {
        let out = folder.path().join(format!("{device}.jsonl"));
        let (file, out_name) = (file.display().to_string(), out.display().to_string());
        let library = library.display().to_string();
        let line = [
            ["batch", &file, &out_name, "--backend", &library],
            ["--device", device, "--parallel", "5", "--kv-type"],
        ];
        let line = [&line.concat()[..], &["f32"]].concat();
        let ran = ended(program(&line).env("BENCH_DEVICE_TABLES", "1"));
        assert!(ran.is_fine(), "{}", ran.err);
        let text = std::fs::read_to_string(out).expect("it was written");
        let mut found: Vec<(String, String)> = text
            .lines()
            .map(|line| {
                let line: Value = serde_json::from_str(line).expect("JSON");
                let text = &line["response"]["body"]["choices"][0]["text"];
                let field = |value: &Value| value.as_str().expect("a text").to_owned();
                (field(&line["custom_id"]), field(text))
            })
            .collect();
        found.sort();
        found
    };
    let expected = answers("none");
    assert_eq!(expected.len(), 12);
    assert_eq!(answers("Test0"), expected);
}

/// Options that put all layers on the made-up device of a library.
pub(crate) fn all_on_test0(library: &str) -> [&str; 6] {
    let [backend, device, layers] = ["--backend", "--device", "--gpu-layers"];
    [backend, library, device, "Test0", layers, "all"]
}

/// What a device gives of its rows decides as all of them would: two devices with the same logits, of which one cannot select.
#[test]
fn texts_by_the_highest_logits_are_those_by_all_logits() {
    let (_folder, library) = sound();
    let library = library.display().to_string();
    let texts = |lacks: &str| {
        let options = [
            &all_on_test0(&library)[..],
            &["--parallel", "4", "--log-level", "info"],
        ]
        .concat();
        let server = Server::with(&options, &[("MADE_UP_LACKS", lacks)]);
        let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
        let requests = [
            json!({ "temperature": 0 }),
            json!({ "temperature": 1, "seed": 1 }),
            json!({ "temperature": 0.8, "top_k": 40, "seed": 2, "repeat_penalty": 1.3 }),
            json!({ "temperature": 1.5, "top_p": 0.9, "seed": 3, "presence_penalty": 1 }),
            json!({ "temperature": 0.7, "min_p": 0.05, "seed": 4, "dry_multiplier": 0.8 }),
            json!({ "temperature": 1, "typical_p": 0.9, "seed": 5 }),
            json!({ "temperature": 1, "mirostat": 2, "seed": 6 }),
            json!({ "temperature": 0, "logit_bias": { "7": 100, "9": -100 } }),
            json!({ "temperature": 1, "seed": 8, "logprobs": true, "top_logprobs": 3 }),
            json!({ "temperature": 0, "min_tokens": 20 }),
            json!({ "temperature": 1, "seed": 9, "xtc_probability": 0.9, "xtc_threshold": 0.05 }),
            json!({ "temperature": 0, "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": schema } } }),
        ];
        let said =
            json!([{ "role": "user", "content": "Write about the sea, the sun and seven ships." }]);
        let asked = json!({ "max_tokens": 60, "ignore_eos": true, "messages": said });
        let answers: Vec<Value> = std::thread::scope(|scope| {
            let (server, asked) = (&server, &asked);
            let asked = requests
                .iter()
                .map(|extra| scope.spawn(move || server.chat(with(asked.clone(), extra))));
            let asked: Vec<_> = asked.collect();
            let answers = asked
                .into_iter()
                .map(|asked| asked.join().expect("it ends"));
            answers
                .map(|(status, answer)| {
                    assert_eq!(status, 200, "{answer}");
                    answer["choices"][0].clone()
                })
                .collect()
        });
        (answers, server.log())
    };
    let (whole, log) = texts("TOP_K");
    assert!(
        log.contains("Test0 has no TOP_K: rows of logits are read whole"),
        "{log}"
    );
    let (top, log) = texts("");
    assert!(!log.contains("read whole"), "{log}");
    assert_eq!(top, whole);
}

/// What a device with a queue and latencies did while requests of mixed lengths came and went, and what the engine counted.
struct DeviceRun {
    report: Value,
    metrics: String,
}

impl DeviceRun {
    fn reported(&self, name: &str) -> f64 {
        self.report[name].as_f64().expect(name)
    }

    fn counted(&self, name: &str) -> f64 {
        let mut lines = self.metrics.lines();
        let line = lines.find(|line| line.starts_with(name)).expect(name);
        let (_, n) = line.rsplit_once(' ').expect("a number");
        n.parse().expect(name)
    }
}

/// Runs `n` requests, `at_once` at a time, on a device that takes these microseconds for a launch, a copy and a graph.
fn on_queue(latencies: &str, (n, at_once): (usize, usize)) -> DeviceRun {
    let (folder, library) = sound();
    let report = folder.path().join("report.json");
    let library = library.display().to_string();
    let parallel = at_once.to_string();
    let options = [
        &all_on_test0(&library)[..],
        &["--parallel", &parallel, "--in-process"],
    ]
    .concat();
    let path = report.display().to_string();
    let environment = [("MADE_UP_QUEUE", latencies), ("MADE_UP_REPORT", &path)];
    let server = Server::with(&options, &environment);
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if i >= n {
                        return;
                    }
                    let text = "word ".repeat(1 + i * 7 % 40);
                    let (status, answer) = server.chat(json!({
                        "messages": [{ "role": "user", "content": text }],
                        "max_tokens": 8 + i * 13 % 50, "ignore_eos": true, "seed": i, "temperature": 0.8, "top_k": 40,
                    }));
                    assert_eq!(status, 200, "{answer}");
                }
            });
        }
    });
    let (status, _, metrics) = server.raw("GET", "/metrics", "text/plain", "");
    assert_eq!(status, 200);
    let report = std::fs::read_to_string(report).expect("it reports");
    DeviceRun {
        report: serde_json::from_str(&report).expect("JSON"),
        metrics,
    }
}

#[test]
fn a_step_waits_for_a_device_at_most_three_times_and_gets_little_of_it() {
    let run = on_queue("0,0,0", (12, 4));
    let graphs = run.reported("graphs");
    assert_eq!(graphs, run.counted("bench_graphs_run_total"));
    let waits = run
        .reported("waits")
        .max(run.counted("bench_device_waits_total"));
    assert!(waits / graphs <= 3.0, "{waits} in {graphs}");
    // Inputs are sent at once, after one value of the processor.
    assert!(run.reported("sets") / graphs <= 2.0, "{}", run.report);
    let rows = run.counted("bench_completion_tokens_total");
    let bytes = run.reported("bytes_got");
    assert!(bytes / rows < 2048.0, "{bytes} for {rows} rows");
}

/// The passes over a long prompt want no results but the last: the first device computes one while the second computes the one before.
#[test]
fn devices_that_share_layers_compute_passes_of_a_prompt_at_the_same_time() {
    const GRAPH: f64 = 250_000.0;
    let (folder, library) = sound();
    let library = library.display().to_string();
    let path = folder.path().join("report.json");
    let options = ["--ctx", "8192", "--parallel", "4", "--in-process"];
    let devices = ["--backend", &library, "--device", "Test0,Test1"];
    let layers = ["--gpu-layers", "all", "--tensor-split", "1,1"];
    let (report, latencies) = (path.display().to_string(), format!("0,0,{GRAPH}"));
    let server = Server::with(
        &[&options[..], &devices, &layers].concat(),
        &[
            ("MADE_UP_DEVICES", "2"),
            ("MADE_UP_QUEUE", &latencies),
            ("MADE_UP_REPORT", &report),
        ],
    );
    let plain = Server::start(&["--ctx", "8192"]);
    let read = |name: &str| {
        let report = std::fs::read_to_string(&path).expect("it reports");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        report[name].as_f64().expect(name)
    };
    // The first prompt builds the graphs.
    for first in ["one", "two"] {
        let (both, graphs) = (read("both"), read("graphs"));
        let prompt = format!("{first} {}", "word ".repeat(5000));
        let body = json!({ "prompt": prompt, "max_tokens": 2, "temperature": 0 });
        let text = |server: &Server| {
            let answer = server.post("/v1/completions", &body);
            answer["choices"][0]["text"].clone()
        };
        let found = text(&server);
        assert_eq!(found, text(&plain));
        assert!(
            read("graphs") - graphs >= 6.0,
            "three passes on two devices"
        );
        if first == "two" {
            let both = read("both") - both;
            assert!(both > GRAPH, "{both} us together");
        }
    }
}

#[test]
fn a_worker_sends_little_of_each_row() {
    let (mut worker, address) = Worker::listening(&[]);
    let address = address.to_string();
    let server = Server::start(&["--rpc", &address, "--gpu-layers", "all"]);
    let ask = |server: &Server| {
        let (status, answer) =
            server.chat(json!({ "max_tokens": 30, "ignore_eos": true, "temperature": 0 }));
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["message"]["content"].clone()
    };
    let text = ask(&server);
    let (_, _, metrics) = server.raw("GET", "/metrics", "text/plain", "");
    let run = DeviceRun {
        report: Value::Null,
        metrics,
    };
    let bytes = run.counted("bench_device_bytes_total{model=\"tiny-chat\",direction=\"out\"}");
    let rows = run.counted("bench_completion_tokens_total");
    assert!(
        bytes > 0.0 && bytes / rows < 2048.0,
        "{bytes} for {rows} rows"
    );
    drop(server);
    worker.kill().expect("it runs");
    worker.wait().expect("it ends");
    // A greedy text is the same on the processor, whose rows are read whole.
    assert_eq!(text, ask(&Server::start(&[])));
}
