//! The HTTP server over a real socket, with the built-in model.

use std::io::Read;

use crate::support::server::Server;
use serde_json::{Value, json};

#[test]
fn timings_are_reported_where_they_are_wanted() {
    let server = Server::start(&[]);
    let (_, plain) = server.chat(json!({}));
    assert!(plain["timings"].is_null(), "{plain}");
    let check = |timings: &Value| {
        assert_eq!(timings["predicted_n"], 6, "{timings}");
        for part in ["prompt", "predicted"] {
            let number = |name: &str| {
                timings[format!("{part}_{name}")]
                    .as_f64()
                    .expect("a number")
            };
            let (n, ms) = (number("n"), number("ms"));
            assert!(ms > 0.0, "{timings}");
            assert!((number("per_token_ms") - ms / n).abs() < 1e-6, "{timings}");
            assert!(
                (number("per_second") / (n / ms * 1e3) - 1.0).abs() < 1e-6,
                "{timings}"
            );
        }
    };
    let (_, answer) = server.chat(json!({ "timings_per_token": true }));
    check(&answer["timings"]);
    let mut events = server.stream(json!({ "timings_per_token": true }));
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let last: Value = serde_json::from_str(&events.pop().expect("a chunk")).expect("JSON");
    check(&last["timings"]);
    assert!(last["usage"].is_null(), "{last}");
}

#[test]
fn ignore_eos_continues_past_the_end_token() {
    let server = Server::start(&[]);
    let mut body = json!({
        "model": "tiny-chat", "max_tokens": 40, "temperature": 0, "ignore_eos": true,
        "messages": [{ "role": "user", "content": "2+2=?" }],
    });
    let mut ask = |ignore: Value| {
        body["ignore_eos"] = ignore;
        let (status, answer) = server.json("POST", "/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        let reason = answer["choices"][0]["finish_reason"].clone();
        (reason, answer["usage"]["completion_tokens"].as_u64())
    };
    assert_eq!(ask(json!(true)), (json!("length"), Some(40)));
    assert_eq!(ask(json!(false)).0, "stop");
    assert_eq!(ask(Value::Null).0, "stop");
    // A bias for a token that is banned already changes nothing.
    body["logit_bias"] = json!({ "2": 100, "5": 1 });
    body["ignore_eos"] = json!(true);
    let (_, answer) = server.json("POST", "/v1/chat/completions", &body);
    assert_eq!(answer["usage"]["completion_tokens"], 40);
}

#[test]
fn models_and_health_are_listed() {
    let server = Server::start(&[]);
    let (status, health) = server.json("GET", "/health", &Value::Null);
    assert_eq!(
        (status, &health["status"], &health["loaded"]),
        (200, &json!("ok"), &json!(["tiny-chat"]))
    );
    let (_, models) = server.json("GET", "/v1/models", &Value::Null);
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], "tiny-chat");
    assert_eq!(
        server.json("GET", "/v1/models/tiny-chat", &Value::Null).1["object"],
        "model"
    );
    let (status, error) = server.json("GET", "/v1/models/tiny-cat", &Value::Null);
    assert_eq!(
        (status, &error["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    assert!(
        error["error"]["message"]
            .as_str()
            .is_some_and(|m| m.contains("did you mean `tiny-chat`?"))
    );
}

#[test]
fn a_chat_response_has_its_shape_and_its_log_probabilities() {
    let server = Server::start(&[]);
    let (status, answer) = server.chat(json!({ "logprobs": true, "top_logprobs": 3 }));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["object"], "chat.completion");
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str().expect("text");
    assert!(text.contains('4'), "{text}");
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(choice["message"]["refusal"].is_null());
    assert_eq!(choice["finish_reason"], "stop");
    assert!(choice["logprobs"]["refusal"].is_null());
    let entries = choice["logprobs"]["content"].as_array().expect("entries");
    let mut bytes = Vec::new();
    for entry in entries {
        let logprob = entry["logprob"].as_f64().expect("a number");
        assert!((-9999.0..=0.0).contains(&logprob));
        bytes.extend(
            entry["bytes"]
                .as_array()
                .expect("bytes")
                .iter()
                .map(|b| b.as_u64().expect("a byte") as u8),
        );
        let top: Vec<f64> = entry["top_logprobs"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|t| t["logprob"].as_f64().expect("a number"))
            .collect();
        assert_eq!(top.len(), 3);
        assert!(top.windows(2).all(|pair| pair[0] >= pair[1]), "{top:?}");
        // At temperature 0 the token chosen is the likeliest one.
        assert_eq!((top[0], &entry["rank"]), (logprob, &json!(1)));
        let first = &entry["top_logprobs"][0];
        for key in ["token", "bytes", "id"] {
            assert!(!first[key].is_null(), "{first}");
            assert_eq!(first[key], entry[key]);
        }
    }
    assert_eq!(bytes, text.as_bytes());
    let usage = &answer["usage"];
    assert_eq!(
        usage["completion_tokens"].as_u64(),
        Some(entries.len() as u64 + 1),
        "the ending token counts"
    );
    assert_eq!(
        usage["total_tokens"].as_u64(),
        usage["prompt_tokens"]
            .as_u64()
            .zip(usage["completion_tokens"].as_u64())
            .map(|(p, c)| p + c)
    );
    let (_, plain) = server.chat(json!({}));
    assert!(plain["choices"][0]["logprobs"].is_null());
    assert!(
        plain["choices"][0]
            .as_object()
            .is_some_and(|c| c.contains_key("logprobs"))
    );
    let (_, bare) = server.chat(json!({ "logprobs": true }));
    assert_eq!(
        bare["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
        json!([])
    );
}

#[test]
fn a_streamed_chat_response_equals_the_whole_one_in_order() {
    let server = Server::start(&[]);
    let (_, whole) = server.chat(json!({ "logprobs": true, "top_logprobs": 2 }));
    let data = server.stream(
        json!({ "logprobs": true, "top_logprobs": 2, "stream_options": { "include_usage": true } }),
    );
    assert_eq!(data.last().map(String::as_str), Some("[DONE]"));
    let chunks: Vec<Value> = data[..data.len() - 1]
        .iter()
        .map(|d| serde_json::from_str(d).expect("JSON"))
        .collect();
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({ "role": "assistant", "content": "" })
    );
    for key in ["id", "created", "model", "system_fingerprint", "object"] {
        assert!(
            chunks.iter().all(|chunk| chunk[key] == chunks[0][key]),
            "{key}"
        );
    }
    let (usage, rest) = chunks.split_last().expect("chunks");
    assert_eq!(usage["choices"], json!([]));
    for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(usage["usage"][key], whole["usage"][key], "{key}");
    }
    assert!(
        rest.iter()
            .all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some())
    );
    let (end, middle) = rest.split_last().expect("chunks");
    assert_eq!(end["choices"][0]["delta"], json!({}));
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    let mut text = String::new();
    let mut entries = Vec::new();
    for chunk in &middle[1..] {
        let choice = &chunk["choices"][0];
        assert!(choice["finish_reason"].is_null());
        let part = choice["delta"]["content"].as_str().expect("text");
        let of_part = choice["logprobs"]["content"].as_array().expect("entries");
        let tokens: String = of_part
            .iter()
            .map(|e| e["token"].as_str().expect("text"))
            .collect();
        assert_eq!(tokens, part, "the entries of a chunk are those of its text");
        text.push_str(part);
        entries.extend(of_part.clone());
    }
    assert_eq!(json!(text), whole["choices"][0]["message"]["content"]);
    assert_eq!(json!(entries), whole["choices"][0]["logprobs"]["content"]);

    let without = server.stream(json!({}));
    assert!(
        without
            .iter()
            .all(|data| !data.contains("\"usage\"") && !data.contains("\"choices\":[]"))
    );
}

#[test]
fn several_choices_are_independent_and_seeded() {
    // One at a time: in a batch, rounding depends on the neighbours.
    let server = Server::start(&["--parallel", "1"]);
    let ask = |seed: u64| {
        let extra = json!({
            "messages": [{ "role": "user", "content": "Tell me something." }],
            "n": 3, "seed": seed, "temperature": 3, "max_tokens": 16,
        });
        let (status, answer) = server.chat(extra);
        assert_eq!(status, 200, "{answer}");
        let choices = answer["choices"].as_array().expect("choices").clone();
        assert_eq!(
            choices
                .iter()
                .map(|c| c["index"].as_u64())
                .collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2)]
        );
        choices
            .iter()
            .map(|c| c["message"]["content"].as_str().expect("text").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(ask(5), ask(5));
    assert_ne!(ask(5), ask(6));
}

#[test]
fn stop_sequences_and_limits_end_a_response() {
    let server = Server::start(&[]);
    let messages = json!([{ "role": "user", "content": "Count from 1 to 9." }]);
    let (_, whole) = server.chat(json!({ "messages": messages }));
    let text = whole["choices"][0]["message"]["content"]
        .as_str()
        .expect("text")
        .to_owned();
    let third = text
        .char_indices()
        .nth(3)
        .map(|(i, c)| (i, c.to_string()))
        .expect("a longer answer");
    let (_, stopped) =
        server.chat(json!({ "messages": messages, "stop": third.1, "logprobs": true }));
    let stopped = &stopped["choices"][0];
    let cut = text.find(&third.1).expect("it is there");
    assert_eq!(stopped["message"]["content"], text[..cut]);
    assert_eq!(stopped["finish_reason"], "stop");
    let bytes: usize = stopped["logprobs"]["content"]
        .as_array()
        .expect("entries")
        .iter()
        .map(|e| e["bytes"].as_array().map_or(0, Vec::len))
        .sum();
    assert_eq!(bytes, cut, "no entry for what the stop sequence swallowed");
    for limit in [
        json!({ "messages": messages, "max_completion_tokens": 2 }),
        json!({ "messages": messages, "max_completion_tokens": 2, "max_tokens": 3 }),
        json!({ "messages": messages, "max_tokens": 2 }),
    ] {
        let (_, limited) = server.chat(limit);
        assert_eq!(limited["choices"][0]["finish_reason"], "length");
        assert_eq!(limited["usage"]["completion_tokens"], 2);
    }
}

#[test]
fn invalid_requests_are_refused_with_their_field() {
    let server = Server::start(&["--ctx", "256", "--strict-fields", "--strict-model"]);
    server.refused(
        json!({ "samplers": ["top_k"], "top_p": 0.5 }),
        400,
        "invalid_value",
        json!("samplers"),
    );
    server.refused(
        json!({ "mirostat": 2, "samplers": ["temperature"] }),
        400,
        "invalid_value",
        json!("samplers"),
    );
    server.refused(
        json!({ "model": "nobody" }),
        404,
        "model_not_found",
        json!("model"),
    );
    server.refused(
        json!({ "messages": [] }),
        400,
        "invalid_value",
        json!("messages"),
    );
    server.refused(
        json!({ "messages": [{ "content": "x" }] }),
        400,
        "invalid_value",
        json!("messages[0].role"),
    );
    server.refused(
        json!({ "messages": [{ "role": "user", "content": 5 }] }),
        400,
        "invalid_value",
        json!("messages[0].content"),
    );
    server.refused(
        json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
        400,
        "invalid_value",
        json!("messages[0].content[0].image_url"),
    );
    server.refused(
        json!({ "temperature": -0.5 }),
        400,
        "invalid_value",
        json!("temperature"),
    );
    server.refused(
        json!({ "temperature": "hot" }),
        400,
        "invalid_type",
        json!("temperature"),
    );
    server.refused(json!({ "n": 0 }), 400, "invalid_value", json!("n"));
    for name in ["max_tokens", "max_completion_tokens"] {
        server.refused(json!({ name: 0 }), 400, "invalid_value", name);
    }
    server.refused(
        json!({ "max_tokens": -5 }),
        400,
        "invalid_value",
        json!("max_tokens"),
    );
    server.refused(
        json!({ "stream_options": {} }),
        400,
        "invalid_value",
        json!("stream_options"),
    );
    server.refused(
        json!({ "logit_bias": { "999999": 1 } }),
        400,
        "invalid_value",
        json!("logit_bias"),
    );
    server.refused(
        json!({ "temprature": 1 }),
        400,
        "unknown_parameter",
        json!("temprature"),
    );
    server.refused(
        json!({ "response_format": { "type": "yaml" } }),
        400,
        "invalid_value",
        json!("response_format.type"),
    );
    let long = "word ".repeat(2000);
    let messages = json!([{ "role": "user", "content": long }]);
    server.refused(
        json!({ "messages": messages }),
        400,
        "context_length_exceeded",
        json!("messages"),
    );

    let raw = |kind: &str, body: &str| {
        let (status, _, body) = server.raw("POST", "/v1/chat/completions", kind, body);
        let body: Value = serde_json::from_str(&body).expect("errors are JSON");
        (
            status,
            body["error"]["code"].as_str().expect("a code").to_owned(),
        )
    };
    assert_eq!(
        raw("application/json", "{\"model\":"),
        (400, "invalid_json".into())
    );
    assert_eq!(raw("application/json", "[1]"), (400, "invalid_json".into()));
    assert_eq!(
        raw("application/json", "{}"),
        (400, "missing_required_parameter".into())
    );
    assert_eq!(
        raw("text/plain", "{}"),
        (415, "unsupported_content_type".into())
    );
    assert_eq!(
        server.json("GET", "/v1/chat/completions", &Value::Null).0,
        405
    );
    let (_, nowhere) = server.json("GET", "/nowhere", &Value::Null);
    assert_eq!(nowhere["error"]["code"], "unknown_url");
    assert_eq!(
        nowhere["error"]["message"],
        "there is no `/nowhere`; `GET /docs` lists the endpoints"
    );
    assert_eq!(server.chat(json!({})).0, 200, "the server lives");
}

#[test]
fn null_fields_mean_the_defaults() {
    let server = Server::start(&[]);
    let expected = server.chat(json!({})).1["choices"].clone();
    for none in [json!(null), json!(""), json!([])] {
        let (_, answer) = server.chat(json!({ "stop": none }));
        assert_eq!(answer["choices"], expected, "{none}");
    }
    let (status, answer) = server.chat(json!({
        "stop": null, "n": null, "logprobs": null, "top_logprobs": null, "stream": null, "seed": null,
        "max_tokens": null, "tools": null, "logit_bias": null, "user": "someone",
    }));
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn samplers_are_request_data() {
    let server = Server::start(&[]);
    let all = json!({
        "temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "top_n_sigma": 3, "typical_p": 0.98, "tfs_z": 0.99,
        "xtc_probability": 0.1, "xtc_threshold": 0.2, "dry_multiplier": 0.5, "dry_base": 1.5,
        "dry_allowed_length": 3, "dry_penalty_last_n": 200, "dry_sequence_breakers": ["\n", "="],
        "repeat_penalty": 1.05, "seed": 4,
    });
    let (status, first) = server.chat(all.clone());
    assert_eq!(status, 200, "{first}");
    let (_, again) = server.chat(all);
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].clone();
    assert_eq!(text(&first), text(&again), "a seed is a promise");

    let refused = |body: Value, parameter: &str| {
        let (status, answer) = server.chat(body);
        assert_eq!(status, 400, "{answer}");
        assert_eq!(answer["error"]["param"], parameter, "{answer}");
    };
    refused(json!({ "dry_multiplier": -1 }), "dry_multiplier");
    refused(json!({ "dry_base": 0.5, "dry_multiplier": 1 }), "dry_base");
    refused(json!({ "typical_p": 2 }), "typical_p");
    refused(json!({ "top_n_sigma": -1 }), "top_n_sigma");
    refused(json!({ "tfs_z": 1.5 }), "tfs_z");
    refused(json!({ "mirostat": 3 }), "mirostat");
    refused(json!({ "mirostat": 2, "top_p": 0.9 }), "mirostat");
    refused(json!({ "mirostat_tau": -1 }), "mirostat_tau");
    refused(json!({ "mirostat_eta": 2 }), "mirostat_eta");
    refused(json!({ "penalty_alpha": 1.5, "top_k": 4 }), "penalty_alpha");
    refused(json!({ "penalty_alpha": 0.6, "top_k": 0 }), "top_k");
    let search = json!({ "penalty_alpha": 1e-9, "top_k": 4, "temperature": 1 });
    assert_eq!(
        text(&server.chat(search).1),
        text(&server.chat(json!({})).1)
    );
    for version in [1, 2] {
        let body = json!({
            "mirostat": version, "mirostat_tau": 3, "mirostat_eta": 0.2, "temperature": 0.9, "seed": 4,
            "n": 2, "repeat_penalty": 1.05, "samplers": ["penalties", "temperature", "mirostat"],
        });
        let (status, first) = server.chat(body.clone());
        assert_eq!(status, 200, "{first}");
        assert_eq!(
            text(&first),
            text(&server.chat(body).1),
            "a seed is a promise"
        );
    }
    let strict = Server::start(&["--strict-fields"]);
    let (_, answer) = strict.chat(json!({ "samplers": ["top_q"] }));
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("`tfs_z`") && message.contains("`mirostat`"),
        "{message}"
    );
}

#[test]
fn a_client_that_leaves_frees_its_place() {
    let server = Server::start(&["--parallel", "1"]);
    let endless = json!({
        "messages": [{ "role": "user", "content": "Count." }], "stream": true, "temperature": 1,
        "logit_bias": {}, "max_tokens": 4000, "min_p": 0, "model": "tiny-chat",
    });
    for _ in 0..4 {
        let mut stream = server.send(
            "POST",
            "/v1/chat/completions",
            "application/json",
            &endless.to_string(),
        );
        let mut first = [0u8; 64];
        stream.read_exact(&mut first).expect("the stream begins");
        drop(stream);
    }
    let (status, answer) = server.chat(json!({}));
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn concurrent_requests_get_the_responses_that_they_get_alone() {
    let server = Server::start(&[]);
    let prompts = [
        "2+2=?",
        "17+25=?",
        "Spell the word lamp.",
        "Hello!",
        "9-4=?",
        "Who are you?",
    ];
    let ask = |prompt: &str| {
        let (status, answer) =
            server.chat(json!({ "messages": [{ "role": "user", "content": prompt }] }));
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["message"]["content"]
            .as_str()
            .expect("text")
            .to_owned()
    };
    let alone: Vec<String> = prompts.iter().map(|prompt| ask(prompt)).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = prompts
            .iter()
            .map(|prompt| scope.spawn(move || ask(prompt)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("an answer"))
            .collect()
    });
    assert_eq!(alone, together);
}
