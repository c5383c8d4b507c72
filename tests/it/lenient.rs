//! What clients send beyond the fields that are known: served and named, or refused where the server is strict.

use serde_json::{Value, json};

use crate::support::server::{Server, with};

pub const CHAT: &str = "/v1/chat/completions";

/// The value of a response header.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The answer to a request that is served, and the fields without effect that it names.
#[track_caller]
pub fn served(server: &Server, path: &str, body: &Value) -> (Value, String) {
    let (status, head, answer) = server.raw("POST", path, "application/json", &body.to_string());
    assert_eq!(status, 200, "{path} {body}: {answer}");
    let ignored = header(&head, "x-bench-ignored").unwrap_or_default();
    let answer = serde_json::from_str(&answer).unwrap_or(Value::String(answer));
    (answer, ignored.to_owned())
}

pub fn chat(extra: &Value) -> Value {
    let base = json!({
        "messages": [{ "role": "user", "content": "2+2=?" }], "max_tokens": 4, "temperature": 0,
    });
    with(base, extra)
}

/// Requests with fields that nobody knows, at every level: path, body, what the response names.
fn unknown() -> Vec<(&'static str, Value, &'static str)> {
    let function = |extra: Value| {
        with(
            json!({ "name": "f", "parameters": { "type": "object" } }),
            &extra,
        )
    };
    let message = |extra: &Value| {
        let base = json!({ "max_tokens": 4, "messages": [{ "role": "user", "content": "hi" }] });
        with(base, extra)
    };
    let items = |item: Value| json!({ "max_output_tokens": 4, "input": [{ "role": "user", "content": "a" }, item] });
    vec![
        (CHAT, chat(&json!({ "temprature": 1 })), "temprature"),
        (CHAT, chat(&json!({ "foo": { "bar": 1 } })), "foo"),
        (
            CHAT,
            chat(&json!({ "stream": true, "stream_options": { "foo": 1, "include_usage": true } })),
            "stream_options.foo",
        ),
        (
            CHAT,
            chat(&json!({ "response_format": { "type": "text", "foo": 1 } })),
            "response_format.foo",
        ),
        (
            CHAT,
            chat(
                &json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": {}, "foo": 1 } } }),
            ),
            "response_format.json_schema.foo",
        ),
        (
            CHAT,
            chat(&json!({ "structured_outputs": { "regex": "a", "foo": 1 } })),
            "structured_outputs.foo",
        ),
        (
            CHAT,
            chat(&json!({ "messages": [
                { "role": "user", "content": "a" }, { "role": "assistant", "content": "b" },
                { "role": "user", "content": "c", "foo": 1 },
            ] })),
            "messages[2].foo",
        ),
        (
            CHAT,
            chat(
                &json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "a", "foo": 1 }] }] }),
            ),
            "messages[0].content[0].foo",
        ),
        (
            CHAT,
            chat(
                &json!({ "tools": [{ "type": "function", "function": function(json!({ "foo": 1 })), "bar": 1 }] }),
            ),
            "tools, tools[0].bar, tools[0].function.foo",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "1", "max_tokens": 2, "foo": 1 }),
            "foo",
        ),
        (
            "/completion",
            json!({ "prompt": [{ "prompt_string": "1", "foo": 1 }], "n_predict": 2 }),
            "prompt[0].foo",
        ),
        (
            "/v1/messages",
            message(
                &json!({ "foo": 1, "thinking": { "type": "disabled", "foo": 1 }, "output_config": { "foo": 1 } }),
            ),
            "foo, output_config.foo, thinking.foo",
        ),
        (
            "/v1/messages",
            message(
                &json!({ "system": [{ "type": "text", "text": "s", "foo": 1 }], "messages": [
                { "role": "user", "content": [{ "type": "text", "text": "a", "bar": 1 }], "foo": 1 },
            ] }),
            ),
            "messages[0].content[0].bar, messages[0].foo, system[0].foo",
        ),
        (
            "/v1/messages",
            message(
                &json!({ "tools": [{ "name": "f", "input_schema": { "type": "object" }, "foo": 1 }] }),
            ),
            "tools, tools[0].foo",
        ),
        (
            "/v1/responses",
            items(
                json!({ "role": "user", "content": [{ "type": "input_text", "text": "b", "bar": 1 }], "foo": 1 }),
            ),
            "input[1].content[0].bar, input[1].foo",
        ),
        (
            "/v1/responses",
            json!({ "input": "a", "max_output_tokens": 4, "text": { "format": { "type": "text", "foo": 1 } }, "reasoning": { "foo": 1 } }),
            "reasoning.foo, text.format.foo",
        ),
        (
            "/v1/responses",
            items(json!({ "type": "future_item", "foo": 1 })),
            "input[1]",
        ),
        ("/tokenize", json!({ "content": "1", "foo": 1 }), "foo"),
    ]
}

#[test]
fn fields_that_nobody_knows_are_named_or_refused() {
    let server = Server::shared();
    let strict = Server::start(&["--strict-fields"]);
    for (path, body, expected) in unknown() {
        let (_, ignored) = served(&server, path, &body);
        assert_eq!(ignored, expected, "{path} {body}");
        let (status, answer) = strict.json("POST", path, &body);
        let first = expected.split(", ").next().expect("a name");
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(status, 400, "{path} {body}: {answer}");
        assert!(message.starts_with("unknown parameter: `"), "{message}");
        if !expected.contains(',') {
            assert!(message.contains(&format!("`{first}`")), "{message}");
        }
        // Nothing that is unset is named.
    }
    let (_, ignored) = served(&server, CHAT, &chat(&json!({ "foo": null })));
    assert_eq!(ignored, "");
    let message = strict
        .chat(json!({ "stream": true, "stream_options": { "include_usag": true } }))
        .1;
    let message = message["error"]["message"]
        .as_str()
        .expect("a text")
        .to_owned();
    assert!(
        message.contains("did you mean `stream_options.include_usage`?"),
        "{message}"
    );
    let environment = Server::with(&["--in-process"], &[("BENCH_STRICT_FIELDS", "1")]);
    environment.refused(
        json!({ "temprature": 1 }),
        400,
        "unknown_parameter",
        "temprature",
    );
}

#[test]
fn engine_processes_name_fields_and_refuse_them_as_the_server_does() {
    let server = Server::split(&[]);
    for (path, body, expected) in unknown() {
        let (_, ignored) = served(&server, path, &body);
        assert_eq!(ignored, expected, "{path} {body}");
    }
    let (status, head, _) = server.raw(
        "POST",
        CHAT,
        "application/json",
        &chat(&json!({ "model": "other" })).to_string(),
    );
    assert_eq!(status, 200);
    let model = header(&head, "x-bench-model");
    assert_eq!(model, Some("requested other, served tiny-chat"));
    let strict = Server::split(&["--strict-fields", "--strict-model"]);
    strict.refused(
        json!({ "temprature": 1 }),
        400,
        "unknown_parameter",
        "temprature",
    );
    strict.refused(
        json!({ "messages": [{ "role": "user", "content": "a", "foo": 1 }] }),
        400,
        "unknown_parameter",
        "messages[0].foo",
    );
    strict.refused(json!({ "model": "other" }), 404, "model_not_found", "model");
}

#[test]
fn names_of_fields_cannot_break_a_header_or_fill_it() {
    let server = Server::shared();
    let hostile = json!({ "a\r\nset-cookie: x": 1, "ü, b": 1, "\0": 1, "x".repeat(5000): 1 });
    let (_, ignored) = served(&server, CHAT, &chat(&hostile));
    for name in ["a%0D%0Aset-cookie:%20x", "%C3%BC%2C%20b", "%00"] {
        let name = name.to_lowercase();
        assert!(ignored.split(", ").any(|one| one == name), "{ignored}");
    }
    assert!(ignored.len() < 600, "{ignored}");
    let mut many = chat(&json!({}));
    for i in 0..100_000 {
        many[format!("field{i}")] = 1.into();
    }
    let (_, ignored) = served(&server, CHAT, &many);
    assert!(ignored.len() < 1200, "{ignored}");
    assert!(ignored.ends_with(" more"), "{ignored}");
    let message = (0..3000).map(|i| (format!("f{i}"), json!(1)));
    let mut message: serde_json::Map<String, Value> = message.collect();
    message.insert("role".into(), "user".into());
    message.insert("content".into(), "a".into());
    let (_, ignored) = served(&server, CHAT, &chat(&json!({ "messages": [message] })));
    assert!(
        ignored.len() < 1200 && ignored.starts_with("messages[0].f"),
        "{ignored}"
    );
    let named = chat(&json!({ "model": format!("ü\r\n{}", "m".repeat(100_000)) }));
    let (status, head, _) = server.raw("POST", CHAT, "application/json", &named.to_string());
    assert_eq!(status, 200);
    let model = header(&head, "x-bench-model").expect("a header");
    assert!(
        model.starts_with("requested %c3%bc%0d%0amm") && model.len() < 200,
        "{model}"
    );
}

#[test]
fn experiments_with_mistyped_fields_do_not_run() {
    let server = Server::shared();
    for (path, body, param) in [
        (
            "/v1/lab/run",
            json!({ "prompt": "1", "lab": {}, "foo": 1 }),
            "foo",
        ),
        (
            "/v1/lab/run",
            json!({ "prompt": "1", "lab": { "capture": [] } }),
            "lab.capture",
        ),
        (
            CHAT,
            chat(
                &json!({ "lab": { "captures": [{ "point": "layers.0.out", "position": "all" }] } }),
            ),
            "lab.captures[0].position",
        ),
        (
            CHAT,
            chat(&json!({ "diffusion": { "step": 1 } })),
            "diffusion.step",
        ),
        (
            "/v1/lab/vectors",
            json!({ "id": "a", "vector": [1], "foo": 1 }),
            "foo",
        ),
    ] {
        let (status, answer) = server.json("POST", path, &body);
        assert_eq!(status, 400, "{path} {body}: {answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
    }
}

#[test]
fn the_only_model_answers_to_every_name() {
    let server = Server::shared();
    let strict = Server::start(&["--strict-model"]);
    for (name, is_told) in [
        ("", false),
        ("default", false),
        ("tiny-chat", false),
        ("gpt-4o", true),
        ("http://x/v1", true),
    ] {
        let body = chat(&json!({ "model": name })).to_string();
        let (status, head, answer) = server.raw("POST", CHAT, "application/json", &body);
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["model"], "tiny-chat");
        let expected = format!("requested {name}, served tiny-chat");
        assert_eq!(
            header(&head, "x-bench-model"),
            is_told.then_some(expected.as_str())
        );
        let status = strict.raw("POST", CHAT, "application/json", &body).0;
        assert_eq!(status, if is_told { 404 } else { 200 }, "{name}");
    }
    let answer = strict.chat(json!({ "model": "tiny-cat" })).1;
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(
        message.contains("did you mean `tiny-chat`?")
            && message.contains("the only model is `tiny-chat`"),
        "{message}"
    );
    // What is asked about a model is about that model.
    assert_eq!(server.json("GET", "/v1/models/other", &Value::Null).0, 404);
    for path in [
        "/v1/models/",
        "/v1/models/tiny-chat/",
        "/health/",
        "/props/?model=tiny-chat",
    ] {
        assert_eq!(server.json("GET", path, &Value::Null).0, 200, "{path}");
    }
}

#[test]
fn too_long_prompts_are_refused_in_the_words_that_clients_match() {
    let server = Server::start(&["--ctx", "64"]);
    let long = "a ".repeat(300);
    let messages = json!([{ "role": "user", "content": long }]);
    for (path, body, words) in [
        (
            CHAT,
            json!({ "messages": messages }),
            "This model's maximum context length is 64 tokens. However, ",
        ),
        (
            "/v1/completions",
            json!({ "prompt": long }),
            "This model's maximum context length is 64 tokens. However, ",
        ),
        (
            "/v1/responses",
            json!({ "input": long }),
            "This model's maximum context length is 64 tokens. However, ",
        ),
        (
            "/completion",
            json!({ "prompt": long }),
            "exceeds the available context size",
        ),
        (
            "/v1/messages",
            json!({ "max_tokens": 5, "messages": messages }),
            " tokens > 64 maximum",
        ),
    ] {
        let (status, answer) = server.json("POST", path, &body);
        assert_eq!(status, 400, "{answer}");
        let error = &answer["error"];
        let message = error["message"].as_str().expect("a text");
        assert!(message.contains(words), "{message}");
        assert!(message.contains("`--ctx`"), "{message}");
        if path == "/v1/messages" {
            assert!(message.starts_with("prompt is too long: "), "{message}");
            continue;
        }
        assert_eq!(error["code"], "context_length_exceeded", "{answer}");
        assert_eq!(error["n_ctx"], 64);
        assert!(error["n_prompt_tokens"].as_u64() > Some(64), "{answer}");
    }
}

#[test]
fn values_of_other_servers_are_taken() {
    let server = Server::shared();
    for extra in [
        json!({ "top_k": -1 }),
        json!({ "temperature": 4.5, "seed": 1 }),
        json!({ "samplers": "edkypmxt" }),
        json!({ "samplers": "edskypmxt", "top_p": 0.9 }),
        json!({ "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "tfs_z", "typical_p", "top_p", "min_p", "xtc", "temperature"] }),
        json!({ "samplers": ["top_k"], "mirostat": 2 }),
    ] {
        let (_, ignored) = served(&server, CHAT, &chat(&extra));
        assert_eq!(ignored, "", "{extra}");
    }
    let (_, ignored) = served(
        &server,
        CHAT,
        &chat(
            &json!({ "samplers": ["top_k", "infill"], "top_k": 3, "top_p": 0.5, "repetition_penalty": 2 }),
        ),
    );
    assert_eq!(
        ignored,
        "repetition_penalty, samplers[1], temperature, top_p"
    );
    let (with_off, _) = served(
        &server,
        CHAT,
        &chat(&json!({ "samplers": ["top_k"], "top_k": 1, "logit_bias": { "9": -100 } })),
    );
    let (plain, _) = served(
        &server,
        CHAT,
        &chat(&json!({ "logit_bias": { "9": -100 } })),
    );
    assert_eq!(
        with_off["choices"][0]["message"],
        plain["choices"][0]["message"]
    );
    let strict = Server::start(&["--strict-fields"]);
    for (samplers, mention) in [(json!("edq"), "`q`"), (json!(["nothing"]), "`nothing`")] {
        let (status, answer) = strict.chat(json!({ "samplers": samplers }));
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(mention), "{answer}");
    }
    // As many tokens as the context holds.
    for (path, body) in [
        (
            "/v1/completions",
            json!({ "prompt": "1", "max_tokens": -1 }),
        ),
        ("/v1/completions", json!({ "prompt": "1", "n_predict": -1 })),
        ("/completion", json!({ "prompt": "1", "n_predict": -1 })),
        (CHAT, chat(&json!({ "max_tokens": -1 }))),
        (
            CHAT,
            chat(&json!({ "max_tokens": null, "max_completion_tokens": -1 })),
        ),
    ] {
        let server = Server::start(&["--ctx", "64"]);
        let (answer, _) = served(&server, path, &with(body, &json!({ "ignore_eos": true })));
        let n = match path {
            "/completion" => answer["tokens_predicted"]
                .as_u64()
                .zip(answer["tokens_evaluated"].as_u64())
                .map(|(a, b)| a + b),
            _ => answer["usage"]["total_tokens"].as_u64(),
        };
        assert_eq!(n, Some(64), "{path}: {answer}");
    }
    server.refused(
        json!({ "max_tokens": -2 }),
        400,
        "invalid_value",
        "max_tokens",
    );
}

#[test]
fn formats_and_constraints_of_other_servers_are_taken() {
    let server = Server::shared();
    let schema = json!({ "type": "object", "properties": { "a": { "const": 7 } }, "required": ["a"], "additionalProperties": false });
    let named = json!({ "name": "n", "schema": schema });
    let content = |extra: Value| {
        let (answer, ignored) = served(
            &server,
            CHAT,
            &chat(&with(json!({ "max_tokens": 40 }), &extra)),
        );
        assert_eq!(ignored, "", "{extra}");
        answer["choices"][0]["message"]["content"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    for format in [
        json!({ "type": "json_object", "value": schema }),
        json!({ "type": "json", "value": schema }),
        json!({ "type": "json_schema", "value": schema }),
        json!({ "type": "json_schema", "value": named }),
        json!({ "type": "json_schema", "schema": schema }),
        json!({ "type": "json_object", "schema": schema, "value": schema }),
        json!({ "type": "json_object", "json_schema": named }),
    ] {
        let found = content(json!({ "response_format": format }));
        let found: Value = serde_json::from_str(&found)
            .unwrap_or_else(|error| panic!("{format}: {error}: {found}"));
        assert_eq!(found, json!({ "a": 7 }), "{format}");
    }
    assert_eq!(
        content(json!({ "response_format": { "type": "regex", "value": "x{3}" } })),
        "xxx"
    );
    let grammar = "root ::= \"ab\"";
    assert_eq!(
        content(json!({ "guided_grammar": grammar, "structured_outputs": { "grammar": grammar } })),
        "ab"
    );
    assert_eq!(
        content(json!({ "guided_regex": "ab", "structured_outputs": { "regex": "ab" } })),
        "ab"
    );
    for extra in [
        json!({ "guided_grammar": grammar, "structured_outputs": { "grammar": "root ::= \"b\"" } }),
        json!({ "response_format": { "type": "json_object", "schema": schema, "value": {} } }),
        json!({ "response_format": { "type": "json_schema" } }),
        json!({ "response_format": { "type": "regex" } }),
    ] {
        let (status, answer) = server.chat(extra.clone());
        assert_eq!(status, 400, "{extra}: {answer}");
    }
}

#[test]
fn usage_is_in_each_chunk_if_that_is_asked_for() {
    let server = Server::shared();
    let options = json!({ "include_usage": true, "continuous_usage_stats": true });
    let asked = json!({ "stream_options": options, "max_tokens": 5, "ignore_eos": true });
    for (path, prompt) in [
        (CHAT, chat(&json!({}))),
        ("/v1/completions", json!({ "prompt": "1+1=", "n": 2 })),
    ] {
        let n = prompt["n"].as_u64().unwrap_or(1);
        let mut events = server.events(path, &with(prompt, &asked));
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        let chunks = events
            .iter()
            .map(|event| serde_json::from_str(event).expect("JSON"));
        let mut chunks: Vec<Value> = chunks.collect();
        let last = chunks.pop().expect("the total");
        assert_eq!(last["usage"]["completion_tokens"], 5 * n, "{last}");
        let mut most = 0;
        for chunk in &chunks {
            let usage = &chunk["usage"];
            assert_eq!(
                usage["prompt_tokens"], last["usage"]["prompt_tokens"],
                "{chunk}"
            );
            let n = usage["completion_tokens"].as_u64().expect("a number");
            assert_eq!(
                usage["total_tokens"],
                usage["prompt_tokens"].as_u64().expect("a number") + n
            );
            most = most.max(n);
            if chunk["choices"][0]["finish_reason"].is_string() {
                assert_eq!(n, 5, "{chunk}");
            }
        }
        assert_eq!(most, 5);
    }
}

#[test]
fn a_completion_ends_by_time_and_by_indentation() {
    let server = Server::shared();
    let lines = json!({ "prompt": "1", "n_predict": 40, "temperature": 0, "grammar": "root ::= \"a\\n  b\\n c\\n\" [d]{30}" });
    let complete = |extra: Value| served(&server, "/completion", &with(lines.clone(), &extra)).0;
    let whole = complete(json!({ "n_indent": 0, "t_max_predict_ms": 0 }));
    assert!(
        whole["content"]
            .as_str()
            .is_some_and(|text| text.starts_with("a\n  b\n c\nd")),
        "{whole}"
    );
    let cut = complete(json!({ "n_indent": 2 }));
    assert_eq!(
        (&cut["content"], &cut["stop_type"]),
        (&json!("a\n  b\n "), &json!("limit"))
    );
    let cut = complete(json!({ "n_indent": 1 }));
    assert_eq!(cut["content"], "a\n  b\n c\n");
    let slow = json!({ "prompt": "1", "n_predict": 400, "ignore_eos": true, "temperature": 0, "logit_bias": [["\n", 50]], "t_max_predict_ms": 1 });
    let (late, _) = served(&server, "/completion", &slow);
    assert!(
        late["tokens_predicted"].as_u64() < Some(400) && late["stop_type"] == "limit",
        "{late}"
    );
}

#[test]
fn stop_sequences_count_after_the_least_number_of_tokens() {
    let server = Server::shared();
    let body = |extra: &Value| {
        with(
            chat(&json!({ "max_tokens": 30, "guided_regex": "abSTOPcdSTOPe{20}" })),
            extra,
        )
    };
    let text = |answer: &Value| {
        answer["choices"][0]["message"]["content"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let (first, _) = served(&server, CHAT, &body(&json!({ "stop": "STOP" })));
    assert_eq!(text(&first), "ab");
    let (whole, _) = served(&server, CHAT, &body(&json!({ "logprobs": true })));
    let tokens = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("tokens")
        .clone();
    let mut n = 0;
    let mut before = String::new();
    while !before.contains("STOP") {
        before += tokens[n]["token"].as_str().expect("a text");
        n += 1;
    }
    for stream in [false, true] {
        let asked = body(&json!({ "stop": "STOP", "min_tokens": n }));
        let found = match stream {
            false => text(&served(&server, CHAT, &asked).0),
            true => {
                let events = server.events(CHAT, &asked);
                let chunk =
                    |event: &String| serde_json::from_str::<Value>(event).unwrap_or_default();
                let piece = |event| {
                    chunk(event)["choices"][0]["delta"]["content"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned()
                };
                events.iter().map(piece).collect()
            }
        };
        assert_eq!(found, "abSTOPcd", "stream {stream}");
    }
    let (late, _) = served(
        &server,
        CHAT,
        &body(&json!({ "stop": "STOP", "min_tokens": 25 })),
    );
    assert!(text(&late).starts_with("abSTOPcdSTOPeee"), "{late}");
}

#[test]
fn roles_that_nothing_knows_are_refused() {
    let server = Server::shared();
    for path in [CHAT, "/apply-template", "/tokenize"] {
        let body = json!({ "messages": [{ "role": "user", "content": "a" }, { "role": "usr", "content": "b" }] });
        let (status, answer) = server.json("POST", path, &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!("messages[1].role")),
            "{answer}"
        );
        assert!(
            message.contains("`usr`") && message.contains("`assistant`"),
            "{message}"
        );
    }
}

#[test]
fn threads_of_anthropics_clients_are_refused_in_their_words() {
    let server = Server::shared();
    let body = json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": "hi" }] });
    let (status, answer) = server.json(
        "POST",
        "/v1/messages",
        &with(body.clone(), &json!({ "thread": { "type": "create" } })),
    );
    assert_eq!(
        (status, &answer["error"]["type"]),
        (400, &json!("invalid_request_error"))
    );
    let details = json!({ "error_code": "thread_unsupported_request", "unsupported": ["thread"] });
    assert_eq!(answer["error"]["details"], details, "{answer}");
    for extra in [
        json!({ "thread": null }),
        json!({ "cache_control": { "type": "ephemeral" } }),
    ] {
        let (_, ignored) = served(&server, "/v1/messages", &with(body.clone(), &extra));
        assert_eq!(
            ignored,
            if extra["thread"].is_null() && extra.get("thread").is_some() {
                ""
            } else {
                "cache_control"
            }
        );
    }
    let blocks =
        json!([{ "type": "text", "text": "hi", "cache_control": { "type": "ephemeral" } }]);
    let strict = Server::start(&["--strict-fields"]);
    let body = with(
        body,
        &json!({ "system": blocks, "messages": [{ "role": "user", "content": blocks }] }),
    );
    assert_eq!(strict.json("POST", "/v1/messages", &body).0, 200);
}
