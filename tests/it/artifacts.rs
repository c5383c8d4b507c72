//! Values that are kept as files: by a server until their time is over, and by `bench lab run`.

use std::io::Read;
use std::path::Path;

use lab_base::weights::safetensors::Checkpoint;
use serde_json::{Map, Value, json};

use crate::support::command::{check_refused, printed, scratch, text};
use crate::support::server::{Server, with};

/// The body of an answer as it came.
fn bytes(server: &Server, path: &str) -> (String, Vec<u8>) {
    let mut answer = Vec::new();
    let mut stream = server.send("GET", path, "application/json", "");
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n");
    let body = answer.split_off(end.expect("a head") + 4);
    (String::from_utf8(answer).expect("a head"), body)
}

/// The numbers of an array of a file of arrays.
fn array(path: &Path, name: &str) -> (Vec<u64>, Vec<f32>) {
    let checkpoint = Checkpoint::open(path).expect("a sound file");
    let stored = checkpoint.get(name).unwrap_or_else(|| panic!("{name}"));
    let bytes = std::fs::read(path).expect("a file");
    let bytes = &bytes[stored.offset..stored.offset + stored.bytes];
    let numbers = bytes.as_chunks::<4>().0.iter();
    let numbers = numbers.map(|b| f32::from_le_bytes(*b)).collect();
    (stored.shape.clone(), numbers)
}

/// The texts of a file of arrays.
fn metadata(path: &Path) -> Map<String, Value> {
    let bytes = std::fs::read(path).expect("a file");
    let (length, rest) = bytes.split_first_chunk().expect("a length");
    let head = &rest[..u64::from_le_bytes(*length) as usize];
    let head: Value = serde_json::from_slice(head).expect("a head");
    head["__metadata__"].as_object().expect("texts").clone()
}

fn numbers(captured: &Value) -> Vec<f32> {
    let data = captured["data"].as_array().expect("numbers").iter();
    data.map(|v| v.as_f64().expect("a number") as f32).collect()
}

const PROMPT: &str = "The sea is wide and";

fn plan() -> Value {
    json!({
        "captures": [
            { "point": "layers.*.out", "positions": "all" },
            { "point": "layers.1.out", "positions": "all", "reduce": "top_k", "k": 2 },
        ],
        "encoding": "numbers",
    })
}

fn run(server: &Server, extra: &Value) -> Value {
    let body = json!({ "prompt": PROMPT, "lab": with(plan(), extra) });
    let answer = server.post("/v1/lab/run", &body);
    with(
        answer["results"][0]["lab"].clone(),
        &json!({ "read": answer["tokens"] }),
    )
}

#[test]
fn values_become_a_file_that_outlives_its_engine_process_until_it_is_removed() {
    let folder = scratch();
    let server = Server::split(&["--lab-inline", "1M"]);
    let inline = run(&server, &json!({}));
    assert_eq!(inline.get("artifact"), None);
    let kept = run(&server, &json!({ "output": "artifact" }));
    let artifact = &kept["artifact"];
    let url = artifact["url"].as_str().expect("a URL");
    server.post("/models/unload", &json!({ "model": "default" }));
    let list = server.json("GET", "/v1/lab/artifacts", &Value::Null).1;
    assert_eq!(&list["data"], &json!([artifact]));
    let (head, body) = bytes(&server, url);
    assert_eq!(artifact["bytes"], json!(body.len()), "{head}");
    let path = folder.path().join("a.safetensors");
    std::fs::write(&path, &body).expect("written");
    let captures = inline["captures"].as_array().expect("captures");
    let named = kept["captures"].as_array().expect("captures");
    assert_eq!(captures.len(), named.len());
    for (own, named) in captures.iter().zip(named) {
        assert_eq!(named.get("data"), None);
        let (shape, found) = array(&path, named["tensor"].as_str().expect("a name"));
        assert_eq!((json!(shape), found), (own["shape"].clone(), numbers(own)));
    }
    // Two values of one point have names of their own.
    let last = &named[named.len() - 1];
    assert_eq!(last["tensor"], "layers.1.out#2");
    let places = last["indices_tensor"].as_str().expect("a name");
    let (_, found) = array(&path, places);
    let found: Vec<u32> = found.iter().map(|f| f.to_bits()).collect();
    assert_eq!(json!(found), captures[captures.len() - 1]["indices"]);
    let texts = metadata(&path);
    assert_eq!(texts["tokens"], json!(kept["read"].to_string()));
    let plan: Value = serde_json::from_str(texts["plan"].as_str().expect("a text")).expect("JSON");
    assert_eq!(plan["output"], "artifact");
    assert!(texts["types"].as_str().is_some_and(|t| t.contains("f32 ")));
    for hash in ["model_sha256", "definition_sha256"] {
        assert_eq!(texts[hash].as_str().map(str::len), Some(64), "{hash}");
    }
    let (status, answer) = server.json("DELETE", url, &Value::Null);
    assert_eq!((status, &answer["deleted"]), (200, &json!(true)));
    for method in ["GET", "DELETE"] {
        let (status, answer) = server.json(method, url, &Value::Null);
        assert_eq!(
            (status, &answer["error"]["code"]),
            (404, &json!("not_found"))
        );
    }
    assert_eq!(
        server
            .json("GET", "/v1/lab/artifacts/%2e%2e%2f", &Value::Null)
            .0,
        404
    );
}

#[test]
fn large_values_become_a_file_by_themselves_and_old_files_go() {
    let options = [
        "--lab-inline",
        "1000",
        "--lab-bytes",
        "40K",
        "--lab-artifacts",
        "60K",
    ];
    let server = Server::start(&options);
    let complete = |lab: &Value| {
        let body = json!({ "prompt": PROMPT, "max_tokens": 1, "lab": lab });
        server.post("/v1/completions", &body)["choices"][0]["lab"].clone()
    };
    let capture = json!({ "captures": [{ "point": "layers.1.out", "positions": "prompt" }] });
    let large = complete(&capture);
    assert!(large["artifact"]["id"].is_string(), "{large}");
    let forced = complete(&with(capture.clone(), &json!({ "output": "inline" })));
    assert!(forced["captures"][0]["data"].is_string() && forced.get("artifact").is_none());
    let small = json!({ "captures": [{ "point": "layers.1.out" }] });
    assert_eq!(complete(&small).get("artifact"), None);
    for _ in 0..20 {
        let answer = complete(&with(plan(), &json!({ "format": "npz" })));
        assert_eq!(answer["artifact"]["format"], "npz", "{answer}");
    }
    let list = server.json("GET", "/v1/lab/artifacts", &Value::Null).1;
    let list = list["data"].as_array().expect("a list").clone();
    let bytes: u64 = list.iter().filter_map(|kept| kept["bytes"].as_u64()).sum();
    assert!(
        !list.is_empty() && list.len() < 20 && bytes <= 60 << 10,
        "{list:?}"
    );
    assert!(
        list.iter()
            .all(|kept| kept["id"] != large["artifact"]["id"])
    );
    check_refused(
        &["serve", "--port", "0", "--lab-artifacts", "1000"],
        1,
        &["--lab-artifacts: 1000 bytes", "--lab-bytes"],
    );
    let short = Server::start(&["--lab-time", "0.2", "--lab-inline", "0"]);
    let kept = run(&short, &json!({}));
    let url = kept["artifact"]["url"].as_str().expect("a URL").to_owned();
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert_eq!(short.json("GET", &url, &Value::Null).0, 404);
}

#[test]
fn the_command_equals_the_server() {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name);
    let toml = "encoding = 'numbers'\n[lens]\nlayers = [1]\ntop_k = 2\n\
        [[captures]]\npoint = 'layers.*.out'\npositions = 'all'\n\
        [[captures]]\npoint = 'layers.1.out'\npositions = 'all'\nreduce = 'top_k'\nk = 2\n";
    std::fs::write(at("plan.toml"), toml).expect("written");
    std::fs::write(at("plan.json"), plan().to_string()).expect("written");
    let plan_path = at("plan.toml");
    let lab = |more: &[&str]| -> Value {
        let base = [
            "lab",
            "run",
            "tiny-chat",
            "--prompt",
            PROMPT,
            "--threads",
            "1",
        ];
        let arguments = [&base[..], &["--plan", text(&plan_path)], more].concat();
        serde_json::from_str(&printed(&arguments)).expect("JSON")
    };
    let server = Server::start(&[]);
    let expected = run(&server, &json!({ "lens": { "layers": [1], "top_k": 2 } }));
    let shown = lab(&[]);
    assert_eq!(
        (&shown["captures"], &shown["lens"]),
        (&expected["captures"], &expected["lens"])
    );
    assert_eq!(shown["tokens"], expected["read"]);
    let file = at("a.safetensors");
    let listed = lab(&["-o", text(&file)]);
    assert_eq!(listed["lens"], expected["lens"]);
    for (own, named) in expected["captures"]
        .as_array()
        .expect("captures")
        .iter()
        .zip(listed["captures"].as_array().expect("captures"))
    {
        let (shape, found) = array(&file, named["tensor"].as_str().expect("a name"));
        assert_eq!((json!(shape), found), (own["shape"].clone(), numbers(own)));
    }
    lab(&["-o", text(&at("a.npz")), "-n", "3"]);
    let n = expected["read"].as_array().expect("tokens").len() as u64;
    let found =
        lab_core::artifacts::npy::read_archive(&at("a.npz"), "layers.0.out").expect("an archive");
    assert_eq!(found.expect("it is there").shape, [n + 2, 128]);
    let base = ["lab", "run", "tiny-chat", "--text", "a", "--plan"];
    for (plan, more, message) in [
        (
            "plan.json",
            &["-o", "x.txt"][..],
            "ends in .safetensors or .npz",
        ),
        ("none.toml", &[], "none.toml"),
        ("plan.json", &["--lab-bytes", "10"], "the limit is 10"),
    ] {
        let path = at(plan);
        let arguments = [&base[..], &[text(&path)], more].concat();
        check_refused(&arguments, 1, &[message]);
    }
}
