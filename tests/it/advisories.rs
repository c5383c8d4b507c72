//! Requests that ended other servers, as advisories describe them. SECURITY.md lists the kinds, and the tests that are elsewhere.
//!
//! Each server runs its model in its own process, so that a fault ends what answers.

use serde_json::{Value, json};

use crate::support::command::{bench, scratch, text};
use crate::support::server::{Server, with};
use crate::support::sources;

/// An answer that is always the same.
fn plain(server: &Server) -> Value {
    let body = json!({ "prompt": "2+2=?", "max_tokens": 6, "temperature": 0, "logprobs": 2 });
    server.post("/v1/completions", &body)["choices"].clone()
}

fn plus(body: &Value, extra: &Value) -> Value {
    with(body.clone(), extra)
}

/// Status of a request, which is refused or served.
fn status(server: &Server, path: &str, body: &Value) -> u16 {
    let (status, answer) = server.json("POST", path, body);
    assert!(
        status == 200 || status == 400,
        "{path} {body}: {status} {answer}"
    );
    status
}

#[test]
fn any_least_number_of_tokens_is_refused_or_has_an_answer() {
    let server = Server::start(&["--ctx", "256"]);
    let before = plain(&server);
    let (_, info) = server.json("GET", "/tokenizer_info", &Value::Null);
    let n_vocab = info["vocab_size"].as_u64().expect("a number");
    let body = json!({ "prompt": "2+2=?", "max_tokens": 8 });
    for least in [
        json!(9),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(-1),
        json!(0.5),
        json!(1e300),
        json!("8"),
        json!([8]),
        json!(true),
    ] {
        let extra = json!({ "min_tokens": least });
        assert_eq!(
            status(&server, "/v1/completions", &plus(&body, &extra)),
            400,
            "{least}"
        );
    }
    // Up to the end, whatever would end it before: all tokens, none, a text, a grammar that is complete.
    let most: Vec<u64> = (0..128).collect();
    for extra in [
        json!({ "stop_token_ids": most }),
        json!({ "stop_token_ids": [] }),
        json!({ "stop_token_ids": [0, n_vocab - 1] }),
        json!({ "ignore_eos": true }),
        json!({ "stop": ["4", "\n", " "] }),
        json!({ "guided_regex": "4" }),
        json!({ "logit_bias": { "5": 100 } }),
        json!({ "n": 3, "seed": 1 }),
        json!({ "stream": true }),
    ] {
        let extra = plus(&extra, &json!({ "min_tokens": 8 }));
        let body = plus(&body, &extra).to_string();
        let (status, _, answer) = server.raw("POST", "/v1/completions", "application/json", &body);
        assert_eq!(status, 200, "{extra}: {answer}");
    }
    // Without a maximum, the context ends it.
    let open = json!({ "prompt": "2+2=?", "min_tokens": 1_000_000, "ignore_eos": true });
    status(&server, "/v1/completions", &open);
    assert_eq!(plain(&server), before);
}

#[test]
fn a_salt_of_the_cache_is_refused_by_name() {
    let server = Server::start(&[]);
    let before = plain(&server);
    let salts = [
        json!("a"),
        json!(""),
        json!("x".repeat(100_000)),
        json!("\u{0}\u{d7ff}\u{10ffff}"),
        json!(7),
        json!(["a"]),
        json!({ "a": 1 }),
        Value::Null,
    ];
    let messages = json!([{ "role": "user", "content": "1" }]);
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": "1", "max_tokens": 1 })),
        (
            "/v1/chat/completions",
            json!({ "model": "default", "messages": messages, "max_tokens": 1 }),
        ),
        (
            "/v1/responses",
            json!({ "model": "default", "input": "1", "max_output_tokens": 16 }),
        ),
    ] {
        for salt in &salts {
            let mut body = body.clone();
            body["cache_salt"] = salt.clone();
            let (status, answer) = server.json("POST", path, &body);
            match salt.is_null() {
                true => assert_eq!(status, 200, "{path}: {answer}"),
                false => {
                    assert_eq!(status, 400, "{path} {salt}: {answer}");
                    assert_eq!(answer["error"]["param"], "cache_salt", "{answer}");
                }
            }
        }
    }
    assert_eq!(plain(&server), before);
}

#[test]
fn tokens_beyond_the_vocabulary_are_refused_wherever_a_request_has_tokens() {
    let server = Server::start(&[]);
    let before = plain(&server);
    let (_, info) = server.json("GET", "/tokenizer_info", &Value::Null);
    let n_vocab = info["vocab_size"].as_u64().expect("a number");
    let tokens = [
        json!(n_vocab),
        json!(n_vocab + 1),
        json!(i32::MAX),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(-1),
        json!(i64::MIN),
        json!(1e30),
        json!(0.5),
    ];
    let messages = json!([{ "role": "user", "content": "1" }]);
    for token in &tokens {
        for (path, body) in [
            (
                "/v1/completions",
                json!({ "prompt": [1, token], "max_tokens": 1 }),
            ),
            (
                "/v1/completions",
                json!({ "prompt": [[1], [token]], "max_tokens": 1 }),
            ),
            (
                "/v1/completions",
                json!({ "prompt": "1", "max_tokens": 1, "stop_token_ids": [token] }),
            ),
            (
                "/v1/chat/completions",
                json!({ "model": "default", "messages": messages, "stop_token_ids": [token] }),
            ),
            (
                "/completion",
                json!({ "prompt": [1, token], "n_predict": 1 }),
            ),
            (
                "/completion",
                json!({ "prompt": ["1", token], "n_predict": 1 }),
            ),
            (
                "/completion",
                json!({ "prompt": "1", "n_predict": 1, "logit_bias": [[token, 1]] }),
            ),
            ("/detokenize", json!({ "tokens": [1, token] })),
            (
                "/v1/embeddings",
                json!({ "model": "default", "input": [1, token] }),
            ),
            (
                "/v1/embeddings",
                json!({ "model": "default", "input": [[1], [token]] }),
            ),
            ("/v1/lab/run", json!({ "prompt": [1, token], "lab": {} })),
            (
                "/v1/lab/patch",
                json!({ "clean": [1, token], "corrupt": [1, 2], "metric": { "token": 5 } }),
            ),
            (
                "/v1/lab/patch",
                json!({ "clean": [1, 2], "corrupt": [1, 2], "metric": { "token": token } }),
            ),
        ] {
            assert_eq!(status(&server, path, &body), 400, "{path} {body}");
        }
    }
    // As a name, what is no number of a token is a text.
    for token in [n_vocab, n_vocab + 1, u64::from(u32::MAX), u64::MAX] {
        let extra = json!({ "logit_bias": { (token.to_string()): 1 } });
        let body = plus(&json!({ "prompt": "1", "max_tokens": 1 }), &extra);
        assert_eq!(status(&server, "/v1/completions", &body), 400, "{body}");
        let body = plus(
            &json!({ "model": "default", "messages": messages, "max_tokens": 1 }),
            &extra,
        );
        assert_eq!(
            status(&server, "/v1/chat/completions", &body),
            400,
            "{body}"
        );
    }
    // The last one is there.
    let last = json!({ "prompt": [1, n_vocab - 1], "max_tokens": 1 });
    assert_eq!(status(&server, "/v1/completions", &last), 200);
    assert_eq!(plain(&server), before);
}

#[test]
fn penalties_of_any_size_change_one_answer_at_most() {
    let server = Server::start(&[]);
    let before = plain(&server);
    let numbers = [
        json!(-1e300),
        json!(-2),
        json!(-1e-40),
        json!(0),
        json!(1e-40),
        json!(1e-300),
        json!(2),
        json!(3.4e38),
        json!(1e300),
        json!("nan"),
        json!(null),
    ];
    for name in [
        "repetition_penalty",
        "repeat_penalty",
        "frequency_penalty",
        "presence_penalty",
        "dry_multiplier",
        "dry_base",
        "penalty_alpha",
    ] {
        for number in &numbers {
            let body = json!({ "prompt": "1 2 1 2 1 2", "max_tokens": 8, name: number });
            status(&server, "/v1/completions", &body);
        }
    }
    for n in [
        json!(-1),
        json!(-2),
        json!(0),
        json!(i64::MAX),
        json!(u64::MAX),
    ] {
        for name in ["repeat_last_n", "dry_penalty_last_n", "dry_allowed_length"] {
            let extra = json!({ "repeat_penalty": 1.1, "dry_multiplier": 1 });
            let body = json!({ "prompt": "1 2 1 2 1 2", "max_tokens": 8, name: n });
            status(&server, "/v1/completions", &plus(&body, &extra));
        }
    }
    assert_eq!(plain(&server), before);
}

/// What a text says of pictures is text: it neither moves the rows of a picture nor stands for one that is not there.
#[test]
fn a_text_that_writes_the_marker_of_a_picture_has_no_picture() {
    let folder = sources::root().join("tests/media/llava-small");
    let server = Server::start(&["-m", text(&folder)]);
    let picture = std::fs::read(folder.join("a.png")).expect("it is there");
    let picture = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, picture);
    let image = json!({
        "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{picture}") },
    });
    let words = |text: &str| json!({ "type": "text", "text": text });
    let ask = |content: &Value| {
        let body = json!({
            "model": "default", "messages": [{ "role": "user", "content": content }], "max_tokens": 4,
            "temperature": 0, "ignore_eos": true,
        });
        server.json("POST", "/v1/chat/completions", &body)
    };
    let what = json!([image, words("What?")]);
    let (_, before) = ask(&what);
    for marker in [
        "<image>",
        "<__media__>",
        "<|image|>",
        "<image>".repeat(500).as_str(),
    ] {
        for content in [
            json!(marker),
            json!([words(marker)]),
            json!([words(marker), image, words(marker)]),
            json!([image, words(marker), image]),
            json!([image, image, words(marker)]),
        ] {
            let (status, answer) = ask(&content);
            assert!(status == 200 || status == 400, "{content}: {answer}");
        }
    }
    let (status, after) = ask(&what);
    assert_eq!(status, 200, "{after}");
    assert_eq!(after["choices"], before["choices"]);
}

/// Nothing in a folder is run: neither code that it names nor a pickle.
#[test]
fn code_and_pickles_of_a_folder_are_not_run() {
    let folder = scratch();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).expect("a folder");
    let shipped = sources::root().join("models/tiny-chat");
    for entry in std::fs::read_dir(shipped).expect("it is there") {
        let path = entry.expect("a file").path();
        let name = path.file_name().expect("a name");
        std::fs::copy(&path, model.join(name)).expect("copied");
    }
    let mark = folder.path().join("was-run");
    let code = format!("open({:?}, 'w').write('x')\n", text(&mark));
    std::fs::write(model.join("modeling_evil.py"), &code).expect("written");
    let config = std::fs::read_to_string(model.join("config.json")).expect("it is there");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["auto_map"] = json!({
        "AutoConfig": "modeling_evil.Config", "AutoModelForCausalLM": "modeling_evil.Model",
    });
    std::fs::write(model.join("config.json"), config.to_string()).expect("written");
    let run = || bench(&["run", "-m", text(&model), "-n", "4", "2+2=?"]);
    let ran = run();
    assert!(ran.is_fine(), "{}", ran.err);
    // In place of safetensors: a pickle that writes the file when it is loaded.
    std::fs::remove_file(model.join("model.safetensors")).expect("removed");
    let pickle = format!("cbuiltins\nexec\n(S{code:?}\ntR.");
    for name in ["pytorch_model.bin", "model.safetensors", "model.pt"] {
        std::fs::write(model.join(name), &pickle).expect("written");
        let ran = run();
        assert!(!ran.is_fine(), "{name}: {}", ran.out);
        assert!(ran.err.starts_with("error: "), "{name}: {}", ran.err);
    }
    assert!(!mark.exists());
}

/// A key is checked before anything else of a request is, on every route and on paths that are none.
#[test]
fn every_route_needs_a_key_but_probes_and_the_page() {
    let server = Server::start(&["--api-key", "secret"]);
    let open = [
        "/",
        "/page/{file}",
        "/health",
        "/healthz",
        "/readyz",
        "/livez",
    ];
    let kind = "application/json\r\nx-api-key: secret";
    let (status, _, document) = server.raw("GET", "/openapi.json", kind, "");
    assert_eq!(status, 200);
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let paths = document["paths"].as_object().expect("an object");
    let mut n = 0;
    for (path, methods) in paths {
        for method in methods.as_object().expect("an object").keys() {
            let concrete = path.replace("{file}", "page.js").replace(['{', '}'], "");
            let expected = if open.contains(&path.as_str()) {
                200
            } else {
                401
            };
            let method = method.to_uppercase();
            // As written, and as some proxies and clients write it.
            for written in [
                concrete.clone(),
                format!("{concrete}?key=secret"),
                format!("{concrete}/"),
            ] {
                if written == "//" {
                    continue;
                }
                let (status, _, answer) = server.raw(&method, &written, "application/json", "{");
                assert_eq!(status, expected, "{method} {written}: {answer}");
            }
            n += 1;
        }
    }
    assert!(n > 80, "{n}");
    for path in [
        "/nothing",
        "//v1/models",
        "/health/../v1/models",
        "/page/../v1/models",
        "/page/%2e%2e/v1/models",
        "/health%2f..%2fv1/models",
        "/V1/models",
        "/v1/models%00",
        "http://127.0.0.1/v1/models",
    ] {
        let (status, _, answer) = server.raw("GET", path, "application/json", "");
        assert!(
            status == 401 || status == 404 || status == 400,
            "{path}: {status} {answer}"
        );
        assert!(!answer.contains("tiny-chat"), "{path}: {answer}");
    }
}
