//! `POST /completion` and `/infill` in llama-server's shape, counts of prompts, biases by text, progress.

use serde_json::{Value, json};

use crate::support::command::{made_up, scratch};
use crate::support::server::{Server, with};

const PATH: &str = "/completion";

fn body(extra: impl Into<Value>) -> Value {
    let own = json!({ "prompt": "2+2=", "temperature": 0, "n_predict": 6 });
    with(own, &extra.into())
}

fn complete(server: &Server, extra: Value) -> Value {
    server.post(PATH, &body(extra))
}

fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let all = server.events(path, body);
    let parsed = all.iter().filter(|data| *data != "[DONE]");
    parsed
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect()
}

fn array(value: &Value) -> &Vec<Value> {
    value.as_array().expect("an array")
}

/// The same with 0 in place of what a clock says.
fn without_times(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| {
                let is_time = name.ends_with("_ms") || name.ends_with("_per_second");
                let value = if is_time {
                    json!(0)
                } else {
                    without_times(value)
                };
                (name.clone(), value)
            })
            .collect(),
        Value::Array(all) => all.iter().map(without_times).collect(),
        other => other.clone(),
    }
}

#[test]
fn a_completion_has_llama_servers_shape() {
    let server = Server::start(&[]);
    let asked = json!({
        "seed": 7, "stop": ["\n\n"], "return_tokens": true, "n_probs": 1, "n_predict": 2,
        "logit_bias": [[300, -1.5]], "id_slot": 0,
    });
    let whole = complete(&server, asked.clone());
    let mut out = serde_json::to_string_pretty(&without_times(&whole)).expect("JSON");
    let stream = events(&server, PATH, &body(asked));
    for event in &stream {
        out += &format!(
            "\n\n{}",
            serde_json::to_string(&without_times(event)).expect("JSON")
        );
    }
    // Logarithms differ in their last digits between machines.
    let out = rounded(&out);
    insta::assert_snapshot!("native_shapes", out);

    // The chunks are the whole.
    let (last, chunks) = stream.split_last().expect("events");
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["content"].as_str())
        .collect();
    assert_eq!(text, whole["content"]);
    let tokens: Value = chunks
        .iter()
        .flat_map(|chunk| array(&chunk["tokens"]).clone())
        .collect();
    assert_eq!(tokens, whole["tokens"]);
    assert!(chunks.iter().all(|chunk| chunk["stop"] == false));
    let mut settings = whole["generation_settings"].clone();
    settings["stream"] = json!(true);
    assert_eq!(last["generation_settings"], settings);
    assert_eq!(
        last["timings"]["predicted_n"],
        whole["timings"]["predicted_n"]
    );
    let all = server.events(PATH, &body(json!({})));
    assert!(
        !all.contains(&"[DONE]".to_owned()),
        "no such event in this shape"
    );
}

/// Numbers with a fraction cut to three digits.
fn rounded(text: &str) -> String {
    let mut out = String::new();
    let mut n_digits = None;
    for c in text.chars() {
        n_digits = match (n_digits, c) {
            (None, '.') => Some(0),
            (Some(n), c) if c.is_ascii_digit() => Some(n + 1),
            (_, c) if c.is_ascii_digit() => None,
            _ => None,
        };
        if n_digits.is_none_or(|n| n <= 3) {
            out.push(c);
        }
    }
    out
}

#[test]
fn the_finish_reason_of_a_completion_is_reported() {
    let server = Server::start(&[]);
    let ended = complete(&server, json!({ "n_predict": -1, "return_tokens": true }));
    assert_eq!(ended["stop_type"], "eos", "{ended}");
    assert_eq!(array(&ended["tokens"]).len(), ended["tokens_predicted"]);
    let text = ended["content"].as_str().expect("a text");
    let cut = complete(&server, json!({ "n_predict": 1 }));
    assert_eq!(
        (&cut["stop_type"], &cut["tokens_predicted"]),
        (&json!("limit"), &json!(1))
    );
    assert_eq!(
        (&cut["truncated"], &cut["tokens"]),
        (&json!(false), &json!([]))
    );
    let first = text
        .trim_start()
        .chars()
        .next()
        .expect("some text")
        .to_string();
    let stopped = complete(&server, json!({ "n_predict": -1, "stop": [first] }));
    assert_eq!(stopped["stop_type"], "word", "{stopped}");
    assert_eq!(stopped["stopping_word"], first);
    // Nothing but the prompt is read.
    let read = complete(&server, json!({ "n_predict": 0 }));
    assert_eq!(
        (&read["content"], &read["tokens_predicted"]),
        (&json!(""), &json!(0))
    );
}

#[test]
fn prompts_are_texts_tokens_and_both_in_turns() {
    let server = Server::start(&[]);
    let (_, tokens) = server.json(
        "POST",
        "/tokenize",
        &json!({ "content": "2+2=", "add_special": true }),
    );
    let tokens = &tokens["tokens"];
    let expected = complete(&server, json!({}))["content"].clone();
    assert_eq!(
        complete(&server, json!({ "prompt": tokens }))["content"],
        expected
    );
    let object = json!({ "prompt": { "prompt_string": "2+2=" } });
    assert_eq!(complete(&server, object)["content"], expected);
    let many = json!({ "prompt": [tokens, "2+2=", { "prompt_string": "2+2=" }], "n": 2 });
    let many = complete(&server, many);
    assert_eq!(array(&many).len(), 6);
    for (i, one) in array(&many).iter().enumerate() {
        assert_eq!((&one["content"], &one["index"]), (&expected, &json!(i)));
    }
    // In turns: the pieces follow each other.
    let mut mixed = array(tokens).clone();
    mixed.push(json!("4"));
    mixed.extend(array(tokens).iter().cloned());
    let mixed = complete(&server, json!({ "prompt": mixed }));
    let prompt = mixed["prompt"].as_str().expect("a text");
    assert!(
        prompt.ends_with("2+2=42+2=") || prompt.ends_with("2+2= 42+2="),
        "{prompt}"
    );
    assert_eq!(mixed["generation_settings"]["n_predict"], 6);
}

#[test]
fn probabilities_are_the_models_or_those_after_sampling() {
    let server = Server::start(&[]);
    let raw = complete(&server, json!({ "n_probs": 5 }));
    let all = array(&raw["completion_probabilities"]);
    // The token that ends it is among them.
    assert_eq!(all.len(), raw["tokens_predicted"]);
    for one in all {
        assert_eq!(one["top_logprobs"][0]["id"], one["id"], "greedy: {one}");
        assert_eq!(array(&one["top_logprobs"]).len(), 5);
        assert!(one["logprob"].as_f64().is_some_and(|l| l <= 0.0), "{one}");
    }
    let drawn = json!({
        "n_probs": 5, "n_predict": 8, "post_sampling_probs": true, "temperature": 2.0, "top_k": 3, "seed": 4,
        "ignore_eos": true,
    });
    let drawn = complete(&server, drawn);
    let all = array(&drawn["completion_probabilities"]);
    assert_eq!(all.len(), 8);
    for one in all {
        let top = array(&one["top_probs"]);
        assert_eq!(top.len(), 3, "top_k: {one}");
        let probability = |one: &Value| one["prob"].as_f64().expect("a number");
        let sum: f64 = top.iter().map(probability).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{one}");
        let own = top.iter().find(|other| other["id"] == one["id"]);
        assert_eq!(own.map(probability), Some(probability(one)));
        assert!(one.get("logprob").is_none() && one.get("top_logprobs").is_none());
    }
    // What was drawn does not depend on whether it is told.
    let same =
        json!({ "n_predict": 8, "temperature": 2.0, "top_k": 3, "seed": 4, "ignore_eos": true });
    assert_eq!(complete(&server, same)["content"], drawn["content"]);
    // Greedy: there was one token to draw.
    let greedy = complete(
        &server,
        json!({ "n_probs": 5, "post_sampling_probs": true }),
    );
    for one in array(&greedy["completion_probabilities"]) {
        assert_eq!(
            (&one["prob"], array(&one["top_probs"]).len()),
            (&json!(1.0), 1)
        );
    }
}

#[test]
fn a_response_is_reduced_to_the_fields_that_are_asked_for() {
    let server = Server::start(&[]);
    let fields = json!([
        "content",
        "generation_settings/n_predict",
        "timings/x",
        "prompt"
    ]);
    let answer = complete(&server, json!({ "response_fields": fields }));
    let names: Vec<&String> = answer.as_object().expect("an object").keys().collect();
    assert_eq!(
        names,
        ["content", "generation_settings/n_predict", "prompt"]
    );
    assert_eq!(answer["generation_settings/n_predict"], 6);
}

#[test]
fn a_logit_bias_is_for_token_ids_or_for_the_tokens_of_a_text() {
    let server = Server::start(&[]);
    let free = complete(&server, json!({ "return_tokens": true, "n_predict": 1 }));
    let first = free["tokens"][0].clone();
    let piece = free["content"].as_str().expect("a text");
    let (_, of_text) = server.json("POST", "/tokenize", &json!({ "content": piece }));
    let tokens = array(&of_text["tokens"]);
    assert!(tokens.contains(&first), "{tokens:?} {first}");
    let mut by_id = serde_json::Map::new();
    by_id.insert(first.to_string(), json!(-100));
    let mut by_text = serde_json::Map::new();
    // A text of digits would be an id.
    by_text.insert(format!("{piece}{piece}x"), json!(-100));
    for bias in [
        json!([[first, -100]]),
        json!([[first, false]]),
        json!([[piece, -100]]),
        Value::Object(by_id),
        Value::Object(by_text),
    ] {
        let banned = complete(
            &server,
            json!({ "logit_bias": bias, "return_tokens": true, "n_predict": 1 }),
        );
        assert_ne!(banned["tokens"][0], first, "{bias}");
    }
    let (status, chat) = server.chat(json!({ "logit_bias": [[first, -1]], "max_tokens": 2 }));
    assert_eq!(status, 200, "{chat}");
    let forced = json!({ "logit_bias": { "300": 100 }, "return_tokens": true, "n_predict": 3 });
    assert_eq!(complete(&server, forced)["tokens"], json!([300, 300, 300]));
    for bias in [
        json!([[1]]),
        json!([[4_000_000, 1]]),
        json!([["a", 101]]),
        json!([[1, true]]),
    ] {
        server.refused(
            json!({ "logit_bias": bias }),
            400,
            code_of(&bias),
            "logit_bias",
        );
    }
}

fn code_of(bias: &Value) -> &'static str {
    match bias[0][1].is_number() {
        true => "invalid_value",
        false => "invalid_type",
    }
}

#[test]
fn a_stream_tells_how_far_its_prompt_is_read() {
    let server = Server::start(&["--ctx", "2048"]);
    let text = "1+2=3 ".repeat(150);
    let chat = json!({
        "messages": [{ "role": "user", "content": text }], "return_progress": true, "max_tokens": 2,
    });
    let of_path = |path: &str, extra: &Value| {
        let all = events(&server, path, extra);
        let at = |event: &Value| event.get("prompt_progress").cloned();
        let is_text = |event: &Value| {
            let text = event["choices"][0]["delta"]["content"].as_str();
            let text = text.or(event["content"].as_str());
            event.get("prompt_progress").is_none() && text.is_some_and(|text| !text.is_empty())
        };
        let last = all
            .iter()
            .rposition(|event| at(event).is_some())
            .expect("progress");
        let first_text = all.iter().position(is_text).unwrap_or(all.len());
        assert!(last < first_text, "{all:?}");
        let all: Vec<Value> = all.iter().filter_map(at).collect();
        all
    };
    let count = |value: &Value| value.as_u64().expect("a number");
    let native = json!({ "prompt": text, "return_progress": true, "n_predict": 2 });
    for (path, request) in [("/v1/chat/completions", &chat), (PATH, &native)] {
        let first = of_path(path, request);
        assert!(first.len() >= 2, "{first:?}");
        assert_eq!(first[0]["processed"], first[0]["cache"]);
        let total = count(&first[0]["total"]);
        assert!(
            first
                .windows(2)
                .all(|pair| count(&pair[0]["processed"]) < count(&pair[1]["processed"]))
        );
        assert_eq!(count(&first.last().expect("some")["processed"]), total);
        let again = of_path(path, request);
        assert!(count(&again[0]["cache"]) > 0, "{again:?}");
        assert_eq!(again[0]["processed"], again[0]["cache"]);
    }
    // Nobody asked.
    let silent = events(&server, PATH, &json!({ "prompt": "2+2=", "n_predict": 2 }));
    assert!(
        silent
            .iter()
            .all(|event| event.get("prompt_progress").is_none())
    );
}

#[test]
fn prompts_are_counted_as_they_are_read() {
    let server = Server::start(&[]);
    let chat = json!({ "messages": [{ "role": "user", "content": "2+2=?" }], "max_tokens": 1 });
    let (_, answer) = server.json("POST", "/v1/chat/completions", &chat);
    let n = answer["usage"]["prompt_tokens"].clone();
    let expected = (
        200,
        json!({ "object": "response.input_tokens", "input_tokens": n }),
    );
    for prefix in ["", "/v1"] {
        let path = format!("{prefix}/chat/completions/input_tokens");
        assert_eq!(server.json("POST", &path, &chat), expected);
        let path = format!("{prefix}/responses/input_tokens");
        assert_eq!(
            server.json("POST", &path, &json!({ "input": "2+2=?" })),
            expected
        );
    }
    let (status, _) = server.json("POST", "/v1/responses/input_tokens", &json!({ "input": 5 }));
    assert_eq!(status, 400);
}

#[test]
fn a_prompt_that_does_not_fit_tells_by_how_much() {
    let server = Server::start(&["--ctx", "64"]);
    let (status, answer) =
        server.json("POST", PATH, &body(json!({ "prompt": "2+2=".repeat(100) })));
    let error = &answer["error"];
    assert_eq!(
        (status, &error["code"]),
        (400, &json!("context_length_exceeded"))
    );
    assert_eq!(
        (&error["n_ctx"], &error["param"]),
        (&json!(64), &json!("prompt"))
    );
    assert!(
        error["n_prompt_tokens"].as_u64().is_some_and(|n| n > 64),
        "{answer}"
    );
    // The context ends the completion.
    let full = complete(&server, json!({ "n_predict": -1, "ignore_eos": true }));
    assert_eq!(
        (&full["stop_type"], &full["truncated"]),
        (&json!("limit"), &json!(true))
    );
}

#[test]
fn props_have_the_path_and_the_defaults() {
    let server = Server::start(&[]);
    let (_, props) = server.json("GET", "/props", &Value::Null);
    assert_eq!(props["model_path"], "tiny-chat");
    let params = &props["default_generation_settings"]["params"];
    let unset = complete(&server, json!({ "temperature": null, "n_predict": 1 }));
    for name in [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repeat_penalty",
        "samplers",
        "stop",
    ] {
        assert_eq!(params[name], unset["generation_settings"][name], "{name}");
    }
    assert_eq!(params["n_predict"], -1);
}

#[test]
fn a_gap_is_filled_with_the_vocabularys_tokens() {
    let folder = scratch();
    let meta = ["pre", "suf", "mid", "rep", "sep"].iter().zip(700..);
    let meta: Vec<String> = meta
        .map(|(name, id)| format!("tokenizer.ggml.fim_{name}_token_id={id}"))
        .collect();
    let vocab = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-chat.gguf");
    let mut arguments = vec!["--vocab", vocab, "--set", "context_length=64"];
    for pair in &meta {
        arguments.extend(["--meta", pair]);
    }
    let path = made_up(folder.path(), "llama", &arguments);
    let server = Server::start(&["--model", path.to_str().expect("UTF-8")]);
    let body = |extra: Value| {
        with(
            json!({
                "input_prefix": "1+2", "input_suffix": "=", "prompt": "+", "n_predict": 4,
                "ignore_eos": true,
            }),
            &extra,
        )
    };
    let fill = |extra: Value| server.json("POST", "/infill", &body(extra));
    let (status, bare) = fill(json!({}));
    assert_eq!(status, 200, "{bare}");
    let (status, with) =
        fill(json!({ "input_extra": [{ "filename": "a", "text": "7" }, { "text": "8" }] }));
    assert_eq!(status, 200, "{with}");
    let n = |answer: &Value| answer["tokens_evaluated"].as_u64().expect("a number");
    assert!(n(&with) > n(&bare) + 4, "{with} {bare}");
    // Other files are cut, what stands around the gap is not.
    let (status, cut) = fill(json!({ "input_extra": [{ "text": "7 ".repeat(500) }] }));
    assert_eq!((status, n(&cut)), (200, 60), "{cut}");
    let (_, long) = fill(json!({ "input_suffix": "7 ".repeat(500) }));
    assert_eq!(long["error"]["code"], "context_length_exceeded", "{long}");
    for (extra, param) in [
        (json!({ "input_prefix": null }), "input_prefix"),
        (json!({ "input_suffix": null }), "input_suffix"),
        (json!({ "input_extra": [{}] }), "input_extra[0].text"),
        (
            json!({ "input_extra": [{ "filename": "ok" }] }),
            "input_extra[0].text",
        ),
        (
            json!({ "input_extra": [{ "filename": 123, "text": "abc" }] }),
            "input_extra[0].filename",
        ),
        (
            json!({ "input_extra": [{ "text": 456 }] }),
            "input_extra[0].text",
        ),
        (json!({ "prompt": [1] }), "prompt"),
    ] {
        let (status, answer) = fill(extra.clone());
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(param)),
            "{extra}: {answer}"
        );
    }
    let plain = Server::start(&[]);
    let (status, answer) = plain.json("POST", "/infill", &body(json!({})));
    assert_eq!(
        (status, &answer["error"]["code"]),
        (400, &json!("unsupported_model")),
        "{answer}"
    );
}

#[test]
fn invalid_completion_requests_are_refused_with_their_field() {
    let server = Server::start(&["--strict-fields"]);
    for (extra, param) in [
        (json!({ "prompt": null }), "prompt"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": [[]] }), "prompt"),
        (json!({ "prompt": true }), "prompt"),
        (json!({ "prompt": [1, -1] }), "prompt[1]"),
        (json!({ "prompt": [1, 4_000_000] }), "prompt"),
        (json!({ "prompt": vec!["a"; 129] }), "prompt"),
        (
            json!({ "prompt": { "prompt_string": "a", "multimodal_data": ["x"] } }),
            "prompt.multimodal_data[0]",
        ),
        (json!({ "n_probs": 101 }), "n_probs"),
        (
            json!({ "response_fields": vec!["a"; 65] }),
            "response_fields",
        ),
        (json!({ "messages": [] }), "messages"),
        (json!({ "adaptive_target": 0.5 }), "adaptive_target"),
    ] {
        let (status, answer) = server.json("POST", "/completions", &body(extra.clone()));
        let found = (status, &answer["error"]["param"]);
        assert_eq!(found, (400, &json!(param)), "{extra}: {answer}");
    }
}

#[test]
fn a_chat_tells_its_prompt_and_parameters_where_that_is_asked_for() {
    let server = Server::start(&[]);
    let asked = json!({ "verbose": true, "max_tokens": 4, "logit_bias": { "5": -100 } });
    let (status, chat) = server.chat(asked);
    assert_eq!(status, 200, "{chat}");
    let told = &chat["__verbose"];
    assert_eq!(told["content"], chat["choices"][0]["message"]["content"]);
    let prompt = told["prompt"].as_str().expect("a text");
    assert!(
        prompt.contains("2+2=?") && prompt.contains("<|im_start|>"),
        "{prompt}"
    );
    assert_eq!(told["tokens_evaluated"], chat["usage"]["prompt_tokens"]);
    assert_eq!(
        array(&told["tokens"]).len(),
        chat["usage"]["completion_tokens"]
    );
    let settings = &told["generation_settings"];
    assert_eq!(settings["n_predict"], 4);
    assert_eq!(
        settings["logit_bias"],
        json!([{ "token": 5, "bias": null }]),
        "a ban"
    );
    let (_, silent) = server.chat(json!({ "verbose": false }));
    assert!(silent.get("__verbose").is_none());
}
