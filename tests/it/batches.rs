//! Files and batches of clients, and `bench batch`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::command::{bench, scratch, text};
use crate::support::server::Server;

const FORM: &str = "multipart/form-data; boundary=cut";

fn form(purpose: &str, contents: &str) -> String {
    format!(
        "--cut\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\n{purpose}\r\n\
         --cut\r\ncontent-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{contents}\r\n--cut--\r\n"
    )
}

/// Status and answer of a request with a key; of a file, its text.
fn ask(
    server: &Server,
    key: &str,
    method: &str,
    path: &str,
    kind: &str,
    body: &str,
) -> (u16, Value) {
    let kind = format!("{kind}\r\napi-key: {key}");
    let (status, _, body) = server.raw(method, path, &kind, body);
    let value = serde_json::from_str(&body).unwrap_or(Value::String(body));
    (status, value)
}

fn upload(server: &Server, contents: &str) -> Value {
    let (status, file) = ask(
        server,
        "one",
        "POST",
        "/v1/files",
        FORM,
        &form("batch", contents),
    );
    assert_eq!(status, 200, "{file}");
    file
}

fn get(server: &Server, path: &str) -> (u16, Value) {
    ask(server, "one", "GET", path, "text/plain", "")
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    ask(
        server,
        "one",
        "POST",
        path,
        "application/json",
        &body.to_string(),
    )
}

fn id(of: &Value) -> &str {
    of["id"].as_str().expect("an id")
}

fn line(id: &str, url: &str, body: &Value) -> String {
    let line = json!({ "custom_id": id, "method": "POST", "url": url, "body": body });
    format!("{line}\n")
}

fn question(i: usize) -> Value {
    let message = json!({ "role": "user", "content": format!("{i}+2=?") });
    json!({ "model": "default", "messages": [message], "temperature": 0 })
}

const CHAT: &str = "/v1/chat/completions";

fn questions(n: usize) -> String {
    (0..n)
        .map(|i| line(&format!("q{i}"), CHAT, &question(i)))
        .collect()
}

fn created(server: &Server, file: &Value) -> Value {
    let body = json!({ "input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h", "metadata": { "a": "b" } });
    let (status, batch) = post(server, "/v1/batches", &body);
    assert_eq!(status, 200, "{batch}");
    batch
}

fn awaited(server: &Server, batch: &Value, status: &str) -> Value {
    let start = Instant::now();
    loop {
        let (_, batch) = get(server, &format!("/v1/batches/{}", id(batch)));
        if batch["status"] == status {
            return batch;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{batch}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The results in a file, by the ids of their requests.
fn results(contents: &str) -> std::collections::BTreeMap<String, Value> {
    let lines = contents
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    lines
        .map(|line: Value| (line["custom_id"].as_str().expect("an id").to_owned(), line))
        .collect()
}

fn contents(server: &Server, id: &Value) -> String {
    let path = format!("/v1/files/{}/content", id.as_str().expect("an id"));
    let (status, _, contents) = server.raw("GET", &path, "text/plain\r\napi-key: one", "");
    assert_eq!(status, 200, "{contents}");
    contents
}

const KEYS: [&str; 4] = ["--api-key", "one", "--api-key", "two"];

#[test]
fn a_batch_answers_the_requests_of_a_file() {
    for server in [Server::start(&KEYS), Server::split(&KEYS)] {
        let mut input = questions(6);
        input += "\n";
        input += &line(
            "wrong",
            CHAT,
            &json!({ "messages": [], "model": "default" }),
        );
        let file = upload(&server, &input);
        assert_eq!(
            (&file["filename"], &file["bytes"]),
            (&json!("in.jsonl"), &json!(input.len()))
        );
        assert_eq!(contents(&server, &file["id"]), input);
        let batch = created(&server, &file);
        assert_eq!(
            (&batch["object"], &batch["status"]),
            (&json!("batch"), &json!("validating"))
        );
        let batch = awaited(&server, &batch, "completed");
        assert_eq!(
            batch["request_counts"],
            json!({ "total": 7, "completed": 6, "failed": 1 })
        );
        assert_eq!(batch["metadata"], json!({ "a": "b" }));
        for time in [
            "created_at",
            "in_progress_at",
            "finalizing_at",
            "completed_at",
        ] {
            assert!(batch[time].is_u64(), "{time}: {batch}");
        }
        let found = results(&contents(&server, &batch["output_file_id"]));
        assert_eq!(found.len(), 6);
        for i in 0..6 {
            let (_, whole) = post(&server, CHAT, &question(i));
            let response = &found[&format!("q{i}")]["response"];
            assert_eq!(response["status_code"], 200);
            assert!(response["request_id"].is_string());
            assert_eq!(response["body"]["choices"], whole["choices"]);
        }
        let found = results(&contents(&server, &batch["error_file_id"]));
        let response = &found["wrong"]["response"];
        assert_eq!(
            (
                &response["status_code"],
                &response["body"]["error"]["param"]
            ),
            (&json!(400), &json!("messages"))
        );

        let (_, list) = get(&server, "/v1/files?purpose=batch_output");
        assert_eq!(list["data"].as_array().map(Vec::len), Some(2));
        let (_, list) = get(&server, "/v1/batches?limit=1");
        assert_eq!(
            (id(&list["data"][0]), &list["has_more"]),
            (id(&batch), &json!(false))
        );
        // Of one client.
        for path in ["/v1/files", "/v1/batches"] {
            let (_, list) = ask(&server, "two", "GET", path, "text/plain", "");
            assert_eq!(list["data"], json!([]), "{path}");
        }
        for path in [
            format!("/v1/files/{}", id(&file)),
            format!("/v1/files/{}/content", id(&file)),
            format!("/v1/batches/{}", id(&batch)),
        ] {
            assert_eq!(
                ask(&server, "two", "GET", &path, "text/plain", "").0,
                404,
                "{path}"
            );
            assert_eq!(get(&server, &path).0, 200, "{path}");
        }
        let path = format!("/v1/files/{}", id(&file));
        assert_eq!(
            ask(&server, "two", "DELETE", &path, "text/plain", "").0,
            404
        );
        let deleted = json!({ "id": file["id"], "object": "file", "deleted": true });
        assert_eq!(
            ask(&server, "one", "DELETE", &path, "text/plain", ""),
            (200, deleted)
        );
        assert_eq!(get(&server, &path).0, 404);
        let (status, answer) = post(
            &server,
            &format!("/v1/batches/{}/cancel", id(&batch)),
            &json!({}),
        );
        assert_eq!(status, 400, "{answer}");
    }
}

#[test]
fn a_batch_whose_lines_are_wrong_fails_with_their_numbers() {
    let server = Server::start(&KEYS);
    let lines = [
        questions(1),
        questions(1),
        "{\n".into(),
        line("a", "/v1/embeddings", &json!({ "input": "a" })),
        line("b", CHAT, &json!({ "stream": true })),
    ];
    let file = upload(&server, &lines.concat());
    let batch = awaited(&server, &created(&server, &file), "failed");
    let errors = batch["errors"]["data"].as_array().expect("errors");
    let numbers: Vec<u64> = errors
        .iter()
        .filter_map(|error| error["line"].as_u64())
        .collect();
    assert_eq!(numbers, [2, 3, 4, 5], "{batch}");
    let batch = awaited(&server, &created(&server, &upload(&server, "\n")), "failed");
    assert_eq!(batch["errors"]["data"][0]["code"], "empty_file");

    let other = ask(
        &server,
        "one",
        "POST",
        "/v1/files",
        FORM,
        &form("user_data", "x"),
    )
    .1;
    for (body, param) in [
        (
            json!({ "input_file_id": "file-x", "endpoint": CHAT }),
            "input_file_id",
        ),
        (
            json!({ "input_file_id": other["id"], "endpoint": CHAT }),
            "input_file_id",
        ),
        (
            json!({ "input_file_id": file["id"], "endpoint": "/v1/messages" }),
            "endpoint",
        ),
        (json!({ "endpoint": CHAT }), "input_file_id"),
    ] {
        let (status, answer) = post(&server, "/v1/batches", &body);
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(param)),
            "{answer}"
        );
    }
    for (kind, body, part) in [
        (FORM, form("mischief", "x"), "purpose"),
        (FORM, "--cut\r\n".to_owned(), "form"),
        (
            FORM,
            form("batch", "x").replace("name=\"file\"", "name=\"other\""),
            "`file`",
        ),
        ("application/json", "{}".to_owned(), "multipart/form-data"),
    ] {
        let (status, answer) = ask(&server, "one", "POST", "/v1/files", kind, &body);
        let message = answer["error"]["message"].as_str().expect("a text");
        assert!(status == 400 && message.contains(part), "{answer}");
    }
    let small = Server::start(&["--api-key", "one", "--file-bytes", "1000"]);
    let (status, answer) = ask(
        &small,
        "one",
        "POST",
        "/v1/files",
        FORM,
        &form("batch", &"x".repeat(1001)),
    );
    assert_eq!(
        (status, &answer["error"]["code"]),
        (400, &json!("storage_full"))
    );
    // No room for results.
    let batch = created(&small, &upload(&small, &questions(4)));
    let batch = awaited(&small, &batch, "failed");
    assert_eq!(
        batch["errors"]["data"][0]["code"], "storage_full",
        "{batch}"
    );
}

#[test]
fn a_batch_is_cancelled_and_goes_on_in_the_next_server() {
    let folder = scratch();
    let options = [
        "--api-key",
        "one",
        "--parallel",
        "2",
        "--files",
        text(folder.path()),
    ];
    let server = Server::split(&options);
    let long = |i: usize| {
        let body = json!({ "model": "default", "messages": [{ "role": "user", "content": i.to_string() }],
            "max_tokens": 400, "ignore_eos": true });
        line(&format!("q{i}"), CHAT, &body)
    };
    let file = upload(&server, &(0..200).map(long).collect::<String>());
    let batch = created(&server, &file);
    awaited(&server, &batch, "in_progress");
    // Others find a place.
    assert_eq!(post(&server, CHAT, &question(1)).0, 200);
    let (status, cancelled) = post(
        &server,
        &format!("/v1/batches/{}/cancel", id(&batch)),
        &json!({}),
    );
    assert_eq!((status, &cancelled["status"]), (200, &json!("cancelling")));
    let cancelled = awaited(&server, &batch, "cancelled");
    assert!(
        cancelled["request_counts"]["completed"].as_u64() < Some(200),
        "{cancelled}"
    );

    let file = upload(&server, &(0..12).map(long).collect::<String>());
    let batch = created(&server, &file);
    let start = Instant::now();
    let before = loop {
        let (_, batch) = get(&server, &format!("/v1/batches/{}", id(&batch)));
        if batch["request_counts"]["completed"].as_u64() > Some(1) {
            break batch;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{batch}");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(before["status"], "in_progress", "{before}");
    drop(server);
    let output = folder.path().join(format!(
        "{}.data",
        before["output_file_id"].as_str().expect("an id")
    ));
    let first = std::fs::read_to_string(&output).expect("results");
    std::fs::write(&output, format!("{first}{{\"custom_id\": \"cut")).expect("written");
    let server = Server::start(&options);
    let batch = awaited(&server, &batch, "completed");
    let all = contents(&server, &batch["output_file_id"]);
    assert!(all.starts_with(&first));
    assert_eq!((results(&all).len(), all.lines().count()), (12, 12));
    assert_eq!(batch["request_counts"]["completed"], 12);
}

#[test]
fn fields_without_effect_are_named_at_the_end_of_a_batch() {
    let folder = scratch();
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| folder.path().join(name));
    let mut body = question(1);
    body["no_such_field"] = json!(1);
    std::fs::write(&input, line("q1", CHAT, &body)).expect("written");
    let ran = bench(&["batch", "--threads", "1", text(&input), text(&output)]);
    let expected = "0 failed; fields without effect: no_such_field]";
    assert!(ran.err.contains(expected), "{}", ran.err);
}

#[test]
fn bench_batch_answers_what_has_no_result_yet() {
    let folder = scratch();
    let (input, output) = (
        folder.path().join("in.jsonl"),
        folder.path().join("out.jsonl"),
    );
    let run = || bench(&["batch", "--threads", "1", text(&input), "-o", text(&output)]);
    std::fs::write(&input, questions(9)).expect("written");
    let ran = run();
    assert_eq!(ran.code, 0, "{}", ran.err);
    let first = std::fs::read_to_string(&output).expect("results");
    let answers = results(&first);
    assert_eq!(answers.len(), 9);
    assert_eq!(
        answers["q3"]["response"]["body"]["choices"][0]["message"]["content"],
        "3+2=5"
    );
    // Cut within a line.
    std::fs::write(&output, &first[..first.len() - 40]).expect("written");
    let whole = first[..first.len() - 40].rfind('\n').expect("lines") + 1;
    std::fs::write(
        &input,
        questions(11) + &line("bad", "/v1/completions", &json!({ "prompt": "1", "n": 0 })),
    )
    .expect("written");
    let ran = run();
    assert!(
        ran.code == 1 && ran.err.contains("1 of 12 requests failed"),
        "{}",
        ran.err
    );
    assert!(
        ran.err.contains("4 answered now, 8 before, 1 failed"),
        "{}",
        ran.err
    );
    let second = std::fs::read_to_string(&output).expect("results");
    assert!(second.starts_with(&first[..whole]));
    assert_eq!((results(&second).len(), second.lines().count()), (12, 12));
    assert_eq!(results(&second)["bad"]["response"]["status_code"], 400);
    // What failed before still counts.
    assert_eq!(run().code, 1);
    assert_eq!(std::fs::read_to_string(&output).expect("results"), second);

    let ran = bench(&["batch", text(&input), text(&input)]);
    assert!(ran.code != 0 && ran.err.contains("input"), "{}", ran.err);
    std::fs::write(&input, questions(1) + "{}\n").expect("written");
    let ran = run();
    assert!(
        ran.code == 1 && ran.err.contains("line 2: `custom_id` is missing"),
        "{}",
        ran.err
    );
    std::fs::write(&output, "{}\n").expect("written");
    std::fs::write(&input, questions(1)).expect("written");
    let ran = run();
    assert!(
        ran.code == 1 && ran.err.contains("out.jsonl: line 1: expected a result"),
        "{}",
        ran.err
    );
}
