//! Behaviours of the chat and completion endpoints that clients rely on, tested with the shared server.

use serde_json::{Value, json};

use crate::support::server::{Server, with};

const COMPLETIONS: &str = "/v1/completions";

fn choice(answer: &Value) -> &Value {
    &answer["choices"][0]
}

fn content(answer: &Value) -> &str {
    let text = choice(answer)["message"]["content"].as_str();
    text.unwrap_or_else(|| panic!("{answer}"))
}

fn asked(server: &Server, extra: Value) -> Value {
    let (status, answer) = server.chat(extra);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The chunks of a stream, without its `[DONE]`.
fn chunks(server: &Server, extra: Value) -> Vec<Value> {
    let mut events = server.stream(extra);
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let parsed = events.iter().map(|event| serde_json::from_str(event));
    parsed.map(|chunk| chunk.expect("JSON")).collect()
}

/// Content and log-probabilities of the choice `index` of a stream.
fn streamed(chunks: &[Value], index: u64) -> (String, Vec<Value>) {
    let (mut text, mut entries) = (String::new(), Vec::new());
    let own = chunks.iter().map(choice).filter(|c| c["index"] == index);
    for choice in own {
        text += choice["delta"]["content"].as_str().unwrap_or_default();
        let of_part = choice["logprobs"]["content"].as_array();
        entries.extend(of_part.cloned().unwrap_or_default());
    }
    (text, entries)
}

fn bytes(entries: &[Value]) -> Vec<u8> {
    let all = entries.iter().flat_map(|entry| entry["bytes"].as_array());
    all.flatten()
        .map(|byte| byte.as_u64().expect("a byte") as u8)
        .collect()
}

fn entries(answer: &Value) -> &Vec<Value> {
    let all = choice(answer)["logprobs"]["content"].as_array();
    all.unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn top_logprobs_are_0_to_20_and_need_logprobs() {
    let server = Server::shared();
    for n in [0, 20] {
        let answer = asked(&server, json!({ "logprobs": true, "top_logprobs": n }));
        let top = entries(&answer)[0]["top_logprobs"].as_array();
        assert_eq!(top.map(Vec::len), Some(n));
    }
    for logprobs in [json!(null), json!(false)] {
        let answer = asked(&server, json!({ "logprobs": logprobs }));
        assert_eq!(choice(&answer)["logprobs"], Value::Null);
        let alone = json!({ "logprobs": logprobs, "top_logprobs": 3 });
        server.refused(alone, 400, "invalid_value", "top_logprobs");
    }
    let many = json!({ "logprobs": true, "top_logprobs": 21 });
    server.refused(many, 400, "invalid_value", "top_logprobs");
}

#[test]
fn characters_of_several_tokens_are_streamed_whole_with_all_logprobs_entries() {
    let server = Server::shared();
    // Each byte of these characters is a token of the vocabulary.
    let text = "né 你好 🙂!";
    let request = json!({ "guided_choice": [text], "logprobs": true });
    let whole = asked(&server, request.clone());
    assert_eq!(content(&whole), text);
    assert_eq!(bytes(entries(&whole)), text.as_bytes());
    assert_eq!(entries(&whole).len(), text.len(), "one for each byte");
    let all = chunks(&server, request.clone());
    for chunk in &all {
        let delta = choice(chunk)["delta"]["content"].as_str();
        let own = choice(chunk)["logprobs"]["content"].as_array();
        let own = own.cloned().unwrap_or_default();
        assert_eq!(bytes(&own), delta.unwrap_or_default().as_bytes());
    }
    assert_eq!(streamed(&all, 0).0, text);

    // Cut within a character: what there is of it is one U+FFFD, at the end only.
    let mut cut = request;
    cut["max_tokens"] = json!(text.find('好').expect("it is there") + 2);
    let answer = asked(&server, cut.clone());
    assert_eq!(content(&answer), "né 你\u{fffd}");
    assert_eq!(streamed(&chunks(&server, cut), 0).0, "né 你\u{fffd}");
}

#[test]
fn invalid_utf8_becomes_one_replacement_character_per_sequence() {
    let server = Server::shared();
    let (_, tokens) = server.json("POST", "/tokenize", &json!({ "content": "🙂" }));
    let first = tokens["tokens"][0].to_string();
    let body = json!({
        "model": "default", "prompt": "a", "max_tokens": 3, "logprobs": 0, "logit_bias": { first: 100 },
    });
    let (status, answer) = server.json("POST", COMPLETIONS, &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(choice(&answer)["text"], "\u{fffd}\u{fffd}\u{fffd}");
    let tokens = &choice(&answer)["logprobs"]["tokens"];
    assert_eq!(
        tokens,
        &json!(["bytes:\\xf0", "bytes:\\xf0", "bytes:\\xf0"])
    );
}

#[test]
fn prompt_tokens_have_log_probabilities() {
    let server = Server::shared();
    let answer = asked(&server, json!({ "prompt_logprobs": 2 }));
    let all = answer["prompt_logprobs"].as_array().expect("an array");
    assert_eq!(all.len(), answer["usage"]["prompt_tokens"]);
    assert_eq!(all[0], Value::Null, "it follows nothing");
    for position in &all[1..] {
        let tokens = position.as_object().expect("an object");
        assert!((2..=3).contains(&tokens.len()), "{position}");
        for entry in tokens.values() {
            assert!(
                entry["logprob"]
                    .as_f64()
                    .is_some_and(|l| (-9999.0..=0.0).contains(&l))
            );
            assert!(entry["rank"].as_u64().is_some_and(|rank| rank >= 1));
            assert!(entry["decoded_token"].is_string());
        }
    }
}

/// The texts are forced, so that the place of each stop sequence is known.
#[test]
fn text_ends_at_the_first_of_several_stop_sequences() {
    let server = Server::shared();
    let text = "xqjxqz";
    let (_, tokens) = server.json("POST", "/tokenize", &json!({ "content": text }));
    assert_eq!(tokens["count"], text.len(), "one for each character");
    for (stops, expected, n_tokens, sequence) in [
        (json!("xqz"), "xqj", 6, json!("xqz")),
        (json!(["xqz", "jxq"]), "xq", 5, json!("jxq")),
        (json!(["q", "xq", "kk"]), "", 2, json!("xq")),
        // What was held back is released by the character that differs, or by the end.
        (json!("xqk"), text, 6, Value::Null),
        (json!("qzk"), text, 6, Value::Null),
    ] {
        let request = json!({
            "guided_choice": [text], "stop": stops, "logprobs": true,
            // Stop sequences of the prompt end nothing.
            "messages": [{ "role": "user", "content": "jxq, kk, qzk or xqz?" }],
        });
        let answer = asked(&server, request.clone());
        assert_eq!(content(&answer), expected, "{stops}");
        assert_eq!(choice(&answer)["finish_reason"], "stop");
        assert_eq!(choice(&answer)["stop_reason"], sequence);
        assert_eq!(bytes(entries(&answer)), expected.as_bytes());
        assert_eq!(answer["usage"]["completion_tokens"], n_tokens, "{stops}");
        let (text, entries) = streamed(&chunks(&server, request), 0);
        assert_eq!(
            (text.as_str(), bytes(&entries)),
            (expected, expected.into())
        );
    }
}

#[test]
fn text_after_a_stop_sequence_in_its_token_is_dropped() {
    let server = Server::shared();
    let words = json!({ "content": "the capital and the weather", "with_pieces": true });
    let (_, tokens) = server.json("POST", "/tokenize", &words);
    let mut all = tokens["tokens"].as_array().expect("tokens").iter();
    let (id, text) = all
        .find_map(|token| {
            let text = token["piece"].as_str()?;
            (text.chars().count() >= 3).then(|| (&token["id"], text.to_owned()))
        })
        .expect("a token of several characters");
    let middle: String = text.chars().skip(1).take(1).collect();
    let body = json!({
        "model": "default", "prompt": "a", "max_tokens": 4, "logprobs": 0, "stop": middle,
        "logit_bias": { id.to_string(): 100 },
    });
    let (_, answer) = server.json("POST", COMPLETIONS, &body);
    let first: String = text.chars().take(1).collect();
    assert_eq!(choice(&answer)["text"], first);
    assert_eq!(choice(&answer)["logprobs"]["tokens"], json!([first]));
    assert_eq!(answer["usage"]["completion_tokens"], 1);
}

#[test]
fn choices_of_a_stream_have_their_index_and_one_finish_reason_each() {
    let server = Server::shared();
    let request = json!({ "n": 3, "max_tokens": 6, "temperature": 2, "seed": 3, "logprobs": true });
    let mut with_usage = request.clone();
    with_usage["stream_options"] = json!({ "include_usage": true });
    let mut all = chunks(&server, with_usage);
    let usage = all.pop().expect("a chunk");
    assert_eq!(usage["choices"], json!([]));
    let n_tokens = |i: u64| {
        let own: Vec<&Value> = all
            .iter()
            .filter(|chunk| choice(chunk)["index"] == i)
            .collect();
        assert_eq!(choice(own[0])["delta"]["role"], "assistant");
        let ended = own
            .iter()
            .filter(|chunk| !choice(chunk)["finish_reason"].is_null());
        assert_eq!(ended.count(), 1, "{own:?}");
        let last = choice(own.last().expect("chunks"));
        assert_eq!(last["delta"], json!({}));
        let n = streamed(&all, i).1.len() as u64;
        n + u64::from(last["finish_reason"] == "stop")
    };
    let sum: u64 = (0..3).map(n_tokens).sum();
    assert_eq!(usage["usage"]["completion_tokens"], sum);
    let once = asked(&server, json!({}))["usage"]["prompt_tokens"].clone();
    assert_eq!(
        usage["usage"]["prompt_tokens"], once,
        "the prompt counts once"
    );
    server.refused(json!({ "n": 129 }), 400, "invalid_value", "n");
}

#[test]
fn seeds_are_signed_and_have_no_effect_at_temperature_0() {
    let server = Server::shared();
    let all = [json!(0), json!(-1), json!(i64::MIN), json!(i64::MAX)].map(|seed| {
        let answer = asked(&server, json!({ "seed": seed }));
        (
            content(&answer).to_owned(),
            answer["system_fingerprint"].clone(),
        )
    });
    assert!(
        all[0]
            .1
            .as_str()
            .is_some_and(|text| text.starts_with("fp_"))
    );
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
    let large = json!({ "seed": i64::MAX as u64 + 1 });
    server.refused(large, 400, "invalid_type", "seed");
    let other = Server::start(&["--deterministic"]);
    let other = asked(&other, json!({}))["system_fingerprint"].clone();
    assert_ne!(other, all[0].1, "another mode of computation");
}

#[test]
fn penalties_count_generated_tokens_only() {
    let server = Server::shared();
    // The same token all the time, which the prompt is full of.
    let (_, tokens) = server.json("POST", "/tokenize", &json!({ "content": "4" }));
    let id = tokens["tokens"][0].to_string();
    let lists = |extra: Value| -> Vec<Value> {
        let body = with(
            json!({
                "model": "default", "prompt": "4444", "max_tokens": 3, "logprobs": 20, "temperature": 1, "seed": 1,
                "logprobs_mode": "processed_logprobs", "logit_bias": { &id: 20 }, "ignore_eos": true,
            }),
            &extra,
        );
        let (status, answer) = server.json("POST", COMPLETIONS, &body);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(choice(&answer)["text"], "444", "{answer}");
        let lists = choice(&answer)["logprobs"]["top_logprobs"].as_array();
        lists.expect("lists").clone()
    };
    let free = lists(json!({}));
    let penal = lists(json!({ "presence_penalty": 1, "frequency_penalty": 0.5 }));
    // How far below others the token is, compared with no penalty.
    for (at, expected) in [0.0, 1.5, 2.0].into_iter().enumerate() {
        let number = |list: &Value, token: &str| list[token].as_f64();
        let others = free[at].as_object().expect("an object").keys();
        let falls = others.filter(|token| *token != "4").filter_map(|token| {
            let of = |list: &Value| Some(number(list, "4")? - number(list, token)?);
            Some(of(&free[at])? - of(&penal[at])?)
        });
        let falls: Vec<f64> = falls.collect();
        assert!(falls.len() > 10);
        assert!(
            falls.iter().all(|fall| (fall - expected).abs() < 1e-3),
            "{at}: {falls:?}"
        );
    }
}

#[test]
fn temperatures_are_0_or_more_and_0_is_greedy() {
    let server = Server::shared();
    let best = content(&asked(&server, json!({ "temperature": 0 }))).to_owned();
    for extra in [
        json!({ "temperature": 2, "top_p": 0 }),
        json!({ "temperature": 1, "top_k": 1 }),
    ] {
        assert_eq!(content(&asked(&server, extra)), best);
    }
    asked(&server, json!({ "temperature": 2.01 }));
    server.refused(
        json!({ "temperature": -0.1 }),
        400,
        "invalid_value",
        "temperature",
    );
}

#[test]
fn developer_messages_are_system_messages_and_parts_are_joined() {
    let server = Server::shared();
    let prompt = |messages: Value| {
        let (status, answer) =
            server.json("POST", "/apply-template", &json!({ "messages": messages }));
        assert_eq!(status, 200, "{answer}");
        answer["prompt"].as_str().expect("a text").to_owned()
    };
    let parts = json!([{ "type": "text", "text": "2+2" }, { "type": "text", "text": "=?" }]);
    let [developer, system] = ["developer", "system"].map(|role| {
        prompt(json!([{ "role": role, "content": "You are kind." }, { "role": "user", "content": parts }]))
    });
    assert_eq!(developer, system, "the template has no such role");
    assert!(
        system.contains("You are kind.") && system.contains("2+2=?"),
        "{system}"
    );
    let tool = json!({ "role": "tool", "tool_call_id": "1", "content": "sunny" });
    let called =
        json!([{ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}" } }]);
    let silent = json!({ "role": "assistant", "tool_calls": called });
    let question = json!({ "role": "user", "content": "x" });
    let text = prompt(json!([question, silent, tool]));
    assert!(text.contains("sunny"), "{text}");
}

#[test]
fn the_last_assistant_message_is_continued() {
    let server = Server::shared();
    let whole = content(&asked(&server, json!({}))).to_owned();
    let (start, rest) = whole.split_at(2);
    let messages =
        json!([{ "role": "user", "content": "2+2=?" }, { "role": "assistant", "content": start }]);
    let continued = json!({ "messages": messages, "continue_final_message": true });
    let (_, prompt) = server.json("POST", "/apply-template", &continued);
    assert!(
        prompt["prompt"]
            .as_str()
            .is_some_and(|text| text.ends_with(start)),
        "{prompt}"
    );
    assert_eq!(content(&asked(&server, continued.clone())), rest);
    let mut both = continued;
    both["add_generation_prompt"] = json!(true);
    server.refused(both, 400, "invalid_value", "continue_final_message");
}
