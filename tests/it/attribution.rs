//! A logit as a sum of what parts of a model add to the hidden state.

use std::sync::Arc;

use lab_base::weights::TensorType;
use lab_core::arch::{Mode, ResolvedOption};
use lab_core::model::{Batch, Lab, LabCapture, LabEdit, LabOp, Positions};
use lab_core::plan::Plan;
use serde_json::{Value, json};

use crate::goldens::{all_goldens, model, options};
use crate::support::server::{Server, with};

/// The softcap of a model's logits, 0 without.
fn softcap(plan: &Plan) -> f64 {
    let unit = plan.head.as_ref().and_then(|head| head.unit.as_ref());
    match unit.and_then(|unit| unit.option("softcap")) {
        Some(ResolvedOption::Float(cap)) => *cap,
        _ => 0.0,
    }
}

/// Whether a dense layer precedes the logits.
fn has_transform(plan: &Plan) -> bool {
    let unit = plan.head.as_ref().and_then(|head| head.unit.as_ref());
    unit.is_some_and(|unit| unit.weight("dense").is_some())
}

/// What the kernels of a type may cost a logit, against the largest: they round what they multiply with.
fn of_kernels(ty: TensorType) -> f64 {
    match ty {
        TensorType::F32 => 1e-4,
        TensorType::F16 | TensorType::BF16 => 3e-3,
        _ => 2e-2,
    }
}

/// What the kernels of a model's types may cost.
fn bound(plan: &Plan) -> f64 {
    let types = plan.tensors.iter().filter_map(|tensor| tensor.ty);
    types.map(of_kernels).fold(0.0, f64::max)
}

fn along(x: &[f32], direction: &[f64]) -> f64 {
    let pairs = x.iter().zip(direction);
    pairs.map(|(x, d)| f64::from(*x) * d).sum()
}

#[test]
fn a_logit_is_linear_in_the_hidden_state_once_the_scale_of_the_norm_is_known() {
    let (mut n_compared, mut n_capped, mut failures) = (0, 0, Vec::new());
    for golden in all_goldens() {
        if golden.def.mode == Mode::Encoder || has_transform(&golden.plan) {
            continue;
        }
        let mut model = model(golden, options());
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
        let x = model.captured_rows().swap_remove(0).row;
        let tokens = [0, 1, n_vocab / 2, n_vocab - 1];
        let mut sums = Vec::new();
        for token in tokens {
            let direct = model.direct_logit(token as u32).expect("there is a head");
            if direct.direction.len() != x.len() {
                break;
            }
            sums.push(along(&x, &direct.direction) / direct.divisor_of(&x) + direct.constant);
        }
        if sums.len() < tokens.len() {
            // Several hidden states, which a norm of one width does not read.
            println!("{}: refused", golden.name);
            continue;
        }
        let plan = &golden.plan;
        let (bound, cap) = (bound(plan), softcap(plan));
        n_capped += usize::from(cap > 0.0);
        let size = logits
            .iter()
            .fold(0.0f64, |most, z| most.max(f64::from(z.abs())));
        for (token, sum) in tokens.iter().zip(sums) {
            let found = f64::from(logits[*token]);
            let expected = match cap > 0.0 {
                true => cap * (sum / cap).tanh(),
                false => sum,
            };
            if (found - expected).abs() > bound * size {
                failures.push(format!(
                    "{}: token {token}: {found} {expected}",
                    golden.name
                ));
            }
        }
        n_compared += 1;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(n_compared > 100 && n_capped > 2, "{n_compared} {n_capped}");
}

/// Where no norm follows the output projection, a slot whose heads are zero adds the rest; where an RMS norm without a bias
/// follows, there is no rest.
#[test]
fn contributions_of_heads_sum_to_their_slot_less_its_biases() {
    let (mut n_compared, mut failures) = ([0, 0], Vec::new());
    for golden in all_goldens() {
        if golden.def.mode == Mode::Encoder || has_transform(&golden.plan) {
            continue;
        }
        let mut model = model(golden, options());
        let points = Arc::clone(model.points());
        let plan = &golden.plan;
        let Some((at, sum)) = points.head_sums.iter().enumerate().next_back() else {
            continue;
        };
        let direct = model.direct_logit(1).expect("there is a head");
        if points.all[sum.after].width() as usize != direct.direction.len() {
            continue;
        }
        let n = golden.tokens.len() as u32;
        let last = Positions::List(Arc::new([n - 1]));
        let slot_path = points.all[sum.after].path.trim_end_matches(".x");
        let out = points.find(&format!("{slot_path}.out")).expect("it adds")[0];
        let wanted = [out, sum.heads].into_iter().chain(sum.normed.clone());
        let wanted: Vec<usize> = wanted.collect();
        let mut rows = |edits: Vec<LabEdit>| {
            let capture = |point: &usize| LabCapture {
                point: *point,
                positions: last.clone(),
            };
            let lab = Lab::new(wanted.iter().map(capture).collect(), edits);
            model.begin(0, &[], Some(&Arc::new(lab)));
            let mut batch = Batch::default();
            for (position, token) in (0..).zip(&golden.tokens) {
                batch.push(*token, 0, position, position + 1 == n);
            }
            model.forward(&batch).expect("it runs");
            let taken = model.captured_rows();
            model.release(0);
            let row = |point: &usize| {
                let mut own = taken.iter().filter(|row| row.point == *point);
                own.next().expect("it was captured").row.clone()
            };
            wanted.iter().map(row).collect::<Vec<_>>()
        };
        let plain = rows(Vec::new());
        let width = points.all[sum.heads].width() as usize;
        let zero = LabEdit {
            point: sum.heads,
            positions: Positions::Range(0, n),
            tokens: None,
            op: LabOp::Affine {
                factor: vec![0.0; width],
                offsets: vec![vec![0.0; width]],
            },
        };
        let without = rows(vec![zero]);
        let heads = model.direct_heads(at, &direct.direction).expect("a matrix");
        let divisors = heads.divisors.iter().zip(&plain[2..]);
        let by: f64 = divisors.map(|(norm, row)| norm.of(row)).product();
        let n_heads = points.all[sum.heads].shape[1] as usize;
        let size = width / n_heads;
        let each = plain[1].chunks(size).zip(heads.direction.chunks(size));
        let each: Vec<f64> = each.map(|(row, d)| along(row, d) / by).collect();
        let of_slot = along(&plain[0], &direct.direction);
        let rest = of_slot - each.iter().sum::<f64>();
        let mut slots = plan.layers.iter().flat_map(|layer| &layer.slots);
        let slot = slots.find(|slot| slot.path == slot_path).expect("a slot");
        let [branch] = slot.branches.as_slice() else {
            continue;
        };
        if !branch.block.updates.is_empty() {
            // What adapters add is linear in the heads too, and no part of them.
            continue;
        }
        let norms = branch.post.iter().chain(&slot.post);
        let expected = if norms.clone().next().is_none() {
            n_compared[0] += 1;
            along(&without[0], &direct.direction)
        } else if norms.clone().all(|norm| norm.bias.is_none())
            && branch.block.weight("o.bias").is_none()
        {
            n_compared[1] += 1;
            0.0
        } else {
            continue;
        };
        let size = each.iter().fold(of_slot.abs(), |sum, e| sum + e.abs());
        assert!(size > 1e-6, "{}: {each:?}", golden.name);
        if (rest - expected).abs() > bound(plan) * size {
            failures.push(format!("{}: {rest} {expected} of {size}", golden.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{n_compared:?}");
    assert!(n_compared[0] > 60 && n_compared[1] > 5, "{n_compared:?}");
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
    // What heads add is a part of what their slot adds.
    let slots = run(json!({ "to": "slots" }), json!([]))["attribution"].clone();
    let heads = run(json!({ "to": "heads" }), json!([]))["attribution"].clone();
    let parts = heads["parts"].as_array().expect("parts").iter();
    let parts = parts.zip(heads["rows"][0]["values"].as_array().expect("values"));
    let parts: Vec<(&str, f64)> = parts
        .map(|(part, value)| (part.as_str().expect("a name"), number(value)))
        .collect();
    let of_slots = slots["parts"].as_array().expect("parts").iter();
    let of_slots = of_slots.zip(slots["rows"][0]["values"].as_array().expect("values"));
    for (slot, value) in of_slots {
        let slot = slot.as_str().expect("a name");
        let own = parts.iter().filter(|(part, _)| part.starts_with(slot));
        let own: Vec<f64> = own.map(|(_, value)| *value).collect();
        let n = if slot.ends_with("attn") { 5 } else { 1 };
        assert_eq!(own.len(), n, "{slot} {parts:?}");
        assert!((own.iter().sum::<f64>() - number(value)).abs() < 1e-9);
    }
    assert_eq!(parts[1].0, "layers.0.attn.heads.0");
    assert_eq!(parts[5].0, "layers.0.attn.rest");
    assert!(
        parts[5].1.abs() < 2e-2 * parts[1].1.abs().max(1.0),
        "{parts:?}"
    );
    // A head that is taken out has no part.
    let zero = json!([{ "point": "layers.1.attn.heads", "op": "zero", "heads": [2] }]);
    let found = run(json!({ "to": "heads" }), zero)["attribution"].clone();
    let at = parts
        .iter()
        .position(|(part, _)| *part == "layers.1.attn.heads.2");
    let at = at.expect("a part");
    assert_eq!(number(&found["rows"][0]["values"][at]), 0.0);
    assert!(parts[at].1.abs() > 1e-6, "{parts:?}");
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
