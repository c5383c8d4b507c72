//! Conversations in Anthropic's shape and in that of OpenAI's responses: whole, streamed, refused; and that
//! the model reads the same prompt as in a chat completion.

use serde_json::{Value, json};

use crate::support::command::scratch;
use crate::support::server::{Server, with};
use crate::tools::{TAGGED, calling, model, plain_template, serve, template};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const RESPONSES: &str = "/v1/responses";

/// The events of a stream, each under the name that it gives itself.
fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let (status, _, text) = server.raw("POST", path, "application/json", &body.to_string());
    assert_eq!(status, 200, "{text}");
    let all = text
        .split("\n\n")
        .filter(|event| !event.trim().is_empty() && !event.starts_with(':'));
    all.map(|event| {
        let (name, data) = event.split_once('\n').expect("a name and data");
        let data: Value =
            serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(
            name.strip_prefix("event: "),
            data["type"].as_str(),
            "{event}"
        );
        data
    })
    .collect()
}

fn asking(extra: &Value) -> Value {
    with(
        json!({
            "model": "default", "max_tokens": 40, "temperature": 0,
            "messages": [{ "role": "user", "content": "2+2=?" }],
        }),
        extra,
    )
}

/// The message that the events of a stream add up to.
fn added_up(events: &[Value]) -> Value {
    let mut message = Value::Null;
    let mut written = String::new();
    for event in events {
        let place = event["index"].as_u64().map(|i| i as usize);
        match event["type"].as_str().expect("a type") {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().expect("blocks");
                assert_eq!(place, Some(blocks.len()));
                blocks.push(event["content_block"].clone());
                written.clear();
            }
            "content_block_delta" => {
                let block = &mut message["content"][place.expect("a place")];
                let delta = &event["delta"];
                let (field, piece) = match delta["type"].as_str() {
                    Some("text_delta") => ("text", &delta["text"]),
                    Some("thinking_delta") => ("thinking", &delta["thinking"]),
                    Some("input_json_delta") => ("input", &delta["partial_json"]),
                    other => panic!("{other:?}"),
                };
                written.push_str(piece.as_str().expect("a piece"));
                block[field] = match field {
                    "input" => serde_json::from_str(&written).unwrap_or_default(),
                    _ => written.as_str().into(),
                };
            }
            "content_block_stop" => assert_eq!(
                place,
                message["content"].as_array().map(|all| all.len() - 1)
            ),
            "message_delta" => {
                for (name, value) in event["delta"].as_object().expect("fields") {
                    message[name] = value.clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => assert_eq!(event, events.last().expect("events")),
            other => panic!("{other}"),
        }
    }
    message
}

/// Without what differs between two requests: ids, and how much of the prompt was in the prefix cache.
fn comparable(mut message: Value) -> Value {
    assert!(message["id"].as_str().expect("an id").starts_with("msg_"));
    message["id"] = "msg".into();
    for block in message["content"].as_array_mut().expect("blocks") {
        if block["type"] == "tool_use" {
            block["id"] = "call".into();
        }
    }
    let usage = &message["usage"];
    let sum = [
        "input_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    ];
    let sum: u64 = sum
        .iter()
        .map(|name| usage[name].as_u64().expect("a number"))
        .sum();
    message["usage"] = json!({ "prompt": sum, "output_tokens": usage["output_tokens"] });
    message
}

#[test]
fn an_anthropic_message_has_its_shape_whole_and_streamed() {
    let server = Server::start(&[]);
    let message = comparable(server.post(MESSAGES, &asking(&json!({}))));
    let golden = json!({
        "id": "msg", "type": "message", "role": "assistant", "model": "tiny-chat",
        "content": [{ "type": "text", "text": "2+2=4" }],
        "stop_reason": "end_turn", "stop_sequence": null,
        "usage": { "prompt": 13, "output_tokens": 6 },
    });
    assert_eq!(message, golden);
    assert_eq!(
        comparable(added_up(&events(&server, MESSAGES, &asking(&json!({}))))),
        golden
    );
    assert_eq!(
        server.post(COUNT, &asking(&json!({}))),
        json!({ "input_tokens": 13 })
    );

    for (extra, reason, stop, text) in [
        (json!({ "max_tokens": 2 }), "max_tokens", Value::Null, "2+"),
        (
            json!({ "stop_sequences": ["x", "="] }),
            "stop_sequence",
            json!("="),
            "2+2",
        ),
        // The start of the answer.
        (
            json!({ "messages": [{ "role": "user", "content": "2+2=?" }, { "role": "assistant", "content": "2+2" }] }),
            "end_turn",
            Value::Null,
            "=4",
        ),
    ] {
        let message = server.post(MESSAGES, &asking(&extra));
        assert_eq!(message["stop_reason"], reason, "{message}");
        assert_eq!(message["stop_sequence"], stop, "{message}");
        assert_eq!(message["content"][0]["text"], text, "{message}");
        let streamed = comparable(added_up(&events(&server, MESSAGES, &asking(&extra))));
        assert_eq!(streamed, comparable(message));
    }
    // Chat completions have the stop under vLLM's name.
    let (_, chat) = server.chat(json!({ "stop": ["x", "="] }));
    assert_eq!(chat["choices"][0]["stop_reason"], "=", "{chat}");
}

fn tool() -> Value {
    json!({ "name": "get_weather", "description": "The weather.", "input_schema": {
        "type": "object", "additionalProperties": false, "required": ["days"],
        "properties": { "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
    } })
}

#[test]
fn thinking_and_calls_are_blocks_of_a_message() {
    let folder = scratch();
    let path = model(
        folder.path(),
        "thinks.gguf",
        &template(&calling("", TAGGED, ""), "<think>\n"),
    );
    let server = serve(&path);
    let thinking = json!({ "type": "enabled", "budget_tokens": 3 });
    let extra = json!({ "max_tokens": 200, "thinking": thinking, "tools": [tool()], "tool_choice": { "type": "any", "disable_parallel_tool_use": true } });
    let message = server.post(MESSAGES, &asking(&extra));
    let blocks = message["content"].as_array().expect("blocks");
    let kinds: Vec<&Value> = blocks.iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "tool_use"], "{message}");
    assert_eq!(blocks[0]["signature"], "");
    assert_eq!(blocks[1]["name"], "get_weather");
    let days = blocks[1]["input"]["days"].as_i64().expect("a number");
    assert!((1..=9).contains(&days), "{message}");
    assert_eq!(message["stop_reason"], "tool_use");
    let streamed = added_up(&events(&server, MESSAGES, &asking(&extra)));
    assert_eq!(comparable(streamed), comparable(message.clone()));

    // Unless it is asked for, there is no thinking in the message.
    let plain = server.post(MESSAGES, &asking(&json!({})));
    let blocks = plain["content"].as_array().expect("blocks");
    let kinds: Vec<&Value> = blocks.iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["text"], "{plain}");

    // What the client says of reasoning in fields that are not Anthropic's holds too.
    let shown = json!({ "max_tokens": 200, "include_reasoning": true, "thinking_budget": 3 });
    let shown = server.post(MESSAGES, &asking(&shown));
    assert_eq!(shown["content"][0]["type"], "thinking", "{shown}");

    // The conversation goes on with the blocks as they came.
    let id = message["content"][1]["id"].clone();
    let result = json!({ "type": "tool_result", "tool_use_id": id, "content": [{ "type": "text", "text": "rain" }] });
    let user = json!({ "role": "user", "content": "Well?" });
    let conversation = json!([
        user, { "role": "assistant", "content": message["content"] },
        { "role": "user", "content": [result, { "type": "text", "text": "So?" }] },
    ]);
    let switches = json!({ "enable_thinking": true, "thinking": true });
    let tools = json!([{ "type": "function", "function": {
        "name": "get_weather", "parameters": tool()["input_schema"], "description": "The weather.",
    } }]);
    let chat = json!({ "model": "thinks", "tools": tools, "chat_template_kwargs": switches, "messages": [
        user,
        { "role": "assistant", "content": "", "reasoning_content": message["content"][0]["thinking"],
          "tool_calls": [{ "id": id, "type": "function", "function": { "name": "get_weather", "arguments": message["content"][1]["input"].to_string() } }] },
        { "role": "tool", "tool_call_id": id, "content": "rain" },
        { "role": "user", "content": "So?" },
    ] });
    let counted =
        asking(&json!({ "messages": conversation, "thinking": thinking, "tools": [tool()] }));
    let expected = server.post("/tokenize", &chat);
    assert_eq!(
        server.post(COUNT, &counted)["input_tokens"],
        expected["count"]
    );

    // The same in items of a response.
    let items = json!([
        { "role": "user", "content": "Well?" },
        { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": message["content"][0]["thinking"] }] },
        { "type": "function_call", "call_id": id, "name": "get_weather", "arguments": message["content"][1]["input"].to_string() },
        { "type": "function_call_output", "call_id": id, "output": "rain" },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "So?" }] },
    ]);
    let mut flat = tools[0]["function"].clone();
    flat["type"] = "function".into();
    let body =
        json!({ "model": "thinks", "input": items, "tools": [flat], "max_output_tokens": 1 });
    let response = server.post(RESPONSES, &body);
    assert_eq!(response["usage"]["input_tokens"], expected["count"]);
    assert_eq!(
        response["incomplete_details"],
        json!({ "reason": "max_output_tokens" })
    );
}

#[test]
fn a_billing_header_in_the_system_prompt_does_not_reach_the_model() {
    let server = Server::start(&[]);
    let with = |header: &str| {
        let blocks = json!([
            { "type": "text", "text": format!("x-anthropic-billing-header: cch={header};") },
            { "type": "text", "text": "Add.", "cache_control": { "type": "ephemeral" } },
        ]);
        server.post(MESSAGES, &asking(&json!({ "system": blocks })))
    };
    let plain = server.post(MESSAGES, &asking(&json!({ "system": "Add." })));
    assert_eq!(comparable(with("a1")), comparable(plain));
    let again = with("b2");
    assert_eq!(again["usage"]["input_tokens"], 1, "{again}");
}

#[test]
fn refusals_name_the_field_in_the_clients_format() {
    let server = Server::start(&["--strict-fields"]);
    let user = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
    for (extra, place) in [
        (json!({ "max_tokens": null }), "`max_tokens`"),
        (json!({ "messages": [] }), "`messages`"),
        (
            json!({ "messages": [{ "role": "tool", "content": "x" }] }),
            "`messages[0].role`",
        ),
        (user(json!(1)), "`messages[0].content`"),
        (
            user(json!([{ "type": "image", "source": {} }])),
            "`messages[0].content[0].source.type`",
        ),
        (
            user(json!([{ "type": "tool_result" }])),
            "`messages[0].content[0].tool_use_id`",
        ),
        (json!({ "system": 1 }), "`system`"),
        (
            json!({ "system": [{ "type": "image" }] }),
            "`system[0].type`",
        ),
        (
            json!({ "tools": [{ "type": "web_search_20250305", "name": "w" }] }),
            "`tools[0].type`",
        ),
        (
            json!({ "tools": [{ "name": "w" }] }),
            "`tools[0].input_schema`",
        ),
        (
            json!({ "tool_choice": { "type": "some" } }),
            "`tool_choice.type`",
        ),
        (json!({ "thinking": { "type": "much" } }), "`thinking.type`"),
        (
            json!({ "thinking": { "type": "enabled", "budget_tokens": -1 } }),
            "`thinking.budget_tokens`",
        ),
        (
            json!({ "output_config": { "format": { "type": "xml" } } }),
            "`output_config.format.type`",
        ),
        (
            json!({ "output_config": { "efort": "low" } }),
            "`output_config.efort`",
        ),
        (json!({ "temperatur": 1 }), "`temperatur`"),
        (json!({ "n": 2 }), "`n`"),
        (json!({ "prompt_logprobs": 1 }), "`prompt_logprobs`"),
        (json!({ "timings_per_token": true }), "`timings_per_token`"),
        (json!({ "return_progress": true }), "`return_progress`"),
    ] {
        let (status, body) = server.json("POST", MESSAGES, &asking(&extra));
        assert_eq!(status, 400, "{extra}: {body}");
        assert_eq!(body["type"], "error", "{body}");
        assert_eq!(body["error"]["type"], "invalid_request_error", "{body}");
        let message = body["error"]["message"].as_str().expect("a message");
        assert!(message.contains(place), "{extra}: {message}");
    }
    let strict = Server::start(&["--strict-model"]);
    let (status, body) = strict.json("POST", MESSAGES, &asking(&json!({ "model": "nobody" })));
    assert_eq!(
        (status, &body["error"]["type"]),
        (404, &json!("not_found_error"))
    );
    let (status, _, body) = server.raw("GET", MESSAGES, "application/json", "");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, &body["type"]), (405, &json!("error")));

    for (extra, place) in [
        (json!({ "input": null }), "input"),
        (json!({ "input": 1 }), "input"),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }),
            "input[0].content[0].image_url",
        ),
        (
            json!({ "input": [{ "type": "function_call_output", "output": "x" }] }),
            "input[0].call_id",
        ),
        (
            json!({ "previous_response_id": "resp_1" }),
            "previous_response_id",
        ),
        (json!({ "background": true, "store": false }), "background"),
        (json!({ "include": ["everything"] }), "include[0]"),
        (json!({ "tools": [{ "type": "telepathy" }] }), "tools[0]"),
        (
            json!({ "tool_choice": { "type": "file_search" } }),
            "tool_choice.type",
        ),
        (
            json!({ "text": { "format": { "type": "xml" } } }),
            "text.format.type",
        ),
        (json!({ "max_tokens_out": 3 }), "max_tokens_out"),
        (json!({ "prompt_logprobs": 1 }), "prompt_logprobs"),
        (json!({ "timings_per_token": true }), "timings_per_token"),
        (json!({ "return_progress": true }), "return_progress"),
    ] {
        let body = with(json!({ "model": "default", "input": "2+2=?" }), &extra);
        let (status, answer) = server.json("POST", RESPONSES, &body);
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(place)),
            "{extra}: {answer}"
        );
    }
}

#[test]
fn a_missing_api_key_is_an_error_in_anthropics_shape() {
    let server = Server::start(&["--api-key", "secret"]);
    let (status, body) = server.json("POST", MESSAGES, &asking(&json!({})));
    assert_eq!(
        (status, &body["error"]["type"]),
        (401, &json!("authentication_error"))
    );
}

#[test]
fn a_response_has_openais_shape() {
    let server = Server::start(&[]);
    let body = json!({ "model": "default", "input": "2+2=?", "temperature": 0, "store": true, "metadata": { "a": "b" } });
    let (status, head, text) = server.raw("POST", RESPONSES, "application/json", &body.to_string());
    assert_eq!(status, 200, "{text}");
    assert!(!head.contains("x-bench-ignored"), "{head}");
    let mut response: Value = serde_json::from_str(&text).expect("JSON");
    let output = &response["output"][0];
    assert!(
        output["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("msg_")),
        "{response}"
    );
    let part = json!({ "type": "output_text", "text": "2+2=4", "annotations": [], "logprobs": [] });
    let item = json!({
        "id": output["id"], "type": "message", "role": "assistant", "status": "completed", "content": [part],
    });
    assert_eq!(*output, item);
    assert!(response["created_at"].is_u64() && response["completed_at"].is_u64());
    for (name, expected) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("model", json!("tiny-chat")),
        ("store", json!(true)),
        ("metadata", json!({ "a": "b" })),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("previous_response_id", Value::Null),
        ("parallel_tool_calls", json!(true)),
        (
            "text",
            json!({ "format": { "type": "text" }, "verbosity": null }),
        ),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("temperature", json!(0)),
    ] {
        assert_eq!(response[name], expected, "{name}");
    }
    assert_eq!(response["usage"]["total_tokens"], 19);

    let all = events(&server, RESPONSES, &body);
    let kinds: Vec<&str> = all
        .iter()
        .map(|event| event["type"].as_str().expect("a type"))
        .collect();
    let start = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
    ];
    let start: Vec<String> = start
        .iter()
        .map(|kind| format!("response.{kind}"))
        .collect();
    assert_eq!(kinds[..5], start);
    let end = [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    let end: Vec<String> = end.iter().map(|kind| format!("response.{kind}")).collect();
    assert_eq!(kinds[kinds.len() - 4..], end);
    let numbers: Vec<u64> = all
        .iter()
        .map(|event| event["sequence_number"].as_u64().expect("a number"))
        .collect();
    assert_eq!(numbers, (0..all.len() as u64).collect::<Vec<_>>());
    let deltas = all
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    let said: String = deltas
        .map(|event| event["delta"].as_str().expect("text"))
        .collect();
    assert_eq!(said, "2+2=4");
    // The last event has the whole response.
    let mut last = all.last().expect("events")["response"].clone();
    for name in ["id", "created_at", "completed_at", "usage"] {
        last[name] = Value::Null;
        response[name] = Value::Null;
    }
    last["output"][0]["id"] = Value::Null;
    response["output"][0]["id"] = Value::Null;
    assert_eq!(last, response);

    let scored = json!({ "model": "default", "temperature": 0, "input": "2+2=?", "include": ["message.output_text.logprobs"], "top_logprobs": 2 });
    let scored = server.post(RESPONSES, &scored);
    let entries = scored["output"][0]["content"][0]["logprobs"]
        .as_array()
        .expect("entries");
    assert_eq!(entries.len(), 5);
    assert_eq!(entries[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
}

#[test]
fn calls_are_items_of_a_response_and_free_text_is_one_of_their_forms() {
    let folder = scratch();
    let path = model(
        folder.path(),
        "calls.gguf",
        &plain_template(&calling("", TAGGED, "")),
    );
    let server = serve(&path);
    let function = json!({ "type": "function", "name": "get_weather", "parameters": tool()["input_schema"], "strict": true });
    let body = json!({
        "model": "calls", "input": "Hi", "temperature": 0, "max_output_tokens": 200, "parallel_tool_calls": false,
        "tools": [function, { "type": "web_search" }], "tool_choice": { "type": "function", "name": "get_weather" },
    });
    let response = server.post(RESPONSES, &body);
    let item = &response["output"][0];
    assert_eq!(item["type"], "function_call", "{response}");
    assert_eq!(
        (&item["name"], &item["status"]),
        (&json!("get_weather"), &json!("completed"))
    );
    let arguments = item["arguments"].as_str().expect("a text");
    let all = events(&server, RESPONSES, &body);
    let deltas = all
        .iter()
        .filter(|event| event["type"] == "response.function_call_arguments.delta");
    let streamed: String = deltas
        .map(|event| event["delta"].as_str().expect("text"))
        .collect();
    assert_eq!(streamed, arguments);
    let done = all
        .iter()
        .find(|event| event["type"] == "response.output_item.done")
        .expect("an item");
    assert_eq!(done["item"]["arguments"], arguments);

    let body = json!({
        "model": "calls", "input": "Hi", "temperature": 0, "max_output_tokens": 400, "parallel_tool_calls": false,
        "tools": [{ "type": "custom", "name": "apply_patch" }], "tool_choice": "required",
    });
    let response = server.post(RESPONSES, &body);
    let item = &response["output"][0];
    assert_eq!(item["type"], "custom_tool_call", "{response}");
    assert_eq!(item["name"], "apply_patch");
    assert!(item["input"].is_string(), "{response}");
}
