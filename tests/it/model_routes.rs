//! What the server tells of its models and of itself, and how models are loaded, unloaded and found.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::config::sent;
use crate::support::command::{scratch, text};
use crate::support::server::Server;

fn shipped() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-chat.gguf")
}

#[test]
fn models_tell_their_numbers_and_are_loaded_and_unloaded() {
    let folder = scratch();
    let shipped = shipped();
    std::fs::copy(&shipped, folder.path().join("one.gguf")).expect("copied");
    let server = Server::start(&["--models", text(folder.path())]);
    let state = |name: &str| {
        let (status, model) = server.json("GET", &format!("/v1/models/{name}"), &Value::Null);
        assert_eq!(status, 200, "{model}");
        model
    };
    let model = state("one");
    assert_eq!(model["state"], "not loaded");
    // As long as it will be.
    let n_ctx = model["max_model_len"].clone();
    assert!(n_ctx.as_u64() > Some(0), "{model}");
    for number in ["n_vocab", "n_embd", "n_params", "size", "n_ctx_train"] {
        assert!(
            model["meta"][number].as_u64() > Some(0),
            "{number}: {model}"
        );
    }
    let (_, props) = server.json("GET", "/props", &Value::Null);
    assert_eq!(props["state"], "not loaded");
    assert_eq!(server.json("GET", "/slots", &Value::Null).1, json!([]));
    assert_eq!(
        state("one")["state"],
        "not loaded",
        "nothing of this loads it"
    );

    server.post("/models/load", &json!({ "model": "one" }));
    let model = state("one");
    assert_eq!(model["state"], "loaded");
    assert_eq!(model["max_model_len"], n_ctx);
    assert_eq!(model["context_length"], n_ctx);
    let (_, props) = server.json("GET", "/props", &Value::Null);
    assert_eq!(props["total_slots"], 4);
    assert!(props["chat_template"].is_string(), "{props}");
    let (_, slots) = server.json("GET", "/slots", &Value::Null);
    assert_eq!(slots.as_array().map(Vec::len), Some(4));
    assert_eq!(slots[0]["is_processing"], false);

    std::fs::copy(&shipped, folder.path().join("two.gguf")).expect("copied");
    let scan = server.post("/models/rescan", &json!({}));
    assert_eq!((&scan["new"], &scan["gone"]), (&json!(["two"]), &json!([])));
    assert_eq!(state("one")["state"], "loaded", "what is there stays");
    std::fs::remove_file(folder.path().join("two.gguf")).expect("removed");
    let scan = server.post("/models/rescan", &json!({}));
    assert_eq!(scan["gone"], json!(["two"]));

    assert_eq!(
        server.post("/models/unload", &json!({ "model": "one" }))["was_loaded"],
        true
    );
    assert_eq!(state("one")["state"], "not loaded");
    let (_, health) = server.json("GET", "/health", &Value::Null);
    assert_eq!(
        (&health["loaded"], &health["loading"]),
        (&json!([]), &json!([]))
    );
    // A request loads it again.
    let body = json!({ "model": "one", "prompt": "2+2=", "max_tokens": 3 });
    server.post("/v1/completions", &body);
    assert_eq!(state("one")["state"], "loaded");
    let (status, _) = server.json("POST", "/models/load", &json!({ "model": "three" }));
    assert_eq!(status, 404);
}

/// The value of a line of the metrics.
fn metric(page: &str, start: &str) -> f64 {
    let line = page.lines().find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("no {start} in\n{page}"));
    let value = line.rsplit(' ').next().and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn metrics_count_what_was_done() {
    let server = Server::start(&["--draft", "4"]);
    let body = json!({
        "model": "default", "prompt": "1 2 3 1 2 3 1 2 3", "max_tokens": 12, "ignore_eos": true,
    });
    let answer = server.post("/v1/completions", &body);
    let (status, head, page) = server.raw("GET", "/metrics", "text/plain", "");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain"), "{head}");
    let of = |name: &str| metric(&page, &format!("bench_{name}"));
    let count = |path: &str| answer.pointer(path).and_then(Value::as_f64).expect(path);
    assert_eq!(
        of("requests_total{model=\"tiny-chat\",outcome=\"length\"}"),
        1.0
    );
    assert_eq!(
        of("requests_total{model=\"tiny-chat\",outcome=\"failed\"}"),
        0.0
    );
    assert_eq!(of("prompt_tokens_total"), count("/usage/prompt_tokens"));
    assert_eq!(of("completion_tokens_total"), 12.0);
    let accepted = count("/usage/completion_tokens_details/accepted_prediction_tokens");
    assert_eq!(of("accepted_tokens_total"), accepted);
    assert_eq!(of("time_to_first_token_seconds_count"), 1.0);
    assert_eq!(of("inter_token_seconds_count"), 11.0);
    assert_eq!(of("queue_length"), 0.0);
    assert_eq!(
        of("model_loads_total{model=\"tiny-chat\",outcome=\"loaded\"}"),
        1.0
    );
    assert!(of("kv_blocks{") > 0.0 && of("kv_blocks_used") >= 0.0);
    for name in [
        "request_seconds",
        "request_queue_seconds",
        "request_prefill_seconds",
    ] {
        assert_eq!(of(&format!("{name}_count")), 1.0, "{name}");
    }
    assert_eq!(of("request_completion_tokens_sum"), 12.0);
    assert_eq!(
        of("request_prompt_tokens_sum"),
        count("/usage/prompt_tokens")
    );
    // Under vLLM's names, which routers between servers read.
    let routed = |name: &str| metric(&page, &format!("vllm:{name}{{model_name=\"tiny-chat\""));
    assert_eq!(routed("generation_tokens_total"), 12.0);
    assert_eq!(
        (
            routed("num_requests_running"),
            routed("num_requests_waiting")
        ),
        (0.0, 0.0)
    );
    assert!((0.0..=1.0).contains(&routed("kv_cache_usage_perc")));
    assert_eq!(routed("cache_config_info"), 1.0);
    let blocks = format!("num_gpu_blocks=\"{}\"", of("kv_blocks{"));
    assert!(page.contains(&blocks), "{page}");
    let first = "bench_time_to_first_token_seconds_bucket{model=\"tiny-chat\",le=\"+Inf\"}";
    assert_eq!(metric(&page, first), 1.0);
    for line in page.lines().filter(|line| line.starts_with("# TYPE ")) {
        let name = line.split(' ').nth(2).expect("a name");
        let n = page.matches(&format!("# TYPE {name} ")).count();
        assert_eq!(n, 1, "{name}");
    }
}

#[test]
fn the_document_lists_the_routes_that_there_are_and_their_fields() {
    let server = Server::start(&["--strict-fields"]);
    let (status, document) = server.json("GET", "/openapi.json", &Value::Null);
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let minimal = |path: &str| match path {
        "/infill" => json!({ "input_prefix": "1", "input_suffix": "1" }),
        "/completion" | "/completions" => json!({ "prompt": "1", "max_tokens": 1 }),
        path if path.contains("responses") => {
            json!({ "model": "default", "input": "1", "max_output_tokens": 1 })
        }
        "/v1/chat/completions"
        | "/chat/completions"
        | "/v1/chat/completions/input_tokens"
        | "/chat/completions/input_tokens"
        | "/v1/messages"
        | "/v1/messages/count_tokens"
        | "/api/chat" => {
            json!({ "model": "default", "max_tokens": 1, "messages": [{ "role": "user", "content": "1" }] })
        }
        "/slots/{id}" => json!({ "filename": "a" }),
        "/v1/completions" => json!({ "model": "default", "prompt": "1", "max_tokens": 1 }),
        "/v1/lab/run" => json!({ "messages": [{ "role": "user", "content": "1" }], "lab": {} }),
        "/v1/lab/patch" => {
            json!({ "clean": "1", "corrupt": "2", "metric": { "token": 5 } })
        }
        "/v1/lab/pictures" => json!({ "picture": "lens", "response": {} }),
        "/v1/lab/vectors" => json!({ "id": "a", "vector": [1] }),
        "/models/load" | "/models/unload" => json!({ "model": "nothing" }),
        "/v1/load_lora_adapter" => json!({ "lora_name": "a", "lora_path": "a" }),
        "/v1/unload_lora_adapter" => json!({ "lora_name": "a" }),
        "/models/pull" | "/api/pull" => json!({ "model": "no name" }),
        "/api/generate" => json!({ "prompt": "1", "options": { "num_predict": 1 } }),
        "/api/embeddings" => json!({ "prompt": "1" }),
        "/api/show" => json!({ "model": "default" }),
        "/render" => json!({ "text": "1" }),
        "/v1/batches" => json!({ "input_file_id": "file-x", "endpoint": "/v1/embeddings" }),
        "/detokenize" => json!({ "tokens": [5] }),
        "/tokenize" => json!({ "prompt": "1" }),
        "/apply-template" => json!({ "messages": [{ "role": "user", "content": "1" }] }),
        "/models/rescan" | "/quit" => json!({}),
        path if path.contains("rerank") => json!({ "query": "1", "documents": ["1"] }),
        path if path.ends_with("score") => json!({ "text_1": "1", "text_2": "1" }),
        _ => json!({ "input": "1" }),
    };
    let paths = document["paths"].as_object().expect("an object");
    let mut n_fields = 0;
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().expect("an object") {
            let call = path
                .replace("{id}/{repo}", "tiny-chat")
                .replace("{id}", "tiny-chat")
                .replace("{file}", "page.js");
            let method = method.to_uppercase();
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let refusal = |body: &Value| {
                let (status, _, answer) =
                    server.raw(&method, &call, "application/json", &body.to_string());
                let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
                // Ollama's errors are texts.
                let message = answer["error"]["message"].as_str();
                let message = message.or(answer["error"].as_str()).unwrap_or_default();
                (status, message.to_owned())
            };
            let is_there = |(status, message): &(u16, String)| {
                let is_unknown = message.starts_with("there is no `") || *status == 405;
                assert!(
                    !is_unknown && *status != 500,
                    "{method} {path}: {status} {message}"
                );
            };
            let Some(properties) = schema["properties"].as_object() else {
                is_there(&refusal(&Value::Null));
                continue;
            };
            let unknown = |name: &str| format!("unknown parameter: `{name}`");
            for name in properties.keys() {
                let mut body = minimal(path);
                // No field is an object with this key, but some take any.
                body[name] = json!({ "nonsense": [] });
                let found = refusal(&body);
                is_there(&found);
                assert!(
                    !found.1.starts_with(&unknown(name)),
                    "{method} {path}: {name}"
                );
                n_fields += 1;
            }
            let mut body = minimal(path);
            body["no_such_field"] = json!(1);
            let (status, message) = refusal(&body);
            assert!(
                status == 400 && message.starts_with(&unknown("no_such_field")),
                "{path}: {message}"
            );
        }
    }
    assert!(paths.len() > 20 && n_fields > 100, "{n_fields}");
    let (status, head, page) = server.raw("GET", "/docs", "text/html", "");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/html"), "{head}");
    assert!(page.contains("POST /v1/embeddings") && page.contains("encoding_format"));
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script"));
}

#[test]
fn aliases_are_listed_as_models() {
    let folder = scratch();
    let config = folder.path().join("bench.toml");
    std::fs::write(&config, "[aliases]\ngpt-4o = \"tiny-chat\"\n").expect("written");
    let server = Server::start(&["--config", text(&config)]);
    let (_, models) = server.json("GET", "/v1/models", &Value::Null);
    let models = models["data"].as_array().expect("an array");
    let ids: Vec<&Value> = models.iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["gpt-4o", "tiny-chat"]);
    for model in models {
        assert_eq!(model["root"], "tiny-chat");
        assert_eq!(model["aliases"], json!(["gpt-4o"]));
        assert_eq!(model["state"], "loaded");
        assert!(model["max_model_len"].as_u64() > Some(0), "{model}");
    }
    let (status, model) = server.json("GET", "/v1/models/gpt-4o", &Value::Null);
    assert_eq!((status, &model["id"]), (200, &json!("gpt-4o")));
    // The name that selects the only model is no name of its own.
    let (_, model) = server.json("GET", "/v1/models/default", &Value::Null);
    assert_eq!(model["id"], "tiny-chat");
    let (_, props) = server.json("GET", "/props?model=gpt-4o", &Value::Null);
    assert_eq!(props["model_alias"], "tiny-chat");
    let (status, error) = server.json("GET", "/props?model=%ff&model=b", &Value::Null);
    assert_eq!(
        (status, &error["error"]["param"]),
        (400, &json!("model")),
        "{error}"
    );
    let (status, error) = server.json("GET", "/v1/models/gpt-4", &Value::Null);
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert!(
        status == 404 && message.contains("did you mean `gpt-4o`?"),
        "{error}"
    );
}

#[test]
fn a_file_that_is_no_model_is_listed_as_such_until_it_is_one() {
    let folder = scratch();
    std::fs::copy(shipped(), folder.path().join("good.gguf")).expect("copied");
    let whole = std::fs::read(shipped()).expect("readable");
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, &whole[..5000]).expect("written");
    let server = Server::start(&["--models", text(folder.path())]).expecting_errors();
    let list = || {
        let (_, models) = server.json("GET", "/v1/models", &Value::Null);
        let models = models["data"].as_array().expect("an array").clone();
        let state = |model: &Value| (model["id"].clone(), model["state"].clone());
        (models.iter().map(state).collect::<Vec<_>>(), models)
    };
    let pair = |id: &str, state: &str| (json!(id), json!(state));
    let (states, models) = list();
    assert_eq!(
        states,
        [pair("broken", "not servable"), pair("good", "not loaded")]
    );
    assert!(
        models[0]["error"].is_string() && models[1].get("error").is_none(),
        "{models:?}"
    );
    let body = json!({ "model": "broken", "prompt": "1", "max_tokens": 1 });
    let (status, head, answer) = server.raw(
        "POST",
        "/v1/completions",
        "application/json",
        &body.to_string(),
    );
    assert!(
        status == 503 && answer.contains("model_not_available"),
        "{answer}"
    );
    assert!(head.contains("x-should-retry: false"), "{head}");
    // There is no picture of it either, which is no fault of the server.
    let (status, answer) = server.json("GET", "/v1/models/broken/diagram", &Value::Null);
    assert_eq!(status, 404, "{answer}");
    assert_eq!(answer["error"]["code"], "model_not_servable", "{answer}");
    let message = answer["error"]["message"].as_str().expect("a text");
    let fault = models[0]["error"].as_str().expect("a text");
    assert!(message.contains(fault), "{message}");
    std::fs::write(&broken, &whole).expect("written");
    server.post("/models/rescan", &json!({}));
    assert_eq!(
        list().0,
        [pair("broken", "not loaded"), pair("good", "not loaded")]
    );
    server.post("/v1/completions", &body);
}

/// Answers of a request with an API key, or without one.
fn keyed(server: &Server, path: &str, body: &str, key: Option<&str>) -> (u16, String) {
    let key = key
        .map(|key| format!("x-api-key: {key}\r\n"))
        .unwrap_or_default();
    let n = body.len();
    let mut stream = TcpStream::connect(&server.address).expect("the server listens");
    // In one piece: a server that refuses the key may answer and close before more of it is sent.
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{key}\
         content-type: application/json\r\ncontent-length: {n}\r\n\r\n{body}"
    );
    let sent = stream.write_all(request.as_bytes());
    sent.expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.expect("a status"), answer)
}

#[test]
fn models_are_managed_with_a_key_or_from_this_machine() {
    const ROUTES: [(&str, &str); 3] = [
        ("/models/load", "{\"model\": \"tiny-chat\"}"),
        ("/models/unload", "{\"model\": \"tiny-chat\"}"),
        ("/models/rescan", "{}"),
    ];
    let keys = ["--api-key", "user", "--admin-key", "secret"];
    let with_key = Server::start(&[&["--host", "0.0.0.0"], &keys[..]].concat());
    let without = Server::start(&["--host", "0.0.0.0", "--no-api-key"]);
    let local = Server::start(&[]);
    for (path, body) in ROUTES {
        for key in [None, Some("wrong")] {
            let (status, answer) = keyed(&with_key, path, body, key);
            assert!(
                status == 401 && answer.contains("invalid_api_key"),
                "{answer}"
            );
        }
        let (status, answer) = keyed(&with_key, path, body, Some("user"));
        assert!(status == 403 && answer.contains("role_missing"), "{answer}");
        let (status, answer) = keyed(&without, path, body, None);
        assert!(
            status == 403 && answer.contains("management_not_allowed"),
            "{answer}"
        );
        // Of a server of one model there is no folder to look into.
        let expected = if path == "/models/rescan" { 400 } else { 200 };
        for (server, key) in [(&with_key, Some("secret")), (&local, None)] {
            let (status, answer) = keyed(server, path, body, key);
            assert_eq!(status, expected, "{path}: {answer}");
        }
    }
    for (path, body, code) in [
        ("/models/load", "{}", "missing_required_parameter"),
        ("/models/load", "{\"model\": 5}", "invalid_type"),
        ("/models/unload", "[]", "invalid_json"),
        ("/models/rescan", "{\"deep\": true}", "unknown_parameter"),
    ] {
        let (status, answer) = keyed(&local, path, body, None);
        assert!(
            status == 400 && answer.contains(code),
            "{path} {body}: {answer}"
        );
    }
}

#[test]
fn a_server_is_asked_to_end_by_those_who_may_manage_it() {
    let keys = ["--api-key", "user", "--admin-key", "secret"];
    let with_key = Server::start(&[&["--host", "0.0.0.0"], &keys[..]].concat());
    let without = Server::start(&["--host", "0.0.0.0", "--no-api-key"]);
    for (key, status) in [(None, 401), (Some("wrong"), 401), (Some("user"), 403)] {
        assert_eq!(keyed(&with_key, "/quit", "", key).0, status);
    }
    let (status, answer) = keyed(&without, "/quit", "", None);
    assert!(
        status == 403 && answer.contains("management_not_allowed"),
        "{answer}"
    );
    let (status, answer) = keyed(&with_key, "/quit", "{\"now\": true}", Some("secret"));
    assert!(
        status == 400 && answer.contains("unknown_parameter"),
        "{answer}"
    );
    for server in [&with_key, &without] {
        assert_eq!(server.json("GET", "/health", &Value::Null).0, 200);
    }
    let (status, answer) = keyed(&with_key, "/quit", "", Some("secret"));
    assert!(
        status == 202 && answer.contains("\"success\":true"),
        "{answer}"
    );
    with_key.ended();

    // On this machine no key is needed. What is under way is completed.
    let local = Server::split(&[]);
    let body = json!({
        "model": "tiny-chat", "prompt": "2+2=", "max_tokens": 200, "ignore_eos": true, "stream": true,
    });
    let mut stream = local.send(
        "POST",
        "/v1/completions",
        "application/json",
        &body.to_string(),
    );
    let mut start = [0; 64];
    stream.read_exact(&mut start).expect("the head");
    assert_eq!(keyed(&local, "/quit", "{}", None).0, 202);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the rest");
    assert!(
        rest.contains("data: [DONE]") && !rest.contains("\"error\""),
        "{rest}"
    );
    let log = local.ended();
    // The engine process's line of the request is there, and no death.
    assert_eq!(log.matches("path=\"/v1/completions\"").count(), 1, "{log}");
    assert!(!log.contains("died"), "{log}");
}

#[test]
fn models_are_loaded_and_unloaded_under_running_requests() {
    let folder = scratch();
    for name in ["one.gguf", "two.gguf"] {
        std::fs::copy(shipped(), folder.path().join(name)).expect("copied");
    }
    let server = Server::start(&["--models", text(folder.path())]);
    let body = |model: &str| {
        json!({
            "model": model, "prompt": "1 2 3", "max_tokens": 60, "temperature": 0,
            "ignore_eos": true,
        })
    };
    let whole = |answer: &Value| {
        answer["choices"][0]["text"]
            .as_str()
            .expect("a text")
            .to_owned()
    };
    let streamed = |events: &[String]| {
        assert_eq!(
            events.last().map(String::as_str),
            Some("[DONE]"),
            "{events:?}"
        );
        let chunks = events[..events.len() - 1].iter();
        let chunks = chunks.map(|event| serde_json::from_str::<Value>(event).expect("JSON"));
        chunks.map(|chunk| whole(&chunk)).collect::<String>()
    };
    // Eight at once load it once.
    let expected: Vec<String> = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| whole(&server.post("/v1/completions", &body("one"))));
        let all: Vec<_> = (0..8).map(|_| ask()).collect();
        all.into_iter()
            .map(|one| one.join().expect("it lives"))
            .collect()
    });
    assert!(
        expected.iter().all(|text| *text == expected[0]),
        "{expected:?}"
    );
    let page = server.raw("GET", "/metrics", "text/plain", "").2;
    let loads = "bench_model_loads_total{model=\"one\",outcome=\"loaded\"}";
    assert_eq!(metric(&page, loads), 1.0);

    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..6 {
                        let found = streamed(&server.events("/v1/completions", &body("one")));
                        assert_eq!(found, expected[0]);
                    }
                })
            })
            .collect();
        let manage = scope.spawn(|| {
            let mut n_unloaded = 0;
            while !is_over.load(Ordering::Relaxed) {
                let answer = server.post("/models/unload", &json!({ "model": "one" }));
                n_unloaded += u32::from(answer["was_loaded"] == true);
                server.post("/models/load", &json!({ "model": "one" }));
                server.post("/models/rescan", &json!({}));
            }
            n_unloaded
        });
        readers
            .into_iter()
            .for_each(|reader| reader.join().expect("it lives"));
        is_over.store(true, Ordering::Relaxed);
        assert!(manage.join().expect("it lives") > 0);
    });

    // A model whose file is gone is not found any more; what it was asked before is completed.
    let events = std::thread::scope(|scope| {
        server.post("/models/load", &json!({ "model": "two" }));
        let reader = scope.spawn(|| server.events("/v1/completions", &body("two")));
        let start = Instant::now();
        let is_active = || {
            let (_, slots) = server.json("GET", "/slots?model=two", &Value::Null);
            slots
                .as_array()
                .is_some_and(|all| all.iter().any(|s| s["is_processing"] == true))
        };
        while !is_active() && !reader.is_finished() && start.elapsed() < Duration::from_secs(10) {}
        std::fs::remove_file(folder.path().join("two.gguf")).expect("removed");
        assert_eq!(
            server.post("/models/rescan", &json!({}))["gone"],
            json!(["two"])
        );
        let (status, _) = server.json("POST", "/v1/completions", &body("two"));
        assert_eq!(status, 404);
        reader.join().expect("it lives")
    });
    assert_eq!(streamed(&events), expected[0]);
}

/// A line of the metrics: name, labels, value.
pub(crate) type Sample = (String, Vec<(String, String)>, f64);

/// Reads a line as Prometheus does.
pub(crate) fn sample(line: &str) -> Sample {
    let is_name = |name: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        name.chars().all(is_part) && !name.starts_with(|c: char| c.is_ascii_digit())
    };
    let end = line.find(['{', ' ']).expect("the end of the name");
    let (name, mut rest) = line.split_at(end);
    assert!(!name.is_empty() && is_name(name), "{line}");
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").expect("a label");
            assert!(is_name(label), "{line}");
            let (mut value, mut chars) = (String::new(), after.char_indices());
            let end = loop {
                match chars.next().expect("the end of a label") {
                    (_, '\\') => value.push(match chars.next().expect("what is escaped").1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        c => panic!("\\{c} in {line}"),
                    }),
                    (at, '"') => break at + 1,
                    (_, c) => value.push(c),
                }
            };
            labels.push((label.to_owned(), value));
            match after[end..].split_at(1) {
                (",", more) => rest = more,
                ("}", more) => break rest = more,
                _ => panic!("{line}"),
            }
        }
    }
    let value = rest.strip_prefix(' ').expect("a space").parse();
    (name.to_owned(), labels, value.expect("a number"))
}

#[test]
fn metrics_are_text_that_prometheus_reads() {
    let folder = scratch();
    let odd = "a\"b\\c d";
    std::fs::copy(shipped(), folder.path().join(format!("{odd}.gguf"))).expect("copied");
    std::fs::copy(shipped(), folder.path().join("plain.gguf")).expect("copied");
    let server = Server::start(&["--models", text(folder.path())]);
    for model in [odd, "plain"] {
        let body = json!({ "model": model, "prompt": "1", "max_tokens": 5 });
        server.post("/v1/completions", &body);
    }
    let page = server.raw("GET", "/metrics", "text/plain", "").2;
    assert!(page.ends_with('\n'));
    // Kind and samples of each metric, whose lines follow each other.
    let mut metrics: BTreeMap<&str, (&str, Vec<Sample>)> = BTreeMap::new();
    let mut current = "";
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("a text");
            assert!(!help.is_empty() && !metrics.contains_key(name), "{line}");
            current = name;
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a kind");
            assert_eq!(name, current);
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            metrics.insert(name, (kind, Vec::new()));
        } else {
            let sample = sample(line);
            let (kind, samples) = metrics.get_mut(current).expect("what it is comes first");
            let suffixes = ["_bucket", "_sum", "_count"];
            let of = match *kind {
                "histogram" => suffixes
                    .iter()
                    .find_map(|suffix| sample.0.strip_suffix(suffix)),
                _ => Some(sample.0.as_str()),
            };
            assert_eq!(of, Some(current), "{line}");
            assert_eq!(*kind == "counter", current.ends_with("_total"), "{line}");
            let label = match current {
                // Those of the server and of processes.
                "bench_build_info" => "version",
                "bench_http_requests_total" => "method",
                name if name.starts_with("process_") => "process",
                name if name.starts_with("vllm:") => "model_name",
                _ => "model",
            };
            assert_eq!(sample.1[0].0, label, "{line}");
            samples.push(sample);
        }
    }
    assert!(metrics.len() >= 14, "{page}");
    let models = |samples: &[Sample]| -> Vec<String> {
        let label = |(_, labels, _): &Sample| labels[0].1.clone();
        let mut all: Vec<String> = samples.iter().map(label).collect();
        all.dedup();
        all
    };
    for (name, (kind, samples)) in &metrics {
        if samples[0].1[0].0.starts_with("model") {
            assert_eq!(models(samples), [odd, "plain"], "{name}");
        }
        let mut keys: Vec<_> = samples
            .iter()
            .map(|(name, labels, _)| (name, labels))
            .collect();
        let n = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), n, "{name}: a line occurs twice");
        if *kind == "histogram" {
            for of_model in samples.chunks(samples.len() / 2) {
                let is_bucket = |sample: &&Sample| sample.0.ends_with("_bucket");
                let buckets: Vec<f64> = of_model.iter().filter(is_bucket).map(|s| s.2).collect();
                assert!(buckets.is_sorted(), "{name}: {buckets:?}");
                let bounds = of_model.iter().filter(is_bucket).map(|s| s.1[1].1.as_str());
                let bounds: Vec<&str> = bounds.collect();
                assert_eq!(bounds.last(), Some(&"+Inf"), "{name}");
                let count = of_model.last().expect("a count");
                assert!(count.0.ends_with("_count"), "{name}");
                assert_eq!(buckets.last(), Some(&count.2), "{name}");
            }
        }
    }
    let kinds = metrics
        .iter()
        .map(|(name, (kind, _))| format!("{name} {kind}\n"));
    insta::assert_snapshot!("metrics", kinds.collect::<String>());
}

#[test]
fn a_request_id_is_the_clients_or_generated() {
    let server = Server::start(&[]);
    for path in [
        "/v1/models",
        "/props",
        "/slots",
        "/metrics",
        "/openapi.json",
        "/docs",
    ] {
        let get = |headers: &str| {
            let headers = format!("host: localhost\r\n{headers}");
            let (status, head) = sent(&server, &format!("GET {path}"), &headers);
            assert_eq!(status, 200, "{head}");
            let id = head
                .lines()
                .find_map(|line| line.strip_prefix("x-request-id: "));
            id.expect("an id").to_owned()
        };
        assert_eq!(get("x-request-id: my-id.7\r\n"), "my-id.7");
        assert_ne!(get("x-request-id: not well formed\r\n"), "not well formed");
        assert_ne!(get(""), get(""));
    }
}

/// A server of two models, and what becomes of each.
fn two_models(folder: &Path, extra: &[&str]) -> Server {
    for name in ["one.gguf", "two.gguf"] {
        std::fs::copy(shipped(), folder.join(name)).expect("copied");
    }
    Server::start(&[&["--models", text(folder)], extra].concat())
}

fn states(server: &Server) -> Vec<String> {
    let (_, list) = server.json("GET", "/v1/models", &Value::Null);
    let all = list["data"].as_array().expect("models").iter();
    all.map(|model| model["state"].as_str().expect("a state").to_owned())
        .collect()
}

fn ask(server: &Server, model: &str) {
    let body = json!({ "model": model, "prompt": "2+2=", "max_tokens": 1 });
    server.post("/v1/completions", &body);
}

#[test]
fn the_least_recently_used_model_is_evicted_and_one_in_use_never() {
    let folder = scratch();
    let server = two_models(folder.path(), &["--max-loaded", "1"]);
    ask(&server, "one");
    assert_eq!(states(&server), ["loaded", "not loaded"]);
    ask(&server, "two");
    assert_eq!(states(&server), ["not loaded", "loaded"]);

    // A stream that nobody reads to its end yet holds its model.
    let body = json!({
        "model": "two", "prompt": "2+2=", "max_tokens": 300, "ignore_eos": true, "stream": true,
    });
    let kind = "application/json";
    let mut stream = server.send("POST", "/v1/completions", kind, &body.to_string());
    let mut start = [0; 64];
    stream.read_exact(&mut start).expect("the head");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(&server, "one"));
        let mut rest = String::new();
        stream.read_to_string(&mut rest).expect("the rest");
        assert!(rest.contains("data: [DONE]"), "{rest}");
        assert!(!rest.contains("\"error\""), "{rest}");
        waiting.join().expect("answered in its turn");
    });
    assert_eq!(states(&server), ["loaded", "not loaded"]);
}

#[test]
fn loads_that_wait_for_their_turn_do_not_wait_for_each_other() {
    let folder = scratch();
    let names = ["one", "two", "three", "four"];
    for name in names {
        let path = folder.path().join(format!("{name}.gguf"));
        std::fs::copy(shipped(), path).expect("copied");
    }
    let server = Server::start(&["--models", text(folder.path()), "--max-loaded", "1"]);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for name in names {
            scope.spawn(|| ask(&server, name));
        }
    });
    let seconds = started.elapsed().as_secs();
    assert!(seconds < 60, "{seconds} s");
    let n_loaded = states(&server).iter().filter(|s| *s == "loaded").count();
    assert_eq!(n_loaded, 1);
}

#[test]
fn a_picture_of_a_model_that_cannot_run_is_a_client_error() {
    let folder = scratch();
    let whole = std::fs::read(shipped()).expect("readable");
    std::fs::write(folder.path().join("broken.gguf"), &whole[..5000]).expect("written");
    // An error in the log would fail this test.
    let server = Server::start(&["--models", text(folder.path())]);
    let (status, answer) = server.json("GET", "/v1/models/broken/diagram", &Value::Null);
    assert_eq!(status, 404, "{answer}");
    // Why is told to those who may manage the models.
    let server = Server::start(&[
        "--models",
        text(folder.path()),
        "--host",
        "0.0.0.0",
        "--no-api-key",
    ]);
    let (status, answer) = server.json("GET", "/v1/models/broken/diagram", &Value::Null);
    let message = answer["error"]["message"].as_str().expect("a text");
    assert_eq!(
        (status, message),
        (404, "the model `broken` cannot be served")
    );
}

#[test]
fn a_model_that_nobody_uses_is_unloaded_after_a_while() {
    let folder = scratch();
    let server = two_models(folder.path(), &["--idle-time", "0.4"]);
    ask(&server, "one");
    let started = Instant::now();
    while states(&server)[0] != "not loaded" {
        assert!(started.elapsed() < Duration::from_secs(20), "still loaded");
        std::thread::sleep(Duration::from_millis(50));
    }
    ask(&server, "one");
}
