//! Spans of requests (feature `otel`), as a collector gets them.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::support::process::eventually;
use crate::support::server::Server;

/// Heads and bodies of the requests to a collector.
type Received = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Reads the requests of a connection.
fn read(mut stream: TcpStream, received: &Received) {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let head = end.map(|end| String::from_utf8_lossy(&bytes[..end]).to_lowercase());
        let length = head.as_ref().and_then(|head| {
            let line = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            line?.parse::<usize>().ok()
        });
        if let (Some(head), Some(end), Some(length)) = (head, end, length)
            && bytes.len() >= end + 4 + length
        {
            let body = bytes[end + 4..end + 4 + length].to_vec();
            received.lock().expect("no panic").push((head, body));
            bytes.drain(..end + 4 + length);
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).expect("sent");
            continue;
        }
        match stream.read(&mut part) {
            Ok(n @ 1..) => bytes.extend(&part[..n]),
            _ => return,
        }
    }
}

/// A collector: its address, and what it received.
fn collector() -> (String, Received) {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", socket.local_addr().expect("an address"));
    let received = Received::default();
    let own = Arc::clone(&received);
    std::thread::spawn(move || {
        for stream in socket.incoming().flatten() {
            let own = Arc::clone(&own);
            std::thread::spawn(move || read(stream, &own));
        }
    });
    (address, received)
}

/// The fields of a message of protobuf by their numbers: what has a length, and fixed numbers of 64 bits as bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    fn number(message: &mut &[u8]) -> u64 {
        let mut n = 0;
        for shift in (0..).step_by(7) {
            let byte = message.split_off_first().expect("a byte");
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        n
    }
    let mut all = Vec::new();
    while !message.is_empty() {
        let key = number(&mut message);
        let length = match key & 7 {
            0 => {
                number(&mut message);
                continue;
            }
            1 => 8,
            2 => number(&mut message) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let value = message.split_off(..length).expect("a whole field");
        all.push((key >> 3, value));
    }
    all
}

/// The parts of a message that have this number.
fn parts(message: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
    let all = fields(message).into_iter();
    all.filter(move |(own, _)| *own == number)
        .map(|(_, value)| value)
}

/// A span that a collector received.
#[derive(Debug)]
struct Span {
    trace: Vec<u8>,
    id: Vec<u8>,
    parent: Vec<u8>,
    name: String,
    /// Nanoseconds since 1970.
    times: [u64; 2],
    attributes: Vec<String>,
}

impl Span {
    fn of(message: &[u8]) -> Self {
        let bytes = |number| parts(message, number).next().unwrap_or_default().to_vec();
        let time = |number| u64::from_le_bytes(bytes(number).try_into().expect("64 bits"));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let names = parts(message, 9).filter_map(|pair| parts(pair, 1).next().map(text));
        Self {
            trace: bytes(1),
            id: bytes(2),
            parent: bytes(4),
            name: text(&bytes(5)),
            times: [time(7), time(8)],
            attributes: names.collect(),
        }
    }

    /// The spans of requests to a collector.
    fn all(received: &Received) -> Vec<Self> {
        let received = received.lock().expect("no panic");
        let mut spans = Vec::new();
        for (_, body) in received.iter() {
            for scope in parts(body, 1).flat_map(|resource| parts(resource, 2)) {
                spans.extend(parts(scope, 2).map(Self::of));
            }
        }
        spans
    }
}

fn has(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

#[test]
fn a_span_of_each_request_goes_to_the_collector() {
    for split in [false, true] {
        let (address, received) = collector();
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", address.as_str()),
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment=test"),
        ];
        // The log has other levels than the spans.
        let options = ["--log-level", "error"];
        let options = if split {
            options.to_vec()
        } else {
            [&options[..], &["--in-process"]].concat()
        };
        let server = Server::with(&options, &variables);
        let trace = |last: u8, flags: &str| {
            format!(
                "application/json\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e47{last:02x}-00f067aa0ba902b7-{flags}"
            )
        };
        let id = |last: u8| {
            [
                0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e,
                0x47, last,
            ]
        };
        let body = json!({ "prompt": "1", "max_tokens": 3, "ignore_eos": true }).to_string();
        for kind in [
            trace(1, "01"),
            trace(2, "00"),
            "application/json".to_owned(),
        ] {
            let (status, _, answer) = server.raw("POST", "/v1/completions", &kind, &body);
            assert_eq!(status, 200, "{answer}");
        }
        server.raw("GET", "/v1/models/no-such-model", &trace(3, "01"), "");
        let all = || -> Vec<u8> {
            let received = received.lock().expect("no panic");
            received.iter().flat_map(|(_, body)| body.clone()).collect()
        };
        let name: &[u8] = b"POST /v1/completions";
        let n_spans = || {
            all()
                .windows(name.len())
                .filter(|part| *part == name)
                .count()
        };
        eventually("the spans are sent", || {
            n_spans() >= 2 && has(&all(), b"GET /v1/models/{id}")
        });
        let found = all();
        // The parent, and no trace that the client does not record.
        assert!(has(&found, &id(1)) && has(&found, &id(3)) && !has(&found, &id(2)));
        assert!(has(
            &found,
            &[0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]
        ));
        assert_eq!(n_spans(), 2, "one for each request");
        check_children(&Span::all(&received), &id(1));
        for part in [
            "service.name",
            "bench",
            "deployment",
            "gen_ai.usage.output_tokens",
            "gen_ai.response.model",
            "tiny-chat",
            "gen_ai.latency.time_to_first_token",
            "http.response.status_code",
            "http.route",
        ] {
            assert!(has(&found, part.as_bytes()), "{part}");
        }
        let received = received.lock().expect("no panic");
        for (head, _) in received.iter() {
            assert!(head.starts_with("post /v1/traces "), "{head}");
            assert!(
                head.contains("content-type: application/x-protobuf"),
                "{head}"
            );
        }
    }
}

/// The span of a request of this trace has its phases as children, one after another.
fn check_children(spans: &[Span], trace: &[u8]) {
    let own: Vec<&Span> = spans.iter().filter(|span| span.trace == trace).collect();
    let of = |name: &str| {
        let mut all = own.iter().filter(|span| span.name == name);
        let found = all.next().unwrap_or_else(|| panic!("{name}: {own:?}"));
        assert!(all.next().is_none(), "{name}: {own:?}");
        *found
    };
    let parent = of("POST /v1/completions");
    let children = ["queue", "prefill", "decode"].map(of);
    assert_eq!(own.len(), 4, "{own:?}");
    let mut at = parent.times[0];
    for child in children {
        assert_eq!(child.parent, parent.id, "{own:?}");
        assert!(
            at <= child.times[0] && child.times[0] <= child.times[1],
            "{own:?}"
        );
        at = child.times[1];
    }
    // Times of the log are rounded to tenths of milliseconds.
    assert!(at <= parent.times[1] + 1_000_000, "{own:?}");
    let [queue, prefill, decode] = children.map(|child| child.attributes.join(" "));
    assert_eq!(queue, "");
    assert_eq!(
        prefill,
        "gen_ai.usage.input_tokens gen_ai.usage.cache_read.input_tokens"
    );
    assert_eq!(decode, "gen_ai.usage.output_tokens");
    for name in ["queue", "model_prefill", "model_decode"] {
        let name = format!("gen_ai.latency.time_in_{name}");
        assert!(parent.attributes.contains(&name), "{name}: {parent:?}");
    }
}
