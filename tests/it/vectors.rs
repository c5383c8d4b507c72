//! Vectors by their ids: directions in edits, features of autoencoders, translators of the lens; and the directions that
//! `bench lab direction` makes.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lab_base::weights;
use lab_core::artifacts::arrays;
use lab_core::artifacts::arrays::{ArrayFormat, Elements, NamedArray};
use serde_json::{Map, Value, json};

use crate::support::command::{check_refused, printed, scratch, text};
use crate::support::server::{Server, with};

/// Numbers of a hidden state of the built-in model, and its layers.
const WIDTH: usize = 128;
const PROMPT: &str = "The sea is wide and";

fn row(seed: f32, n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * seed).sin()).collect()
}

/// Writes a file of arrays.
pub(crate) fn file(folder: &Path, name: &str, all: &[(&str, Vec<usize>, Vec<f32>)]) -> PathBuf {
    let path = folder.join(name);
    let named = all.iter().map(|(name, shape, row)| NamedArray {
        name: (*name).to_owned(),
        shape: shape.iter().map(|n| *n as u64).collect(),
        elements: Elements::F32(row),
    });
    let named: Vec<NamedArray<'_>> = named.collect();
    arrays::write(&path, ArrayFormat::Safetensors, &named, &Map::new()).expect("written");
    path
}

fn run(server: &Server, lab: &Value) -> Value {
    let body =
        json!({ "prompt": PROMPT, "lab": with(lab.clone(), &json!({ "encoding": "numbers" })) });
    server.post("/v1/lab/run", &body)["results"][0]["lab"].clone()
}

fn numbers(captured: &Value) -> Vec<f32> {
    let data = captured["data"].as_array().expect("numbers").iter();
    data.map(|v| v.as_f64().expect("a number") as f32).collect()
}

/// The hidden states of the last token after all layers.
fn states(server: &Server, edits: &Value) -> Vec<Vec<f32>> {
    let lab = json!({ "captures": [{ "point": "layers.*.out" }], "edits": edits });
    let found = run(server, &lab);
    let captures = found["captures"].as_array().expect("captures");
    captures.iter().map(numbers).collect()
}

/// Checks that rows are the same up to rounding.
#[track_caller]
fn check_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(0.0f32, |most, e| most.max(e.abs()));
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-5 * size.max(1.0), "{a} {b}");
    }
}

#[track_caller]
fn check_run_refused(server: &Server, body: &Value, message: &str) {
    let (status, answer) = server.json("POST", "/v1/lab/run", body);
    let found = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(
        status == 400 && found.contains(message),
        "{body}: {status} {answer}"
    );
}

fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

#[test]
fn vectors_are_kept_under_their_ids_and_named_by_edits() {
    let server = Server::split(&[]);
    let keep = |body: &Value| server.json("POST", "/v1/lab/vectors", body);
    let (one, other) = (row(0.7, WIDTH), row(1.3, WIDTH));
    let plain = states(&server, &json!([]));
    let (status, kept) = keep(&json!({ "id": "mood", "vector": one }));
    assert_eq!(
        (status, &kept["kind"], &kept["tensors"]),
        (200, &json!("directions"), &json!(1))
    );
    let by_layer = json!({ "id": "layers", "vectors": { "1": other, "layers.0.attn.out": one } });
    assert_eq!(keep(&by_layer).0, 200);
    let list = server.json("GET", "/v1/lab/vectors", &Value::Null).1;
    let ids: Vec<&Value> = list["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|v| &v["id"])
        .collect();
    assert_eq!(ids, ["layers", "mood"]);
    let add =
        |id: &str, point: &str| json!([{ "point": point, "op": "add", "vector": id, "scale": 2 }]);
    let inline = json!([{ "point": "layers.0.out", "op": "add", "vector": one, "scale": 2 }]);
    assert_eq!(
        states(&server, &add("mood", "layers.0.out")),
        states(&server, &inline)
    );
    // Of all layers only that one has a direction.
    let found = states(&server, &add("layers", "layers.*.out"));
    assert_eq!(found[0], plain[0]);
    let twice: Vec<f32> = other.iter().map(|e| 2.0 * e).collect();
    check_close(&found[1], &sum(&plain[1], &twice));
    // By its point.
    let inline = json!([{ "point": "layers.0.attn.out", "op": "add", "vector": one, "scale": 2 }]);
    assert_eq!(
        states(&server, &add("layers", "layers.0.attn.out")),
        states(&server, &inline)
    );
    // A newer one of the same id takes its place.
    assert_eq!(keep(&json!({ "id": "mood", "vector": other })).0, 200);
    let inline = json!([{ "point": "layers.0.out", "op": "add", "vector": other, "scale": 2 }]);
    assert_eq!(
        states(&server, &add("mood", "layers.0.out")),
        states(&server, &inline)
    );
    let refused = |edit: Value, message: &str| {
        let body = json!({ "prompt": "a", "lab": { "edits": [with(json!({ "point": "layers.0.out", "op": "add" }), &edit)] } });
        check_run_refused(&server, &body, message);
    };
    refused(json!({ "vector": "none" }), "there is no vector `none`");
    refused(json!({ "vector": "layers" }), "only for the layers [1]");
    refused(
        json!({ "vector": "mood", "op": "zero" }),
        "takes no `vector`",
    );
    refused(
        json!({ "sae": "mood", "feature": 0 }),
        "expected an autoencoder",
    );
    refused(json!({ "sae": "mood" }), "belong together");
    refused(
        json!({ "vector": "mood", "point": "layers.0.ffn.up" }),
        "has 128 numbers",
    );
    for (body, message) in [
        (
            json!({ "id": "../a", "vector": [1.0] }),
            "expected 1 to 64 letters",
        ),
        (json!({ "id": "a" }), "expected one of"),
        (json!({ "id": "a", "vector": [[1.0], [2.0]] }), "has 2 rows"),
        (json!({ "id": "a", "vector": [] }), "cannot have the shape"),
        (json!({ "id": "a", "file": "?" }), "not base64"),
        (
            json!({ "id": "a", "file": BASE64_STANDARD.encode("GGUF") }),
            "header",
        ),
        (
            json!({ "id": "a", "file": BASE64_STANDARD.encode([255; 64]) }),
            "no sound safetensors file",
        ),
        (
            json!({ "id": "a", "vectors": { "x": "mood" } }),
            "expected numbers",
        ),
    ] {
        let (status, answer) = keep(&body);
        let found = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            status == 400 && found.contains(message),
            "{body}: {status} {answer}"
        );
    }
    assert_eq!(
        server
            .json("DELETE", "/v1/lab/vectors/mood", &Value::Null)
            .0,
        200
    );
    assert_eq!(
        server
            .json("DELETE", "/v1/lab/vectors/mood", &Value::Null)
            .0,
        404
    );
    refused(json!({ "vector": "mood" }), "there is no vector `mood`");
}

#[test]
fn features_of_an_autoencoder_are_captured_added_and_bounded() {
    const N: usize = 40;
    let folder = scratch();
    let (encoder, decoder) = (row(0.37, WIDTH * N), row(0.73, N * WIDTH));
    let (b_enc, b_dec) = (row(1.1, N), row(1.7, WIDTH));
    let mut all = vec![
        ("W_enc", vec![WIDTH, N], encoder.clone()),
        ("W_dec", vec![N, WIDTH], decoder.clone()),
        ("b_enc", vec![N], b_enc.clone()),
        ("b_dec", vec![WIDTH], b_dec.clone()),
    ];
    let relu = file(folder.path(), "relu.safetensors", &all);
    all.push(("threshold", vec![N], vec![1.5; N]));
    let jump = file(folder.path(), "jump.safetensors", &all);
    let options = [
        "--lab-vectors",
        text(&relu),
        "--lab-vectors",
        text(&jump),
        "--deterministic",
    ];
    let server = Server::start(&options);
    let features = |x: &[f32], id: &str| -> Vec<f32> {
        let is_jump = id == "jump";
        let of = |at: usize| {
            let terms = x.iter().enumerate().map(|(i, x)| {
                let centre = if is_jump { 0.0 } else { f64::from(b_dec[i]) };
                (f64::from(*x) - centre) * f64::from(encoder[i * N + at])
            });
            let sum = terms.sum::<f64>() + f64::from(b_enc[at]);
            if sum > if is_jump { 1.5 } else { 0.0 } {
                sum as f32
            } else {
                0.0
            }
        };
        (0..N).map(of).collect()
    };
    for id in ["relu", "jump"] {
        let lab = json!({ "captures": [
            { "point": "layers.0.out", "positions": "prompt" },
            { "point": "layers.0.out", "positions": "prompt", "sae": id, "k": 5 },
        ] });
        let found = run(&server, &lab);
        let (raw, own) = (&found["captures"][0], &found["captures"][1]);
        let n = raw["positions"].as_array().expect("positions").len();
        assert_eq!(
            (&own["shape"], &own["sae"], &own["reduce"]),
            (&json!([n, 5]), &json!(id), &json!("top_k"))
        );
        let (values, places) = (numbers(own), own["indices"].as_array().expect("places"));
        let mut last = Vec::new();
        for (at, x) in numbers(raw).chunks(WIDTH).enumerate() {
            last = features(x, id);
            let mut sorted = last.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            check_close(&values[5 * at..5 * at + 5], &sorted[..5]);
            for i in 5 * at..5 * at + 5 {
                let place = places[i].as_u64().expect("a place") as usize;
                check_close(&[values[i]], &[last[place]]);
            }
        }
        let x = states(&server, &json!([])).swap_remove(0);
        let strongest = places[5 * (n - 1)].as_u64().expect("a place") as usize;
        let direction = &decoder[strongest * WIDTH..][..WIDTH];
        let edit = |extra: Value| {
            let edit = json!({ "point": "layers.0.out", "sae": id, "feature": strongest, "positions": "last" });
            states(&server, &json!([with(edit, &extra)])).swap_remove(0)
        };
        let by = |change: f32| -> Vec<f32> { direction.iter().map(|d| change * d).collect() };
        check_close(
            &edit(json!({ "op": "add", "scale": 3 })),
            &sum(&x, &by(3.0)),
        );
        let value = last[strongest];
        assert!(value > 1.5, "{value}");
        check_close(
            &edit(json!({ "op": "clamp", "high": 0.5 })),
            &sum(&x, &by(0.5 - value)),
        );
        let set = edit(json!({ "op": "clamp", "low": 50, "high": 50 }));
        check_close(&set, &sum(&x, &by(50.0 - value)));
    }
    let list = server.json("GET", "/v1/lab/vectors", &Value::Null).1;
    assert_eq!(
        (&list["data"][0]["kind"], &list["data"][0]["given"]),
        (&json!("sae"), &json!(true))
    );
    for (lab, message) in [
        (
            json!({ "captures": [{ "point": "layers.0.out", "sae": "relu", "reduce": "mean" }] }),
            "`top_k`",
        ),
        (
            json!({ "captures": [{ "point": "layers.0.ffn.up", "sae": "relu" }] }),
            "is for rows of 128",
        ),
        (
            json!({ "edits": [{ "point": "layers.0.out", "op": "add", "sae": "relu", "feature": 40 }] }),
            "has 40 features",
        ),
        (
            json!({ "lens": { "translator": "relu" } }),
            "expected translators",
        ),
    ] {
        check_run_refused(&server, &json!({ "prompt": "a", "lab": lab }), message);
    }
    let broken = file(folder.path(), "broken.safetensors", &all[..3]);
    check_refused(
        &[
            "serve",
            "--port",
            "0",
            "--in-process",
            "--lab-vectors",
            text(&broken),
        ],
        1,
        &["--lab-vectors: ", "`b_dec` is missing"],
    );
}

#[test]
fn a_tuned_lens_translator_maps_hidden_states_for_the_head() {
    let folder = scratch();
    let (matrix, bias) = (row(0.9, WIDTH * WIDTH), row(0.2, WIDTH));
    let tuned = [
        (
            "layer_translators.1.weight",
            vec![WIDTH, WIDTH],
            matrix.iter().map(|e| e / 50.0).collect(),
        ),
        ("layer_translators.1.bias", vec![WIDTH], bias.clone()),
    ];
    let tuned = file(folder.path(), "tuned.safetensors", &tuned);
    let server = Server::start(&["--lab-vectors", text(&tuned), "--deterministic"]);
    let lens = |extra: Value, edits: &Value, layer: usize| {
        let lens = with(
            json!({ "layers": [layer], "top_k": 4, "targets": [5] }),
            &extra,
        );
        run(&server, &json!({ "lens": lens, "edits": edits }))["lens"][0]["rows"][0].clone()
    };
    let states = states(&server, &json!([]));
    let (x, last) = (&states[0], states.len() - 1);
    let translated: Vec<f32> = (0..WIDTH)
        .map(|i| {
            let row = matrix[i * WIDTH..][..WIDTH].iter().zip(x);
            let sum: f64 = row.map(|(w, x)| f64::from(w / 50.0) * f64::from(*x)).sum();
            x[i] + bias[i] + sum as f32
        })
        .collect();
    let set = json!([{ "point": format!("layers.{last}.out"), "op": "set", "vector": translated }]);
    let expected = lens(json!({}), &set, last);
    let found = lens(json!({ "translator": "tuned" }), &json!([]), 0);
    assert_ne!(found["top"], lens(json!({}), &json!([]), 0)["top"]);
    for at in 0..4 {
        let (a, b) = (&found["top"][at], &expected["top"][at]);
        assert_eq!(a["id"], b["id"]);
        let difference =
            a["logprob"].as_f64().expect("a number") - b["logprob"].as_f64().expect("a number");
        assert!(difference.abs() < 1e-4, "{a} {b}");
    }
    assert_eq!(found["targets"][0]["rank"], expected["targets"][0]["rank"]);
    // Other layers are as without.
    assert_eq!(
        lens(json!({ "translator": "tuned" }), &json!([]), last),
        lens(json!({}), &json!([]), last)
    );
}

/// Control vectors that other programs wrote: `export_gguf` of repeng 0.4.0, and the functions of llama.cpp's cvector-generator that
/// name, normalise and write. Direction N is `N + i / 128` for element i; the second program scales it to length 1.
fn of_others() -> [(PathBuf, bool); 2] {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab");
    [("repeng", false), ("cvector-generator", true)]
        .map(|(name, is_scaled)| (folder.join(format!("{name}.gguf")), is_scaled))
}

#[test]
fn control_vectors_of_other_programs_are_added_after_their_layers() {
    let files = of_others();
    let [first, second] = files.each_ref().map(|(path, _)| text(path));
    let server = Server::start(&["--lab-vectors", first, "--lab-vectors", second]);
    let plain = states(&server, &json!([]));
    for (path, is_scaled) in &files {
        let direction = |layer: usize| -> Vec<f32> {
            let row = (0..WIDTH).map(|i| layer as f32 + i as f32 / 128.0);
            let row: Vec<f32> = row.collect();
            let length = row.iter().map(|e| e * e).sum::<f32>().sqrt();
            let by = if *is_scaled { length } else { 1.0 };
            row.iter().map(|e| e / by).collect()
        };
        let id = path.file_stem().and_then(|name| name.to_str());
        let named = states(
            &server,
            &json!([{ "point": "layers.*.out", "op": "add", "vector": id }]),
        );
        let edits: Value = (1..plain.len())
            .map(|layer| {
                json!({ "point": format!("layers.{layer}.out"), "op": "add", "vector": direction(layer) })
            })
            .collect();
        let stated = states(&server, &edits);
        assert_eq!(named[0], plain[0]);
        check_close(&named[1], &sum(&plain[1], &direction(1)));
        for (named, stated) in named.iter().zip(&stated) {
            check_close(named, stated);
        }
    }
}

/// What a control vector's file has, but for the numbers.
fn form(path: &Path) -> [Vec<String>; 2] {
    let weights = weights::open(path).expect("a GGUF file");
    let keys = weights.metadata().iter();
    let keys = keys.map(|(key, value)| format!("{key} {value:?}"));
    let tensors = weights.tensors().iter();
    let tensors = tensors.map(|t| format!("{} {:?} {}", t.name, t.shape, t.ty));
    [keys.collect(), tensors.collect()]
}

#[test]
fn a_direction_has_the_form_of_the_files_of_llama_cvector_generator() {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("positive"), "I am happy").expect("written");
    std::fs::write(at("negative"), "I am sad").expect("written");
    let (positive, negative, output) = (at("positive"), at("negative"), at("mood.gguf"));
    printed(&[
        "lab",
        "direction",
        "tiny-chat",
        "--positive",
        text(&positive),
        "--negative",
        text(&negative),
        "-o",
        text(&output),
    ]);
    let [(repeng, _), (generator, _)] = of_others();
    assert_eq!(form(&output), form(&generator));
    // The other program writes the directions in another order, and their number as another type.
    let [mut keys, mut tensors] = form(&repeng);
    tensors.reverse();
    for key in &mut keys {
        *key = key.replace("U32", "I32");
    }
    assert_eq!(form(&output), [keys, tensors]);
}

#[test]
fn a_direction_is_the_difference_of_means_and_is_read_again() {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name);
    let sides = [
        ["I am happy", "So good", "\"A\\nsmile\""],
        ["I am sad", "So bad", "A frown"],
    ];
    for (name, lines) in ["positive", "negative"].iter().zip(&sides) {
        std::fs::write(at(name), lines.join("\n\n")).expect("written");
    }
    let make = |output: &str, more: &[&str]| {
        let (positive, negative, output) = (at("positive"), at("negative"), at(output));
        let base = [
            "lab",
            "direction",
            "tiny-chat",
            "--threads",
            "1",
            "--deterministic",
            "--kv-type",
            "f16",
        ];
        let files = [
            "--positive",
            text(&positive),
            "--negative",
            text(&negative),
            "-o",
            text(&output),
        ];
        printed(&[&base[..], &files, more].concat())
    };
    make("mean.gguf", &[]);
    make("all.safetensors", &[]);
    make("pca.gguf", &["--method", "pca", "--row", "mean"]);
    let (mean, all) = (at("mean.gguf"), at("all.safetensors"));
    let pca = at("pca.gguf");
    let options = [
        "--lab-vectors",
        text(&mean),
        "--lab-vectors",
        text(&all),
        "--lab-vectors",
        text(&pca),
    ];
    let server = Server::start(&[&options[..], &["--deterministic"]].concat());
    let last = |prompt: &str| {
        let lab = json!({ "captures": [{ "point": "layers.*.out" }], "encoding": "numbers" });
        let answer = server.post("/v1/lab/run", &json!({ "prompt": prompt, "lab": lab }));
        let captures = answer["results"][0]["lab"]["captures"].clone();
        captures
            .as_array()
            .expect("captures")
            .iter()
            .map(numbers)
            .collect::<Vec<_>>()
    };
    let rows = sides.map(|side| {
        side.map(|prompt| last(prompt.trim_matches('"').replace("\\n", "\n").as_str()))
    });
    let weights = weights::open(&mean).expect("a GGUF file");
    assert_eq!(
        weights.metadata().str("general.architecture"),
        Some("controlvector")
    );
    let n_layers = rows[0][0].len();
    let names: Vec<String> = (1..n_layers).map(|n| format!("direction.{n}")).collect();
    let found: Vec<&str> = weights.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(found, names);
    for (layer, name) in (1..).zip(&names) {
        let tensor = weights.tensor(name).expect("it is there");
        assert_eq!(tensor.shape, [WIDTH as u64]);
        let data = weights.data(tensor).expect("bytes");
        let found: Vec<f32> = data
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        let mean = |side: &[Vec<Vec<f32>>; 3]| -> Vec<f32> {
            let rows = side.iter().map(|rows| &rows[layer]);
            (0..WIDTH)
                .map(|i| rows.clone().map(|row| row[i]).sum::<f32>() / 3.0)
                .collect()
        };
        let [positive, negative] = rows.each_ref().map(mean);
        check_close(&sum(&found, &negative), &positive);
    }
    // The same in both formats, but for layer 0.
    let plain = states(&server, &json!([]));
    let steered = |id: &str| {
        states(
            &server,
            &json!([{ "point": "layers.*.out", "op": "add", "vector": id }]),
        )
    };
    assert_eq!(steered("mean")[0], plain[0]);
    assert_ne!(steered("all")[0], plain[0]);
    assert_ne!(steered("mean")[1], plain[1]);
    let pca = weights::open(&at("pca.gguf")).expect("a GGUF file");
    let data = pca
        .data(pca.tensor("direction.1").expect("it is there"))
        .expect("bytes");
    let squares = data
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b).powi(2));
    assert!((squares.sum::<f32>() - 1.0).abs() < 1e-4);
    std::fs::write(at("positive"), "one\ntwo").expect("written");
    let (positive, negative) = (at("positive"), at("negative"));
    let base = [
        "lab",
        "direction",
        "tiny-chat",
        "--positive",
        text(&positive),
        "--negative",
        text(&negative),
    ];
    for (more, message) in [
        (&["-o", "x.gguf", "--method", "pca"][..], "are not pairs"),
        (&["-o", "x.txt"], "ends in .gguf or .safetensors"),
        (&["-o", "x.gguf", "--lab-bytes", "10"], "the limit is 10"),
    ] {
        check_refused(&[&base[..], more].concat(), 1, &[message]);
    }
}
