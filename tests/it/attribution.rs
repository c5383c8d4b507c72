//! A logit as a sum of what parts of a model add to the hidden state.

use std::sync::Arc;

use lab_bench::arch::Mode;
use lab_bench::model::{Batch, Lab, LabCapture, Positions};
use lab_bench::plan::Plan;
use lab_bench::weights::TensorType;
use serde_json::{Value, json};

use crate::command::scratch;
use crate::goldens::{goldens, model, options};
use crate::server::{Server, with};

/// The softcap of a model's logits, 0 without.
fn softcap(def: &str) -> f64 {
    let line = def.lines().find(|line| line.starts_with("softcap = "));
    line.map_or(0.0, |_| f64::NAN)
}

/// What the kernels of a type may cost a logit, against the largest: they round what they multiply with.
fn of_kernels(ty: TensorType) -> f64 {
    match ty {
        TensorType::F32 => 1e-4,
        TensorType::F16 | TensorType::BF16 => 3e-3,
        _ => 2e-2,
    }
}

#[test]
fn a_logit_is_linear_in_the_hidden_state_once_the_scale_of_the_norm_is_known() {
    let scratch = scratch();
    let (mut n_compared, mut failures) = (0, Vec::new());
    for golden in goldens(scratch.path(), |_| true) {
        if golden.def.mode == Mode::Encoder {
            continue;
        }
        let mut model = model(&golden, options());
        let points = Arc::clone(model.points());
        let (Ok(outs), Ok(logits)) = (points.find("layers.*.out"), points.find("head.logits"))
        else {
            continue;
        };
        let last = *outs.last().expect("there are some");
        let n_vocab = points.all[logits[0]].width() as usize;
        let n = golden.tokens.len();
        let lab = Lab::new(
            vec![LabCapture {
                point: last,
                positions: Positions::List(Arc::new([n as u32 - 1])),
            }],
            Vec::new(),
        );
        model.begin(0, &[], Some(&Arc::new(lab)));
        let mut batch = Batch::default();
        for (position, token) in (0..).zip(&golden.tokens) {
            batch.push(*token, 0, position, position as usize + 1 == n);
        }
        let logits = model.forward(&batch).expect("it runs").to_vec();
        assert_eq!(logits.len(), n_vocab);
        let x = model.taken().swap_remove(0).row;
        let tokens = [0, 1, n_vocab / 2, n_vocab - 1];
        let mut sums = Vec::new();
        for token in tokens {
            let Ok(direct) = model.direct_logit(token as u32, &x) else {
                break;
            };
            let pairs = x.iter().zip(&direct.direction);
            sums.push(pairs.map(|(x, d)| f64::from(*x) * d).sum::<f64>() + direct.constant);
        }
        if sums.len() < tokens.len() {
            // Several hidden states, which a norm of one width does not read.
            println!("{}: refused", golden.name);
            continue;
        }
        let plan = Plan::new(&golden.def, golden.weights.metadata(), &golden.weights);
        let types = plan.expect("it fits").tensors;
        let bound = types
            .iter()
            .filter_map(|tensor| tensor.ty)
            .map(of_kernels)
            .fold(0.0, f64::max);
        let cap = softcap(&golden.def.to_toml());
        let size = logits
            .iter()
            .fold(0.0f64, |most, z| most.max(f64::from(z.abs())));
        for (token, sum) in tokens.iter().zip(sums) {
            let found = f64::from(logits[*token]);
            let is_close = (found - sum).abs() <= bound * size;
            let is_capped = cap.is_nan()
                && found.signum() == sum.signum()
                && found.abs() <= sum.abs() + bound * size;
            if !is_close && !is_capped {
                failures.push(format!("{}: token {token}: {found} {sum}", golden.name));
            }
        }
        n_compared += 1;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(n_compared > 100, "{n_compared}");
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn parts_of_a_logit_sum_to_it() {
    let server = Server::start(&["--deterministic"]);
    let run = |extra: Value, edits: Value| {
        let attribution = with(json!({ "of": 5 }), &extra);
        let lab = json!({
            "attribution": attribution, "edits": edits, "encoding": "numbers",
            "captures": [{ "point": "head.logits", "positions": "prompt" }],
        });
        let body = json!({ "prompt": "The sea is wide and", "lab": lab });
        server.post("/v1/lab/run", &body)["results"][0]["lab"].clone()
    };
    for (to, n_parts) in [("layers", 1), ("slots", 2)] {
        let found = run(json!({ "to": to, "positions": "prompt" }), json!([]));
        let own = &found["attribution"];
        assert_eq!(own["of"]["id"], 5);
        let parts = own["parts"].as_array().expect("parts");
        assert_eq!(parts[0], "embed");
        assert!(parts.len() > 2 && (parts.len() - 1) % n_parts == 0, "{own}");
        let rows = own["rows"].as_array().expect("rows");
        let n = found["captures"][0]["positions"]
            .as_array()
            .expect("positions")
            .len();
        assert_eq!(rows.len(), n);
        let logits = found["captures"][0]["data"].as_array().expect("numbers");
        for (at, row) in rows.iter().enumerate() {
            assert_eq!(row["position"], json!(at));
            let values = row["values"].as_array().expect("values");
            let sum: f64 = values.iter().map(number).sum::<f64>() + number(&row["constant"]);
            let logit = number(&logits[at * logits.len() / n + 5]);
            assert!(
                (sum - logit).abs() < 2e-3 * logit.abs().max(1.0),
                "{sum} {logit}"
            );
            assert!((number(&row["logit"]) - logit).abs() < 1e-4);
            assert!(values.iter().all(|v| number(v) != 0.0), "{row}");
        }
        // A slot that adds nothing has no part in it.
        let zero = json!([{ "point": "layers.1.ffn.out", "op": "zero" }]);
        let found = run(json!({ "to": to }), zero);
        let row = &found["attribution"]["rows"][0];
        if let Some(at) = parts.iter().position(|part| part == "layers.1.ffn") {
            assert!(number(&row["values"][at]).abs() < 1e-6, "{row}");
        }
    }
    let layers = run(json!({}), json!([]))["attribution"].clone();
    let slots = run(json!({ "to": "slots" }), json!([]))["attribution"].clone();
    let [layers, slots] = [layers, slots].map(|a| a["rows"][0]["values"].clone());
    assert!((number(&slots[1]) + number(&slots[2]) - number(&layers[1])).abs() < 1e-6);
    for (attribution, message) in [
        (json!({ "of": 99_999_999 }), "not a token id"),
        (json!({ "of": "many tokens of text" }), "expected one"),
        (json!({ "of": 5, "to": "neurons" }), "expected"),
        (json!({ "to": "layers" }), "of"),
    ] {
        let body = json!({ "prompt": "a", "lab": { "attribution": attribution } });
        let (status, answer) = server.json("POST", "/v1/lab/run", &body);
        let found = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            status == 400 && found.contains(message),
            "{status} {answer}"
        );
    }
}
