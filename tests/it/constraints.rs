//! Constrained answers of the program and the server, with the built-in model.

use serde_json::{Value, json};

use crate::support::command::{Ran, bench, scratch, text};
use crate::support::server::Server;

fn run(arguments: &[&str]) -> Ran {
    bench(&[&["run", "2+2=?"], arguments].concat())
}

fn answer(ran: &Ran) -> &str {
    assert!(ran.is_fine(), "{}", ran.err);
    ran.out.strip_suffix('\n').expect("a line")
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 6 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "tags": { "type": "array", "items": { "enum": ["red", "green"] }, "maxItems": 2 },
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    })
}

/// Whether a text is JSON of [`person`].
fn check_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let fields = value.as_object().expect("an object");
    assert_eq!(fields.len(), 3, "{text}");
    let name = fields["name"].as_str().expect("a text");
    assert!(name.chars().count() <= 6, "{text}");
    assert!(fields["age"].as_u64().expect("a number") <= 150, "{text}");
    let tags = fields["tags"].as_array().expect("an array");
    assert!(tags.len() <= 2 && tags.iter().all(|t| t == "red" || t == "green"));
}

#[test]
fn run_obeys_its_constraint_options() {
    let folder = scratch();
    let write = |name: &str, contents: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, contents).expect("written");
        text(&path).to_owned()
    };
    let schema = write("person.json", &person().to_string());
    for seed in ["1", "2", "3"] {
        let hot = [
            "--temperature",
            "2",
            "--seed",
            seed,
            "--json-schema",
            &schema,
        ];
        check_person(answer(&run(&hot)));
    }
    let stateless = ["--stateless", "--ctx", "256", "--json-schema", &schema];
    check_person(answer(&run(&stateless)));

    let digits = run(&["--temperature", "2", "--regex", "^[0-9]{3}-(foo|bar)$"]);
    let digits = answer(&digits);
    assert!(digits.len() == 7 && (digits.ends_with("-foo") || digits.ends_with("-bar")));

    let gbnf = "root ::= \"(\" root \")\" | [0-9]{2}\n";
    let lark = "start: \"(\" start \")\" | /[0-9]{2}/\n";
    for path in [
        write("a.gbnf", gbnf),
        write("b.lark", lark),
        write("c.txt", gbnf),
        write("d.txt", lark),
    ] {
        let output = run(&["--grammar", &path]);
        let inner = answer(&output).trim_start_matches('(');
        let depth = answer(&output).len() - inner.len();
        assert_eq!(inner[2..], ")".repeat(depth), "{path}");
        assert!(inner[..2].parse::<u32>().is_ok(), "{path}: {inner}");
    }

    let refused = |arguments: &[&str], code: i32, part: &str| {
        let output = run(arguments);
        let message = output.err;
        assert_eq!(output.code, code, "{message}");
        assert!(message.contains(part), "{message}");
    };
    refused(&["--regex", "("], 1, "regular expression: ");
    refused(
        &["--regex", "a", "--json-schema", &schema],
        2,
        "cannot be used with",
    );
    refused(&["--json-schema", "/no/such/file"], 1, "/no/such/file: ");
    let bad = write("bad.gbnf", "root ::= \"a\"\n  [b");
    refused(&["--grammar", &bad], 1, "grammar, line 2, column 3: ");
}

fn content(answer: &Value, choice: usize) -> &str {
    let content = &answer["choices"][choice]["message"]["content"];
    content.as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn constraints_of_every_kind_shape_the_answer() {
    let server = Server::start(&[]);
    let format = json!({ "type": "json_schema",
        "json_schema": { "name": "person", "strict": true, "schema": person() } });
    let request = json!({ "response_format": format, "temperature": 2, "seed": 5, "n": 3 });
    let (status, answer) = server.chat(request.clone());
    assert_eq!(status, 200, "{answer}");
    for i in 0..3 {
        check_person(content(&answer, i));
        assert_eq!(answer["choices"][i]["finish_reason"], "stop");
    }

    // A prompt is scored before what the grammar forces ends the completion.
    let scored = json!({
        "prompt": "2+2=", "echo": true, "logprobs": 1, "max_tokens": 0, "response_format": { "type": "json_object" },
    });
    let scored = server.post("/v1/completions", &scored);
    let choice = &scored["choices"][0];
    assert_eq!(choice["text"], "2+2=", "{scored}");
    let tokens = choice["logprobs"]["tokens"].as_array().expect("tokens");
    assert_eq!(
        tokens.len() as u64,
        scored["usage"]["prompt_tokens"].as_u64().expect("a count")
    );

    // Texts with any signs are choices.
    let choices = json!({ "guided_choice": ["<yes>", "a/b \\ c"], "temperature": 2, "seed": 1 });
    let (status, chosen) = server.chat(choices);
    assert_eq!(status, 200, "{chosen}");
    assert!(
        ["<yes>", "a/b \\ c"].contains(&content(&chosen, 0)),
        "{chosen}"
    );

    // With log-probabilities, forced tokens wait for their rows: the answer is the same.
    let mut with = request.clone();
    with["logprobs"] = json!(true);
    with["top_logprobs"] = json!(2);
    let (_, told) = server.chat(with);
    for i in 0..3 {
        assert_eq!(content(&told, i), content(&answer, i));
        let entries = told["choices"][i]["logprobs"]["content"]
            .as_array()
            .expect("entries");
        let bytes = entries
            .iter()
            .flat_map(|e| e["bytes"].as_array().expect("bytes"));
        let bytes: Vec<u8> = bytes.map(|b| b.as_u64().expect("a byte") as u8).collect();
        assert_eq!(bytes, content(&told, i).as_bytes());
    }
    for key in ["prompt_tokens", "completion_tokens"] {
        assert_eq!(told["usage"][key], answer["usage"][key]);
    }

    let streamed = server.stream(request);
    let mut text = String::new();
    for event in streamed.iter().filter(|event| *event != "[DONE]") {
        let event: Value = serde_json::from_str(event).expect("JSON");
        let choice = &event["choices"][0];
        if choice["index"] == 0 {
            text += choice["delta"]["content"].as_str().unwrap_or_default();
        }
    }
    assert_eq!(text, content(&answer, 0));

    for (extra, expected) in [
        (
            json!({ "grammar": "root ::= \"yes\" | \"yes\" root" }),
            "yes",
        ),
        (json!({ "grammar": "start: \"yes\"" }), "yes"),
        (json!({ "json_schema": { "const": 7 } }), "7"),
        (json!({ "guided_json": "{\"const\": 7}" }), "7"),
        (json!({ "guided_regex": "a{4}" }), "aaaa"),
        (json!({ "structured_outputs": { "regex": "a{4}" } }), "aaaa"),
        (
            json!({ "structured_outputs": { "grammar": "root ::= [b]" } }),
            "b",
        ),
        (
            json!({ "response_format": { "type": "json_object", "schema": { "const": 7 } } }),
            "7",
        ),
    ] {
        let (_, answer) = server.chat(extra);
        assert!(content(&answer, 0).starts_with(expected), "{answer}");
    }
    let format = json!({ "response_format": { "type": "json_object" }, "max_tokens": 300 });
    let (_, answer) = server.chat(format);
    if answer["choices"][0]["finish_reason"] == "stop" {
        let value: Value = serde_json::from_str(content(&answer, 0)).expect("JSON");
        assert!(value.is_object());
    }
    assert!(content(&answer, 0).starts_with('{'), "{answer}");
    let (_, answer) = server.chat(json!({ "response_format": { "type": "text" } }));
    assert!(content(&answer, 0).contains('4'));
}

#[test]
fn forced_tokens_have_the_models_probabilities_and_keep_the_limits() {
    let server = Server::start(&[]);
    let plain = json!({ "logprobs": true, "top_logprobs": 1 });
    let (_, free) = server.chat(plain.clone());
    let text = content(&free, 0).to_owned();
    let mut forced = plain;
    forced["json_schema"] = Value::Null;
    let escaped: String = text
        .chars()
        .map(|c| format!("\\x{{{:x}}}", u32::from(c)))
        .collect();
    forced["guided_regex"] = json!(escaped);
    let (_, told) = server.chat(forced.clone());
    assert_eq!(content(&told, 0), text, "{told}");
    let entries = |answer: &Value| {
        let entries = answer["choices"][0]["logprobs"]["content"].clone();
        entries.as_array().expect("entries").clone()
    };
    // The same tokens in one pass and in several differ by what a half-precision cache rounds.
    let (free_entries, told_entries) = (entries(&free), entries(&told));
    assert!(told_entries.len() >= 2);
    for (a, b) in free_entries.iter().zip(&told_entries) {
        assert_eq!(
            a["id"], b["id"],
            "the greedy answer is spelled as the tokenizer spells it"
        );
        let difference = a["logprob"].as_f64().unwrap() - b["logprob"].as_f64().unwrap();
        assert!(difference.abs() < 0.02, "{a} {b}");
    }

    for logprobs in [false, true] {
        let long =
            json!({ "guided_regex": "x{40} stop y{40}", "max_tokens": 3, "logprobs": logprobs });
        let (_, answer) = server.chat(long.clone());
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
        assert_eq!(answer["usage"]["completion_tokens"], 3);
        let mut stopped = long;
        stopped["max_tokens"] = json!(200);
        stopped["stop"] = json!(" stop");
        let (_, answer) = server.chat(stopped);
        assert_eq!(content(&answer, 0), "x".repeat(40));
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn invalid_constraints_are_refused_with_field_and_position() {
    let server = Server::start(&[]);
    let schema = |schema: Value| {
        json!({ "response_format": { "type": "json_schema",
            "json_schema": { "name": "x", "schema": schema } } })
    };
    let whole = "response_format.json_schema.schema";
    for (extra, param) in [
        (schema(json!({ "type": "strnig" })), whole),
        (
            schema(json!({ "properties": { "a": { "not": {} } } })),
            whole,
        ),
        (schema(json!(3)), whole),
        (schema(Value::Null), whole),
        (
            json!({ "response_format": { "type": "json_schema" } }),
            "response_format.json_schema",
        ),
        (
            json!({ "response_format": { "type": "xml" } }),
            "response_format.type",
        ),
        (json!({ "response_format": {} }), "response_format.type"),
        (json!({ "response_format": "json" }), "response_format"),
        (json!({ "grammar": "root ::= [a" }), "grammar"),
        (json!({ "grammar": "a".repeat(300_000) }), "grammar"),
        (json!({ "guided_regex": "(" }), "guided_regex"),
        (json!({ "guided_json": "{" }), "guided_json"),
        (
            json!({ "guided_regex": "a", "grammar": "root ::= \"a\"" }),
            "guided_regex",
        ),
    ] {
        server.refused(extra, 400, "invalid_value", param);
    }
    for (extra, param) in [
        (json!({ "grammar": 3 }), "grammar"),
        (json!({ "guided_regex": ["a"] }), "guided_regex"),
        (
            json!({ "structured_outputs": { "regex": 3 } }),
            "structured_outputs.regex",
        ),
    ] {
        server.refused(extra, 400, "invalid_type", param);
    }
    let strict = Server::start(&["--strict-fields"]);
    let unknown = json!({ "response_format": { "type": "text", "schema": {} } });
    strict.refused(unknown, 400, "unknown_parameter", "response_format.schema");
    let (_, body) = server.chat(schema(json!({ "properties": { "a": { "not": {} } } })));
    let message = body["error"]["message"].as_str().expect("a message");
    assert!(message.contains("schema/properties/a/not"), "{message}");
    let (_, body) = server.chat(json!({ "grammar": "root ::= x\nx ::= [a" }));
    let message = body["error"]["message"].as_str().expect("a message");
    assert!(message.contains("line 2, column 7"), "{message}");
    let (status, _) = server.chat(json!({}));
    assert_eq!(status, 200, "the server lives");
}

#[test]
fn a_banned_token_is_not_written_whatever_a_constraint_forces() {
    let server = Server::start(&[]);
    let tokens = |text: &str| {
        let body = json!({ "content": text });
        let (_, found) = server.json("POST", "/tokenize", &body);
        let found: Vec<u64> = serde_json::from_value(found["tokens"].clone()).expect("ids");
        found
    };
    // Words of which the vocabulary has more than the letters.
    let word = "the the the";
    let ask = |bans: &[u64]| {
        let bias: serde_json::Map<_, _> = bans
            .iter()
            .map(|id| (id.to_string(), json!(-100)))
            .collect();
        let body =
            json!({ "guided_regex": word, "temperature": 0, "logit_bias": bias, "max_tokens": 40 });
        let mut body = body;
        body["logprobs"] = json!(true);
        body["return_tokens_as_token_ids"] = json!(true);
        server.chat(body)
    };
    let written = |answer: &Value| -> Vec<u64> {
        let entries = answer["choices"][0]["logprobs"]["content"].as_array();
        let ids = entries.expect("entries").iter().map(|entry| {
            let id = entry["token"]
                .as_str()
                .and_then(|t| t.strip_prefix("token_id:"));
            id.and_then(|id| id.parse().ok()).expect("an id")
        });
        ids.collect()
    };
    let mut bans = Vec::new();
    let mut n_split = 0;
    // Each time the tokens of the last answer are banned, until nothing is left to write.
    loop {
        let (status, answer) = ask(&bans);
        if status != 200 {
            assert_eq!(status, 400, "{answer}");
            let message = answer["error"]["message"].as_str().expect("a message");
            assert!(
                message.contains("`logit_bias`, the constraint"),
                "{message}"
            );
            break;
        }
        assert_eq!(content(&answer, 0), word);
        let found = written(&answer);
        assert!(
            found.iter().all(|id| !bans.contains(id)),
            "{found:?} {bans:?}"
        );
        bans.push(found[0]);
        n_split += 1;
    }
    assert!(n_split > 1, "there is another way to write it");
    assert!(bans.iter().any(|id| tokens("t").contains(id)), "{bans:?}");
}

#[test]
fn a_constraint_that_becomes_too_complex_is_a_fault_of_the_request() {
    let server = Server::start(&[]);
    // Counts within counts: the states grow with the text.
    let regex = r"(((((a|\P{Lu})|((?i:é)|\s)|(\w)*|\s\P{Lu}|(\p{L}|[^x])|(a|.)|(\s|\w)|.aa)){1,1000})*){0,1000}";
    let mut n_refused = 0;
    for seed in 0..20 {
        let body =
            json!({ "guided_regex": regex, "temperature": 1, "seed": seed, "max_tokens": 150 });
        let (status, answer) = server.chat(body);
        if status != 200 {
            assert_eq!(status, 400, "{answer}");
            let message = answer["error"]["message"].as_str().expect("a message");
            assert!(
                message.starts_with("the constraint is too complex"),
                "{message}"
            );
            n_refused += 1;
        }
    }
    assert!(n_refused < 20);
    // As many optional properties as an object may have.
    let each = (0..1000).map(|i| (format!("k{i}"), json!({ "type": "integer", "maximum": 9 })));
    let each: serde_json::Map<_, _> = each.collect();
    let schema = json!({ "type": "object", "properties": each });
    let (status, answer) = server.chat(json!({ "guided_json": schema, "max_tokens": 30 }));
    assert_eq!(status, 200, "{answer}");
    assert!(content(&answer, 0).starts_with('{'), "{answer}");
}

#[test]
fn integers_keep_their_digits_from_a_request_to_the_answer() {
    let server = Server::start(&[]);
    for body in [
        r#"{ "guided_json": { "const": 123456789012345678 } }"#,
        r#"{ "json_schema": "{\"enum\": [123456789012345678]}" }"#,
        r#"{ "structured_outputs": { "json": { "type": "integer", "minimum": 123456789012345678, "maximum": 123456789012345678 } } }"#,
    ] {
        let body: Value = serde_json::from_str(body).expect("JSON");
        let (_, answer) = server.chat(body);
        assert_eq!(content(&answer, 0), "123456789012345678", "{answer}");
    }
    let schema: Value =
        serde_json::from_str(r#"{ "const": 1234567890123456789012 }"#).expect("JSON");
    server.refused(
        json!({ "guided_json": schema }),
        400,
        "invalid_value",
        "guided_json",
    );
}
