//! Conversations that clients send back: answers as they were served, and those of templates that show little of them.

use lab_bench::text::calls::Dialect;
use lab_bench::text::template::ChatTemplate;
use serde_json::{Value, json};

use crate::command::scratch;
use crate::server::Server;
use crate::support::shared;
use crate::tools::{TAGGED, calling, model, plain_template, serve, template};

fn tool() -> Value {
    let city = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!({ "type": "function", "function": { "name": "f", "description": "d", "parameters": city } })
}

/// A conversation in which the assistant says `answer`.
fn after(answer: Value) -> Value {
    json!([{ "role": "user", "content": "a" }, answer, { "role": "user", "content": "c" }])
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
fn tools_that_the_template_does_not_show_are_named_or_refused() {
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

    let refused = |extra: Value, param: &str| {
        let mut body = asked.clone();
        for (name, value) in extra.as_object().expect("fields") {
            body[name] = value.clone();
        }
        let (status, answer) = server.json("POST", "/v1/chat/completions", &body);
        assert_eq!(status, 400, "{answer}");
        assert_eq!(answer["error"]["code"], "unsupported_parameter", "{answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
    };
    let named = json!({ "type": "function", "function": { "name": "f" } });
    for choice in [json!("required"), named] {
        refused(
            json!({ "tools": [tool()], "tool_choice": choice }),
            "tool_choice",
        );
    }
    let answer = json!({ "role": "assistant", "content": "b", "tool_calls": [call("{}")] });
    refused(
        json!({ "messages": after(answer) }),
        "messages[1].tool_calls",
    );
}

#[test]
fn what_a_template_shows_of_tools_is_found_by_rendering_it() {
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
        ("deepseek-ai-DeepSeek-V3.1", true, true, true, false, false),
    ] {
        let path = folder.join(format!("{name}.jinja"));
        let source = std::fs::read_to_string(path).expect("readable");
        let template = ChatTemplate::new(&source).expect("compiles");
        let found = Dialect::probe(&template, "<s>", "</s>", |_| false);
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
