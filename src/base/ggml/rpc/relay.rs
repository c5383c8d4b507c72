//! The relay between ggml and an RPC worker, which checks every answer before ggml gets it.
//!
//! ggml ends the process when a worker leaves, or answers otherwise than ggml's own worker would, and waits without
//! limit for a silent one. So ggml is connected to this relay, on the loopback interface. The relay passes requests on
//! unchanged. It knows the length of each answer and the values on which ggml relies. After the first answer that is
//! late, missing or wrong it records the fault, which [`Worker::check`] reports, disconnects from the worker, and gives
//! ggml answers that do not end the process: no devices, no memory, zeros. It does not check the content of tensors,
//! which a worker may forge.
//!
//! A connection of ggml is a session. The next session, which ggml starts when nothing of the last one is in use, has
//! no fault.

use std::collections::HashMap;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::ggml::device::Device;
use crate::ggml::error::Error;
use crate::util::lock::lock;

/// Version of the protocol of these requests and answers; a worker may have a smaller minor version.
const VERSION: [u8; 2] = [7, 0];
/// Maximum time in which a worker must accept a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Wait after a connection that could not be accepted, such as for want of a file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const PIECE: usize = 1 << 18;
const MAX_DEVICES: u32 = 64;
const MAX_ALIGN: u64 = 1 << 20;
/// Upper bound of addresses and sizes, so that the sum of any two of them is an address too.
const MAX_ADDRESS: u64 = 1 << 62;
/// Upper bound of the memory of a tensor, so that no sum over the tensors of a graph overflows.
const MAX_TENSOR: u64 = 1 << 44;
/// An address that is aligned for every device. ggml computes with it and never reads it.
const NOWHERE: u64 = 1 << 40;

/// The requests, by the answers that ggml expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RpcCommand {
    /// A request without an answer.
    Unanswered,
    Hello,
    DeviceCount,
    Alignment,
    MaxSize,
    Alloc,
    Free,
    Base,
    Memory,
    AllocSize,
    /// The bytes of a tensor, as many as the request states.
    Tensor,
    /// Whether the request was carried out.
    IsDone,
}

impl RpcCommand {
    fn of(command: u8) -> Option<Self> {
        Some(match command {
            0 => Self::Alloc,
            1 => Self::Alignment,
            2 => Self::MaxSize,
            3 => Self::Base,
            4 => Self::Free,
            7 | 9 => Self::IsDone,
            8 => Self::Tensor,
            11 => Self::Memory,
            13 => Self::AllocSize,
            14 => Self::Hello,
            15 => Self::DeviceCount,
            5 | 6 | 10 | 12 | 16 | 17 => Self::Unanswered,
            _ => return None,
        })
    }

    /// Number of bytes of the answer to a request with these parameters; none if it has no answer.
    fn answer_bytes(self, parameters: &[u8]) -> Option<u64> {
        Some(match self {
            Self::Unanswered | Self::Free => return None,
            Self::Hello => 28,
            Self::DeviceCount => 4,
            Self::Alignment | Self::MaxSize | Self::Base | Self::AllocSize => 8,
            Self::Alloc | Self::Memory => 16,
            Self::IsDone => 1,
            // The size follows the tensor and the offset.
            Self::Tensor => number(parameters, parameters.len().saturating_sub(8)),
        })
    }

    /// An answer that does not end the process; empty for a tensor, which gets zeros.
    fn nothing(self) -> Vec<u8> {
        match self {
            Self::Hello => [&VERSION[..], &[0; 26]].concat(),
            Self::Alignment => MAX_ALIGN.to_le_bytes().to_vec(),
            Self::Base => NOWHERE.to_le_bytes().to_vec(),
            Self::Tensor => Vec::new(),
            other => vec![0; other.answer_bytes(&[]).unwrap_or(0) as usize],
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    let rest = bytes.get(at..).unwrap_or_default();
    let n = rest.len().min(8);
    out[..n].copy_from_slice(&rest[..n]);
    u64::from_le_bytes(out)
}

/// A number of four bytes at the start.
fn small(bytes: &[u8]) -> u32 {
    number(&bytes[..bytes.len().min(4)], 0) as u32
}

/// The facts about a worker that its answers state.
#[derive(Debug, Default)]
struct WorkerFacts {
    /// Alignment of each device. ggml asks for it once in the life of the process.
    alignments: HashMap<u32, u64>,
    buffers: HashMap<u64, u32>,
}

impl WorkerFacts {
    fn check(&mut self, request: RpcCommand, asked: &[u8], answer: &[u8]) -> Result<(), String> {
        let wrong = |what: &str, found: &dyn std::fmt::Display, expected: String| {
            Err(format!("sent {what} {found}, expected {expected}"))
        };
        let first = number(answer, 0);
        match request {
            RpcCommand::Hello => {
                let [major, minor] = VERSION;
                if answer[0] != major || answer[1] > minor {
                    let found = format!("{}.{}.{}", answer[0], answer[1], answer[2]);
                    return wrong("protocol version", &found, format!("{major}.{minor}"));
                }
            }
            RpcCommand::DeviceCount => {
                let n = small(answer);
                if n > MAX_DEVICES {
                    return wrong(
                        "a count of devices of",
                        &n,
                        format!("at most {MAX_DEVICES}"),
                    );
                }
            }
            RpcCommand::Alignment => {
                if !first.is_power_of_two() || first > MAX_ALIGN {
                    let expected = format!("a power of two up to {MAX_ALIGN}");
                    return wrong("an alignment of", &first, expected);
                }
                self.alignments.insert(small(asked), first);
            }
            RpcCommand::Alloc => {
                let (size, least) = (number(answer, 8), number(asked, 4));
                if first != 0 && !(least..MAX_ADDRESS).contains(&size) {
                    return wrong("a buffer of", &size, format!("{least} bytes"));
                }
                self.buffers.insert(first, small(asked));
            }
            RpcCommand::Base => {
                let device = self.buffers.get(&number(asked, 0));
                let align = device.and_then(|device| self.alignments.get(device));
                let align = align.copied().unwrap_or(1);
                if first == 0 || first >= MAX_ADDRESS || !first.is_multiple_of(align) {
                    let expected = format!("a multiple of {align} below {MAX_ADDRESS}");
                    return wrong("the address", &first, expected);
                }
            }
            RpcCommand::Memory => {
                let total = number(answer, 8);
                if first > total || total >= MAX_ADDRESS {
                    let found = format!("{first} of {total}");
                    return wrong("free memory of", &found, "no more than there is".into());
                }
            }
            RpcCommand::AllocSize => {
                if first >= MAX_TENSOR {
                    return wrong(
                        "a tensor's size of",
                        &first,
                        format!("less than {MAX_TENSOR}"),
                    );
                }
            }
            RpcCommand::Free
            | RpcCommand::Unanswered
            | RpcCommand::MaxSize
            | RpcCommand::Tensor
            | RpcCommand::IsDone => {}
        }
        Ok(())
    }
}

/// A worker, and the connection of this process to it.
pub struct Worker {
    /// `HOST:PORT` of the worker, as the user wrote it.
    name: String,
    /// The address of the relay, to which ggml connects.
    relay: SocketAddr,
    /// Maximum time for an answer, or for taking a piece of a request; none: no limit.
    limit: Option<Duration>,
    fault: Mutex<Option<String>>,
    is_ended: AtomicBool,
}

impl Worker {
    /// Starts a relay to a worker. Its threads live until [`Self::end`]. Its port stays taken as long as the process:
    /// ggml keeps what it knows of a worker by this address, and another relay at the same one would inherit it.
    pub(super) fn new(name: &str, limit: Option<Duration>) -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let worker = Arc::new(Self {
            name: name.to_owned(),
            relay: listener.local_addr()?,
            limit,
            fault: Mutex::new(None),
            is_ended: AtomicBool::new(false),
        });
        let (own, of_accept) = (Arc::clone(&worker), Arc::clone(&worker));
        let (give, clients) = mpsc::channel::<TcpStream>();
        let sessions = move || {
            let mut known = WorkerFacts::default();
            for client in clients {
                *lock(&own.fault) = None;
                known.buffers.clear();
                // A session ends when ggml disconnects, or cannot be written to, which counts as the same.
                let _ = own.session(&client, &mut known);
            }
        };
        let accept = move || {
            let mut before: Option<TcpStream> = None;
            for client in listener.incoming() {
                if of_accept.is_ended.load(Ordering::Acquire) {
                    break;
                }
                let Ok(client) = client else {
                    std::thread::sleep(ACCEPT_PAUSE);
                    continue;
                };
                // ggml has one connection to a worker at a time. If the last one is still open, a process that was
                // started meanwhile has inherited it.
                if let Some(before) = before.take() {
                    let _ = before.shutdown(Shutdown::Both);
                }
                before = client.try_clone().ok();
                if give.send(client).is_err() {
                    break;
                }
            }
            std::mem::forget(listener);
        };
        let thread = || std::thread::Builder::new().name("rpc relay".into());
        thread().spawn(sessions)?;
        thread().spawn(accept)?;
        Ok(worker)
    }

    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        // The accepting thread waits for a connection.
        let _ = TcpStream::connect(self.relay);
    }

    pub(super) fn relay(&self) -> String {
        self.relay.to_string()
    }

    /// `HOST:PORT` of the worker.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn has(&self, device: Device) -> bool {
        device.endpoint() == self.relay()
    }

    /// Whether all answers of this session were correct.
    ///
    /// # Errors
    /// The session has a fault; the first one is returned with the worker's name.
    pub fn check(&self) -> Result<(), Error> {
        match &*lock(&self.fault) {
            Some(fault) => Err(super::fault(&self.name, fault)),
            None => Ok(()),
        }
    }

    fn session(&self, client: &TcpStream, known: &mut WorkerFacts) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut worker = self.connect();
        let mut requests = BufReader::with_capacity(PIECE, client);
        loop {
            let mut head = [0; 9];
            requests.read_exact(&mut head)?;
            let mut rest = number(&head, 1);
            let Some(request) = RpcCommand::of(head[0]) else {
                // ggml has another version than this file.
                let fault = format!("is to get the command {}, which is unknown here", head[0]);
                let _: Result<(), ()> = self.fail(fault);
                return Err(ErrorKind::InvalidData.into());
            };
            // Requests are small, except for the data of tensors, which has no answer: the parameters are in the last
            // piece.
            let mut piece = head.to_vec();
            loop {
                let (before, n) = (piece.len(), rest.min(PIECE as u64));
                piece.resize(before + n as usize, 0);
                requests.read_exact(&mut piece[before..])?;
                rest -= n;
                worker = worker.and_then(|worker| match self.send(&worker, &piece) {
                    Ok(()) => Ok(worker),
                    Err(error) => self.fail(self.described(&error)),
                });
                if rest == 0 {
                    break;
                }
                piece.clear();
            }
            let asked = piece.get(9..).unwrap_or_default();
            if request == RpcCommand::Free {
                known.buffers.remove(&number(asked, 0));
            }
            if let Some(bytes) = request.answer_bytes(asked) {
                worker = self.answer((request, bytes), asked, worker, known, client)?;
            }
        }
    }

    /// Passes an answer on, or makes one up after a fault. Returns the worker while it has no fault.
    fn answer(
        &self,
        (request, bytes): (RpcCommand, u64),
        asked: &[u8],
        worker: Result<TcpStream, ()>,
        known: &mut WorkerFacts,
        mut client: &TcpStream,
    ) -> io::Result<Result<TcpStream, ()>> {
        let deadline = self.limit.map(|limit| Instant::now() + limit);
        let mut checked = |worker: TcpStream| {
            let mut head = [0; 8];
            receive(&worker, &mut head, deadline).map_err(|error| self.described(&error))?;
            let found = u64::from_le_bytes(head);
            if found != bytes {
                return Err(format!("sent an answer of {found} bytes, expected {bytes}"));
            }
            let mut answer = Vec::new();
            if request != RpcCommand::Tensor {
                answer.resize(bytes as usize, 0);
                receive(&worker, &mut answer, deadline).map_err(|error| self.described(&error))?;
                known.check(request, asked, &answer)?;
            }
            if request == RpcCommand::Hello {
                // Other transports are removed: they would bypass the relay.
                answer[4..].fill(0);
            }
            Ok((worker, answer))
        };
        let (mut worker, answer) =
            match worker.and_then(|worker| checked(worker).or_else(|fault| self.fail(fault))) {
                Ok((worker, answer)) => (Ok(worker), answer),
                Err(()) => (Err(()), request.nothing()),
            };
        client.write_all(&[&bytes.to_le_bytes()[..], &answer].concat())?;
        let mut left = bytes - answer.len() as u64;
        let mut piece = vec![0; left.min(PIECE as u64) as usize];
        while left > 0 {
            let n = left.min(PIECE as u64) as usize;
            worker = worker.and_then(|worker| match receive(&worker, &mut piece[..n], deadline) {
                Ok(()) => Ok(worker),
                Err(error) => self.fail(self.described(&error)),
            });
            if worker.is_err() {
                piece.fill(0);
            }
            client.write_all(&piece[..n])?;
            left -= n as u64;
        }
        Ok(worker)
    }

    fn connect(&self) -> Result<TcpStream, ()> {
        let found = connected(&self.name).and_then(|worker| {
            worker
                .set_nodelay(true)
                .map_err(|error| error.to_string())?;
            Ok(worker)
        });
        found.or_else(|fault| self.fail(fault))
    }

    fn send(&self, mut worker: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
        let deadline = self.limit.map(|limit| Instant::now() + limit);
        while !bytes.is_empty() {
            worker.set_write_timeout(left(deadline)?)?;
            match worker.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn described(&self, error: &io::Error) -> String {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                format!("did not answer within {:?}", self.limit.unwrap_or_default())
            }
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe => "closed the connection".into(),
            _ => error.to_string(),
        }
    }

    fn fail<T>(&self, fault: String) -> Result<T, ()> {
        lock(&self.fault).get_or_insert(fault);
        Err(())
    }
}

pub(super) fn connected(name: &str) -> Result<TcpStream, String> {
    let addresses = name.to_socket_addrs();
    let addresses = addresses.map_err(|error| format!("{error}; expected HOST:PORT"))?;
    let mut refusal = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(worker) => return Ok(worker),
            Err(error) => refusal = error.to_string(),
        }
    }
    Err(refusal)
}

fn left(deadline: Option<Instant>) -> io::Result<Option<Duration>> {
    let Some(deadline) = deadline else {
        return Ok(None);
    };
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(Some(left)),
    }
}

fn receive(mut from: &TcpStream, mut out: &mut [u8], deadline: Option<Instant>) -> io::Result<()> {
    while !out.is_empty() {
        from.set_read_timeout(left(deadline)?)?;
        match from.read(out) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => out = &mut out[n..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_relay_has_no_threads_and_keeps_its_port() {
        let worker = Worker::new("127.0.0.1:1", None).expect("loopback and threads");
        worker.end();
        let started = Instant::now();
        // Each thread holds the worker.
        while Arc::strong_count(&worker) > 1 {
            assert!(started.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(10));
        }
        let taken = TcpListener::bind(worker.relay).expect_err("ggml knows this address");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }
}
