//! KV events (feature `kv-events`), as a subscriber gets them that speaks ZeroMQ's protocol by itself (ZMTP 3.0).
//! `scripts/kv_events.py` is one with libzmq.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::command::{Port, bench};
use crate::support::server::Server;

/// A batch of events: its time, the events, and the rank.
type Batch = (f64, Vec<Value>, u32);

/// The socket of a peer.
struct Peer(TcpStream);

impl Peer {
    /// Connects to a socket as one of this kind.
    fn connect(address: &str, kind: &str) -> Self {
        let began = Instant::now();
        let mut stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "{error}"),
            }
        };
        let timeout = Some(Duration::from_secs(30));
        stream.set_read_timeout(timeout).expect("a timeout");
        // Signature, version 3.0, the mechanism NULL, not a server of it.
        let mut greeting = [0; 64];
        greeting[..12].copy_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0]);
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).expect("sent");
        let mut other = [0; 64];
        stream.read_exact(&mut other).expect("a greeting");
        assert_eq!((other[0], other[9], other[10]), (0xff, 0x7f, 3));
        let mut peer = Self(stream);
        let length = (kind.len() as u32).to_be_bytes();
        let ready = [&b"\x05READY\x0bSocket-Type"[..], &length, kind.as_bytes()].concat();
        peer.send(4, &ready);
        let (flags, ready) = peer.frame();
        assert!(flags & 4 != 0 && ready.starts_with(b"\x05READY"));
        peer
    }

    fn send(&mut self, flags: u8, body: &[u8]) {
        let length = u8::try_from(body.len()).expect("a short frame");
        let frame = [&[flags, length], body].concat();
        self.0.write_all(&frame).expect("sent");
    }

    /// The flags and the body of a frame.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut flags = [0];
        self.0.read_exact(&mut flags).expect("a frame");
        let mut length = [0; 8];
        let from = if flags[0] & 2 == 0 { 7 } else { 0 };
        self.0.read_exact(&mut length[from..]).expect("a length");
        let mut body = vec![0; u64::from_be_bytes(length) as usize];
        self.0.read_exact(&mut body).expect("a body");
        (flags[0], body)
    }

    fn message(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.frame();
            assert_eq!(flags & 4, 0, "no command");
            frames.push(body);
            if flags & 1 == 0 {
                return frames;
            }
        }
    }

    /// The number and the payload of the next message with a topic.
    fn published(&mut self, topic: &str) -> (u64, Vec<u8>) {
        let frames = self.message();
        let [own, number, payload] = <[_; 3]>::try_from(frames).expect("three frames");
        assert_eq!(own, topic.as_bytes());
        let number = number.try_into().expect("8 bytes");
        (u64::from_be_bytes(number), payload)
    }
}

fn decoded(payload: &[u8]) -> Batch {
    rmp_serde::from_slice(payload).expect("a batch")
}

#[test]
fn a_subscriber_gets_what_vllm_would_send_and_past_batches_again() {
    for is_split in [true, false] {
        let ports = [Port::reserve(), Port::reserve()];
        let [address, past] = ports
            .each_ref()
            .map(|port| format!("127.0.0.1:{}", port.number));
        let [to, replay] = [&address, &past].map(|address| format!("@tcp://{address}"));
        let topic = "kv@here@tiny-chat";
        let options = [
            "--kv-events",
            &to,
            "--kv-events-replay",
            &replay,
            "--kv-events-topic",
            topic,
        ];
        let server = match is_split {
            true => Server::split(&options),
            false => Server::start(&options),
        };
        let mut subscriber = Peer::connect(&address, "SUB");
        subscriber.send(0, b"\x01kv@here");
        // The subscription is on its way.
        std::thread::sleep(Duration::from_millis(300));
        let prompt: Vec<u32> = (20..54).collect();
        let body =
            json!({ "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": true });
        server.post("/v1/completions", &body);
        let (number, payload) = subscriber.published(topic);
        // `msgspec.msgpack.encode` of vLLM's classes in Python, after the time.
        let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(hex.starts_with("93cb"), "{hex}");
        assert_eq!(hex[20..], *BYTES);
        let (_, events, rank) = decoded(&payload);
        assert_eq!((number, events.len(), rank), (1, 1, 0));
        assert_eq!(events[0]["type"], "BlockStored");
        assert_eq!(events[0]["token_ids"], json!(prompt[..32]));
        // Again, from the first batch on.
        let mut dealer = Peer::connect(&past, "DEALER");
        dealer.send(1, b"");
        dealer.send(0, &[0; 8]);
        let mut replayed = || -> (i64, Vec<u8>) {
            let frames = dealer.message();
            let [_, number, payload] = <[_; 3]>::try_from(frames).expect("three frames");
            (
                i64::from_be_bytes(number.try_into().expect("8 bytes")),
                payload,
            )
        };
        let (number, first) = replayed();
        assert_eq!(
            (number, decoded(&first).1),
            (0, vec![json!({ "type": "AllBlocksCleared" })])
        );
        assert_eq!(replayed(), (1, payload));
        assert_eq!(replayed(), (-1, Vec::new()));
        // What is no peer of ZeroMQ's changes nothing.
        for address in [&address, &past] {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(&[b'G'; 200]).expect("sent");
        }
        // The end of the model is told, or its engine ends without a word and the next one says so.
        server.post("/models/unload", &json!({ "model": "tiny-chat" }));
        let (_, payload) = subscriber.published(topic);
        assert_eq!(decoded(&payload).1[0]["type"], "AllBlocksCleared");
        server.post("/v1/completions", &body);
        server.log();
    }
}

#[test]
fn endpoints_that_cannot_be_used_are_refused_by_name() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = format!("@tcp://{}", taken.local_addr().expect("an address"));
    for (options, message) in [
        (vec!["--kv-events", "ipc:///tmp/a"], "expected tcp://*:PORT"),
        (vec!["--kv-events", &taken], "Address already in use"),
        (
            vec![
                "--kv-events",
                "tcp://a:1",
                "--kv-events-replay",
                "tcp://b:2",
            ],
            "--kv-events-replay: expected an address to listen on",
        ),
        (
            vec!["--models", ".", "--kv-events", "tcp://*:5557"],
            "cannot listen on one address",
        ),
    ] {
        let ran = bench(&[&["serve", "--port", "0", "--in-process"][..], &options].concat());
        assert!(ran.err.contains(message), "{options:?}: {}", ran.err);
        assert_ne!(ran.code, 0, "{options:?}");
    }
}

/// A batch with the first two blocks of the tokens from 20 on, after its time.
const BYTES: &str = concat!(
    "9189a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cff4098943aee1d4bdcf4acda3a6358b5f9ab1706172656e745f62",
    "6c6f636b5f68617368c0a9746f6b656e5f696473dc00201415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f30313233aa626c6f63",
    "6b5f73697a6510a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797392c0c000",
);
