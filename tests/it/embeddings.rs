//! Vectors and scores over HTTP against transformers.
//!
//! The folders are those of `tests/hf`, with a vocabulary of words `w5`, `w6` ... beside them. Scores of
//! pairs were computed by transformers 5.23.0 from the same folder, with token types.

use std::path::{Path, PathBuf};

use lab_core::artifacts::npy;
use serde_json::{Value, json};

use crate::support::command::{made_up, printed, scratch, text};
use crate::support::hf;
use crate::support::server::{Server, with};
use crate::support::vocabulary::with_vocabulary;
use crate::support::{Output, nmse, parse_npy};

const BOUND: f64 = 1e-6;

#[track_caller]
fn refused(server: &Server, path: &str, body: &Value, code: &str, param: &str) {
    let (status, answer) = server.json("POST", path, body);
    assert_eq!(status, 400, "{body}: {answer}");
    let error = &answer["error"];
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!(code), &json!(param)),
        "{answer}"
    );
}

fn floats(value: &Value) -> Vec<f32> {
    let all = value.as_array().expect("an array").iter();
    all.map(|v| v.as_f64().expect("a number") as f32).collect()
}

fn from_base64(text: &str) -> Vec<f32> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut n_bits) = (Vec::new(), 0u32, 0);
    for digit in text.bytes().filter(|byte| *byte != b'=') {
        let value = DIGITS.iter().position(|d| *d == digit).expect("a digit");
        bits = bits << 6 | value as u32;
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((bits >> n_bits) as u8);
        }
    }
    let floats = bytes.chunks_exact(4);
    floats
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

fn mean(rows: &[f64], width: usize) -> Vec<f64> {
    let n = (rows.len() / width) as f64;
    let sum = |i: usize| rows.iter().skip(i).step_by(width).sum::<f64>();
    (0..width).map(|i| sum(i) / n).collect()
}

#[test]
fn classes_have_the_scores_that_transformers_gives() {
    let root = scratch();
    let classifiers = hf::names().into_iter().map(|name| hf::open(&name));
    let mut n = 0;
    for folder in classifiers.filter(|folder| folder.output_name() == "scores") {
        let into = with_vocabulary(&folder, root.path());
        let server = Server::start(&["-m", text(&into)]);
        let body = json!({ "input": folder.tokens, "use_activation": false });
        let answer = server.post("/classify", &body);
        let found = floats(&answer["data"][0]["probs"]);
        let error = nmse(&found, &folder.expected);
        println!("{:24} NMSE {error:.1e}", folder.name);
        assert!(error < BOUND, "{}: {error:.1e}", folder.name);
        assert_eq!(answer["usage"]["prompt_tokens"], folder.tokens.len());
        // Without the field they are probabilities.
        let answer = server.post("/classify", &json!({ "input": [folder.tokens] }));
        let sum: f32 = floats(&answer["data"][0]["probs"]).iter().sum();
        assert!((sum - 1.0).abs() < 1e-5, "{answer}");
        n += 1;
    }
    assert_eq!(n, 19);
}

#[test]
fn tokens_have_the_scores_that_transformers_gives() {
    let root = scratch();
    for name in ["bert-tokens", "modern-bert-tokens", "llama-tokens"] {
        let folder = hf::open(name);
        let into = with_vocabulary(&folder, root.path());
        let server = Server::start(&["-m", text(&into)]);
        let body =
            json!({ "input": folder.tokens, "use_activation": false, "task": "token_classify" });
        let answer = server.post("/pooling", &body);
        let rows = |answer: &Value| -> Vec<Vec<f32>> {
            let rows = answer["data"][0]["data"].as_array().expect("an array");
            rows.iter().map(floats).collect()
        };
        let found = rows(&answer);
        assert_eq!(found.len(), folder.tokens.len(), "{name}");
        let error = nmse(&found.concat(), &folder.expected);
        assert!(error < BOUND, "{name}: {error:.1e}");
        assert_eq!(answer["data"][0]["object"], "pooling");
        assert_eq!(answer["labels"][1], "LABEL_1");
        let answer = server.post("/pooling", &json!({ "input": [folder.tokens] }));
        for row in rows(&answer) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{row:?}");
        }
        // Scores of tokens are not those of a text.
        for (path, body, expected) in [
            ("/classify", json!({ "input": "w5" }), "/pooling"),
            ("/v1/embeddings", json!({ "input": "w5" }), "/pooling"),
            (
                "/pooling",
                json!({ "input": "w5", "task": "embed" }),
                "token_classify",
            ),
        ] {
            let (status, answer) = server.json("POST", path, &body);
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(
                status == 400 && message.contains(expected),
                "{path}: {answer}"
            );
        }
        let array = root.path().join(format!("{name}.npy"));
        let tokens: Vec<String> = folder.tokens.iter().map(u32::to_string).collect();
        let tokens = tokens.join(",");
        printed(&[
            "logits",
            "--force",
            "-m",
            text(&into),
            "--tokens",
            &tokens,
            "-o",
            text(&array),
        ]);
        let array = npy::read(&array).expect("an array");
        assert_eq!(array.shape, folder.shape.map(|n| n as u64), "{name}");
    }
}

#[test]
fn models_without_embeddings_pool_their_hidden_states() {
    let root = scratch();
    for (name, task, n) in [("bert", "embed", 64), ("bert-classifier", "classify", 5)] {
        let into = with_vocabulary(&hf::open(name), root.path());
        let server = Server::start(&["-m", text(&into)]);
        let body = json!({ "input": "w5", "task": task });
        let answer = server.post("/pooling", &body);
        assert_eq!(floats(&answer["data"][0]["data"]).len(), n, "{answer}");
    }
}

#[test]
fn vectors_are_the_pooled_states_that_transformers_gives() {
    let root = scratch();
    for name in ["bert", "roberta", "nomic-bert", "modern-bert"] {
        let folder = hf::open(name);
        assert!(folder.output == Output::Hidden, "{name}");
        let into = with_vocabulary(&folder, root.path());
        let server = Server::start(&["-m", text(&into)]);
        let ask = |extra: Value| {
            let body = with(
                json!({ "model": "default", "input": folder.tokens }),
                &extra,
            );
            server.post("/v1/embeddings", &body)
        };
        let answer = ask(json!({ "normalize": false }));
        let vector = floats(&answer["data"][0]["embedding"]);
        let expected = mean(&folder.expected, folder.shape[1]);
        let error = nmse(&vector, &expected);
        println!("{name:24} NMSE {error:.1e}");
        assert!(error < BOUND, "{name}: {error:.1e}");
        assert_eq!(answer["object"], "list");
        assert_eq!(answer["data"][0]["object"], "embedding");
        assert_eq!(answer["usage"]["total_tokens"], folder.tokens.len());

        let coded = ask(json!({ "encoding_format": "base64", "normalize": false }));
        let coded = coded["data"][0]["embedding"].as_str().expect("a text");
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&from_base64(coded)), bits(&vector), "{name}");

        // Cut and of length 1 again.
        let cut = ask(json!({ "dimensions": 8 }));
        let cut = floats(&cut["data"][0]["embedding"]);
        let length = expected[..8].iter().map(|v| v * v).sum::<f64>().sqrt();
        let expected_cut: Vec<f64> = expected[..8].iter().map(|v| v / length).collect();
        assert!(nmse(&cut, &expected_cut) < BOUND, "{name}");
        // The length is 1 unless the request says otherwise.
        let norm = expected.iter().map(|v| v * v).sum::<f64>().sqrt();
        let unit: Vec<f64> = expected.iter().map(|v| v / norm).collect();
        for asked in [json!({}), json!({ "normalize": true })] {
            let found = floats(&ask(asked)["data"][0]["embedding"]);
            let length: f32 = found.iter().map(|v| v * v).sum();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
            assert!(nmse(&found, &unit) < BOUND, "{name}");
        }

        // What is read beside a text does not change its vector.
        let other: Vec<u32> = folder.tokens.iter().rev().copied().collect();
        let inputs: Vec<&[u32]> = (0..40)
            .map(|i| match i % 2 {
                0 => folder.tokens.as_slice(),
                _ => &other[..1 + i % other.len()],
            })
            .collect();
        let many = ask(json!({ "input": inputs, "normalize": false }));
        let many = many["data"].as_array().expect("an array");
        assert_eq!(many.len(), 40);
        for (i, entry) in many.iter().enumerate() {
            assert_eq!(entry["index"], i);
            if i % 2 == 0 {
                let error = nmse(&floats(&entry["embedding"]), &expected);
                assert!(error < BOUND, "{name}, {i}: {error:.1e}");
            }
        }
    }
}

/// A server with the reranker that the classifier is with its first class alone.
fn reranker(root: &Path) -> Server {
    reranker_with(root, &[])
}

fn reranker_with(root: &Path, extra: &[&str]) -> Server {
    let model = of_one_class("bert-classifier", root);
    Server::start(&[extra, &["-m", text(&model)]].concat())
}

/// The folder of a classifier with its first class alone.
fn of_one_class(name: &str, root: &Path) -> PathBuf {
    let into = with_vocabulary(&hf::open(name).of_one_class(), root);
    let path = into.join("config.json");
    let config = std::fs::read(&path).expect("written");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["id2label"] = json!({ "0": "LABEL_0" });
    config["label2id"] = json!({ "LABEL_0": 0 });
    std::fs::write(&path, config.to_string()).expect("writable");
    into
}

const QUERY: &str = "w17 w63 w5";
const DOCUMENTS: [&str; 2] = ["w30 w95", "w88 w42 w9 w71"];
/// Scores of the first class by transformers, of the query with each document.
const SCORES: [f64; 2] = [-0.546_401_202_678_680_4, -0.532_538_115_978_241];

#[test]
fn pairs_have_the_scores_that_transformers_gives() {
    let root = scratch();
    let server = reranker(root.path());
    let close = |found: &Value, expected: f64| {
        let found = found.as_f64().expect("a number");
        assert!(
            (found - expected).abs() < 1e-5 * expected.abs(),
            "{found} is not {expected}"
        );
    };
    let ask = |extra: Value| {
        let body = with(
            json!({ "model": "default", "query": QUERY, "documents": DOCUMENTS }),
            &extra,
        );
        server.post("/v1/rerank", &body)
    };
    let answer = ask(json!({ "return_documents": true }));
    let results = answer["results"].as_array().expect("an array");
    assert_eq!(results.len(), 2);
    let sigmoid = |score: f64| 1.0 / (1.0 + (-score).exp());
    for (entry, index) in results.iter().zip([1, 0]) {
        assert_eq!(entry["index"], index, "the best first: {answer}");
        close(&entry["relevance_score"], sigmoid(SCORES[index]));
        assert_eq!(entry["document"]["text"], DOCUMENTS[index]);
    }
    // The second text has tokens of its own.
    assert_eq!(answer["usage"]["prompt_tokens"], 8 + 10);
    let raw = ask(json!({ "raw_scores": true, "top_n": 1 }));
    assert_eq!(raw["results"].as_array().map(Vec::len), Some(1));
    close(&raw["results"][0]["relevance_score"], SCORES[1]);
    assert_eq!(raw["results"][0].get("document"), None);
    let objects = ask(json!({ "documents": [{ "text": DOCUMENTS[0] }, DOCUMENTS[1]] }));
    assert_eq!(objects["results"][0]["index"], 1);

    let body =
        json!({ "query": QUERY, "texts": DOCUMENTS, "raw_scores": true, "return_text": true });
    let tei = server.post("/rerank", &body);
    close(&tei[0]["score"], SCORES[1]);
    close(&tei[1]["score"], SCORES[0]);
    assert_eq!(tei[1]["text"], DOCUMENTS[0]);
    let body = json!({ "text_1": QUERY, "text_2": DOCUMENTS, "raw_scores": true });
    let scored = server.post("/v1/score", &body);
    close(&scored["data"][0]["score"], SCORES[0]);
    close(&scored["data"][1]["score"], SCORES[1]);

    let none = json!({ "query": QUERY });
    refused(
        &server,
        "/rerank",
        &none,
        "missing_required_parameter",
        "documents",
    );
    let empty = json!({ "query": QUERY, "documents": [] });
    refused(&server, "/v1/rerank", &empty, "invalid_value", "documents");
    let vectors = json!({ "input": "w5" });
    refused(
        &server,
        "/v1/embeddings",
        &vectors,
        "unsupported_model",
        "model",
    );
    let long = json!({ "query": QUERY, "documents": ["w9 ".repeat(100)] });
    refused(
        &server,
        "/v1/rerank",
        &long,
        "context_length_exceeded",
        "documents",
    );
    let chat = json!({ "model": "default", "messages": [{ "role": "user", "content": "w5" }] });
    let (status, answer) = server.json("POST", "/v1/chat/completions", &chat);
    assert_eq!(status, 400, "{answer}");
}

#[test]
fn prompts_of_a_folder_are_put_before_texts() {
    let root = scratch();
    let into = with_vocabulary(&hf::open("bert"), root.path());
    let prompts =
        json!({ "prompts": { "query": "w9 w10 ", "other": "" }, "default_prompt_name": null });
    let path = into.join("config_sentence_transformers.json");
    std::fs::write(path, prompts.to_string()).expect("writable");
    let server = Server::start(&["--strict-fields", "-m", text(&into)]);
    let vector = |body: Value| {
        let answer = server.post("/v1/embeddings", &body);
        answer["data"][0]["embedding"].clone()
    };
    let plain = vector(json!({ "input": "w20" }));
    let whole = vector(json!({ "input": "w9 w10 w20" }));
    assert_ne!(plain, whole);
    assert_eq!(
        vector(json!({ "input": ["w20"], "prompt_name": "query" })),
        whole
    );
    assert_eq!(
        vector(json!({ "input": "w20", "prompt": "w9 w10 " })),
        whole
    );
    assert_eq!(
        vector(json!({ "input": "w20", "prompt_name": "other" })),
        plain
    );
    for (extra, code, param) in [
        (
            json!({ "prompt_name": "nothing" }),
            "invalid_value",
            "prompt_name",
        ),
        (json!({ "dimensions": 0 }), "invalid_value", "dimensions"),
        (
            json!({ "dimensions": 1_000_000 }),
            "invalid_value",
            "dimensions",
        ),
        (
            json!({ "encoding_format": "int8" }),
            "invalid_value",
            "encoding_format",
        ),
        (json!({ "input": [] }), "invalid_type", "input"),
        (json!({ "input": "" }), "invalid_value", "input"),
        (json!({ "input": ["w5", ""] }), "invalid_value", "input[1]"),
        (json!({ "input": [[]] }), "invalid_value", "input"),
        (
            json!({ "input": null }),
            "missing_required_parameter",
            "input",
        ),
        (json!({ "input": {} }), "invalid_type", "input"),
        (json!({ "input": [["w5"]] }), "invalid_type", "input[0][0]"),
        (json!({ "input": ["w5", 7] }), "invalid_type", "input[1]"),
        (json!({ "input": 5 }), "invalid_type", "input"),
        (
            json!({ "encoding_format": 5 }),
            "invalid_type",
            "encoding_format",
        ),
        (json!({ "dimensions": 1.5 }), "invalid_type", "dimensions"),
        (json!({ "dimensions": -1 }), "invalid_type", "dimensions"),
        (
            json!({ "dimensions": 8, "normalize": false }),
            "invalid_value",
            "normalize",
        ),
        (
            json!({ "prompt": "w9".repeat(3000) }),
            "invalid_value",
            "prompt",
        ),
        (
            json!({ "prompt": "w9", "prompt_name": "query" }),
            "invalid_value",
            "prompt_name",
        ),
        (json!({ "truncate": 1 }), "invalid_type", "truncate"),
        (
            json!({ "truncate_prompt_tokens": 0 }),
            "invalid_value",
            "truncate_prompt_tokens",
        ),
        (
            json!({ "truncate_prompt_tokens": 1 }),
            "invalid_value",
            "truncate_prompt_tokens",
        ),
        (
            json!({ "truncation_direction": "left" }),
            "unsupported_parameter",
            "truncation_direction",
        ),
        (
            json!({ "input": "w5 ".repeat(100_000) }),
            "context_length_exceeded",
            "input",
        ),
        (json!({ "stream": true }), "unknown_parameter", "stream"),
        (json!({ "input": [[1, -1]] }), "invalid_type", "input[0][1]"),
        (json!({ "input": [1_000_000] }), "invalid_value", "input"),
        (
            json!({ "input": vec!["w5"; 2049] }),
            "invalid_value",
            "input",
        ),
        (json!({ "dimension": 3 }), "unknown_parameter", "dimension"),
    ] {
        let body = with(json!({ "input": "w20" }), &extra);
        refused(&server, "/v1/embeddings", &body, code, param);
    }
}

#[test]
fn a_model_that_writes_text_gives_vectors_if_it_names_a_pooling() {
    let shipped = Server::start(&[]);
    let body = json!({ "input": "2+2" });
    refused(
        &shipped,
        "/v1/embeddings",
        &body,
        "unsupported_model",
        "model",
    );
    let pair = json!({ "query": "a", "documents": ["b"] });
    refused(&shipped, "/v1/rerank", &pair, "unsupported_model", "model");

    let root = scratch();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-chat");
    for mode in ["mean", "lasttoken"] {
        let into = root.path().join(mode);
        std::fs::create_dir_all(into.join("1_Pooling")).expect("writable");
        for entry in std::fs::read_dir(&source).expect("readable") {
            let path = entry.expect("readable").path();
            std::fs::copy(&path, into.join(path.file_name().expect("a name"))).expect("copied");
        }
        let modules = json!([
            { "idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer" },
            { "idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling" },
        ]);
        std::fs::write(into.join("modules.json"), modules.to_string()).expect("writable");
        let pooling = json!({ "pooling_mode": mode });
        std::fs::write(into.join("1_Pooling/config.json"), pooling.to_string()).expect("writable");

        let tokens: Vec<u32> = (0..100).map(|i| 5 + i % 30).collect();
        let server = Server::start(&["-m", text(&into), "--kv-type", "f32", "--flash-attn", "off"]);
        let found = vector(&server, &json!({ "input": tokens }));
        let out = root.path().join(format!("{mode}.npy"));
        let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
        printed(&[
            "logits",
            "--force",
            "-m",
            text(&into),
            "--tokens",
            &ids.join(","),
            "--embedding",
            "-o",
            text(&out),
        ]);
        let expected = parse_npy(&std::fs::read(&out).expect("written")).values;
        let error = nmse(&found, &expected);
        assert!(error < BOUND, "{mode}: {error:.1e}");
        // It still writes.
        let body = json!({ "model": "default", "prompt": "2+2=", "max_tokens": 3 });
        server.post("/v1/completions", &body);
    }
}

/// The first vector of an answer, as the model has it.
fn vector(server: &Server, body: &Value) -> Vec<f32> {
    let body = with(body.clone(), &json!({ "normalize": false }));
    floats(&server.post("/v1/embeddings", &body)["data"][0]["embedding"])
}

/// Lists of token ids of many lengths.
fn lists(n: usize, n_ctx: usize) -> Vec<Vec<u32>> {
    let token = |i: usize, at: usize| 5 + ((i * 31 + at * at * 7 + at) % 91) as u32;
    let list = |i: usize| (0..1 + (i * 17) % n_ctx).map(|at| token(i, at)).collect();
    (0..n).map(list).collect()
}

#[test]
fn vectors_are_those_of_bench_logits_and_those_of_texts_alone() {
    let root = scratch();
    let into = with_vocabulary(&hf::open("bert"), root.path());
    let reference = Server::start(&["-m", text(&into), "--kv-type", "f32", "--flash-attn", "off"]);
    let close = |found: &[f32], expected: &[f32], what: &str| {
        assert_eq!(found.len(), expected.len());
        let length = expected.iter().map(|v| v * v).sum::<f32>().sqrt();
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() <= 1e-6 * length,
                "{what}: {found} is not {expected}"
            );
        }
    };
    let lists = lists(20, 64);
    let out = root.path().join("vector.npy");
    for list in &lists[..4] {
        let ids: Vec<String> = list.iter().map(u32::to_string).collect();
        let ids = ids.join(",");
        printed(&[
            "logits",
            "--force",
            "-m",
            text(&into),
            "--tokens",
            &ids,
            "--embedding",
            "-o",
            text(&out),
        ]);
        let expected = parse_npy(&std::fs::read(&out).expect("written")).values;
        let expected: Vec<f32> = expected.iter().map(|v| *v as f32).collect();
        let found = vector(&reference, &json!({ "input": list }));
        close(&found, &expected, "bench logits");
    }
    let many = |server: &Server| {
        let body = json!({ "input": lists, "normalize": false });
        let answer = server.post("/v1/embeddings", &body);
        let data = answer["data"].as_array().expect("an array").iter();
        data.map(|entry| floats(&entry["embedding"]))
            .collect::<Vec<_>>()
    };
    for (list, together) in lists.iter().zip(many(&reference)) {
        let alone = vector(&reference, &json!({ "input": list }));
        close(&together, &alone, "alone");
    }
}

#[test]
fn a_masked_language_model_gives_vectors_of_its_hidden_states() {
    let root = scratch();
    let into = with_vocabulary(&hf::open("bert-masked"), root.path());
    let server = Server::start(&["-m", text(&into), "--kv-type", "f32", "--flash-attn", "off"]);
    let out = root.path().join("vector.npy");
    let ids = "5,17,63,9";
    let from = ["logits", "-m", text(&into), "--tokens", ids, "--embedding"];
    printed(&[&from[..], &["-o", text(&out)]].concat());
    let expected = parse_npy(&std::fs::read(&out).expect("written")).values;
    let found = vector(&server, &json!({ "input": [5, 17, 63, 9] }));
    assert_eq!(found.len(), 48);
    // The server divides vectors by their length.
    let length = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let found: Vec<f64> = found.iter().map(|v| f64::from(*v)).collect();
    let (a, b) = (length(&found), length(&expected));
    let pairs = found.iter().zip(&expected);
    let error: f64 = pairs.map(|(x, y)| (x / a - y / b).abs()).sum();
    assert!(error < 1e-4, "{error}");
}

fn words(ids: impl IntoIterator<Item = usize>) -> String {
    let all: Vec<String> = ids.into_iter().map(|id| format!("w{id}")).collect();
    all.join(" ")
}

#[test]
fn texts_that_are_too_long_are_cut_if_that_is_asked_for() {
    let root = scratch();
    let into = with_vocabulary(&hf::open("bert"), root.path());
    let server = Server::start(&["-m", text(&into)]);
    let long: Vec<usize> = (0..100).map(|i| 5 + i * 7 % 90).collect();
    let of = |n: usize| {
        let inner = long[..n - 2].iter().map(|id| *id as u32);
        let tokens: Vec<u32> = [1].into_iter().chain(inner).chain([2]).collect();
        vector(&server, &json!({ "input": tokens }))
    };
    for (extra, n) in [
        (json!({ "truncate": true }), 64),
        (json!({ "truncate_prompt_tokens": -1 }), 64),
        (
            json!({ "truncate_prompt_tokens": 10, "truncation_direction": "Right" }),
            10,
        ),
        (json!({ "truncate_prompt_tokens": 3 }), 3),
    ] {
        let input = words(long.iter().copied());
        let body = with(json!({ "input": input, "normalize": false }), &extra);
        let answer = server.post("/v1/embeddings", &body);
        assert_eq!(answer["usage"]["prompt_tokens"], n, "{extra}");
        assert_eq!(floats(&answer["data"][0]["embedding"]), of(n), "{extra}");
    }

    // Of a pair the longer text is cut.
    let server = reranker(root.path());
    let scores = |query: String, document: String| {
        let body = json!({
            "query": query, "texts": [document], "raw_scores": true, "truncate": true,
        });
        server.post("/rerank", &body)[0]["score"]
            .as_f64()
            .expect("a number")
    };
    let whole = || words(long.iter().copied());
    let cut = |n: usize| words(long[..n].iter().copied());
    assert_eq!(scores(cut(5), whole()), scores(cut(5), cut(64 - 3 - 5)));
    assert_eq!(scores(whole(), cut(5)), scores(cut(64 - 3 - 5), cut(5)));
    assert_eq!(scores(whole(), whole()), scores(cut(30), cut(31)));
    assert_ne!(scores(cut(5), whole()), scores(cut(5), cut(20)));
}

#[test]
fn tokens_of_the_second_text_of_a_pair_are_of_type_1() {
    let root = scratch();
    let server = reranker(root.path());
    let body = json!({ "text_1": QUERY, "text_2": DOCUMENTS[0], "raw_scores": true });
    let typed = server.post("/v1/score", &body);
    let typed = typed["data"][0]["score"].as_f64().expect("a number");
    // The same tokens as one text, all of type 0.
    let tokens = [1, 17, 63, 5, 2, 30, 95, 2];
    let body = json!({ "input": tokens, "use_activation": false });
    let plain = server.post("/classify", &body);
    let plain = plain["data"][0]["probs"][0].as_f64().expect("a number");
    assert!((typed - SCORES[0]).abs() < 1e-5, "{typed}");
    assert!(
        (plain - typed).abs() > 1e-3,
        "{plain} without types, {typed} with them"
    );
}

/// The form of an answer: texts and whole numbers stay, other numbers and what differs each time do not.
pub(crate) fn shape(value: &Value) -> Value {
    let is_float = |value: &Value| value.as_f64().is_some() && !value.is_u64() && !value.is_i64();
    match value {
        Value::Array(all) if !all.is_empty() && all.iter().all(is_float) => {
            json!(format!("<{} numbers>", all.len()))
        }
        Value::Array(all) => all.iter().map(shape).collect(),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                let value = match (name.as_str(), value) {
                    ("id", Value::String(id)) if id.contains('-') && id.len() > 16 => {
                        json!(format!("{}-<id>", id.split('-').next().unwrap_or_default()))
                    }
                    ("embedding", Value::String(text)) => {
                        json!(format!("<{} characters>", text.len()))
                    }
                    ("created", _) => json!("<time>"),
                    ("system_fingerprint", Value::String(_)) => json!("<fingerprint>"),
                    ("compute", Value::Number(_)) => json!("<bytes>"),
                    ("build_info", _) => json!("<build>"),
                    ("model_path", _) => json!("<path>"),
                    _ => shape(value),
                };
                (name.clone(), value)
            };
            Value::Object(fields.iter().map(field).collect())
        }
        Value::String(text) if text.len() > 200 => json!(format!("<{} characters>", text.len())),
        value if is_float(value) => json!("<number>"),
        value => value.clone(),
    }
}

#[test]
fn answers_have_their_shapes() {
    let root = scratch();
    let vectors = Server::start(&[
        "--strict-model",
        "-m",
        text(&with_vocabulary(&hf::open("bert"), root.path())),
    ]);
    let scores = reranker(root.path());
    let pair = json!({ "model": "default", "query": QUERY, "documents": DOCUMENTS });
    let with = |extra: &Value| with(pair.clone(), extra);
    let tei = json!({ "query": QUERY, "texts": DOCUMENTS, "return_text": true });
    let none = Value::Null;
    let mut out = String::new();
    for (server, method, path, body) in [
        (
            &vectors,
            "POST",
            "/v1/embeddings",
            json!({ "input": ["w5", "w6 w7"] }),
        ),
        (
            &vectors,
            "POST",
            "/v1/embeddings",
            json!({ "input": [5, 6], "encoding_format": "base64", "dimensions": 8 }),
        ),
        (&vectors, "POST", "/v1/embeddings", json!({ "input": [] })),
        (&vectors, "POST", "/v1/rerank", pair.clone()),
        (
            &vectors,
            "POST",
            "/v1/embeddings",
            json!({ "model": "berd", "input": "w5" }),
        ),
        (
            &vectors,
            "POST",
            "/v1/completions",
            json!({ "model": "default", "prompt": "w5" }),
        ),
        (&vectors, "GET", "/v1/models", none.clone()),
        (&vectors, "GET", "/props", none.clone()),
        (&scores, "POST", "/v1/rerank", pair.clone()),
        (
            &scores,
            "POST",
            "/v2/rerank",
            with(&json!({ "return_documents": true, "top_n": 1 })),
        ),
        (&scores, "POST", "/rerank", tei),
        (
            &scores,
            "POST",
            "/v1/score",
            json!({ "text_1": QUERY, "text_2": DOCUMENTS }),
        ),
        (&scores, "POST", "/classify", json!({ "input": "w5" })),
        (&scores, "POST", "/v1/embeddings", json!({ "input": "w5" })),
        (&scores, "GET", "/v1/models/bert-classifier", none),
    ] {
        let (status, answer) = server.json(method, path, &body);
        let answer = serde_json::to_string_pretty(&shape(&answer)).expect("JSON");
        out += &format!("{method} {path} {body}\n{status} {answer}\n\n");
    }
    insta::assert_snapshot!("pooled_shapes", out);
}

/// Routes of texts, each with a body that is served by a model for it.
fn routes() -> [(&'static str, Value); 9] {
    let pair = json!({ "query": QUERY, "documents": DOCUMENTS });
    let two = json!({ "text_1": QUERY, "text_2": DOCUMENTS });
    [
        ("/v1/embeddings", json!({ "input": "w5" })),
        ("/embeddings", json!({ "input": "w5" })),
        ("/v1/rerank", pair.clone()),
        ("/v1/reranking", pair.clone()),
        ("/v2/rerank", pair.clone()),
        ("/rerank", pair.clone()),
        ("/reranking", pair),
        ("/v1/score", two.clone()),
        ("/score", two),
    ]
}

fn check_error(status: u16, answer: &str, expected: u16, code: &str) {
    let answer: Value = serde_json::from_str(answer).unwrap_or_else(|e| panic!("{e}: {answer}"));
    assert_eq!(
        (status, answer["error"]["code"].as_str()),
        (expected, Some(code)),
        "{answer}"
    );
    let error = answer["error"].as_object().expect("an object");
    let mut keys: Vec<&str> = error.keys().map(String::as_str).collect();
    keys.sort_unstable();
    // How long a prompt is that does not fit is part of its error.
    let mut expected = vec!["code", "message", "param", "type"];
    if code == "context_length_exceeded" {
        expected.splice(2..2, ["n_ctx", "n_prompt_tokens"]);
    }
    assert_eq!(keys, expected);
    assert!(
        error["param"].is_string() || error["param"].is_null(),
        "{answer}"
    );
    assert!(answer.to_string().len() < 1000, "{answer}");
}

#[test]
fn client_errors_are_4xx_in_one_shape() {
    let root = scratch();
    let model = with_vocabulary(&hf::open("bert"), root.path());
    let server = Server::start(&["--strict-fields", "-m", text(&model)]);
    let json = "application/json";
    let send =
        |method: &str, path: &str, kind: &str, body: &str| server.raw(method, path, kind, body);
    let deep = format!(
        "{{\"input\": {}{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let long_key = format!("{{\"{}\": 1, \"input\": \"w5\"}}", "k".repeat(3_000_000));
    for (path, good) in routes()
        .iter()
        .chain([&("/classify", json!({ "input": "w5" }))])
    {
        let faults = [
            ("POST", json, "", 400, "invalid_json"),
            ("POST", json, "[]", 400, "invalid_json"),
            ("POST", json, "{\"input\": ", 400, "invalid_json"),
            ("POST", json, deep.as_str(), 400, "invalid_json"),
            ("POST", json, "{}", 400, "missing_required_parameter"),
            ("POST", "text/plain", "{}", 415, "unsupported_content_type"),
            ("GET", json, "", 405, "method_not_allowed"),
        ];
        for (method, kind, body, status, code) in faults {
            let (found, head, answer) = send(method, path, kind, body);
            check_error(found, &answer, status, code);
            // Nothing of this is better a second time.
            assert!(
                !head.contains("retry-after") && !head.contains("x-should-retry: true"),
                "{head}"
            );
        }
        let mut unknown = good.clone();
        unknown["no_such_field"] = json!(1);
        let (status, _, answer) = send("POST", path, json, &unknown.to_string());
        check_error(status, &answer, 400, "unknown_parameter");
    }
    let start = std::time::Instant::now();
    let huge = format!("{{}}{}", " ".repeat((64 << 20) - 1));
    let (status, _, answer) = send("POST", "/v1/embeddings", json, &huge);
    check_error(status, &answer, 413, "request_too_large");
    let (status, _, answer) = send("POST", "/v1/embeddings", json, &long_key);
    check_error(status, &answer, 400, "unknown_parameter");
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    // A model of vectors has no scores and writes no text.
    for (path, body) in &routes()[2..] {
        let (status, _, answer) = send("POST", path, json, &body.to_string());
        check_error(status, &answer, 400, "unsupported_model");
    }
    let text = json!({ "model": "default", "prompt": "w5" }).to_string();
    let (status, _, answer) = send("POST", "/v1/completions", json, &text);
    check_error(status, &answer, 400, "unsupported_model");
}

#[test]
fn models_are_found_by_name_and_default_is_the_only_one() {
    let root = scratch();
    let model = with_vocabulary(&hf::open("bert"), root.path());
    let vectors = Server::start(&["--strict-model", "-m", text(&model)]);
    let scores = reranker_with(root.path(), &["--strict-model"]);
    for (path, body) in routes() {
        let server = if path.contains("embeddings") {
            &vectors
        } else {
            &scores
        };
        for (model, expected) in [
            (json!("default"), 200),
            (Value::Null, 200),
            (json!("no-such-model"), 404),
            (json!("m".repeat(1_000_000)), 404),
            (json!(5), 400),
        ] {
            let mut body = body.clone();
            body["model"] = model;
            let (status, answer) = server.json("POST", path, &body);
            assert_eq!(status, expected, "{path}: {answer}");
            assert!(
                expected == 200 || answer["error"]["param"] == "model",
                "{answer}"
            );
            assert!(
                expected == 200 || answer.to_string().len() < 1000,
                "{answer}"
            );
        }
    }
}

/// Long first texts are read once, however many second ones there are.
#[test]
fn rerank_cost_is_linear_in_query_and_documents() {
    let root = scratch();
    let server = reranker(root.path());
    let start = std::time::Instant::now();
    let query = "w9 ".repeat(300_000);
    let body = json!({ "query": query, "documents": vec!["w5"; 2048] });
    let (status, answer) = server.json("POST", "/v1/rerank", &body);
    check_error(status, &answer.to_string(), 400, "context_length_exceeded");
    assert_eq!(answer["error"]["param"], "query");
    let body = json!({ "query": QUERY, "documents": vec!["w5"; 2049] });
    refused(&server, "/v1/rerank", &body, "invalid_value", "documents");
    let body = json!({ "text_1": vec!["w5"; 3], "text_2": vec!["w5"; 2] });
    refused(&server, "/v1/score", &body, "invalid_value", "text_1");
    let took = start.elapsed();
    assert!(took.as_secs() < 60, "{took:?}");
    // As many as may be are all served, though fewer may wait.
    let body = json!({ "query": QUERY, "documents": vec!["w5 w6"; 2048] });
    let answer = server.post("/v1/rerank", &body);
    let results = answer["results"].as_array().expect("an array");
    let mut indices: Vec<u64> = results.iter().filter_map(|r| r["index"].as_u64()).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..2048).collect::<Vec<u64>>());
    let score = |result: &Value| result["relevance_score"].as_f64().expect("a number");
    let (best, worst) = (score(&results[0]), score(&results[2047]));
    assert!(best >= worst && best - worst < 1e-6, "{best} {worst}");
}

#[test]
fn token_ids_need_no_tokenizer() {
    let root = scratch();
    let model = made_up(root.path(), "bert", &[]);
    let server = Server::start(&[
        "-m",
        text(&model),
        "--kv-type",
        "f32",
        "--flash-attn",
        "off",
    ]);
    let out = root.path().join("vector.npy");
    let logits = ["logits", "-m", text(&model), "--tokens", "5,6,7,9"];
    printed(&[&logits[..], &["--embedding", "-o", text(&out)]].concat());
    let expected = parse_npy(&std::fs::read(&out).expect("written")).values;
    let found = vector(&server, &json!({ "input": [5, 6, 7, 9], "truncate": true }));
    assert!(nmse(&found, &expected) < 1e-12);
    let body = json!({ "input": "five" });
    refused(&server, "/v1/embeddings", &body, "invalid_value", "input");
    // As many as fit, and no more.
    let (_, model) = server.json("GET", "/v1/models/bert", &Value::Null);
    let n_ctx = model["max_model_len"].as_u64().expect("a number") as usize;
    vector(&server, &json!({ "input": vec![5; n_ctx] }));
    let long = json!({ "input": vec![5; n_ctx + 1] });
    refused(
        &server,
        "/v1/embeddings",
        &long,
        "context_length_exceeded",
        "input",
    );
}

#[test]
fn a_template_makes_one_text_of_a_pair() {
    let root = scratch();
    let into = of_one_class("llama-classifier", root.path());
    let more = into.join("additional_chat_templates");
    std::fs::create_dir(&more).expect("writable");
    let template = "w9 {query} w10 {document} w11";
    std::fs::write(more.join("rerank.jinja"), template).expect("writable");
    std::fs::write(into.join("chat_template.jinja"), "w5").expect("writable");
    let server = Server::start(&["-m", text(&into)]);
    let ask = |documents: &[&str]| {
        let body = json!({ "query": "w17 w63", "documents": documents, "raw_scores": true });
        let answer = server.post("/v1/rerank", &body);
        let mut results = answer["results"].as_array().expect("an array").clone();
        results.sort_by_key(|result| result["index"].as_u64());
        let score = |result: &Value| result["relevance_score"].as_f64().expect("a number");
        results.iter().map(score).collect::<Vec<_>>()
    };
    let one_text = |tokens: &[u32]| {
        let body = json!({ "input": tokens, "use_activation": false });
        let answer = server.post("/classify", &body);
        answer["data"][0]["probs"][0].as_f64().expect("a number")
    };
    let found = ask(&["w30", "w88 w42"]);
    let expected = [
        one_text(&[9, 17, 63, 10, 30, 11]),
        one_text(&[9, 17, 63, 10, 88, 42, 11]),
    ];
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() < 1e-6 * expected.abs(),
            "{found} is not {expected}"
        );
    }
    assert!((found[0] - found[1]).abs() > 1e-3, "{found:?}");
}
