//! Values and shapes that clients of other servers send, and errors that name the fields that they sent.

use serde_json::{Value, json};

use crate::lenient::{CHAT, chat, served};
use crate::support::command::{scratch, text};
use crate::support::server::{Server, with};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// The number of tokens of a prompt, and the fields of the request that had no effect.
fn counted(server: &Server, path: &str, body: &Value) -> (u64, String) {
    let (answer, ignored) = served(server, path, body);
    (answer["input_tokens"].as_u64().expect("a number"), ignored)
}

fn of_chat(server: &Server, messages: &Value) -> u64 {
    let body = json!({ "messages": messages });
    counted(server, "/v1/chat/completions/input_tokens", &body).0
}

fn user(content: impl Into<Value>) -> Value {
    json!({ "role": "user", "content": content.into() })
}

fn assistant(content: impl Into<Value>) -> Value {
    json!({ "role": "assistant", "content": content.into() })
}

#[test]
fn blocks_of_anthropics_services_are_left_out_and_texts_are_shown() {
    let server = Server::shared();
    let count = |messages: Value| {
        let path = "/v1/messages/count_tokens";
        counted(&server, path, &json!({ "messages": messages }))
    };
    let between = |middle: Value| json!([user("a"), middle, user("c")]);
    let plain = of_chat(&server, &between(assistant("xy")));
    for kind in [
        "server_tool_use",
        "web_search_tool_result",
        "compaction",
        "fallback",
        "novelty",
    ] {
        let block = json!({ "type": kind, "id": "1", "name": "n", "input": {}, "content": null });
        let blocks =
            json!([{ "type": "text", "text": "x" }, block, { "type": "text", "text": "y" }]);
        let (n, ignored) = count(between(assistant(blocks)));
        assert_eq!((n, ignored.as_str()), (plain, "messages[1].content[1]"));
    }
    let summary = json!([{ "type": "compaction", "content": "xy" }]);
    assert_eq!(count(between(assistant(summary))), (plain, String::new()));
    // Another server's tool is called, answers, and the assistant goes on.
    let result = json!([{ "type": "text", "text": "seven" }]);
    let blocks = json!([
        { "type": "text", "text": "x" },
        { "type": "mcp_tool_use", "id": "1", "name": "f", "server_name": "s", "input": null },
        { "type": "mcp_tool_result", "tool_use_id": "1", "is_error": false, "content": result },
        { "type": "text", "text": "y" },
    ]);
    let call =
        json!({ "id": "1", "type": "function", "function": { "name": "f", "arguments": {} } });
    let expected = json!([
        user("a"), { "role": "assistant", "content": "x", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "1", "content": "seven" }, assistant("y"), user("c"),
    ]);
    assert_eq!(
        count(between(assistant(blocks))).0,
        of_chat(&server, &expected)
    );
    // What has text is text, of the user and of tools.
    let document = |source: Value| json!({ "type": "document", "title": "T", "source": source });
    let text_source = json!({ "type": "text", "media_type": "text/plain", "data": "seven" });
    let parts = json!({ "type": "content", "content": [{ "type": "text", "text": "seven" }] });
    let found = json!({ "type": "search_result", "title": "T", "source": "S", "content": [{ "type": "text", "text": "seven" }] });
    let reference = json!({ "type": "tool_reference", "tool_name": "f" });
    for (blocks, expected, named) in [
        (json!([document(text_source.clone())]), "T\nseven", ""),
        (json!([document(parts)]), "T\nseven", ""),
        (json!([found]), "T\nS\nseven", ""),
        (
            json!([reference, { "type": "text", "text": "x" }]),
            "x",
            ".content[0]",
        ),
    ] {
        let (n, _) = count(json!([user(blocks.clone())]));
        assert_eq!(n, of_chat(&server, &json!([user(expected)])), "{blocks}");
        let result = json!([{ "type": "tool_result", "tool_use_id": "1", "content": blocks }]);
        let (n, ignored) = count(json!([user("a"), user(result)]));
        let result = json!({ "role": "tool", "tool_call_id": "1", "content": expected });
        assert_eq!(n, of_chat(&server, &json!([user("a"), result])), "{blocks}");
        let named = match named {
            "" => String::new(),
            named => format!("messages[1].content[0]{named}"),
        };
        assert!(ignored.contains(&named), "{ignored}");
    }
    for (block, place) in [
        (json!({ "type": "image", "source": {} }), ".source.type"),
        (
            document(json!({ "type": "base64", "data": "" })),
            ".source.type",
        ),
    ] {
        let body = json!({ "max_tokens": 2, "messages": [user(json!([block]))] });
        let (status, answer) = server.json("POST", MESSAGES, &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        let place = format!("`messages[0].content[0]{place}`");
        assert!(status == 400 && message.contains(&place), "{answer}");
    }
}

#[test]
fn null_is_the_default_of_contents_arguments_and_metadata() {
    let server = Server::shared();
    let expected = of_chat(
        &server,
        &json!([user("a"), assistant(Value::Null), user("c")]),
    );
    let absent = json!({ "role": "assistant" });
    for (path, name) in [
        ("/v1/messages/count_tokens", "messages"),
        ("/v1/responses/input_tokens", "input"),
    ] {
        for empty in [assistant(Value::Null), absent.clone()] {
            let body = json!({ name: [user("a"), empty, user("c")] });
            assert_eq!(counted(&server, path, &body).0, expected, "{path}");
        }
    }
    let call = json!([{ "type": "tool_use", "id": "1", "name": "f", "input": null }]);
    let body = json!({ "messages": [user("a"), assistant(call), user("c")] });
    counted(&server, "/v1/messages/count_tokens", &body);
    let metadata = json!({ "metadata": { "user_id": null } });
    for (path, body) in [
        (CHAT, chat(&json!({}))),
        ("/v1/completions", json!({ "prompt": "1", "max_tokens": 2 })),
        ("/completion", json!({ "prompt": "1", "n_predict": 2 })),
        (
            MESSAGES,
            json!({ "max_tokens": 2, "messages": [user("a")] }),
        ),
        (RESPONSES, json!({ "max_output_tokens": 2, "input": "a" })),
    ] {
        let (_, ignored) = served(&server, path, &with(body, &metadata));
        // A response is stored with it.
        let expected = if path == RESPONSES { "" } else { "metadata" };
        assert_eq!(ignored, expected, "{path}");
    }
}

#[test]
fn parts_of_the_newer_shapes_are_taken_in_chat() {
    let server = Server::shared();
    let plain = of_chat(&server, &json!([user("a"), assistant("b"), user("c")]));
    let part = |kind: &str, text: &str| json!([{ "type": kind, "text": text }]);
    let messages = json!([
        user(part("input_text", "a")),
        assistant(part("output_text", "b")),
        user(part("text", "c")),
    ]);
    assert_eq!(of_chat(&server, &messages), plain);
    let thinking =
        |name: &str| json!([{ "type": name, name: "t" }, { "type": "text", "text": "b" }]);
    let reasoned = json!({ "role": "assistant", "content": "b", "reasoning_content": "t" });
    let expected = of_chat(&server, &json!([user("a"), reasoned, user("c")]));
    for name in ["thinking", "reasoning"] {
        let messages = json!([user("a"), assistant(thinking(name)), user("c")]);
        assert_eq!(of_chat(&server, &messages), expected, "{name}");
    }
    for (content, param) in [
        (
            json!([{ "type": "text", "text": null }]),
            "messages[0].content[0].text",
        ),
        (
            json!([{ "type": "input_text" }]),
            "messages[0].content[0].text",
        ),
        (
            json!([{ "type": "refusal" }]),
            "messages[0].content[0].refusal",
        ),
        (thinking("thinking"), "messages[0].content[0]"),
        (
            json!([{ "type": "image_url" }]),
            "messages[0].content[0].image_url",
        ),
    ] {
        let (status, answer) = server.chat(json!({ "messages": [user(content)] }));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)));
    }
}

#[test]
fn an_item_is_named_without_a_type_and_unknown_tools_are_left_out() {
    let server = Server::start(&[]);
    let strict = Server::start(&["--strict-fields"]);
    let body = |input: Value| json!({ "input": input, "max_output_tokens": 4, "temperature": 0 });
    let first = server.post(RESPONSES, &body(json!("2+2=?")));
    let id = &first["output"][0]["id"];
    let tokens = |reference: Value| {
        let answer = server.post(
            RESPONSES,
            &body(json!([user("2+2=?"), reference, user("b")])),
        );
        answer["usage"]["input_tokens"].clone()
    };
    let typed = tokens(json!({ "type": "item_reference", "id": id }));
    for reference in [json!({ "id": id }), json!({ "id": id, "type": null })] {
        assert_eq!(tokens(reference), typed);
    }
    let unknown = json!([user("a"), { "id": "msg_nobody" }]);
    let (status, answer) = server.json("POST", RESPONSES, &body(unknown));
    let param = &answer["error"]["param"];
    assert_eq!((status, param), (404, &json!("input[1].id")), "{answer}");

    let empty = json!({ "type": "namespace", "name": "n", "tools": null });
    for (tools, named) in [
        (json!([{ "type": "zzz" }]), "tools[0]"),
        (
            json!([{ "type": "namespace", "name": "n", "tools": [{ "type": "zzz" }] }]),
            "tools[0].tools[0]",
        ),
        (json!([empty]), ""),
    ] {
        let body = with(body(json!("a")), &json!({ "tools": tools }));
        let (_, ignored) = served(&server, RESPONSES, &body);
        assert_eq!(ignored, named);
        let (status, answer) = strict.json("POST", RESPONSES, &body);
        let expected = if named.is_empty() { 200 } else { 400 };
        assert_eq!(status, expected, "{answer}");
    }
    // What has a function is one.
    let function = json!({ "name": "f", "parameters": {} });
    let (answer, _) = served(
        &server,
        CHAT,
        &chat(&json!({
            "tools": [{ "function": function }], "tool_choice": { "function": { "name": "f" } },
            "max_tokens": 60, "temperature": 1.5, "seed": 1,
        })),
    );
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "f", "{answer}");
}

#[test]
fn errors_name_the_fields_that_were_sent() {
    let server = Server::start(&["--ctx", "64"]);
    let wrong = json!({ "type": "object", "properties": { "a": { "type": "some" } } });
    let long = "2+2=4 ".repeat(200);
    let message = |extra: Value| {
        let base = json!({ "max_tokens": 4, "messages": [user("a")] });
        (MESSAGES, with(base, &extra))
    };
    let response = |extra: Value| (RESPONSES, with(json!({ "input": "a" }), &extra));
    let one = |extra: Value| (CHAT, chat(&extra));
    let function = json!({ "type": "function", "name": "b c" });
    let namespace = json!({ "type": "namespace", "name": "n", "tools": [{ "type": "function", "name": "f", "parameters": 1 }] });
    for ((path, body), place) in [
        (
            response(json!({ "max_output_tokens": 0 })),
            "max_output_tokens",
        ),
        (response(json!({ "input": [] })), "input"),
        (response(json!({ "input": long })), "input"),
        (
            response(json!({ "reasoning": { "effort": "zz" } })),
            "reasoning.effort",
        ),
        (
            response(
                json!({ "text": { "format": { "type": "json_schema", "name": "n", "schema": wrong } } }),
            ),
            "text.format.schema",
        ),
        (
            response(json!({ "tools": [{ "type": "web_search" }, function] })),
            "tools[1].name",
        ),
        (
            response(json!({ "tools": [namespace] })),
            "tools[0].tools[0].parameters",
        ),
        (
            response(
                json!({ "tools": [{ "type": "function", "name": "f" }], "tool_choice": { "type": "function", "name": "b c" } }),
            ),
            "tool_choice.name",
        ),
        (
            message(json!({ "stop_sequences": vec!["x"; 99] })),
            "stop_sequences",
        ),
        (
            message(
                json!({ "output_config": { "format": { "type": "json_schema", "schema": wrong } } }),
            ),
            "output_config.format.schema",
        ),
        (
            message(json!({ "output_format": { "type": "json_schema", "schema": wrong } })),
            "output_format.schema",
        ),
        (
            message(
                json!({ "thinking": { "type": "adaptive" }, "output_config": { "effort": "zz" } }),
            ),
            "output_config.effort",
        ),
        (
            message(json!({ "tools": [{ "name": "b c", "input_schema": {} }] })),
            "tools[0].name",
        ),
        (
            one(json!({ "functions": [{ "name": "b c" }] })),
            "functions[0].name",
        ),
        (
            one(json!({ "functions": [{ "name": "f" }], "function_call": { "name": "b c" } })),
            "function_call.name",
        ),
        (
            one(json!({ "tools": [{ "type": "custom", "custom": { "name": "b c" } }] })),
            "tools[0].custom.name",
        ),
        (
            one(json!({ "repetition_penalty": 0 })),
            "repetition_penalty",
        ),
        // A field that was sent under the name of chat keeps it.
        (
            response(json!({ "reasoning_effort": "zz" })),
            "reasoning_effort",
        ),
        (message(json!({ "stop": vec!["x"; 99] })), "stop"),
    ] {
        let (status, answer) = server.json("POST", path, &body);
        assert_eq!(status, 400, "{path} {place}: {answer}");
        let error = &answer["error"];
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(&format!("`{place}`")), "{place}: {answer}");
        if path != MESSAGES {
            assert_eq!(error["param"], place, "{answer}");
        }
    }
    for effort in [json!("zz"), json!(5), json!("low")] {
        let (path, body) = message(json!({ "output_config": { "effort": effort } }));
        assert_eq!(served(&server, path, &body).1, "output_config.effort");
    }
}

#[test]
fn numbers_and_empty_values_of_other_servers_are_taken() {
    let server = Server::shared();
    let prompt = |extra: Value| with(json!({ "prompt": "1", "max_tokens": 2 }), &extra);
    for (path, body) in [
        (CHAT, chat(&json!({ "top_logprobs": 0 }))),
        (CHAT, chat(&json!({ "suffix": "" }))),
        (
            MESSAGES,
            json!({ "max_tokens": 2.0, "messages": [user("a")], "suffix": "" }),
        ),
        (
            "/completion",
            json!({ "prompt": "1", "n_predict": 2.0, "suffix": "" }),
        ),
        (
            "/v1/completions",
            prompt(json!({ "suffix": "", "logprobs": false, "echo": true })),
        ),
        (
            CHAT,
            chat(
                &json!({ "top_k": 40.0, "max_tokens": 4.0, "seed": 1.0, "n": 1.0, "repeat_last_n": -1.0, "stop_token_ids": [1.0] }),
            ),
        ),
        (
            CHAT,
            chat(
                &json!({ "guided_grammar": "", "guided_regex": "", "grammar": "", "structured_outputs": {} }),
            ),
        ),
        (
            CHAT,
            chat(&json!({ "structured_outputs": { "regex": "", "json": null } })),
        ),
        (
            CHAT,
            chat(
                &json!({ "samplers": ["top-k", "nucleus", "top-p", "typ-p", "typical-p", "typ", "min-p", "temp", "top-n-sigma"] }),
            ),
        ),
    ] {
        assert_eq!(served(&server, path, &body).1, "", "{path} {body}");
    }
    for half in [
        json!({ "top_k": 40.5 }),
        json!({ "max_tokens": 4.5 }),
        json!({ "top_k": 1e30 }),
    ] {
        assert_eq!(server.chat(half.clone()).0, 400, "{half}");
    }
    let strict = Server::start(&["--strict-fields"]);
    for (samplers, named) in [
        (json!("ekq"), "samplers[2]"),
        (json!(["temp", "new"]), "samplers[1]"),
    ] {
        let body = chat(&json!({ "samplers": samplers, "temperature": null }));
        assert_eq!(served(&server, CHAT, &body).1, named);
        assert_eq!(strict.json("POST", CHAT, &body).0, 400, "{samplers}");
    }
}

#[test]
fn a_request_without_a_model_name_is_refused_if_there_are_several() {
    let folder = scratch();
    for name in ["one.gguf", "two.gguf"] {
        std::fs::copy("models/tiny-chat.gguf", folder.path().join(name)).expect("copied");
    }
    let server = Server::start(&["--models", text(folder.path())]);
    for model in [json!(""), Value::Null, json!("default")] {
        let (status, answer) = server.json("POST", CHAT, &chat(&json!({ "model": model })));
        assert_eq!(
            (status, &answer["error"]["code"]),
            (404, &json!("model_not_found"))
        );
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(
            message.starts_with("several models are served, so `model` must name one; "),
            "{message}"
        );
        assert!(
            message.ends_with("the models are `one`, `two`"),
            "{message}"
        );
    }
}

#[test]
fn arguments_that_must_come_are_an_object_in_every_shape() {
    let server = Server::shared();
    let conditions = json!({ "properties": { "ok": { "type": "boolean" } }, "required": ["ok"] });
    let several = with(conditions.clone(), &json!({ "type": ["object", "null"] }));
    for parameters in [
        conditions.clone(),
        several,
        json!({ "anyOf": [conditions] }),
        json!({}),
    ] {
        for seed in 0..3 {
            let hot = json!({ "temperature": 1.5, "seed": seed, "max_tokens": 80, "messages": [user("hi")] });
            let function = json!({ "name": "go", "strict": true, "parameters": parameters });
            let tools = json!({ "tools": [{ "type": "function", "function": function }], "tool_choice": "required", "parallel_tool_calls": false });
            let (answer, _) = served(&server, CHAT, &with(hot.clone(), &tools));
            let choice = &answer["choices"][0];
            let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
            let of_chat = serde_json::from_str(arguments.as_str().expect("a call"));
            let tools = json!({ "tools": [{ "name": "go", "input_schema": parameters }], "tool_choice": { "type": "any", "disable_parallel_tool_use": true } });
            let (message, _) = served(&server, MESSAGES, &with(hot.clone(), &tools));
            let of_message = message["content"][0]["input"].clone();
            let tools = json!({ "input": "hi", "max_output_tokens": 80, "temperature": 1.5, "seed": seed, "parallel_tool_calls": false,
                "tools": [{ "type": "function", "name": "go", "parameters": parameters }], "tool_choice": "required" });
            let (response, _) = served(&server, RESPONSES, &tools);
            let arguments = response["output"][0]["arguments"].as_str();
            let of_response = serde_json::from_str(arguments.expect("a call"));
            let ends = [
                &choice["finish_reason"],
                &message["stop_reason"],
                &response["status"],
            ];
            let lengths = [json!("length"), json!("max_tokens"), json!("incomplete")];
            for (i, found) in [of_chat, Ok(of_message), of_response]
                .into_iter()
                .enumerate()
            {
                if *ends[i] == lengths[i] {
                    continue;
                }
                let found: Value = found.expect("JSON");
                assert!(found.is_object(), "{parameters}: {found}");
                if parameters != json!({}) {
                    assert!(found["ok"].is_boolean(), "{parameters}: {found}");
                }
            }
        }
    }
}
