//! Text diffusion over HTTP and on the command line, with the shipped diffusion model.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::command::{Ran, bench, scratch};
use crate::support::server::Server;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models")
}

fn model() -> String {
    models().join("tiny-diffusion.gguf").display().to_string()
}

fn start(extra: &[&str]) -> Server {
    let model = model();
    Server::start(&[&["-m", &model], extra].concat())
}

/// A question for the diffusion model.
fn question(text: &str, extra: &Value) -> Value {
    let mut body = json!({
        "model": "default", "messages": [{ "role": "user", "content": text }], "temperature": 0, "max_tokens": 32,
        "diffusion": { "steps": 16, "block_length": 32 },
    });
    for (key, value) in extra.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    body
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn a_text_forms_step_by_step_and_is_streamed_from_the_left() {
    let server = start(&[]);
    let extra = json!({ "logprobs": true, "top_logprobs": 2 });
    let (status, whole) = server.chat(question("2+2=?", &extra));
    assert_eq!(status, 200, "{whole}");
    assert!(text(&whole).ends_with('4'), "{whole}");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let used = &whole["usage"]["diffusion"];
    let n_passes = used["passes"].as_u64().expect("passes");
    assert!((1..=16).contains(&n_passes), "{whole}");
    let n_prompt = whole["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert_eq!(used["positions"], n_passes * (n_prompt + 32));

    let extra = json!({ "diffusion_trace": true, "logprobs": true, "stream_options": { "include_usage": true } });
    let events = server.stream(question("2+2=?", &extra));
    let (mut formed, mut streamed, mut steps) = (vec![None; 32], String::new(), 0);
    let mut told = Vec::new();
    for event in &events[..events.len() - 1] {
        let event: Value = serde_json::from_str(event).expect("JSON");
        if let Some(piece) = event["choices"][0]["delta"]["content"].as_str() {
            streamed.push_str(piece);
            let entries = event["choices"][0]["logprobs"]["content"].as_array();
            told.extend(entries.into_iter().flatten().cloned());
            // Nothing is released before all that is to its left is fixed.
            let known: String = formed
                .iter()
                .map_while(|t: &Option<String>| t.as_deref())
                .collect();
            assert!(known.starts_with(&streamed), "{streamed:?} of {known:?}");
        }
        let step = &event["diffusion"];
        if step.is_null() {
            continue;
        }
        assert_eq!((&step["index"], &step["step"]), (&json!(0), &json!(steps)));
        steps += 1;
        for fixed in step["fixed"].as_array().expect("a list") {
            let at = fixed["position"].as_u64().expect("a place") as usize;
            let old = formed[at].replace(fixed["token"].as_str().expect("a text").to_owned());
            assert_eq!(old, None, "fixed once");
            let (confidence, logprob) = (&fixed["confidence"], &fixed["logprob"]);
            let p = logprob.as_f64().expect("a number").exp();
            assert!((confidence.as_f64().expect("a number") - p).abs() < 1e-12);
        }
        let n_masked = formed.iter().filter(|t| t.is_none()).count();
        assert_eq!(step["masked"], n_masked);
    }
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    assert_eq!(streamed, text(&whole));
    assert_eq!(steps, n_passes);
    let bytes = |entries: &[Value]| -> Vec<Value> {
        entries
            .iter()
            .flat_map(|e| e["bytes"].as_array().expect("bytes").clone())
            .collect()
    };
    assert_eq!(
        bytes(&told),
        streamed.bytes().map(Value::from).collect::<Vec<_>>()
    );
}

#[test]
fn unsupported_operations_are_refused_by_name() {
    let server = start(&[]);
    for (extra, code, param) in [
        (
            json!({ "diffusion": { "step": 3 } }),
            "unknown_parameter",
            "diffusion.step",
        ),
        (
            json!({ "diffusion": { "steps": 0 } }),
            "invalid_value",
            "diffusion.steps",
        ),
        (
            json!({ "diffusion": { "steps": "8" } }),
            "invalid_type",
            "diffusion.steps",
        ),
        (
            json!({ "diffusion": { "block_length": 0 } }),
            "invalid_value",
            "diffusion.block_length",
        ),
        (
            json!({ "diffusion": { "remasking": "best" } }),
            "invalid_value",
            "diffusion.remasking",
        ),
        (
            json!({ "diffusion": { "cfg_scale": -1 } }),
            "invalid_value",
            "diffusion.cfg_scale",
        ),
        (
            json!({ "diffusion": { "threshold": 2 } }),
            "invalid_value",
            "diffusion.threshold",
        ),
        (
            json!({ "diffusion_trace": true }),
            "invalid_value",
            "diffusion_trace",
        ),
        (
            json!({ "repeat_penalty": 1.2 }),
            "invalid_value",
            "repeat_penalty",
        ),
        (
            json!({ "response_format": { "type": "json_object" } }),
            "unsupported_parameter",
            "response_format",
        ),
    ] {
        server.refused(question("2+2=?", &extra), 400, code, param);
    }
    let other = Server::start(&[]);
    let asked = |extra: Value| question("2+2=?", &extra);
    other.refused(asked(json!({})), 400, "unsupported_parameter", "diffusion");
    let traced = json!({ "diffusion": null, "diffusion_trace": true, "stream": true });
    other.refused(
        asked(traced),
        400,
        "unsupported_parameter",
        "diffusion_trace",
    );
}

#[test]
fn settings_of_the_server_hold_where_a_request_says_nothing() {
    let server = start(&["--steps", "4", "--block-length", "16"]);
    let passes = |extra: Value| {
        let (status, answer) = server.chat(question("Hello!", &extra));
        assert_eq!(status, 200, "{answer}");
        answer["usage"]["diffusion"]["passes"]
            .as_u64()
            .expect("a number")
    };
    assert!(passes(json!({ "diffusion": null })) <= 4);
    assert!(passes(json!({ "diffusion": { "steps": 32, "block_length": 1 } })) > 4);
}

#[test]
fn both_kinds_of_models_answer_at_once_as_they_do_alone() {
    let folder = scratch();
    for name in ["tiny-chat.gguf", "tiny-diffusion.gguf"] {
        std::fs::copy(models().join(name), folder.path().join(name)).expect("copied");
    }
    let server = Server::start(&["--models", &folder.path().display().to_string()]);
    let asked = |i: usize| {
        let sum = format!("{}+{}=?", 10 + i, 3 * i);
        let mut body = question(&sum, &json!({ "seed": i, "temperature": 0.7, "n": 2 }));
        body["model"] = json!(["tiny-chat", "tiny-diffusion"][i % 2]);
        if i.is_multiple_of(2) {
            body["diffusion"] = Value::Null;
        }
        let (status, answer) = server.chat(body);
        assert_eq!(status, 200, "{answer}");
        let choices = answer["choices"].as_array().expect("a list").iter();
        choices
            .map(|c| c["message"]["content"].clone())
            .collect::<Vec<_>>()
    };
    let alone: Vec<_> = (0..8).map(asked).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|i| scope.spawn(move || asked(i))).collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("an answer"))
            .collect()
    });
    assert_eq!(together, alone);
}

/// What `bench run` prints.
fn run(arguments: &[&str]) -> Ran {
    let ran = bench(&[&["run"], arguments].concat());
    assert!(ran.is_fine(), "{}", ran.err);
    ran
}

#[test]
fn run_prints_the_completion_and_its_statistics() {
    const SETTINGS: [&str; 6] = ["-n", "32", "--steps", "16", "--block-length", "32"];
    let printed =
        |model: &str, more: &[&str]| run(&[&["17+5=?", "-m", model], &SETTINGS[..], more].concat());
    let folder = models().join("tiny-diffusion").display().to_string();
    let mut texts = Vec::new();
    for model in [&model(), &folder, &"tiny-diffusion".to_owned()] {
        let Ran { out, err, .. } = printed(model, &[]);
        assert!(out.trim_end().ends_with("22"), "{out}");
        assert!(err.contains(" passes over "), "{err}");
        texts.push(out);
    }
    for more in [
        &["--remasking", "entropy"][..],
        &["--cfg-scale", "0.5"],
        &["--confidence-threshold", "0.9"],
        &["--approximate-cache"],
        &["--stateless"],
    ] {
        printed(&model(), more);
    }
    assert_eq!(texts[0], texts[1], "file and folder");
    assert_eq!(texts[0], texts[2], "file and what is built in");
}

#[test]
fn held_out_sums_are_right() {
    let held_out = std::fs::read_to_string(models().join("held_out.json")).expect("it is there");
    let held_out: Value = serde_json::from_str(&held_out).expect("it is JSON");
    let sums = &held_out["sums"].as_array().expect("a list")[..40];
    let server = start(&["--parallel", "8", "--ctx", "128"]);
    let is_right = |sum: &Value| {
        let prompt = sum["prompt"].as_str().expect("a prompt");
        let (_, answer) = server.chat(question(prompt, &json!({})));
        let number = text(&answer)
            .rsplit(|c: char| !c.is_ascii_digit())
            .find(|n| !n.is_empty());
        number == sum["answer"].as_str()
    };
    let n_right: usize = std::thread::scope(|scope| {
        let parts = sums.chunks(sums.len().div_ceil(8));
        let threads: Vec<_> = parts
            .map(|part| scope.spawn(|| part.iter().filter(|sum| is_right(sum)).count()))
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("a count"))
            .sum()
    });
    println!("{n_right} of {} held-out sums", sums.len());
    assert!(
        n_right * 100 >= sums.len() * 90,
        "{n_right} of {}",
        sums.len()
    );
}
