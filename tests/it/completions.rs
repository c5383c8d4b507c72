//! `POST /v1/completions`: shapes, echoed prompts with log-probabilities, several prompts.

use serde_json::{Value, json};

use crate::support::server::{Server, with};

const PATH: &str = "/v1/completions";

fn body(extra: impl Into<Value>) -> Value {
    with(
        json!({ "model": "default", "prompt": "2+2=", "temperature": 0 }),
        &extra.into(),
    )
}

fn complete(server: &Server, extra: Value) -> Value {
    server.post(PATH, &body(extra))
}

fn numbers(value: &Value) -> Vec<Option<f64>> {
    let all = value.as_array().expect("an array").iter();
    all.map(Value::as_f64).collect()
}

fn text_of(choice: &Value) -> &str {
    choice["text"].as_str().expect("a text")
}

#[test]
fn echoed_prompts_have_the_log_probabilities_of_decoding() {
    let server = Server::start(&[]);
    let generated = complete(&server, json!({ "max_tokens": 6, "logprobs": 3 }));
    let choice = &generated["choices"][0];
    let arrays = &choice["logprobs"];
    let n = arrays["tokens"].as_array().expect("an array").len();
    assert!(n > 0);
    for name in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(arrays[name].as_array().map(Vec::len), Some(n), "{arrays}");
    }
    // The offset is that of the completion's text where the prompt is not echoed.
    assert_eq!(arrays["text_offset"][0], 0);
    assert_eq!(generated["object"], "text_completion");

    let text = format!("2+2={}", text_of(choice));
    let echoed = json!({ "prompt": text, "max_tokens": 0, "logprobs": 1, "echo": true });
    let scored = complete(&server, echoed.clone());
    let whole = &scored["choices"][0];
    assert_eq!(text_of(whole), text);
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    assert_eq!(whole["finish_reason"], "length");
    let logprobs = numbers(&whole["logprobs"]["token_logprobs"]);
    assert_eq!(logprobs.len(), scored["usage"]["prompt_tokens"]);
    assert_eq!(logprobs[0], None, "the first token follows nothing");
    assert_eq!(whole["logprobs"]["top_logprobs"][0], Value::Null);
    assert!(logprobs[1..].iter().all(|l| l.is_some_and(|l| l <= 0.0)));
    let offsets = numbers(&whole["logprobs"]["text_offset"]);
    assert_eq!(offsets[0], Some(0.0));
    let pieces = whole["logprobs"]["tokens"].as_array().expect("an array");
    for ((piece, start), end) in pieces.iter().zip(&offsets).zip(&offsets[1..]) {
        let (start, end) = (start.expect("a number"), end.expect("a number"));
        let piece = piece.as_str().expect("a text");
        let part = &text[start as usize..end as usize];
        assert!(
            part.is_empty() || part == piece,
            "{part:?} is not {piece:?}"
        );
    }
    // The best token of a position is the one that greedy decoding chose, with the same number.
    let from = logprobs.len() - n.min(logprobs.len() - 1);
    let decoded = numbers(&arrays["token_logprobs"]);
    for (at, decoded) in (from..logprobs.len()).zip(&decoded) {
        let top = whole["logprobs"]["top_logprobs"][at]
            .as_object()
            .expect("a map");
        let most = top
            .values()
            .filter_map(Value::as_f64)
            .fold(f64::MIN, f64::max);
        assert_eq!(Some(most), logprobs[at], "greedy: item 17");
        let (scored, decoded) = (logprobs[at].expect("scored"), decoded.expect("decoded"));
        assert!((scored - decoded).abs() < 2e-2, "{scored} is not {decoded}");
    }

    // What is cached, and how the request is made, changes nothing.
    let again = complete(&server, echoed.clone());
    assert_eq!(again["choices"], scored["choices"]);
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let ids: Vec<Value> = {
        let other = complete(
            &server,
            json!({ "prompt": text, "prompt_logprobs": 0, "max_tokens": 0 }),
        );
        let of_prompt = other["choices"][0]["prompt_logprobs"]
            .as_array()
            .expect("an array");
        let ids = of_prompt[1..].iter().map(|position| {
            let (id, entry) = position
                .as_object()
                .and_then(|o| o.iter().next())
                .expect("one");
            assert!(
                entry["rank"].as_u64().is_some_and(|rank| rank >= 1),
                "{entry}"
            );
            json!(id.parse::<u32>().expect("an id"))
        });
        ids.collect()
    };
    assert_eq!(ids.len() + 1, logprobs.len());
}

/// Clients that score texts drop the last entry, whatever token was generated after the prompt.
#[test]
fn the_token_that_ends_a_completion_has_a_logprobs_entry() {
    let server = Server::start(&[]);
    let end = {
        let (status, info) = server.json("GET", "/tokenizer_info", &Value::Null);
        assert_eq!(status, 200);
        info["eos_token"].as_str().expect("a text").to_owned()
    };
    // After a whole answer, the end is nearly certain.
    let (_, prompt) = server.json(
        "POST",
        "/apply-template",
        &json!({ "messages": [{ "role": "user", "content": "2+2=?" }] }),
    );
    let prompt = format!("{}2+2=4", prompt["prompt"].as_str().expect("a text"));
    let tokens = server
        .json("POST", "/tokenize", &json!({ "prompt": prompt }))
        .1;
    let n = tokens["count"].as_u64().expect("a count") as usize;
    let scored =
        json!({ "prompt": tokens["tokens"], "max_tokens": 1, "logprobs": 1, "echo": true });
    let answer = complete(&server, scored.clone());
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    let arrays = &choice["logprobs"];
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(
            arrays[name].as_array().expect("an array").len(),
            n + 1,
            "{name}"
        );
    }
    assert_eq!(arrays["tokens"][n], end.as_str());
    let logprob = &arrays["token_logprobs"][n];
    assert!(logprob.as_f64().expect("a number") > -0.1, "{logprob}");
    assert_eq!(&arrays["top_logprobs"][n][&end], logprob);
    let n_characters = text_of(choice).chars().count();
    assert_eq!(
        arrays["text_offset"][n], n_characters,
        "it is not in the text"
    );

    let mut streamed = body(scored);
    streamed["stream"] = true.into();
    let mut all = Vec::new();
    for data in server.events(PATH, &streamed) {
        let event: Value = serde_json::from_str(&data).unwrap_or_default();
        let entries = event["choices"][0]["logprobs"]["token_logprobs"]
            .as_array()
            .cloned();
        all.extend(entries.unwrap_or_default());
    }
    assert_eq!(Value::from(all), arrays["token_logprobs"]);
}

#[test]
fn every_prompt_has_n_choices() {
    let server = Server::start(&["--parallel", "2"]);
    let (_, one) = server.json(
        "POST",
        "/tokenize",
        &json!({ "content": "2+2=", "add_special": true }),
    );
    let ids = one["tokens"].clone();
    let by_text = complete(&server, json!({ "max_tokens": 4 }));
    let by_ids = complete(&server, json!({ "prompt": ids, "max_tokens": 4 }));
    assert_eq!(by_text["choices"], by_ids["choices"]);
    for prompt in [json!(["2+2=", "3+3=", "2+2="]), json!([ids, ids, ids])] {
        let all = complete(
            &server,
            json!({ "prompt": prompt, "max_tokens": 4, "n": 2 }),
        );
        let choices = all["choices"].as_array().expect("an array");
        assert_eq!(choices.len(), 6);
        for (i, choice) in choices.iter().enumerate() {
            assert_eq!(choice["index"], i);
        }
        assert_eq!(text_of(&choices[0]), text_of(&by_text["choices"][0]));
        assert_eq!(text_of(&choices[5]), text_of(&choices[0]));
    }
    let usage =
        |prompt: Value| complete(&server, json!({ "prompt": prompt, "n": 3 }))["usage"].clone();
    let (once, twice) = (usage(json!("2+2=")), usage(json!(["2+2=", "2+2="])));
    let tokens = |usage: &Value| usage["prompt_tokens"].as_u64().expect("a number");
    assert_eq!(
        2 * tokens(&once),
        tokens(&twice),
        "a prompt counts once, however many choices"
    );
    // More completions than the queue holds are taken together.
    let many = complete(&server, json!({ "n": 128, "max_tokens": 1 }));
    assert_eq!(many["choices"].as_array().map(Vec::len), Some(128));
}

#[test]
fn best_of_returns_the_choices_of_highest_mean_log_probability() {
    let server = Server::start(&[]);
    let extra = json!({
        "best_of": 6, "n": 2, "temperature": 2, "seed": 7, "max_tokens": 5, "logprobs": 0,
    });
    let best = complete(&server, extra);
    let choices = best["choices"].as_array().expect("an array");
    assert_eq!(choices.len(), 2);
    let mean = |choice: &Value| {
        let all = numbers(&choice["logprobs"]["token_logprobs"]);
        all.iter().flatten().sum::<f64>() / all.len().max(1) as f64
    };
    let all = complete(
        &server,
        json!({ "n": 6, "temperature": 2, "seed": 7, "max_tokens": 5, "logprobs": 0 }),
    );
    let mut means: Vec<f64> = all["choices"]
        .as_array()
        .expect("all")
        .iter()
        .map(mean)
        .collect();
    means.sort_by(|a, b| b.total_cmp(a));
    assert!((mean(&choices[0]) - means[0]).abs() < 1e-2, "{means:?}");
    assert!((mean(&choices[1]) - means[1]).abs() < 1e-2, "{means:?}");
}

#[test]
fn a_streamed_completion_equals_the_whole_one() {
    let server = Server::start(&[]);
    let extra = json!({
        "max_tokens": 6, "logprobs": 2, "echo": true, "n": 2,
        "stream_options": { "include_usage": true },
    });
    let events = server.events(PATH, &body(extra));
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let whole = complete(
        &server,
        json!({ "max_tokens": 6, "logprobs": 2, "echo": true, "n": 2 }),
    );
    for choice in whole["choices"].as_array().expect("an array") {
        let own = |chunk: &&Value| chunk["choices"][0]["index"] == choice["index"];
        let own: Vec<&Value> = chunks
            .iter()
            .filter(own)
            .map(|c| &c["choices"][0])
            .collect();
        let text: String = own.iter().map(|part| text_of(part)).collect();
        assert_eq!(text, text_of(choice));
        for name in ["tokens", "text_offset"] {
            let all = own
                .iter()
                .filter_map(|part| part["logprobs"][name].as_array());
            let all: Vec<&Value> = all.flatten().collect();
            let expected: Vec<&Value> = choice["logprobs"][name]
                .as_array()
                .expect("all")
                .iter()
                .collect();
            assert_eq!(all, expected, "{name}");
        }
        let last = own.last().expect("chunks");
        assert_eq!(
            (&last["text"], &last["finish_reason"]),
            (&json!(""), &choice["finish_reason"])
        );
    }
    let last = chunks.last().expect("chunks");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"]["prompt_tokens"],
        whole["usage"]["prompt_tokens"]
    );
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "text_completion")
    );
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
}

#[test]
fn invalid_completion_requests_are_refused_with_their_field() {
    let server = Server::start(&["--strict-fields"]);
    for (extra, param) in [
        (json!({ "prompt": null }), "prompt"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": 5 }), "prompt"),
        (json!({ "prompt": ["a", 5] }), "prompt[1]"),
        (json!({ "prompt": [1, -1] }), "prompt[1]"),
        (json!({ "prompt": [1, 4_000_000] }), "prompt"),
        (json!({ "prompt": [[]] }), "prompt"),
        (json!({ "prompt": vec!["a"; 129] }), "prompt"),
        (json!({ "prompt": "2+2=".repeat(4000) }), "prompt"),
        (json!({ "logprobs": 21 }), "logprobs"),
        (json!({ "best_of": 1, "n": 2 }), "best_of"),
        (json!({ "best_of": 2, "stream": true }), "best_of"),
        (json!({ "suffix": "x" }), "suffix"),
        (
            json!({ "prompt_logprobs": 1, "stream": true }),
            "prompt_logprobs",
        ),
        (json!({ "messages": [] }), "messages"),
    ] {
        let (status, answer) = server.json("POST", PATH, &body(extra.clone()));
        let error = &answer["error"];
        assert_eq!(
            (status, &error["param"]),
            (400, &json!(param)),
            "{extra}: {answer}"
        );
    }
}

/// Each of these once took seconds of every request, or was answered with a server error.
#[test]
fn hostile_requests_cost_and_break_nothing() {
    let server = Server::start(&["--strict-fields", "--strict-model"]);
    let key = "k".repeat(3_000_000);
    let start = std::time::Instant::now();
    let (status, answer) = server.json("POST", PATH, &body(json!({ key: 1 })));
    assert_eq!(status, 400);
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    assert!(
        answer.to_string().len() < 1000,
        "the error quotes the key as a whole"
    );
    let (status, answer) = server.json(
        "POST",
        PATH,
        &body(json!({ "model": "m".repeat(1_000_000) })),
    );
    assert_eq!((status, answer.to_string().len() < 1000), (404, true));

    let (_, info) = server.json("GET", "/tokenizer_info", &Value::Null);
    let n_vocab = info["vocab_size"].as_u64().expect("a number");
    let biases: serde_json::Map<String, Value> = (0..n_vocab)
        .map(|id| (id.to_string(), json!(-100)))
        .collect();
    let (status, answer) = server.json("POST", PATH, &body(json!({ "logit_bias": biases })));
    assert_eq!(
        (status, &answer["error"]["param"]),
        (400, &json!("logit_bias")),
        "{answer}"
    );

    for (kind, expected) in [
        ("application/json; charset=utf-8", 200),
        ("application/jsonp", 415),
        ("text/plain", 415),
    ] {
        let (status, _, _) = server.raw("POST", PATH, kind, &body(json!({})).to_string());
        assert_eq!(status, expected, "{kind}");
    }
    let (status, answer) = server.json("GET", "/v1/models/%zz%ff", &Value::Null);
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    let (status, answer) = server.json("POST", PATH, &body(json!({ "stop": 5 })));
    assert_eq!(status, 400);
    assert_eq!(
        answer["error"]["message"],
        "`stop`: expected a string or an array of strings"
    );
}

#[test]
fn texts_and_tokens_are_turned_into_each_other() {
    let server = Server::start(&[]);
    let post = |path: &str, body: Value| {
        let (status, answer) = server.json("POST", path, &body);
        assert_eq!(status, 200, "{path} {body}: {answer}");
        answer
    };
    let vllm = post(
        "/tokenize",
        json!({ "model": "tiny-chat", "prompt": "2+2=?", "return_token_strs": true }),
    );
    let llama = post(
        "/tokenize",
        json!({ "content": "2+2=?", "add_special": true, "with_pieces": true }),
    );
    let ids = vllm["tokens"].as_array().expect("an array");
    assert_eq!(vllm["count"], ids.len());
    assert_eq!(vllm["token_strs"].as_array().map(Vec::len), Some(ids.len()));
    assert!(vllm["max_model_len"].as_u64().is_some_and(|n| n > 0));
    let pieces = llama["tokens"].as_array().expect("an array");
    assert!(
        pieces.iter().zip(ids).all(|(piece, id)| piece["id"] == *id),
        "{llama}"
    );
    let plain = post("/tokenize", json!({ "content": "2+2=?" }));
    let back = post("/detokenize", json!({ "tokens": plain["tokens"] }));
    assert_eq!(
        (&back["prompt"], &back["content"]),
        (&json!("2+2=?"), &json!("2+2=?"))
    );

    let messages = json!([{ "role": "user", "content": "2+2=?" }]);
    let template = post("/apply-template", json!({ "messages": messages }));
    let chat = post("/tokenize", json!({ "messages": messages }));
    let text = template["prompt"].as_str().expect("a text");
    assert!(text.contains("2+2=?"), "{text}");
    let open = post(
        "/apply-template",
        json!({ "messages": messages, "add_generation_prompt": false }),
    );
    let open = open["prompt"].as_str().expect("a text");
    assert!(text.starts_with(open) && text != open, "{text:?} {open:?}");
    let again = post("/detokenize", json!({ "tokens": chat["tokens"] }));
    assert_eq!(again["content"], text);
    let (status, info) = server.json("GET", "/tokenizer_info", &Value::Null);
    assert_eq!(status, 200);
    assert!(info["eos_token"].is_string(), "{info}");
    let (status, error) = server.json(
        "POST",
        "/detokenize",
        &json!({ "tokens": [4_000_000_000_u32] }),
    );
    assert_eq!(
        (status, &error["error"]["param"]),
        (400, &json!("tokens[0]"))
    );
}

#[test]
fn processed_log_probabilities_are_those_after_all_stages() {
    let server = Server::start(&[]);
    let sampling = json!({
        "max_tokens": 6, "logprobs": 20, "temperature": 2, "top_k": 4, "seed": 5, "ignore_eos": true,
    });
    let with = |more: Value| {
        let body = with(sampling.clone(), &more);
        complete(&server, body)["choices"][0].clone()
    };
    let raw = with(json!({ "logprobs_mode": "raw_logprobs" }));
    let processed = with(json!({ "logprobs_mode": "processed_logprobs" }));
    assert_eq!(with(json!({}))["logprobs"], raw["logprobs"], "the default");
    assert_eq!(raw["text"], processed["text"]);
    let tokens = raw["logprobs"]["tokens"].as_array().expect("an array");
    assert_eq!(tokens.len(), 6);
    for at in 0..tokens.len() {
        let list = |choice: &Value| {
            let top = choice["logprobs"]["top_logprobs"][at].as_object().cloned();
            let top = top.expect("an object").into_iter();
            let mut top: Vec<(String, f64)> = top
                .map(|(token, l)| (token, l.as_f64().expect("a number")))
                .collect();
            top.sort_by(|a, b| b.1.total_cmp(&a.1));
            top
        };
        // The four best that `ignore_eos` leaves, of the model's own log-probabilities at temperature 2.
        let best = list(&raw)
            .into_iter()
            .filter(|(token, _)| token != "<|im_end|>");
        let best: Vec<_> = best.take(4).collect();
        let sum: f64 = best.iter().map(|(_, l)| (l / 2.0).exp()).sum();
        let found = list(&processed);
        assert_eq!(found.len(), 4, "{found:?}");
        for ((token, logprob), (expected, own)) in found.iter().zip(&best) {
            assert_eq!(token, expected);
            assert!(
                (logprob - (own / 2.0 - sum.ln())).abs() < 1e-5,
                "{found:?} {best:?}"
            );
        }
    }
    let (status, answer) = server.json(
        "POST",
        PATH,
        &body(json!({ "logprobs_mode": "raw_logits" })),
    );
    assert_eq!(
        (status, &answer["error"]["param"]),
        (400, &json!("logprobs_mode"))
    );
    let diffusion = Server::start(&["-m", "tiny-diffusion"]);
    let refused = json!({ "logprobs": 1, "logprobs_mode": "processed_logprobs" });
    let (status, answer) = diffusion.json("POST", PATH, &body(refused));
    assert_eq!(
        (status, &answer["error"]["param"]),
        (400, &json!("logprobs_mode"))
    );
}
