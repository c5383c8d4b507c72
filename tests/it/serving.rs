//! Requests that meet in the server: what they share, what they wait for, and that no answer changes.

use std::io::Read;

use serde_json::{Value, json};

use crate::support::server::{Server, with};

const TALK: &str = "You are kind and you count well. Please tell me in a few words: what is 12+7?";

fn ask(server: &Server, text: &str, extra: &Value) -> Value {
    let body = with(
        json!({
            "messages": [{ "role": "user", "content": text }],
            "logprobs": true, "max_tokens": 24,
        }),
        extra,
    );
    let (status, answer) = server.chat(body);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn cached(answer: &Value) -> u64 {
    let details = &answer["usage"]["prompt_tokens_details"];
    details["cached_tokens"].as_u64().expect("a number")
}

/// Token ids and log-probabilities of the first answer.
fn chosen(answer: &Value) -> Vec<(u64, f64)> {
    let content = answer["choices"][0]["logprobs"]["content"].as_array();
    content
        .expect("log-probabilities")
        .iter()
        .map(|token| {
            let id = token["id"].as_u64().expect("an id");
            (id, token["logprob"].as_f64().expect("a number"))
        })
        .collect()
}

/// The same tokens, and log-probabilities that differ by no more than the order of a sum does.
fn same(a: &Value, b: &Value) {
    let (a, b) = (chosen(a), chosen(b));
    assert_eq!(a.len(), b.len());
    for ((id, x), (other, y)) in a.into_iter().zip(b) {
        assert_eq!(id, other);
        assert!((x - y).abs() < 1e-3, "{x} {y}");
    }
}

#[test]
fn a_prompt_that_was_read_is_cached_for_the_next_request() {
    let server = Server::start(&[]);
    let first = ask(&server, TALK, &json!({}));
    assert_eq!(cached(&first), 0);
    let again = ask(&server, TALK, &json!({}));
    let n_prompt = again["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert_eq!(cached(&again), n_prompt - 1);
    same(&first, &again);
    // The next turn of the conversation.
    let answer = &first["choices"][0]["message"]["content"];
    let turns = json!([
        { "role": "user", "content": TALK },
        { "role": "assistant", "content": answer },
        { "role": "user", "content": "And 3+4?" },
    ]);
    let next = ask(&server, TALK, &json!({ "messages": turns }));
    assert!(cached(&next) >= n_prompt, "{next}");
    // Several answers to a new prompt: only the first of them reads it.
    let several = ask(&server, &TALK.replace("12", "31"), &json!({ "n": 3 }));
    assert!(cached(&several) < n_prompt / 16 * 16);
}

#[test]
fn answers_do_not_change_when_others_leave_or_there_is_little_room() {
    // Room for the longest of them and a little more.
    let small = Server::start(&["--cache", "150K", "--parallel", "6", "--ctx", "128"]);
    let roomy = Server::start(&["--parallel", "1"]);
    let texts: Vec<String> = (0..6).map(|i| format!("{i}{i}+{i}=? {TALK}")).collect();
    let expected: Vec<Value> = texts.iter().map(|t| ask(&roomy, t, &json!({}))).collect();
    for _ in 0..2 {
        let body = json!({
            "model": "tiny-chat", "stream": true, "temperature": 1, "max_tokens": 60,
            "messages": [{ "role": "user", "content": "Count to a hundred." }],
        });
        for _ in 0..3 {
            let path = "/v1/chat/completions";
            let mut stream = small.send("POST", path, "application/json", &body.to_string());
            stream.read_exact(&mut [0u8; 64]).expect("it begins");
        }
        let found: Vec<Value> = std::thread::scope(|scope| {
            let threads: Vec<_> = texts
                .iter()
                .map(|text| scope.spawn(|| ask(&small, text, &json!({}))))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|answer| answer.expect("an answer")).collect()
        });
        for (found, expected) in found.iter().zip(&expected) {
            same(found, expected);
        }
    }
}

#[test]
fn draft_tokens_change_nothing() {
    let server = Server::start(&[]);
    for seed in 0..6 {
        let sampled =
            json!({ "temperature": 1.2, "seed": seed, "max_tokens": 80, "speculative.n_max": 0 });
        let mut drafted = sampled.clone();
        drafted["draft"] = json!(6);
        let text = format!("Say lamp lamp lamp lamp lamp {seed}");
        same(
            &ask(&server, &text, &sampled),
            &ask(&server, &text, &drafted),
        );
    }
}

#[test]
fn whatever_a_request_asks_for_drafts_change_nothing() {
    let server = Server::start(&["--draft", "auto"]);
    let schema = json!({
        "type": "array", "minItems": 4, "maxItems": 8,
        "items": { "type": "object", "required": ["lamp"], "additionalProperties": false,
            "properties": { "lamp": { "enum": ["on", "off", "lamp lamp lamp", "lamp off lamp on"] } } },
    });
    let kinds = [
        json!({ "repeat_penalty": 1.3, "presence_penalty": 0.4 }),
        json!({ "top_logprobs": 3, "logprobs_mode": "processed_logprobs" }),
        json!({ "stop": ["lamp lam", "zz"], "min_tokens": 9 }),
        json!({ "mirostat": 2 }),
        json!({ "dry_multiplier": 0.8, "logit_bias": { "70": 4.0 } }),
        json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "l", "schema": schema } } }),
        json!({ "structured_outputs": { "regex": "(lamp (on|off), ){6,20}" } }),
        json!({ "n": 3 }),
    ];
    let mut n_drafted = 0;
    for (seed, kind) in kinds.iter().cycle().take(3 * kinds.len()).enumerate() {
        let common = json!({ "temperature": 0.9, "seed": seed, "max_tokens": 80 });
        let asked = |most: usize| {
            let drafts = json!({ "speculative.n_max": most, "timings_per_token": true });
            let text = format!("Say lamp lamp lamp lamp lamp {seed}");
            ask(&server, &text, &with(with(common.clone(), kind), &drafts))
        };
        let (plain, drafted) = (asked(0), asked(8));
        assert_eq!(plain["timings"]["draft_n"], Value::Null);
        n_drafted += drafted["timings"]["draft_n"].as_u64().unwrap_or(0);
        for at in 0..plain["choices"].as_array().expect("choices").len() {
            let [a, b] = [&plain, &drafted].map(|of| of["choices"][at].clone());
            same(&json!({ "choices": [a] }), &json!({ "choices": [b] }));
        }
        assert_eq!(
            plain["choices"][0]["finish_reason"],
            drafted["choices"][0]["finish_reason"]
        );
    }
    assert!(n_drafted > 0, "no draft was read");
}

#[test]
fn who_waits_too_long_is_refused() {
    let server = Server::start(&["--parallel", "1", "--queue-time", "0.1"]);
    let long = json!({
        "messages": [{ "role": "user", "content": "Count." }],
        "ignore_eos": true, "max_tokens": 450, "n": 8,
    });
    let (status, answer) = server.chat(long);
    let code = &answer["error"]["code"];
    assert!(status == 503 && code == "timeout", "{status} {answer}");
    // The server lives; a busy machine may take a moment for its turn.
    let lives = (0..50).any(|_| server.chat(json!({ "max_tokens": 1 })).0 == 200);
    assert!(lives);
}
