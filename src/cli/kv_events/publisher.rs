//! The ZeroMQ sockets of a model's KV events: one that publishes batches, and one that sends past batches to who missed some.
//!
//! A message has a topic, the number of the batch (8 bytes, big-endian) and its payload. Who missed some sends the number of the first to the
//! second socket, and gets number and payload of each one that is left, and at the end the number -1 with no payload. A subscriber that
//! does not read loses messages; nobody waits for it.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use lab_base::util::lock::lock;
use lab_core::engine::{KvEventBatch, KvEventSender, kv_event_channel};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use zeromq::{
    PubSocket, RouterSocket, Socket, SocketEvent, SocketOptions, SocketRecv as _, SocketSend as _,
    ZmqMessage,
};

use super::{Endpoint, KvEventOptions, wire};
use crate::cli::Failure;

/// Maximum number of past batches, and of their bytes.
const MAX_PAST: usize = 10_000;
const MAX_PAST_BYTES: usize = 64 << 20;
/// Time between attempts to connect, and maximum time of one.
const CONNECT_TIME: Duration = Duration::from_secs(1);
/// Maximum time to hand a past batch to who asked for it.
const SEND_TIME: Duration = Duration::from_secs(5);
/// Maximum time to wait for an address that is in use.
const BIND_TIME: Duration = Duration::from_secs(2);
/// Time for the last messages when a process ends.
const END_TIME: Duration = Duration::from_millis(250);
/// The number after the last past batch: -1.
const END: [u8; 8] = [0xff; 8];

static IS_STARTED: AtomicBool = AtomicBool::new(false);

/// Opens the sockets and starts the thread that sends. It ends with the engine that has the sender.
///
/// # Errors
/// An address cannot be listened on.
pub(in crate::cli) fn start(options: &KvEventOptions) -> Result<Option<KvEventSender>, Failure> {
    let Some(endpoint) = options.kv_events.clone() else {
        return Ok(None);
    };
    let listener = |option: &str, endpoint: Option<&Endpoint>| match endpoint {
        Some(Endpoint::Listen(address)) => {
            let bound = bound(*address).and_then(|listener| {
                tracing::info!(target: "server", "{option}: listening on tcp://{}", listener.local_addr()?);
                Ok(listener)
            });
            bound
                .map(Some)
                .map_err(|e| anyhow::anyhow!("{option} tcp://{address}: {e}"))
        }
        _ => Ok(None),
    };
    let own = listener("--kv-events", Some(&endpoint))?;
    let past = listener("--kv-events-replay", options.kv_events_replay.as_ref())?;
    let topic = options.kv_events_topic.clone().unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (sender, batches) = kv_event_channel();
    let work = move || {
        let sent = runtime.block_on(publish((endpoint, own), past, topic.into(), batches));
        if let Err(error) = sent {
            tracing::error!(%error, "no KV events are sent any more");
        }
    };
    std::thread::Builder::new()
        .name("kv events".into())
        .spawn(work)?;
    IS_STARTED.store(true, Ordering::Relaxed);
    Ok(Some(sender))
}

/// A socket that listens. The engine before may hold the address until its last messages have left.
fn bound(address: SocketAddr) -> io::Result<TcpListener> {
    let end = Instant::now() + BIND_TIME;
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            bound => return bound,
        }
    }
}

/// Gives the last messages time to leave. To be called before a process ends.
pub(in crate::cli) fn end() {
    if IS_STARTED.load(Ordering::Relaxed) {
        std::thread::sleep(END_TIME);
    }
}

/// The last batches.
#[derive(Default)]
struct PastBatches {
    all: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl PastBatches {
    fn push(&mut self, number: u64, payload: Bytes) {
        self.bytes += payload.len();
        self.all.push_back((number, payload));
        while self.all.len() > MAX_PAST || self.bytes > MAX_PAST_BYTES {
            let Some((_, oldest)) = self.all.pop_front() else {
                return;
            };
            self.bytes -= oldest.len();
        }
    }

    fn since(&self, number: u64) -> Vec<(u64, Bytes)> {
        let all = self.all.iter();
        all.filter(|(own, _)| *own >= number).cloned().collect()
    }
}

fn message(frames: impl Into<Vec<Bytes>>) -> ZmqMessage {
    let frames: Vec<Bytes> = frames.into();
    ZmqMessage::try_from(frames).unwrap_or_else(|_| ZmqMessage::from(Bytes::new()))
}

fn bytes_of(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// Sends batches until the engine has ended.
async fn publish(
    (endpoint, listener): (Endpoint, Option<TcpListener>),
    for_past: Option<TcpListener>,
    topic: Bytes,
    mut batches: Receiver<KvEventBatch>,
) -> Result<(), Failure> {
    let mut options = SocketOptions::default();
    options.connect_timeout(CONNECT_TIME);
    let mut socket = PubSocket::with_options(options);
    let mut changes = socket.monitor();
    if let Some(listener) = listener {
        socket.bind_listener(listener).await?;
    }
    let past = Arc::new(Mutex::new(PastBatches::default()));
    let replaying = for_past.map(|listener| tokio::spawn(replay(listener, Arc::clone(&past))));
    let host = match &endpoint {
        Endpoint::Connect(host) => Some(format!("tcp://{host}")),
        Endpoint::Listen(_) => None,
    };
    let (mut is_connected, mut is_told, mut next_attempt) = (false, false, Instant::now());
    loop {
        tokio::select! {
            batch = batches.recv() => {
                let Some(batch) = batch else { break };
                let payload = Bytes::from(wire::payload(&batch)?);
                lock(&past).push(batch.number, payload.clone());
                let frames = [topic.clone(), bytes_of(batch.number), payload];
                socket.send(message(frames)).await?;
            }
            change = changes.next() => {
                is_connected &= !matches!(change, Some(SocketEvent::Disconnected(_)) | None);
            }
            () = sleep_until(next_attempt), if host.is_some() && !is_connected => {
                let Some(host) = &host else { continue };
                match socket.connect(host).await {
                    Ok(()) => {
                        tracing::info!(target: "server", "--kv-events: connected to {host}");
                        (is_connected, is_told) = (true, false);
                    }
                    Err(error) if !is_told => {
                        tracing::warn!(%error, "--kv-events {host}: no connection; events are lost until there is one");
                        is_told = true;
                    }
                    Err(_) => {}
                }
                next_attempt = Instant::now() + CONNECT_TIME;
            }
        }
    }
    sleep(END_TIME).await;
    if let Some(replaying) = replaying {
        replaying.abort();
    }
    Ok(())
}

/// Sends past batches to who asks.
async fn replay(listener: TcpListener, past: Arc<Mutex<PastBatches>>) {
    let mut socket = RouterSocket::new();
    if let Err(error) = socket.bind_listener(listener).await {
        tracing::error!(%error, "--kv-events-replay: no past events are sent");
        return;
    }
    loop {
        let Ok(request) = socket.recv().await else {
            // The socket has no peer that works.
            sleep(CONNECT_TIME).await;
            continue;
        };
        let frames = request.into_vec();
        let number = match frames.as_slice() {
            [_, empty, number] if empty.is_empty() => <[u8; 8]>::try_from(&number[..]).ok(),
            _ => None,
        };
        let (Some(number), Some(peer)) = (number, frames.first()) else {
            tracing::debug!(frames = frames.len(), "--kv-events-replay: no request");
            continue;
        };
        let all = lock(&past).since(u64::from_be_bytes(number));
        let all = all
            .into_iter()
            .map(|(number, payload)| (bytes_of(number), payload));
        let end = (Bytes::from_static(&END), Bytes::new());
        for (number, payload) in all.chain([end]) {
            let frames = [peer.clone(), Bytes::new(), number, payload];
            match timeout(SEND_TIME, socket.send(message(frames))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_batches_are_bounded_by_their_number_and_by_their_bytes() {
        let mut past = PastBatches::default();
        let large = Bytes::from(vec![0; MAX_PAST_BYTES / 4]);
        (0..6).for_each(|number| past.push(number, large.clone()));
        let numbers = |past: &PastBatches, since: u64| -> Vec<u64> {
            past.since(since)
                .into_iter()
                .map(|(number, _)| number)
                .collect()
        };
        assert_eq!(numbers(&past, 0), [2, 3, 4, 5]);
        assert_eq!(numbers(&past, 5), [5]);
        assert_eq!(numbers(&past, 6), [0; 0]);
        (6..20_000).for_each(|number| past.push(number, Bytes::new()));
        assert_eq!((past.all.len(), past.bytes), (MAX_PAST, 0));
    }
}
