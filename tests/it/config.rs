//! Settings of the server: file, environment and options; who may use it; its log.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::server::Server;

fn serve(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench"))
        .arg("serve")
        .args(arguments)
        .envs(environment.iter().copied())
        .output()
        .expect("the program starts")
}

fn file(folder: &Path, text: &str) -> String {
    let path = folder.join("bench.toml");
    std::fs::write(&path, text).expect("it is written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn each_layer_covers_the_one_below() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(
        folder.path(),
        "port = 1\nctx = 100\nparallel = 2\nflash_attn = true\ndeterministic = true\nmodels = \"here\"\n\
         api_key = [\"secret\", \"other\"]\n[aliases]\ngpt-4o = \"tiny-chat\"\n[per_model.tiny-chat]\nctx = 300\n",
    );
    let out = serve(
        &[
            "--config",
            &path,
            "--print-config",
            "--port",
            "3",
            "--model",
            "tiny-chat",
        ],
        &[
            ("BENCH_PORT", "2"),
            ("BENCH_CTX", "200"),
            ("BENCH_CORS_ORIGIN", "http://a,http://b"),
        ],
    );
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    for line in [
        "port = 3  # --port".to_owned(),
        "ctx = 200  # BENCH_CTX".to_owned(),
        format!("parallel = 2  # {path}"),
        format!("deterministic = true  # {path}"),
        format!("flash_attn = \"on\"  # {path}"),
        "model = \"tiny-chat\"  # --model".to_owned(),
        "# models is not set".to_owned(),
        "host = \"127.0.0.1\"  # default".to_owned(),
        "cors_origin = [\"http://a\", \"http://b\"]  # BENCH_CORS_ORIGIN".to_owned(),
        "gpt-4o = \"tiny-chat\"".to_owned(),
    ] {
        let has = text.lines().any(|found| {
            found == line || found == format!("\"gpt-4o\"{}", &line[6.min(line.len())..])
        });
        assert!(has, "`{line}` is not in:\n{text}");
    }
    assert!(!text.contains("secret"), "{text}");
    let parsed: Result<toml::Table, _> = text.parse();
    assert!(parsed.is_ok(), "{parsed:?}");
}

#[test]
fn every_mistake_of_a_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(
        folder.path(),
        "prot = 1\nport = \"x\"\ndeterministic = 1\naliases = 3\n[per_model.tiny-chat]\nhost = \"::1\"\nctxx = 1\n",
    );
    let out = serve(&["--config", &path], &[]);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{text}");
    for part in [
        "unknown key `prot`; did you mean `port`?",
        "`port`: invalid value 'x'",
        "`deterministic`: expected true or false",
        "`aliases`: expected a table",
        "unknown key `per_model.tiny-chat.host`",
        "unknown key `per_model.tiny-chat.ctxx`; did you mean `per_model.tiny-chat.ctx`?",
        path.as_str(),
    ] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    let out = serve(
        &[],
        &[("BENCH_PORT", "many"), ("BENCH_DETERMINISTIC", "perhaps")],
    );
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        text.contains("BENCH_PORT: ") && text.contains("BENCH_DETERMINISTIC: "),
        "{text}"
    );
    let path = file(folder.path(), "[aliases]\nx = \"tiny-cat\"\n");
    let out = serve(&["--config", &path, "--port", "0"], &[]);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(text.contains("did you mean `tiny-chat`?"), "{text}");
    let path = file(folder.path(), "[aliases]\ngpt-3.5 = \"tiny-chat\"\n");
    let out = serve(&["--config", &path, "--port", "0"], &[]);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(text.contains("a name with dots needs quotes"), "{text}");
}

#[test]
fn aliases_and_settings_of_a_model_are_in_force() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(
        folder.path(),
        "ctx = 1024\n[aliases]\ngpt-4o = \"tiny-chat\"\n[per_model.tiny-chat]\nctx = 256\n",
    );
    let server = Server::start(&["--config", &path]);
    let (status, answer) = server.chat(json!({ "model": "gpt-4o", "max_tokens": 1 }));
    assert_eq!(
        (status, &answer["model"]),
        (200, &json!("tiny-chat")),
        "{answer}"
    );
    let (_, info) = server.json("GET", "/tokenizer_info", &Value::Null);
    assert_eq!(info["model_max_length"], 256);
    let server = Server::start(&["--config", &path, "--ctx", "512"]);
    let (_, info) = server.json("GET", "/tokenizer_info", &Value::Null);
    assert_eq!(info["model_max_length"], 512);
}

#[test]
fn settings_of_a_model_are_those_of_its_served_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let models = folder.path().join("models");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let both = models.join("m");
    std::fs::create_dir_all(&both).expect("a folder");
    for entry in std::fs::read_dir(shipped.join("tiny-chat")).expect("it is there") {
        let entry = entry.expect("it is readable").path();
        let name = entry.file_name().expect("a name");
        std::fs::copy(&entry, both.join(name)).expect("copied");
    }
    std::fs::copy(shipped.join("tiny-chat.gguf"), models.join("m.gguf")).expect("copied");
    let path = file(
        folder.path(),
        "ctx = 64\n[per_model.m]\nctx = 128\n[per_model.\"m.gguf\"]\nctx = 256\n",
    );
    let models = models.to_str().expect("UTF-8");
    for start in [Server::start, Server::split] {
        let server = start(&["--config", &path, "--models", models]);
        for (name, n_ctx) in [("m", 128), ("m.gguf", 256)] {
            let described = || {
                let (_, model) = server.json("GET", &format!("/v1/models/{name}"), &Value::Null);
                (model["state"].clone(), model["max_model_len"].clone())
            };
            assert_eq!(described(), (json!("not loaded"), json!(n_ctx)));
            let path = format!("/tokenizer_info?model={name}");
            let (_, info) = server.json("GET", &path, &Value::Null);
            assert_eq!(info["model_max_length"], n_ctx, "{info}");
            assert_eq!(described(), (json!("loaded"), json!(n_ctx)));
        }
    }
}

#[test]
fn an_open_address_needs_a_key() {
    let out = serve(&["--host", "0.0.0.0", "--port", "0"], &[]);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(
        text.contains("--api-key") && text.contains("--no-api-key"),
        "{text}"
    );
    for more in [["--no-api-key"].as_slice(), &["--api-key", "k"]] {
        let all: Vec<&str> = ["--host", "0.0.0.0"].iter().chain(more).copied().collect();
        Server::start(&all);
    }
}

/// Status and head of a request with these headers.
pub(crate) fn sent(server: &Server, first: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(&server.address).expect("the server listens");
    let host = match headers.to_ascii_lowercase().contains("host:") {
        true => "",
        false => "host: 127.0.0.1\r\n",
    };
    write!(
        stream,
        "{first} HTTP/1.1\r\n{host}connection: close\r\n{headers}\r\n"
    )
    .expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let head = answer
        .split("\r\n\r\n")
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.expect("a status"), head)
}

#[test]
fn api_keys_are_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keys");
    std::fs::write(&path, "# two\nsecond\n\nthird \n").expect("it is written");
    let server = Server::start(&[
        "--api-key",
        "first",
        "--api-key-file",
        path.to_str().expect("UTF-8"),
    ]);
    let get = |headers: &str| {
        sent(
            &server,
            "GET /v1/models",
            &format!("host: any.example\r\n{headers}"),
        )
    };
    for good in [
        "authorization: Bearer first\r\n",
        "Authorization: bearer second\r\n",
        "x-api-key: third\r\n",
    ] {
        assert_eq!(get(good).0, 200, "{good}");
    }
    for bad in [
        "",
        "authorization: Bearer firs\r\n",
        "x-api-key: firstt\r\n",
        "authorization: Basic first\r\n",
    ] {
        let (status, head) = get(bad);
        assert_eq!(status, 401, "{bad}");
        assert!(head.contains("www-authenticate: bearer"), "{head}");
    }
    assert_eq!(sent(&server, "GET /health", "host: a\r\n").0, 200);
    assert_eq!(sent(&server, "GET /nowhere", "host: a\r\n").0, 401);
}

#[test]
fn the_chat_page_may_ask_only_the_origins_of_a_setting() {
    let policy = |options: &[&str]| {
        let server = Server::start(options);
        let (status, head) = sent(&server, "GET /", "host: a.local\r\n");
        assert_eq!(status, 200);
        let line = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            (name == "content-security-policy").then(|| value.to_owned())
        });
        line.expect("a policy")
    };
    assert!(policy(&[]).contains("connect-src 'self';"));
    let own = policy(&[
        "--page-connect",
        "https://mcp.example/",
        "--page-connect",
        "http://localhost:8000",
    ]);
    assert!(
        own.contains("connect-src 'self' https://mcp.example http://localhost:8000;"),
        "{own}"
    );
    let out = serve(&["--page-connect", "https://a.example; script-src *"], &[]);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("expected an origin"), "{text}");
}

#[test]
fn a_web_page_cannot_use_the_server() {
    let server = Server::start(&[
        "--cors-origin",
        "https://ui.example",
        "--allow-host",
        "bench.lan",
    ]);
    let get = |headers: &str| sent(&server, "GET /v1/models", headers);
    assert_eq!(get("host: evil.example\r\n").0, 403);
    assert_eq!(get("host: bench.lan\r\n").0, 200);
    assert_eq!(
        get("host: 127.0.0.1\r\norigin: https://evil.example\r\n").0,
        403
    );
    assert_eq!(get("host: 127.0.0.1\r\norigin: null\r\n").0, 403);
    let (status, head) = get("host: 127.0.0.1\r\norigin: https://ui.example\r\n");
    assert_eq!(status, 200);
    assert!(
        head.contains("access-control-allow-origin: https://ui.example"),
        "{head}"
    );
    let ask = |origin: &str| {
        let headers = format!(
            "host: 127.0.0.1\r\norigin: {origin}\r\naccess-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n"
        );
        sent(&server, "OPTIONS /v1/chat/completions", &headers)
    };
    let (status, head) = ask("https://ui.example");
    assert_eq!(status, 204);
    assert!(
        head.contains("access-control-allow-headers: content-type"),
        "{head}"
    );
    let (status, head) = ask("https://evil.example");
    assert_eq!(status, 403);
    assert!(!head.contains("access-control-allow-origin"), "{head}");
}

#[test]
fn each_request_is_a_line_of_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let path = path.to_str().expect("UTF-8");
    let server = Server::start(&["--log", path, "--log-format", "json"]);
    server.chat(json!({ "user": "u" }));
    server.stream(json!({}));
    server.chat(json!({ "temperature": -9 }));
    server.json("GET", "/health", &Value::Null);
    drop(server);
    let text = std::fs::read_to_string(path).expect("a log");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let lines: Vec<&Value> = lines
        .iter()
        .filter(|line| line["target"] == "request")
        .collect();
    assert_eq!(lines.len(), 3, "{text}");
    for line in &lines[..2] {
        assert_eq!(line["model"], "tiny-chat");
        assert_eq!(line["status"], 200);
        assert_eq!(line["finish"], "stop");
        assert!(line["id"].as_str().is_some_and(|id| !id.is_empty()));
        for key in [
            "prompt_tokens",
            "completion_tokens",
            "first_token_ms",
            "tokens_per_second",
            "ms",
        ] {
            assert!(
                line[key].as_f64().is_some_and(|number| number > 0.0),
                "{key}: {line}"
            );
        }
        assert!(line["cached_tokens"].is_u64(), "{line}");
    }
    assert_eq!(lines[0]["ignored"], "user");
    assert_eq!(
        (&lines[2]["status"], &lines[2]["model"]),
        (&json!(400), &Value::Null)
    );
}
