//! How weights get to devices: through a few buffers, in place where a device can use the host's memory, and with
//! a clear error where a file ends too early.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use lab_base::ggml;
use lab_base::weights;
use lab_base::weights::TensorType;
use lab_base::weights::gguf;
use lab_base::weights::gguf::NewTensor;
use lab_core::arch::WeightRole;
use lab_core::model::Model;
use lab_core::models::synth;
use lab_core::plan::DeviceShare;

use crate::backends::{SMALL, sound, synthesised};
use crate::devices::Worker;
use crate::goldens::{golden, options};
use crate::support::command::{definitions, ended, program, scratch, text};
use crate::support::{PATHS, logits, nmse, parse_npy};

/// The small model with another width of its MLPs.
fn with_width(n_ff: &str) -> [&str; SMALL.len()] {
    SMALL.map(|pair| {
        if pair.starts_with("n_ff=") {
            n_ff
        } else {
            pair
        }
    })
}

/// A worker that the tests' own process is not connected to, and its address.
struct Lent(Child, String);

impl Lent {
    fn start() -> Self {
        let (child, address) = Worker::listening(&[]);
        Self(child, address.to_string())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes that a process had resident at most; none once it has ended.
fn most_resident(id: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// What a file of 130 MB takes of the process that copies it to workers does not depend on its size, whether it is
/// copied as it is or made of mapped rows.
#[test]
#[cfg(target_os = "linux")]
fn memory_does_not_grow_with_what_is_copied_to_devices() {
    let workers = [Lent::start(), Lent::start()];
    let rpc = format!("{},{}", workers[0].1, workers[1].1);
    let folder = scratch();
    let out = folder.path().join("out.npy");
    let most = |model: &Path, options: &[&str]| {
        let bytes = std::fs::metadata(model).expect("it was written").len();
        let line = [
            "logits",
            "--force",
            "-m",
            text(model),
            "--tokens",
            "1,2,3",
            "-o",
            text(&out),
        ];
        let placed = [
            "--rpc",
            &rpc,
            "--gpu-layers",
            "all",
            "--tensor-split",
            "1,1",
        ];
        let mut command = program(&[&line[..], &placed, options].concat());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it runs");
        let mut most = 0;
        while child.try_wait().expect("it is a child").is_none() {
            most = most_resident(child.id()).unwrap_or(0).max(most);
            std::thread::sleep(Duration::from_millis(2));
        }
        let ran = child.wait_with_output().expect("it has ended");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{said}");
        (bytes, most)
    };
    let models = ["n_ff=96", "n_ff=81920"].map(|n_ff| {
        let of_width = folder.path().join(n_ff);
        std::fs::create_dir(&of_width).expect("a folder");
        synthesised(&of_width, "llama", &with_width(n_ff))
    });
    for options in [&[][..], &["--type", "bf16"]] {
        let (few, small) = most(&models[0], options);
        let (many, large) = most(&models[1], options);
        println!("{options:?}: {few} bytes take {small}, {many} bytes {large}");
        assert!(many - few > 112 << 20, "{many}");
        // Mapped pages are given back now and then.
        let made_of_mapped = if options.is_empty() { 0 } else { 64 << 20 };
        let allowed = small + (40 << 20) + made_of_mapped;
        assert!(large < allowed, "{large} of {allowed} for a file of {many}");
    }
}

#[test]
fn a_file_that_is_cut_short_while_it_is_loaded_is_an_error() {
    let worker = Worker::start();
    let scratch = scratch();
    let golden = golden("llama");
    let path = golden.write(scratch.path());
    let weights = weights::open(&path).expect("it was written");
    let mut plan = golden.plan.clone();
    let n_layers = plan.n_placeable();
    plan.place(&[DeviceShare {
        device: worker.device.clone(),
        n_layers,
    }]);
    let len = std::fs::metadata(&path).expect("it was written").len();
    let mut calls = 0;
    let loaded = Model::load(plan, &weights, options(), &mut |_, _| {
        calls += 1;
        let file = std::fs::File::options().write(true).open(&path);
        file.and_then(|file| file.set_len(len / 2))
            .expect("it can be cut");
    });
    let said = loaded.err().expect("half of it is gone").to_string();
    for part in ["llama.gguf", "was cut short while it was read"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(calls > 0);
}

/// A device that copies while the host goes on, and one that uses the host's memory: the same bytes arrive.
#[test]
fn every_way_to_a_device_gives_the_same() {
    let (folder, library) = sound();
    let set = with_width("n_ff=40000");
    let model = synthesised(folder.path(), "llama", &set);
    let out = folder.path().join("out.npy");
    let rows = |device: &str, way: &str, ty: &str, expected: &[&str]| {
        let tokens = [
            "logits",
            "--force",
            "-m",
            text(&model),
            "--tokens",
            "1,2,3,4,5",
            "-o",
            text(&out),
        ];
        let placed = [
            "--backend",
            text(&library),
            "--device",
            device,
            "--type",
            ty,
        ];
        let all = ["--gpu-layers", "all"];
        let line = [&tokens[..], &placed, &all].concat();
        let ran = ended(program(&line).env("MADE_UP_LOADS", way));
        assert!(ran.is_fine(), "{}", ran.err);
        for part in ["bytes pinned", "bytes in place"] {
            let is_expected = expected.contains(&part);
            assert_eq!(
                ran.err.contains(part),
                is_expected,
                "{way} {part}: {}",
                ran.err
            );
        }
        parse_npy(&std::fs::read(&out).expect("it was written")).values
    };
    for ty in ["f32", "q8_0"] {
        let expected = rows("none", "", ty, &[]);
        // What is converted cannot be used in place, but for the norms.
        for (way, said) in [
            ("", &[][..]),
            ("async", &["bytes pinned"]),
            ("in place", &["bytes in place"]),
        ] {
            let found: Vec<f32> = rows("Test0", way, ty, said)
                .iter()
                .map(|x| *x as f32)
                .collect();
            assert!(nmse(&found, &expected) < 1e-12, "{way} {ty}");
        }
    }
}

/// Tables of biases and of norms that are stored as q8_0 give what the same numbers give as f32.
#[test]
fn vectors_may_be_quantised() {
    let definitions = definitions();
    let set = [
        ("n_embd", "64"),
        ("ple_multipliers", "8589934609u64,7919u64,104729u64"),
        ("ple_sizes", "61u64,67u64,71u64,73u64"),
        ("ple_offsets", "0u64,61u64,128u64,199u64"),
    ];
    for (name, set) in [
        ("deepseek4", &set[..1]),
        ("qwen4exp", &set),
        ("rwkv6", &set[..1]),
    ] {
        let folder = scratch();
        let path = folder.path().join("base.gguf");
        let def = definitions.archs.get(name).expect("it is built in");
        let request = synth::SynthRequest {
            set: set
                .iter()
                .map(|&(key, value)| (key.into(), value.into()))
                .collect(),
            ..Default::default()
        };
        let plan = synth::synth(&def, &request, &path).expect("it is made");
        let base = weights::open(&path).expect("it is sound");
        let is_table = |i: usize| {
            let tensor = &base.tensors()[i];
            let planned = plan.tensors.iter().find(|t| t.name == tensor.name);
            let is_vector = planned.is_some_and(|t| {
                !matches!(
                    t.role,
                    WeightRole::Matrix | WeightRole::Table | WeightRole::Ids(_)
                )
            });
            is_vector && tensor.n_rows() > 1 && tensor.shape[0].is_multiple_of(32)
        };
        assert!(
            (0..base.tensors().len()).any(is_table),
            "{name} has no such table"
        );
        let found = [TensorType::Q8_0, TensorType::F32].map(|ty| {
            let path = folder.path().join(format!("{ty}.gguf"));
            let tensors = base.tensors().iter().enumerate();
            let tensors = tensors.map(|(i, tensor)| NewTensor {
                name: tensor.name.clone(),
                ty: if is_table(i) { ty } else { tensor.ty },
                shape: tensor.shape.clone(),
            });
            let data = |i: usize| {
                let tensor = &base.tensors()[i];
                let data = base.data(tensor).expect("data");
                if !is_table(i) {
                    return Ok(data.to_vec());
                }
                let mut values = vec![0.0; tensor.elements() as usize];
                ggml::dequantize(&data, tensor.ty, &mut values).expect("numbers");
                let codes = ggml::quantize(&values, tensor.shape[0] as usize, TensorType::Q8_0);
                let codes = codes.expect("whole blocks");
                if ty == TensorType::Q8_0 {
                    return Ok(codes);
                }
                ggml::dequantize(&codes, TensorType::Q8_0, &mut values).expect("numbers");
                Ok(values
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect())
            };
            gguf::write(&path, base.metadata(), &tensors.collect::<Vec<_>>(), data)
                .expect("written");
            let weights = weights::open(&path).expect("it is sound");
            logits(&def, &weights, &[3, 17, 5, 40, 2, 31, 9], &PATHS[0])
                .expect("an exact path")
                .expect("the model runs")
        });
        assert_eq!(found[0], found[1], "{name}");
    }
}
