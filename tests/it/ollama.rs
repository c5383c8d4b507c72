//! Ollama's API: its lines and answers, its errors, and what programs ask before they send a request.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::command::{scratch, text};
use crate::support::hf;
use crate::support::process::{JSON, engine, eventually, kill, two_models};
use crate::support::server::{Server, with};
use crate::support::vocabulary::with_vocabulary;
use crate::tools::{TAGGED, calling, model, serve, template};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

/// A chat request whose answer is always the same, with further fields.
fn request(extra: &Value) -> Value {
    let messages = json!([{ "role": "user", "content": "2+2=?" }]);
    let body = json!({
        "model": "tiny-chat:latest", "messages": messages, "options": { "temperature": 0 },
    });
    with(body, extra)
}

fn whole(extra: &Value) -> Value {
    with(request(extra), &json!({ "stream": false }))
}

/// The lines of a stream. A stream is the default.
fn lines(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let (status, head, body) = server.raw("POST", path, JSON, &body.to_string());
    assert_eq!(status, 200, "{body}");
    assert!(
        head.contains("content-type: application/x-ndjson"),
        "{head}"
    );
    assert!(body.ends_with('\n'), "{body:?}");
    let lines = body
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    lines.collect()
}

/// The joined texts of the lines at a place.
fn joined(lines: &[Value], at: &str) -> String {
    let texts = lines.iter().filter_map(|line| line.pointer(at)?.as_str());
    texts.collect()
}

/// The models that are loaded.
fn loaded(server: &Server) -> Vec<Value> {
    let (status, answer) = server.json("GET", "/api/ps", &Value::Null);
    assert_eq!(status, 200, "{answer}");
    answer["models"].as_array().expect("an array").clone()
}

fn shipped() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-chat.gguf")
}

fn error_of(answer: &Value) -> &str {
    assert_eq!(
        answer.as_object().map(serde_json::Map::len),
        Some(1),
        "{answer}"
    );
    answer["error"].as_str().expect("a text")
}

#[test]
fn what_curl_sends_without_a_header_is_read_unless_a_page_sent_it() {
    let server = Server::shared();
    let body = whole(&json!({})).to_string();
    let form = "application/x-www-form-urlencoded";
    for kind in [form, "", "Application/X-WWW-Form-Urlencoded; charset=utf-8"] {
        let (status, _, answer) = server.raw("POST", CHAT, kind, &body);
        assert_eq!(status, 200, "{kind}: {answer}");
    }
    // A page of an origin that may use the server sends these without asking first.
    let of_page = format!("{form}\r\norigin: http://localhost:3000");
    let untyped_of_page = "\r\norigin: http://localhost:3000";
    for (path, kind) in [
        (CHAT, of_page.as_str()),
        (CHAT, untyped_of_page),
        (CHAT, "text/plain"),
        ("/v1/chat/completions", form),
    ] {
        let (status, _, answer) = server.raw("POST", path, kind, &body);
        assert_eq!(status, 415, "{path} {kind}: {answer}");
        let hint = "`-H 'content-type: application/json'`";
        assert!(answer.contains(hint), "{answer}");
    }
}

#[test]
fn a_chat_is_lines_that_end_with_counts_and_times() {
    let server = Server::shared();
    let (_, reference) = server.chat(json!({}));
    let expected = reference["choices"][0]["message"]["content"]
        .as_str()
        .expect("a text");
    let logged = json!({ "logprobs": true, "top_logprobs": 2 });
    let all = lines(&server, CHAT, &request(&logged));
    let (last, parts) = all.split_last().expect("lines");
    assert_eq!(joined(&all, "/message/content"), expected);
    assert!(parts.len() > 1, "{all:?}");
    for part in parts {
        assert_eq!(
            (&part["done"], &part["message"]["role"]),
            (&json!(false), &json!("assistant"))
        );
        assert_eq!(part["model"], "tiny-chat:latest");
        assert!(
            part["created_at"]
                .as_str()
                .is_some_and(|time| time.ends_with('Z')),
            "{part}"
        );
        for entry in part["logprobs"].as_array().expect("an array") {
            assert!(entry["logprob"].as_f64() <= Some(0.0), "{entry}");
            assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(2));
        }
    }
    let answer = server.post(CHAT, &whole(&json!({})));
    assert_eq!(
        answer["message"],
        json!({ "role": "assistant", "content": expected })
    );
    for end in [last, &answer] {
        assert_eq!(
            (&end["done"], &end["done_reason"]),
            (&json!(true), &json!("stop"))
        );
        assert_eq!(
            end["prompt_eval_count"],
            reference["usage"]["prompt_tokens"]
        );
        assert_eq!(end["eval_count"], reference["usage"]["completion_tokens"]);
        let time = |name: &str| {
            end[name]
                .as_u64()
                .unwrap_or_else(|| panic!("{name}: {end}"))
        };
        assert!(time("total_duration") >= time("eval_duration"), "{end}");
        assert!(
            time("prompt_eval_duration") > 0 && time("load_duration") < 1 << 40,
            "{end}"
        );
    }
    // The start of the answer goes on.
    let begun = json!({ "messages": [
        { "role": "user", "content": "2+2=?" }, { "role": "assistant", "content": &expected[..1] },
    ] });
    let answer = server.post(CHAT, &whole(&begun));
    assert_eq!(answer["message"]["content"], expected[1..]);
    let cut = json!({ "options": { "num_predict": 2, "temperature": 0 } });
    let answer = server.post(CHAT, &whole(&cut));
    assert_eq!(
        (&answer["done_reason"], &answer["eval_count"]),
        (&json!("length"), &json!(2))
    );
}

#[test]
fn calls_have_objects_and_results_find_them() {
    let server = Server::shared();
    let parameters = json!({
        "type": "object", "required": ["days"],
        "properties": { "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
    });
    let tool =
        json!({ "type": "function", "function": { "name": "weather", "parameters": parameters } });
    let forced = json!({ "tools": [tool], "tool_choice": "required" });
    let answer = server.post(CHAT, &whole(&forced));
    let call = &answer["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather", "{answer}");
    assert!(call["function"]["arguments"]["days"].is_u64(), "{answer}");
    assert_eq!(answer["message"]["content"], "");
    let all = lines(&server, CHAT, &request(&forced));
    let calls: Vec<&Value> = all
        .iter()
        .filter_map(|line| line.pointer("/message/tool_calls"))
        .collect();
    assert_eq!(calls.len(), 1, "a call is one line: {all:?}");
    assert_eq!(calls[0][0]["function"], call["function"]);
    // As clients send it back, whose packages drop the id.
    let turn = json!({ "tools": [tool], "messages": [
        { "role": "user", "content": "2+2=?" },
        { "role": "assistant", "content": "", "tool_calls": [{ "function": call["function"] }] },
        { "role": "tool", "tool_name": "weather", "content": "rain" },
    ] });
    server.post(CHAT, &whole(&turn));
    let schema = json!({ "format": parameters });
    let answer = server.post(CHAT, &whole(&schema));
    let written = answer["message"]["content"].as_str().expect("a text");
    let written: Value = serde_json::from_str(written).expect("JSON");
    assert!(
        (1..=9).contains(&written["days"].as_u64().expect("a number")),
        "{written}"
    );
    // The built-in model would write more names without end.
    let object = json!({ "format": "json", "options": { "temperature": 0, "num_predict": 20 } });
    let answer = server.post(CHAT, &whole(&object));
    let written = answer["message"]["content"].as_str().expect("a text");
    assert!(written.trim_start().starts_with('{'), "{written}");
}

#[test]
fn thinking_is_apart_from_the_answer() {
    let folder = scratch();
    let template = template(&calling("", TAGGED, ""), "<think>\n");
    let server = serve(&model(folder.path(), "thinks.gguf", &template));
    let shown = server.post("/api/show", &json!({ "model": "thinks" }));
    assert_eq!(
        shown["capabilities"],
        json!(["completion", "tools", "thinking"])
    );
    // The model of this test thinks until it is stopped.
    let limits = json!({ "model": "thinks", "thinking_budget": 3 });
    let all = lines(&server, CHAT, &request(&limits));
    let thought = joined(&all, "/message/thinking");
    let text = joined(&all, "/message/content");
    assert!(!thought.is_empty() && !text.is_empty(), "{all:?}");
    for think in [json!(true), json!("low"), Value::Null] {
        let asked = with(limits.clone(), &json!({ "think": think }));
        let answer = server.post(CHAT, &whole(&asked));
        assert_eq!(answer["message"]["thinking"], json!(thought), "{answer}");
        assert_eq!(answer["message"]["content"], json!(text), "{answer}");
    }
    let silent = with(limits.clone(), &json!({ "think": false }));
    let answer = server.post(CHAT, &whole(&silent));
    assert_eq!(answer["message"].get("thinking"), None, "{answer}");
    let prompt = with(
        limits,
        &json!({ "prompt": "2+2=?", "options": { "temperature": 0 } }),
    );
    let all = lines(&server, GENERATE, &prompt);
    assert_eq!(joined(&all, "/thinking"), thought);
    assert_eq!(joined(&all, "/response"), text);

    // The conversation goes on as in chat completions.
    let call = json!({ "name": "weather", "arguments": { "days": 3 } });
    let turn = json!({ "model": "thinks", "messages": [
        { "role": "user", "content": "2+2=?" },
        { "role": "assistant", "thinking": "hm", "tool_calls": [{ "function": call }] },
        { "role": "tool", "tool_name": "weather", "content": "rain" },
    ] });
    let called = json!([{ "id": "a", "type": "function", "function": call }]);
    let chat = json!({ "model": "thinks", "messages": [
        { "role": "user", "content": "2+2=?" },
        { "role": "assistant", "reasoning_content": "hm", "tool_calls": called },
        { "role": "tool", "tool_call_id": "a", "content": "rain" },
    ] });
    let answer = server.post(CHAT, &whole(&turn));
    let expected = server.post("/tokenize", &chat);
    assert_eq!(answer["prompt_eval_count"], expected["count"]);
}

#[test]
fn a_prompt_is_answered_as_a_message_or_read_as_it_is() {
    let server = Server::shared();
    let (_, chat) = server.chat(json!({}));
    let body = json!({ "model": "tiny-chat", "prompt": "2+2=?", "options": { "temperature": 0 } });
    let all = lines(&server, GENERATE, &body);
    assert_eq!(
        joined(&all, "/response"),
        chat["choices"][0]["message"]["content"]
    );
    let raw = with(
        body.clone(),
        &json!({ "raw": true, "stream": false, "options": { "temperature": 0, "num_predict": 6 } }),
    );
    let plain =
        json!({ "model": "tiny-chat", "prompt": "2+2=?", "temperature": 0, "max_tokens": 6 });
    let plain = server.post("/v1/completions", &plain);
    let answer = server.post(GENERATE, &raw);
    assert_eq!(answer["response"], plain["choices"][0]["text"]);
    assert_eq!(answer["prompt_eval_count"], plain["usage"]["prompt_tokens"]);
    let gap = with(raw, &json!({ "suffix": "1" }));
    let (status, answer) = server.json("POST", GENERATE, &gap);
    assert_eq!(status, 400, "{answer}");
    assert!(error_of(&answer).contains("fill-in-the-middle"), "{answer}");
}

#[test]
fn faults_are_texts_and_hints_are_named() {
    let folder = scratch();
    for name in ["one.gguf", "two.gguf"] {
        std::fs::copy(shipped(), folder.path().join(name)).expect("copied");
    }
    let server = Server::start(&["--models", text(folder.path())]);
    let picture = json!({ "model": "one", "messages": [{ "role": "user", "content": "?", "images": ["aGk="] }] });
    for (method, path, body, status, expected) in [
        (
            "POST",
            CHAT,
            request(&json!({ "model": "llama" })),
            404,
            "`llama`",
        ),
        (
            "POST",
            "/api/show",
            json!({ "model": "llama" }),
            404,
            "`llama`",
        ),
        ("POST", CHAT, picture, 400, "`messages[0].images[0]`"),
        (
            "POST",
            CHAT,
            request(&json!({ "options": { "temperature": -3 } })),
            400,
            "`options.temperature`",
        ),
        (
            "POST",
            GENERATE,
            json!({ "model": "one", "prompt": "1", "context": [1] }),
            400,
            "`context`",
        ),
        (
            "POST",
            "/api/embed",
            json!({ "model": "one", "input": "1" }),
            400,
            "not for this endpoint",
        ),
        (
            "POST",
            "/api/pull",
            json!({ "model": "llama3.2:1b" }),
            400,
            "llama3.2:1b",
        ),
        (
            "DELETE",
            "/api/delete",
            json!({ "model": "one" }),
            400,
            "bench rm",
        ),
        (
            "POST",
            "/api/push",
            json!({ "model": "one" }),
            404,
            "/api/push",
        ),
        ("GET", CHAT, Value::Null, 405, "method"),
    ] {
        let (found, answer) = server.json(method, path, &body);
        assert_eq!(found, status, "{path} {body}: {answer}");
        assert!(
            error_of(&answer).contains(expected),
            "{path} {body}: {answer}"
        );
    }
    let (status, _, body) = server.raw("POST", CHAT, "text/plain", "{}");
    assert_eq!(status, 415);
    error_of(&serde_json::from_str(&body).expect("JSON"));

    let hints = json!({
        "model": "one", "stream": false, "shift": true,
        "options": { "num_ctx": 64, "num_gpu": 1, "num_predict": 2, "no_such": 1 },
    });
    let (status, head, _) = server.raw("POST", CHAT, JSON, &request(&hints).to_string());
    assert_eq!(status, 200);
    let expected = "x-bench-ignored: options.no_such, options.num_ctx, options.num_gpu, shift";
    assert!(head.contains(expected), "{head}");
    let strict = Server::start(&["--strict-fields"]);
    let (status, answer) = strict.json(
        "POST",
        CHAT,
        &request(&json!({ "options": { "num_predicd": 2 } })),
    );
    assert_eq!(status, 400);
    assert!(
        error_of(&answer).contains("did you mean `options.num_predict`?"),
        "{answer}"
    );
}

#[test]
fn models_tell_what_ollamas_clients_ask() {
    let folder = scratch();
    std::fs::copy(shipped(), folder.path().join("one.gguf")).expect("copied");
    let server = Server::start(&["--models", text(folder.path())]);
    let (status, tags) = server.json("GET", "/api/tags", &Value::Null);
    assert_eq!(status, 200);
    let model = &tags["models"][0];
    assert_eq!(
        (&model["name"], &model["model"]),
        (&json!("one:latest"), &json!("one:latest"))
    );
    assert_eq!(model["digest"].as_str().map(str::len), Some(64));
    assert!(
        model["size"].as_u64() > Some(0) && model["modified_at"].is_string(),
        "{model}"
    );
    let (_, reference) = server.json("GET", "/v1/models/one", &Value::Null);
    assert_eq!(model["details"]["format"], "gguf");
    assert_eq!(model["details"]["family"], reference["meta"]["arch"]);
    assert_eq!(model["details"]["quantization_level"], "F16");
    for name in ["one", "one:latest"] {
        let shown = server.post("/api/show", &json!({ "model": name }));
        assert_eq!(shown["details"], model["details"]);
        assert_eq!(shown["capabilities"], json!(["completion"]), "{shown}");
        let info = &shown["model_info"];
        let arch = info["general.architecture"].as_str().expect("a name");
        assert_eq!(
            info[format!("{arch}.context_length")],
            reference["meta"]["n_ctx_train"]
        );
        assert_eq!(
            info["general.parameter_count"],
            reference["meta"]["n_params"]
        );
        assert_eq!(info["tokenizer.ggml.tokens"], Value::Null);
        assert!(
            shown["template"]
                .as_str()
                .is_some_and(|text| text.contains("messages")),
            "{shown}"
        );
    }
    assert_eq!(
        server.post("/api/show", &json!({ "name": "one" }))["modified_at"],
        model["modified_at"]
    );
    assert_eq!(
        loaded(&server),
        Vec::<Value>::new(),
        "nothing of this loads it"
    );
    let (_, version) = server.json("GET", "/api/version", &Value::Null);
    let numbers = version["version"].as_str().expect("a text").split('.');
    assert_eq!(
        numbers.filter(|part| part.parse::<u32>().is_ok()).count(),
        3
    );
    for path in ["/", "/api/version", "/api/tags"] {
        let (status, _, body) = server.raw("HEAD", path, "text/plain", "");
        assert_eq!((status, body.as_str()), (200, ""), "{path}");
    }
    // A model that is there and has no name on the Hub is not downloaded.
    let all = lines(&server, "/api/pull", &json!({ "model": "one:latest" }));
    assert_eq!(all.last(), Some(&json!({ "status": "success" })));
}

fn wait_until_unloaded(server: &Server) {
    eventually("the model is unloaded", || loaded(server).is_empty());
}

#[test]
fn keep_alive_says_how_long_a_model_stays_loaded() {
    for is_split in [false, true] {
        let folder = scratch();
        std::fs::copy(shipped(), folder.path().join("one.gguf")).expect("copied");
        let start = if is_split {
            Server::split
        } else {
            Server::start
        };
        let server = start(&["--models", text(folder.path())]);
        let empty = |extra: Value| with(json!({ "model": "one" }), &extra);
        // Nothing is loaded in order to be unloaded.
        let answer = server.post(GENERATE, &empty(json!({ "keep_alive": 0 })));
        assert_eq!(
            (&answer["done_reason"], &answer["response"]),
            (&json!("unload"), &json!(""))
        );
        let (_, models) = server.json("GET", "/v1/models/one", &Value::Null);
        assert_eq!(models["state"], "not loaded");

        let (status, head, body) = server.raw(
            "POST",
            CHAT,
            JSON,
            &empty(json!({ "keep_alive": "1h" })).to_string(),
        );
        assert_eq!(status, 200, "{body}");
        assert!(!head.contains("x-bench-keep-alive"), "{head}");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(
            (&answer["done"], &answer["done_reason"]),
            (&json!(true), &json!("load"))
        );
        let model = &loaded(&server)[0];
        assert_eq!(model["name"], "one:latest");
        assert!(
            model["size"].as_u64() > Some(0) && model["context_length"].as_u64() > Some(0),
            "{model}"
        );
        let soon = model["expires_at"].as_str().expect("a time").to_owned();

        // A stream is completed before the model is unloaded.
        let body = json!({
            "model": "one", "prompt": "1 2 3", "raw": true, "keep_alive": 0,
            "options": { "temperature": 0, "num_predict": 60 }, "ignore_eos": true,
        });
        let all = lines(&server, GENERATE, &body);
        assert_eq!(all.last().expect("lines")["eval_count"], 60);
        wait_until_unloaded(&server);
        server.post(CHAT, &empty(json!({ "keep_alive": -1 })));
        let late = loaded(&server)[0]["expires_at"]
            .as_str()
            .expect("a time")
            .to_owned();
        assert!(late[..4] > soon[..4], "{late} {soon}");
        server.post(CHAT, &empty(json!({ "keep_alive": "100ms" })));
        wait_until_unloaded(&server);
    }
}

#[test]
fn a_stream_of_an_engine_process_has_the_same_lines_and_ends_with_the_fault() {
    let server = Server::split(&[]);
    let own = Server::shared();
    let lasting = |server: &Server| -> Vec<Value> {
        let all = lines(server, CHAT, &request(&json!({})));
        let texts = all.into_iter().map(|line| line["message"].clone());
        texts.collect()
    };
    assert_eq!(lasting(&server), lasting(&own));
    let (status, answer) = server.json("POST", CHAT, &request(&json!({ "think": "a lot" })));
    assert_eq!(status, 400);
    assert!(error_of(&answer).contains("`think`"), "{answer}");

    let folder = scratch();
    let server = two_models(folder.path(), &[]).expecting_errors();
    let body = json!({
        "model": "one", "prompt": "1 2 3", "raw": true, "options": { "num_predict": 600 },
        "ignore_eos": true,
    });
    let stream = server.send("POST", GENERATE, JSON, &body.to_string());
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with('{') {
        line.clear();
        assert!(reader.read_line(&mut line).expect("a line") > 0, "no line");
    }
    kill(engine(&server, "one"), Signal::KILL);
    let mut rest = String::new();
    reader.read_to_string(&mut rest).expect("the rest");
    assert!(rest.ends_with("0\r\n\r\n"), "cut off: {rest:?}");
    let last = rest.lines().rev().find(|line| line.starts_with('{'));
    let last: Value = serde_json::from_str(last.expect("a line")).expect("JSON");
    assert!(error_of(&last).contains("SIGKILL"), "{last}");
}

#[test]
fn vectors_are_those_of_openais_endpoint() {
    let root = scratch();
    let model = with_vocabulary(&hf::open("bert"), root.path());
    let server = Server::start(&["-m", text(&model)]);
    let texts = json!(["a b", "c"]);
    let reference = server.post("/v1/embeddings", &json!({ "input": texts }));
    let expected: Vec<&Value> = reference["data"]
        .as_array()
        .expect("an array")
        .iter()
        .map(|one| &one["embedding"])
        .collect();
    let answer = server.post(
        "/api/embed",
        &json!({ "model": "bert", "input": texts, "options": { "num_ctx": 4 } }),
    );
    assert_eq!(answer["embeddings"], json!(expected));
    assert_eq!(
        answer["prompt_eval_count"],
        reference["usage"]["prompt_tokens"]
    );
    let one = server.post("/api/embed", &json!({ "input": "c", "dimensions": 2 }));
    assert_eq!(one["embeddings"][0].as_array().map(Vec::len), Some(2));
    assert_eq!(
        server.post("/api/embed", &json!({ "input": [] }))["embeddings"],
        json!([])
    );
    // Longer than the context: cut, unless the request says otherwise.
    let long = "a ".repeat(5000);
    server.post("/api/embed", &json!({ "input": long }));
    let (status, answer) = server.json(
        "POST",
        "/api/embed",
        &json!({ "input": long, "truncate": false }),
    );
    assert_eq!(status, 400);
    error_of(&answer);
    let old = server.post("/api/embeddings", &json!({ "prompt": "c" }));
    let raw = server.post(
        "/v1/embeddings",
        &json!({ "input": "c", "normalize": false }),
    );
    assert_eq!(old["embedding"], raw["data"][0]["embedding"]);
    let shown = server.post("/api/show", &json!({ "model": "bert" }));
    assert_eq!(shown["capabilities"], json!(["embedding"]));
    assert_eq!(shown["details"]["format"], "safetensors");
}
