//! Fields of other servers: honoured, without effect, refused (docs/compatibility.md).

use lab_base::weights::Value as Meta;
use serde_json::{Value, json};

use crate::contact::changed;
use crate::support::command::{scratch, text};
use crate::support::server::{Server, with};

fn body(extra: &Value) -> Value {
    with(
        json!({
            "model": "tiny-chat", "temperature": 0, "max_tokens": 40,
            "messages": [{ "role": "user", "content": "Count from 1 to 9." }],
        }),
        extra,
    )
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("text")
}

#[test]
fn fields_without_effect_are_accepted_and_listed() {
    let server = Server::start(&[]);
    let extra = json!({
        "user": "u", "store": true, "metadata": { "a": "b" }, "verbosity": "low",
        "use_beam_search": false, "length_penalty": 1, "service_tier": null,
    });
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let mut body = body(&extra);
        if path == "/v1/completions" {
            body.as_object_mut().expect("an object").remove("messages");
            body["prompt"] = "1 2 3".into();
        }
        for stream in [false, true] {
            body["stream"] = stream.into();
            let body = body.to_string();
            let (status, head, answer) = server.raw("POST", path, "application/json", &body);
            assert_eq!(status, 200, "{answer}");
            let listed = "x-bench-ignored: metadata, store, user, verbosity\r\n";
            assert!(head.contains(listed), "{head}");
            assert_eq!(head.contains("x-accel-buffering: no"), stream, "{head}");
        }
    }
    let (_, head, _) = server.raw(
        "POST",
        "/v1/chat/completions",
        "application/json",
        &body(&json!({})).to_string(),
    );
    assert!(!head.contains("x-bench-ignored"), "{head}");
}

#[test]
fn fields_of_drafts_limit_them() {
    let server = Server::start(&["--draft", "auto"]);
    let ask = |extra: Value| {
        let extra = with(extra, &json!({ "timings_per_token": true }));
        server.chat(body(&extra))
    };
    // No draft has so many tokens.
    for none in [
        json!({ "speculative.n_max": 0 }),
        json!({ "speculative.n_max": -3 }),
        json!({ "draft": 0, "speculative.n_max": 8 }),
        json!({ "speculative.n_min": 99 }),
    ] {
        let (status, answer) = ask(none);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["timings"]["draft_n"], Value::Null, "{answer}");
    }
    for wrong in [
        json!({ "speculative.n_max": "8" }),
        json!({ "speculative.p_min": true }),
    ] {
        let (status, answer) = ask(wrong);
        assert_eq!(status, 400, "{answer}");
    }
}

#[test]
fn fields_that_would_change_the_result_are_refused() {
    let server = Server::start(&[]);
    for (extra, code, param) in [
        (
            json!({ "use_beam_search": true }),
            "unsupported_parameter",
            "use_beam_search",
        ),
        (json!({ "echo": true }), "unsupported_parameter", "echo"),
        (
            json!({ "dynatemp_range": 0.5 }),
            "unsupported_parameter",
            "dynatemp_range",
        ),
        (
            json!({ "metadata": { "a": 1 } }),
            "invalid_type",
            "metadata.a",
        ),
        (json!({ "metadata": [] }), "invalid_type", "metadata"),
        (json!({ "user": 7 }), "invalid_type", "user"),
        (json!({ "store": "yes" }), "invalid_type", "store"),
        (
            json!({ "max_tokens": 10, "min_tokens": 50 }),
            "invalid_value",
            "min_tokens",
        ),
        (
            json!({ "stop_token_ids": [99_999_999] }),
            "invalid_value",
            "stop_token_ids",
        ),
        (
            json!({ "stop_token_ids": vec![1; 129] }),
            "invalid_value",
            "stop_token_ids",
        ),
        (json!({ "stop": "x".repeat(5000) }), "invalid_value", "stop"),
        (
            json!({ "dry_sequence_breakers": vec!["a"; 100_000] }),
            "invalid_value",
            "dry_sequence_breakers",
        ),
        (
            json!({ "samplers": vec!["top_k"; 100_000] }),
            "invalid_value",
            "samplers",
        ),
        (
            json!({ "repetition_penalty": 0 }),
            "invalid_value",
            "repetition_penalty",
        ),
        (
            json!({ "guided_choice": [] }),
            "invalid_type",
            "guided_choice",
        ),
        (
            json!({ "guided_choice": ["a"], "guided_regex": "b" }),
            "invalid_value",
            "guided_choice",
        ),
        (
            json!({ "max_tokens": "x".repeat(1000) }),
            "invalid_type",
            "max_tokens",
        ),
    ] {
        server.refused(extra, 400, code, param);
    }
    let many = vec![json!({ "role": "user", "content": "x" }); 20_000];
    server.refused(
        json!({ "messages": many }),
        400,
        "invalid_value",
        "messages",
    );
    let (_, answer) = server.chat(json!({ "max_tokens": "x".repeat(1000) }));
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(
        message.len() < 200 && message.contains("a whole number"),
        "{message}"
    );
    let (status, answer) = server.chat(json!({ "stream_options": { "x".repeat(5000): 1 } }));
    assert_eq!(status, 400);
    assert!(answer.to_string().len() < 500, "{answer}");
    let strict = Server::start(&["--strict-fields"]);
    let (_, answer) = strict.chat(json!({ "metadate": {} }));
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(message.contains("did you mean `metadata`?"), "{message}");
}

#[test]
fn ends_of_other_servers_are_honoured() {
    let server = Server::start(&[]);
    let ask = |extra: Value| {
        let (status, answer) = server.json("POST", "/v1/chat/completions", &body(&extra));
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let whole = ask(json!({ "logprobs": true }));
    let tokens = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("tokens")
        .clone();
    let n = whole["usage"]["completion_tokens"]
        .as_u64()
        .expect("a number");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert!(n < 35, "{whole}");

    let predicted = ask(json!({ "max_tokens": null, "n_predict": 3 }));
    assert_eq!(predicted["usage"]["completion_tokens"], 3);
    let longer = ask(json!({ "min_tokens": n + 4 }));
    assert!(
        longer["usage"]["completion_tokens"].as_u64() >= Some(n + 4),
        "{longer}"
    );
    assert!(content(&longer).starts_with(content(&whole)));

    // The first token that is not the first of its kind would end the completion earlier.
    let at = (1..tokens.len())
        .find(|at| {
            tokens[..*at]
                .iter()
                .all(|token| token["id"] != tokens[*at]["id"])
        })
        .expect("a second token");
    let stopped = ask(json!({ "stop_token_ids": [tokens[at]["id"]] }));
    let before: String = tokens[..at]
        .iter()
        .filter_map(|t| t["token"].as_str())
        .collect();
    assert_eq!(content(&stopped), before);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");

    let text = tokens[at]["token"].as_str().expect("text");
    let kept = ask(json!({ "stop": text, "include_stop_str_in_output": true }));
    let cut = content(&whole).find(text).expect("it is there") + text.len();
    assert_eq!(content(&kept), &content(&whole)[..cut]);

    let chosen = ask(json!({ "guided_choice": ["a+b? (yes)", "$no^"] }));
    assert!(
        ["a+b? (yes)", "$no^"].contains(&content(&chosen)),
        "{chosen}"
    );
    let chosen = ask(json!({ "structured_outputs": { "choice": ["\\d\n"] } }));
    assert_eq!(content(&chosen), "\\d\n");
}

#[test]
fn the_cache_and_the_penalty_have_two_names() {
    let server = Server::start(&["--parallel", "1"]);
    let long = json!([{ "role": "user", "content": "Count from 1 to 9, and then again from 1 to 9, please." }]);
    let ask = |extra: Value| {
        let mut body = body(&extra);
        body["messages"] = long.clone();
        let (status, answer) = server.json("POST", "/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        (content(&answer).to_owned(), cached.expect("a number"))
    };
    let (first, _) = ask(json!({}));
    let (again, cached) = ask(json!({ "cache_prompt": true }));
    assert!(cached > 0);
    let (without, cached) = ask(json!({ "cache_prompt": false }));
    assert_eq!((&again, &without, cached), (&first, &first, 0));
    let ours = ask(json!({ "repeat_penalty": 5, "repeat_last_n": -1 }));
    let theirs = ask(json!({ "repetition_penalty": 5 }));
    assert_eq!(ours.0, theirs.0);
    assert_ne!(ours.0, first);
}

#[test]
fn prompts_are_cut_at_their_start_if_that_is_asked_for() {
    let server = Server::shared();
    let complete = |extra: Value| {
        let body = with(
            json!({ "model": "default", "temperature": 0, "max_tokens": 5, "echo": true, "logprobs": 0, "ignore_eos": true }),
            &extra,
        );
        server.json("POST", "/v1/completions", &body)
    };
    let words = json!({ "content": "Count from 1 to 9. 2+2=" });
    let (_, tokens) = server.json("POST", "/tokenize", &words);
    let ids = tokens["tokens"].as_array().expect("tokens");
    let last = &ids[ids.len() - 4..];
    let (_, expected) = complete(json!({ "prompt": last }));
    assert_eq!(expected["usage"]["prompt_tokens"], 4);
    for prompt in [json!(ids), words["content"].clone()] {
        let (status, cut) = complete(json!({ "prompt": prompt, "truncate_prompt_tokens": 4 }));
        assert_eq!(status, 200, "{cut}");
        assert_eq!(cut["choices"], expected["choices"], "{prompt}");
        assert_eq!(cut["usage"]["prompt_tokens"], 4);
    }
    // What fits is whole; what does not is cut so that there is room for the completion.
    let (_, whole) = complete(json!({ "prompt": ids, "truncate_prompt_tokens": -1 }));
    assert_eq!(whole["usage"]["prompt_tokens"], ids.len());
    let n_ctx = tokens["max_model_len"].as_u64().expect("a number");
    let long = "1+2=3 ".repeat(400);
    let (_, fitted) = complete(json!({ "prompt": long, "truncate_prompt_tokens": -1 }));
    assert_eq!(fitted["usage"]["total_tokens"], n_ctx, "{fitted}");
    let talk = json!([{ "role": "user", "content": long }]);
    for (kept, expected) in [(json!(-1), n_ctx - 5), (json!(20), 20)] {
        let chat = json!({ "messages": talk, "max_tokens": 5, "truncate_prompt_tokens": kept });
        let (status, answer) = server.chat(chat);
        assert_eq!(
            (status, &answer["usage"]["prompt_tokens"]),
            (200, &json!(expected))
        );
    }
    for wrong in [json!(0), json!(-2), json!(n_ctx + 1)] {
        let extra = json!({ "truncate_prompt_tokens": wrong });
        server.refused(extra, 400, "invalid_value", "truncate_prompt_tokens");
    }
    // The token that the vocabulary puts first stays.
    let folder = scratch();
    let bos = [
        ("tokenizer.ggml.bos_token_id", Meta::U32(1)),
        ("tokenizer.ggml.add_bos_token", Meta::Bool(true)),
    ];
    let model = changed(folder.path(), "bos.gguf", &bos, true);
    let server = Server::start(&["-m", text(&model)]);
    let body = json!({ "prompt": words["content"], "truncate_prompt_tokens": 4, "prompt_logprobs": 0, "max_tokens": 0, "echo": true });
    let (_, answer) = server.json("POST", "/v1/completions", &body);
    assert_eq!(answer["usage"]["prompt_tokens"], 4);
    let (_, tail) = server.json("POST", "/detokenize", &json!({ "tokens": last[1..] }));
    assert_eq!(answer["choices"][0]["text"], tail["content"]);
    // Also that of a conversation.
    let messages = json!([{ "role": "user", "content": words["content"] }]);
    let (_, tokens) = server.json("POST", "/tokenize", &json!({ "messages": messages }));
    let ids = tokens["tokens"].as_array().expect("tokens");
    assert_eq!(ids[0], 1, "{tokens}");
    let kept = [&ids[..1], &ids[ids.len() - 3..]].concat();
    let scored = json!({ "prompt_logprobs": 0, "max_tokens": 1, "temperature": 0 });
    let body = with(scored.clone(), &json!({ "prompt": kept }));
    let (_, expected) = server.json("POST", "/v1/completions", &body);
    let extra = json!({ "model": "default", "messages": messages, "truncate_prompt_tokens": 4 });
    let (status, answer) = server.chat(with(scored, &extra));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["usage"]["prompt_tokens"], 4);
    let all = &answer["prompt_logprobs"];
    assert_eq!(all, &expected["choices"][0]["prompt_logprobs"], "{answer}");
    assert!(all.as_array().is_some_and(|all| all.len() == 4), "{answer}");
}

#[test]
fn tokens_are_named_by_their_ids_if_that_is_asked_for() {
    let server = Server::shared();
    let wanted = json!({ "logprobs": true, "top_logprobs": 2, "return_tokens_as_token_ids": true });
    let mut all = server.chat(wanted.clone()).1["choices"][0]["logprobs"]["content"].clone();
    for event in server.stream(wanted) {
        let chunk: Value = serde_json::from_str(&event).unwrap_or_default();
        let own = chunk["choices"][0]["logprobs"]["content"]
            .as_array()
            .cloned();
        all.as_array_mut()
            .expect("entries")
            .extend(own.unwrap_or_default());
    }
    let entries = all.as_array().expect("entries");
    assert!(
        entries.len() > 4 && entries.len().is_multiple_of(2),
        "as many in the stream"
    );
    for entry in entries {
        for entry in entry["top_logprobs"]
            .as_array()
            .expect("a list")
            .iter()
            .chain([entry])
        {
            assert_eq!(entry["token"], format!("token_id:{}", entry["id"]));
            assert!(entry["bytes"].is_array());
        }
    }
    let body = json!({
        "model": "default", "prompt": "2+2=", "echo": true, "logprobs": 1, "max_tokens": 2,
        "return_tokens_as_token_ids": true,
    });
    let (_, answer) = server.json("POST", "/v1/completions", &body);
    let arrays = &answer["choices"][0]["logprobs"];
    let (_, tokens) = server.json("POST", "/tokenize", &json!({ "prompt": "2+2=" }));
    let ids = tokens["tokens"].as_array().expect("tokens").iter();
    let names: Vec<String> = ids.map(|id| format!("token_id:{id}")).collect();
    let found = arrays["tokens"].as_array().expect("names");
    assert_eq!(
        found[..names.len()],
        names.iter().map(|n| json!(n)).collect::<Vec<_>>()
    );
    let top = arrays["top_logprobs"][1].as_object().expect("a map");
    assert!(
        top.keys().all(|name| name.starts_with("token_id:")),
        "{top:?}"
    );
}

#[test]
fn special_tokens_are_shown_or_left_out() {
    let server = Server::shared();
    let words = json!({ "content": "<|im_start|>", "with_pieces": true });
    let (_, tokens) = server.json("POST", "/tokenize", &words);
    assert_eq!(tokens["count"], 1, "{tokens}");
    let id = tokens["tokens"][0]["id"].to_string();
    let ask = |skip: Value, stream: bool| {
        let body = json!({
            "model": "default", "prompt": "2+2=", "max_tokens": 3, "temperature": 0, "logprobs": 0,
            "logit_bias": { &id: 100 }, "skip_special_tokens": skip, "stream": stream,
        });
        if !stream {
            let (status, answer) = server.json("POST", "/v1/completions", &body);
            assert_eq!(status, 200, "{answer}");
            let choice = &answer["choices"][0];
            let n = choice["logprobs"]["tokens"].as_array().map_or(0, Vec::len);
            assert_eq!(answer["usage"]["completion_tokens"], 3);
            return (choice["text"].as_str().expect("a text").to_owned(), n);
        }
        let mut out = (String::new(), 0);
        for event in server.events("/v1/completions", &body) {
            let chunk: Value = serde_json::from_str(&event).unwrap_or_default();
            let choice = &chunk["choices"][0];
            out.0 += choice["text"].as_str().unwrap_or_default();
            out.1 += choice["logprobs"]["tokens"].as_array().map_or(0, Vec::len);
        }
        out
    };
    for stream in [false, true] {
        assert_eq!(ask(json!(true), stream), (String::new(), 0));
        for shown in [json!(false), json!(null)] {
            assert_eq!(ask(shown, stream), ("<|im_start|>".repeat(3), 3));
        }
    }
}
