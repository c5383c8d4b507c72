//! The page at `/` over a socket: its files and their headers, its settings, diagrams of models. How it
//! behaves is for `scripts/drive_chat_page.py`, in a browser.

use lab_sampling::{LISTS, OTHERS, PARAMETERS};
use serde_json::{Value, json};

use crate::support::command::{scratch, text};
use crate::support::server::Server;

fn get(server: &Server, path: &str) -> (u16, String, String) {
    server.raw("GET", path, "text/plain", "")
}

/// The status of a request with further lines in its head.
fn get_with(server: &Server, path: &str, lines: &str) -> (u16, String) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(&server.address).expect("the server listens");
    let host = match lines.contains("host:") {
        true => "",
        false => "host: 127.0.0.1\r\n",
    };
    write!(
        stream,
        "GET {path} HTTP/1.1\r\n{host}connection: close\r\n{lines}\r\n"
    )
    .expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok());
    (status.expect("a status"), answer.to_ascii_lowercase())
}

/// What is between two texts, each time.
fn between<'a>(text: &'a str, open: &str, close: char) -> Vec<&'a str> {
    let parts = text.split(open).skip(1);
    parts.filter_map(|part| part.split(close).next()).collect()
}

/// Paths of the files of the page: what it names, relative to itself so that it works below any path, and what its modules import.
fn files(server: &Server) -> Vec<String> {
    let (_, _, page) = get(server, "/");
    let named = between(&page, "href=\"", '"').into_iter();
    let named = named.chain(between(&page, "src=\"", '"'));
    let mut all: Vec<String> = named
        .filter(|path| path.starts_with("page/"))
        .map(|path| format!("/{path}"))
        .collect();
    let mut at = 0;
    while at < all.len() {
        let (_, _, text) = get(server, &all[at]);
        for name in between(&text, "from './", '\'') {
            let path = format!("/page/{name}");
            if !all.contains(&path) {
                all.push(path);
            }
        }
        at += 1;
    }
    all.sort();
    all.dedup();
    all
}

#[test]
fn the_page_and_its_files_are_served_with_a_strict_policy_and_tags() {
    let server = Server::start(&[]);
    let files = files(&server);
    assert!(files.len() > 8, "{files:?}");
    for path in files.iter().map(String::as_str).chain(["/"]) {
        let (status, head, text) = get(&server, path);
        assert_eq!(status, 200, "{path}");
        let kind = match path.rsplit_once('.') {
            Some((_, "css")) => "text/css",
            Some((_, "js")) => "text/javascript",
            Some((_, "svg")) => "image/svg+xml",
            _ => "text/html",
        };
        assert!(
            head.contains(&format!("content-type: {kind}")),
            "{path}: {head}"
        );
        let policy = between(&head, "content-security-policy: ", '\r');
        let policy = policy.first().expect("a policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(
            !policy.contains("unsafe") && !policy.contains('*'),
            "{policy}"
        );
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        let is_foreign = |word: &&str| text.contains(word);
        let foreign = [
            "https://",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ];
        assert_eq!(foreign.iter().find(|word| is_foreign(word)), None, "{path}");
        let links = between(&text, "http://", '"');
        assert!(
            links.iter().all(|link| *link == "www.w3.org/2000/svg"),
            "{path}: {links:?}"
        );

        let tag = between(&head, "etag: ", '\r')
            .first()
            .expect("a tag")
            .to_owned();
        for (known, expected) in [(tag, 304), ("*", 304), ("\"other\"", 200)] {
            for weak in ["", "W/"] {
                let lines = format!("host: 127.0.0.1\r\nif-none-match: \"x\", {weak}{known}\r\n");
                let (status, answer) = get_with(&server, path, &lines);
                let expected = if known == "*" && weak == "W/" {
                    200
                } else {
                    expected
                };
                assert_eq!(status, expected, "{path}: {lines}");
                assert!(answer.contains(&format!("etag: {tag}")), "{answer}");
                let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
                assert_eq!(body.is_empty(), status == 304, "{path}");
            }
        }
    }
    for path in [
        "/page/",
        "/page/none.js",
        "/page/..%2Fpage.rs",
        "/page/%FF",
        "/page.js",
    ] {
        let (status, _, body) = get(&server, path);
        assert_eq!(status, 404, "{path}");
        assert!(body.contains("unknown_url"), "{path}: {body}");
    }
    assert_eq!(server.raw("POST", "/", "text/plain", "").0, 405);
}

#[test]
fn the_page_needs_no_key_and_its_requests_do() {
    let server = Server::start(&["--api-key", "secret"]);
    for path in files(&server)
        .iter()
        .map(String::as_str)
        .chain(["/", "/health"])
    {
        assert_eq!(get(&server, path).0, 200, "{path}");
    }
    for path in [
        "/v1/models",
        "/v1/sampling",
        "/v1/models/tiny-chat/diagram",
        "/page/none.js",
        "/page/",
        "/docs",
    ] {
        assert_eq!(get(&server, path).0, 401, "{path}");
        let lines = "host: any.example\r\nauthorization: Bearer secret\r\n";
        assert_ne!(get_with(&server, path, lines).0, 401, "{path}");
    }
    let of_other = "host: 127.0.0.1\r\norigin: http://evil.example\r\n";
    assert_eq!(get_with(&server, "/", of_other).0, 403);
    let open = Server::start(&[]);
    assert_eq!(get_with(&open, "/", "host: evil.example\r\n").0, 403);
}

#[test]
fn the_settings_list_every_sampling_parameter_and_requests_take_them() {
    let server = Server::start(&[]);
    let (status, answer) = server.json("GET", "/v1/sampling", &Value::Null);
    assert_eq!(status, 200);
    let all = answer["data"].as_array().expect("a list");
    let name = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    let mut found: Vec<String> = all.iter().map(name).collect();
    let numbers = PARAMETERS.iter().map(|p| p.name);
    let others = LISTS
        .iter()
        .map(|l| l.name)
        .chain(OTHERS.iter().map(|o| o.name));
    let mut expected: Vec<String> = numbers.chain(others).map(str::to_owned).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(answer["stages"].as_array().map(Vec::len), Some(12));

    let temperature = all.iter().find(|value| value["name"] == "temperature");
    let expected = json!({
        "name": "temperature", "technique": "temperature", "kind": "number", "default": 1.0, "off": 1.0,
        "doc": "Temperature: divides the logits; 0 = greedy, the most probable token",
        "low": 0.0, "high": null, "range": "a finite number, 0 or more",
    });
    assert_eq!(temperature, Some(&expected));
    for value in all {
        // Bounds are those of requests: at a bound one is taken, beyond it not.
        let name = name(value);
        let Some(high) = value["high"].as_f64() else {
            continue;
        };
        let is_whole = value["kind"] == "integer";
        let number = |n: f64| if is_whole { json!(n as i64) } else { json!(n) };
        let ask = |n: f64| {
            let mut extra =
                json!({ "messages": [{ "role": "user", "content": "1" }], "max_tokens": 1 });
            extra[&name] = number(n);
            if name == "penalty_alpha" {
                extra["top_k"] = json!(4);
            }
            server.chat(extra)
        };
        assert_eq!(ask(high).0, 200, "{name}: {high}");
        let (status, refusal) = ask(high + 1.0);
        assert_eq!(
            (status, &refusal["error"]["param"]),
            (400, &json!(name)),
            "{refusal}"
        );
    }
}

#[test]
fn a_model_is_drawn_whether_it_is_loaded_or_not() {
    let folder = scratch();
    for name in ["tiny-chat", "tiny-diffusion"] {
        let from = format!("{}/models/{name}.gguf", env!("CARGO_MANIFEST_DIR"));
        std::fs::copy(from, folder.path().join(format!("{name}.gguf"))).expect("copied");
    }
    std::fs::write(folder.path().join("broken.gguf"), "GGUF").expect("written");
    let server = Server::start(&["--models", text(folder.path())]);
    let mut pictures = Vec::new();
    for path in [
        "tiny-chat/diagram",
        "tiny-chat/diagram?view=layers",
        "tiny-diffusion/diagram?view=stack",
        "tiny-chat/diagram?theme=dark",
    ] {
        let (status, head, svg) = get(&server, &format!("/v1/models/{path}"));
        assert_eq!(status, 200, "{path}: {svg}");
        assert!(head.contains("content-type: image/svg+xml"), "{head}");
        assert!(
            head.contains("content-security-policy: default-src 'none'"),
            "{head}"
        );
        assert!(
            svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
            "{path}"
        );
        assert!(svg.contains("tiny-"), "{path}: its name is not in it");
        pictures.push(svg);
    }
    pictures.dedup();
    assert_eq!(pictures.len(), 4, "pictures are the same");
    let (_, health) = server.json("GET", "/health", &Value::Null);
    assert_eq!(health["loaded"], json!([]), "drawing loads nothing");
    let (_, entry) = server.json("GET", "/v1/models/tiny-diffusion", &Value::Null);
    assert_eq!(entry["meta"]["mode"], "diffusion");

    let question = json!({ "model": "tiny-chat", "max_tokens": 1, "messages": [{ "role": "user", "content": "1" }] });
    assert_eq!(
        server.json("POST", "/v1/chat/completions", &question).0,
        200
    );
    assert_eq!(
        get(&server, "/v1/models/tiny-chat/diagram").2,
        pictures[0],
        "of the loaded model"
    );

    for (path, status, code, param) in [
        ("none/diagram", 404, "model_not_found", "model"),
        ("default/diagram", 404, "model_not_found", "model"),
        ("%FF/diagram", 404, "model_not_found", "model"),
        ("broken/diagram", 404, "model_not_servable", "model"),
        ("tiny-chat/diagram?view=x", 400, "invalid_value", "view"),
        ("tiny-chat/diagram?theme=x", 400, "invalid_value", "theme"),
        ("tiny-chat/diagram?size=1", 400, "invalid_value", "size"),
    ] {
        let (found, refusal) = server.json("GET", &format!("/v1/models/{path}"), &Value::Null);
        assert_eq!(found, status, "{path}: {refusal}");
        assert_eq!(refusal["error"]["code"], code, "{path}: {refusal}");
        assert_eq!(refusal["error"]["param"], param, "{path}: {refusal}");
    }
}
