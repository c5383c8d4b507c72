//! `bench lab collect`: values of many prompts in a folder, also of a run that was interrupted.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use lab_base::weights::folder::plain;
use lab_base::weights::{TensorType, Weights};
use serde_json::{Value, json};

use crate::support::command::{check_refused, printed, program, scratch, text};

const PLAN: &str = "[[captures]]\npoint = 'layers.*.out'\npositions = 'all'\n\
    [[captures]]\npoint = 'layers.1.out'\npositions = 'prompt'\nreduce = 'mean'\n\
    [[captures]]\npoint = 'layers.1.out'\nreduce = 'top_k'\nk = 2\n";
const N: usize = 300;

/// The numbers of a tensor.
fn numbers(weights: &Weights, name: &str) -> Vec<f64> {
    let tensor = weights.tensor(name).unwrap_or_else(|| panic!("{name}"));
    let bytes = weights.data(tensor).expect("bytes");
    match tensor.ty {
        TensorType::F64 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from_le_bytes(*b))
            .collect(),
        TensorType::F32 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b).into())
            .collect(),
        TensorType::I32 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| i32::from_le_bytes(*b).into())
            .collect(),
        other => panic!("{other}"),
    }
}

fn index(folder: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(folder.join("index.json")).ok()?).ok()
}

/// A tensor of all files of values, one after another.
fn collected(folder: &Path, name: &str) -> Vec<f64> {
    let index = index(folder).expect("an index");
    let shards = index["shards"].as_array().expect("files").iter();
    let of = |shard: &Value| {
        let path = folder.join(shard["file"].as_str().expect("a name"));
        numbers(&plain(&path).expect("a sound file"), name)
    };
    shards.flat_map(of).collect()
}

/// Writes prompts of different lengths in all the ways that there are.
fn prompts(path: &Path, n: usize) {
    let line = |i: usize| {
        let tokens: Vec<u32> = (0..3 + i % 7)
            .map(|j| (5 + (i * 13 + j * 7) % 300) as u32)
            .collect();
        match i % 3 {
            0 => json!(tokens).to_string(),
            1 => json!({ "prompt": tokens, "note": "x" }).to_string() + "\n",
            _ => json!(format!("number {i} of many")).to_string(),
        }
    };
    let lines: Vec<String> = (0..n).map(line).collect();
    fs::write(path, lines.join("\n")).expect("written");
}

#[test]
fn an_interrupted_collection_is_resumed_with_the_same_result() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name);
    prompts(&at("prompts.jsonl"), N);
    fs::write(at("plan.toml"), PLAN).expect("written");
    let (file, plan) = (at("prompts.jsonl"), at("plan.toml"));
    let arguments = |folder: &Path| -> Vec<String> {
        let base = [
            "lab",
            "collect",
            "tiny-chat",
            "--threads",
            "1",
            "--deterministic",
            "--ctx",
            "256",
        ];
        let more = ["--shard-bytes", "30K", "--parallel", "4", "--covariance"];
        let files = [
            "--prompts",
            text(&file),
            "--plan",
            text(&plan),
            "-o",
            text(folder),
        ];
        base.iter()
            .chain(&more)
            .chain(&files)
            .map(|s| (*s).to_owned())
            .collect()
    };
    let run = |folder: &Path| {
        let all = arguments(folder);
        printed(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (whole, broken) = (at("whole"), at("broken"));
    let said = run(&whole);
    assert!(said.contains("values of 300 prompts, "), "{said}");
    // The other one is ended on its way. Which comes first, the signal or the end, is chance where tests share the
    // processors: until the signal did.
    let n_shards = || {
        index(&broken)
            .and_then(|i| Some(i["shards"].as_array()?.len()))
            .unwrap_or(0)
    };
    let is_broken = (0..20).any(|_| {
        let _ = fs::remove_dir_all(&broken);
        let mut child = program(&arguments(&broken)).spawn().expect("it starts");
        let started = Instant::now();
        while n_shards() < 2 && started.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        index(&broken).expect("an index")["complete"] == false
    });
    assert!(is_broken, "it was never ended on its way");
    let said = run(&broken);
    assert!(said.contains(" of them before, "), "{said}");
    for folder in [&whole, &broken] {
        let index = index(folder).expect("an index");
        assert_eq!(
            (&index["complete"], &index["n_prompts"]),
            (&json!(true), &json!(N))
        );
        let left: Vec<String> = fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .filter(|name| name.starts_with("statistics"))
            .collect();
        assert_eq!(json!(left), json!([index["statistics"]]));
    }
    for name in [
        "layers.0.out",
        "layers.1.out",
        "layers.1.out#2",
        "layers.1.out#3",
    ] {
        for part in ["", ".prompt", ".position"] {
            let name = format!("{name}{part}");
            assert_eq!(
                collected(&whole, &name),
                collected(&broken, &name),
                "{name}"
            );
        }
    }
    assert_eq!(collected(&whole, "layers.1.out#3.indices").len(), 2 * N);
    // Rows are those of the prompts in their order; statistics are of these rows.
    let rows = collected(&whole, "layers.1.out");
    let of = collected(&whole, "layers.1.out.prompt");
    assert!(of.is_sorted() && of.last() == Some(&(N as f64 - 1.0)));
    let positions = collected(&whole, "layers.1.out.position");
    assert!(
        positions
            .iter()
            .zip(&of)
            .skip(1)
            .zip(positions.iter().zip(&of))
            .all(|((p, i), (q, j))| { if i == j { *p == q + 1.0 } else { *p == 0.0 } })
    );
    let statistics = |folder: &Path| {
        let file = index(folder).expect("an index")["statistics"]
            .as_str()
            .expect("a name")
            .to_owned();
        plain(&folder.join(file)).expect("a sound file")
    };
    let (a, b) = (statistics(&whole), statistics(&broken));
    let (mean, n) = (numbers(&a, "layers.1.out.mean"), rows.len() / 128);
    assert_eq!(numbers(&a, "layers.1.out.n"), [n as f64]);
    let covariance = numbers(&a, "layers.1.out.covariance");
    for i in [0, 5, 127] {
        let own = || rows.chunks(128).map(|row| row[i]);
        let expected = own().sum::<f64>() / n as f64;
        assert!((mean[i] - expected).abs() < 1e-6 * expected.abs().max(1.0));
        let other = rows.chunks(128).map(|row| row[9] - mean[9]);
        let products = own()
            .zip(other)
            .map(|(x, y)| (x - mean[i]) * y)
            .sum::<f64>();
        let expected = products / (n as f64 - 1.0);
        assert!((covariance[i * 128 + 9] - expected).abs() < 1e-6 * expected.abs().max(1.0));
    }
    for name in [
        "layers.0.out.mean",
        "layers.1.out.covariance",
        "layers.1.out#2.mean",
    ] {
        let both = numbers(&a, name).into_iter().zip(numbers(&b, name));
        assert!(
            both.into_iter()
                .all(|(x, y)| (x - y).abs() < 1e-9 * x.abs().max(1.0)),
            "{name}"
        );
    }
    // Once more there is nothing to do; what is of another file is not mixed.
    let said = run(&whole);
    assert!(said.contains("300 of them before"), "{said}");
    prompts(&at("prompts.jsonl"), 2);
    let all = arguments(&whole);
    check_refused(
        &all.iter().map(String::as_str).collect::<Vec<_>>(),
        1,
        &["index.json", "another model, plan or file of prompts"],
    );
}

#[test]
fn invalid_collections_are_refused_with_their_line() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("prompts.jsonl"), "[5, 6]\n").expect("written");
    fs::create_dir(at("full")).expect("a folder");
    fs::write(at("full/file"), "x").expect("written");
    let cases: &[(&str, &str, &str, &[&str], &str)] = &[
        ("[5]\n{", PLAN, "a", &[], "prompts.jsonl:2: "),
        (
            "[5]\n\n{\"text\": \"x\"}",
            PLAN,
            "b",
            &[],
            "prompts.jsonl:3: expected a string",
        ),
        (
            "[99999999]",
            PLAN,
            "c",
            &[],
            "prompts.jsonl:1: 99999999 is not a token id",
        ),
        ("[]", PLAN, "d", &[], "prompt 0"),
        ("[5]", PLAN, "full", &[], "is not empty"),
        (
            "[5]",
            "[lens]\ntop_k = 2\n",
            "e",
            &[],
            "a plan without `lens`",
        ),
        (
            "[5]",
            "[[captures]]\npoint = 'layers.0.attn.weights'\n",
            "f",
            &[],
            "differ in their length",
        ),
        (
            "[5]",
            PLAN,
            "g",
            &["--lab-bytes", "3000", "--covariance"],
            "the limit is 3000",
        ),
        ("[5]", "capture = 1\n", "h", &[], "did you mean"),
        ("[5]", "captures = \n", "i", &[], "plan.toml"),
    ];
    for (lines, plan, folder, more, message) in cases {
        fs::write(at("prompts.jsonl"), lines).expect("written");
        fs::write(at("plan.toml"), plan).expect("written");
        let (file, plan, folder) = (at("prompts.jsonl"), at("plan.toml"), at(folder));
        let base = [
            "lab",
            "collect",
            "tiny-chat",
            "--ctx",
            "256",
            "--threads",
            "1",
            "--prompts",
            text(&file),
        ];
        let files = ["--plan", text(&plan), "-o", text(&folder)];
        check_refused(&[&base[..], &files, more].concat(), 1, &[message]);
    }
}
