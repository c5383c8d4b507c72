//! Layers on other devices give what the processor gives.
//!
//! Two workers on loopback stand for devices that know neither the host's memory nor operations of this
//! program's own. Where their traffic is counted, it goes through a proxy.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lab_base::ggml::rpc;
use lab_core::arch::Mode;
use lab_core::model::{Batch, Model, Options};
use lab_core::plan::{DeviceOverride, DeviceShare};

use crate::goldens::{EXACT, Golden, Turns, all_goldens, golden, options, sourced};
use crate::media_goldens::of_media;
use crate::support::command::Port;
use crate::support::nmse;
use crate::support::process::eventually;

/// A worker process, and the bytes that went to and from it, if they are counted.
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
        let port = Port::reserve();
        let worker = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number));
        let mut child = Command::new(env!("CARGO_BIN_EXE_bench"))
            .args(["rpc-worker", "--threads", "1", "--port"])
            .arg(port.number.to_string())
            .args(options)
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .expect("the program runs");
        eventually("the worker listens", || {
            assert_eq!(child.try_wait().expect("it has a state"), None, "it ended");
            TcpStream::connect(worker).is_ok()
        });
        // What this process knows of a worker it knows by its address: no later one gets it.
        std::mem::forget(port);
        (child, worker)
    }

    /// One with further options.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        let (child, address) = Self::listening(options);
        Self::connected(child, address, Arc::default())
    }

    fn connected(child: Child, address: SocketAddr, n_bytes: Arc<AtomicU64>) -> Self {
        let devices = rpc::connect(&address.to_string(), None).expect("it lends a device");
        Self {
            child,
            device: devices[0].name(),
            n_bytes,
        }
    }

    /// One whose traffic is counted.
    fn counted() -> Self {
        let (child, worker) = Self::listening(&[]);
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
        Self::connected(child, address, n_bytes)
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
    let mut plan = golden.plan.clone();
    let split = split(plan.n_placeable());
    let shares = workers.iter().zip(split);
    let shares = shares.map(|(worker, n_layers)| DeviceShare {
        device: worker.device.clone(),
        n_layers,
    });
    let are_all = split.iter().sum::<usize>() == plan.n_placeable();
    let tables = plan.token_tables().filter(|_| are_all);
    let tables = tables.map(|table| DeviceOverride {
        pattern: table.path.clone(),
        device: workers[0].device.clone(),
    });
    plan.place_with(&shares.collect::<Vec<_>>(), &tables.collect::<Vec<_>>());
    let model = Model::load(plan, &golden.weights, options, &mut |_, _| {}).expect("it loads");
    sourced(model, golden)
}

/// Operations that ran elsewhere than on the device of their unit, by kind of block.
#[derive(Default)]
struct Elsewhere(BTreeSet<String>);

impl Elsewhere {
    /// Those of the last pass.
    fn see(&mut self, model: &Model) {
        let found = model.misplaced().into_iter();
        self.0
            .extend(found.map(|found| format!("{} of {}", found.op, found.kind)));
    }
}

/// Sequences that read the golden's tokens, or others, and how the rows of the former compare.
struct Reader<'a> {
    model: &'a mut Model,
    golden: &'a Golden,
    others: Vec<u32>,
    found: Vec<f32>,
    expected: Vec<f64>,
    elsewhere: Elsewhere,
}

/// The sequences that read the golden's tokens.
const READERS: [u32; 4] = [0, 2, 3, 4];
/// The sequences that read other tokens, without media: no key of theirs may be seen by the others.
const OTHERS: [u32; 2] = [1, 5];

impl<'a> Reader<'a> {
    fn new(model: &'a mut Model, golden: &'a Golden) -> Self {
        if let Some(media) = &golden.media {
            for id in READERS {
                model.set_media(id, Arc::clone(&media.set));
            }
        }
        Self {
            others: golden.tokens.iter().rev().copied().collect(),
            model,
            golden,
            found: Vec::new(),
            expected: Vec::new(),
            elsewhere: Elsewhere::default(),
        }
    }

    /// A pass over the next tokens of sequences, so many of each, as far as there are any. Returns whether there were.
    fn pass(&mut self, counts: &[(u32, usize)]) -> bool {
        let mut batch = Batch::default();
        let width = self.model.row_width();
        for &(id, n) in counts {
            let is_other = OTHERS.contains(&id);
            let text = if is_other {
                &self.others
            } else {
                &self.golden.tokens
            };
            let next = self.model.next(id) as usize;
            let media = self.golden.media.as_ref().filter(|_| !is_other);
            let end = media.map_or(next + n, |media| media.end_of_pass(next + n));
            for (at, token) in text.iter().enumerate().take(end).skip(next) {
                batch.push(*token, id, at as u32, true);
            }
        }
        if batch.is_empty() {
            return false;
        }
        if let Err(error) = self.model.forward(&batch) {
            panic!("{}: {error}", self.golden.name);
        }
        self.elsewhere.see(self.model);
        let (rows, _) = self.model.results();
        for (row, (id, at)) in rows.chunks_exact(width).zip(&batch.positions) {
            if !OTHERS.contains(id) {
                let at = *at as usize * width;
                self.found.extend_from_slice(row);
                self.expected
                    .extend_from_slice(&self.golden.expected[at..at + width]);
            }
        }
        true
    }

    /// Sequences of different lengths that start, end and are rolled back at different times; one takes over
    /// what another has read.
    fn life(&mut self) {
        let n = self.golden.tokens.len();
        if self.model.plan().mode != Mode::Causal {
            self.pass(&[(1, n), (0, n)]);
            return self.end(&[0, 1]);
        }
        self.pass(&[(0, 9), (1, 5)]);
        self.pass(&[(2, 1), (1, 1), (0, 1)]);
        // A gap between two runs.
        self.model.release(1);
        self.pass(&[(0, 2), (2, 2)]);
        let next = self.model.next(0);
        self.model.forget(0, next - 2);
        self.pass(&[(2, 3), (0, 8)]);
        let resumed = self.model.resume(3, &self.golden.tokens);
        assert!(
            // Whole blocks of a source and tokens together.
            self.golden.source.len() + resumed.n_cached >= 16 || self.model.has_states(),
            "{resumed:?}"
        );
        // Single tokens beside others, and then more and more.
        let mut more = 0;
        while self.pass(&[(5, 2 + more), (3, 3 + more), (0, 1 + more), (2, 2 + more)]) {
            more = 2 * more + 1;
        }
        self.end(&[0, 2, 3, 5]);
        // All at once, what is known of it included.
        self.model.resume(4, &self.golden.tokens);
        self.pass(&[(4, n)]);
    }

    fn end(&mut self, ids: &[u32]) {
        ids.iter().for_each(|id| self.model.release(*id));
    }

    fn error(&self) -> f64 {
        nmse(&self.found, &self.expected)
    }
}

#[test]
fn layers_on_other_devices_equal_the_reference() {
    let workers = [Worker::start(), Worker::start()];
    let mut failures = Vec::new();
    let (mut turns, mut used) = (Turns::new(SPLITS.len()), BTreeSet::new());
    for golden in all_goldens().chain(of_media().map(|of| &of.golden)) {
        for (name, split, flash_attn) in turns.of(golden).into_iter().map(|at| SPLITS[at]) {
            let options = Options {
                flash_attn,
                n_seqs: 4,
                n_checkpoints: 4,
                n_ctx: options()
                    .n_ctx
                    .max(8 * golden.tokens.len().next_multiple_of(16)),
                ..options()
            };
            let mut model = placed(golden, &workers, split, options);
            used.extend(model.plan().tensors.iter().map(|tensor| tensor.device));
            let bound = EXACT.max(3.0 * golden.noise_of_quantised());
            let mut reader = Reader::new(&mut model, golden);
            reader.life();
            let error = reader.error();
            if error > bound {
                failures.push(format!(
                    "{}, {name}, sequences: NMSE {error:.1e}",
                    golden.name
                ));
            }
            let elsewhere = reader.elsewhere;
            if !elsewhere.0.is_empty() {
                failures.push(format!(
                    "{}, {name}: elsewhere {:?}",
                    golden.name, elsewhere.0
                ));
            }
        }
    }
    assert_eq!(used, BTreeSet::from([0, 1, 2]), "both workers hold weights");
    assert!(failures.is_empty(), "{failures:#?}");
}

impl Worker {
    /// Bytes that `run` sends and receives.
    fn count(&self, run: impl FnOnce()) -> u64 {
        let before = self.n_bytes.load(Ordering::Relaxed);
        run();
        self.n_bytes.load(Ordering::Relaxed) - before
    }
}

/// Reads `n` tokens in passes of at most `step`.
fn read(model: &mut Model, id: u32, n: u32, step: usize) {
    let first = model.next(id);
    let positions: Vec<u32> = (first..first + n).collect();
    for positions in positions.chunks(step) {
        let mut batch = Batch::default();
        for at in positions {
            batch.push((at * 7 + at / 5) % 96, id, *at, at + 1 == first + n);
        }
        model.forward(&batch).expect("the pass runs");
    }
}

/// What a step of a sequence sends, masks over all that it looks at included, does not depend on the length of
/// another; what it takes over from that is copied where it lies.
#[test]
fn a_step_does_not_grow_with_other_sequences() {
    let workers = [Worker::counted(), Worker::counted()];
    for golden in ["llama", "gemma3"].map(golden) {
        for flash_attn in [true, false] {
            let options = Options {
                n_ctx: 4096,
                n_ctx_seq: 4096,
                flash_attn,
                ..options()
            };
            let mut model = placed(golden, &workers, |n| [n, 0], options);
            let name = &golden.name;
            let mut steps = Vec::new();
            let mut copied = 0;
            for n_other in [1, 1500] {
                read(&mut model, 0, n_other, 64);
                // Of a window only the end is kept.
                if n_other > 1 && model.plan().caches.iter().all(|c| c.window().is_none()) {
                    // The copy of 1200 rows in each of the layers.
                    let text: Vec<u32> = (0..1201).map(|at| (at * 7 + at / 5) % 96).collect();
                    copied = workers[0].count(|| {
                        let found = model.resume(1, &text).n_cached;
                        assert_eq!(found, 1200, "{name}");
                    });
                    model.release(1);
                }
                let mut counts = Vec::new();
                for _ in 0..8 {
                    counts.push(workers[0].count(|| read(&mut model, 2, 1, 1)));
                }
                model.release(2);
                steps.push(counts[4..].iter().copied().max().expect("steps"));
            }
            println!("{name}: {steps:?} bytes a step, {copied} for a copy");
            assert!(steps[1] <= steps[0] + 64, "{name}: {steps:?}");
            let n_tensors = 2 * model.plan().key_values().count() as u64;
            assert!(copied < 2048 * n_tensors, "{name}: {copied}");
        }
    }
}

/// What a step sends does not depend on how much the cache has room for.
#[test]
fn no_step_copies_the_cache() {
    let workers = [Worker::counted(), Worker::counted()];
    for golden in ["llama", "mamba2", "qwen35"].map(golden) {
        let per_step = [512, 8192].map(|n_ctx| {
            let options = Options { n_ctx, ..options() };
            let mut model = placed(golden, &workers, |n| [n, 0], options);
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
