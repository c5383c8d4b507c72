//! Tools and reasoning: which dialect a template has, and chat completions over a socket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lab_base::chat::template::ChatTemplate;
use lab_base::chat::tool_calls::ChatDialect;
use serde_json::{Value, json};

use crate::contact::{changed, string};
use crate::support::command::{scratch, text};
use crate::support::server::{Server, with};
use crate::support::shared;

/// Templates of models, the format of their calls, and the mark that opens their reasoning.
const DIALECTS: &[(&str, &str, &str)] = &[
    ("Apertus-8B-Instruct", "map-in-list", ""),
    ("Bielik-11B-v3.0-Instruct", "json-in-tags", "<think>"),
    (
        "ByteDance-Seed-OSS",
        "functions-in-seed-tags",
        "<seed:think>",
    ),
    (
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        "action-list",
        "<|START_THINKING|>",
    ),
    ("GLM-4.6", "argument-pairs", "<think>"),
    ("GigaChat3-10B-A1.8B", "message-of-function", ""),
    ("HuggingFaceTB-SmolLM3-3B", "plain", ""),
    ("Kimi-K2-Instruct", "numbered", ""),
    ("LFM2.5-8B-A1B", "call-list", "<think>"),
    ("MiMo-VL", "json-in-tags", ""),
    ("MiniMax-M2", "invoke", "<think>"),
    ("Mistral-Small-3.2-24B-Instruct-2506", "name-after-mark", ""),
    ("NVIDIA-Nemotron-Nano-v2", "tool-list", "<think>"),
    (
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        "json-in-tags",
        "",
    ),
    ("Qwen-Qwen2.5-7B-Instruct", "json-in-tags", ""),
    ("Qwen-Qwen3-0.6B", "json-in-tags", "<think>"),
    ("Qwen3.5-4B", "functions-in-tags", "<think>"),
    ("Reka-Edge", "json-in-tags", "<think>"),
    (
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        "marked-code",
        "<think>",
    ),
    ("deepseek-ai-DeepSeek-V3.1", "marked-names", "<think>"),
    ("deepseek-ai-DeepSeek-V4", "invoke-marked", "<think>"),
    ("google-gemma-2-2b-it", "plain", ""),
    (
        "google-gemma-4-31B-it",
        "marked-notation",
        "<|channel>thought",
    ),
    ("ibm-granite-granite-3.3-2B-Instruct", "list-after-role", ""),
    ("ibm-granite-granite-4.0", "json-in-tags", ""),
    ("inclusionai-ling-3.0-flash", "argument-pairs", "<think>"),
    ("meetkai-functionary-medium-v3.1", "function-tags", ""),
    ("meta-llama-Llama-3.1-8B-Instruct", "bare-json", ""),
    ("microsoft-Phi-3.5-mini-instruct", "plain", ""),
    (
        "mistralai-Mistral-Nemo-Instruct-2407",
        "list-after-mark",
        "",
    ),
    ("openai-gpt-oss-120b", "channels", ""),
    ("poolside-Laguna-XS.2", "argument-pairs", "<think>"),
    ("unsloth-Apriel-1.5", "tool-list-in-tags", ""),
];

#[test]
fn the_dialect_of_a_template_is_found_by_rendering_it() {
    let Some(folder) = shared("golden/templates/dev") else {
        return;
    };
    let mut faults = Vec::new();
    for (name, format, open) in DIALECTS {
        let source =
            std::fs::read_to_string(folder.join(format!("{name}.jinja"))).expect("readable");
        let template = ChatTemplate::new(&source).expect("compiles");
        // A template that shows no calls here; the vocabulary tells.
        let marks = ["<|tool_calls_section_begin|>", "<|tool_call_begin|>"];
        let is_token = |text: &str| name.starts_with("Kimi") && marks.contains(&text);
        let dialect = ChatDialect::probe(&template, "<s>", "</s>", is_token);
        let found = dialect
            .format
            .as_ref()
            .map_or("", |format| format.name.as_str());
        let marks = dialect
            .reasoning
            .as_ref()
            .map_or("", |marks| marks.open.as_str());
        if found != *format || marks != *open {
            faults.push(format!(
                "{name}: found {found} and `{marks}`, expected {format} and `{open}`"
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The part of a template that shows the tools on offer.
const OFFER: &str = "{% for t in tools or [] %}{{ t.function.name }}\n{% endfor %}";

/// A template that shows tools, and calls by the text `calls`, of which `c` is one, and starts answers with `start`.
pub fn template(calls: &str, start: &str) -> String {
    let offer = if calls.is_empty() { "" } else { OFFER };
    format!(
        "{offer}{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{% if m.reasoning_content %}}<think>\n{{{{ m.reasoning_content }}}}\n</think>\n\n{{% endif %}}{{{{ m.content }}}}{calls}<|im_end|>\n{{% endfor %}}{{% if add_generation_prompt %}}<|im_start|>assistant\n{start}{{% endif %}}"
    )
}

/// The same for a model that does not reason.
pub fn plain_template(calls: &str) -> String {
    template(calls, "")
        .replace("<think>", "")
        .replace("</think>", "")
}

/// All calls between two texts.
pub fn calling(open: &str, each: &str, close: &str) -> String {
    format!(
        "{{% if m.tool_calls %}}{open}{{% for t in m.tool_calls %}}{{% set c = t.function %}}{each}{{% endfor %}}{close}{{% endif %}}"
    )
}

const PAIRS: &str = "{% for k, v in c.arguments.items() %}OPEN{{ k }}MIDDLE{{ v if v is string else v | tojson }}CLOSE{% endfor %}";

fn pairs(open: &str, middle: &str, close: &str) -> String {
    PAIRS
        .replace("OPEN", open)
        .replace("MIDDLE", middle)
        .replace("CLOSE", close)
}

pub const TAGGED: &str = "<tool_call>\n{\"name\": \"{{ c.name }}\", \"arguments\": {{ c.arguments | tojson }}}\n</tool_call>";

fn samples() -> BTreeMap<&'static str, String> {
    let function = format!(
        "<tool_call>\n<function={{{{ c.name }}}}>\n{}</function>\n</tool_call>",
        pairs("<parameter=", ">\n", "\n</parameter>\n")
    );
    let keyed = format!(
        "<tool_call>{{{{ c.name }}}}\n{}</tool_call>",
        pairs("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
    );
    let invoke = format!(
        "<invoke name=\"{{{{ c.name }}}}\">\n{}</invoke>\n",
        pairs("<parameter name=\"", "\">", "</parameter>\n")
    );
    let object = "{\"name\": \"{{ c.name }}\", \"arguments\": {{ c.arguments | tojson }}}";
    let marked = "<｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>{{ c.arguments | tojson }}<｜tool▁call▁end｜>";
    BTreeMap::from([
        ("json-in-tags", calling("", TAGGED, "")),
        ("functions-in-tags", calling("", &function, "")),
        ("argument-pairs", calling("", &keyed, "")),
        (
            "invoke",
            calling("<minimax:tool_call>\n", &invoke, "</minimax:tool_call>"),
        ),
        ("list-after-mark", calling("[TOOL_CALLS][", object, "]")),
        (
            "name-after-mark",
            calling(
                "",
                "[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}",
                "",
            ),
        ),
        (
            "marked-names",
            calling("<｜tool▁calls▁begin｜>", marked, "<｜tool▁calls▁end｜>"),
        ),
        (
            "bare-json",
            calling(
                "",
                "{\"name\": \"{{ c.name }}\", \"parameters\": {{ c.arguments | tojson }}}",
                "",
            ),
        ),
    ])
}

pub fn model(folder: &Path, name: &str, template: &str) -> PathBuf {
    changed(
        folder,
        name,
        &[("tokenizer.chat_template", string(template))],
        true,
    )
}

pub fn serve(model: &Path) -> Server {
    Server::start(&["-m", text(model)])
}

fn weather() -> Value {
    json!({ "type": "function", "function": { "name": "get_weather", "description": "The weather.", "parameters": {
        "type": "object", "additionalProperties": false, "required": ["city", "days"],
        "properties": { "city": { "type": "string", "enum": ["Bonn", "Trier"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
    } } })
}

fn asking(name: &str, extra: &Value) -> Value {
    with(
        json!({
            "model": name, "temperature": 0, "max_tokens": 200,
            "messages": [{ "role": "user", "content": "What is the weather in Bonn?" }],
        }),
        extra,
    )
}

const CHAT: &str = "/v1/chat/completions";

/// The chunks of a stream.
fn chunks(server: &Server, body: &Value) -> Vec<Value> {
    let mut events = server.events(CHAT, body);
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    events
        .iter()
        .map(|event| serde_json::from_str(event).expect("JSON"))
        .collect()
}

#[test]
fn a_required_tool_call_is_enforced_and_streamed_in_every_format() {
    let folder = scratch();
    for (format, calls) in samples() {
        let path = model(
            folder.path(),
            &format!("{format}.gguf"),
            &plain_template(&calls),
        );
        let server = serve(&path);
        let named = json!({ "type": "function", "function": { "name": "get_weather" } });
        for choice in [json!("required"), named] {
            let extra = json!({ "tools": [weather()], "tool_choice": choice, "parallel_tool_calls": false });
            let body = asking(format, &extra);
            let (status, answer) = server.json("POST", CHAT, &body);
            assert_eq!(status, 200, "{format}: {answer}");
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{format}: {answer}");
            let (status, cut) = {
                let mut cut = body.clone();
                cut["max_tokens"] = json!(5);
                server.json("POST", CHAT, &cut)
            };
            let reason = &cut["choices"][0]["finish_reason"];
            assert_eq!((status, reason), (200, &json!("length")), "{format}: {cut}");
            let message = choice["message"].as_object().expect("a message");
            assert_eq!(message.get("content"), Some(&Value::Null), "{answer}");
            assert_eq!(message.get("refusal"), Some(&Value::Null), "{answer}");
            let calls = choice["message"]["tool_calls"].as_array().expect("calls");
            assert_eq!(calls.len(), 1, "{format}: {answer}");
            assert_eq!(calls[0]["type"], "function");
            assert_eq!(calls[0]["id"].as_str().map(str::len), Some(9));
            assert_eq!(calls[0]["function"]["name"], "get_weather");
            let written = calls[0]["function"]["arguments"].as_str().expect("a text");
            let arguments: Value = serde_json::from_str(written).expect("JSON");
            assert!(
                ["Bonn", "Trier"]
                    .iter()
                    .any(|city| arguments["city"] == *city),
                "{format}: {written}"
            );
            assert!(
                (1..=9).contains(&arguments["days"].as_i64().expect("a number")),
                "{format}: {written}"
            );

            let mut streamed = String::new();
            let mut n_calls = 0;
            let mut reason = Value::Null;
            for chunk in chunks(&server, &body) {
                let choice = &chunk["choices"][0];
                let delta = &choice["delta"];
                assert!(choice.get("finish_reason").is_some(), "{chunk}");
                assert!(
                    delta["content"].as_str().is_none_or(str::is_empty),
                    "{format}: {chunk}"
                );
                if let Some(call) = delta["tool_calls"].get(0) {
                    assert_eq!(call["index"], 0);
                    if call["id"].is_string() {
                        n_calls += 1;
                        assert_eq!(
                            call["function"],
                            json!({ "name": "get_weather", "arguments": "" })
                        );
                        assert_eq!(call["type"], "function");
                    } else {
                        assert_eq!(
                            call.as_object().map(serde_json::Map::len),
                            Some(2),
                            "{chunk}"
                        );
                        streamed.push_str(call["function"]["arguments"].as_str().expect("a piece"));
                    }
                }
                if !choice["finish_reason"].is_null() {
                    reason = choice["finish_reason"].clone();
                }
            }
            assert_eq!(
                (n_calls, streamed.as_str(), &reason),
                (1, written, &json!("tool_calls")),
                "{format}"
            );
        }
    }
}

#[test]
fn tools_on_offer_leave_a_plain_answer_as_it_is() {
    let folder = scratch();
    let path = model(
        folder.path(),
        "offering.gguf",
        &plain_template(&calling("", TAGGED, "")).replace(OFFER, ""),
    );
    let server = serve(&path);
    let with = |extra: Value| server.json("POST", CHAT, &asking("offering", &extra)).1;
    let extra = json!({ "logprobs": true, "messages": [{ "role": "user", "content": "2+2=?" }] });
    let plain = with(extra.clone());
    for (key, value) in [
        ("tool_choice", json!("auto")),
        ("tool_choice", json!("none")),
    ] {
        let mut extra = extra.clone();
        extra["tools"] = json!([weather()]);
        extra[key] = value;
        let answer = with(extra);
        for part in ["message", "logprobs", "finish_reason"] {
            assert_eq!(answer["choices"][0][part], plain["choices"][0][part]);
        }
    }
}

#[test]
fn tools_go_together_with_a_response_format() {
    let folder = scratch();
    let path = model(
        folder.path(),
        "both.gguf",
        &plain_template(&calling("", TAGGED, "")),
    );
    let server = serve(&path);
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "maximum": 99, "minimum": 0 } }, "required": ["n"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let (status, answer) = server.json(
        "POST",
        CHAT,
        &asking(
            "both",
            &json!({ "tools": [weather()], "response_format": format }),
        ),
    );
    assert_eq!(status, 200, "{answer}");
    let message = &answer["choices"][0]["message"];
    match message["content"].as_str() {
        Some(content) => {
            let content: Value = serde_json::from_str(content).expect("JSON");
            assert!(content["n"].is_i64(), "{answer}");
        }
        None => assert_eq!(
            message["tool_calls"][0]["function"]["name"], "get_weather",
            "{answer}"
        ),
    }
}

#[test]
fn strict_tools_are_enforced_once_a_call_starts() {
    let folder = scratch();
    let path = model(
        folder.path(),
        "strict.gguf",
        &plain_template(&calling("", TAGGED, "")),
    );
    let server = serve(&path);
    let mut tool = weather();
    tool["function"]["strict"] = json!(true);
    let (status, answer) =
        server.json("POST", CHAT, &asking("strict", &json!({ "tools": [tool] })));
    assert_eq!(status, 200, "{answer}");
    assert!(
        answer["choices"][0]["message"]["content"].is_string(),
        "{answer}"
    );
}

#[test]
fn malformed_tool_calls_in_messages_are_named_by_their_path() {
    let server = Server::start(&[]);
    let call = |arguments: Value| json!({ "id": "call_1", "type": "function", "function": { "name": "f", "arguments": arguments } });
    let refused = |message: Value, param: &str| {
        let messages = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }, { "role": "user", "content": "c" }, message]);
        server.refused(json!({ "messages": messages }), 400, "invalid_value", param);
    };
    let message = |calls: Value| json!({ "role": "assistant", "tool_calls": calls });
    for arguments in [json!([1]), json!(7)] {
        refused(
            message(json!([call(arguments)])),
            "messages[3].tool_calls[0].function.arguments",
        );
    }
    refused(message(json!({})), "messages[3].tool_calls");
    refused(
        message(json!([call(json!("{}")), 1])),
        "messages[3].tool_calls[1]",
    );
    refused(
        message(json!([{ "type": "function" }])),
        "messages[3].tool_calls[0].function",
    );
    refused(
        message(json!([{ "function": { "name": 1 } }])),
        "messages[3].tool_calls[0].function.name",
    );
    refused(
        json!({ "role": "assistant", "content": "x", "reasoning_content": 1 }),
        "messages[3].reasoning_content",
    );
}

#[test]
fn tool_calls_in_messages_reach_the_template_in_its_form() {
    let folder = scratch();
    let text_form = TAGGED.replace("c.arguments | tojson", "'' + c.arguments");
    for (name, each) in [("objects", TAGGED), ("texts", text_form.as_str())] {
        let path = model(
            folder.path(),
            &format!("{name}.gguf"),
            &template(&calling("", each, ""), ""),
        );
        let server = serve(&path);
        for arguments in [json!("{\"x\": 1}"), json!({ "x": 1 })] {
            let body = json!({ "model": name, "messages": [
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [{ "id": "1", "type": "function", "function": { "name": "f", "arguments": arguments } }] },
                { "role": "tool", "tool_call_id": "1", "content": "b" },
            ] });
            let (status, answer) = server.json("POST", "/apply-template", &body);
            assert_eq!(status, 200, "{answer}");
            let prompt = answer["prompt"]
                .as_str()
                .expect("a prompt")
                .replace(": 1}", ":1}");
            assert!(
                prompt.contains(
                    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":1}}\n</tool_call>"
                ),
                "{prompt}"
            );
            assert!(prompt.contains("<think>\nhm\n</think>"), "{prompt}");
        }
    }
}

#[test]
fn reasoning_is_separated_from_content_and_limited() {
    let folder = scratch();
    let path = model(folder.path(), "thinking.gguf", &template("", "<think>\n"));
    let server = serve(&path);
    let body = |extra: Value| {
        let mut body = asking("thinking", &extra);
        body["messages"] = json!([{ "role": "user", "content": "2+2=?" }]);
        if body["max_tokens"] == 200 {
            body["max_tokens"] = json!(60);
        }
        body
    };
    let limited = body(json!({ "thinking_budget": 3, "logprobs": true, "ignore_eos": true }));
    let (status, answer) = server.json("POST", CHAT, &limited);
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    let reasoning = choice["message"]["reasoning_content"]
        .as_str()
        .expect("reasoning");
    assert_eq!(choice["message"]["reasoning"], reasoning);
    let content = choice["message"]["content"].as_str().expect("content");
    assert!(
        !content.is_empty() && !content.contains("think>") && !reasoning.contains("think>"),
        "{answer}"
    );
    assert_eq!(
        answer["usage"]["completion_tokens_details"]["reasoning_tokens"],
        3
    );
    let entries = choice["logprobs"]["content"].as_array().expect("entries");
    let bytes = entries
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().expect("bytes"));
    let bytes: Vec<u8> = bytes
        .map(|byte| byte.as_u64().expect("a byte") as u8)
        .collect();
    assert_eq!(String::from_utf8_lossy(&bytes), content);

    let [mut reasoned, mut said] = [String::new(), String::new()];
    for chunk in chunks(&server, &limited) {
        let delta = &chunk["choices"][0]["delta"];
        assert_eq!(delta["reasoning_content"], delta["reasoning"]);
        reasoned.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        said.push_str(delta["content"].as_str().unwrap_or_default());
    }
    assert_eq!((reasoned.as_str(), said.as_str()), (reasoning, content));

    let (_, hidden) = server.json(
        "POST",
        CHAT,
        &body(json!({ "thinking_budget": 3, "include_reasoning": false, "ignore_eos": true })),
    );
    assert!(hidden["choices"][0]["message"]["reasoning_content"].is_null());
    assert_eq!(hidden["choices"][0]["message"]["content"], content);
    let (_, raw) = server.json(
        "POST",
        CHAT,
        &body(json!({ "thinking_budget": 3, "reasoning_format": "none", "ignore_eos": true })),
    );
    let raw = raw["choices"][0]["message"]["content"]
        .as_str()
        .expect("content");
    assert!(raw.contains("</think>") && raw.contains(reasoning), "{raw}");

    // A block that is never closed: the answer if the model ended it, nothing if it was cut off.
    let (_, ended) = server.json("POST", CHAT, &body(json!({ "include_reasoning": false })));
    assert_eq!(ended["choices"][0]["finish_reason"], "stop", "{ended}");
    assert!(
        ended["choices"][0]["message"]["content"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{ended}"
    );
    let (_, cut) = server.json(
        "POST",
        CHAT,
        &body(json!({ "include_reasoning": false, "max_tokens": 2 })),
    );
    assert_eq!(
        (
            &cut["choices"][0]["message"]["content"],
            &cut["choices"][0]["finish_reason"]
        ),
        (&json!(""), &json!("length"))
    );
}

#[test]
fn a_schema_holds_for_what_follows_the_reasoning() {
    let folder = scratch();
    let path = model(folder.path(), "reasoned.gguf", &template("", "<think>\n"));
    let server = serve(&path);
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "maximum": 99, "minimum": 0 } }, "required": ["n"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let (status, answer) = server.json(
        "POST",
        CHAT,
        &asking(
            "reasoned",
            &json!({ "response_format": format, "thinking_budget": 4 }),
        ),
    );
    assert_eq!(status, 200, "{answer}");
    let content = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("content");
    let content: Value = serde_json::from_str(content).unwrap_or_else(|e| panic!("{e}: {answer}"));
    assert!(content["n"].is_i64(), "{answer}");
    assert!(
        answer["choices"][0]["message"]["reasoning"].is_string(),
        "{answer}"
    );
}

#[test]
fn settings_of_reasoning_are_checked() {
    let server = Server::start(&[]);
    for (extra, param) in [
        (
            json!({ "chat_template_kwargs": { "enable_thinking": "yes" } }),
            "chat_template_kwargs.enable_thinking",
        ),
        (
            json!({ "chat_template_kwargs": { "bos_token": "x" } }),
            "chat_template_kwargs.bos_token",
        ),
        (json!({ "reasoning_effort": "huge" }), "reasoning_effort"),
        (
            json!({ "tools": [{ "type": "function" }] }),
            "tools[0].function",
        ),
        (json!({ "tool_choice": "required" }), "tool_choice"),
    ] {
        server.refused(extra, 400, "invalid_value", param);
    }
    server.refused(
        json!({ "thinking_budget": "x" }),
        400,
        "invalid_type",
        "thinking_budget",
    );
    for effort in ["none", "minimal", "low", "medium", "high", "xhigh"] {
        let (status, answer) = server.chat(json!({ "reasoning_effort": effort }));
        assert_eq!(status, 200, "{answer}");
    }
}

#[test]
fn the_start_of_reasoning_is_in_the_log_if_that_is_asked_for() {
    let folder = scratch();
    let path = model(folder.path(), "thinking.gguf", &template("", "<think>\n"));
    for (level, expected) in [("request=debug", 1), ("request=info", 0)] {
        let log = folder.path().join(level);
        let server = Server::start(&["-m", text(&path), "--log", text(&log), "--log-level", level]);
        let asked = asking(
            "thinking",
            &json!({ "max_tokens": 40, "include_reasoning": false }),
        );
        let answer = server.post(CHAT, &asked);
        let n = &answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
        assert!(n.as_u64() > Some(0), "{answer}");
        drop(server);
        let log = std::fs::read_to_string(&log).expect("a log");
        assert_eq!(log.matches("reasoning=").count(), expected, "{log}");
    }
}
