//! Layers on other devices give what the processor gives.
//!
//! Two workers on loopback stand for devices that know neither the host's memory nor operations of this
//! program's own. Their traffic goes through a proxy that counts it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lab_bench::arch::Mode;
use lab_bench::ggml::rpc;
use lab_bench::model::{Batch, Model, Options};
use lab_bench::plan::{Plan, Share};

use crate::command::scratch;
use crate::goldens::{EXACT, Golden, goldens, options};
use crate::support::nmse;

/// A worker process, and the bytes that went to and from it.
pub(crate) struct Worker {
    child: Child,
    /// Name of its device.
    pub(crate) device: String,
    n_bytes: Arc<AtomicU64>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // No model uses it any more, so that nothing is sent.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, n_bytes: &AtomicU64) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        n_bytes.fetch_add(n as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

impl Worker {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The process of one with further options, and where it listens.
    pub(crate) fn listening(options: &[&str]) -> (Child, SocketAddr) {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let worker = free.local_addr().expect("it is bound");
        drop(free);
        let child = Command::new(env!("CARGO_BIN_EXE_bench"))
            .args(["rpc-worker", "--threads", "1", "--port"])
            .arg(worker.port().to_string())
            .args(options)
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .expect("the program runs");
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(worker).is_err() {
            assert!(Instant::now() < deadline, "the worker listens");
            std::thread::sleep(Duration::from_millis(10));
        }
        (child, worker)
    }

    /// One with further options.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        let (child, worker) = Self::listening(options);
        let proxy = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = proxy.local_addr().expect("it is bound");
        let n_bytes = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&n_bytes);
        std::thread::spawn(move || {
            let mut before: Option<TcpStream> = None;
            for client in proxy.incoming().flatten() {
                // A worker serves one client after another. The one before is done: where its connection is
                // still open, a process that another test started has inherited it.
                if let Some(before) = before.take() {
                    let _ = before.shutdown(Shutdown::Both);
                }
                let server = TcpStream::connect(worker).expect("the worker listens");
                for end in [&client, &server] {
                    end.set_nodelay(true).expect("an open connection");
                }
                let pair = |a: &TcpStream| a.try_clone().expect("a handle");
                before = Some(pair(&server));
                let ways = [(pair(&client), pair(&server)), (server, client)];
                for (from, to) in ways {
                    let counted = Arc::clone(&counted);
                    std::thread::spawn(move || copy(from, to, &counted));
                }
            }
        });
        let devices = rpc::connect(&address.to_string()).expect("it lends a device");
        Self {
            child,
            device: devices[0].name(),
            n_bytes,
        }
    }
}

/// A placement: layers for each of two devices, of `n` with the head.
type Split = fn(usize) -> [usize; 2];

/// Placements, each with flash attention or without it.
const SPLITS: [(&str, Split, bool); 4] = [
    ("the head", |_| [1, 0], true),
    ("half", |n| [n / 2, 0], false),
    ("all", |n| [n, 0], true),
    ("both", |n| [n.div_ceil(2), n / 2], false),
];

fn placed(golden: &Golden, workers: &[Worker; 2], split: Split, options: Options) -> Model {
    let mut plan =
        Plan::new(&golden.def, golden.weights.metadata(), &golden.weights).expect("it fits");
    let shares = workers.iter().zip(split(plan.n_placeable()));
    let shares = shares.map(|(worker, n_layers)| Share {
        device: worker.device.clone(),
        n_layers,
    });
    plan.place(&shares.collect::<Vec<_>>());
    Model::load(plan, &golden.weights, options, &mut |_, _| {}).expect("it loads")
}

/// The golden's tokens as two sequences at once, in pieces where no token sees those after it; the rows of
/// each.
fn in_pieces(model: &mut Model, tokens: &[u32]) -> [Vec<f32>; 2] {
    let mut rows = [Vec::new(), Vec::new()];
    let width = model.row_width();
    let n = match model.plan().mode {
        Mode::Causal => 5,
        _ => tokens.len(),
    };
    for (at, piece) in tokens.chunks(n).enumerate() {
        let mut batch = Batch::default();
        for sequence in 0..2 {
            for (position, token) in ((n * at) as u32..).zip(piece) {
                batch.push(*token, sequence, position, true);
            }
        }
        let found = model.forward(&batch).expect("the pass runs");
        let (first, second) = found.split_at(piece.len() * width);
        rows[0].extend_from_slice(first);
        rows[1].extend_from_slice(second);
    }
    rows
}

#[test]
fn layers_on_other_devices_equal_the_reference() {
    let workers = [Worker::start(), Worker::start()];
    let scratch = scratch();
    let mut failures = Vec::new();
    for golden in goldens(scratch.path(), |_| true) {
        for (name, split, flash_attn) in SPLITS {
            let options = Options {
                flash_attn,
                ..options()
            };
            let mut model = placed(&golden, &workers, split, options);
            for rows in in_pieces(&mut model, &golden.tokens) {
                let error = nmse(&rows, &golden.expected);
                if error > EXACT.max(3.0 * golden.noise_of_quantised()) {
                    failures.push(format!("{}, {name}: NMSE {error:.1e}", golden.name));
                }
            }
        }
    }
    let n_bytes = workers
        .each_ref()
        .map(|w| w.n_bytes.load(Ordering::Relaxed));
    println!("{n_bytes:?} bytes");
    assert!(n_bytes.iter().all(|n| *n > 0), "{n_bytes:?}");
    assert!(failures.is_empty(), "{failures:#?}");
}

/// What a step sends does not depend on how much the cache has room for.
#[test]
fn no_step_copies_the_cache() {
    let workers = [Worker::start(), Worker::start()];
    let scratch = scratch();
    for golden in goldens(scratch.path(), |name| {
        matches!(name, "llama" | "mamba2" | "qwen35")
    }) {
        let per_step = [512, 8192].map(|n_ctx| {
            let options = Options { n_ctx, ..options() };
            let mut model = placed(&golden, &workers, |n| [n, 0], options);
            let mut counts = Vec::new();
            for (position, token) in (0..).zip(&golden.tokens[..8]) {
                let mut batch = Batch::default();
                batch.push(*token, 0, position, true);
                let before = workers[0].n_bytes.load(Ordering::Relaxed);
                model.forward(&batch).expect("the pass runs");
                counts.push(workers[0].n_bytes.load(Ordering::Relaxed) - before);
            }
            counts[4..].iter().copied().max().expect("steps")
        });
        println!("{}: {per_step:?} bytes a step", golden.name);
        assert!(
            per_step[1] <= per_step[0] + 1024,
            "{}: {per_step:?}",
            golden.name
        );
        assert!(per_step[1] < 256 << 10, "{}: {per_step:?}", golden.name);
    }
}
