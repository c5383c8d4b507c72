//! `/v1/audio/transcriptions` and `/v1/audio/translations`: transcripts of a small model against the rules of another program, their shapes,
//! streams, and what is refused. `scripts/make_transcripts.py` makes the model and what is expected.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::command::text;
use crate::support::server::Server;

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const TRANSLATIONS: &str = "/v1/audio/translations";
const BOUNDARY: &str = "----a-boundary";

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/media/transcripts")
}

fn expected() -> Value {
    let file = std::fs::read(model().join("expected.json")).expect("it is readable");
    serde_json::from_slice(&file).expect("JSON")
}

/// A WAV file of the sound that the reference has heard: a chirp of triangles whose loudness changes.
fn sound(n: i64) -> Vec<u8> {
    let sample =
        |i: i64| (((i * i / 4000 + 37 * i) % 256 - 128).abs() - 64) * 60 * (i / 4000 % 5 + 1);
    let data: Vec<u8> = (0..n)
        .flat_map(|i| (sample(i) as i16).to_le_bytes())
        .collect();
    wav(&data)
}

/// A WAV file of 16 bits at 16 kHz.
fn wav(data: &[u8]) -> Vec<u8> {
    let mut file = b"RIFF".to_vec();
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend(16_000u32.to_le_bytes());
    file.extend(32_000u32.to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}

/// A form with a file and fields.
fn form(file: &[u8], fields: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        let part = format!(
            "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        );
        body.extend(part.as_bytes());
    }
    let part = format!(
        "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n"
    );
    body.extend(part.as_bytes());
    body.extend(file);
    body.extend(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    body
}

/// Status, head and body of the answer to a form.
fn raw(server: &Server, path: &str, body: &[u8]) -> (u16, String, String) {
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    server.raw("POST", path, &kind, body)
}

fn text_of(server: &Server, path: &str, file: &[u8], fields: &[(&str, &str)]) -> String {
    let (status, head, body) = raw(server, path, &form(file, fields));
    assert_eq!(status, 200, "{fields:?}: {body}");
    assert!(head.contains("content-type: text/plain"), "{head}");
    body
}

fn json_of(server: &Server, path: &str, file: &[u8], fields: &[(&str, &str)]) -> Value {
    let (status, _, body) = raw(server, path, &form(file, fields));
    assert_eq!(status, 200, "{fields:?}: {body}");
    serde_json::from_str(&body).expect("JSON")
}

fn started(extra: &[&str]) -> Server {
    let model = model();
    Server::start(&[&["-m", text(&model)], extra].concat())
}

/// A case of the reference: its sound, its path and its fields.
fn case(name: &str, of: &Value) -> (Vec<u8>, &'static str, Vec<(&'static str, &'static str)>) {
    let file = sound(of["samples"].as_i64().expect("a number"));
    let (path, fields) = match name {
        "prompted" => (TRANSCRIPTIONS, vec![("prompt", "the sea")]),
        "translated" => (TRANSLATIONS, vec![("language", "de")]),
        _ => (TRANSCRIPTIONS, Vec::new()),
    };
    (file, path, fields)
}

fn near(found: &Value, expected: &Value, most: f64) -> bool {
    match (found.as_f64(), expected.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= most,
        _ => false,
    }
}

#[test]
fn transcripts_follow_the_rules_of_the_reference() {
    let expected = expected();
    let server = started(&["--exact"]);
    let mut n_segments = 0;
    for (name, of) in expected.as_object().expect("an object") {
        let (file, path, mut fields) = case(name, of);
        fields.extend([
            ("response_format", "verbose_json"),
            ("timestamp_granularities[]", "segment"),
        ]);
        let found = json_of(&server, path, &file, &fields);
        let is_translated = path == TRANSLATIONS;
        assert_eq!(
            found["task"],
            if is_translated {
                "translate"
            } else {
                "transcribe"
            }
        );
        let language = if is_translated {
            &json!("english")
        } else {
            &of["language"]
        };
        assert_eq!(&found["language"], language, "{name}");
        let seconds = json!(of["samples"].as_f64().expect("a number") / 16e3);
        assert!(near(&found["duration"], &seconds, 1e-9), "{name}: {found}");
        let (own, theirs) = (&found["segments"], &of["segments"]);
        let (own, theirs) = (
            own.as_array().expect("a list"),
            theirs.as_array().expect("a list"),
        );
        assert_eq!(own.len(), theirs.len(), "{name}: {found}\n{of}");
        for (at, (own, theirs)) in own.iter().zip(theirs).enumerate() {
            assert_eq!(own["id"], at);
            for field in ["seek", "text", "tokens"] {
                assert_eq!(own[field], theirs[field], "{name} {at} {field}");
            }
            for field in ["start", "end"] {
                assert!(
                    near(&own[field], &theirs[field], 1e-3),
                    "{name} {at}: {own} {theirs}"
                );
            }
            assert!(near(&own["temperature"], &json!(0.0), 0.0), "{own}");
            let windows = of["windows"].as_array().expect("a list");
            let window = windows.iter().find(|window| window["seek"] == own["seek"]);
            let window = window.expect("a window");
            for field in ["avg_logprob", "no_speech_prob", "compression_ratio"] {
                assert!(
                    near(&own[field], &window[field], 2e-3),
                    "{name} {at}: {own} {window}"
                );
            }
            n_segments += 1;
        }
    }
    assert!(n_segments > 8, "{n_segments}");
}

#[test]
fn the_shapes_of_a_transcript_have_the_same_text() {
    let expected = expected();
    let (file, path, _) = case("long", &expected["long"]);
    let server = started(&["--exact"]);
    let segments = expected["long"]["segments"].as_array().expect("a list");
    let parts: Vec<&str> = segments
        .iter()
        .filter_map(|segment| segment["text"].as_str())
        .collect();
    let whole = parts.concat().trim().to_owned();
    let answer = json_of(&server, path, &file, &[("model", "transcripts")]);
    assert_eq!(answer["text"], whole.as_str());
    let usage = &answer["usage"];
    let n_windows = expected["long"]["windows"].as_array().map_or(0, Vec::len);
    assert_eq!(usage["type"], "tokens");
    assert_eq!(
        usage["input_token_details"]["audio_tokens"],
        100 * n_windows
    );
    let sum = ["input_tokens", "output_tokens"].map(|name| usage[name].as_u64().expect("a number"));
    assert_eq!(usage["total_tokens"], sum[0] + sum[1]);
    assert_eq!(
        text_of(&server, path, &file, &[("response_format", "text")]),
        format!("{whole}\n")
    );
    let srt = text_of(&server, path, &file, &[("response_format", "srt")]);
    let vtt = text_of(&server, path, &file, &[("response_format", "vtt")]);
    assert!(
        srt.starts_with("1\n00:00:0") && vtt.starts_with("WEBVTT\n\n00:00:0"),
        "{srt}\n{vtt}"
    );
    assert_eq!(srt.matches(" --> ").count(), segments.len());
    assert_eq!(vtt.matches(" --> ").count(), segments.len());
    for part in &parts {
        assert!(
            srt.contains(part.trim()) && vtt.contains(part.trim()),
            "{part}"
        );
    }
    // A stream of the same.
    let (status, head, body) = raw(&server, path, &form(&file, &[("stream", "true")]));
    assert!(
        status == 200 && head.contains("content-type: text/event-stream"),
        "{head}"
    );
    let events: Vec<Value> = body
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "))
        .map(|event| serde_json::from_str(event).expect("JSON"))
        .collect();
    let (last, deltas) = events.split_last().expect("events");
    assert!(
        deltas.len() > 2,
        "one for each window with a text: {deltas:?}"
    );
    assert!(
        deltas
            .iter()
            .all(|event| event["type"] == "transcript.text.delta")
    );
    let joined: String = deltas
        .iter()
        .filter_map(|event| event["delta"].as_str())
        .collect();
    assert_eq!(joined.trim(), whole);
    assert_eq!(last["type"], "transcript.text.done");
    assert_eq!((&last["text"], &last["usage"]), (&answer["text"], usage));
}

#[test]
fn a_temperature_is_kept_and_a_seed_repeats_a_transcript() {
    let server = started(&[]);
    let file = sound(20_000);
    let of = |seed: &str| {
        let fields = [
            ("temperature", "1"),
            ("seed", seed),
            ("response_format", "verbose_json"),
        ];
        json_of(&server, TRANSCRIPTIONS, &file, &fields)
    };
    let first = of("1");
    assert_eq!(first, of("1"));
    let others = ["2", "3", "4", "5"].map(of);
    assert!(
        others.iter().any(|other| other["text"] != first["text"]),
        "{first}"
    );
    for segment in first["segments"].as_array().expect("a list") {
        assert!(near(&segment["temperature"], &json!(1.0), 0.0), "{segment}");
    }
}

#[test]
fn a_language_is_taken_by_code_and_by_name() {
    let server = started(&[]);
    let file = sound(20_000);
    for (given, name) in [
        ("de", "german"),
        ("English", "english"),
        ("en-GB", "english"),
    ] {
        let fields = [("language", given), ("response_format", "verbose_json")];
        assert_eq!(
            json_of(&server, TRANSCRIPTIONS, &file, &fields)["language"],
            name,
            "{given}"
        );
    }
}

#[test]
fn what_is_no_request_for_a_transcript_is_refused() {
    let server = started(&[]);
    let file = sound(20_000);
    type Case<'a> = (&'a [u8], &'a [(&'a str, &'a str)], &'a str, &'a str);
    let cases: [Case<'_>; 15] = [
        (
            &file,
            &[("response_format", "xml")],
            "response_format",
            "`json`, `text`",
        ),
        (&file, &[("language", "xx")], "language", "en, de"),
        (&file, &[("temperature", "1.5")], "temperature", "0 to 1"),
        (&file, &[("temperature", "hot")], "temperature", "a number"),
        (&file, &[("stream", "maybe")], "stream", "true or false"),
        (
            &file,
            &[("stream", "true"), ("response_format", "srt")],
            "response_format",
            "`json` where",
        ),
        (
            &file,
            &[
                ("timestamp_granularities[]", "word"),
                ("response_format", "verbose_json"),
            ],
            "timestamp_granularities",
            "words",
        ),
        (
            &file,
            &[
                ("timestamp_granularities[]", "hour"),
                ("response_format", "verbose_json"),
            ],
            "timestamp_granularities",
            "`segment`",
        ),
        (
            &file,
            &[("timestamp_granularities[]", "segment")],
            "timestamp_granularities",
            "verbose_json",
        ),
        (
            &file,
            &[("include[]", "logprobs")],
            "include",
            "not supported",
        ),
        (&file, &[("file", "")], "", ""),
        (b"", &[], "file", "empty"),
        (b"no sound at all", &[], "file", "no sound that can be read"),
        (&wav(&[]), &[], "file", "sound"),
        (&file[..40], &[], "file", "sound"),
    ];
    for (file, fields, param, message) in cases {
        let (status, _, body) = raw(&server, TRANSCRIPTIONS, &form(file, fields));
        if param.is_empty() {
            // The last file counts.
            assert_eq!(status, 200, "{body}");
            continue;
        }
        let error: Value = serde_json::from_str(&body).expect("JSON");
        let error = &error["error"];
        assert_eq!(
            (status, error["param"].as_str()),
            (400, Some(param)),
            "{fields:?}: {body}"
        );
        let found = error["message"].as_str().unwrap_or_default();
        assert!(found.contains(message), "{fields:?}: {found}");
    }
    // No form, and a form without its end.
    let (status, answer) = server.json("POST", TRANSCRIPTIONS, &json!({ "model": "default" }));
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(
        status == 400 && message.contains("multipart/form-data"),
        "{answer}"
    );
    let whole = form(&file, &[]);
    for end in [0, 20, whole.len() / 2] {
        let (status, _, body) = raw(&server, TRANSCRIPTIONS, &whole[..end]);
        assert_eq!(status, 400, "{body}");
    }
    // A text model hears nothing, and this one reads no text.
    let of_text = Server::shared();
    let (status, _, body) = raw(&of_text, TRANSCRIPTIONS, &whole);
    assert!(status == 400 && body.contains("takes no sounds"), "{body}");
    let body = json!({ "model": "default", "prompt": "a", "max_tokens": 1 });
    let (status, answer) = server.json("POST", "/v1/completions", &body);
    assert_eq!(status, 400, "{answer}");
}

#[test]
fn transcripts_at_once_are_those_of_each_alone() {
    let sounds: Vec<Vec<u8>> = [20_000, 31_000, 60_000, 116_800].map(sound).into();
    let of =
        |server: &Server, file: &[u8]| json_of(server, TRANSCRIPTIONS, file, &[])["text"].clone();
    let alone = started(&["--parallel", "1", "--exact"]);
    let expected: Vec<Value> = sounds.iter().map(|file| of(&alone, file)).collect();
    // The second time all is known.
    let again: Vec<Value> = sounds.iter().map(|file| of(&alone, file)).collect();
    assert_eq!(expected, again);
    // The smallest cache holds one of them at a time.
    for cache in [
        &["--parallel", "4"][..],
        &["--parallel", "4", "--cache", "48k"],
    ] {
        let server = Arc::new(started(&[cache, &["--exact"]].concat()));
        let threads: Vec<_> = sounds
            .iter()
            .cloned()
            .map(|file| {
                let server = Arc::clone(&server);
                std::thread::spawn(move || {
                    json_of(&server, TRANSCRIPTIONS, &file, &[])["text"].clone()
                })
            })
            .collect();
        let found = threads
            .into_iter()
            .map(|thread| thread.join().expect("an answer"));
        assert_eq!(found.collect::<Vec<_>>(), expected, "{cache:?}");
    }
}

#[test]
fn a_form_finds_the_engine_process_of_its_model() {
    let model = model();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-chat.gguf");
    let folder = crate::support::command::scratch();
    std::fs::copy(&tiny, folder.path().join("tiny.gguf")).expect("copied");
    let own = folder.path().join("heard");
    std::fs::create_dir(&own).expect("a folder");
    for file in std::fs::read_dir(&model).expect("readable") {
        let file = file.expect("readable").path();
        std::fs::copy(&file, own.join(file.file_name().expect("a name"))).expect("copied");
    }
    let server = Server::split(&["--models", text(folder.path())]);
    let file = sound(20_000);
    // Refused before a model is loaded.
    let (status, _, _) = raw(
        &server,
        TRANSCRIPTIONS,
        &form(&file, &[("model", "heard"), ("temperature", "9")]),
    );
    assert_eq!(status, 400);
    let (_, state) = server.json("GET", "/v1/models/heard", &Value::Null);
    assert_eq!(state["state"], "not loaded");
    let answer = json_of(&server, TRANSCRIPTIONS, &file, &[("model", "heard")]);
    assert!(answer["text"].is_string(), "{answer}");
    let (status, _, body) = raw(&server, TRANSCRIPTIONS, &form(&file, &[("model", "tiny")]));
    assert!(status == 400 && body.contains("takes no sounds"), "{body}");
    let (status, _, body) = raw(
        &server,
        TRANSCRIPTIONS,
        &form(&file, &[("model", "neither")]),
    );
    assert_eq!(status, 404, "{body}");
    let (_, head, body) = raw(
        &server,
        TRANSCRIPTIONS,
        &form(&file, &[("model", "heard"), ("stream", "true")]),
    );
    assert!(
        head.contains("text/event-stream") && body.contains("transcript.text.done"),
        "{body}"
    );
}
