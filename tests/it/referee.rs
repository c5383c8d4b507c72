//! Every named value of every golden, computed by the kernels and by plain loops in 64-bit numbers.

use std::collections::BTreeMap;

use lab_base::weights::TensorType;
use lab_core::arch::Mode;
use lab_core::model::{Batch, Model, NamedValue, Options, trace};
use lab_core::plan::Plan;

use crate::goldens::{Golden, Turns, all_goldens, model, options};
use crate::media_goldens::of_media;
use crate::support::nmse;

/// What rounding to f32 and the order of sums may cost a value, for each layer before it.
const ROUNDING: f64 = 1e-10;
/// ggml's GELU reads a table of half precision, in each layer.
const TABLE: f64 = 2e-7;
/// ggml rounds the second factor of a product with half precision weights to half precision.
const HALF: f64 = 5e-6;
/// ... and that of one with quantised weights to eight bits.
const EIGHT_BITS: f64 = 2e-3;

/// What the kernels of a golden's model may cost a value.
fn bound(plan: &Plan) -> f64 {
    let types = plan.tensors.iter().filter_map(|tensor| tensor.ty);
    let of_type = types.map(|ty| match ty {
        TensorType::F32 => 0.0,
        TensorType::F16 | TensorType::BF16 => HALF,
        _ => EIGHT_BITS,
    });
    let steps = trace(plan, 2).expect("a graph");
    let has_table = steps
        .iter()
        .any(|s| matches!(s.op.as_str(), "GELU" | "GEGLU"));
    let of_layer = if has_table { TABLE } else { ROUNDING };
    of_type.fold(of_layer * plan.layers.len().max(10) as f64, f64::max)
}

/// The values of two passes: most of the tokens, then the rest.
fn values(golden: &Golden, model: &mut Model) -> Vec<NamedValue> {
    let n = golden.tokens.len();
    let is_whole = model.options().n_ctx == 0;
    let ends = if is_whole {
        vec![0, n]
    } else {
        vec![0, n - 3, n]
    };
    let mut found = Vec::new();
    for pair in ends.windows(2) {
        let mut batch = Batch::default();
        for at in pair[0]..pair[1] {
            batch.push(golden.tokens[at], 0, at as u32, true);
        }
        model.forward(&batch).expect("the pass runs");
        found.extend(model.values().expect("values"));
    }
    found
}

/// The largest error of a value, and its path.
fn worst(golden: &Golden, options: &Options) -> (f64, String) {
    let of = |plain: bool| {
        let options = Options {
            plain,
            capture: true,
            ..options.clone()
        };
        values(golden, &mut model(golden, options))
    };
    let (kernels, loops) = (of(false), of(true));
    assert!(!loops.is_empty());
    let mut worst = (0.0, String::new());
    for (found, expected) in kernels.iter().zip(&loops) {
        assert_eq!(
            (&found.path, &found.shape),
            (&expected.path, &expected.shape)
        );
        // Scores of positions that are not attended to.
        let is_finite = |x: &f32| x.is_finite();
        let same = found.elements.iter().zip(&expected.elements);
        assert!(
            same.clone().all(|(a, b)| is_finite(a) == is_finite(b)),
            "{}",
            found.path
        );
        let (a, b): (Vec<f32>, Vec<f64>) = same
            .filter(|(a, _)| is_finite(a))
            .map(|(a, b)| (*a, f64::from(*b)))
            .unzip();
        let error = match b.iter().all(|x| *x == 0.0) {
            true => f64::from(a.iter().fold(0.0f32, |max, x| max.max(x.abs()))),
            false => nmse(&a, &b),
        };
        if error.is_nan() || error > worst.0 {
            worst = (error, found.path.clone());
        }
    }
    worst
}

#[test]
fn every_named_value_equals_plain_loops() {
    let (mut failures, mut n_exact) = (BTreeMap::new(), 0);
    let mut turns = Turns::new(2);
    for golden in all_goldens().chain(of_media().map(|of| &of.golden)) {
        let plan = &golden.plan;
        for flash_attn in turns.of(golden).into_iter().map(|at| at == 1) {
            let is_encoder = golden.def.mode == Mode::Encoder;
            let options = Options {
                flash_attn,
                n_ctx: if is_encoder { 0 } else { 512 },
                ..options()
            };
            let (error, path) = worst(golden, &options);
            println!("{:24} {flash_attn:5} {error:.1e} {path}", golden.name);
            if error.is_nan() || error > bound(plan) {
                failures.insert((golden.name.clone(), flash_attn), (error, path));
            }
            n_exact += usize::from(bound(plan) < 10.0 * TABLE);
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(n_exact > 120, "{n_exact} of the comparisons are close");
}
