//! What is told of the memory of devices is what they give, and what does not fit is refused.
//!
//! Workers that lend a limited number of bytes report what they have left.

use std::process::{Child, Command};

use lab_base::ggml::{Arena, Device};
use lab_base::weights::TensorType;
use lab_core::model::{Batch, Error, Estimator, Model, Options, PlacementSearch};
use lab_core::plan::{DeviceOverride, DeviceShare, PROCESSOR, Plan, StatePlan};

use serde_json::{Value, json};

use crate::backends::{SMALL, sound, synthesised};
use crate::devices::Worker;
use crate::goldens::{EXACT, Golden, all_goldens, golden, options};
use crate::support::command::{bench, text};
use crate::support::nmse;

fn device(worker: &Worker) -> Device {
    Device::named(&worker.device).expect("it is there")
}

fn free(worker: &Worker) -> u64 {
    device(worker).free_memory().expect("it says")
}

/// Layers on devices.
fn shares(workers: &[&Worker], split: &[usize]) -> Vec<DeviceShare> {
    let share = |(worker, n_layers): (&&Worker, &usize)| DeviceShare {
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
fn memory_on_devices_equals_the_estimate() {
    let workers = [(); 2].map(|()| Worker::start_with(&["--mem", "512M"]));
    let workers = workers.each_ref();
    let chosen = [
        "llama",
        "qwen3moe",
        "mamba2",
        "rwkv7",
        "gemma3",
        "deepseek2",
        "qwen35",
        "gemma3n",
    ];
    let mut n_compared = 0;
    for golden in chosen.map(golden) {
        let n = golden.plan.n_placeable();
        for split in [[n, 0], [n / 2, 0], [n - n / 2, n / 2], [1, 1]] {
            let mut placed = golden.plan.clone();
            placed.place(&shares(&workers, &split));
            let mut estimator = Estimator::new(&placed, &golden.weights).expect("laid out");
            let told = estimator.memory(&settings()).expect("it can be run");
            drop(estimator);
            let before = workers.map(free);
            let mut model =
                Model::load(placed, &golden.weights, settings(), &mut |_, _| {}).expect("it loads");
            let loaded = model.memory();
            assert_eq!(told, loaded, "{} {split:?}", golden.name);
            assert!(error_of(&mut model, golden) < 1e-4, "{}", golden.name);
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
    let mut placed = golden.plan.clone();
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
    let golden = golden("llama");
    let plan = golden.plan.clone();
    let n = plan.n_placeable();
    let needed = taken(golden, &roomy, n);
    let settings = Options {
        n_ctx_seq: 2048,
        ..settings()
    };
    for (missing, most) in [(0, n), (1, n - 1)] {
        let worker = Worker::start_with(&["--mem", &(needed - missing).to_string()]);
        let devices = [device(&worker)];
        let placing = |margin: u64| PlacementSearch {
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
        let placed = placing(0).placed(&[most], 0).expect("a plan");
        // The table of tokens, which the head does not share, has no room left.
        assert_eq!(placed.embed.device, 0);
        let mut model = Model::load(placed, &golden.weights, settings.clone(), &mut |_, _| {})
            .expect("what is reported to fit is there");
        assert!(error_of(&mut model, golden) < EXACT.max(1e-6));
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
            let all = PlacementSearch {
                options: &settings,
                ..placing(0)
            };
            all.count(n).is_ok()
        };
        assert!(fits(ctx) && !fits(ctx + 16), "{said}");
        // Loading refuses it too, and the worker itself gives no more than it lends.
        let loaded = Model::load(
            placing(0).placed(&[n], 0).expect("a plan"),
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
fn tables_of_tokens_are_with_the_first_layers_where_there_is_room() {
    let workers = [(); 2].map(|()| Worker::start_with(&["--mem", "512M"]));
    let devices = workers.each_ref().map(device);
    let settings = settings();
    for golden in ["llama", "gemma3n", "t5"].map(golden) {
        let n = golden.plan.n_placeable();
        let places = |split: [usize; 2], margin: u64, moves: &[DeviceOverride]| {
            let placing = PlacementSearch {
                plan: &golden.plan,
                weights: &golden.weights,
                adapters: &[],
                options: &settings,
                devices: &devices,
                shares: None,
                moves,
                margin,
            };
            let placed = placing.placed(&split, margin).expect("a plan");
            let tables = placed.token_tables().map(|table| table.device);
            let tables: Vec<usize> = tables.collect();
            (placed, tables)
        };
        let (placed, tables) = places([n - 1, 1], 0, &[]);
        assert!(tables.iter().all(|device| *device == 1), "{tables:?}");
        let told = Estimator::new(&placed, &golden.weights);
        let told = told
            .and_then(|mut of| of.memory(&settings))
            .expect("laid out");
        let mut model = Model::load(placed, &golden.weights, settings.clone(), &mut |_, _| {})
            .expect("it loads");
        assert_eq!(told, model.memory(), "{}", golden.name);
        if golden.name != "t5" {
            assert!(error_of(&mut model, golden) < 1e-4, "{}", golden.name);
        }
        let elsewhere = [
            places([n - 1, 0], 0, &[]),
            places([n - 1, 1], 512 << 20, &[]),
            places(
                [n - 1, 1],
                0,
                &[DeviceOverride {
                    pattern: "*embed".into(),
                    device: PROCESSOR.into(),
                }],
            ),
        ];
        for (_, tables) in elsewhere {
            assert!(tables.contains(&0), "{}: {tables:?}", golden.name);
        }
    }
}

#[test]
fn experts_stay_on_the_processor_while_their_layers_do_not() {
    let worker = Worker::start_with(&["--mem", "512M"]);
    let golden = golden("qwen3moe");
    let all = golden.plan.n_placeable();
    let experts: Vec<String> = golden
        .plan
        .units()
        .filter(|unit| unit.contract.0.name == "moe")
        .map(|unit| unit.path.clone())
        .collect();
    let name = experts[0].rsplit('.').next().expect("a path").to_owned();
    let moves = [DeviceOverride {
        pattern: format!("layers.*.{name}"),
        device: PROCESSOR.into(),
    }];
    let mut placed = golden.plan.clone();
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
    assert!(error_of(&mut model, golden) < 1e-6);
    let used = before - free(&worker);
    let told = model.memory().devices[1].taken();
    assert!(used.abs_diff(told) * 20 <= used, "{used} used, {told} told");
    assert!(
        used < taken(golden, &worker, all),
        "without the experts it is less"
    );
}

#[test]
fn what_reads_the_rows_of_another_layer_is_where_they_are() {
    let mut n_readers = 0;
    for golden in all_goldens() {
        let n = golden.plan.n_placeable();
        for n_layers in 0..=n {
            let mut placed = golden.plan.clone();
            placed.place(&[DeviceShare {
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

/// Bytes of the weights on each device, the processor first.
fn weights_on(plan: &Plan) -> Vec<u64> {
    let on = |device: usize| {
        let there = plan.tensors.iter().filter(|tensor| tensor.device == device);
        there.map(|tensor| tensor.bytes).sum()
    };
    (0..=plan.devices.len()).map(on).collect()
}

#[test]
fn a_weight_is_kept_once_on_each_device_that_uses_it() {
    let is_tied = |plan: &Plan| {
        let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
        let of_head = head
            .and_then(|head| head.weight("output"))
            .or_else(|| head?.weights[0]);
        of_head.is_some_and(|at| plan.embed.weights.contains(&Some(at)))
    };
    let mut n_tied = 0;
    for golden in all_goldens() {
        let unplaced = golden.plan.clone();
        let all = unplaced.weight_bytes();
        let n = unplaced.n_placeable();
        let split = [n / 3, n / 3, n - 2 * (n / 3)];
        let mut placed = golden.plan.clone();
        let share = |(at, n_layers): (usize, &usize)| DeviceShare {
            device: format!("made up {at}"),
            n_layers: *n_layers,
        };
        placed.place(&split.iter().enumerate().map(share).collect::<Vec<_>>());
        let on = weights_on(&placed);
        // What several use is there several times, everything else once.
        let mut seen: Vec<(&str, usize)> = Vec::new();
        for tensor in &placed.tensors {
            let at = (tensor.name.as_str(), tensor.device);
            assert!(!seen.contains(&at), "{}: {at:?}", golden.name);
            seen.push(at);
        }
        assert!(
            on.iter().sum::<u64>() >= all,
            "{}: {on:?} of {all}",
            golden.name
        );
        if is_tied(&unplaced) {
            n_tied += 1;
            let table = unplaced
                .embed
                .weights
                .iter()
                .flatten()
                .next()
                .expect("a table");
            let bytes = unplaced.tensors[*table].bytes;
            assert!(
                on.iter().sum::<u64>() >= all + bytes,
                "{}: {on:?}",
                golden.name
            );
        }
    }
    assert!(n_tied > 0);
}

/// A worker that the tests' own process is not connected to.
struct Lent(Child, String);

impl Drop for Lent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_program_places_tells_and_refuses() {
    let (child, address) = Worker::listening(&["--mem", "8M"]);
    let worker = Lent(child, address.to_string());
    let planned = |options: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_bench"))
            .args(["plan", "--json", "--rpc", &worker.1])
            .args(options)
            .output()
            .expect("the program runs");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        match out.status.success() {
            true => Ok(serde_json::from_slice::<Value>(&out.stdout).expect("JSON")),
            false => Err(said),
        }
    };
    let on_worker = |plan: &Value| {
        let tensors = plan["tensors"].as_array().expect("a list");
        let of_worker = tensors.iter().filter(|t| t["device"] != Value::Null);
        of_worker
            .map(|t| t["bytes"].as_u64().expect("bytes"))
            .sum::<u64>()
    };
    // The usual margin is more than it lends.
    let left_free = planned(&[]).expect("a plan");
    let used: Vec<&Value> = left_free["memory"]
        .as_array()
        .expect("a list")
        .iter()
        .collect();
    let devices: Vec<&Value> = used.iter().map(|of| &of["device"]).collect();
    assert_eq!((on_worker(&left_free), devices), (0, vec![&json!("CPU")]));
    let filled = planned(&["--fit-target", "0"]).expect("a plan");
    assert!(on_worker(&filled) > 0);
    let told = &filled["memory"][1];
    assert_eq!(told["weights"].as_u64(), Some(on_worker(&filled)), "{told}");
    let taken = ["weights", "cache", "compute"].map(|part| told[part].as_u64().expect("bytes"));
    assert!(taken.iter().sum::<u64>() <= 8 << 20, "{told}");
    let moved = planned(&["--fit-target", "0", "--place", "layers.*.ffn=CPU"]).expect("a plan");
    assert!(on_worker(&moved) < on_worker(&filled));
    let refused = [
        (
            &["--gpu-layers", "all", "--ctx", "100000"][..],
            "would fit: --gpu-layers",
        ),
        (
            &["--place", "layers.*.none=CPU"],
            "found embed, layers.*.attn",
        ),
        (
            &["--place", "head=GPU7"],
            "there is no device `GPU7`; found CPU, RPC",
        ),
        (&["--place", "head"], "expected PATTERN=DEVICE"),
        (&["--device", "CPU"], "expected a GPU or RPC device"),
        (&["--tensor-split", "1,2"], "for each of 1 devices"),
    ];
    for (options, expected) in refused {
        let said = planned(options).expect_err("refused");
        assert!(said.contains(expected), "{options:?}: {said}");
    }
}

/// Every description of a model shows the devices it is placed on: the numbers of `bench plan`, and the picture with
/// the report of that put on it.
#[test]
fn descriptions_show_the_devices() {
    let (folder, library) = sound();
    let model = synthesised(folder.path(), "llama", &SMALL);
    let placed = [
        "--backend",
        text(&library),
        "--device",
        "Test0",
        "--gpu-layers",
        "2",
    ];
    let of = |line: &[&str]| {
        let ran = bench(&[line, &placed].concat());
        assert!(ran.is_fine(), "{}", ran.err);
        ran.out
    };
    let json = |line: &[&str]| serde_json::from_str::<Value>(&of(line)).expect("JSON");
    let ctx = ["--ctx", "256"];
    let line = [&["plan", "-m", text(&model), "--json"], &ctx[..]].concat();
    let plan = of(&line);
    let planned: Value = serde_json::from_str(&plan).expect("JSON");
    assert_eq!(planned["memory"].as_array().map(Vec::len), Some(2));
    for (path, device) in [
        ("embed", 0),
        ("layers.0.attn", 0),
        ("layers.1.attn", 1),
        ("head", 1),
    ] {
        assert_eq!(planned["placement"]["parts"][path], device, "{path}");
    }
    let inspected = json(&[&["inspect", text(&model), "--json"], &ctx[..]].concat());
    assert_eq!(inspected["memory"]["devices"], planned["memory"]);
    let diagnosed = json(&[&["doctor", text(&model), "--json"], &ctx[..]].concat());
    assert_eq!(diagnosed["devices"], planned["memory"]);
    for command in ["inspect", "doctor"] {
        let page = of(&[command, text(&model)]);
        assert!(page.contains("Test0: weights "), "{page}");
    }

    let numbers = folder.path().join("plan.json");
    std::fs::write(&numbers, plan).expect("the folder is writable");
    let line = [
        "diagram",
        text(&model),
        "--overlay",
        text(&numbers),
        "-o",
        text(folder.path()),
    ];
    let drawn = bench(&line);
    assert!(drawn.is_fine(), "{}", drawn.err);
    let pictures = drawn
        .out
        .lines()
        .map(|path| std::fs::read_to_string(path).expect("a picture"));
    for picture in pictures {
        assert!(picture.contains("Device: 0 CPU, 1 Test0"), "{picture}");
    }
}
