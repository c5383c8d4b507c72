//! Prefixes that outlive the KV cache: the same bits from stored blocks, for every model; found again by another server; what does
//! not fit is dropped, and a folder that fails costs nothing else.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use lab_base::weights::TensorType;
use lab_core::arch::Mode;
use lab_core::model::{Model, Options};

use crate::goldens::{Golden, Turns, all_goldens, options};
use crate::lora::of_shipped;
use crate::shared::read;
use crate::support::command::{made_up, scratch, text};
use crate::support::process::{eventually, kill, model as process_model};
use crate::support::server::Server;

const N_TOKENS: u32 = 75;

/// The bits of the logits of the tokens from where the sequence goes on, in passes of `step` tokens.
fn bits(model: &mut Model, sequence: u32, tokens: &[u32], step: usize) -> Vec<u32> {
    let logits = read(model, sequence, tokens, step).into_iter();
    logits.map(|logit| (logit as f32).to_bits()).collect()
}

/// Options of which each golden gets one: blocks anywhere, runs, quantised caches.
fn variants() -> [Options; 3] {
    let base = Options {
        n_ctx: 256,
        n_checkpoints: 8,
        n_batch: 16,
        ..options()
    };
    [
        Options {
            flash_attn: true,
            ..base.clone()
        },
        base.clone(),
        Options {
            flash_attn: true,
            k_type: TensorType::Q8_0,
            v_type: TensorType::Q8_0,
            ..base
        },
    ]
}

fn load(golden: &Golden, options: &Options) -> Option<Model> {
    let plan = golden.plan.clone();
    Model::load(plan, &golden.weights, options.clone(), &mut |_, _| {}).ok()
}

#[test]
fn blocks_that_were_read_out_give_the_same_bits() {
    let mut turns = Turns::new(3);
    let (mut n_models, mut n_windows, mut n_states) = ([0; 3], 0, 0);
    for golden in all_goldens() {
        let is_causal = golden.plan.mode == Mode::Causal && golden.media.is_none();
        if !is_causal || golden.plan.source.is_some() {
            continue;
        }
        for at in turns.of(golden) {
            let options = &variants()[at];
            let most = golden.plan.n_positions().unwrap_or(u64::MAX);
            let n = N_TOKENS.min(most.try_into().unwrap_or(N_TOKENS));
            let tokens: Vec<u32> = (0..n).map(|i| (i * 37 + i / 5) % 96).collect();
            let (Some(mut model), Some(mut other)) = (load(golden, options), load(golden, options))
            else {
                // Rows of its heads are not whole blocks of the type.
                assert_eq!(at, 2, "{}", golden.name);
                continue;
            };
            let name = format!("{} {at}", golden.name);
            let layout = model.prefix_layout().expect("it shares prefixes");
            bits(&mut model, 0, &tokens, 16);
            model.release(0);
            let whole = &tokens[..(tokens.len() - 1) / 16 * 16];
            let parts = model.prefix_parts(&[], whole);
            let n_blocks = layout.usable(&parts);
            assert!(n_blocks > 0, "{name}");
            let whole = &whole[..n_blocks * 16];
            let needed = layout.needed(n_blocks);
            let blocks = model.read_prefix(&[], whole, 0, &needed);
            let blocks = blocks.expect("they are read");
            assert_eq!(blocks.parts, needed, "{name}");
            // Only what a window still holds is stored.
            n_windows += usize::from(needed.first() != needed.last());
            n_states += usize::from(layout.state() != 0);
            // In two pieces, as segments come.
            let middle = n_blocks / 2;
            let first = model.read_prefix(&[], &whole[..middle * 16], 0, &needed[..middle]);
            let second = model.read_prefix(&[], whole, middle, &needed[middle..]);
            let (first, second) = (first.expect("read"), second.expect("read"));
            let mut joined = first.clone();
            joined.append(second.clone());
            assert_eq!(joined, blocks, "{name}");
            for (before, piece) in [(&whole[..0], first), (&whole[..middle * 16], second)] {
                let all = vec![u64::MAX; piece.parts.len()];
                let put = other.write_prefix(&[], before, &piece, &all);
                put.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            let prompt = &tokens[..whole.len() + 1];
            let own = model.resume(1, prompt);
            let found = other.resume(1, prompt);
            assert_eq!(found.n_cached, whole.len(), "{name}: {}", found.miss);
            assert_eq!(own.n_cached, whole.len(), "{name}: {}", own.miss);
            let expected = bits(&mut model, 1, &tokens, 5);
            assert!(bits(&mut other, 1, &tokens, 5) == expected, "{name}");
            // Blocks of another layout change nothing.
            let mut wrong = blocks.clone();
            wrong.data.pop();
            assert!(other.write_prefix(&[], &[], &wrong, &needed).is_err());
            n_models[at] += 1;
        }
    }
    println!("{n_models:?} models, {n_windows} with windows, {n_states} with states");
    assert!(n_models.iter().all(|n| *n > 2), "{n_models:?}");
    assert!(n_windows > 5 && n_states > 5, "{n_windows} {n_states}");
}

fn prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| 20 + i * i % 97).collect()
}

fn request(prompt: &[u32]) -> Value {
    json!({
        "prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 3, "ignore_eos": true,
        "return_cached_tokens_details": true,
    })
}

/// Ends a server as a manager of services does, and waits for it. Its log.
fn end(server: Server) -> String {
    kill(server.child.id(), Signal::TERM);
    server.ended()
}

fn metric(server: &Server, name: &str, label: &str) -> f64 {
    let page = server.raw("GET", "/metrics", "text/plain", "").2;
    let all = page
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(label));
    all.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

#[test]
fn another_server_finds_the_prefixes_of_the_one_before() {
    let folder = scratch();
    let cache = folder.path().join("cache");
    for is_split in [false, true] {
        let _ = std::fs::remove_dir_all(&cache);
        let options = ["--cache-dir", text(&cache)];
        let start = || match is_split {
            true => Server::split(&options),
            false => Server::start(&options),
        };
        let (tokens, body) = (prompt(200), request(&prompt(200)));
        let server = start();
        let cold = server.post("/v1/completions", &body);
        assert_eq!(
            cold["usage"]["cache"]["miss"]["reason"], "nothing",
            "{cold}"
        );
        assert_eq!(cold["usage"]["cache"]["store_miss"]["reason"], "nothing");
        let warm = server.post("/v1/completions", &body);
        end(server);
        let server = start();
        let found = server.post("/v1/completions", &body);
        let details = &found["usage"]["cache"];
        assert_eq!(details["disk"], 192, "{found}");
        assert_eq!(
            found["usage"]["prompt_tokens_details"]["cached_tokens"],
            192
        );
        for other in [&cold, &warm] {
            assert_eq!(found["choices"][0]["text"], other["choices"][0]["text"]);
        }
        let other = server.post(
            "/v1/completions",
            &request(&[&[301][..], &tokens[1..]].concat()),
        );
        assert_eq!(other["usage"]["cache"]["disk"], 0);
        let longer = request(&[&tokens[..160], &[7; 40][..]].concat());
        let longer = server.post("/v1/completions", &longer);
        let miss = &longer["usage"]["cache"]["miss"];
        assert_eq!(
            (&miss["reason"], &miss["at"]),
            (&json!("differs"), &json!(160))
        );
        assert!(metric(&server, "bench_cached_tokens_total", "tier=\"disk\"") > 0.0);
        assert!(metric(&server, "bench_prefix_lookups_total", "") >= 6.0);
        let plain = server.post(
            "/v1/completions",
            &json!({ "prompt": "1", "max_tokens": 1 }),
        );
        assert!(plain["usage"]["cache"].is_null(), "{plain}");
        end(server);
        // Other settings compute other values.
        let other = [&options[..], &["--kv-type", "f32"]].concat();
        let server = if is_split {
            Server::split(&other)
        } else {
            Server::start(&other)
        };
        let found = server.post("/v1/completions", &body);
        assert_eq!(found["usage"]["cache"]["disk"], 0, "{found}");
        end(server);
    }
}

#[test]
fn windows_states_and_quantised_caches_are_found_again() {
    let vocab = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-chat.gguf");
    for (arch, kv_type) in [
        ("mamba2", "f16"),
        ("falcon-h1", "f16"),
        ("gemma3", "f16"),
        ("tiny", "q8_0"),
    ] {
        let folder = scratch();
        let cache = folder.path().join("cache");
        let model = match arch {
            "tiny" => "tiny-chat".to_owned(),
            arch => text(&made_up(folder.path(), arch, &["--vocab", vocab])).to_owned(),
        };
        let options = [
            "--model",
            &model,
            "--kv-type",
            kv_type,
            "--cache-dir",
            text(&cache),
        ];
        let body = request(&prompt(110));
        let server = Server::start(&options);
        server.post("/v1/completions", &body);
        let warm = server.post("/v1/completions", &body);
        end(server);
        let server = Server::start(&options);
        let found = server.post("/v1/completions", &body);
        assert_eq!(found["usage"]["cache"]["disk"], 96, "{arch}: {found}");
        assert_eq!(
            found["choices"][0]["text"], warm["choices"][0]["text"],
            "{arch}"
        );
        end(server);
    }
}

/// The log-probabilities of a response.
fn logprobs(response: &Value) -> &Value {
    &response["choices"][0]["logprobs"]
}

#[test]
fn a_restored_prompt_is_as_fast_as_its_file_and_has_the_same_bits() {
    let folder = scratch();
    let (model, cache) = (model_file(folder.path()), folder.path().join("cache"));
    let options = [
        "--model",
        &model,
        "--ctx",
        "4096",
        "--parallel",
        "1",
        "--cache-dir",
        text(&cache),
    ];
    let body = request(&prompt(4001));
    let server = Server::start(&options);
    let timed = |server: &Server| {
        let began = Instant::now();
        let mut body = body.clone();
        body["max_tokens"] = json!(1);
        let response = server.post("/v1/completions", &body);
        (began.elapsed().as_secs_f64(), response)
    };
    let (cold, _) = timed(&server);
    // From the KV cache.
    let warm = server.post("/v1/completions", &body);
    assert_eq!(
        warm["usage"]["prompt_tokens_details"]["cached_tokens"],
        4000
    );
    end(server);
    let server = Server::start(&options);
    let (restored, response) = timed(&server);
    assert_eq!(response["usage"]["cache"]["disk"], 4000, "{response}");
    let again = server.post("/v1/completions", &body);
    assert_eq!(logprobs(&again), logprobs(&warm));
    assert_eq!(
        logprobs(&response)["token_logprobs"][0],
        logprobs(&warm)["token_logprobs"][0]
    );
    println!("first token: {cold:.3} s cold, {restored:.3} s from the folder");
    assert!(restored <= 0.15 * cold, "{restored:.3} s of {cold:.3} s");
    end(server);
}

#[test]
fn damaged_files_and_a_folder_that_fails_cost_nothing_but_time() {
    let folder = scratch();
    let cache = folder.path().join("cache");
    let options = ["--cache-dir", text(&cache)];
    let body = request(&prompt(200));
    let server = Server::start(&options);
    let cold = server.post("/v1/completions", &body);
    end(server);
    let files = || -> Vec<_> {
        let all = std::fs::read_dir(&cache).expect("a folder");
        all.map(|entry| entry.expect("an entry").path()).collect()
    };
    for path in files() {
        let mut bytes = std::fs::read(&path).expect("a file");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).expect("a file");
    }
    let server = Server::start(&options);
    let found = server.post("/v1/completions", &body);
    assert_eq!(found["choices"][0]["text"], cold["choices"][0]["text"]);
    assert_eq!(logprobs(&found), logprobs(&cold));
    assert_eq!(found["usage"]["cache"]["disk"], 0, "{found}");
    assert!(metric(&server, "bench_prefix_store_segments_total", "") > 0.0);
    let log = end(server);
    assert!(log.contains("is dropped"), "{log}");
    // A file in the place of the folder.
    let server = Server::start(&["--cache-dir", &model_file(folder.path())]);
    let found = server.post("/v1/completions", &body);
    assert_eq!(logprobs(&found), logprobs(&cold));
    let log = server.expecting_errors().log();
    assert!(log.contains("--cache-dir"), "{log}");
}

/// Scripts that start a server whose folder `$CACHE` soon has no room: a file system of its own of 16 KiB, and, where nothing can be
/// mounted, a limit of 1 KiB for each file. A prompt of 200 tokens has more.
fn full_disks(cache: &Path) -> Vec<(String, &'static str)> {
    let cache = text(cache);
    let mounted = |unshare: &str, command: &str| {
        format!(
            "exec {unshare} --mount sh -c 'mount -t tmpfs -o size=16k none \"$0\" && {command}' '{cache}' \"$@\""
        )
    };
    let can_mount = |unshare: &&str| {
        let script = mounted(unshare, "true");
        let ran = Command::new("sh").args(["-c", &script]).output();
        ran.is_ok_and(|ran| ran.status.success())
    };
    let unshare = ["unshare", "unshare --user --map-root-user"]
        .into_iter()
        .find(can_mount);
    let limited = "trap '' XFSZ; ulimit -f 1; exec \"$@\"".to_owned();
    let full = unshare.map(|unshare| {
        let script = mounted(unshare, "exec \"$@\"");
        (script, "No space left on device")
    });
    full.into_iter()
        .chain([(limited, "File too large")])
        .collect()
}

#[test]
fn a_full_disk_is_told_once_and_costs_nothing_but_the_stored_prefixes() {
    let folder = scratch();
    let cache = folder.path().join("cache");
    std::fs::create_dir(&cache).expect("a folder");
    let bodies = [0, 1, 2].map(|from| request(&prompt(210)[from..]));
    let server = Server::start(&[]);
    let expected = bodies.each_ref().map(|body| {
        let answer = server.post("/v1/completions", body);
        [&answer["choices"][0]["text"], logprobs(&answer)].map(Value::clone)
    });
    end(server);
    for (script, error) in full_disks(&cache) {
        let server = Server::by(&script, &["--cache-dir", text(&cache)]);
        let failed = || metric(&server, "bench_prefix_store_segments_total", "failed");
        for (body, expected) in bodies.iter().zip(&expected) {
            let answer = server.post("/v1/completions", body);
            assert_eq!(answer["choices"][0]["text"], expected[0], "{error}");
            assert_eq!(*logprobs(&answer), expected[1], "{error}");
            let before = failed();
            eventually("it is not written", || failed() > before || before > 0.0);
        }
        // What the KV cache has is used. When the model is loaded again, nothing is left.
        let warm = server.post("/v1/completions", &bodies[0]);
        let cached = &warm["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert!(cached.as_u64() >= Some(192), "{error}: {warm}");
        server.post("/models/unload", &json!({ "model": "tiny-chat" }));
        let cold = server.post("/v1/completions", &bodies[0]);
        assert_eq!(*logprobs(&cold), expected[0][1], "{error}");
        let details = &cold["usage"]["cache"];
        assert_eq!(details["disk"], 0, "{error}: {cold}");
        for miss in ["miss", "store_miss"] {
            assert_eq!(details[miss]["reason"], "nothing", "{error}: {cold}");
        }
        let log = end(server);
        let told = log.lines().filter(|line| line.contains("cannot write"));
        let told: Vec<&str> = told.collect();
        // By each of the two processes that had the model.
        assert!((1..=2).contains(&told.len()), "{error}: {log}");
        assert!(
            told.iter().all(|line| line.contains(error)),
            "{error}: {log}"
        );
    }
}

#[test]
fn prefixes_of_another_adapter_are_not_used_and_the_miss_says_so() {
    let folder = scratch();
    let cache = folder.path().join("cache");
    let adapter = of_shipped(folder.path(), 1.0);
    let adapter = format!("{}=0", text(&adapter));
    let options = ["--lora", &adapter, "--cache-dir", text(&cache)];
    let body = |scale: f64| {
        let mut body = request(&prompt(200));
        body["lora"] = json!([{ "id": 0, "scale": scale }]);
        body
    };
    let ask = |server: &Server, scale: f64| server.post("/v1/completions", &body(scale));
    let reason = |answer: &Value| answer["usage"]["cache"]["store_miss"]["reason"].clone();
    let server = Server::split(&options);
    let [without, with] = [0.0, 1.0].map(|scale| ask(&server, scale));
    assert_ne!(logprobs(&without), logprobs(&with), "they differ");
    end(server);
    std::fs::remove_dir_all(&cache).expect("it was made");
    let server = Server::split(&options);
    ask(&server, 0.0);
    end(server);
    // Only what was computed without the adapter is stored.
    let server = Server::split(&options);
    let other = ask(&server, 1.0);
    assert_eq!(other["usage"]["cache"]["disk"], 0, "{other}");
    assert_eq!(reason(&other), "other_computation", "{other}");
    assert_eq!(logprobs(&other), logprobs(&with));
    let own = ask(&server, 0.0);
    assert_eq!(own["usage"]["cache"]["disk"], 192, "{own}");
    assert_eq!(own["choices"][0]["text"], without["choices"][0]["text"]);
    let half = ask(&server, 0.5);
    assert_eq!(half["usage"]["cache"]["disk"], 0, "{half}");
    end(server);
    // Another adapter in the place of the first one.
    of_shipped(folder.path(), 0.5);
    let server = Server::split(&options);
    let replaced = ask(&server, 1.0);
    assert_eq!(replaced["usage"]["cache"]["disk"], 0, "{replaced}");
    assert_eq!(reason(&replaced), "other_computation", "{replaced}");
    assert_ne!(logprobs(&replaced), logprobs(&with));
    end(server);
}

fn model_file(folder: &Path) -> String {
    let path = folder.join("model.gguf");
    std::fs::write(&path, process_model()).expect("written");
    text(&path).to_owned()
}

#[test]
fn slots_are_saved_restored_and_erased() {
    let folder = scratch();
    let options = ["--slot-save-path", text(folder.path())];
    let server = Server::start(&options);
    let body = |id: i64| {
        json!({
            "prompt": prompt(100), "n_predict": 2, "temperature": 0, "id_slot": id,
            "ignore_eos": true,
        })
    };
    let act = |server: &Server, id: u32, action: &str, name: &str| {
        let path = format!("/slots/{id}?action={action}");
        server.json("POST", &path, &json!({ "filename": name }))
    };
    assert_eq!(
        act(&server, 1, "save", "a.bin").0,
        400,
        "nothing was computed"
    );
    let cold = server.post("/completion", &body(1));
    let (status, saved) = act(&server, 1, "save", "a.bin");
    assert_eq!((status, &saved["n_saved"]), (200, &json!(96)), "{saved}");
    let length = std::fs::metadata(folder.path().join("a.bin")).expect("it is there");
    assert_eq!(saved["n_written"], length.len());
    assert!(saved["timings"]["save_ms"].is_number());
    for name in ["../a.bin", "a/b", ".a", "", "a\n"] {
        let (status, error) = act(&server, 1, "save", name);
        assert_eq!(
            (status, &error["error"]["param"]),
            (400, &json!("filename")),
            "{error}"
        );
    }
    assert_eq!(act(&server, 9, "save", "a.bin").0, 400);
    assert_eq!(act(&server, 1, "move", "a.bin").0, 400);
    assert_eq!(act(&server, 1, "erase", "a.bin").1["n_erased"], 96);
    let erased = server.post("/completion", &body(2));
    assert!(erased["timings"]["cache_n"].as_u64() < Some(16), "{erased}");
    end(server);
    let server = Server::split(&options);
    let (status, restored) = act(&server, 0, "restore", "a.bin");
    assert_eq!(
        (status, &restored["n_restored"]),
        (200, &json!(96)),
        "{restored}"
    );
    assert_eq!(restored["n_read"], length.len());
    let found = server.post("/completion", &body(0));
    assert_eq!(found["timings"]["cache_n"], 96, "{found}");
    assert_eq!(found["content"], cold["content"]);
    let mut bytes = std::fs::read(folder.path().join("a.bin")).expect("it is there");
    *bytes.last_mut().expect("bytes") ^= 1;
    std::fs::write(folder.path().join("b.bin"), bytes).expect("written");
    for (name, what) in [
        ("b.bin", "not those that were written"),
        ("c.bin", "No such file"),
    ] {
        let (status, error) = act(&server, 0, "restore", name);
        let message = error["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(what), "{error}");
    }
    end(server);
    let server = Server::start(&[]);
    assert_eq!(
        act(&server, 0, "restore", "a.bin").0,
        400,
        "no folder was named"
    );
}
