//! RPC workers that answer what they like: an error or finite logits, within the time limit. A signal would end the test.
//!
//! The workers are fake: threads that know the sizes of ggml's messages and compute nothing. `WORKERS=1000` makes
//! more of those that draw their answers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lab_base::ggml::rpc;
use lab_core::model;
use lab_core::model::{Batch, Model};
use lab_core::plan::{DeviceOverride, DeviceShare, PROCESSOR};

use crate::goldens::{Golden, golden, options, sourced};
use crate::mutated_models::Random;
use crate::support::command::{allow_connections, bench};

/// Longest wait for an answer.
const LIMIT: Duration = Duration::from_millis(500);

/// Commands that have an answer, and what its bytes are, as ggml counts them.
const ALLOC: u8 = 0;
const ALIGNMENT: u8 = 1;
const MAX_SIZE: u8 = 2;
const BASE: u8 = 3;
const HASH: u8 = 7;
const TENSOR: u8 = 8;
const COPY: u8 = 9;
const MEMORY: u8 = 11;
const ALLOC_SIZE: u8 = 13;
const HELLO: u8 = 14;
const DEVICES: u8 = 15;
const ANSWERED: [u8; 11] = [
    ALLOC, ALIGNMENT, MAX_SIZE, BASE, HASH, TENSOR, COPY, MEMORY, ALLOC_SIZE, HELLO, DEVICES,
];

/// The answer of a worker that computes nothing.
fn sound(command: u8, request: &[u8]) -> Option<Vec<u8>> {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 20);
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let number =
        |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().expect("eight bytes"));
    Some(match command {
        ALLOC => words(&[NEXT.fetch_add(1 << 20, Ordering::Relaxed), number(4)]),
        ALIGNMENT => words(&[64]),
        MAX_SIZE => words(&[u64::MAX]),
        BASE => words(&[number(0) << 16]),
        MEMORY => words(&[1 << 34, 1 << 34]),
        ALLOC_SIZE => words(&[0]),
        HASH | COPY => vec![1],
        TENSOR => vec![0; number(request.len() - 8) as usize],
        HELLO => [&[7, 0, 0][..], &[0; 25]].concat(),
        DEVICES => 1u32.to_le_bytes().to_vec(),
        _ => return None,
    })
}

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// The connection is closed in its place.
    Closed,
    /// It stops in the middle.
    Cut,
    /// It says that it is longer than it may be.
    Long,
    /// It says that it has 2^64 - 1 bytes.
    Huge,
    /// It says that it has none.
    Empty,
    /// Bytes without end.
    Endless,
    /// Nothing comes.
    Silent,
    /// All its bits are set.
    Ones,
    /// All its bits are clear.
    Zeros,
    /// Random bytes of the right number.
    Drawn,
}

const WRONG: [Wrong; 10] = [
    Wrong::Closed,
    Wrong::Cut,
    Wrong::Long,
    Wrong::Huge,
    Wrong::Empty,
    Wrong::Endless,
    Wrong::Silent,
    Wrong::Ones,
    Wrong::Zeros,
    Wrong::Drawn,
];

/// Sends an answer; false ends the connection.
fn send(
    client: &mut TcpStream,
    answer: Vec<u8>,
    wrong: Option<Wrong>,
    random: &mut Random,
) -> bool {
    let n = answer.len() as u64;
    let mut whole = |n: u64, bytes: &[u8]| {
        client
            .write_all(&[&n.to_le_bytes()[..], bytes].concat())
            .is_ok()
    };
    match wrong {
        None => whole(n, &answer),
        Some(Wrong::Closed) => false,
        Some(Wrong::Cut) => {
            whole(n, &answer[..answer.len() / 2]);
            false
        }
        Some(Wrong::Long) => whole(n + 1, &[answer, vec![7]].concat()),
        Some(Wrong::Huge) => whole(u64::MAX, &answer),
        Some(Wrong::Empty) => whole(0, &[]),
        // Until nobody reads it.
        Some(Wrong::Endless) => {
            while client.write_all(&[255; 1 << 12]).is_ok() {}
            false
        }
        Some(Wrong::Silent) => true,
        Some(Wrong::Ones) => whole(n, &vec![255; answer.len()]),
        Some(Wrong::Zeros) => whole(n, &vec![0; answer.len()]),
        Some(Wrong::Drawn) => {
            let drawn: Vec<u8> = answer.iter().map(|_| random.next() as u8).collect();
            whole(n, &drawn)
        }
    }
}

/// A worker whose answers `wrong` spoils, by their command and their number; its address, which no later one gets: what a process knows of a worker
/// it knows by its address.
fn worker(
    mut wrong: impl FnMut(u8, usize, &mut Random) -> Option<Wrong> + Send + 'static,
    seed: u64,
) -> String {
    // Workers and their relays keep their ports, and so descriptors, as long as the process.
    allow_connections();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    std::thread::spawn(move || {
        let (mut random, mut counts) = (Random(seed), [0; 256]);
        for mut client in listener.incoming().flatten() {
            let mut head = [0; 9];
            while client.read_exact(&mut head).is_ok() {
                let (command, size) = (head[0], &head[1..]);
                let size = u64::from_le_bytes(size.try_into().expect("eight bytes"));
                let mut request = vec![0; size as usize];
                if client.read_exact(&mut request).is_err() {
                    break;
                }
                let Some(answer) = sound(command, &request) else {
                    continue;
                };
                let count: &mut usize = &mut counts[usize::from(command)];
                let wrong = wrong(command, *count, &mut random);
                *count += 1;
                if !send(&mut client, answer, wrong, &mut random) {
                    break;
                }
            }
        }
    });
    address
}

/// Loads a model with all layers on a worker, less those that a pattern puts on the processor, and computes.
fn logits(golden: &Golden, address: &str, on_processor: Option<&str>) -> Result<Vec<f32>, String> {
    let told = |error: model::Error| error.to_string();
    let devices = rpc::connect(address, Some(LIMIT)).map_err(|error| error.to_string())?;
    let mut plan = golden.plan.clone();
    let share = DeviceShare {
        device: devices[0].name(),
        n_layers: plan.n_placeable(),
    };
    let moves = on_processor.map(|pattern| DeviceOverride {
        pattern: pattern.into(),
        device: PROCESSOR.into(),
    });
    plan.place_with(&[share], moves.as_slice());
    let loaded = Model::load(plan, &golden.weights, options(), &mut |_, _| {}).map_err(told)?;
    let mut model = sourced(loaded, golden);
    let mut out = Vec::new();
    for piece in 0..2 {
        let mut batch = Batch::default();
        let tokens = golden.tokens.iter().enumerate().skip(4 * piece).take(4);
        for (position, token) in tokens {
            batch.push(*token, 0, position as u32, true);
        }
        out.extend_from_slice(model.forward(&batch).map_err(told)?);
    }
    Ok(out)
}

#[test]
fn every_wrong_answer_is_an_error_or_has_no_effect() {
    let golden = golden("llama");
    logits(golden, &worker(|_, _, _| None, 1), None).expect("a worker that computes zeros");
    let mut seen = std::collections::BTreeSet::new();
    for command in ANSWERED {
        for wrong in WRONG {
            // The first answer of its kind, and one in the middle of a session.
            for nth in [0, 2] {
                // It takes the whole limit.
                if wrong == Wrong::Silent && nth > 0 {
                    continue;
                }
                let spoilt =
                    move |found, n, _: &mut Random| (found == command && n == nth).then_some(wrong);
                let started = Instant::now();
                let found = logits(golden, &worker(spoilt, 1), None);
                let took = started.elapsed();
                assert!(
                    took < Duration::from_secs(60),
                    "{command} {wrong:?} {nth}: {took:?}"
                );
                let Err(error) = found else { continue };
                seen.insert((command, format!("{wrong:?}")));
                // What random numbers are added up to may be no number.
                let is_told = error.starts_with("RPC worker 127.0.0.1:")
                    || error.contains("could not allocate")
                    || error.contains("not enough memory");
                assert!(is_told, "{command} {wrong:?}: {error}");
                if wrong == Wrong::Silent {
                    assert!(error.ends_with("did not answer within 500ms"), "{error}");
                }
            }
        }
    }
    // Those that every load asks for.
    let asked = [ALLOC, ALIGNMENT, MAX_SIZE, BASE, TENSOR, HELLO, DEVICES];
    let told = [
        "Closed", "Cut", "Long", "Huge", "Empty", "Endless", "Silent",
    ];
    let everywhere = asked.map(|command| told.map(|wrong| (command, wrong)));
    let somewhere = [
        (ALIGNMENT, "Zeros"),
        (BASE, "Zeros"),
        (HELLO, "Ones"),
        (DEVICES, "Ones"),
    ];
    for (command, wrong) in everywhere.into_iter().flatten().chain(somewhere) {
        let is_error = seen.contains(&(command, wrong.into()));
        assert!(is_error, "{command} {wrong} was never an error");
    }
}

#[test]
fn answers_that_are_drawn_are_errors_or_logits() {
    let n: u64 = std::env::var("WORKERS").map_or(24, |n| n.parse().expect("a number"));
    // Attention, experts, selected keys, states: all there, or what reads indices on the processor.
    let cases = [
        ("llama", None),
        ("qwen3moe", None),
        ("qwen3moe", Some("layers.*.ffn")),
        ("deepseek32", Some("layers.*.attn")),
        ("mamba2", Some("layers.1*")),
    ];
    let cases = cases.map(|(name, moved)| (golden(name), moved));
    let mut n_logits = 0;
    for seed in 1..=n {
        for (golden, moved) in &cases {
            println!("{} {moved:?}, seed {seed}", golden.name);
            // What tensors hold is always drawn, other answers rarely.
            let one_of = 1 << (seed % 8);
            let spoilt = move |command, _, random: &mut Random| match command {
                TENSOR => Some(Wrong::Drawn),
                _ if seed % 2 == 0 || random.below(one_of * 8) > 0 => None,
                _ => Some([Wrong::Ones, Wrong::Zeros, Wrong::Drawn][random.below(3)]),
            };
            let found = logits(golden, &worker(spoilt, seed), *moved);
            n_logits += u64::from(found.is_ok());
        }
    }
    assert!(n_logits > 0, "no session came to its end");
}

#[test]
fn a_program_whose_worker_is_wrong_ends_with_one_error() {
    for (wrong, why) in [
        (Wrong::Closed, "closed the connection"),
        (Wrong::Silent, "did not answer within 1s"),
        (
            Wrong::Huge,
            "sent an answer of 18446744073709551615 bytes, expected",
        ),
    ] {
        let spoilt = move |command, _, _: &mut Random| (command == TENSOR).then_some(wrong);
        let address = worker(spoilt, 1);
        let ran = bench(&[
            "run",
            "1 2 3",
            "-n",
            "4",
            "--rpc",
            &address,
            "--rpc-time",
            "1",
        ]);
        assert_eq!(ran.code, 1, "{wrong:?}: {}", ran.err);
        let expected = format!("RPC worker {address}: {why}");
        assert!(ran.err.contains(&expected), "{wrong:?}: {}", ran.err);
        assert!(!ran.err.contains("Remote RPC server"), "{}", ran.err);
    }
}
