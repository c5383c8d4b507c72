//! Pictures and sounds in requests: every API hands the same picture to the model, what a model cannot take is named, and files of
//! strangers end no server.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::devices::Worker;
use crate::support::command::{scratch, text};
use crate::support::server::{Server, with};
use crate::support::{shared, sources};

/// A folder of random weights that takes pictures of 28 by 28 pixels as they are. `expected.json` has what transformers computes.
fn folder() -> PathBuf {
    sources::root().join("tests/media/llava-small")
}

fn start(extra: &[&str]) -> Server {
    let folder = folder();
    Server::start(&[&["-m", text(&folder), "--exact"], extra].concat())
}

fn file(path: impl AsRef<Path>) -> Vec<u8> {
    let path = folder().join(path);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn data_url(bytes: &[u8]) -> String {
    format!("data:image/png;base64,{}", base64(bytes))
}

fn image(url: &str) -> Value {
    json!({ "type": "image_url", "image_url": { "url": url } })
}

fn words(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn user(content: &Value) -> Value {
    json!({ "role": "user", "content": content })
}

/// A request whose answer is always the same.
fn chat(messages: &Value, extra: &Value) -> Value {
    let body = json!({
        "model": "default", "messages": messages, "temperature": 0, "max_tokens": 6, "ignore_eos": true,
    });
    with(body, extra)
}

const SCORED: [(&str, bool); 2] = [("logprobs", true), ("return_tokens_as_token_ids", true)];

/// Ids and log-probabilities of the most probable first tokens.
fn first(answer: &Value) -> Vec<(u64, f64)> {
    let top = &answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"];
    let top = top.as_array().expect("log-probabilities").iter();
    top.map(|token| {
        let id = token["token"]
            .as_str()
            .and_then(|name| name.split(':').nth(1));
        let id = id.and_then(|id| id.parse().ok()).expect("an id");
        (id, token["logprob"].as_f64().expect("a number"))
    })
    .collect()
}

fn scored(messages: &Value, extra: &Value) -> Value {
    let mut body = chat(messages, &json!({ "top_logprobs": 5 }));
    for (name, value) in SCORED {
        body[name] = value.into();
    }
    with(body, extra)
}

fn answer(server: &Server, body: &Value) -> Value {
    server.post("/v1/chat/completions", body)
}

/// A question about the picture `a.png`.
fn question() -> Value {
    json!([user(&json!([
        image(&data_url(&file("a.png"))),
        words("What?")
    ]))])
}

#[test]
fn first_tokens_are_those_of_transformers() {
    let expected: Value = serde_json::from_slice(&file("expected.json")).expect("JSON");
    // In a process of its own, as users have it.
    let server = Server::split(&["-m", text(&folder()), "--exact"]);
    for case in expected.as_array().expect("cases") {
        let parts = case["content"].as_array().expect("parts").iter();
        let parts = parts.map(|part| match part["picture"].as_str() {
            Some(name) => image(&data_url(&file(name))),
            None => part.clone(),
        });
        let answer = answer(
            &server,
            &scored(&json!([user(&parts.collect::<Value>())]), &json!({})),
        );
        assert_eq!(answer["usage"]["prompt_tokens"], case["n_tokens"]);
        let n_pictures = case["content"].to_string().matches("picture").count();
        let details = &answer["usage"]["prompt_tokens_details"];
        assert_eq!(
            details["image_tokens"].as_u64().unwrap_or(0),
            16 * n_pictures as u64
        );
        let top = case["top"].as_array().expect("tokens");
        for ((id, logprob), expected) in first(&answer).into_iter().zip(top) {
            assert_eq!(json!(id), expected[0]);
            let expected = expected[1].as_f64().expect("a number");
            assert!(
                (logprob - expected).abs() < 1e-4,
                "{id}: {logprob} {expected}"
            );
        }
    }
}

#[test]
fn every_api_hands_the_same_picture_to_the_model() {
    let server = start(&[]);
    let picture = file("a.png");
    let data = base64(&picture);
    let whole = answer(&server, &chat(&question(), &json!({})));
    let n_prompt = whole["usage"]["prompt_tokens"].as_u64().expect("a number");
    let said = whole["choices"][0]["message"]["content"]
        .as_str()
        .expect("a text");
    let blind = answer(&server, &chat(&json!([user(&"What?".into())]), &json!({})));
    assert_ne!(said, blind["choices"][0]["message"]["content"]);

    // OpenAI's responses, with the picture in the request and as a file.
    let respond = |part: Value| {
        let content = json!([part, { "type": "input_text", "text": "What?" }]);
        let body = json!({
            "model": "default", "input": [user(&content)], "temperature": 0, "max_output_tokens": 6, "ignore_eos": true,
        });
        let counted = server.post("/v1/responses/input_tokens", &body);
        assert_eq!(counted["input_tokens"], n_prompt);
        let answer = server.post("/v1/responses", &body);
        assert_eq!(answer["output"][0]["content"][0]["text"], said, "{answer}");
        assert_eq!(answer["usage"]["input_tokens_details"]["image_tokens"], 16);
        answer["id"].as_str().expect("an id").to_owned()
    };
    respond(json!({ "type": "input_image", "image_url": data_url(&picture), "detail": "low" }));
    respond(json!({ "type": "input_file", "file_data": data_url(&picture), "filename": "a.png" }));
    let id = upload(&server, &picture);
    let first = respond(json!({ "type": "input_image", "file_id": id }));
    // The next turn reads the file again.
    let next = json!({
        "model": "default", "previous_response_id": first, "input": "And?", "max_output_tokens": 2,
    });
    let next = server.post("/v1/responses", &next);
    assert_eq!(next["usage"]["input_tokens_details"]["image_tokens"], 16);
    let items = server
        .json(
            "GET",
            &format!("/v1/responses/{first}/input_items"),
            &Value::Null,
        )
        .1;
    assert!(items.to_string().contains(&id), "{items}");

    // Anthropic's messages.
    let source = json!({ "type": "base64", "media_type": "image/png", "data": data });
    let block = json!({ "type": "image", "source": source });
    let body = json!({
        "model": "default", "max_tokens": 6, "temperature": 0, "ignore_eos": true,
        "messages": [user(&json!([block, words("What?")]))],
    });
    assert_eq!(
        server.post("/v1/messages/count_tokens", &body)["input_tokens"],
        n_prompt
    );
    let message = server.post("/v1/messages", &body);
    assert_eq!(message["content"][0]["text"], said, "{message}");

    // Ollama's two.
    let options = json!({ "temperature": 0, "num_predict": 6 });
    let body = json!({
        "model": "default", "stream": false, "options": options, "ignore_eos": true,
        "messages": [{ "role": "user", "content": "What?", "images": [data] }],
    });
    assert_eq!(server.post("/api/chat", &body)["message"]["content"], said);
    let body = json!({
        "model": "default", "stream": false, "options": options, "ignore_eos": true,
        "prompt": "What?", "images": [data],
    });
    assert_eq!(server.post("/api/generate", &body)["response"], said);

    // llama-server's, with the text of the template.
    let template = server.post("/apply-template", &json!({ "messages": question() }));
    assert_eq!(template["prompt"], "<s>USER: <image>\nWhat?ASSISTANT:");
    let prompt = json!({
        "prompt_string": "<s>USER: <__media__>\nWhat?ASSISTANT:", "multimodal_data": [data],
    });
    let body = json!({ "prompt": prompt, "n_predict": 6, "temperature": 0, "ignore_eos": true });
    let completed = server.post("/completion", &body);
    assert_eq!(completed["content"], said, "{completed}");
    assert_eq!(completed["tokens_evaluated"], n_prompt);

    let tokens = server.post("/tokenize", &json!({ "messages": question() }));
    assert_eq!(tokens["count"], n_prompt);

    // In a stream, and twice.
    let streamed = server.events(
        "/v1/chat/completions",
        &chat(&question(), &json!({ "stream": true })),
    );
    let streamed: String = streamed
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .filter_map(|event| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    assert_eq!(streamed, said);
    let twice = answer(&server, &chat(&question(), &json!({ "n": 2 })));
    for choice in twice["choices"].as_array().expect("choices") {
        assert_eq!(choice["message"]["content"], said);
    }
    assert_eq!(twice["usage"]["prompt_tokens_details"]["image_tokens"], 16);
}

/// Uploads a file; its id.
fn upload(server: &Server, bytes: &[u8]) -> String {
    // The form is text: the bytes of this picture are sent as they are by no test helper.
    let boundary = "qzboundaryqz";
    let mut form = format!(
        "--{boundary}\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nvision\r\n--{boundary}\r\n\
         content-disposition: form-data; name=\"file\"; filename=\"a.png\"\r\n\r\n"
    )
    .into_bytes();
    form.extend_from_slice(bytes);
    form.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    let mut stream = std::net::TcpStream::connect(&server.address).expect("the server listens");
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
         content-type: multipart/form-data; boundary={boundary}\r\ncontent-length: {}\r\n\r\n",
        form.len()
    );
    stream.write_all(head.as_bytes()).expect("it is sent");
    stream.write_all(&form).expect("it is sent");
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let body = lines.find(|line| line.starts_with('{')).expect("an answer");
    let answer: Value = serde_json::from_str(&body).expect("JSON");
    answer["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"))
        .to_owned()
}

#[test]
fn the_rows_of_a_picture_are_cached_and_those_of_another_are_not_taken_for_them() {
    let server = start(&[]);
    let cached = |answer: &Value| {
        let details = &answer["usage"]["prompt_tokens_details"];
        details["cached_tokens"].as_u64().expect("a number")
    };
    let of = |name: &str| {
        let content = json!([image(&data_url(&file(name))), words("What?")]);
        answer(&server, &scored(&json!([user(&content)]), &json!({})))
    };
    let (a, b, again) = (of("a.png"), of("b.png"), of("a.png"));
    assert_eq!(first(&a), first(&again));
    assert_ne!(first(&a), first(&b));
    // Of the other picture, the tokens before it are the same.
    assert_eq!((cached(&a), cached(&b), cached(&again)), (0, 7, 38));
    let told = &a["choices"][0]["message"]["content"];
    let turns =
        json!([question()[0], { "role": "assistant", "content": told }, user(&"And?".into())]);
    let next = answer(&server, &scored(&turns, &json!({})));
    assert!(cached(&next) >= 38, "{next}");
    let fresh = answer(&server, &scored(&turns, &json!({ "cache_prompt": false })));
    assert_eq!(first(&next), first(&fresh));
}

/// A long answer to a question about a picture, with what its first token's log-probability says of the prompt.
fn told(server: &Server, name: &str, extra: &Value) -> Value {
    let content = json!([image(&data_url(&file(name))), words("What?")]);
    let body = scored(
        &json!([user(&content)]),
        &with(json!({ "max_tokens": 40 }), extra),
    );
    let answer = answer(server, &body);
    assert_eq!(answer["usage"]["completion_tokens"], 40, "{answer}");
    answer["choices"][0]["message"]["content"].clone()
}

#[test]
fn drafts_small_caches_and_neighbours_change_no_answer_about_a_picture() {
    let alone = start(&["--parallel", "1"]);
    let names = ["a.png", "b.png"];
    let expected = names.map(|name| told(&alone, name, &json!({})));
    assert_ne!(expected[0], expected[1]);
    for options in [
        &["--draft", "8"][..],
        &["--prompt-batch", "8"],
        // Three of them do not fit: some wait for the end of others, or begin again.
        &["--cache", "40k"],
    ] {
        let server = start(&[&["--parallel", "4"], options].concat());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                for (name, expected) in names.iter().zip(&expected) {
                    let server = &server;
                    scope.spawn(move || {
                        let found = told(server, name, &json!({}));
                        assert_eq!(&found, expected, "{name} {options:?}");
                    });
                }
            }
        });
    }
    // A grammar holds after a picture too.
    let body = json!({ "grammar": "root ::= \"yes\" | \"no\"", "ignore_eos": false });
    let answer = answer(&alone, &chat(&question(), &body));
    let said = answer["choices"][0]["message"]["content"].as_str();
    assert!(matches!(said, Some("yes" | "no")), "{answer}");
}

#[test]
fn a_tower_runs_on_the_device_of_the_model_and_elsewhere() {
    let alone = start(&[]);
    let expected = told(&alone, "a.png", &json!({}));
    let folder = folder();
    for (place, is_on_worker) in [(None, true), (Some("image.*=CPU"), false)] {
        // A worker serves one program at a time.
        let (mut worker, address) = Worker::listening(&[]);
        let address = address.to_string();
        let mut options = vec!["--rpc", &address, "--gpu-layers", "all"];
        options.extend(place.iter().flat_map(|place| ["--place", place]));
        let plan = Command::new(env!("CARGO_BIN_EXE_bench"))
            .args(["plan", "--json", "-m", text(&folder)])
            .args(&options)
            .output()
            .expect("the program runs");
        let plan: Value = serde_json::from_slice(&plan.stdout).expect("JSON");
        let device_of = |tensors: &Value| {
            let tensors = tensors.as_array().expect("a list").iter();
            let last = tensors.rev().find(|tensor| tensor["shape"][1].is_u64());
            last.expect("a matrix")["device"].is_string()
        };
        assert!(device_of(&plan["tensors"]), "{plan}");
        assert_eq!(device_of(&plan["towers"][0]["tensors"]), is_on_worker);
        let server = start(&options);
        assert_eq!(told(&server, "a.png", &json!({})), expected, "{place:?}");
        drop(server);
        worker.kill().expect("it runs");
        worker.wait().expect("it ends");
    }
}

#[test]
fn results_of_tools_have_pictures() {
    let server = start(&[]);
    let call = json!({
        "id": "c1", "type": "function", "function": { "name": "look", "arguments": "{}" },
    });
    let result = json!([words("seen: "), image(&data_url(&file("a.png")))]);
    let messages = json!([
        user(&"Look.".into()), { "role": "assistant", "content": "", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c1", "content": result },
    ]);
    let openai = answer(&server, &chat(&messages, &json!({})));
    assert_eq!(openai["usage"]["prompt_tokens_details"]["image_tokens"], 16);
    let source =
        json!({ "type": "base64", "media_type": "image/png", "data": base64(&file("a.png")) });
    let body = json!({ "model": "default", "max_tokens": 6, "temperature": 0, "ignore_eos": true, "messages": [
        user(&"Look.".into()),
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "c1", "name": "look", "input": {} }] },
        user(&json!([{ "type": "tool_result", "tool_use_id": "c1", "content": [
            words("seen: "), { "type": "image", "source": source },
        ] }])),
    ] });
    let anthropic = server.post("/v1/messages", &body);
    assert_eq!(
        anthropic["content"][0]["text"],
        openai["choices"][0]["message"]["content"]
    );
}

#[test]
fn a_model_of_texts_names_the_field_that_it_cannot_take() {
    let server = Server::start(&[]);
    let data = base64(&file("a.png"));
    let url = data_url(&file("a.png"));
    let sound =
        json!({ "type": "input_audio", "input_audio": { "data": "aGk=", "format": "wav" } });
    let source = json!({ "type": "base64", "media_type": "image/png", "data": data });
    let block = json!({ "type": "image", "source": source });
    let openai = |part: &Value| json!({ "messages": [user(&json!([words("a"), part]))] });
    let input = |part: Value| json!({ "input": [user(&json!([part]))] });
    let anthropic = |content: Value| json!({ "max_tokens": 4, "messages": [user(&content)] });
    let result = json!([{ "type": "tool_result", "tool_use_id": "x", "content": [block] }]);
    let prompt = json!({ "prompt_string": "<__media__>", "multimodal_data": [data] });
    for (path, body, field) in [
        (
            "/v1/chat/completions",
            openai(&image(&url)),
            "messages[0].content[1].image_url",
        ),
        (
            "/v1/chat/completions",
            openai(&sound),
            "messages[0].content[1].input_audio.data",
        ),
        (
            "/tokenize",
            openai(&image(&url)),
            "messages[0].content[1].image_url",
        ),
        (
            "/apply-template",
            openai(&image(&url)),
            "messages[0].content[1].image_url",
        ),
        (
            "/v1/responses",
            input(json!({ "type": "input_image", "image_url": url })),
            "input[0].content[0].image_url",
        ),
        (
            "/v1/responses/input_tokens",
            input(json!({ "type": "input_image", "image_url": url })),
            "input[0].content[0].image_url",
        ),
        (
            "/v1/responses",
            input(json!({ "type": "input_file", "file_data": url })),
            "input[0].content[0].file_data",
        ),
        (
            "/v1/responses",
            input(sound.clone()),
            "input[0].content[0].input_audio.data",
        ),
        (
            "/v1/messages",
            anthropic(json!([words("a"), block])),
            "messages[0].content[1].source.data",
        ),
        (
            "/v1/messages/count_tokens",
            anthropic(json!([words("a"), block])),
            "messages[0].content[1].source.data",
        ),
        (
            "/v1/messages",
            anthropic(result),
            "messages[0].content[0].content[0].source.data",
        ),
        (
            "/api/chat",
            json!({ "messages": [{ "role": "user", "content": "a", "images": [data] }] }),
            "messages[0].images[0]",
        ),
        (
            "/api/generate",
            json!({ "prompt": "a", "images": [data] }),
            "images[0]",
        ),
        (
            "/completion",
            json!({ "prompt": prompt }),
            "prompt.multimodal_data[0]",
        ),
    ] {
        let (status, answer) = server.json("POST", path, &body);
        let said = answer.to_string();
        assert_eq!(status, 400, "{path}: {said}");
        assert!(said.contains(&format!("`{field}`")), "{path}: {said}");
        assert!(said.contains("takes no"), "{path}: {said}");
    }
    // A response that is made in the background is refused no later.
    let (_, models) = server.json("GET", "/v1/models", &Value::Null);
    assert_eq!(
        models["data"][0]["architecture"]["input_modalities"],
        json!(["text"])
    );
}

#[test]
fn what_a_model_takes_is_told() {
    for server in [start(&[]), Server::split(&["-m", text(&folder())])] {
        let get = |path: &str| server.json("GET", path, &Value::Null).1;
        let model = &get("/v1/models")["data"][0];
        assert_eq!(
            model["architecture"]["input_modalities"],
            json!(["text", "image"])
        );
        assert_eq!(model["capabilities"]["vision"], true, "{model}");
        assert_eq!(model["capabilities"]["audio"], false);
        let props = get("/props");
        assert_eq!(
            props["modalities"],
            json!({ "vision": true, "audio": false })
        );
        assert_eq!(props["media_marker"], "<__media__>");
        let shown = server.post("/api/show", &json!({ "model": "default" }));
        let abilities = shown["capabilities"].as_array().expect("an array");
        assert!(abilities.contains(&"vision".into()) && !abilities.contains(&"audio".into()));
    }
}

/// The head of a PNG of this size, without pixels.
fn head_of_png(width: u32, height: u32) -> Vec<u8> {
    let mut chunk = b"IHDR".to_vec();
    chunk.extend(width.to_be_bytes());
    chunk.extend(height.to_be_bytes());
    chunk.extend([8, 2, 0, 0, 0]);
    let mut crc = flate2::Crc::new();
    crc.update(&chunk);
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
    png.extend(chunk);
    png.extend(crc.sum().to_be_bytes());
    png.extend(*b"\0\0\0\0IDAT\x35\xaf\x06\x1e");
    png
}

#[test]
fn files_that_are_no_good_are_refused_and_the_server_lives() {
    let server = start(&["--ctx", "1024"]);
    let picture = file("a.png");
    let ask = |url: &str| {
        let body = chat(
            &json!([user(&json!([image(url), words("What?")]))]),
            &json!({}),
        );
        server.json("POST", "/v1/chat/completions", &body)
    };
    let mut broken = picture.clone();
    broken[50] ^= 0xff;
    for (what, bytes) in [
        ("cut", picture[..60].to_vec()),
        ("head alone", picture[..33].to_vec()),
        ("a changed byte", broken),
        ("too large", head_of_png(10_000, 10_000)),
        ("far too large", head_of_png(u32::MAX, u32::MAX)),
        ("no pixels", head_of_png(0, 0)),
        ("text", b"What a picture!".to_vec()),
        (
            "an SVG",
            b"<svg xmlns='http://www.w3.org/2000/svg'/>".to_vec(),
        ),
        ("a PDF", b"%PDF-1.7".to_vec()),
        ("nothing", Vec::new()),
    ] {
        let (status, answer) = ask(&data_url(&bytes));
        assert_eq!(status, 400, "{what}: {answer}");
        assert_eq!(
            answer["error"]["param"], "messages[0].content[0].image_url",
            "{what}"
        );
    }
    for url in ["data:image/png;base64,!!!", "data:image/png,a", "data:", ""] {
        let (status, answer) = ask(url);
        assert_eq!(status, 400, "{url}: {answer}");
    }
    let many: Value = (0..200).map(|_| image(&data_url(&picture))).collect();
    let (status, answer) = server.json(
        "POST",
        "/v1/chat/completions",
        &chat(&json!([user(&many)]), &json!({})),
    );
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("at most 128"), "{answer}");
    // More rows than the context holds are refused before all are prepared.
    let many: Value = (0..128).map(|_| image(&data_url(&picture))).collect();
    let (status, answer) = server.json(
        "POST",
        "/v1/chat/completions",
        &chat(&json!([user(&many)]), &json!({})),
    );
    assert!(
        status == 400 && answer.to_string().contains("the context holds"),
        "{answer}"
    );
    // Unusual pictures are pictures.
    let folder = sources::root().join("tests/media/pictures");
    let mut n = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a file").path();
        if path.extension().is_some_and(|end| end == "rgb") {
            continue;
        }
        let (status, answer) = ask(&data_url(&file(&path)));
        assert_eq!(status, 200, "{}: {answer}", path.display());
        n += 1;
    }
    assert!(n > 5, "{n}");
    assert_eq!(ask(&data_url(&picture)).0, 200);
}

/// A server that sends `a.png` for each request.
fn file_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let picture = file("a.png");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
            while lines
                .next()
                .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
            {}
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                picture.len()
            );
            let _ = stream.write_all(&[head.as_bytes(), &picture].concat());
        }
    });
    address
}

#[test]
fn media_are_read_from_elsewhere_only_where_the_options_allow_it() {
    let address = file_server();
    let url = format!("http://{address}/a.png");
    let ask = |server: &Server, url: &str| {
        let body = scored(
            &json!([user(&json!([image(url), words("What?")]))]),
            &json!({}),
        );
        server.json("POST", "/v1/chat/completions", &body)
    };
    let server = start(&[]);
    for (url, option) in [(url.as_str(), "--media-fetch"), ("a.png", "--media-dir")] {
        let (status, answer) = ask(&server, url);
        assert_eq!(status, 400, "{answer}");
        assert!(answer.to_string().contains(option), "{answer}");
    }
    let (_, expected) = ask(&server, &data_url(&file("a.png")));
    drop(server);

    let root = scratch();
    std::fs::write(root.path().join("a.png"), file("a.png")).expect("it is written");
    let host = address.to_string();
    let (folder, dir) = (folder(), text(root.path()));
    // The options reach the process of the model.
    let server = Server::split(&[
        "-m",
        text(&folder),
        "--exact",
        "--media-fetch",
        &host,
        "--media-dir",
        dir,
    ]);
    let path = root.path().join("a.png");
    let at_file = format!("file://{}", text(&path));
    for url in [url.as_str(), "a.png", text(&path), &at_file] {
        let (status, answer) = ask(&server, url);
        assert_eq!(status, 200, "{url}: {answer}");
        assert_eq!(first(&answer), first(&expected), "{url}");
    }
    for url in [
        "../a.png".to_owned(),
        "/etc/passwd".into(),
        "http://127.0.0.1:1/a.png".into(),
        "http://169.254.169.254/latest".into(),
        url.replace("127.0.0.1", "localhost"),
    ] {
        let (status, answer) = ask(&server, &url);
        assert_eq!(status, 400, "{url}: {answer}");
        assert_eq!(answer["error"]["param"], "messages[0].content[0].image_url");
    }
}

#[test]
fn sounds_are_part_of_prompts() {
    let Some(root) = shared("media/given") else {
        return;
    };
    let folder = root.join("qwen2-audio");
    let server = Server::start(&["-m", text(&folder), "--exact"]);
    let sound = file(sources::root().join("tests/media/stereo.flac"));
    let part = json!({ "type": "input_audio", "input_audio": { "data": base64(&sound), "format": "flac" } });
    let body = chat(&json!([user(&json!([part, words("What?")]))]), &json!({}));
    let answer = answer(&server, &body);
    let details = &answer["usage"]["prompt_tokens_details"];
    let n = details["audio_tokens"].as_u64().expect("a number");
    assert!(n > 0 && details.get("image_tokens").is_none(), "{answer}");
    let (_, model) = server.json("GET", "/v1/models", &Value::Null);
    let inputs = &model["data"][0]["architecture"]["input_modalities"];
    assert_eq!(inputs, &json!(["text", "audio"]));
    let picture = json!([user(&json!([image(&data_url(&file("a.png")))]))]);
    let (status, answer) = server.json("POST", "/v1/chat/completions", &chat(&picture, &json!({})));
    assert!(
        status == 400 && answer.to_string().contains("takes no pictures"),
        "{answer}"
    );
    let data = base64(b"RIFF....WAVEfmt ");
    let part = json!({ "type": "input_audio", "input_audio": { "data": data, "format": "wav" } });
    let body = chat(&json!([user(&json!([part]))]), &json!({}));
    let (status, answer) = server.json("POST", "/v1/chat/completions", &body);
    assert!(
        status == 400 && answer.to_string().contains("input_audio.data"),
        "{answer}"
    );
}
