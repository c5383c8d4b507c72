//! What users of other programs type, and what a first try meets: it works, or the message has the way to the same end.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::bad_folders::Folder;
use crate::support::command::{
    Ran, bench, bench_in, check_refused, ended, made_up, printed, scratch, text,
};
use crate::support::server::Server;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-chat.gguf");

#[track_caller]
fn fine(arguments: &[&str]) -> Ran {
    let ran = bench(arguments);
    assert!(ran.is_fine(), "{arguments:?}: {}", ran.err);
    ran
}

#[test]
fn options_of_other_programs_mean_the_same_here() {
    let plain = printed(&["run", "2+2=?"]);
    for others in [
        &[
            "run", "-c", "4k", "-t", "1", "--temp", "0", "-n", "-1", "2+2=?",
        ][..],
        &[
            "run",
            "--ctx-size",
            "512",
            "--n-predict",
            "64",
            "--seed",
            "-1",
            "2+2=?",
        ],
        &[
            "run",
            "--max-model-len",
            "0",
            "-ctk",
            "f16",
            "-ctv",
            "f16",
            "-fa",
            "on",
            "2+2=?",
        ],
        &["run", "-ngl", "0", "--cache-type-k", "fp16", "2+2=?"],
        &["run", "--n-gpu-layers=0", "2+2=?"],
        &["run", "-p", "2+2=?", "-n", "64"],
    ] {
        assert_eq!(printed(others), plain, "{others:?}");
    }
    // Behind `--` everything is text.
    fine(&["tokenize", "--", "-ngl"]);
    let random = [
        "run",
        "--temp",
        "20",
        "--seed",
        "-1",
        "-n",
        "24",
        "Tell me something.",
    ];
    let answers: Vec<String> = (0..4).map(|_| printed(&random)).collect();
    assert!(
        answers.iter().any(|answer| *answer != answers[0]),
        "{answers:?}"
    );
}

#[test]
fn options_of_other_programs_are_refused_with_advice() {
    for (arguments, part) in [
        (&["pull", "x"][..], "owner/repo"),
        (&["ps"], "/v1/models"),
        (&["models"], "bench list"),
        (&["download", "x"], "bench pull"),
        (&["show", "x"], "bench inspect"),
        (&["quantize", "a", "b"], "bench convert"),
        (&["run", "-hff", "b.gguf", "hi"], "OWNER/REPO:FILE.gguf"),
        (&["serve", "--tensor-parallel-size", "2"], "--tensor-split"),
        (&["serve", "--served-model-name", "x"], "[aliases]"),
        (&["serve", "--dtype", "auto"], "--type"),
        (&["run", "--ctx", "4kk", "hi"], "4k"),
        (&["run", "--type", "q4_k_l", "hi"], "did you mean q4_k?"),
        (&["run", "--kv-type", "int8", "hi"], "did you mean q8_0?"),
        (&["rpc-worker", "--port", "0"], "1..=65535"),
    ] {
        check_refused(arguments, 2, &[part]);
    }
    for model in ["qwen3:0.6b", "qwen3"] {
        check_refused(&["run", "-m", model, "hi"], 1, &["`-m OWNER/NAME`"]);
    }
    check_refused(
        &["synth", "llama", "-o", "x.gguf", "--set", "zzzz=64"],
        1,
        &["bench arch show llama"],
    );
    check_refused(
        &["serve", "--cache", "1K", "--port", "0"],
        1,
        &["1.00 KiB", "16 tokens", "20.0 KiB"],
    );
}

#[test]
fn the_model_is_given_once_by_option_or_argument() {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    std::fs::write(at("plan.toml"), "[[captures]]\npoint = \"layers.0.out\"\n")
        .expect("it is written");
    std::fs::write(at("texts"), "one\ntwo\n").expect("it is written");
    std::fs::write(at("prompts.jsonl"), "\"one\"\n").expect("it is written");
    let (plan, texts, prompts, none) = (
        at("plan.toml"),
        at("texts"),
        at("prompts.jsonl"),
        at("none"),
    );
    let tokens = ["--tokens", "1,2"];
    let collect = [
        "lab",
        "collect",
        "--prompts",
        &prompts,
        "--plan",
        &plan,
        "-o",
    ];
    let direction = [
        "lab",
        "direction",
        "--positive",
        &texts,
        "--negative",
        &texts,
        "-o",
    ];
    let outputs = [
        "a.npy", "b.npy", "c.npy", "a", "b", "c", "a.gguf", "b.gguf", "c.gguf",
    ]
    .map(at);
    for (at, words) in [
        vec!["inspect"],
        vec!["doctor"],
        vec!["points"],
        vec!["plan"],
        vec!["perf", "-p", "1", "-n", "1", "-r", "1"],
        [&["lab", "lens"], &tokens[..]].concat(),
        [&["lab", "attention"], &tokens[..]].concat(),
        [&["lab", "attribution", "--of", "4"], &tokens[..]].concat(),
        vec![
            "lab",
            "patch",
            "--clean",
            "2+2=",
            "--corrupt",
            "2+3=",
            "--token",
            "4",
        ],
        [&["lab", "run", "--plan", &plan], &tokens[..]].concat(),
        [&["lab", "drift"], &tokens[..]].concat(),
        [&["compare"], &tokens[..]].concat(),
        [&["logits"], &tokens[..], &["-o"]].concat(),
        collect.to_vec(),
        direction.to_vec(),
    ]
    .iter()
    .enumerate()
    {
        let ways = [&[][..], &[SHIPPED], &["-m", SHIPPED]];
        for (way, model) in ways.iter().enumerate() {
            let output = at.checked_sub(12).map(|at| &*outputs[3 * at + way]);
            fine(&[&words[..], output.as_slice(), model].concat());
        }
        let twice = [&words[..], &[&none], &["-m", SHIPPED, SHIPPED, SHIPPED]].concat();
        assert_ne!(bench(&twice).code, 0, "{words:?}");
    }
    fine(&["compare", "-m", SHIPPED, "-m", SHIPPED, "--tokens", "1,2"]);
    fine(&["convert", "-m", SHIPPED, &at("converted.gguf")]);
    let ran = bench_in(folder.path(), &["diagram", "-m", SHIPPED]);
    assert!(ran.is_fine(), "{}", ran.err);
    for words in [
        &["serve", SHIPPED, "--models", "."][..],
        &["chat", SHIPPED, "-m", SHIPPED],
    ] {
        assert_eq!(bench(words).code, 2, "{words:?}");
    }
}

#[test]
fn an_unknown_option_gets_no_tip_that_leads_elsewhere() {
    for (arguments, strange) in [
        (&["chat", "--raw"][..], "dry-allowed-length"),
        (&["serve", "--np", "3"], "no-api-key"),
        (&["chat", "--quiet"], "-- --quiet"),
    ] {
        let ran = bench(arguments);
        assert_eq!(ran.code, 2);
        assert!(!ran.err.contains(strange), "{}", ran.err);
    }
    for (arguments, part) in [
        (
            &["points", "--parallel", "8"][..],
            "an option of `bench batch`",
        ),
        (
            &["run", "-c", "-1", "hi"],
            "'--ctx <N>': expected a number of tokens",
        ),
        (&["run", "--min-p", "-1", "hi"], "a number from 0 to 1"),
    ] {
        let ran = bench(arguments);
        assert!(ran.err.contains(part), "{}", ran.err);
    }
    assert!(
        fine(&["run", "--top-k", "-1", "-n", "1", "hi"])
            .out
            .contains("Hi")
    );
    let ran = bench(&["run", "--temprature", "1", "hi"]);
    assert!(ran.err.contains("--temperature"), "{}", ran.err);
}

#[test]
fn options_without_effect_are_reported() {
    for (arguments, part) in [
        (
            &["--gpu-layers", "all"][..],
            "--gpu-layers all: there is no GPU",
        ),
        (&["-ngl", "99"], "--gpu-layers 99: there is no GPU"),
        (&["--ctx", "100k"], "trained with 512 tokens"),
        (&["--threads", "1000"], "--threads 1000: the program has"),
    ] {
        let ran = fine(&[&["run", "-n", "2", "hi"], arguments].concat());
        let said: Vec<&str> = ran.err.lines().filter(|line| line.contains(part)).collect();
        assert_eq!(said.len(), 1, "{}", ran.err);
        assert!(said[0].starts_with("warning: "), "{}", ran.err);
    }
    for quiet in [
        &["--gpu-layers", "0"][..],
        &["-ngl", "auto"],
        &["--device", "none", "-ngl", "9"],
        &["-c", "0"],
    ] {
        let ran = fine(&[&["run", "-n", "2", "hi"], quiet].concat());
        assert!(!ran.err.contains("warning"), "{quiet:?}: {}", ran.err);
    }
    // Who asks for a log gets its form.
    let ran = fine(&[
        "run",
        "-n",
        "2",
        "--ctx",
        "100k",
        "--log-level",
        "warn",
        "hi",
    ]);
    assert!(
        ran.err.contains("WARN") && !ran.err.contains("warning: "),
        "{}",
        ran.err
    );
}

#[test]
fn a_folder_without_a_tokenizer_says_what_is_missing() {
    let folder = Folder::new("llama-llama3");
    let has = |name: &str| folder.0.path().join(name).exists();
    assert!(has("config.json") && !has("tokenizer.json"));
    let path = text(folder.0.path());
    for words in [
        &["run", "-m", path, "hi"][..],
        &["tokenize", "-m", path, "hi"],
    ] {
        check_refused(words, 1, &["`tokenizer.json`", "download it"]);
    }
    let report = printed(&["doctor", path]);
    assert!(report.contains("`tokenizer.json`"), "{report}");
}

/// A model of an architecture with a table of 64 positions, and the words of the built-in model.
fn learned(folder: &Path, arch: &str) -> String {
    let path = made_up(
        folder,
        arch,
        &["--vocab", SHIPPED, "--set", "n_ctx_train=64"],
    );
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_context_above_the_table_of_positions_is_refused_at_the_start() {
    let folder = scratch();
    let out = folder.path().join("out.npy");
    for arch in ["gpt2", "starcoder"] {
        let model = learned(folder.path(), arch);
        for words in [
            &["run", "hi"][..],
            &["chat"],
            &["serve", "--port", "0"],
            &["perf"],
            &["logits", "--tokens", "1", "-o", text(&out)],
            &["lab", "lens", "--text", "hi"],
            &["compare", "--tokens", "1"],
            &["doctor"],
        ] {
            let ran = bench(&[words, &["-m", &model, "--ctx", "65"]].concat());
            assert_eq!(ran.code, 1, "{words:?}: {}", ran.err);
            let said = ran.out + &ran.err;
            assert!(
                said.contains("a table of 64 positions"),
                "{words:?}: {said}"
            );
        }
        fine(&[
            "run", "-m", &model, "--raw", "--ctx", "64", "-n", "-1", "hi",
        ]);
        fine(&["run", "-m", &model, "--raw", "-c", "0", "-n", "70", "hi"]);
    }
    let model = folder.path().join("gpt2.gguf");
    check_refused(&["perf", "-m", text(&model)], 1, &["at most 64"]);
    // Positions that are computed have no end.
    let model = made_up(
        folder.path(),
        "bloom",
        &["--vocab", SHIPPED, "--set", "n_ctx_train=64"],
    );
    fine(&[
        "run",
        "-m",
        text(&model),
        "--raw",
        "--ctx",
        "256",
        "-n",
        "80",
        "hi",
    ]);
}

#[test]
fn a_server_of_a_folder_cuts_the_context_to_the_table_of_positions() {
    let folder = scratch();
    learned(folder.path(), "gpt2");
    learned(folder.path(), "bert");
    let server = Server::start(&["--models", text(folder.path()), "--ctx", "256"]);
    let (_, listed) = server.json("GET", "/v1/models", &Value::Null);
    for model in listed["data"].as_array().expect("models") {
        assert_eq!(model["max_model_len"], 64, "{model}");
    }
    let prompt: Vec<u32> = vec![5; 65];
    let body = json!({ "model": "gpt2", "prompt": prompt, "max_tokens": 4 });
    let (status, answer) = server.json("POST", "/v1/completions", &body);
    assert_eq!(status, 400, "{answer}");
    let body =
        json!({ "model": "gpt2", "prompt": [5, 6, 7], "max_tokens": 500, "ignore_eos": true });
    let (status, answer) = server.json("POST", "/v1/completions", &body);
    assert_eq!(
        (status, &answer["choices"][0]["finish_reason"]),
        (200, &json!("length")),
        "{answer}"
    );
    let body = json!({ "model": "bert", "input": prompt });
    let (status, answer) = server.json("POST", "/v1/embeddings", &body);
    assert_eq!(status, 400, "{answer}");
}

#[test]
fn exact_numbers_are_those_of_its_options() {
    let folder = scratch();
    let logits = |name: &str, extra: &[&str]| {
        let path = folder.path().join(name);
        let words = [
            "logits",
            "-m",
            SHIPPED,
            "--tokens",
            "1,2,3,4",
            "-o",
            text(&path),
        ];
        printed(&[&words, extra].concat());
        std::fs::read(&path).expect("it was written")
    };
    let exact = logits("a", &["--exact"]);
    let options = ["--type", "f32", "--kv-type", "f32", "--flash-attn", "off"];
    assert_eq!(exact, logits("b", &options));
    assert_ne!(exact, logits("c", &[]));
    check_refused(
        &["run", "--exact", "--kv-type", "f16", "hi"],
        2,
        &["cannot be used with"],
    );
    let text = printed(&["inspect", SHIPPED, "--exact"]);
    assert!(
        text.contains("cache of f32") && text.contains("on disk"),
        "{text}"
    );
}

#[test]
fn memory_is_that_of_the_options() {
    let doctor = |extra: &[&str]| -> Value {
        let words = [&["doctor", SHIPPED, "--json"], extra].concat();
        serde_json::from_str(&printed(&words)).expect("JSON")
    };
    let number = |report: &Value, key: &str| report[key].as_u64().expect("a number");
    let (plain, small) = (doctor(&[]), doctor(&["--kv-type", "q8_0"]));
    let key = "cache_bytes_per_1024";
    assert_eq!(number(&small, key) * 32, number(&plain, key) * 17);
    let (one, four) = (
        doctor(&["-c", "8k"]),
        doctor(&["-c", "8k", "--parallel", "4"]),
    );
    assert_eq!(
        (&one["n_ctx"], &four["n_ctx"]),
        (&json!(8192), &json!(8192))
    );
    let cache = 8 * number(&plain, key);
    let all = "bytes_in_all";
    assert!(
        number(&four, all) >= number(&one, all) + 3 * cache,
        "{one} {four}"
    );
    let shrunk = doctor(&["--type", "q4_0"]);
    assert!(number(&shrunk, "bytes") < number(&shrunk, "stored_bytes"));
    assert_eq!(shrunk["stored_bytes"], plain["bytes"]);
    let text = printed(&["doctor", SHIPPED, "--type", "q4_0"]);
    assert!(text.contains("on disk, loaded as"), "{text}");
    let planned = printed(&["plan", "--json", SHIPPED, "-c", "8k", "--parallel", "4"]);
    let planned: Value = serde_json::from_str(&planned).expect("JSON");
    let parts = planned["memory"][0].as_object().expect("the processor");
    let parts = parts.values().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!(parts, number(&four, all));
    assert_eq!(planned["parallel"], 4);
    let text = printed(&["plan", SHIPPED, "-c", "8k", "--parallel", "4"]);
    assert!(
        text.contains("a context of 8192 tokens for each of 4 sequences"),
        "{text}"
    );
    let text = printed(&["inspect", SHIPPED, "--parallel", "4"]);
    assert!(text.contains("memory of 4 sequences"), "{text}");
}

#[test]
fn unread_settings_are_reported() {
    let folder = scratch();
    let path = folder.path().join("bench.toml");
    let serve = |config: &str, variable: &str| {
        std::fs::write(&path, config).expect("it is written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
        command.args([
            "serve",
            "--config",
            text(&path),
            "--port",
            "0",
            "--cache",
            "1",
        ]);
        command.env(variable, "3");
        ended(&mut command).err
    };
    // The server ends because of its cache, after it has told.
    let said = serve("", "BENCH_PARALEL");
    assert!(
        said.contains("BENCH_PARALEL: no option") && said.contains("did you mean BENCH_PARALLEL?"),
        "{said}"
    );
    for known in ["BENCH_SHARED", "BENCH_BACKEND_DIR", "BENCH_PARALLEL"] {
        let said = serve("", known);
        assert!(!said.contains("no option"), "{said}");
    }
    let said = serve("[per_model.tiny-cat]\nctx = 256\n", "X");
    assert!(
        said.contains("`per_model.tiny-cat`") && said.contains("`per_model.tiny-chat`"),
        "{said}"
    );
    let said = serve("[per_model.other]\nctx = 256\n", "X");
    assert!(said.contains("expected one of tiny-chat"), "{said}");
    let said = serve("max_model_len = \"x\"\n", "X");
    assert!(said.contains("max_model_len"), "{said}");
}

#[test]
fn help_begins_with_the_common_commands() {
    let help = printed(&["--help"]);
    for part in [
        "Use a model:",
        "bench run \"2+2=?\"",
        "docs/",
        "bench doctor PATH",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
    let (short, long) = (printed(&["run", "-h"]), printed(&["run", "--help"]));
    assert!(
        short.lines().count() < 90 && short.lines().count() * 2 < long.lines().count(),
        "{short}"
    );
    let place = |part: &str| long.find(part).unwrap_or_else(|| panic!("{part}: {long}"));
    assert!(place("Model and compute:") < place("Sampling:"));
    assert!(place("--temperature") > place("Sampling:"));
    assert!(long.contains("Examples:"), "{long}");
    let lens = printed(&["lab", "lens", "--help"]);
    let place = |part: &str| lens.find(part).unwrap_or_else(|| panic!("{part}: {lens}"));
    for own in [
        "--prompt",
        "--tokens",
        "--top-k",
        "--svg",
        "[alias: --text]",
    ] {
        assert!(place(own) < place("Model and compute:"), "{own}: {lens}");
    }
}

#[test]
fn a_lab_run_needs_no_plan_and_shows_its_text() {
    let words = ["lab", "run", "--prompt", "The sea is", "-n", "8"];
    let answer: Value = serde_json::from_str(&printed(&words)).expect("JSON");
    assert_eq!(answer["text"], " the largest animal.");
    let read = ["lab", "run", "--text", "The sea is"];
    let answer: Value = serde_json::from_str(&printed(&read)).expect("JSON");
    assert_eq!(answer["text"], "");
}
