//! `POST /v1/lab/patch`: runs of a prompt with values of another.

use serde_json::{Value, json};

use crate::support::server::{Server, with};

const CLEAN: &str = "The sea is wide and";
const CORRUPT: &str = "The wide is sea and";

fn grid(server: &Server, extra: &Value) -> Value {
    let body =
        json!({ "clean": CLEAN, "corrupt": CORRUPT, "metric": { "token": 5, "against": 6 } });
    server.post("/v1/lab/patch", &with(body, extra))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn patching_all_positions_gives_the_clean_run_and_one_equals_an_edit() {
    let server = Server::split(&["--deterministic"]);
    let plain = server.post("/tokenize", &json!({ "prompt": CLEAN }))["tokens"].clone();
    let n = plain.as_array().expect("tokens").len();
    let all = grid(
        &server,
        &json!({ "points": ["embed.x", "layers.*.out", "layers.0.attn.x"], "positions": "all" }),
    );
    assert_ne!(all["clean"], all["corrupt"]);
    assert_eq!(all["tokens"]["clean"], plain);
    let (clean, corrupt) = (number(&all["clean"]), number(&all["corrupt"]));
    for (point, row) in all["points"]
        .as_array()
        .expect("points")
        .iter()
        .zip(all["values"].as_array().expect("rows"))
    {
        assert_eq!(row.as_array().map(Vec::len), Some(1));
        assert!(
            (number(&row[0]) - clean).abs() < 1e-5,
            "{point}: {row} {clean}"
        );
    }
    // One position at a time, in more runs than are submitted together.
    let each = grid(
        &server,
        &json!({ "points": ["layers.*.out", "layers.*.attn.heads", "layers.*.ffn.out", "layers.*.attn.q", "embed.x"] }),
    );
    let points = each["points"].as_array().expect("points");
    let rows = each["values"].as_array().expect("rows");
    let columns: Vec<Value> = (0..n).map(|at| json!([at])).collect();
    assert_eq!(each["positions"], json!(columns));
    assert!(points.len() * n > 64, "{}", points.len());
    // After the last layer only the last token counts.
    let last = rows[points
        .iter()
        .rposition(|p| {
            p.as_str()
                .is_some_and(|p| p.ends_with(".out") && p.matches('.').count() == 2)
        })
        .expect("there is one")]
    .clone();
    assert_eq!(last[0], all["corrupt"]);
    assert!((number(&last[n - 1]) - clean).abs() < 1e-5);
    let found = &each["effects"][0][n - 1];
    assert!((number(found) - (number(&rows[0][n - 1]) - corrupt) / (clean - corrupt)).abs() < 1e-9);
    // The same as an edit with a captured row.
    let run = |prompt: &str, lab: Value| {
        let lab = with(lab, &json!({ "encoding": "numbers" }));
        let answer = server.post("/v1/lab/run", &json!({ "prompt": prompt, "lab": lab }));
        answer["results"][0]["lab"]["captures"][0]["data"].clone()
    };
    for (at, point) in points.iter().enumerate() {
        let column = n / 2;
        let row = run(
            CLEAN,
            json!({ "captures": [{ "point": point, "positions": [column] }] }),
        );
        let edit = json!({ "point": point, "op": "set", "positions": [column], "vector": row });
        let logits = run(
            CORRUPT,
            json!({ "captures": [{ "point": "head.logits" }], "edits": [edit] }),
        );
        let expected = number(&logits[5]) - number(&logits[6]);
        assert!(
            (number(&rows[at][column]) - expected).abs() < 1e-5,
            "{point}"
        );
    }
    let own = grid(
        &server,
        &json!({ "positions": [-1], "metric": { "token": 5 } }),
    );
    assert!(number(&own["clean"]) < 0.0, "a log-probability");
}

#[test]
fn invalid_patching_requests_are_refused_with_their_field() {
    let server = Server::start(&["--lab-bytes", "200K"]);
    for (extra, message) in [
        (json!({ "corrupt": "short" }), "tokens, expected"),
        (json!({ "points": ["layers.9.out"] }), "no point is named"),
        (json!({ "points": ["head.logits"] }), "not changed"),
        (json!({ "points": vec!["layers.0.out"; 65] }), "at most 64"),
        (json!({ "positions": [99] }), "ascending positions"),
        (json!({ "positions": [2, 1] }), "ascending positions"),
        (json!({ "positions": "answer" }), "ascending positions"),
        (json!({ "metric": {} }), "token"),
        (json!({ "metric": { "token": 99_999_999 } }), "token id"),
        (
            json!({ "metric": { "token": "many tokens of text" } }),
            "expected one",
        ),
        (
            json!({ "clean": [1, 2], "corrupt": ["a", "b"] }),
            "more than one",
        ),
        (
            json!({ "clean": vec![7; 400], "corrupt": vec![8; 400], "points": vec!["layers.0.out"; 11] }),
            "4400 runs, the limit is 4096",
        ),
        (
            json!({ "clean": vec![7; 400], "corrupt": vec![8; 400] }),
            "the limit is 204800",
        ),
    ] {
        let body = json!({ "clean": CLEAN, "corrupt": CORRUPT, "metric": { "token": 5 } });
        let (status, answer) = server.json("POST", "/v1/lab/patch", &with(body, &extra));
        let found = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            status == 400 && found.contains(message),
            "{message}: {status} {answer}"
        );
    }
}
