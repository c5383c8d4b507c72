//! Conversations that clients send back: answers as they were served, and those of templates that show little of them.

use lab_base::chat::template::ChatTemplate;
use lab_base::chat::tool_calls::ChatDialect;
use serde_json::{Value, json};

use crate::support::command::scratch;
use crate::support::server::Server;
use crate::support::shared;
use crate::tools::{TAGGED, calling, model, plain_template, serve, template};

fn tool() -> Value {
    let city = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!({ "type": "function", "function": { "name": "f", "description": "d", "parameters": city } })
}

/// A conversation in which the assistant says `answer`.
fn after(answer: Value) -> Value {
    let mut messages =
        json!([{ "role": "user", "content": "a" }, null, { "role": "user", "content": "c" }]);
    messages[1] = answer;
    messages
}

fn call(arguments: &str) -> Value {
    json!({ "id": "1", "type": "function", "function": { "name": "f", "arguments": arguments } })
}

/// The body of an answer, and the fields of the request that had no effect.
fn answered(server: &Server, path: &str, body: &Value) -> (Value, Option<String>) {
    let (status, head, text) = server.raw("POST", path, "application/json", &body.to_string());
    assert_eq!(status, 200, "{body}: {text}");
    let ignored = head
        .lines()
        .find_map(|line| line.strip_prefix("x-bench-ignored: "));
    let value = serde_json::from_str(&text).expect("JSON");
    (value, ignored.map(str::to_owned))
}

/// The prompt of a conversation, and the fields of the request that had no effect.
fn prompt(server: &Server, name: &str, messages: &Value) -> (String, Option<String>) {
    let body = json!({ "model": name, "messages": messages });
    let (answer, ignored) = answered(server, "/apply-template", &body);
    let prompt = answer["prompt"].as_str().expect("a prompt").to_owned();
    (prompt, ignored)
}

#[test]
fn messages_that_were_served_are_accepted_when_they_come_back() {
    let folder = scratch();
    let text_form = TAGGED.replace("c.arguments | tojson", "'' + c.arguments");
    for (name, each, expected) in [
        ("objects", TAGGED, "\"arguments\": {\"city\": \"K\"}}"),
        (
            "texts",
            text_form.as_str(),
            "\"arguments\": {\"city\": \"K}",
        ),
    ] {
        let path = model(
            folder.path(),
            &format!("{name}.gguf"),
            &template(&calling("", each, ""), ""),
        );
        let server = serve(&path);
        // A call that was cut off within its arguments.
        let cut =
            json!({ "role": "assistant", "content": null, "tool_calls": [call("{\"city\": \"K")] });
        let result = json!({ "role": "tool", "tool_call_id": "1", "content": "no JSON" });
        let messages = json!([{ "role": "user", "content": "a" }, cut, result]);
        let (shown, ignored) = prompt(&server, name, &messages);
        assert!(shown.contains(expected), "{shown}");
        let field = "messages.tool_calls.function.arguments";
        assert_eq!(ignored.as_deref(), (name == "objects").then_some(field));
        // Fields that say nothing.
        for (answer, expected) in [
            (json!({ "content": null }), ""),
            (json!({}), ""),
            (
                json!({ "content": "b", "tool_calls": [], "audio": null, "annotations": [], "function_call": null, "refusal": null }),
                "b",
            ),
            (
                json!({ "content": "b", "reasoning_content": null, "reasoning": null, "tool_calls": null }),
                "b",
            ),
            (json!({ "content": null, "refusal": "No." }), "No."),
            (
                json!({ "content": [{ "type": "text", "text": "b" }, { "type": "refusal", "refusal": "No." }] }),
                "bNo.",
            ),
            (
                json!({ "content": "b", "reasoning_content": "hm", "reasoning": "hm" }),
                "<think>\nhm\n</think>\n\nb",
            ),
        ] {
            let mut answer = answer;
            answer["role"] = "assistant".into();
            let (shown, ignored) = prompt(&server, name, &after(answer.clone()));
            let expected = format!("<|im_start|>assistant\n{expected}<|im_end|>\n");
            assert!(shown.contains(&expected), "{answer}: {shown}");
            assert_eq!(ignored, None, "{answer}");
        }
    }
}

#[test]
fn parts_of_tools_that_a_template_does_not_show_are_named() {
    let folder = scratch();
    let path = model(folder.path(), "blind.gguf", &plain_template(""));
    let server = serve(&path);
    let asked = json!({ "model": "blind", "max_tokens": 2, "messages": [{ "role": "user", "content": "a" }] });
    let ignored = |path: &str, body: &Value| answered(&server, path, body).1;
    let mut body = asked.clone();
    body["tools"] = json!([tool()]);
    assert_eq!(
        ignored("/v1/chat/completions", &body).as_deref(),
        Some("tools")
    );
    body["tool_choice"] = "none".into();
    assert_eq!(ignored("/v1/chat/completions", &body), None);
    let own = json!({ "name": "f", "input_schema": { "type": "object" } });
    let message =
        json!({ "model": "blind", "max_tokens": 2, "messages": asked["messages"], "tools": [own] });
    assert_eq!(ignored("/v1/messages", &message).as_deref(), Some("tools"));
    let response = json!({ "model": "blind", "max_output_tokens": 2, "input": "a", "tools": [{ "type": "function", "name": "f" }] });
    assert_eq!(
        ignored("/v1/responses", &response).as_deref(),
        Some("tools")
    );

    // A required call is enforced, although the model does not know the tool.
    body["tool_choice"] = "required".into();
    body["max_tokens"] = 64.into();
    let (answer, ignored) = answered(&server, "/v1/chat/completions", &body);
    assert_eq!(ignored.as_deref(), Some("tools"));
    assert!(
        answer["choices"][0]["message"]["tool_calls"][0].is_object(),
        "{answer}"
    );

    let answer = json!({ "role": "assistant", "content": "b", "tool_calls": [call("{}")] });
    body = json!({ "model": "blind", "max_tokens": 2, "messages": after(answer) });
    let (_, ignored) = answered(&server, "/v1/chat/completions", &body);
    // The template writes every message, those of tools too.
    assert_eq!(ignored.as_deref(), Some("messages.tool_calls"));
}

#[test]
fn the_tool_format_is_found_by_rendering_the_template() {
    let Some(folder) = shared("golden/templates/dev") else {
        return;
    };
    for (name, tools, calls, results, whole, joins) in [
        (
            "microsoft-Phi-3.5-mini-instruct",
            false,
            false,
            false,
            false,
            false,
        ),
        ("openai-gpt-oss-120b", true, true, true, true, true),
        ("Qwen3.5-4B", true, true, true, false, false),
        ("Qwen-Qwen2.5-7B-Instruct", true, true, true, false, false),
        ("GLM-4.6", true, true, true, false, false),
        (
            "meta-llama-Llama-3.1-8B-Instruct",
            true,
            true,
            true,
            false,
            false,
        ),
        (
            "mistralai-Mistral-Nemo-Instruct-2407",
            true,
            true,
            true,
            false,
            false,
        ),
        ("deepseek-ai-DeepSeek-V3.1", false, true, true, false, false),
    ] {
        let path = folder.join(format!("{name}.jinja"));
        let source = std::fs::read_to_string(path).expect("readable");
        let template = ChatTemplate::new(&source).expect("compiles");
        let found = ChatDialect::probe(&template, "<s>", "</s>", |_| false);
        assert_eq!(
            (
                found.shows_tools,
                found.shows_calls,
                found.shows_results,
                found.needs_whole_tools,
                found.joins_reasoning
            ),
            (tools, calls, results, whole, joins),
            "{name}"
        );
    }
}

#[test]
fn a_template_gets_only_what_it_takes() {
    let Some(folder) = shared("golden/templates/dev") else {
        return;
    };
    let source =
        std::fs::read_to_string(folder.join("openai-gpt-oss-120b.jinja")).expect("readable");
    let scratch = scratch();
    let server = serve(&model(scratch.path(), "joins.gguf", &source));
    let answer = json!({
        "role": "assistant", "content": "I will call.", "reasoning_content": "Let me think.", "tool_calls": [call("{}")],
    });
    let result = json!({ "role": "tool", "tool_call_id": "1", "content": "R" });
    let messages = json!([{ "role": "user", "content": "a" }, answer, result]);
    let mut bare = tool();
    for name in ["description", "parameters"] {
        bare["function"]
            .as_object_mut()
            .expect("fields")
            .remove(name);
    }
    let body = json!({ "model": "joins", "messages": messages, "tools": [bare] });
    let (status, answer) = server.json("POST", "/apply-template", &body);
    assert_eq!(status, 200, "{answer}");
    let prompt = answer["prompt"].as_str().expect("a prompt");
    assert!(prompt.contains("Let me think.\nI will call."), "{prompt}");
}

#[test]
fn functions_and_tools_with_free_text_are_served_in_their_own_form() {
    let folder = scratch();
    let path = model(
        folder.path(),
        "forms.gguf",
        &plain_template(&calling("", TAGGED, "")),
    );
    let server = serve(&path);
    let chat = "/v1/chat/completions";
    let city = json!({ "type": "string", "enum": ["Bonn", "Trier"] });
    let schema = json!({ "type": "object", "properties": { "city": city }, "required": ["city"], "additionalProperties": false });
    let asked = json!({ "model": "forms", "temperature": 0, "max_tokens": 300, "messages": [{ "role": "user", "content": "a" }] });
    let chunks = |body: &Value| -> Vec<Value> {
        let mut events = server.events(chat, body);
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        let one = |event: &String| serde_json::from_str(event).expect("JSON");
        events.iter().map(one).collect()
    };

    let mut body = asked.clone();
    body["functions"] = json!([{ "name": "f", "parameters": schema }]);
    body["function_call"] = json!({ "name": "f" });
    let answer = server.post(chat, &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call", "{answer}");
    assert_eq!(choice["message"]["tool_calls"], Value::Null, "{answer}");
    let function = &choice["message"]["function_call"];
    assert_eq!(function["name"], "f", "{answer}");
    let (mut name, mut arguments, mut reason) = (String::new(), String::new(), Value::Null);
    for chunk in chunks(&body) {
        let delta = &chunk["choices"][0]["delta"]["function_call"];
        name.push_str(delta["name"].as_str().unwrap_or_default());
        arguments.push_str(delta["arguments"].as_str().unwrap_or_default());
        reason = chunk["choices"][0]["finish_reason"].clone();
    }
    assert_eq!(
        (name.as_str(), reason.as_str()),
        ("f", Some("function_call"))
    );
    assert_eq!(Some(arguments.as_str()), function["arguments"].as_str());
    // The answer and its result come back.
    let mut next = asked.clone();
    let result = json!({ "role": "function", "name": "f", "content": "R" });
    next["messages"] = json!([asked["messages"][0], choice["message"], result]);
    next["functions"] = body["functions"].clone();
    next["max_tokens"] = json!(2);
    server.post(chat, &next);

    let mut body = asked.clone();
    body["tools"] =
        json!([{ "type": "custom", "custom": { "name": "write", "description": "d" } }]);
    body["tool_choice"] = json!({ "type": "custom", "custom": { "name": "write" } });
    body["parallel_tool_calls"] = json!(false);
    let answer = server.post(chat, &body);
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(
        (&call["type"], &call["custom"]["name"]),
        (&json!("custom"), &json!("write")),
        "{answer}"
    );
    let mut input = String::new();
    for chunk in chunks(&body) {
        let delta = &chunk["choices"][0]["delta"]["tool_calls"][0];
        assert_eq!(delta.get("function"), None, "{chunk}");
        input.push_str(delta["custom"]["input"].as_str().unwrap_or_default());
    }
    assert_eq!(call["custom"]["input"], input);
    let mut next = asked.clone();
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "content": "R" });
    next["messages"] = json!([
        asked["messages"][0],
        answer["choices"][0]["message"],
        result
    ]);
    next["tools"] = body["tools"].clone();
    next["max_tokens"] = json!(2);
    server.post(chat, &next);

    for (extra, param) in [
        (json!({ "functions": [{ "name": "f" }] }), None),
        (
            json!({ "functions": [{ "name": "f" }], "tools": [tool()] }),
            Some("functions"),
        ),
        (json!({ "functions": [1] }), Some("functions[0]")),
        (
            json!({ "function_call": { "name": "f" } }),
            Some("function_call"),
        ),
        (
            json!({ "functions": [{ "name": "f" }], "function_call": 1 }),
            Some("function_call"),
        ),
        (
            json!({ "tools": [{ "type": "custom" }] }),
            Some("tools[0].custom"),
        ),
    ] {
        let mut body = asked.clone();
        for (name, value) in extra.as_object().expect("fields") {
            body[name] = value.clone();
        }
        body["max_tokens"] = json!(2);
        let (status, answer) = server.json("POST", chat, &body);
        match param {
            None => assert_eq!(status, 200, "{answer}"),
            Some(param) => {
                assert_eq!(status, 400, "{answer}");
                assert_eq!(answer["error"]["param"], param, "{answer}");
            }
        }
    }
}

#[test]
fn tools_of_anthropic_that_clients_run_need_no_schema() {
    let folder = scratch();
    let path = model(
        folder.path(),
        "clients.gguf",
        &plain_template(&calling("", TAGGED, "")),
    );
    let server = serve(&path);
    for (kind, name, is_served) in [
        ("bash_20250124", "bash", true),
        ("text_editor_20250728", "str_replace_based_edit_tool", true),
        ("memory_20250818", "memory", true),
        ("web_search_20250305", "web_search", false),
    ] {
        let body = json!({
            "model": "clients", "max_tokens": 4, "messages": [{ "role": "user", "content": "a" }],
            "tools": [{ "type": kind, "name": name }],
        });
        let (status, answer) = server.json("POST", "/v1/messages", &body);
        assert_eq!(
            status,
            if is_served { 200 } else { 400 },
            "{kind}: {answer}"
        );
    }
}
