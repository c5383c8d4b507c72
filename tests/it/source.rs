//! Models that read a source: what is kept of it, when it is shared, and how prompts become one.

use lab_base::weights::{Array, StringArray, Value};
use lab_core::model::{Batch, Model, Options};
use serde_json::json;

use crate::contact::rewritten;
use crate::goldens::{EXACT, Golden, golden, model as load, options};
use crate::support::command::{bench, scratch, text};
use crate::support::nmse;
use crate::support::server::Server;

fn small() -> Options {
    Options {
        n_ctx: 256,
        n_batch: 64,
        n_seqs: 3,
        flash_attn: true,
        ..options()
    }
}

/// Logits of the tokens of a sequence from where it goes on, in passes of at most `step` tokens.
fn read(model: &mut Model, sequence: u32, tokens: &[u32], step: usize) -> Vec<f32> {
    let mut out = Vec::new();
    while (model.next(sequence) as usize) < tokens.len() {
        let next = model.next(sequence) as usize;
        let mut batch = Batch::default();
        for (at, token) in tokens.iter().enumerate().skip(next).take(step) {
            batch.push(*token, sequence, at as u32, true);
        }
        out.extend_from_slice(model.forward(&batch).expect("the pass runs"));
    }
    out
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// What was computed of a text is used again after the same source, and after no other.
#[test]
fn a_prefix_is_shared_after_the_same_source_alone() {
    let golden = golden("t5");
    let (tokens, source) = (&golden.tokens, &golden.source);
    // Of the same length, the last token apart; one token longer; one token shorter.
    let mut other = source.clone();
    *other.last_mut().expect("a source") += 1;
    let longer = [source.as_slice(), &[5]].concat();
    let shorter = &source[..source.len() - 1];
    for flash_attn in [true, false] {
        let settings = Options {
            flash_attn,
            ..small()
        };
        let mut model = load(golden, settings.clone());
        model.set_source(0, source).expect("it is sound");
        let first = read(&mut model, 0, tokens, 64);
        assert!(nmse(&first, &golden.expected) <= EXACT);
        for ended in [false, true] {
            if ended {
                model.release(0);
            }
            for (id, source) in [(1, other.as_slice()), (1, &longer), (1, shorter)] {
                model.set_source(id, source).expect("it is sound");
                // In the second round it was read after this source before.
                let n_known = model.resume(id, tokens).n_cached;
                let expected = if ended { tokens.len() - 1 } else { 0 };
                assert_eq!(n_known, expected, "{source:?}");
                let found = read(&mut model, id, tokens, 7);
                let mut alone = load(golden, settings.clone());
                alone.set_source(0, source).expect("it is sound");
                let expected = wide(&read(&mut alone, 0, tokens, 64));
                let n = expected.len() - found.len();
                assert!(nmse(&found, &expected[n..]) <= EXACT, "{source:?}");
                assert!(nmse(&first, &expected) > 1e-3, "{source:?}");
                model.release(id);
            }
            model.set_source(2, source).expect("it is sound");
            let known = model.resume(2, tokens);
            // Of a sequence that runs whole blocks of source and tokens together are known.
            let whole = (source.len() + tokens.len()) / 16 * 16 - source.len();
            let expected = if ended { tokens.len() - 1 } else { whole };
            assert_eq!(known.n_cached, expected, "{}", known.miss);
            let found = read(&mut model, 2, tokens, 3);
            let n = golden.expected.len() - found.len();
            assert!(nmse(&found, &golden.expected[n..]) <= EXACT);
            model.release(2);
        }
    }
}

/// A source that takes more than there is leaves nothing behind, and one that is refused is not read.
#[test]
fn a_source_that_cannot_be_read_is_refused() {
    let golden = golden("t5");
    let mut model = load(golden, small());
    let n_batch = model.options().n_batch;
    for (source, said) in [
        (Vec::new(), "found 0 tokens, expected 1 to 64 tokens"),
        (
            vec![1; n_batch + 1],
            "found 65 tokens, expected 1 to 64 tokens",
        ),
        (
            vec![1, 96],
            "found the token 96, which is not in the vocabulary, expected ids below 96",
        ),
    ] {
        model.set_source(1, &golden.source).expect("it is sound");
        let error = model.set_source(1, &source).expect_err(said).to_string();
        assert!(error.ends_with(said), "{error}");
    }
    let free = model.free_slots();
    let long = Options {
        n_ctx: 32,
        ..small()
    };
    let mut full = load(golden, long);
    full.set_source(0, &[1; 30]).expect("it is sound");
    read(&mut full, 0, &[1, 2], 2);
    let mut batch = Batch::default();
    batch.push(3, 0, 2, true);
    let error = full.forward(&batch).expect_err("it is full").to_string();
    assert!(error.contains("the cache is full"), "{error}");
    full.release(0);
    assert_eq!(full.free_slots(), 32);
    assert_eq!(model.free_slots(), free);

    let plain = self::golden("llama");
    let mut plain = load(plain, small());
    let error = plain.set_source(0, &[1]).expect_err("it reads none");
    let said =
        "the source of a sequence: found a source, expected none: the model reads tokens alone";
    assert_eq!(error.to_string(), said);
}

#[test]
fn a_sequence_without_a_source_is_not_computed() {
    let scratch = scratch();
    let golden = golden("t5");
    let path = text(&golden.write(scratch.path())).to_owned();
    let out = text(&scratch.path().join("out.npy")).to_owned();
    let ids: Vec<String> = golden.tokens.iter().map(u32::to_string).collect();
    let source: Vec<String> = golden.source.iter().map(u32::to_string).collect();
    let (ids, source) = (ids.join(","), source.join(","));
    let arguments = [
        "logits", "--force", "-m", &path, "--tokens", &ids, "-o", &out,
    ];
    let ran = bench(&arguments);
    let said = "found none of sequence 0, expected one: the model reads it before the first token";
    assert!(ran.code == 1 && ran.err.contains(said), "{}", ran.err);
    for more in [vec![], vec!["--chunk", "5"], vec!["--stateless"]] {
        let arguments = [&arguments[..], &["--source", &source], &more].concat();
        let ran = bench(&arguments);
        assert!(ran.is_fine(), "{}", ran.err);
        let found = std::fs::read(&out).expect("it was written");
        let found = crate::support::parse_npy(&found).values;
        let found: Vec<f32> = found.iter().map(|v| *v as f32).collect();
        assert!(nmse(&found, &golden.expected) <= EXACT, "{more:?}");
    }
}

/// A model of a golden with a vocabulary of its own, as a file.
fn with_vocabulary(golden: &Golden, path: &std::path::Path) {
    let n = 96;
    let mut pieces = StringArray::default();
    for id in 0..n {
        match id {
            0 => pieces.push(b"<pad>"),
            1 => pieces.push(b"</s>"),
            2 => pieces.push(b"<unk>"),
            id => pieces.push(format!("\u{2581}w{id}").as_bytes()),
        }
    }
    let mut metadata = golden.weights.metadata().clone();
    let kinds = (0..n).map(|id| match id {
        0 | 1 => 3,
        2 => 2,
        _ => 1,
    });
    metadata.insert("tokenizer.ggml.model", Value::Str("t5".into()));
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::Str(pieces)));
    metadata.insert(
        "tokenizer.ggml.token_type",
        Value::Array(Array::I32(kinds.collect())),
    );
    metadata.insert(
        "tokenizer.ggml.scores",
        Value::Array(Array::F32(vec![-1.0; n])),
    );
    for (key, id) in [("eos", 1), ("unknown", 2), ("padding", 0)] {
        metadata.insert(format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
    }
    metadata.insert("tokenizer.ggml.add_eos_token", Value::Bool(true));
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(true));
    rewritten(path, &golden.weights, &metadata, usize::MAX);
}

/// The likeliest tokens one after the other.
fn greedy(model: &mut Model, start: u32, n: usize) -> Vec<u32> {
    let mut tokens = vec![start];
    for at in 0..n {
        let mut batch = Batch::default();
        batch.push(tokens[at], 9, at as u32, true);
        let logits = model.forward(&batch).expect("the pass runs");
        // The end of the text is left out, as by `ignore_eos`.
        let others = logits.iter().enumerate().filter(|(id, _)| *id != 1);
        let best = others.max_by(|a, b| a.1.total_cmp(b.1));
        tokens.push(best.expect("a vocabulary").0 as u32);
    }
    tokens.split_off(1)
}

/// A prompt is the source, the completion starts with the model's token, and what is counted is the prompt.
#[test]
fn prompts_are_read_as_the_source() {
    let scratch = scratch();
    let golden = golden("t5");
    let path = scratch.path().join("served.gguf");
    with_vocabulary(golden, &path);
    let server = Server::start(&["-m", text(&path), "--kv-type", "f32"]);
    let prompts: [&[u32]; 3] = [
        &[11, 92, 7, 7, 58, 1],
        &[12, 92, 7, 7, 58, 1],
        &golden.source,
    ];
    let mut answers = Vec::new();
    for prompt in prompts {
        let mut model = load(golden, small());
        model.set_source(9, prompt).expect("it is sound");
        let expected = greedy(&mut model, 3, 8);
        for _ in 0..2 {
            let body =
                json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true });
            let (status, answer) = server.json("POST", "/v1/completions", &body);
            assert_eq!(status, 200, "{answer}");
            let words = expected.iter().map(|id| match id {
                0 => "<pad>".to_owned(),
                id => format!("w{id}"),
            });
            let words = words.collect::<Vec<_>>().join(" ");
            let found = answer["choices"][0]["text"].as_str().expect("a text");
            assert_eq!(found.trim(), words, "{prompt:?}");
            assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
            answers.push(found.to_owned());
        }
    }
    assert_ne!(answers[0], answers[2], "another source, another completion");
    // Text becomes a source with its end of text.
    let body = json!({ "prompt": "w11 w92 w7 w7 w58", "max_tokens": 8, "temperature": 0, "ignore_eos": true });
    let (_, answer) = server.json("POST", "/v1/completions", &body);
    assert_eq!(
        answer["choices"][0]["text"].as_str(),
        Some(answers[0].as_str())
    );
    assert_eq!(answer["usage"]["prompt_tokens"], 6);
    for (field, body) in [
        ("prompt", json!({ "prompt": vec![5; 300], "max_tokens": 1 })),
        (
            "prompt_logprobs",
            json!({ "prompt": [5, 6], "max_tokens": 1, "prompt_logprobs": 1 }),
        ),
    ] {
        let (status, answer) = server.json("POST", "/v1/completions", &body);
        assert_eq!(status, 400, "{field}: {answer}");
    }
    let (status, answer) = server.json("POST", "/v1/embeddings", &json!({ "input": [5, 6] }));
    assert_eq!(status, 400, "{answer}");
    let ran = bench(&[
        "run",
        "-m",
        text(&path),
        "--temperature",
        "0",
        "-n",
        "4",
        "w11 w92 w7 w7 w58",
    ]);
    assert!(ran.is_fine(), "{}", ran.err);
    assert!(answers[0].trim().starts_with(ran.out.trim()), "{}", ran.out);
}
