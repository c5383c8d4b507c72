//! The lab with pictures in the prompt: which positions are rows of a picture, values within its tower, and attention over it. The
//! numbers are those of transformers, stored beside the model.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lab_inspect::diagram::svg;
use lab_inspect::pictures::{self, ChartFilter, LabPicture, PromptPicture};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::diagrams::check_layout;
use crate::support::command::{check_refused, printed, scratch, text};
use crate::support::server::{Server, with};
use crate::support::sources;

/// A folder of random weights that takes pictures of 28 by 28 pixels as they are, in patches of 7 by 7.
fn folder() -> PathBuf {
    sources::root().join("tests/media/llava-small")
}

fn start(extra: &[&str]) -> Server {
    let folder = folder();
    Server::start(&[&["-m", text(&folder), "--exact"], extra].concat())
}

/// The same folder with weights in f32, whose products are those of transformers: the factors of bf16 weights are rounded.
fn unrounded(to: &Path) -> &str {
    for entry in fs::read_dir(folder()).expect("a folder") {
        let entry = entry.expect("a file");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("it is copied");
    }
    let stored = file("model.safetensors");
    let stored = SafeTensors::deserialize(&stored).expect("tensors");
    let wide = stored.tensors().into_iter().map(|(name, tensor)| {
        assert_eq!(tensor.dtype(), Dtype::BF16);
        let wide: Vec<u8> = tensor
            .data()
            .chunks(2)
            .flat_map(|two| [0, 0, two[0], two[1]])
            .collect();
        (name, tensor.shape().to_vec(), wide)
    });
    let wide: Vec<_> = wide.collect();
    let views = wide.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
        (name, view.expect("its shape"))
    });
    let path = to.join("model.safetensors");
    safetensors::serialize_to_file(views, None, &path).expect("it is written");
    text(to)
}

fn file(path: impl AsRef<Path>) -> Vec<u8> {
    let path = folder().join(path);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn data_url(name: &str) -> String {
    format!(
        "data:image/png;base64,{}",
        BASE64_STANDARD.encode(file(name))
    )
}

/// A question about pictures.
fn question(names: &[&str]) -> Value {
    let parts = names
        .iter()
        .map(|name| json!({ "type": "image_url", "image_url": { "url": data_url(name) } }));
    let content: Value = parts
        .chain([json!({ "type": "text", "text": "What?" })])
        .collect();
    json!([{ "role": "user", "content": content }])
}

fn run(server: &Server, names: &[&str], lab: Value) -> Value {
    let lab = with(lab, &json!({ "encoding": "numbers" }));
    server.post(
        "/v1/lab/run",
        &json!({ "messages": question(names), "lab": lab }),
    )
}

fn lab(response: &Value) -> &Value {
    &response["results"][0]["lab"]
}

fn numbers(value: &Value) -> Vec<f64> {
    let all = value.as_array().expect("numbers").iter();
    all.map(|n| n.as_f64().expect("a number")).collect()
}

fn near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f64, |most, n| most.max(n.abs()));
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < 2e-5 * largest, "{what}: {a} {b}");
    }
}

const WEIGHTS: &str = "layers.*.attn.weights";

#[test]
fn positions_of_rows_values_of_the_tower_and_attention_are_those_of_transformers() {
    let expected: Value = serde_json::from_slice(&file("lab.json")).expect("JSON");
    let scratch = scratch();
    // In a process of its own, as users have it.
    let server = Server::split(&["-m", unrounded(scratch.path()), "--exact"]);
    let points = [
        "image.layers.0.in",
        "image.layers.0.out",
        "image.layers.1.out",
    ];
    let captures = points.map(|point| json!({ "point": point }));
    let asked: Vec<Value> = captures
        .into_iter()
        .chain([json!({ "point": WEIGHTS })])
        .collect();
    let response = run(&server, &["a.png"], json!({ "captures": asked }));
    let n = response["tokens"].as_array().expect("tokens").len();
    assert_eq!(response["usage"]["prompt_tokens"], n);

    // The rows of the picture, each a cell of four by four.
    let media = lab(&response)["media"].as_array().expect("media");
    assert_eq!((media.len(), &media[0]["type"]), (1, &json!("image")));
    let rows = media[0]["rows"].as_array().expect("rows");
    let is_row = |id: &Value| *id == 3;
    let tokens = response["tokens"].as_array().expect("tokens");
    let first = tokens.iter().position(is_row).expect("a row");
    assert_eq!(rows.len(), 16);
    for (at, row) in rows.iter().enumerate() {
        let [x, y] = [at % 4, at / 4].map(|n| n as f64 / 4.0);
        let area = [x, y, x + 0.25, y + 0.25];
        let expected = json!({
            "position": first + at, "view": 0, "index": at, "row": at / 4, "column": at % 4, "area": area,
        });
        assert_eq!(*row, expected);
        assert!(is_row(&tokens[first + at]));
    }

    let captured = lab(&response)["captures"].as_array().expect("captures");
    assert_eq!(captured.len(), 5);
    for (at, point) in points.iter().enumerate() {
        let own = &captured[at];
        assert_eq!(own["point"], *point);
        assert_eq!(
            (&own["medium"], &own["views"], &own["shape"]),
            (&json!(0), &json!([16]), &json!([16, 32]))
        );
        assert!(
            own["positions"].is_null(),
            "rows of a tower have no positions: {own}"
        );
        let all = numbers(&own["data"]);
        let wanted = numbers(&expected["rows"])
            .into_iter()
            .map(|row| row as usize);
        let found: Vec<f64> = wanted
            .flat_map(|row| all[row * 32..][..32].to_vec())
            .collect();
        near(&found, &numbers(&expected["hidden"][at]), point);
    }
    for (layer, own) in captured[3..].iter().enumerate() {
        assert_eq!(own["shape"], json!([1, 2, n]));
        let found = numbers(&own["data"]);
        for head in 0..2 {
            let expected = numbers(&expected["attention"][layer][head]);
            near(
                &found[head * n..][..n],
                &expected,
                &format!("layer {layer}, head {head}"),
            );
        }
    }
}

#[test]
fn captures_within_a_tower_change_nothing_and_are_the_same_each_time() {
    let server = start(&[]);
    let scored = |lab: Option<Value>| {
        let mut body = json!({
            "model": "default", "messages": question(&["a.png", "b.png"]), "temperature": 0, "max_tokens": 4,
            "ignore_eos": true, "logprobs": true,
        });
        if let Some(lab) = lab {
            body["lab"] = lab;
        }
        let answer = server.post("/v1/chat/completions", &body);
        (answer["choices"][0]["logprobs"].clone(), answer)
    };
    let (before, _) = scored(None);
    let tower = server.json("GET", "/v1/lab/points", &Value::Null).1;
    let tower = tower["data"].as_array().expect("points").iter();
    let tower: Vec<&Value> = tower.filter(|point| point["tower"] == "image").collect();
    let last = tower.last().expect("points of the tower")["path"]
        .as_str()
        .expect("a path");
    assert!(
        tower
            .iter()
            .all(|point| point["editable"] == false && point["capturable"] == true)
    );
    // The rows that the model reads in the place of tokens are the last value of the tower.
    let plan = json!({ "encoding": "numbers", "captures": [
        { "point": last }, { "point": "embed.x", "positions": "prompt" }, { "point": "image.layers.1.out", "reduce": "norm" },
        { "point": "image.layers.1.out" },
    ] });
    let (with_captures, answer) = scored(Some(plan.clone()));
    assert_eq!(with_captures, before);
    let lab = &answer["choices"][0]["lab"];
    let captured = lab["captures"].as_array().expect("captures");
    let [first, second, embedded] = [0, 1, 2].map(|at| numbers(&captured[at]["data"]));
    assert_eq!(
        (&captured[0]["medium"], &captured[1]["medium"]),
        (&json!(0), &json!(1))
    );
    assert_ne!(first, second);
    for (medium, rows) in [first, second].iter().enumerate() {
        let positions = lab["media"][medium]["rows"]
            .as_array()
            .expect("rows")
            .iter();
        let positions = positions.map(|row| row["position"].as_u64().expect("a position") as usize);
        let read: Vec<f64> = positions
            .flat_map(|at| embedded[at * 32..][..32].to_vec())
            .collect();
        assert_eq!(&read, rows, "medium {medium}");
    }
    let (norms, whole) = (numbers(&captured[3]["data"]), numbers(&captured[5]["data"]));
    let squares = whole
        .chunks(32)
        .map(|row| row.iter().map(|e| e * e).sum::<f64>().sqrt());
    near(&norms, &squares.collect::<Vec<f64>>(), "norms");
    let (_, again) = scored(Some(plan));
    assert_eq!(again["choices"][0]["lab"], *lab);
    let (after, answer) = scored(None);
    assert_eq!(after, before);
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(
        cached.as_u64() > Some(32),
        "the rows of both pictures are cached: {answer}"
    );
}

#[test]
fn rows_of_a_picture_are_edited_and_read_by_the_lens_as_those_of_tokens() {
    let server = start(&[]);
    let response = run(
        &server,
        &["a.png"],
        json!({ "lens": { "positions": "prompt", "top_k": 1 } }),
    );
    let n = response["tokens"].as_array().expect("tokens").len();
    assert_eq!(
        lab(&response)["lens"][1]["rows"].as_array().map(Vec::len),
        Some(n)
    );
    let positions: Vec<&Value> = lab(&response)["media"][0]["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| &row["position"])
        .collect();
    let edit = json!({ "point": "layers.0.in", "op": "zero", "positions": positions });
    let top = |response: &Value| {
        let rows = lab(response)["lens"][1]["rows"].as_array().expect("rows");
        rows.last().expect("a row")["top"].clone()
    };
    let lens = json!({ "top_k": 5 });
    let plain = run(&server, &["a.png"], json!({ "lens": lens }));
    let blind = run(
        &server,
        &["a.png"],
        json!({ "lens": lens, "edits": [edit] }),
    );
    let other = run(
        &server,
        &["b.png"],
        json!({ "lens": lens, "edits": [edit] }),
    );
    assert_ne!(top(&plain), top(&blind));
    // Without their rows both pictures are the same.
    assert_eq!(top(&blind), top(&other));
}

#[test]
fn what_a_tower_does_not_have_is_refused() {
    let server = start(&["--lab-bytes", "60000"]);
    let refused = |body: &Value, message: &str| {
        let (status, answer) = server.json("POST", "/v1/lab/run", body);
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            status == 400 && said.contains(message),
            "{status}: {answer}"
        );
    };
    let of = |lab: Value| json!({ "messages": question(&["a.png"]), "lab": lab });
    let captures = |capture: Value| of(json!({ "captures": [capture] }));
    let edit = json!({ "point": "image.layers.0.out", "op": "zero" });
    refused(
        &of(json!({ "edits": [edit] })),
        "can be read and not changed",
    );
    refused(
        &of(json!({ "edits": [{ "point": "image.layers.0.out", "op": "skip" }] })),
        "can be read and not changed",
    );
    refused(
        &captures(json!({ "point": "image.layers.0.out", "positions": [1] })),
        "no positions in the prompt",
    );
    refused(
        &captures(json!({ "point": "image.layers.7.out" })),
        "nearest: `image.layers.",
    );
    refused(
        &captures(json!({ "point": "audio.layers.0.out" })),
        "no point is named",
    );
    refused(
        &captures(json!({ "point": "image.layers.0.attn.weights" })),
        "no point is named",
    );
    let many = [
        json!({ "point": "image.*.*.*.*" }),
        json!({ "point": "image.*.*.*" }),
    ];
    refused(&of(json!({ "captures": many })), "`--lab-bytes`");
    let text =
        json!({ "prompt": "What?", "lab": { "captures": [{ "point": "image.layers.0.out" }] } });
    refused(&text, "the prompt has no medium");
    refused(
        &with(text, &json!({ "messages": question(&[]) })),
        "mutually exclusive",
    );
    refused(&json!({ "lab": {} }), "prompt");
    let lens = json!({ "messages": question(&["a.png"]), "lab": {}, "stream": true });
    refused(&lens, "`stream`");
    // Stated positions that mean all rows are fine.
    run(
        &server,
        &["a.png"],
        json!({ "captures": [{ "point": "image.layers.0.out", "positions": "all" }] }),
    );
}

/// The areas of the first picture and their numbers.
fn map(response: &Value, names: &[&str], filter: ChartFilter) -> svg::Chart {
    let pictures = names
        .iter()
        .map(|name| PromptPicture::read(&file(name)).expect("a picture"));
    let filter = ChartFilter {
        pictures: pictures.collect(),
        ..filter
    };
    let chart = pictures::chart(LabPicture::AttentionMap, response, &filter);
    chart.unwrap_or_else(|problem| panic!("{problem}: {response}"))
}

#[test]
fn attention_is_drawn_over_the_cells_of_the_picture() {
    let expected: Value = serde_json::from_slice(&file("lab.json")).expect("JSON");
    let scratch = scratch();
    let exact = scratch.path().join("exact");
    fs::create_dir(&exact).expect("a folder");
    let exact = unrounded(&exact);
    let server = Server::start(&["-m", exact, "--exact"]);
    let asked =
        json!({ "messages": question(&["a.png"]), "lab": { "captures": [{ "point": WEIGHTS }] } });
    let response = server.post("/v1/lab/run", &asked);
    let first = lab(&response)["media"][0]["rows"][0]["position"]
        .as_u64()
        .expect("a position") as usize;
    let chart = map(
        &response,
        &["a.png"],
        ChartFilter {
            heads: vec![1],
            ..ChartFilter::default()
        },
    );
    assert_eq!((chart.maps.len(), chart.n_cells()), (2, 32));
    for (layer, map) in chart.maps.iter().enumerate() {
        let weights = &numbers(&expected["attention"][layer][1])[first..first + 16];
        let found: Vec<f64> = map.areas.iter().map(|(_, weight)| *weight).collect();
        near(&found, weights, &map.title);
        assert_eq!(map.areas[6].0, [0.5, 0.25, 0.75, 0.5]);
        assert!(
            map.note
                .starts_with(&format!("{:.2} ", weights.iter().sum::<f64>())),
            "{}",
            map.note
        );
    }
    let mean = map(&response, &["a.png"], ChartFilter::default());
    let heads = [0, 1].map(|head| numbers(&expected["attention"][0][head])[first]);
    near(
        &[mean.maps[0].areas[0].1],
        &[(heads[0] + heads[1]) / 2.0],
        "the mean of the heads",
    );
    check_layout("attention map", &svg::chart(&mean));

    // The server and the program draw the same.
    let images = json!([data_url("a.png")]);
    let body = json!({ "picture": "attention_map", "response": response, "images": images });
    let drawn = |theme: &str| {
        let body = with(body.clone(), &json!({ "theme": theme })).to_string();
        let (status, _, drawn) = server.raw("POST", "/v1/lab/pictures", "application/json", &body);
        assert_eq!(status, 200, "{drawn}");
        roxmltree::Document::parse(&drawn).unwrap_or_else(|e| panic!("{e}"));
        drawn
    };
    let (light, dark) = (drawn("light"), drawn("dark"));
    assert_eq!(light, pictures::svg(&mean));
    assert_eq!(light.matches("<image ").count(), 2);
    assert!(light != dark && dark.contains("href=\"data:image/jpeg;base64,"));

    let at = |name: &str| scratch.path().join(name);
    let picture = folder().join("a.png");
    let (svg, json, again) = (at("map.svg"), at("map.json"), at("again.svg"));
    let arguments = [
        "lab",
        "attention-map",
        exact,
        "--exact",
        "--threads",
        "1",
        "--image",
        text(&picture),
    ];
    let files = [
        "--prompt",
        "What?",
        "--svg",
        text(&svg),
        "--json",
        text(&json),
    ];
    printed(&[&arguments[..], &files].concat());
    printed(&[
        "lab",
        "attention-map",
        "--from",
        text(&json),
        "--image",
        text(&picture),
        "--svg",
        text(&again),
    ]);
    let [svg, again] = [svg, again].map(|path| fs::read_to_string(path).expect("a file"));
    assert_eq!(svg, again);
    let cells = |svg: &str| svg.matches("class=\"area\"").count();
    assert_eq!(cells(&svg), cells(&light));
    check_refused(
        &[&arguments[..], &["--tokens", "1,2"]].concat(),
        1,
        &["need a text"],
    );
    check_refused(
        &["lab", "attention-map", "--from", text(&json), "--svg", "-"],
        1,
        &["0 pictures are given"],
    );
}

#[test]
fn maps_of_foreign_responses_are_refused_in_words() {
    let server = Server::shared();
    let row = |area: Value| json!({ "position": 0, "view": 0, "area": area });
    let response = |rows: Value, shape: Value| {
        json!({ "media": [{ "type": "image", "rows": rows }], "captures": [
            { "point": "layers.0.attn.weights", "positions": [0], "shape": shape, "dtype": "f32", "data": "AAAAAA==" },
        ] })
    };
    let whole = row(json!([0, 0, 1, 1]));
    let one = || response(json!([whole]), json!([1, 1, 1]));
    let url = data_url("a.png");
    let cases = [
        (one(), json!([]), "0 pictures are given"),
        (one(), json!([url, url]), "2 pictures are given"),
        (one(), json!(["data:image/png;base64,aGk="]), "images[0]"),
        (one(), json!(["http://127.0.0.1/a.png"]), "a data URL"),
        (
            response(json!([row(Value::Null)]), json!([1, 1, 1])),
            json!([url]),
            "no grid over it",
        ),
        (
            response(json!([whole]), json!([1, 1])),
            json!([url]),
            "positions, heads and keys",
        ),
        (
            json!({ "media": [{ "type": "image", "rows": [whole] }], "captures": [] }),
            json!([url]),
            "there are no captures",
        ),
        (json!({ "captures": [] }), json!([url]), "`media`"),
        (
            response(vec![whole.clone(); 50_000].into(), json!([1, 1, 1])),
            json!([url]),
            "the limit is",
        ),
    ];
    for (response, images, message) in cases {
        let body = json!({ "picture": "attention_map", "response": response, "images": images });
        let (status, answer) = server.json("POST", "/v1/lab/pictures", &body);
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            status == 400 && said.contains(message),
            "{message}: {status}: {answer}"
        );
    }
    // Positions and areas beyond everything are drawn within the picture.
    let far = json!([{ "position": u64::MAX, "view": u64::MAX, "area": [-1e300, -5, 1e300, 0.5] }]);
    let chart = map(
        &response(far, json!([1, 1, 1])),
        &["a.png"],
        ChartFilter::default(),
    );
    check_layout("far", &svg::chart(&chart));
}
