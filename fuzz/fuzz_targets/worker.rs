//! The answers of an RPC worker, while a model with all layers on it computes. Bytes of an input say which answers are wrong, how,
//! and what they hold.
#![no_main]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use lab_base::ggml::rpc;
use lab_core::model::{Batch, Model, Options};
use lab_core::plan::{DeviceShare, Plan};

/// Longest wait for an answer.
const LIMIT: Duration = Duration::from_millis(10);

/// The bytes of the input that no answer has used yet, the last one first.
static SCRIPT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn drawn() -> Option<u8> {
    let script = SCRIPT.lock();
    script.unwrap_or_else(PoisonError::into_inner).pop()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The answer of a worker that computes zeros, by ggml's protocol; none to a request that has none.
fn sound(command: u8, request: &[u8], next: &mut u64) -> Option<Vec<u8>> {
    let number = |at: usize| {
        let bytes = request.get(at..at + 8).expect("ggml's own request");
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    };
    Some(match command {
        // A buffer: its handle and size.
        0 => {
            *next += 1;
            words(&[*next << 20, number(4)])
        }
        // Alignment, largest buffer, address of a buffer.
        1 => words(&[64]),
        2 => words(&[u64::MAX]),
        3 => words(&[number(0) << 16]),
        // Whether something was done.
        7 | 9 => vec![1],
        // The bytes of a tensor.
        8 => vec![0; number(request.len() - 8) as usize],
        // Free memory and all of it; size of a tensor.
        11 => words(&[1 << 34, 1 << 34]),
        13 => words(&[0]),
        // Version, number of devices.
        14 => [&[7, 0, 0][..], &[0; 25]].concat(),
        15 => 1u32.to_le_bytes().to_vec(),
        _ => return None,
    })
}

/// Sends an answer as the input says; false ends the connection.
fn send(client: &mut TcpStream, mut answer: Vec<u8>) -> bool {
    let mut size = answer.len() as u64;
    let mut goes_on = true;
    match drawn() {
        None | Some(..200) => {}
        Some(200..230) => answer.fill_with(|| drawn().unwrap_or(0)),
        Some(230..240) => size = u64::from_le_bytes(std::array::from_fn(|_| drawn().unwrap_or(0))),
        Some(240..250) => {
            answer.truncate(usize::from(drawn().unwrap_or(0)));
            goes_on = false;
        }
        Some(250..255) => return false,
        // Silent.
        Some(255) => return true,
    }
    client.write_all(&[&size.to_le_bytes()[..], &answer].concat()).is_ok() && goes_on
}

fn session(client: &mut TcpStream) -> Option<()> {
    let mut next = 0;
    loop {
        let mut head = [0; 9];
        client.read_exact(&mut head).ok()?;
        let size = u64::from_le_bytes(head[1..].try_into().expect("eight bytes"));
        let mut request = vec![0; size as usize];
        client.read_exact(&mut request).ok()?;
        if let Some(answer) = sound(head[0], &request, &mut next)
            && !send(client, answer)
        {
            return None;
        }
    }
}

/// Makes libFuzzer's alarm continue the system call that it interrupts: ggml takes an interrupted `recv` for a worker that left,
/// and ends the process. The program's own handlers are all of this kind.
fn restart_interrupted_calls() {
    // SAFETY: the handler stays; only a flag is added to what is set already.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGALRM, std::ptr::null(), &mut action);
        action.sa_flags |= libc::SA_RESTART;
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
    }
}

/// The worker, which lives as long as the process.
fn address() -> &'static str {
    static ONE: LazyLock<String> = LazyLock::new(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                session(&mut client);
            }
        });
        restart_interrupted_calls();
        let is_sound = (0..100).any(|_| rpc::connect(&address, Some(LIMIT)).is_ok());
        assert!(is_sound, "a sound worker was not believed");
        address
    });
    &ONE
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let address = address();
    let script = bytes.iter().rev().copied().collect();
    *SCRIPT.lock().unwrap_or_else(PoisonError::into_inner) = script;
    let Ok(devices) = rpc::connect(address, Some(LIMIT)) else {
        return;
    };
    let opened = fuzz::model();
    let mut plan: Plan = opened.plan;
    let share = DeviceShare {
        device: devices[0].name(),
        n_layers: plan.n_placeable(),
    };
    plan.place(&[share]);
    let options = Options {
        n_threads: 1,
        ..Options::plain(256, 8)
    };
    let Ok(mut model) = Model::load(plan, &opened.weights, options, &mut |_, _| {}) else {
        return;
    };
    let mut batch = Batch::default();
    for position in 0..4 {
        batch.push(position + 1, 0, position, true);
    }
    let _ = model.forward(&batch);
    // Nothing of this session is in use when the next one starts.
    drop(model);
});
