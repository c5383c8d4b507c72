//! Values that are read and changed: what is captured equals what the pass has, edits change their own rows
//! alone, and both hold in shared passes. Over HTTP: plans, results, refusals.

use std::collections::HashMap;
use std::sync::Arc;

use lab_base::ggml;
use lab_base::tokenizer::Tokenizer;
use lab_base::weights::{TensorData, TensorEntry, TensorType, Weights};
use lab_core::arch::{Library, Mode, PointParts};
use lab_core::blocks::REGISTRY;
use lab_core::model::{
    Batch, CapturedRow, LOGITS, Lab, LabCapture, LabEdit, LabOp, Model, Options, Points, Positions,
};
use lab_core::models;
use lab_core::models::ModelSource;
use lab_core::plan::Plan;

use serde_json::{Value, json};

use crate::goldens::{Golden, all_goldens, golden, model, options};
use crate::support::command::{definitions, scratch};
use crate::support::hf;
use crate::support::memory_tensor::MemoryTensor;
use crate::support::nmse;
use crate::support::server::{Server, with};
use crate::support::vocabulary::with_vocabulary;

/// One of each kind: plain attention, fused projections, experts, latent attention, windows, recurrent states.
const KINDS: [&str; 9] = [
    "llama",
    "qwen3",
    "gpt2",
    "gemma2",
    "qwen3moe",
    "deepseek2",
    "mamba",
    "rwkv7",
    "jamba",
];

fn all(n: usize) -> Positions {
    Positions::Range(0, n as u32)
}

/// Every value that can be captured, of all tokens.
fn everything(points: &Points, n: usize) -> Vec<LabCapture> {
    let is_wanted =
        |at: &usize| points.all[*at].forces().is_none() && points.all[*at].path != LOGITS;
    let captures = (0..points.all.len()).filter(is_wanted);
    let captures = captures.map(|point| LabCapture {
        point,
        positions: all(n),
    });
    captures.collect()
}

fn read(model: &mut Model, sequence: u32, tokens: &[u32], lab: Option<Lab>) -> Vec<f32> {
    model.begin(sequence, &[], lab.map(Arc::new).as_ref());
    let mut batch = Batch::default();
    for (position, token) in (0..).zip(tokens) {
        batch.push(*token, sequence, position, true);
    }
    model.forward(&batch).expect("the pass runs").to_vec()
}

/// Captured rows of a point, one after another.
fn rows(taken: &[CapturedRow], point: usize, sequence: u32) -> Vec<f32> {
    let own = taken
        .iter()
        .filter(|r| r.point == point && r.sequence == sequence);
    own.flat_map(|row| row.row.clone()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn kinds() -> [&'static Golden; KINDS.len()] {
    KINDS.map(golden)
}

#[test]
fn captures_are_the_values_of_the_pass() {
    let found = kinds();
    for golden in found {
        let n = golden.tokens.len();
        let mut plain = model(
            golden,
            Options {
                capture: true,
                ..options()
            },
        );
        let expected = read(&mut plain, 0, &golden.tokens, None);
        let values = plain.values().expect("they are read");
        let values: HashMap<&str, &[f32]> = values
            .iter()
            .map(|value| (value.path.as_str(), value.elements.as_slice()))
            .collect();

        let mut asked = model(golden, options());
        let points = Arc::clone(asked.points());
        let lab = Lab::new(everything(&points, n), Vec::new());
        let logits = read(&mut asked, 0, &golden.tokens, Some(lab));
        assert_eq!(logits, expected, "{}: reading changes nothing", golden.name);
        let taken = asked.captured_rows();
        for (at, point) in points.all.iter().enumerate() {
            if point.forces().is_some() || point.path == LOGITS {
                continue;
            }
            let own = rows(&taken, at, 0);
            assert_eq!(own.len() as u64, point.width() * n as u64, "{}", point.path);
            assert_eq!(
                own,
                values[point.path.as_str()],
                "{}: {}",
                golden.name,
                point.path
            );
        }
        assert!(asked.captured_rows().is_empty());
        // Of every token, of every second one, and of the first and the last: where these are few, their rows are taken out
        // of a value, otherwise the value is kept.
        for step in [2, n - 1] {
            let places: Vec<u32> = (0..n as u32).step_by(step).collect();
            let mut captures = everything(&points, n);
            for capture in &mut captures {
                capture.positions = Positions::List(places.clone().into());
            }
            let lab = Lab::new(captures, Vec::new());
            let logits = read(&mut asked, 0, &golden.tokens, Some(lab));
            assert_eq!(logits, expected, "{}: reading changes nothing", golden.name);
            let taken = asked.captured_rows();
            for (at, point) in points.all.iter().enumerate() {
                if point.forces().is_some() || point.path == LOGITS {
                    continue;
                }
                let width = point.width() as usize;
                let all = values[point.path.as_str()].chunks_exact(width);
                let some: Vec<f32> = all.step_by(step).flatten().copied().collect();
                assert_eq!(rows(&taken, at, 0), some, "{}: {}", golden.name, point.path);
            }
        }
    }
}

#[test]
fn attention_weights_are_those_of_attention_step_by_step_in_every_kind_of_cache() {
    let mut n_compared = 0;
    for name in [
        "llama",
        "gpt2",
        "gemma2",
        "deepseek2",
        "jamba",
        "bloom",
        "gpt-oss",
        "bert",
    ] {
        let golden = golden(name);
        let n = golden.tokens.len();
        let is_encoder = golden.def.mode == Mode::Encoder;
        let alone = Options {
            n_ctx: 0,
            ..options()
        };
        let mut plain = model(
            golden,
            Options {
                capture: true,
                ..alone.clone()
            },
        );
        read(&mut plain, 0, &golden.tokens, None);
        let values = plain.values().expect("they are read");
        let blocks = Options {
            flash_attn: true,
            ..options()
        };
        for options in [alone, options(), blocks] {
            if is_encoder && options.n_ctx > 0 {
                continue;
            }
            let mut asked = model(golden, options);
            let points = Arc::clone(asked.points());
            let weights = (0..points.all.len()).filter(|at| {
                let point = &points.all[*at];
                point.spec.name == "weights"
                    && point.is_capturable()
                    && point.spec.parts == PointParts::Pairs
            });
            let weights: Vec<usize> = weights.collect();
            let capture = |point: &usize| LabCapture {
                point: *point,
                positions: all(n),
            };
            let lab = Arc::new(Lab::new(weights.iter().map(capture).collect(), Vec::new()));
            // Another sequence lies in the cache before it, and goes on in the same passes.
            let mut taken = Vec::new();
            asked.begin(1, &[], Some(&lab));
            asked.begin(0, &[], Some(&lab));
            let parts = if is_encoder {
                vec![0, n]
            } else {
                vec![0, n - 3, n]
            };
            for pair in parts.windows(2) {
                let mut batch = Batch::default();
                for sequence in [1, 0] {
                    for at in pair[0]..pair[1] {
                        batch.push(golden.tokens[at], sequence, at as u32, true);
                    }
                }
                asked.forward(&batch).expect("the pass runs");
                taken.extend(asked.captured_rows());
                if asked.options().n_ctx == 0 && !is_encoder {
                    break;
                }
            }
            for at in weights {
                let path = &points.all[at].path;
                let value = values
                    .iter()
                    .find(|value| value.path == *path)
                    .expect("it is computed");
                let [n_kv, heads] = [value.shape[0] as usize, value.shape[2] as usize];
                for sequence in [0, 1] {
                    let own = taken
                        .iter()
                        .filter(|r| r.point == at && r.sequence == sequence);
                    for row in own {
                        let len = row.row.len() / heads;
                        let expected = (0..heads).flat_map(|head| {
                            let start = (head * n + row.position as usize) * n_kv;
                            let of_head = &value.elements[start..start + n_kv];
                            assert!(of_head[len..].iter().all(|w| *w == 0.0), "{name}: {path}");
                            of_head[..len].iter().map(|w| f64::from(*w))
                        });
                        let error = nmse(&row.row, &expected.collect::<Vec<f64>>());
                        assert!(
                            error < 1e-6,
                            "{name}: {path} at {}: {error:.1e}",
                            row.position
                        );
                        n_compared += 1;
                    }
                }
            }
        }
    }
    assert!(n_compared > 1000, "{n_compared}");
}

#[test]
fn experts_are_excluded_and_forced_where_they_are_picked() {
    for name in ["qwen3moe", "deepseek2", "gpt-oss", "llama4"] {
        let golden = golden(name);
        let n = golden.tokens.len();
        let mut model = model(golden, options());
        let points = Arc::clone(model.points());
        let is_ranking = |at: &usize| points.all[*at].spec.name == "ranking";
        let ranking = (0..points.all.len())
            .find(is_ranking)
            .expect("it has experts");
        let path = points.all[ranking].path.replace(".ranking", ".picked");
        let picked = points.find(&path).expect("it is there")[0];
        let n_experts = points.all[ranking].width() as usize;
        let mut found = |expert: usize, by: f32| {
            let mut offset = vec![0.0; n_experts];
            offset[expert] = by;
            let edit = LabEdit {
                point: ranking,
                positions: Positions::Range(0, n as u32 - 1),
                tokens: None,
                op: affine(vec![1.0; n_experts], offset),
            };
            let capture = LabCapture {
                point: picked,
                positions: all(n),
            };
            let edits = if by == 0.0 { Vec::new() } else { vec![edit] };
            let logits = read(
                &mut model,
                0,
                &golden.tokens,
                Some(Lab::new(vec![capture], edits)),
            );
            assert!(logits.iter().all(|v| v.is_finite()), "{name}");
            let rows = rows(&model.captured_rows(), picked, 0);
            let width = rows.len() / n;
            let has = |row: &[f32]| row.contains(&(expert as f32));
            rows.chunks(width).map(has).collect::<Vec<bool>>()
        };
        let mut differs = false;
        for expert in 0..n_experts {
            let (plain, forced) = (found(expert, 0.0), found(expert, 1e30));
            let excluded = found(expert, -1e30);
            assert!(
                forced[..n - 1].iter().all(|has| *has),
                "{name}: {expert} is forced"
            );
            assert!(
                excluded[..n - 1].iter().all(|has| !has),
                "{name}: {expert} is excluded"
            );
            differs |= plain != forced && plain != excluded;
        }
        assert!(differs, "{name}: the tokens differ in what they pick");
    }
}

#[test]
fn setting_all_rows_to_their_own_values_changes_nothing() {
    let found = kinds();
    for golden in found {
        let n = golden.tokens.len();
        let mut model = model(golden, options());
        let points = Arc::clone(model.points());
        let lab = Lab::new(everything(&points, n), Vec::new());
        let expected = read(&mut model, 0, &golden.tokens, Some(lab));
        let taken = model.captured_rows();
        let editable = (0..points.all.len()).filter(|at| points.all[*at].is_editable());
        for at in editable {
            let point = &points.all[at];
            let width = point.width() as usize;
            let own = rows(&taken, at, 0);
            let edit = |offsets: Vec<Vec<f32>>| {
                let op = LabOp::Affine {
                    factor: vec![0.0; width],
                    offsets,
                };
                let positions = all(n);
                vec![LabEdit {
                    point: at,
                    positions,
                    tokens: None,
                    op,
                }]
            };
            let offsets: Vec<Vec<f32>> = own.chunks(width).map(<[f32]>::to_vec).collect();
            let patched = Lab::new(Vec::new(), edit(offsets.clone()));
            let found = read(&mut model, 0, &golden.tokens, Some(patched));
            assert_eq!(found, expected, "{}: {}", golden.name, point.path);
            // The same rows in another order are another computation.
            let mut turned = offsets;
            turned.rotate_left(1);
            if turned.iter().zip(own.chunks(width)).any(|(a, b)| a != b) {
                let turned = Lab::new(Vec::new(), edit(turned));
                let found = read(&mut model, 0, &golden.tokens, Some(turned));
                // Of some values the last layer or a softmax sees nothing.
                let is_seen = found != expected;
                let may_be_lost = ["ranking", "index_k", "index_q", "index_weights"];
                let is_lost = may_be_lost.contains(&point.spec.name);
                assert!(is_seen || is_lost, "{}: {}", golden.name, point.path);
            }
        }
    }
}

/// Weights with one tensor computed anew, as f32.
fn with_tensor(weights: &Weights, name: &str, change: impl Fn(&mut [f32])) -> Weights {
    let entry = |tensor| {
        let entry = weights.entry(tensor);
        if entry.name != name {
            return entry;
        }
        let stored = weights.data(tensor).expect("it is stored");
        let mut values = vec![0.0; tensor.elements() as usize];
        ggml::dequantize(&stored, tensor.ty, &mut values).expect("numbers");
        change(&mut values);
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let held = MemoryTensor::new(4 * tensor.shape[0], bytes);
        TensorEntry {
            ty: TensorType::F32,
            data: TensorData::Lazy(Arc::new(held)),
            ..entry
        }
    };
    let entries = weights.tensors().iter().map(entry).collect();
    Weights::of("changed".into(), weights.metadata().clone(), entries).expect("sound")
}

/// An edit of one point, of all tokens.
pub(crate) fn edit(points: &Points, path: &str, op: LabOp) -> Lab {
    let point = points.find(path).expect("there is such a point")[0];
    let positions = Positions::Range(0, u32::MAX);
    Lab::new(
        Vec::new(),
        vec![LabEdit {
            point,
            positions,
            tokens: None,
            op,
        }],
    )
}

/// `x * factor + offset`.
pub(crate) fn affine(factor: Vec<f32>, offset: Vec<f32>) -> LabOp {
    LabOp::Affine {
        factor,
        offsets: vec![offset],
    }
}

#[test]
fn a_head_that_is_zero_is_one_whose_output_weights_are() {
    for name in ["llama", "qwen3moe", "deepseek2"] {
        let golden = golden(name);
        let mut asked = model(golden, options());
        let points = Arc::clone(asked.points());
        let heads = points.find("layers.1.attn.heads").expect("there is one")[0];
        let [d, n_heads] = points.all[heads].shape[..] else {
            panic!("{:?}", points.all[heads].shape);
        };
        let (d, width) = (d as usize, (d * n_heads) as usize);
        let head = 1;
        let factor = (0..width).map(|i| if i / d == head { 0.0 } else { 1.0 });
        let op = affine(factor.collect(), vec![0.0; width]);
        let lab = edit(&points, "layers.1.attn.heads", op);
        let found = read(&mut asked, 0, &golden.tokens, Some(lab));

        let changed = with_tensor(&golden.weights, "blk.1.attn_output.weight", |values| {
            for row in values.chunks_mut(width) {
                row[head * d..(head + 1) * d].fill(0.0);
            }
        });
        let plan = Plan::new(&golden.def, changed.metadata(), &changed).expect("it fits");
        let without = Model::load(plan, &changed, options(), &mut |_, _| {});
        let expected = read(&mut without.expect("it loads"), 0, &golden.tokens, None);
        let expected: Vec<f64> = expected.iter().map(|v| f64::from(*v)).collect();
        let error = nmse(&found, &expected);
        assert!(error < 1e-12, "{name}: NMSE {error:.2e}");
        let plain = read(&mut asked, 0, &golden.tokens, None);
        assert!(
            nmse(&plain, &expected) > 1e-9,
            "{name}: the head does nothing"
        );
    }
}

#[test]
fn edits_have_their_documented_effect() {
    let golden = golden("llama");
    let n = golden.tokens.len();
    let mut model = model(golden, options());
    let points = Arc::clone(model.points());
    let at = points.find("layers.0.out").expect("it is there")[0];
    let width = points.all[at].width() as usize;
    let captured = |model: &mut Model, edits: Vec<LabEdit>| {
        let positions = all(n);
        let captures = vec![LabCapture {
            point: at,
            positions,
        }];
        read(model, 0, &golden.tokens, Some(Lab::new(captures, edits)));
        rows(&model.captured_rows(), at, 0)
    };
    let before = captured(&mut model, Vec::new());
    let numbers = |seed: f32| -> Vec<f32> { (0..width).map(|i| (i as f32 * seed).sin()).collect() };
    let (a, b, unit) = (numbers(0.7), numbers(1.3), {
        let v = numbers(2.1);
        let norm = v.iter().map(|e| e * e).sum::<f32>().sqrt();
        v.iter().map(|e| e / norm).collect::<Vec<f32>>()
    });
    let chosen: Vec<bool> = (0..width).map(|i| i % 3 == 0).collect();
    type Expected<'a> = Box<dyn Fn(&[f32]) -> Vec<f64> + 'a>;
    let f = |x: &f32| f64::from(*x);
    let length = |x: &[f32]| x.iter().map(|e| f(e) * f(e)).sum::<f64>().sqrt();
    let along = |x: &[f32]| x.iter().zip(&unit).map(|(x, v)| f(x) * f(v)).sum::<f64>();
    let bounds = [-0.1, 0.2];
    let (c, d) = (numbers(0.3), numbers(1.9));
    let feature = |x: &[f32]| {
        let sum = x.iter().zip(&c).map(|(x, v)| f(x) * f(v)).sum::<f64>() + 0.25;
        if sum > 0.125 { sum } else { 0.0 }
    };
    let of_features = |x: &[f32], low: f64, high: f64| -> Vec<f64> {
        let change = feature(x).clamp(low, high) - feature(x);
        (0..width).map(|i| f(&x[i]) + change * f(&d[i])).collect()
    };
    let bounded = |low: f32, high: f32| LabOp::Feature {
        encoder: c.clone(),
        decoder: d.clone(),
        bias: 0.25,
        threshold: 0.125,
        bounds: [low, high],
    };
    let cases: [(LabOp, Expected<'_>); 6] = [
        (bounded(2.0, 2.0), Box::new(|x| of_features(x, 2.0, 2.0))),
        (
            bounded(f32::NEG_INFINITY, 0.5),
            Box::new(|x| of_features(x, f64::NEG_INFINITY, 0.5)),
        ),
        (
            affine(a.clone(), b.clone()),
            Box::new(|x| (0..width).map(|i| f(&x[i]) * f(&a[i]) + f(&b[i])).collect()),
        ),
        (
            LabOp::Clamp {
                chosen: chosen.clone(),
                bounds,
            },
            Box::new(|x| {
                let one = |i: usize| {
                    if chosen[i] {
                        x[i].clamp(-0.1, 0.2)
                    } else {
                        x[i]
                    }
                };
                (0..width).map(|i| f(&one(i))).collect()
            }),
        ),
        (
            LabOp::Project {
                direction: unit.clone(),
                share: 0.5,
            },
            Box::new(|x| {
                let share = 0.5 * along(x);
                (0..width).map(|i| f(&x[i]) - share * f(&unit[i])).collect()
            }),
        ),
        (
            LabOp::Match {
                direction: unit.iter().map(|e| 2.0 * e).collect(),
            },
            Box::new(|x| {
                let length = 2.0 * length(x);
                (0..width)
                    .map(|i| f(&x[i]) + length * f(&unit[i]))
                    .collect()
            }),
        ),
    ];
    for (op, expected) in &cases {
        // Two tokens, and one edit after another of the same rows.
        for edits in [1, 2] {
            let positions = Positions::List(Arc::new([1, n as u32 - 1]));
            let one = LabEdit {
                point: at,
                positions: positions.clone(),
                tokens: None,
                op: op.clone(),
            };
            let after = captured(&mut model, vec![one; edits]);
            for (position, (x, y)) in before.chunks(width).zip(after.chunks(width)).enumerate() {
                if !positions.contains(position as u32) {
                    assert_eq!(bits(x), bits(y), "token {position} has no edit");
                    continue;
                }
                let mut wanted = x.to_vec();
                for _ in 0..edits {
                    wanted = expected(&wanted).iter().map(|v| *v as f32).collect();
                }
                let wanted: Vec<f64> = wanted.iter().map(f).collect();
                let error = nmse(y, &wanted);
                assert!(error < 1e-12, "{op:?}: NMSE {error:.2e}");
            }
        }
    }
}

#[test]
fn edits_of_a_model_equal_plain_loops() {
    let found = kinds();
    let mut n_compared = 0;
    for golden in found {
        let n = golden.tokens.len();
        let mut models = [false, true].map(|plain| {
            let options = Options { plain, ..options() };
            model(golden, options)
        });
        let points = Arc::clone(models[0].points());
        let unedited = models.each_mut().map(|m| read(m, 0, &golden.tokens, None));
        let wide: Vec<f64> = unedited[1].iter().map(|v| f64::from(*v)).collect();
        // Rounding of weights and tables is as large without an edit.
        let bound = 30.0 * nmse(&unedited[0], &wide) + 1e-9;
        let editable = (0..points.all.len()).filter(|at| {
            let point = &points.all[*at];
            point.is_editable()
                && point.path.starts_with("layers.1.")
                && point.spec.name != "ranking"
        });
        for at in editable {
            let point = &points.all[at];
            let width = point.width() as usize;
            let row = |seed: f32| -> Vec<f32> {
                (0..width).map(|i| (i as f32 * seed).sin() / 4.0).collect()
            };
            let chosen = (0..width).map(|i| i % 2 == 0).collect();
            let ops = [
                affine(vec![0.5; width], row(0.7)),
                LabOp::Clamp {
                    chosen,
                    bounds: [-0.25, 0.25],
                },
                LabOp::Project {
                    direction: row(1.3),
                    share: 0.5,
                },
                LabOp::Match {
                    direction: row(0.9),
                },
                LabOp::Feature {
                    encoder: row(0.3),
                    decoder: row(1.1),
                    bias: 1.0,
                    threshold: 0.0,
                    bounds: [3.0, 3.0],
                },
            ];
            // One op at each point, another at the next.
            let op = ops[n_compared % ops.len()].clone();
            let edit = LabEdit {
                point: at,
                positions: Positions::List(Arc::new([1, n as u32 - 2])),
                tokens: None,
                op,
            };
            let [kernels, loops] = models.each_mut().map(|m| {
                let lab = Lab::new(Vec::new(), vec![edit.clone()]);
                read(m, 0, &golden.tokens, Some(lab))
            });
            let loops: Vec<f64> = loops.iter().map(|v| f64::from(*v)).collect();
            let error = nmse(&kernels, &loops);
            assert!(
                error <= bound,
                "{}: {} {:?}: {error:.1e}, the bound is {bound:.1e}",
                golden.name,
                point.path,
                edit.op
            );
            n_compared += 1;
        }
    }
    assert!(n_compared > 60, "{n_compared}");
}

/// The built-in model with the prefix cache and eight sequences, bit for bit the same in any batch.
fn deterministic(ty: Option<TensorType>) -> (Model, Vec<Vec<u32>>) {
    let opened = models::open(&ModelSource::of(None), &definitions()).expect("the shipped model");
    let opened = match ty {
        Some(ty) => opened.quantised(&ty.into()).expect("it can be quantised"),
        None => opened,
    };
    let tokenizer = Tokenizer::from_metadata(opened.weights.metadata()).expect("a vocabulary");
    let texts = [
        "Hello",
        "The sea is",
        "2+2=",
        "Once upon a time there was a",
        "a",
        "yes and no",
    ];
    let texts = texts
        .iter()
        .map(|text| tokenizer.encode(text, true, false).expect("tokens"));
    let options = Options {
        n_seqs: 8,
        deterministic: true,
        ..Options::plain(1024, 256)
    };
    let model = Model::load(opened.plan, &opened.weights, options, &mut |_, _| {});
    (model.expect("it loads"), texts.collect())
}

#[test]
fn in_a_batch_of_eight_everything_is_as_alone_and_neighbours_of_edits_keep_their_bits() {
    eight_as_alone(None);
}

#[test]
fn in_a_batch_of_eight_values_of_quantised_models_are_as_alone() {
    for ty in [TensorType::Q8_0, TensorType::Q4_K, TensorType::Q5_0] {
        eight_as_alone(Some(ty));
    }
}

fn eight_as_alone(ty: Option<TensorType>) {
    let (mut model, texts) = deterministic(ty);
    let points = Arc::clone(model.points());
    let width = points.all[points.find("layers.0.out").expect("it is there")[0]].width() as usize;
    let push: Vec<f32> = (0..width).map(|i| (i as f32).cos()).collect();
    let lab = |i: usize| -> Option<Lab> {
        let point = |path: &str| points.find(path).expect("it is there");
        let capture = |path: &str, positions: Positions| {
            let found = point(path);
            found.into_iter().map(move |point| LabCapture {
                point,
                positions: positions.clone(),
            })
        };
        let steer = |path: &str, op: LabOp| LabEdit {
            point: point(path)[0],
            positions: Positions::Range(1, u32::MAX),
            tokens: None,
            op,
        };
        let everywhere = Positions::Range(0, u32::MAX);
        let add = affine(vec![1.0; width], push.clone());
        let half = affine(vec![0.5; width], vec![0.0; width]);
        let project = LabOp::Match {
            direction: push.clone(),
        };
        let captured: Vec<LabCapture> = capture("layers.*.out", everywhere.clone()).collect();
        match i {
            0 => None,
            1 => Some(Lab::new(captured, Vec::new())),
            2 => Some(Lab::new(captured, vec![steer("layers.0.out", add)])),
            3 => Some(Lab::new(captured, vec![steer("layers.0.out", half)])),
            4 => None,
            5 => Some(Lab::new(
                capture("head.norm", everywhere).chain(captured).collect(),
                vec![
                    steer("layers.1.attn.out", project),
                    steer("layers.0.out", add),
                ],
            )),
            6 => Some(Lab::new(captured, vec![steer("head.norm", add)])),
            _ => Some(Lab::new(
                capture("layers.1.attn.q", Positions::List(Arc::new([0, 2]))).collect(),
                Vec::new(),
            )),
        }
    };
    let text = |i: usize| &texts[i % texts.len()];
    let alone: Vec<(Vec<f32>, Vec<CapturedRow>)> = (0..8)
        .map(|i| {
            let logits = read(&mut model, i as u32, text(i), lab(i));
            let taken = model.captured_rows();
            model.release(i as u32);
            (logits, taken)
        })
        .collect();
    assert_ne!(alone[2].0, alone[0].0);
    let mut batch = Batch::default();
    for i in 0..8 {
        model.begin(i as u32, &[], lab(i).map(Arc::new).as_ref());
        for (position, token) in (0..).zip(text(i)) {
            batch.push(*token, i as u32, position, true);
        }
    }
    let together = model.forward(&batch).expect("the pass runs").to_vec();
    let taken = model.captured_rows();
    let mut first = 0;
    for (i, (logits, own)) in alone.iter().enumerate() {
        let found = &together[first..first + logits.len()];
        first += logits.len();
        assert_eq!(bits(found), bits(logits), "the logits of sequence {i}");
        let rows = taken.iter().filter(|r| r.sequence == i as u32).cloned();
        let key = |row: &CapturedRow| (row.point, row.position);
        let (mut rows, mut own) = (rows.collect::<Vec<_>>(), own.clone());
        rows.sort_by_key(key);
        own.sort_by_key(key);
        assert_eq!(rows, own, "the values of sequence {i}");
        assert_eq!(own.is_empty(), lab(i).is_none());
    }
}

#[test]
fn cached_values_with_an_edit_are_not_reused_without_it() {
    let (mut model, texts) = deterministic(None);
    let points = Arc::clone(model.points());
    let width = points.all[points.find("embed.x").expect("it is there")[0]].width() as usize;
    let text: Vec<u32> = texts[3].iter().cycle().take(70).copied().collect();
    let edited = |factor: f32| {
        let op = affine(vec![factor; width], vec![0.0; width]);
        Arc::new(edit(&points, "embed.x", op))
    };
    let labs = [None, Some(edited(2.0)), Some(edited(0.5))];
    let mut last = Vec::new();
    for _ in 0..2 {
        for lab in &labs {
            model.begin(0, &[], lab.as_ref());
            let known = model.resume(0, &text).n_cached;
            let mut batch = Batch::default();
            for (position, token) in text.iter().enumerate().skip(known) {
                let is_last = position + 1 == text.len();
                batch.push(*token, 0, position as u32, is_last);
            }
            let logits = model.forward(&batch).expect("it runs").to_vec();
            last.push((known, bits(&logits)));
            model.release(0);
        }
    }
    for i in 0..3 {
        assert_eq!(last[i].0, 0, "nothing of the others is found");
        assert!(last[i + 3].0 >= 64, "its own is");
        assert_eq!(last[i].1, last[i + 3].1);
        assert_ne!(last[i].1, last[(i + 1) % 3].1);
    }
}

#[test]
fn the_lens_of_the_last_layer_gives_the_logits() {
    let found = kinds();
    for golden in found {
        let n = golden.tokens.len();
        let mut model = model(golden, options());
        let points = Arc::clone(model.points());
        let layers = points.find("layers.*.out").expect("there are some");
        let last = *layers.last().expect("there are some");
        let lab = Lab::new(
            vec![LabCapture {
                point: last,
                positions: all(n),
            }],
            Vec::new(),
        );
        let logits = read(&mut model, 0, &golden.tokens, Some(lab));
        let hidden = rows(&model.captured_rows(), last, 0);
        let width = hidden.len() / n;
        let found = model.lens(0, (&hidden, width)).expect("there is a head");
        assert_eq!(bits(&found), bits(&logits), "{}", golden.name);
        // Of fewer rows too, and the model goes on.
        let one = model.lens(0, (&hidden[..width], width));
        let one = one.expect("there is a head");
        let expected: Vec<f64> = logits[..one.len()].iter().map(|v| f64::from(*v)).collect();
        assert!(nmse(&one, &expected) < 1e-9);
        assert_eq!(read(&mut model, 0, &golden.tokens, None), logits);
        assert!(model.lens(0, (&hidden[1..width], width)).is_err());
        assert!(model.lens(0, (&hidden[1..width], width - 1)).is_err());
    }
}

/// Layers that a definition repeats have keys and values of their own: what they give is what the layer gives, run once more with
/// its own results as its input.
#[test]
fn layers_that_a_definition_repeats_run_again() {
    let scratch = scratch();
    let golden = golden("llama");
    let n = golden.tokens.len();
    let mut once = model(golden, options());
    let points = Arc::clone(once.points());
    let place = |name: &str| points.find(name).expect("it is there")[0];
    let n_layers = points.find("layers.*.out").expect("layers").len();
    let last = place(&format!("layers.{}.out", n_layers - 1));
    let capture = LabCapture {
        point: last,
        positions: all(n),
    };
    let lab = Lab::new(vec![capture], Vec::new());
    read(&mut once, 0, &golden.tokens, Some(lab));
    let found = rows(&once.captured_rows(), last, 0);
    let width = found.len() / n;
    let again = LabEdit {
        point: place(&format!("layers.{}.in", n_layers - 1)),
        positions: all(n),
        tokens: None,
        op: LabOp::Affine {
            factor: vec![0.0; width],
            offsets: found.chunks(width).map(<[f32]>::to_vec).collect(),
        },
    };
    let expected = read(
        &mut once,
        0,
        &golden.tokens,
        Some(Lab::new(Vec::new(), vec![again])),
    );
    let folder = scratch.path().join("repeated");
    std::fs::create_dir(&folder).expect("made");
    let own = include_str!("../../archs/llama.arch.toml").replacen(
        "[[stack]]\n",
        "[[stack]]\ncount = \"n_layer + 1\"\nil = \"min(depth, n_layer - 1)\"\n",
        1,
    );
    std::fs::write(folder.join("llama.arch.toml"), own).expect("written");
    let library = Library::open(&REGISTRY, &[folder]).expect("it is readable");
    let def = library.get("llama").expect("it is sound");
    let plan = Plan::new(&def, golden.weights.metadata(), &golden.weights).expect("it fits");
    assert_eq!(plan.layers.len(), n_layers + 1);
    let repeated = Model::load(plan, &golden.weights, options(), &mut |_, _| {});
    let mut repeated = repeated.expect("it loads");
    let logits = read(&mut repeated, 0, &golden.tokens, None);
    let expected: Vec<f64> = expected.iter().map(|v| f64::from(*v)).collect();
    let error = nmse(&logits, &expected);
    assert!(error < 1e-9, "{error:.1e}");
}

#[test]
fn the_lens_reads_several_hidden_states_as_the_head_does() {
    let mut names = Vec::new();
    for golden in all_goldens() {
        let n = golden.tokens.len();
        let mut model = model(golden, options());
        let points = Arc::clone(model.points());
        let (Some(width), Ok(embed)) = (points.read_width(), points.find("embed.x")) else {
            continue;
        };
        if width as u64 == points.all[embed[0]].width() || points.find(LOGITS).is_err() {
            continue;
        }
        let layers = points.find("layers.*.out").expect("there are some");
        let capture = LabCapture {
            point: *layers.last().expect("there are some"),
            positions: all(n),
        };
        let lab = Lab::new(vec![capture.clone()], Vec::new());
        let logits = read(&mut model, 0, &golden.tokens, Some(lab));
        let hidden = rows(&model.captured_rows(), capture.point, 0);
        let found = model.lens(0, (&hidden, width)).expect("there is a head");
        let expected: Vec<f64> = logits.iter().map(|v| f64::from(*v)).collect();
        assert!(nmse(&found, &expected) < 1e-9, "{}", golden.name);
        names.push(&golden.name);
    }
    assert!(names.len() >= 4, "{names:?}");
}

#[test]
fn names_are_found_by_pattern_and_by_those_of_other_tools() {
    let plan = &golden("llama").plan;
    let points = Points::of(plan).expect("it can be described");
    let path = |name: &str| {
        let found = points.find(name).unwrap_or_else(|e| panic!("{e}"));
        points.all[found[0]].path.as_str()
    };
    for (name, expected) in [
        ("layers.0.in", "embed.x"),
        ("layers.1.in", "layers.0.ffn.x"),
        ("layers.1.mid", "layers.1.attn.x"),
        ("layers.1.out", "layers.1.ffn.x"),
        ("hook_embed", "embed.tokens"),
        ("blocks.0.hook_resid_pre", "embed.x"),
        ("blocks.1.hook_resid_mid", "layers.1.attn.x"),
        ("blocks.1.hook_resid_post", "layers.1.ffn.x"),
        ("blocks.1.hook_attn_out", "layers.1.attn.out"),
        ("blocks.1.hook_mlp_out", "layers.1.ffn.out"),
        ("blocks.1.attn.hook_q", "layers.1.attn.q_proj"),
        ("blocks.1.attn.hook_rot_k", "layers.1.attn.k"),
        ("blocks.1.attn.hook_z", "layers.1.attn.heads"),
        ("blocks.1.attn.hook_pattern", "layers.1.attn.weights"),
        ("blocks.1.mlp.hook_pre", "layers.1.ffn.gate"),
        ("blocks.1.mlp.hook_pre_linear", "layers.1.ffn.up"),
        ("blocks.1.mlp.hook_post", "layers.1.ffn.hidden"),
        ("ln_final.hook_out", "head.norm"),
    ] {
        assert_eq!(path(name), expected, "{name}");
    }
    // Attention and MLP in parallel each add a part of their own.
    let parallel = Points::of(&golden("phi2").plan).expect("it can be described");
    let found = |name: &str| {
        let found = parallel.find(name).unwrap_or_else(|e| panic!("{e}"));
        parallel.all[found[0]].spec.doc
    };
    for name in ["blocks.1.hook_attn_out", "blocks.1.hook_mlp_out"] {
        assert_eq!(found(name), "result of one of several branches of a slot");
    }
    let n_layers = plan.layers.len();
    assert_eq!(points.find("layers.*.out").expect("found").len(), n_layers);
    assert_eq!(
        points
            .find("blocks.{0,1}.hook_resid_post")
            .expect("found")
            .len(),
        2
    );
    assert_eq!(points.find("layers.{0-1}.attn.q").expect("found").len(), 2);
    for (name, nearest) in [
        ("layers.0.attn.kk", "layers.0.attn.k"),
        ("layers.0.atn.q", "layers.0.attn.q"),
        ("blocks.0.hook_resid_pos", "blocks.0.hook_resid_post"),
    ] {
        let error = points.find(name).expect_err("there is none");
        assert_eq!(error.nearest.as_deref(), Some(nearest), "{error}");
    }
    for name in [
        "",
        "layers.*",
        "layers.{9-",
        "layers.{99}.out",
        &"*.".repeat(5000),
    ] {
        let error = points.find(name).expect_err("there is none");
        assert!(error.to_string().len() < 300);
    }
    // Shapes are those of the weights' other ends.
    let shape = |name: &str| {
        points.all[points.find(name).expect("found")[0]]
            .shape
            .clone()
    };
    assert_eq!(shape("layers.0.out"), [plan.n_embd]);
    assert_eq!(shape("head.logits"), [plan.n_vocab]);
    assert_eq!(shape("layers.0.attn.weights")[0], 0);
}

/// What is named in a graph is stated by a contract: the shape has as many dimensions.
#[test]
fn every_architecture_names_what_its_contracts_state() {
    let mut stated = std::collections::BTreeSet::new();
    for contract in REGISTRY.blocks.iter().chain([
        &REGISTRY.embed,
        &REGISTRY.per_layer,
        &REGISTRY.head,
        &REGISTRY.mix,
    ]) {
        stated.extend(
            contract
                .points
                .iter()
                .map(|spec| (contract.name, spec.name)),
        );
    }
    let mut found = std::collections::BTreeSet::new();
    for golden in all_goldens() {
        let (name, plan) = (&golden.name, &golden.plan);
        let points = Points::of(plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let paths = points.all.iter().map(|point| &point.path);
        let paths: std::collections::BTreeSet<&String> = paths.collect();
        assert_eq!(
            paths.len(),
            points.all.len(),
            "{name}: two values have one name"
        );
        for point in &points.all {
            let dims = point.spec.shape.len();
            assert!(
                point.shape.len() <= dims,
                "{name}: {} is {:?}",
                point.path,
                point.shape
            );
        }
        let units = plan
            .units()
            .chain(plan.mixes())
            .chain([&plan.embed])
            .chain(&plan.per_layer);
        let head = plan.head.iter().filter_map(|head| head.unit.as_ref());
        for unit in units.chain(head) {
            for spec in unit.contract.0.points {
                if paths.contains(&format!("{}.{}", unit.path, spec.name)) {
                    found.insert((unit.contract.0.name, spec.name));
                }
            }
        }
        for layer in plan.layers.iter().filter(|l| l.path.starts_with("layers.")) {
            for value in ["in", "out"] {
                let found = points.find(&format!("{}.{value}", layer.path));
                let found = &points.all[found.unwrap_or_else(|e| panic!("{name}: {e}"))[0]];
                let n_states = found.shape[0] / plan.n_embd;
                let starts_with = plan.write.as_ref().map(|write| write.option_int("count"));
                let is_one = match value {
                    // They may become more.
                    "in" if layer.path == "layers.0" => starts_with.is_none_or(|n| n == Some(1)),
                    _ => plan.write.is_none(),
                };
                assert_eq!(n_states == 1, is_one, "{name}: {}", layer.path);
            }
        }
    }
    // No golden has these weights of the indexer in plain attention.
    let missing = stated.difference(&found);
    let missing = missing.filter(|spec| **spec != ("attention", "index_weights"));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "no architecture computes {missing:?}");
}

fn run(server: &Server, lab: &Value) -> Value {
    let body = json!({ "prompt": "The sea is wide and", "temperature": 0 });
    let answer = server.post("/v1/lab/run", &with(body, &json!({ "lab": lab })));
    answer["results"][0].clone()
}

/// The numbers of a capture.
fn numbers(captured: &Value) -> Vec<f32> {
    let data = captured["data"].as_array().expect("numbers").iter();
    data.map(|v| v.as_f64().expect("a number") as f32).collect()
}

#[test]
fn a_lab_run_returns_the_requested_values() {
    let server = Server::start(&["--deterministic"]);
    let (status, points) = server.json("GET", "/v1/lab/points", &Value::Null);
    assert_eq!(status, 200);
    let out = points["data"].as_array().expect("points").iter();
    let mut out = out.filter(|p| p["path"] == "layers.0.attn.heads");
    let heads = out.next().expect("it is listed");
    assert_eq!(heads["shape"], json!([32, 4]));
    assert_eq!(heads["aliases"], json!(["blocks.0.attn.hook_z"]));
    assert_eq!(
        (&heads["dtype"], &heads["parts"]),
        (&json!("f32"), &json!("heads"))
    );

    let lab = json!({
        "captures": [
            { "point": "layers.*.out" },
            { "point": "blocks.0.attn.hook_z", "positions": [0, -1], "dtype": "f16" },
            { "point": "layers.1.out", "positions": "prompt", "reduce": "mean" },
            { "point": "layers.1.out", "positions": "prompt", "reduce": "norm" },
            { "point": "layers.1.out", "positions": "prompt", "reduce": "top_k", "k": 3 },
            { "point": "head.logits" },
        ],
        "lens": { "top_k": 2, "targets": [5, "a"] },
        "encoding": "numbers",
    });
    let found = run(&server, &lab);
    assert_eq!(found["text"], "");
    let captures = found["lab"]["captures"].as_array().expect("captures");
    let of = |reduce: &str, point: &str| {
        let mut found = captures.iter();
        let found = found.find(|c| c["reduce"] == reduce && c["point"] == point);
        found.unwrap_or_else(|| panic!("{reduce} of {point}"))
    };
    let n_layers = captures.len() - 5;
    assert!(n_layers > 1);
    let n = of("norm", "layers.1.out")["positions"]
        .as_array()
        .expect("positions")
        .len();
    assert!(n > 3);
    assert_eq!(of("none", "layers.1.out")["shape"], json!([1, 128]));
    assert_eq!(of("none", "layers.1.out")["positions"], json!([n - 1]));
    assert_eq!(
        of("none", "blocks.0.attn.hook_z")["shape"],
        json!([2, 4, 32])
    );
    assert_eq!(of("mean", "layers.1.out")["shape"], json!([128]));
    assert_eq!(of("norm", "layers.1.out")["shape"], json!([n]));
    let top = of("top_k", "layers.1.out");
    assert_eq!(
        (&top["shape"], top["indices"].as_array().map(Vec::len)),
        (&json!([n, 3]), Some(3 * n))
    );
    // The last row among the norms is that of the row itself.
    let last = numbers(of("none", "layers.1.out"));
    let norm = last.iter().map(|v| v * v).sum::<f32>().sqrt();
    let norms = numbers(of("norm", "layers.1.out"));
    assert!((norms[n - 1] - norm).abs() < 1e-4 * norm);
    let largest = last.iter().copied().fold(f32::MIN, f32::max);
    assert_eq!(numbers(top)[3 * (n - 1)], largest);

    // The lens after the last layer is what the logits say.
    let logits = numbers(of("none", "head.logits"));
    let lens = found["lab"]["lens"].as_array().expect("a lens");
    assert_eq!(lens.len(), n_layers);
    let row = &lens[n_layers - 1]["rows"][0];
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    assert_eq!(row["top"][0]["id"], json!(best));
    let sum: f64 = logits.iter().map(|v| f64::from(*v).exp()).sum();
    let expected = f64::from(logits[5]) - sum.ln();
    let target = &row["targets"][0];
    assert!((target["logprob"].as_f64().expect("a number") - expected).abs() < 1e-6);
    let rank = 1 + logits.iter().filter(|v| **v > logits[5]).count();
    assert_eq!(target["rank"], json!(rank));

    // Attention weights of each head add up to 1, and later keys have none.
    let weights = json!({
        "captures": [{ "point": "blocks.1.attn.hook_pattern", "positions": "all" }],
        "encoding": "numbers",
    });
    let weights = run(&server, &weights);
    let weights = &weights["lab"]["captures"][0];
    assert_eq!(weights["shape"], json!([n, 4, n]));
    for (at, row) in numbers(weights).chunks(n).enumerate() {
        let (before, after) = row.split_at(at / 4 + 1);
        assert!((before.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        assert!(after.iter().all(|w| *w == 0.0));
    }

    // Again, though the prompt is cached, and in base64.
    let again = run(&server, &lab);
    assert_eq!(again["lab"], found["lab"]);
    let packed = json!({ "captures": [{ "point": "layers.1.out" }] });
    let packed = run(&server, &packed);
    let packed = &packed["lab"]["captures"][0];
    assert_eq!(
        (&packed["dtype"], &packed["shape"]),
        (&json!("f32"), &json!([1, 128]))
    );

    // Setting the row to itself, as it came, changes nothing; setting it to another does.
    let probe = json!([{ "point": "head.logits" }]);
    let patch = |vector: &Value| {
        let edits = json!([{ "point": "layers.1.out", "op": "set", "positions": "last", "vector": vector }]);
        let lab = json!({ "captures": probe, "edits": edits, "encoding": "numbers" });
        numbers(&run(&server, &lab)["lab"]["captures"][0])
    };
    assert_eq!(patch(packed), logits);
    assert_ne!(patch(&json!(vec![1.0; 128])), logits);
}

#[test]
fn every_shape_of_a_request_has_what_it_reads() {
    let server = Server::start(&["--deterministic"]);
    let lab = json!({
        "captures": [{ "point": "layers.1.out" }], "encoding": "numbers",
        "edits": [{ "point": "layers.1.attn.heads", "op": "zero", "heads": [2] }],
    });
    let chat = json!({ "messages": [{ "role": "user", "content": "The sea" }] });
    let text = json!({ "prompt": "The sea" });
    let shapes = [
        ("/v1/chat/completions", &chat, "/choices/0/lab"),
        ("/v1/messages", &chat, "/lab"),
        ("/v1/responses", &json!({ "input": "The sea" }), "/lab"),
        ("/v1/completions", &text, "/choices/0/lab"),
        ("/completion", &text, "/lab"),
    ];
    let mut found = Vec::new();
    for (path, body, place) in shapes {
        let most = if path == "/v1/responses" {
            "max_output_tokens"
        } else {
            "max_tokens"
        };
        let body = with(body.clone(), &json!({ most: 4, "temperature": 0 }));
        let plain = server.post(path, &body);
        assert_eq!(plain.pointer(place), None, "{path}");
        let asked = with(body, &json!({ "lab": lab }));
        let whole = server.post(path, &asked);
        let own = whole
            .pointer(place)
            .unwrap_or_else(|| panic!("{path}: {whole}"));
        assert_eq!(own["captures"][0]["point"], "layers.1.out", "{path}");
        // In a stream one event has it.
        let streamed = with(asked.clone(), &json!({ "stream": true }));
        let (status, _, events) =
            server.raw("POST", path, "application/json", &streamed.to_string());
        assert_eq!(status, 200, "{path}: {events}");
        let data = events
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        let data = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        let place = if path == "/v1/responses" {
            "/response/lab"
        } else {
            place
        };
        let labs = data.filter_map(|event| event.pointer(place).cloned());
        let labs: Vec<Value> = labs.collect();
        assert_eq!(labs.as_slice(), std::slice::from_ref(own), "{path}");
        found.push(own.clone());
        let unknown = with(
            asked,
            &json!({ "lab": { "captures": [{ "point": "layer.1" }] } }),
        );
        let (status, answer) = server.json("POST", path, &unknown);
        assert_eq!(status, 400, "{path}");
        assert!(answer.to_string().contains("no point is named"), "{answer}");
    }
    // One conversation is one prompt, whatever the shape.
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0], found[2]);
    assert_eq!(found[3], found[4]);
    assert_ne!(found[0], found[3]);
    let contrastive = json!({ "penalty_alpha": 0.6, "top_k": 4, "lab": lab });
    let (status, answer) = server.json("POST", "/v1/completions", &with(text, &contrastive));
    assert_eq!(status, 400);
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("`lab`") && message.contains("contrastive"),
        "{message}"
    );
}

#[test]
fn generation_goes_on_with_captures_and_edits() {
    let server = Server::start(&["--deterministic"]);
    let complete = |lab: Value, extra: Value| {
        let body = json!({ "prompt": "one two one two one two one", "max_tokens": 12, "temperature": 0, "lab": lab });
        server.post("/v1/completions", &with(body, &extra))["choices"][0].clone()
    };
    let plain = complete(Value::Null, json!({}));
    assert_eq!(plain.get("lab"), None);
    let lab = json!({ "captures": [{ "point": "layers.*.out", "positions": "all" }] });
    let read = complete(lab.clone(), json!({}));
    assert_eq!(read["text"], plain["text"]);
    let n_all = read["lab"]["captures"][0]["positions"]
        .as_array()
        .expect("positions")
        .len();
    let n_prompt = server.post(
        "/tokenize",
        &json!({ "prompt": "one two one two one two one" }),
    );
    let n_prompt = n_prompt["count"].as_u64().expect("a number") as usize;
    assert!(n_all > n_prompt, "{n_all} rows, {n_prompt} of the prompt");
    // With draft tokens, of which some are wrong, the same rows once.
    let drafted = complete(lab.clone(), json!({ "draft": 4 }));
    assert_eq!(drafted["lab"], read["lab"]);
    // In a stream too.
    let body = json!({
        "prompt": "one two one two one two one", "max_tokens": 12, "temperature": 0, "lab": lab,
    });
    let events = server.events("/v1/completions", &body);
    let events = events
        .iter()
        .filter_map(|e| serde_json::from_str::<Value>(e).ok());
    let events: Vec<Value> = events.collect();
    let at = events
        .iter()
        .position(|e| !e["choices"][0]["lab"].is_null());
    let at = at.expect("a chunk has the values");
    assert_eq!(events[at]["choices"][0]["lab"], read["lab"]);
    assert!(!events[at + 1]["choices"][0]["finish_reason"].is_null());

    // Edits: of the answer alone, with a grammar, and next to requests without.
    let zero =
        json!({ "edits": [{ "point": "layers.*.ffn.out", "op": "zero", "positions": "answer" }] });
    let edited = complete(zero.clone(), json!({}));
    assert_ne!(edited["text"], plain["text"]);
    let when = |period: &str| {
        let edit = json!({ "point": "layers.*.ffn.out", "op": "zero", "when": period });
        complete(json!({ "edits": [edit] }), json!({}))["text"].clone()
    };
    // A layer that is left out is one whose slots add nothing.
    let logits = |edits: Value| {
        let lab = json!({ "edits": edits, "captures": [{ "point": "head.logits", "positions": "prompt" }], "encoding": "numbers" });
        numbers(&run(&server, &lab)["lab"]["captures"][0])
    };
    let nothing = ["layers.1.attn.out", "layers.1.ffn.out"]
        .map(|point| json!({ "point": point, "op": "zero", "positions": [1, -1] }));
    let skipped = logits(json!([{ "point": "layers.1.out", "op": "skip", "positions": [1, -1] }]));
    assert_eq!(skipped, logits(json!(nothing)));
    assert_ne!(skipped, logits(json!([])));
    // What is copied has its own edits.
    let scaled = json!({ "point": "layers.0.out", "op": "scale", "scale": 2 });
    let both = logits(json!([{ "point": "layers.1.out", "op": "skip" }, scaled]));
    let nothing = ["layers.1.attn.out", "layers.1.ffn.out"]
        .map(|point| json!({ "point": point, "op": "zero" }));
    assert_eq!(both, logits(json!([scaled, nothing[0], nothing[1]])));
    assert_eq!(when("answer"), edited["text"]);
    // The rows of a token, by its id and by its text, are those of the positions where it is read.
    let tokenized = server.post("/tokenize", &json!({ "prompt": "The sea is wide and" }));
    let ids = tokenized["tokens"].as_array().expect("a list");
    let (last, others) = ids.split_last().expect("tokens");
    assert!(!others.contains(last), "{ids:?}");
    let of_token = |tokens: Value, positions: Value| {
        let edit = json!({ "point": "layers.0.out", "op": "scale", "scale": 3, "tokens": tokens, "positions": positions });
        logits(json!([edit]))
    };
    let at_last =
        logits(json!([{ "point": "layers.0.out", "op": "scale", "scale": 3, "positions": [-1] }]));
    assert_ne!(at_last, logits(json!([])));
    assert_eq!(of_token(json!([last]), json!("all")), at_last);
    let tokenized = server.post(
        "/tokenize",
        &json!({ "content": "The sea is wide and", "with_pieces": true }),
    );
    let pieces = tokenized["tokens"].as_array().expect("a list");
    let piece = &pieces.last().expect("tokens")["piece"];
    assert_eq!(of_token(json!([piece, last]), json!([0, 1, -1])), at_last);
    assert_eq!(of_token(json!([last]), json!([0])), logits(json!([])));
    assert_eq!(of_token(json!([]), json!("all")), logits(json!([])));
    // Of a completion too.
    let with_ids = json!({ "logprobs": 0, "return_tokens_as_token_ids": true });
    let ids = |lab: Value| -> Vec<u32> {
        let choice = complete(lab, with_ids.clone());
        let ids = choice["logprobs"]["tokens"]
            .as_array()
            .expect("a list")
            .iter();
        let ids = ids.filter_map(|id| id.as_str()?.strip_prefix("token_id:")?.parse().ok());
        ids.collect()
    };
    let of_answer = |tokens: Vec<u32>| {
        let edit = json!({ "point": "layers.*.ffn.out", "op": "zero", "when": "answer", "tokens": tokens });
        complete(json!({ "edits": [edit] }), json!({}))["text"].clone()
    };
    let (own, other) = (ids(Value::Null), ids(zero.clone()));
    assert!(own.len() > 3 && other.len() > 3, "{own:?} {other:?}");
    assert_eq!(of_answer(other), edited["text"]);
    let absent: Vec<u32> = (0..200).filter(|id| !own.contains(id)).collect();
    assert_eq!(of_answer(absent), plain["text"]);
    let texts = [when("prompt"), when("always"), when("answer")];
    assert!(texts[0] != texts[2] && texts[1] != texts[2], "{texts:?}");
    let strict = complete(
        zero.clone(),
        json!({ "grammar": "root ::= \"yes\" | \"no\"" }),
    );
    assert!(
        ["yes", "no"].iter().any(|t| strict["text"] == *t),
        "{strict}"
    );
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..6)
            .map(|i| {
                let (complete, zero) = (&complete, &zero);
                scope.spawn(move || match i % 2 {
                    0 => (complete(Value::Null, json!({})), 0),
                    _ => (complete(zero.clone(), json!({})), 1),
                })
            })
            .collect();
        for other in others {
            let (found, kind) = other.join().expect("it answers");
            let expected = if kind == 0 { &plain } else { &edited };
            assert_eq!(found["text"], expected["text"]);
        }
    });
    let chat = server
        .chat(json!({ "lab": { "captures": [{ "point": "layers.0.out" }] } }))
        .1;
    assert_eq!(
        chat["choices"][0]["lab"]["captures"][0]["shape"],
        json!([1, 128])
    );
}

#[test]
fn invalid_lab_plans_are_refused_with_their_field() {
    let server = Server::start(&["--lab-bytes", "10000"]);
    let n = f64::MAX;
    let capture =
        |extra: Value| json!({ "captures": [with(json!({ "point": "layers.0.out" }), &extra)] });
    let edit = |extra: Value| json!({ "edits": [with(json!({ "point": "layers.0.out", "op": "add" }), &extra)] });
    let row = vec![0.5; 128];
    let cases: &[(Value, &str)] = &[
        (json!({ "capture": [] }), "did you mean `lab.captures`?"),
        (
            capture(json!({ "point": "layers.0.outt" })),
            "nearest: `layers.0.out`",
        ),
        (
            capture(json!({ "point": "layers.99.out" })),
            "no point is named",
        ),
        (
            capture(json!({ "point": "layers.0.attn.scores" })),
            "cannot be captured",
        ),
        (
            capture(json!({ "point": "layers.0.attn.weights", "reduce": "mean" })),
            "cannot be reduced",
        ),
        (
            capture(json!({ "positions": "first" })),
            "expected last, all, prompt, answer",
        ),
        (capture(json!({ "positions": [1000] })), "position 1000"),
        (capture(json!({ "positions": [-1000] })), "position -"),
        (capture(json!({ "positions": [2, 1] })), "ascending order"),
        (capture(json!({ "positions": [] })), "ascending order"),
        (
            capture(json!({ "reduce": "top_k", "k": 0 })),
            "expected 1 to",
        ),
        (capture(json!({ "dtype": "f64" })), "expected"),
        (
            capture(json!({ "point": "head.logits", "positions": "prompt" })),
            "the limit is 10000",
        ),
        (
            json!({ "captures": vec![json!({ "point": "layers.0.out" }); 65] }),
            "at most 64",
        ),
        (edit(json!({})), "needs a `vector`"),
        (edit(json!({ "vector": [] })), "has 0 numbers"),
        (
            edit(json!({ "vector": [1.0, 2.0] })),
            "has 2 numbers, expected 128",
        ),
        (edit(json!({ "vector": vec![n; 128] })), "finite"),
        (edit(json!({ "vector": ["NaN"] })), "expected numbers"),
        (
            edit(json!({ "vector": { "data": "AAA", "shape": [128] } })),
            "`data`",
        ),
        (
            edit(json!({ "vector": { "data": "AAAA", "shape": [u64::MAX, 2] } })),
            "`shape`",
        ),
        (edit(json!({ "vector": [row, row, row] })), "has 3 rows"),
        (edit(json!({ "vector": row, "scale": 1e39 })), "finite"),
        (
            edit(json!({ "vector": row, "heads": [0] })),
            "has neurons, not heads",
        ),
        (
            edit(json!({ "vector": row, "neurons": [128] })),
            "counted from 0",
        ),
        (
            edit(json!({ "vector": row, "neurons": [0], "heads": [0] })),
            "are mutually exclusive",
        ),
        (
            edit(json!({ "op": "project_out", "vector": vec![0.0; 128] })),
            "not a direction",
        ),
        (
            edit(json!({ "op": "zero", "vector": row })),
            "takes no `vector`",
        ),
        (edit(json!({ "op": "scale" })), "needs a `scale`"),
        (edit(json!({ "op": "clamp" })), "needs `low` or `high`"),
        (
            edit(json!({ "op": "clamp", "low": 1, "high": 0 })),
            "not below",
        ),
        (
            edit(json!({ "op": "exclude", "experts": [0] })),
            "not experts",
        ),
        (edit(json!({ "op": "melt" })), "expected"),
        (
            edit(json!({ "op": "zero", "tokens": "all" })),
            "expected an array",
        ),
        (
            edit(json!({ "op": "zero", "tokens": ["this is many tokens"] })),
            "expected one",
        ),
        (
            edit(json!({ "op": "zero", "tokens": [99_999_999] })),
            "not a token id",
        ),
        (
            edit(json!({ "op": "zero", "tokens": vec![0; 1025] })),
            "at most 1024",
        ),
        (
            edit(json!({ "point": "head.logits", "op": "zero" })),
            "not changed",
        ),
        (
            edit(json!({ "op": "skip", "point": "layers.0.attn.x" })),
            "`skip` is for",
        ),
        (json!({ "lens": { "top_k": 5000 } }), "expected 1 to"),
        (
            json!({ "lens": { "targets": ["this is many tokens"] } }),
            "expected one",
        ),
        (
            json!({ "lens": { "targets": [99_999_999] } }),
            "not a token id",
        ),
        (json!({ "lens": { "layers": [77] } }), "no point is named"),
    ];
    let mut faults = Vec::new();
    for (lab, expected) in cases {
        let body = json!({ "prompt": "The sea is wide and", "lab": lab });
        let (status, answer) = server.json("POST", "/v1/lab/run", &body);
        let error = &answer["error"];
        let message = error["message"].as_str().unwrap_or_default();
        let param = error["param"].as_str().unwrap_or_default();
        if status != 400 || !message.contains(expected) || !param.starts_with("lab") {
            let lab = lab.to_string();
            let lab: String = lab.chars().take(100).collect();
            faults.push(format!(
                "{lab}: {status} `{param}`: {message}, expected {expected}"
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let (status, answer) = server.json("POST", "/v1/lab/run", &json!({ "prompt": "a" }));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("lab")));
    let searched =
        json!({ "prompt": "a", "penalty_alpha": 0.5, "top_k": 4, "lab": {}, "max_tokens": 3 });
    assert_eq!(server.json("POST", "/v1/completions", &searched).0, 400);
    // Nothing of that hurt.
    assert_eq!(server.chat(json!({ "max_tokens": 1 })).0, 200);
}

#[test]
fn vectors_of_texts_come_with_values_and_follow_edits() {
    let scratch = scratch();
    let model = with_vocabulary(&hf::open("bert"), scratch.path());
    let server = Server::start(&["-m", model.to_str().expect("UTF-8")]);
    let ask = |lab: Value| {
        let body = json!({ "input": [[5, 6, 7, 8], [5, 6]], "lab": lab });
        server.post("/v1/embeddings", &body)["data"].clone()
    };
    let plain = ask(Value::Null);
    assert_eq!(plain[0].get("lab"), None);
    let read = ask(json!({
        "captures": [
            { "point": "layers.0.out", "positions": "all" },
            { "point": "layers.0.attn.weights", "positions": [0] },
        ],
        "encoding": "numbers",
    }));
    for (i, own) in plain.as_array().expect("vectors").iter().enumerate() {
        assert_eq!(read[i]["embedding"], own["embedding"]);
        let captures = &read[i]["lab"]["captures"];
        let n = captures[0]["positions"].as_array().map_or(0, Vec::len);
        let width = captures[0]["shape"][1].as_u64().expect("a number") as usize;
        assert_eq!(captures[0]["shape"], json!([n, width]));
        assert_eq!(numbers(&captures[0]).len(), n * width);
        // Every token attends to all.
        let n_heads = captures[1]["shape"][1].as_u64().expect("a number");
        assert_eq!(captures[1]["shape"], json!([1, n_heads, n]));
        let sums = numbers(&captures[1]);
        let sums = sums.chunks(n).map(|row| row.iter().sum::<f32>());
        assert!(sums.into_iter().all(|sum| (sum - 1.0).abs() < 1e-5));
    }
    let edited =
        ask(json!({ "edits": [{ "point": "layers.0.attn.heads", "op": "zero", "heads": [0] }] }));
    assert_ne!(edited[0]["embedding"], plain[0]["embedding"]);
}
