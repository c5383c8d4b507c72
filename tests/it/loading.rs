//! How weights get to devices: through a few buffers, in place where a device can use the host's memory, and with
//! a clear error where a file ends too early.

use std::process::{Child, Stdio};
use std::time::Duration;

use lab_bench::model::Model;
use lab_bench::plan::{Plan, Share};

use crate::backends::{SMALL, sound, synthesised};
use crate::command::{ended, program, scratch, text};
use crate::devices::Worker;
use crate::goldens::{goldens, options};
use crate::support::{nmse, parse_npy};

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

/// What a file of 190 MB takes of the process that copies it to workers does not depend on its size, whether it is
/// copied as it is or made of mapped rows.
#[test]
#[cfg(target_os = "linux")]
fn memory_does_not_grow_with_what_is_copied_to_devices() {
    let workers = [Lent::start(), Lent::start()];
    let rpc = format!("{},{}", workers[0].1, workers[1].1);
    let folder = scratch();
    let out = folder.path().join("out.npy");
    let most = |n_ff: &str, options: &[&str]| {
        let set = with_width(n_ff);
        let model = synthesised(folder.path(), "llama", &set);
        let bytes = std::fs::metadata(&model).expect("it was written").len();
        let line = [
            "logits",
            "-m",
            text(&model),
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
    for options in [&[][..], &["--type", "q8_0"]] {
        let (few, small) = most("n_ff=96", options);
        let (many, large) = most("n_ff=122880", options);
        println!("{options:?}: {few} bytes take {small}, {many} bytes {large}");
        assert!(many - few > 170 << 20, "{many}");
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
    let golden = goldens(scratch.path(), |name| name == "llama").remove(0);
    let path = scratch.path().join("llama.gguf");
    let mut plan =
        Plan::new(&golden.def, golden.weights.metadata(), &golden.weights).expect("it fits");
    let n_layers = plan.n_placeable();
    plan.place(&[Share {
        device: worker.device.clone(),
        n_layers,
    }]);
    let len = std::fs::metadata(&path).expect("it was written").len();
    let mut calls = 0;
    let loaded = Model::load(plan, &golden.weights, options(), &mut |_, _| {
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
