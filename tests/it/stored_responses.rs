//! Responses that the server stores: continued, read, removed, cancelled, made in the background.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::server::{Server, with};

const RESPONSES: &str = "/v1/responses";

fn asking(input: impl Into<Value>, extra: &Value) -> Value {
    let body = json!({ "input": input.into(), "temperature": 0, "max_output_tokens": 12 });
    with(body, extra)
}

fn of(id: &Value, rest: &str) -> String {
    format!("{RESPONSES}/{}{rest}", id.as_str().expect("an id"))
}

fn get(server: &Server, path: &str) -> (u16, Value) {
    server.json("GET", path, &Value::Null)
}

/// The response once it has this status.
fn awaited(server: &Server, id: &Value, status: &str) -> Value {
    let start = Instant::now();
    loop {
        let (_, response) = get(server, &of(id, ""));
        if response["status"] == status {
            return response;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{response}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_response_continues_an_earlier_one_as_if_its_items_were_sent() {
    for server in [Server::start(&[]), Server::split(&[])] {
        let none = json!({});
        let first = server.post(RESPONSES, &asking("2+2=?", &json!({ "instructions": "A" })));
        let before = |id: &Value| json!({ "previous_response_id": id });
        let second = server.post(RESPONSES, &asking("3+3=?", &before(&first["id"])));
        assert_eq!(second["previous_response_id"], first["id"]);
        // Instructions are not carried over.
        let turn = |text: &str| json!({ "role": "user", "content": text });
        let two = json!([turn("2+2=?"), first["output"][0], turn("3+3=?")]);
        let whole = server.post(RESPONSES, &asking(two.clone(), &none));
        assert_eq!(
            second["usage"]["input_tokens"],
            whole["usage"]["input_tokens"]
        );
        assert_eq!(
            second["output"][0]["content"],
            whole["output"][0]["content"]
        );
        // Of a stream too, with instructions of its own, and its tokens are counted.
        let extra = with(
            before(&second["id"]),
            &json!({ "instructions": "B", "stream": true }),
        );
        let body = asking("4+4=?", &extra);
        let (_, _, stream) = server.raw("POST", RESPONSES, "application/json", &body.to_string());
        let last = stream
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("data: "));
        let last: Value = serde_json::from_str(last.expect("an event")).expect("JSON");
        let third = &last["response"];
        assert_eq!(
            (&last["type"], &third["instructions"]),
            (&json!("response.completed"), &json!("B"))
        );
        let mut three = two;
        three
            .as_array_mut()
            .expect("items")
            .extend([second["output"][0].clone(), turn("4+4=?")]);
        let sent = json!({ "input": three, "instructions": "B" });
        let counted = server.post("/v1/responses/input_tokens", &sent);
        assert_eq!(counted["input_tokens"], third["usage"]["input_tokens"]);
        let sent = with(
            before(&second["id"]),
            &json!({ "input": "4+4=?", "instructions": "B" }),
        );
        let counted = server.post("/responses/input_tokens", &sent);
        assert_eq!(counted["input_tokens"], third["usage"]["input_tokens"]);

        assert_eq!(get(&server, &of(&third["id"], "")), (200, third.clone()));
        let (status, items) = get(&server, &of(&third["id"], "/input_items?order=asc"));
        assert_eq!(
            (status, &items["object"], &items["has_more"]),
            (200, &json!("list"), &json!(false))
        );
        let data = items["data"].as_array().expect("items");
        assert_eq!(data.len(), 5);
        assert_eq!(
            data[0]["content"],
            json!([{ "type": "input_text", "text": "2+2=?" }])
        );
        assert_eq!(data[3], second["output"][0]);
        let page =
            |query: &str| get(&server, &of(&third["id"], &format!("/input_items?{query}"))).1;
        let newest = page("limit=2");
        assert_eq!(
            (&newest["data"][0], &newest["has_more"]),
            (&data[4], &json!(true))
        );
        assert_eq!(
            (&newest["first_id"], &newest["last_id"]),
            (&data[4]["id"], &data[3]["id"])
        );
        let after = newest["last_id"].as_str().expect("an id");
        assert_eq!(page(&format!("limit=9&after={after}"))["data"][0], data[2]);
        for (query, param) in [
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("order=up", "order"),
            ("after=x", "after"),
            ("limit=x", "query"),
        ] {
            let (status, answer) =
                get(&server, &of(&third["id"], &format!("/input_items?{query}")));
            assert_eq!(
                (status, &answer["error"]["param"]),
                (400, &json!(param)),
                "{answer}"
            );
        }

        // What is deleted is gone, also from the conversations that it began.
        let deleted = server.json("DELETE", &of(&first["id"], ""), &Value::Null);
        assert_eq!(
            deleted,
            (
                200,
                json!({ "id": first["id"], "object": "response", "deleted": true })
            )
        );
        let (status, answer) = get(&server, &of(&first["id"], ""));
        let message = answer["error"]["message"].as_str().expect("a text");
        assert!(
            status == 404 && message.ends_with("not found: it was deleted"),
            "{answer}"
        );
        let (status, answer) = server.json("POST", RESPONSES, &asking("1", &before(&second["id"])));
        let error = &answer["error"];
        assert_eq!(
            (status, &error["param"], &error["code"]),
            (
                400,
                &json!("previous_response_id"),
                &json!("previous_response_not_found")
            )
        );
        let message = error["message"].as_str().expect("a text");
        let id = first["id"].as_str().expect("an id");
        assert!(
            message.contains(id) && message.contains("it was deleted"),
            "{message}"
        );
    }
}

#[test]
fn what_is_not_stored_is_not_found_and_a_sentence_says_why() {
    let server = Server::start(&["--response-store", "8K"]);
    let hidden = server.post(RESPONSES, &asking("1", &json!({ "store": false })));
    assert_eq!(hidden["store"], false);
    let why = |server: &Server, id: &Value| {
        let (status, answer) = get(server, &of(id, ""));
        assert_eq!(
            (status, &answer["error"]["code"]),
            (404, &json!("not_found")),
            "{answer}"
        );
        answer["error"]["message"]
            .as_str()
            .expect("a text")
            .to_owned()
    };
    assert!(why(&server, &hidden["id"]).contains("`store: false`"));
    let first = server.post(RESPONSES, &asking("1", &json!({})));
    for _ in 0..8 {
        server.post(RESPONSES, &asking("1", &json!({})));
    }
    assert!(why(&server, &first["id"]).contains("evicted"));
    for path in ["", "/cancel", "/input_items"] {
        let method = if path == "/cancel" { "POST" } else { "GET" };
        let (status, _) = server.json(method, &of(&first["id"], path), &Value::Null);
        assert_eq!(status, 404, "{path}");
    }
    let off = Server::split(&["--response-store", "0"]);
    let first = off.post(RESPONSES, &asking("1", &json!({ "store": true })));
    assert_eq!(first["store"], false);
    assert!(why(&off, &first["id"]).contains("--response-store 0"));
    for (extra, param) in [
        (
            json!({ "previous_response_id": first["id"] }),
            "previous_response_id",
        ),
        (
            json!({ "previous_response_id": { "id": "x", "items": [] } }),
            "previous_response_id",
        ),
        (json!({ "background": true }), "background"),
        (json!({ "background": "resp_x" }), "background"),
        (json!({ "conversation": "conv_x" }), "conversation"),
    ] {
        let (status, answer) = off.json("POST", RESPONSES, &asking("1", &extra));
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(param)),
            "{answer}"
        );
    }
}

#[test]
fn a_background_response_is_made_without_its_client() {
    for server in [Server::start(&[]), Server::split(&[])] {
        let whole = server.post(RESPONSES, &asking("2+2=?", &json!({})));
        let background = json!({ "background": true });
        let queued = server.post(RESPONSES, &asking("2+2=?", &background));
        assert_eq!(
            (&queued["status"], &queued["background"]),
            (&json!("queued"), &json!(true))
        );
        let done = awaited(&server, &queued["id"], "completed");
        assert_eq!(
            (&done["id"], &done["background"]),
            (&queued["id"], &json!(true))
        );
        assert_eq!(done["output"][0]["content"], whole["output"][0]["content"]);
        let next = json!({ "previous_response_id": queued["id"] });
        server.post(RESPONSES, &asking("3+3=?", &next));
        let (status, same) = server.json("POST", &of(&queued["id"], "/cancel"), &Value::Null);
        assert_eq!((status, &same["status"]), (200, &json!("completed")));
        for (method, rest) in [("POST", "/cancel"), ("GET", "?stream=true")] {
            let (status, answer) = server.json(method, &of(&whole["id"], rest), &Value::Null);
            assert_eq!(status, 400, "{answer}");
        }

        // Its events can be read again from any of them.
        let streamed = asking("2+2=?", &json!({ "background": true, "stream": true }));
        let (status, _, all) =
            server.raw("POST", RESPONSES, "application/json", &streamed.to_string());
        assert_eq!(status, 200, "{all}");
        let events: Vec<&str> = all
            .split_inclusive("\n\n")
            .filter(|event| event.starts_with("event"))
            .collect();
        let data = |event: &str| {
            let data = event.lines().find_map(|line| line.strip_prefix("data: "));
            serde_json::from_str::<Value>(data.expect("data")).expect("JSON")
        };
        let last = data(events.last().expect("events"));
        assert_eq!(last["type"], "response.completed");
        let rest = of(&last["response"]["id"], "?stream=true&starting_after=3");
        let (_, _, again) = server.raw("GET", &rest, "application/json", "");
        assert_eq!(again, events[4..].concat());
        assert_eq!(data(events[4])["sequence_number"], 4);

        // One that runs is cancelled, and cannot be continued before.
        let long = json!({ "background": true, "max_output_tokens": 20000, "ignore_eos": true });
        let running = server.post(RESPONSES, &asking("1 2 3 4 5", &long));
        awaited(&server, &running["id"], "in_progress");
        let next = asking("1", &json!({ "previous_response_id": running["id"] }));
        let (status, answer) = server.json("POST", RESPONSES, &next);
        assert_eq!(
            (status, &answer["error"]["code"]),
            (400, &json!("previous_response_in_progress"))
        );
        let cancelled = server.post(&of(&running["id"], "/cancel"), &Value::Null);
        assert_eq!(cancelled["status"], "cancelled");
        let start = Instant::now();
        while get(&server, "/slots")
            .1
            .as_array()
            .is_some_and(|all| all.iter().any(|slot| slot["is_processing"] == true))
        {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "its completion goes on"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(
            get(&server, &of(&running["id"], "")).1["status"],
            "cancelled"
        );

        for (extra, status, param) in [
            (
                json!({ "background": true, "store": false }),
                400,
                "background",
            ),
            (
                json!({ "background": true, "temperature": -9 }),
                400,
                "temperature",
            ),
            (json!({ "background": 1 }), 400, "background"),
        ] {
            let (found, answer) = server.json("POST", RESPONSES, &asking("1", &extra));
            assert_eq!(
                (found, &answer["error"]["param"]),
                (status, &json!(param)),
                "{answer}"
            );
        }
        // What only the model can refuse is in the response.
        let large = "1 ".repeat(200_000);
        let failed = server.post(RESPONSES, &asking(large.as_str(), &background));
        let failed = awaited(&server, &failed["id"], "failed");
        assert_eq!(
            failed["error"]["code"], "context_length_exceeded",
            "{}",
            failed["error"]
        );
    }
}

#[test]
fn a_stored_response_belongs_to_its_key() {
    let server = Server::start(&["--api-key", "one", "--api-key", "two"]);
    let ask = |key: &str, method: &str, path: &str, body: &Value| {
        let kind = format!("application/json\r\napi-key: {key}");
        let (status, _, body) = server.raw(method, path, &kind, &body.to_string());
        (status, serde_json::from_str::<Value>(&body).expect("JSON"))
    };
    let body = asking("2+2=?", &json!({}));
    let (status, first) = ask("one", "POST", RESPONSES, &body);
    assert_eq!(status, 200, "{first}");
    let next = asking("1", &json!({ "previous_response_id": first["id"] }));
    for (key, found, continued) in [("two", 404, 400), ("one", 200, 200)] {
        assert_eq!(
            ask(key, "GET", &of(&first["id"], ""), &Value::Null).0,
            found
        );
        assert_eq!(
            ask(key, "GET", &of(&first["id"], "/input_items"), &Value::Null).0,
            found
        );
        assert_eq!(ask(key, "POST", RESPONSES, &next).0, continued);
        assert_eq!(
            ask(key, "DELETE", &of(&first["id"], ""), &Value::Null).0,
            found
        );
    }
}
