//! Bodies as programs send them: those of editors, chat programs and agents, compressed ones, and items of earlier
//! responses.

use std::io::{Read, Write};

use serde_json::{Value, json};

use crate::lenient::{CHAT, chat, served};
use crate::support::server::{Server, with};

#[test]
fn editors_and_chat_programs_send_what_they_send() {
    let server = Server::shared();
    // llama.vim reads other files ahead, then asks; llama.vscode does the same.
    let extra = json!([{ "text": "def f():\n", "time": 1, "filename": "a.py" }]);
    let fields = json!([
        "content",
        "timings/prompt_n",
        "timings/predicted_ms",
        "truncated",
        "tokens_cached"
    ]);
    for body in [
        json!({
            "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": extra, "prompt": "", "n_predict": 0,
            "temperature": 0.0, "samplers": [], "stream": false, "cache_prompt": true, "t_max_prompt_ms": 1,
            "t_max_predict_ms": 1, "response_fields": [""],
        }),
        json!({
            "id_slot": 0, "input_prefix": "a", "input_suffix": "b", "input_extra": extra, "prompt": "", "n_predict": 8,
            "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.90, "samplers": ["top_k", "top_p", "infill"], "stream": false,
            "cache_prompt": true, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "response_fields": fields, "model": "",
        }),
        json!({
            "id_slot": 0, "input_prefix": "a", "input_suffix": "b", "input_extra": [], "prompt": "x", "n_predict": 8,
            "n_cmpl": 2, "top_k": 40, "top_p": 0.99, "stream": false, "samplers": ["top_k", "top_p", "infill"],
            "cache_prompt": true, "n_indent": 2, "t_max_prompt_ms": 500, "t_max_predict_ms": 2500,
        }),
    ] {
        // The built-in vocabulary has no tokens for a gap, which is all that is wrong.
        let (status, answer) = server.json("POST", "/infill", &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            status == 400 && message.contains("fill-in-the-middle"),
            "{answer}"
        );
        let mut prompt = body.clone();
        prompt["prompt"] = "1".into();
        served(&server, "/completion", &prompt);
    }
    let warm = json!({
        "id_slot": 1, "messages": [{ "role": "user", "content": "a" }], "samplers": [], "n_predict": 0, "stream": false,
        "cache_prompt": true, "response_fields": [""],
    });
    served(&server, CHAT, &warm);
    let silly = r#"{
        "prompt": "1", "model": "", "max_new_tokens": 6, "max_tokens": 6, "temperature": 0.7, "top_p": 0.5, "typical_p": 1,
        "typical": 1, "sampler_seed": -1, "min_p": 0, "repetition_penalty": 1.2, "frequency_penalty": 0,
        "presence_penalty": 0, "top_k": 40, "skew": 0, "min_tokens": 0, "add_bos_token": true, "smoothing_factor": 0,
        "smoothing_curve": 1, "dry_allowed_length": 2, "dry_multiplier": 0, "dry_base": 1.75,
        "dry_sequence_breakers": ["\n", ":", "\"", "*"], "dry_penalty_last_n": 0, "max_tokens_second": 0,
        "samplers": ["top_k", "tfs_z", "typical_p", "top_p", "min_p", "temperature"], "stopping_strings": ["\nYou:"],
        "stop": ["\nYou:"], "truncation_length": 2048, "ban_eos_token": false, "skip_special_tokens": true,
        "include_reasoning": true, "top_a": 0, "tfs": 1, "mirostat_mode": 0, "mirostat_tau": 5, "mirostat_eta": 0.1,
        "custom_token_bans": "", "banned_strings": [], "xtc_threshold": 0.1, "xtc_probability": 0, "nsigma": 0,
        "top_n_sigma": 0, "min_keep": 0, "adaptive_target": -0.01, "adaptive_decay": 0.9, "rep_pen": 1.2,
        "rep_pen_range": 0, "repetition_penalty_range": 0, "guidance_scale": 1, "negative_prompt": "",
        "grammar_string": "", "repeat_penalty": 1.2, "repeat_last_n": 0, "n_predict": 6, "num_predict": 6, "num_ctx": 2048,
        "mirostat": 0, "ignore_eos": false, "n": 1, "rep_pen_slope": 1, "logit_bias": [], "grammar": "",
        "cache_prompt": true, "stream": false, "api_type": "llamacpp", "api_server": "http://127.0.0.1:8080"
    }"#;
    let silly: Value = serde_json::from_str(silly).expect("JSON");
    let (answer, ignored) = served(&server, "/completion", &silly);
    assert!(
        answer["content"].is_string() && ignored.contains("truncation_length"),
        "{answer}"
    );
}

/// The response to a body with a content encoding.
fn encoded(server: &Server, encoding: &str, body: &[u8]) -> (u16, Value) {
    let mut stream = std::net::TcpStream::connect(&server.address).expect("the server listens");
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-encoding: {encoding}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all(&[head.as_bytes(), body].concat())
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let body = answer.split_once("\r\n\r\n").expect("a head").1;
    (
        status.expect("a status"),
        serde_json::from_str(body).unwrap_or_default(),
    )
}

#[test]
fn compressed_bodies_are_read_within_the_limit() {
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    let gzip = |data: &[u8]| {
        let mut out = GzEncoder::new(Vec::new(), Compression::default());
        out.write_all(data)
            .and_then(|()| out.finish())
            .expect("compressed")
    };
    let zlib = |data: &[u8]| {
        let mut out = ZlibEncoder::new(Vec::new(), Compression::default());
        out.write_all(data)
            .and_then(|()| out.finish())
            .expect("compressed")
    };
    let bare = |data: &[u8]| {
        let mut out = DeflateEncoder::new(Vec::new(), Compression::default());
        out.write_all(data)
            .and_then(|()| out.finish())
            .expect("compressed")
    };
    let body = chat(&json!({ "foo": "x".repeat(100_000) })).to_string();
    for server in [Server::start(&[]), Server::split(&[])] {
        for (encoding, data) in [
            ("gzip", gzip(body.as_bytes())),
            ("deflate", zlib(body.as_bytes())),
            ("deflate", bare(body.as_bytes())),
            ("identity", body.as_bytes().to_vec()),
        ] {
            let (status, answer) = encoded(&server, encoding, &data);
            assert_eq!(status, 200, "{encoding}: {answer}");
        }
        let (status, answer) = encoded(&server, "gzip", &gzip(&vec![b' '; 65 << 20]));
        assert_eq!(
            (status, &answer["error"]["code"]),
            (413, &json!("request_too_large"))
        );
        for (encoding, data, expected) in [
            ("br", body.as_bytes().to_vec(), 415),
            ("gzip, gzip", gzip(body.as_bytes()), 415),
            ("gzip", body.as_bytes().to_vec(), 400),
            ("gzip", gzip(body.as_bytes())[..50].to_vec(), 400),
        ] {
            let (status, answer) = encoded(&server, encoding, &data);
            assert_eq!(status, expected, "{encoding}: {answer}");
        }
    }
}

#[test]
fn items_of_recent_responses_are_found_by_their_ids() {
    for server in [Server::start(&[]), Server::split(&[])] {
        let ask = |input: Value, extra: &Value| {
            let body = with(
                json!({ "input": input, "temperature": 0, "max_output_tokens": 8 }),
                extra,
            );
            served(&server, "/v1/responses", &body).0
        };
        let first = ask(json!("2+2=?"), &json!({}));
        let id = first["output"][0]["id"].clone();
        let again = |item: Value| json!([{ "role": "user", "content": "2+2=?" }, item, { "role": "user", "content": "3+3=?" }]);
        let whole = ask(again(first["output"][0].clone()), &json!({}));
        let referred = ask(
            again(json!({ "type": "item_reference", "id": id })),
            &json!({}),
        );
        assert_eq!(
            referred["usage"]["input_tokens"],
            whole["usage"]["input_tokens"]
        );
        assert_eq!(
            referred["output"][0]["content"],
            whole["output"][0]["content"]
        );
        // Of a stream, and not if the request says so.
        let body = json!({ "input": "1+1=?", "max_output_tokens": 8, "stream": true });
        let (_, _, stream) = server.raw(
            "POST",
            "/v1/responses",
            "application/json",
            &body.to_string(),
        );
        let done = stream
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        let done = done.map(|data| serde_json::from_str::<Value>(data).expect("JSON"));
        let item = done
            .rev()
            .find(|event| event["type"] == "response.output_item.done");
        let id = item.expect("an item")["item"]["id"].clone();
        ask(
            again(json!({ "type": "item_reference", "id": id })),
            &json!({}),
        );
        let hidden = ask(json!("1"), &json!({ "store": false }));
        for id in [hidden["output"][0]["id"].clone(), json!("msg_nothing")] {
            let input = again(json!({ "type": "item_reference", "id": id }));
            let (status, answer) = server.json("POST", "/v1/responses", &json!({ "input": input }));
            let error = &answer["error"];
            assert_eq!(
                (status, &error["param"]),
                (404, &json!("input[1].id")),
                "{answer}"
            );
            let message = error["message"].as_str().expect("a text");
            assert!(
                message.starts_with("Item with id '") && message.contains("not found"),
                "{message}"
            );
        }
    }
}

#[test]
fn items_belong_to_the_key_that_made_them() {
    let server = Server::split(&["--api-key", "one", "--api-key", "two"]);
    let ask = |key: &str, owner: &str, body: Value| {
        let body = body.to_string();
        let mut stream = std::net::TcpStream::connect(&server.address).expect("the server listens");
        let request = format!(
            "POST /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: close\r\napi-key: {key}\r\nx-bench-owner: {owner}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status: u16 = answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .expect("a status");
        let body = answer.split_once("\r\n\r\n").expect("a head").1;
        (
            status,
            serde_json::from_str::<Value>(body).unwrap_or_default(),
        )
    };
    let (status, first) = ask("one", "x", json!({ "input": "1", "max_output_tokens": 4 }));
    assert_eq!(status, 200, "{first}");
    let input = json!([{ "type": "item_reference", "id": first["output"][0]["id"] }, { "role": "user", "content": "2" }]);
    let body = json!({ "input": input, "max_output_tokens": 4 });
    assert_eq!(ask("one", "y", body.clone()).0, 200);
    assert_eq!(ask("two", "x", body.clone()).0, 404);
    assert_eq!(ask("three", "x", body).0, 401);
}

#[test]
fn agents_replay_items_and_name_tools_by_namespaces() {
    let server = Server::shared();
    let input = json!([
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "a" }] },
        { "type": "web_search_call", "id": "ws_1", "status": "completed", "action": { "type": "search", "query": "q" } },
        { "type": "local_shell_call", "call_id": "c1", "status": "completed", "action": { "type": "exec", "command": ["ls"] } },
        { "type": "function_call_output", "call_id": "c1", "output": "x" },
        { "type": "tool_search_call", "call_id": "c2", "execution": "client", "arguments": { "query": "q" } },
        { "type": "tool_search_output", "call_id": "c2", "status": "completed", "execution": "client",
          "tools": [{ "type": "namespace", "name": "found", "description": "d", "tools": [{ "type": "function", "name": "f", "parameters": { "type": "object" } }] }] },
        { "type": "mcp_call", "id": "mcp_1", "name": "n", "server_label": "s", "arguments": "{}", "output": "y" },
        { "type": "compaction", "encrypted_content": "abc" },
        { "type": "function_call", "call_id": "c3", "name": "f", "namespace": "found", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c3", "output": "z" },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "b" }] },
    ]);
    let body = json!({ "input": input, "max_output_tokens": 4, "client_metadata": { "a": "b" }, "prompt_cache_options": {} });
    let (_, ignored) = served(&server, "/v1/responses", &body);
    assert_eq!(
        ignored,
        "client_metadata, input[1], input[7], messages.tool_calls, prompt_cache_options, tools"
    );
    let parameters = json!({ "type": "object", "properties": { "x": { "const": 1 } }, "required": ["x"], "additionalProperties": false });
    let tools = json!([
        { "type": "function", "name": "read", "parameters": parameters },
        { "type": "namespace", "name": "fs", "description": "files", "tools": [
            { "type": "function", "name": "read", "description": "d", "strict": false, "parameters": parameters },
        ] },
        { "type": "tool_search", "execution": "client", "description": "d", "parameters": parameters },
    ]);
    let call = |choice: Value| {
        let body = json!({ "input": "go", "tools": tools, "tool_choice": choice, "max_output_tokens": 200, "temperature": 0 });
        let whole = served(&server, "/v1/responses", &body).0;
        let (_, _, stream) = server.raw(
            "POST",
            "/v1/responses",
            "application/json",
            &with(body, &json!({ "stream": true })).to_string(),
        );
        let last = stream
            .lines()
            .rfind(|line| line.starts_with("data: "))
            .expect("an event");
        let last: Value = serde_json::from_str(last.trim_start_matches("data: ")).expect("JSON");
        let item = whole["output"]
            .as_array()
            .and_then(|all| all.last())
            .cloned()
            .expect("an item");
        let streamed = last["response"]["output"]
            .as_array()
            .and_then(|all| all.last())
            .cloned()
            .expect("an item");
        for field in ["type", "name", "namespace", "arguments", "execution"] {
            assert_eq!(item[field], streamed[field], "{item} {streamed}");
        }
        item
    };
    let item = call(json!({ "type": "function", "name": "read", "namespace": "fs" }));
    assert_eq!(
        (&item["type"], &item["name"], &item["namespace"]),
        (&json!("function_call"), &json!("read"), &json!("fs"))
    );
    let item = call(json!({ "type": "function", "name": "read" }));
    assert_eq!(
        (&item["name"], item.get("namespace")),
        (&json!("read"), None)
    );
    let item = call(json!({ "type": "tool_search" }));
    assert_eq!(
        (&item["type"], &item["execution"], &item["arguments"]),
        (
            &json!("tool_search_call"),
            &json!("client"),
            &json!({ "x": 1 })
        )
    );
}
