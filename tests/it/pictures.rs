//! `bench lab lens`, `patch`, `routing` and `attention`: the numbers of the HTTP API, drawn in cells that hold their texts,
//! whatever tokens are called.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use lab_inspect::diagram::svg;
use lab_inspect::diagram::svg::{Chart, DrawItem, MAX_CELLS, Rect, TextStyle};
use lab_inspect::pictures;
use lab_inspect::pictures::ChartFilter;
use lab_inspect::pictures::LabPicture;
use serde_json::{Value, json};

use crate::diagrams::check_layout;
use crate::support::command::{bench, check_refused, made_up, printed, scratch, text};
use crate::support::server::Server;

const CLEAN: &str = "The sea is wide and";
const SAME: [&str; 3] = ["--deterministic", "--threads", "1"];

/// What the program writes as JSON, with the pictures that it draws.
fn drawn(picture: &str, model: &str, arguments: &[&str], folder: &Path) -> (Value, String, String) {
    let at = |ending: &str| folder.join(format!("{picture}.{ending}"));
    let (json, svg, html) = (at("json"), at("svg"), at("html"));
    let files = [
        "--force",
        "--json",
        text(&json),
        "--svg",
        text(&svg),
        "--html",
        text(&html),
    ];
    let said = printed(&[&["lab", picture, model], arguments, &files, &SAME].concat());
    assert_eq!(said.lines().count(), 3, "{said}");
    let [json, svg, html] = [json, svg, html].map(|path| fs::read_to_string(path).expect("a file"));
    (serde_json::from_str(&json).expect("JSON"), svg, html)
}

fn chart(picture: LabPicture, response: &Value) -> Chart {
    let chart = pictures::chart(picture, response, &ChartFilter::default());
    chart.unwrap_or_else(|problem| panic!("{problem}: {response}"))
}

fn is_in(inner: &Rect, outer: &Rect) -> bool {
    inner.x >= outer.x
        && inner.y >= outer.y
        && inner.x + inner.w <= outer.x + outer.w
        && inner.y + inner.h <= outer.y + outer.h
}

/// Texts meet no other and those of cells stay in them; both files are sound and ask nobody for anything.
fn check_picture(name: &str, chart: &Chart) {
    let piece = svg::chart(chart);
    check_layout(name, &piece);
    let cells = piece.items.iter().filter_map(|item| match item {
        DrawItem::Box(place, _, "swatch" | "fine") => Some(place),
        _ => None,
    });
    let cells: Vec<&Rect> = cells.collect();
    assert!(cells.len() >= chart.n_cells(), "{name}");
    for item in &piece.items {
        if let DrawItem::Text(_, _, _, TextStyle::Small, "on", text) = item {
            let own = item.text_rect().expect("a text");
            assert!(
                cells.iter().any(|cell| is_in(&own, cell)),
                "{name}: `{text}`"
            );
        }
    }
    let (picture, page) = (pictures::svg(chart), pictures::page(chart));
    roxmltree::Document::parse(&picture).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (start, end) = (page.find("<svg").expect("a picture"), page.find("</svg>"));
    let inner = &page[start..end.expect("an end") + "</svg>".len()];
    roxmltree::Document::parse(inner).unwrap_or_else(|e| panic!("{name}: {e}"));
    for text in [&picture, &page] {
        assert!(
            !text.contains("<script") && !text.contains("href=\"http"),
            "{name}"
        );
    }
}

#[test]
fn pictures_have_the_numbers_of_the_api() {
    let scratch = scratch();
    let server = Server::split(&["--deterministic"]);
    let lab = json!({ "lens": { "positions": "prompt", "top_k": 5 } });
    let expected = server.post("/v1/lab/run", &json!({ "prompt": CLEAN, "lab": lab }));
    let (found, picture, page) = drawn("lens", "tiny-chat", &["--prompt", CLEAN], scratch.path());
    for field in ["tokens", "pieces"] {
        assert!(expected[field].is_array());
        assert_eq!(found[field], expected[field]);
    }
    assert_eq!(found["results"][0]["lab"], expected["results"][0]["lab"]);
    let lens = chart(LabPicture::Lens, &expected);
    check_picture("lens", &lens);
    assert_eq!(
        (picture, page),
        (pictures::svg(&lens), pictures::page(&lens))
    );
    let rows = expected["results"][0]["lab"]["lens"]
        .as_array()
        .expect("layers");
    for (layer, cells) in rows.iter().zip(&lens.grids[0].cells) {
        for (row, cell) in layer["rows"].as_array().expect("rows").iter().zip(cells) {
            let top = &row["top"][0];
            let logprob = top["logprob"].as_f64().expect("a number");
            assert_eq!(cell.value, Some(logprob.exp()));
            assert_eq!(
                Some(&cell.text),
                top["token"].as_str().map(pictures::token_text).as_ref()
            );
        }
    }
    assert_eq!(lens.grids[0].rows.len(), rows.len());

    let asked =
        json!({ "clean": "2+2=", "corrupt": "2+3=", "metric": { "token": "4", "against": "5" } });
    let expected = server.post("/v1/lab/patch", &asked);
    let arguments = [
        "--clean",
        "2+2=",
        "--corrupt",
        "2+3=",
        "--token",
        "4",
        "--against",
        "5",
    ];
    let (found, picture, _) = drawn("patch", "tiny-chat", &arguments, scratch.path());
    for field in [
        "object",
        "tokens",
        "pieces",
        "points",
        "positions",
        "clean",
        "corrupt",
        "values",
        "effects",
    ] {
        assert!(!expected[field].is_null(), "{field}");
        assert_eq!(found[field], expected[field], "{field}");
    }
    let patch = chart(LabPicture::Patch, &expected);
    check_picture("patch", &patch);
    assert_eq!(picture, pictures::svg(&patch));
    let cells = patch.grids[0].cells.iter();
    let cells = cells.map(|row| row.iter().map(|cell| json!(cell.value)).collect::<Value>());
    assert_eq!(cells.collect::<Value>(), expected["effects"]);

    let lab = json!({ "captures": [{ "point": "layers.*.attn.weights", "positions": "prompt" }] });
    let expected = server.post("/v1/lab/run", &json!({ "prompt": CLEAN, "lab": lab }));
    let (found, picture, _) = drawn(
        "attention",
        "tiny-chat",
        &["--prompt", CLEAN],
        scratch.path(),
    );
    assert_eq!(found["results"][0]["lab"], expected["results"][0]["lab"]);
    let attention = chart(LabPicture::Attention, &expected);
    check_picture("attention", &attention);
    assert_eq!(picture, pictures::svg(&attention));
    for grid in &attention.grids {
        for (at, row) in grid.cells.iter().enumerate() {
            let seen: Vec<f64> = row.iter().filter_map(|cell| cell.value).collect();
            assert!(
                (seen.iter().sum::<f64>() - 1.0).abs() < 1e-3,
                "{}",
                grid.title
            );
            assert!(row[at + 1..].iter().all(|cell| cell.value.is_none()));
        }
    }
}

#[test]
fn a_response_that_was_stored_is_drawn_and_chosen_from() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name);
    let (file, plan) = (at("response.json"), at("plan.json"));
    let asked = json!({ "captures": [{ "point": "layers.*.attn.weights", "positions": "all" }], "encoding": "numbers" });
    fs::write(&plan, asked.to_string()).expect("written");
    let said = printed(&[
        "lab",
        "run",
        "tiny-chat",
        "--prompt",
        CLEAN,
        "--plan",
        text(&plan),
    ]);
    fs::write(&file, &said).expect("written");
    let svg = at("attention.svg");
    let arguments = [
        "lab",
        "attention",
        "--from",
        text(&file),
        "--force",
        "--svg",
        text(&svg),
    ];
    printed(&[&arguments[..], &["--layers", "1", "--heads", "0,1"]].concat());
    let picture = fs::read_to_string(&svg).expect("a file");
    let xml = roxmltree::Document::parse(&picture).expect("XML");
    let texts = xml.descendants().filter(|node| node.has_tag_name("text"));
    let texts = texts
        .filter_map(|node| node.text())
        .filter(|text| text.contains("head "));
    let titles: Vec<&str> = texts.collect();
    assert_eq!(titles, ["layers.1.attn, head 0", "layers.1.attn, head 1"]);
    for (arguments, message) in [
        (["lens", "--layers", "1"], "`lens`: expected a list"),
        (["attention", "--layers", "99"], "there are no captures"),
        (["attention", "--heads", "99"], "there are no captures"),
    ] {
        let files = ["--from", text(&file), "--force", "--svg", text(&svg)];
        check_refused(
            &[&["lab"], &arguments[..], &files].concat(),
            1,
            &[message, "response.json"],
        );
    }
}

/// Routing of two tokens to three experts.
fn routed(experts: &Value, weights: &Value) -> Value {
    let capture = |name: &str, shape: Value, data: &Value| {
        json!({
            "point": format!("layers.0.ffn.{name}"), "positions": [0, 1], "shape": shape, "data": data,
        })
    };
    json!({
        "tokens": [7, 8], "pieces": ["a", "b"],
        "captures": [
            capture("picked", json!([2, 2]), experts),
            capture("weights", json!([2, 2, 1]), weights),
        ],
    })
}

#[test]
fn experts_have_the_weights_of_their_tokens() {
    let response = routed(&json!([2, 0, 1, 2]), &json!([0.75, 0.25, 0.5, 0.125]));
    let chart = chart(LabPicture::Routing, &response);
    let rows = chart.grids[0].cells.iter();
    let values: Vec<Vec<Option<f64>>> = rows
        .map(|row| row.iter().map(|c| c.value).collect())
        .collect();
    let expected = [
        [Some(0.25), None, Some(0.75)],
        [None, Some(0.5), Some(0.125)],
    ];
    assert_eq!(values, expected);
    assert_eq!(
        (chart.end, &chart.grids[0].rows),
        (1.0, &vec!["0 a".to_owned(), "1 b".to_owned()])
    );
    check_picture("routing", &chart);
    // Of a model, by the ids of tokens.
    let scratch = scratch();
    let model = made_up(scratch.path(), "qwen3moe", &[]);
    let (found, ..) = drawn(
        "routing",
        text(&model),
        &["--tokens", "1,2,3,4"],
        scratch.path(),
    );
    let chart = self::chart(LabPicture::Routing, &found);
    check_picture("routing of a model", &chart);
    for grid in &chart.grids {
        for row in &grid.cells {
            let own: Vec<f64> = row.iter().filter_map(|cell| cell.value).collect();
            assert!(own.len() > 1 && own.len() < row.len(), "{row:?}");
            assert!((own.iter().sum::<f64>() - 1.0).abs() < 1e-3, "{row:?}");
        }
    }
}

#[test]
fn texts_of_tokens_are_shown_with_escapes_and_stay_in_their_cells() {
    let long = "x".repeat(5000);
    let hostile = [
        "</text><script>alert(1)</script>",
        "\"quoted\"",
        "a\nb\tc",
        "&amp;",
        "\u{202e}abc",
        "\u{0}\u{1b}[31m",
        "\u{fffd}",
        "\u{4e2d}\u{6587}\u{4e2d}\u{6587}\u{4e2d}\u{6587}\u{4e2d}\u{6587}",
        "]]>",
        "",
        " ",
        &long,
    ];
    assert_eq!(pictures::token_text(" \"a'\n"), "\u{b7}\\\"a'\\n");
    assert_eq!(pictures::token_text("\u{202e}\u{0}"), "\\u{202e}\\0");
    let rows = hostile.iter().enumerate().map(|(at, token)| {
        json!({ "position": at, "top": [{ "id": at, "token": token, "logprob": -(at as f64) }], "targets": [] })
    });
    let rows: Value = rows.collect();
    let layers: Value = hostile
        .iter()
        .map(|name| json!({ "point": name, "rows": rows }))
        .collect();
    let response = json!({
        "model": hostile[0], "pieces": hostile, "results": [{ "lab": { "lens": layers } }],
    });
    check_picture("hostile", &chart(LabPicture::Lens, &response));
    let pairs: Value = (0..hostile.len()).map(|at| json!([at])).collect();
    let effects: Value = hostile
        .iter()
        .map(|_| json!(vec![json!(-3.0); hostile.len()]))
        .collect();
    let response = json!({
        "pieces": { "clean": hostile, "corrupt": [] }, "points": hostile, "positions": pairs,
        "effects": effects, "clean": 1e300, "corrupt": null,
    });
    check_picture("hostile", &chart(LabPicture::Patch, &response));
    let ones = json!(vec![0.5; hostile.len() * hostile.len()]);
    let all: Value = (0..hostile.len()).map(|at| json!(at)).collect();
    let n = hostile.len();
    let response = json!({
        "pieces": hostile,
        "captures": [{ "point": "layers.0.attn.weights", "positions": all, "shape": [n, 1, n], "data": ones }],
    });
    check_picture("hostile", &chart(LabPicture::Attention, &response));
}

/// The colours of all cells of a picture, by their texts.
fn classes(chart: &Chart) -> HashMap<String, String> {
    let (mut class, mut boxes) = (String::new(), Vec::new());
    let mut out = HashMap::new();
    for item in &svg::chart(chart).items {
        match item {
            DrawItem::Open(name, _) => class = (*name).into(),
            DrawItem::Box(place, _, "swatch") => boxes.push((*place, class.clone())),
            DrawItem::Text(_, _, _, TextStyle::Small, "on", text) => {
                let own = item.text_rect().expect("a text");
                let found = boxes.iter().rfind(|(cell, _)| is_in(&own, cell));
                out.insert(text.clone(), found.expect("a cell").1.clone());
            }
            _ => {}
        }
    }
    out
}

#[test]
fn numbers_below_zero_have_the_colours_of_those_above_it_mirrored() {
    let effects = |all: &[f64]| {
        json!({
            "points": ["layers.0.out"], "effects": [all],
            "positions": (0..all.len()).map(|at| vec![at]).collect::<Vec<_>>(),
        })
    };
    let values = [0.04, 0.07, 0.15, 0.25, 0.4, 0.5, 0.7, 0.8, 0.95, 3.0];
    let both: Vec<f64> = values.iter().flat_map(|v| [*v, -*v]).collect();
    let signed = chart(LabPicture::Patch, &effects(&both));
    check_picture("signed", &signed);
    let found = classes(&signed);
    assert_eq!(found.len(), both.len());
    for (value, level) in values.iter().zip([0, 1, 2, 3, 4, 5, 6, 7, 8, 8]) {
        let below = if level == 0 { "o" } else { "u" };
        assert_eq!(found[&format!("{value:.2}")], format!("hot o{level}"));
        assert_eq!(
            found[&format!("-{value:.2}")],
            format!("hot {below}{level}")
        );
    }
    // The legend has the colours that occur, and says what they are.
    let picture = pictures::svg(&signed);
    for text in ["blue is below zero", "\u{2264} -0.9", "-0.05 to 0.05"] {
        assert!(picture.contains(text), "{text}");
    }
    let picture = pictures::svg(&chart(LabPicture::Patch, &effects(&[0.5, -0.12])));
    for (text, is_there) in [
        ("-0.2 to -0.1<", true),
        ("-0.1 to -0.05", true),
        ("-0.3 to", false),
    ] {
        assert_eq!(picture.contains(text), is_there, "{text}");
    }
    let nearly = pictures::svg(&chart(LabPicture::Patch, &effects(&[0.5, -0.01])));
    assert!(!nearly.contains("blue") && nearly.contains("-0.05 to 0.05"));
    let plain = pictures::svg(&chart(LabPicture::Patch, &effects(&[0.5, 0.01])));
    assert!(!plain.contains("blue") && plain.contains("&lt; 0.05"));
}

#[test]
fn wide_grids_go_on_below_and_larger_ones_are_refused() {
    let grid = |n: usize, m: usize| {
        let row: Value = (0..m).map(|at| json!(at as f64 / m as f64)).collect();
        json!({
            "points": (0..n).map(|at| format!("layers.{at}.out")).collect::<Vec<_>>(),
            "positions": (0..m).map(|at| vec![at]).collect::<Vec<_>>(),
            "effects": vec![row; n],
        })
    };
    let wide = chart(LabPicture::Patch, &grid(3, 300));
    check_picture("wide", &wide);
    assert!(svg::chart(&wide).w < 2000.0);
    let n = MAX_CELLS / 100;
    assert_eq!(chart(LabPicture::Patch, &grid(n, 100)).n_cells(), MAX_CELLS);
    let refused = |picture, response: &Value| {
        let chart = pictures::chart(picture, response, &ChartFilter::default());
        chart.expect_err("refused").to_string()
    };
    let message = refused(LabPicture::Patch, &grid(n + 1, 100));
    assert!(
        message.contains("40100 cells") && message.contains("40000"),
        "{message}"
    );
    let good = json!([0.5, 0.5, 0.5, 0.5]);
    for (picture, response, part) in [
        (LabPicture::Patch, json!({}), "`positions`"),
        (
            LabPicture::Patch,
            json!({ "positions": [[0]], "points": ["a"], "effects": [[1, 2]] }),
            "one for each",
        ),
        (
            LabPicture::Patch,
            json!({ "positions": [[0]], "points": [], "effects": [] }),
            "nothing to draw",
        ),
        (
            LabPicture::Patch,
            json!({ "positions": [["a"]], "points": [], "effects": [] }),
            "positions from 0",
        ),
        (LabPicture::Lens, json!([]), "`lens`"),
        (
            LabPicture::Lens,
            json!({ "lens": [{ "point": "a", "rows": [{}] }] }),
            "positions from 0",
        ),
        (
            LabPicture::Routing,
            routed(&json!([1e30, 0, 0, 0]), &good),
            "cells, the limit",
        ),
        (
            LabPicture::Routing,
            routed(&json!([1]), &good),
            "which is not `shape`",
        ),
        (
            LabPicture::Routing,
            routed(&json!("AAAA"), &good),
            "expected 4 for each",
        ),
        (
            LabPicture::Attention,
            json!({ "captures": [{ "point": "a.weights", "tensor": "a" }] }),
            "in a file",
        ),
        (
            LabPicture::Attention,
            json!({ "captures": [{ "point": "a.weights", "positions": [], "shape": [0, 1, 1], "data": [] }] }),
            "which is not `shape`",
        ),
        (
            LabPicture::Attention,
            routed(&json!([0, 0, 0, 0]), &good),
            "there are no captures",
        ),
    ] {
        let message = refused(picture, &response);
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn the_server_draws_the_same_diagram_as_the_command() {
    let server = Server::shared();
    let lab = json!({ "lens": { "positions": "prompt" } });
    let response = server.post("/v1/lab/run", &json!({ "prompt": CLEAN, "lab": lab }));
    let mut asked = json!({ "picture": "lens", "response": response });
    let ask = |asked: &Value| {
        server.raw(
            "POST",
            "/v1/lab/pictures",
            "application/json",
            &asked.to_string(),
        )
    };
    let (status, head, svg) = ask(&asked);
    assert_eq!(status, 200, "{svg}");
    assert!(head.contains("content-type: image/svg+xml"), "{head}");
    assert!(head.contains("sandbox"), "{head}");
    assert_eq!(svg, pictures::svg(&chart(LabPicture::Lens, &response)));
    asked["layers"] = json!([1]);
    let (_, _, one) = ask(&asked);
    assert!(one.contains("layers.1.out") && !one.contains("layers.0.out"));
    for (field, value, message) in [
        ("picture", json!("patch"), "`positions`"),
        ("picture", json!("cake"), "picture"),
        ("layers", json!([77]), "nothing to draw"),
        ("response", json!({}), "`lens`: expected a list"),
    ] {
        let mut wrong = asked.clone();
        wrong[field] = value;
        let (status, _, body) = ask(&wrong);
        assert_eq!(status, 400, "{body}");
        assert!(body.contains(message), "{body}");
    }
}

#[test]
fn errors_of_a_prompt_are_reported_before_it_is_read() {
    let scratch = scratch();
    let svg = scratch.path().join("a.svg");
    let long = "sea ".repeat(300);
    let refused = |arguments: &[&str], message: &str| {
        let all = [&["lab"], arguments, &["--svg", text(&svg)]].concat();
        check_refused(&all, 1, &[message]);
        assert!(!bench(&all).err.contains("prompt 0"));
    };
    let attention = ["attention", "tiny-chat", "--prompt", &long];
    refused(&attention, "the picture has");
    let layers = ["lens", "tiny-chat", "--prompt", "a", "--layers", "77"];
    refused(&layers, "no point is named `layers.77.out`");
}

#[test]
fn parts_of_a_logit_are_drawn_by_heads_and_by_positions() {
    let scratch = scratch();
    let (found, svg, _) = drawn(
        "attribution",
        "tiny-chat",
        &["--prompt", CLEAN, "--of", " the"],
        scratch.path(),
    );
    let own = &found["results"][0]["lab"]["attribution"];
    let chart = self::chart(LabPicture::Attribution, &found);
    check_picture("attribution", &chart);
    let [grid] = chart.grids.as_slice() else {
        panic!("{} grids", chart.grids.len());
    };
    let parts = own["parts"].as_array().expect("parts");
    let n_slots = parts
        .iter()
        .filter(|part| !part.as_str().expect("a name").contains(".heads."))
        .count();
    assert_eq!((grid.rows.len(), grid.columns.len()), (n_slots, 5));
    assert!(svg.contains("layers.1.attn") && svg.contains("head 3") && svg.contains("rest"));
    let cells = grid.cells.iter().flatten().filter_map(|cell| cell.value);
    let sum = cells.sum::<f64>() + own["rows"][0]["constant"].as_f64().expect("a number");
    let logit = own["rows"][0]["logit"].as_f64().expect("a number");
    assert!(
        (sum - logit).abs() < 2e-3 * logit.abs().max(1.0),
        "{sum} {logit}"
    );
    let (found, ..) = drawn(
        "attribution",
        "tiny-chat",
        &["--prompt", CLEAN, "--of", " the", "--to", "layers"],
        scratch.path(),
    );
    let chart = self::chart(LabPicture::Attribution, &found);
    check_picture("attribution to layers", &chart);
    let n = found["tokens"].as_array().expect("tokens").len();
    assert_eq!(chart.grids[0].columns.len(), n);
    assert_eq!(chart.grids[0].rows[..2], ["embed", "layers.0"]);
    let chosen = ChartFilter {
        layers: vec![1],
        ..ChartFilter::default()
    };
    let one = pictures::chart(LabPicture::Attribution, &found, &chosen);
    assert_eq!(one.expect("it is there").grids[0].rows, ["layers.1"]);
    for (response, message) in [
        (json!({}), "`parts`"),
        (
            json!({ "attribution": { "parts": ["a"], "rows": [{ "position": 0, "values": [] }] } }),
            "one for each part",
        ),
        (
            json!({ "attribution": { "parts": ["a.heads.99999999999"], "rows": [{ "position": 0, "values": [1] }] } }),
            "cells",
        ),
    ] {
        let refused = pictures::chart(LabPicture::Attribution, &response, &ChartFilter::default());
        let refused = refused.expect_err("it is refused").to_string();
        assert!(refused.contains(message), "{refused}");
    }
}
