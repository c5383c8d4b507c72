//! What is told of the memory of devices is what they give, and what does not fit is refused.
//!
//! Workers that lend a limited number of bytes report what they have left.

use lab_bench::ggml::{Arena, Device};
use lab_bench::model::{Batch, Error, Estimator, Model, Options, Placing};
use lab_bench::plan::{Move, PROCESSOR, Plan, Share, StatePlan};
use lab_bench::weights::TensorType;

use crate::command::scratch;
use crate::devices::Worker;
use crate::goldens::{EXACT, Golden, goldens, options};
use crate::support::nmse;

fn plan(golden: &Golden) -> Plan {
    Plan::new(&golden.def, golden.weights.metadata(), &golden.weights).expect("it fits")
}

fn device(worker: &Worker) -> Device {
    Device::named(&worker.device).expect("it is there")
}

fn free(worker: &Worker) -> u64 {
    device(worker).free_memory().expect("it says")
}

/// Layers on devices.
fn shares(workers: &[&Worker], split: &[usize]) -> Vec<Share> {
    let share = |(worker, n_layers): (&&Worker, &usize)| Share {
        device: worker.device.clone(),
        n_layers: *n_layers,
    };
    workers.iter().zip(split).map(share).collect()
}

fn settings() -> Options {
    Options {
        n_ctx: 2048,
        n_batch: 64,
        n_seqs: 2,
        ..options()
    }
}

/// The logits of the golden's tokens in one pass.
fn error_of(model: &mut Model, golden: &Golden) -> f64 {
    let mut batch = Batch::default();
    for (position, token) in (0..).zip(&golden.tokens) {
        batch.push(*token, 0, position, true);
    }
    let found = model.forward(&batch).expect("the pass runs").to_vec();
    nmse(&found, &golden.expected)
}

#[test]
fn devices_give_what_is_told_before() {
    let workers = [(); 2].map(|()| Worker::start_with(&["--mem", "512M"]));
    let workers = workers.each_ref();
    let scratch = scratch();
    let chosen = [
        "llama",
        "qwen3moe",
        "mamba2",
        "gemma3",
        "deepseek2",
        "qwen35",
        "gemma3n",
    ];
    let mut n_compared = 0;
    for golden in goldens(scratch.path(), |name| chosen.contains(&name)) {
        let n = plan(&golden).n_placeable();
        for split in [[n, 0], [n / 2, 0], [n - n / 2, n / 2], [1, 1]] {
            let mut placed = plan(&golden);
            placed.place(&shares(&workers, &split));
            let mut estimator = Estimator::new(&placed, &golden.weights).expect("laid out");
            let told = estimator.memory(&settings()).expect("it can be run");
            drop(estimator);
            let before = workers.map(free);
            let mut model =
                Model::load(placed, &golden.weights, settings(), &mut |_, _| {}).expect("it loads");
            let loaded = model.memory();
            assert_eq!(told, loaded, "{} {split:?}", golden.name);
            assert!(error_of(&mut model, &golden) < 1e-4, "{}", golden.name);
            for (worker, before) in workers.iter().zip(before) {
                let used = (before - free(worker)) as f64;
                let told = told
                    .devices
                    .iter()
                    .find(|told| told.device == worker.device);
                let told = told.map_or(0, |told| told.taken()) as f64;
                n_compared += usize::from(told > 0.0);
                assert!(
                    (used - told).abs() <= 0.05 * used,
                    "{} {split:?}: {used} used, {told} told",
                    golden.name
                );
            }
            drop(model);
            assert_eq!(workers.map(free), before, "all is given back");
        }
    }
    assert!(n_compared > 30, "{n_compared}");
}

/// What a golden takes on a worker with so many layers there.
fn taken(golden: &Golden, worker: &Worker, n: usize) -> u64 {
    let mut placed = plan(golden);
    placed.place(&shares(&[worker], &[n]));
    let mut estimator = Estimator::new(&placed, &golden.weights).expect("laid out");
    estimator
        .memory(&settings())
        .expect("it can be run")
        .devices[1]
        .taken()
}

#[test]
fn the_last_byte_decides() {
    let roomy = Worker::start();
    let scratch = scratch();
    let golden = goldens(scratch.path(), |name| name == "llama").remove(0);
    let plan = plan(&golden);
    let n = plan.n_placeable();
    let needed = taken(&golden, &roomy, n);
    let settings = Options {
        n_ctx_seq: 2048,
        ..settings()
    };
    for (missing, most) in [(0, n), (1, n - 1)] {
        let worker = Worker::start_with(&["--mem", &(needed - missing).to_string()]);
        let devices = [device(&worker)];
        let placing = |margin: u64| Placing {
            plan: &plan,
            weights: &golden.weights,
            adapters: &[],
            options: &settings,
            devices: &devices,
            shares: None,
            moves: &[],
            margin,
        };
        assert_eq!(placing(0).auto().expect("a placement"), [most]);
        assert_eq!(placing(1 - missing).auto().expect("a placement"), [n - 1]);
        assert_eq!(placing(needed).auto().expect("a placement"), [0]);
        let placed = placing(0).placed(&[most]);
        let mut model = Model::load(placed, &golden.weights, settings.clone(), &mut |_, _| {})
            .expect("what is said to fit is there");
        assert!(error_of(&mut model, &golden) < EXACT.max(1e-6));
        drop(model);
        if missing == 0 {
            assert_eq!(placing(0).count(n).expect("it fits"), [n]);
            continue;
        }
        let refused = placing(0).count(n).expect_err("it does not fit");
        let said = refused.to_string();
        let Error::DeviceMemory { used, free, .. } = refused else {
            panic!("{said}");
        };
        assert_eq!((used.taken(), free), (needed, needed - 1));
        assert!(said.contains(&format!("--gpu-layers {}", n - 1)), "{said}");
        assert!(said.contains(&worker.device), "{said}");
        // The contexts and types that are named do fit, and longer contexts do not.
        let ctx = said.split("--ctx ").nth(1).expect("a context");
        let ctx: usize = ctx
            .split(',')
            .next()
            .and_then(|n| n.parse().ok())
            .expect("a number");
        let fits = |n_ctx: usize| {
            let settings = Options {
                n_ctx,
                n_ctx_seq: n_ctx,
                ..settings.clone()
            };
            let all = Placing {
                options: &settings,
                ..placing(0)
            };
            all.count(n).is_ok()
        };
        assert!(fits(ctx) && !fits(ctx + 16), "{said}");
        // Loading refuses it too, and the worker itself gives no more than it lends.
        let loaded = Model::load(
            placing(0).placed(&[n]),
            &golden.weights,
            settings.clone(),
            &mut |_, _| {},
        );
        assert!(matches!(loaded.err(), Some(Error::DeviceMemory { .. })));
        let arena = Arena::new(1, 0).expect("an arena");
        arena
            .tensor("x", TensorType::F32, &[needed / 4 + 1])
            .expect("a shape");
        assert!(devices[0].allocate(&arena, "a test").is_err());
    }
}

#[test]
fn experts_stay_on_the_processor_while_their_layers_do_not() {
    let worker = Worker::start_with(&["--mem", "512M"]);
    let scratch = scratch();
    let golden = goldens(scratch.path(), |name| name == "qwen3moe").remove(0);
    let all = plan(&golden).n_placeable();
    let experts: Vec<String> = plan(&golden)
        .units()
        .filter(|unit| unit.contract.0.name == "moe")
        .map(|unit| unit.path.clone())
        .collect();
    let name = experts[0].rsplit('.').next().expect("a path").to_owned();
    let moves = [Move {
        pattern: format!("layers.*.{name}"),
        device: PROCESSOR.into(),
    }];
    let mut placed = plan(&golden);
    placed.place_with(&shares(&[&worker], &[all]), &moves);
    for unit in placed.units() {
        let is_moved = experts.contains(&unit.path);
        assert_eq!(unit.device, usize::from(!is_moved), "{}", unit.path);
        for weight in unit.weights.iter().flatten() {
            assert_eq!(placed.tensors[*weight].device, unit.device, "{}", unit.path);
        }
    }
    let before = free(&worker);
    let mut model =
        Model::load(placed, &golden.weights, settings(), &mut |_, _| {}).expect("it loads");
    assert!(error_of(&mut model, &golden) < 1e-6);
    let used = before - free(&worker);
    let told = model.memory().devices[1].taken();
    assert!(used.abs_diff(told) * 20 <= used, "{used} used, {told} told");
    assert!(
        used < taken(&golden, &worker, all),
        "without the experts it is less"
    );
}

#[test]
fn what_reads_the_rows_of_another_layer_is_where_they_are() {
    let scratch = scratch();
    let mut n_readers = 0;
    for golden in goldens(scratch.path(), |_| true) {
        let n = plan(&golden).n_placeable();
        for n_layers in 0..=n {
            let mut placed = plan(&golden);
            placed.place(&[Share {
                device: "made up".into(),
                n_layers,
            }]);
            for unit in placed.units() {
                let Some(StatePlan::KeyValue(rows)) = &unit.state else {
                    continue;
                };
                let Some(owner) = &rows.owner else { continue };
                let owner = placed
                    .units()
                    .find(|unit| unit.path == *owner)
                    .expect("it exists");
                assert_eq!(unit.device, owner.device, "{}: {}", golden.name, unit.path);
                n_readers += 1;
            }
        }
    }
    assert!(n_readers > 0);
}
