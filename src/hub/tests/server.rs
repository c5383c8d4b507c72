//! A Hub of the tests: listings, redirections to a second origin that holds the bytes, ranges, entity tags, and failures on request.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sha1::{Digest as _, Sha1};
use sha2::Sha256;

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the server behaves.
#[derive(Clone, Default)]
pub(crate) struct Behaviour {
    /// The token that is asked for.
    pub(crate) token: Option<&'static str>,
    /// The answer to everything: status, `X-Error-Code`.
    pub(crate) refusal: Option<(u16, &'static str)>,
    /// The first requests of the Hub are answered by 429.
    pub(crate) n_limited: usize,
    /// An answer with bytes breaks off after so many.
    pub(crate) breaks_after: Option<usize>,
    /// How many answers break off.
    pub(crate) n_breaks: usize,
    /// `Range` is ignored.
    pub(crate) no_ranges: bool,
    /// The first location of each file has expired.
    pub(crate) expires: bool,
    /// Bytes are others than the entity tag says.
    pub(crate) corrupt: bool,
    /// Milliseconds before each 64 KiB of bytes.
    pub(crate) pause: u64,
}

/// One request as it came: method, path, headers.
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
}

pub(crate) struct Server {
    pub(crate) endpoint: String,
    pub(crate) log: Arc<Mutex<Vec<Request>>>,
}

struct State {
    files: Vec<(String, Vec<u8>)>,
    behaviour: Behaviour,
    log: Arc<Mutex<Vec<Request>>>,
    store: String,
    n_requests: AtomicUsize,
    n_broken: AtomicUsize,
    n_locations: AtomicUsize,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Weights are "large files": their tag is SHA-256 and their bytes lie at the other origin.
fn is_large(path: &str) -> bool {
    path.ends_with(".safetensors") || path.ends_with(".gguf")
}

pub(crate) fn etag(path: &str, bytes: &[u8]) -> String {
    if is_large(path) {
        hex(&Sha256::digest(bytes))
    } else {
        hex(&Sha1::new()
            .chain_update(format!("blob {}\0", bytes.len()))
            .chain_update(bytes)
            .finalize())
    }
}

fn read_request(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut parts = line.split_whitespace().map(str::to_owned);
    let (method, path) = (parts.next()?, parts.next()?);
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    Some(Request {
        method,
        path,
        headers,
    })
}

fn answer(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    body: Option<&[u8]>,
    length: usize,
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(head.as_bytes())?;
    stream.write_all(b"\r\n")?;
    stream.write_all(body.unwrap_or_default())
}

impl State {
    fn range(request: &Request, size: usize) -> Option<(usize, usize)> {
        let (from, to) = request
            .headers
            .get("range")?
            .strip_prefix("bytes=")?
            .split_once('-')?;
        let to = to.parse::<usize>().map_or(size, |t| (t + 1).min(size));
        Some((from.parse().ok()?, to))
    }

    fn bytes(
        &self,
        stream: &mut TcpStream,
        request: &Request,
        path: &str,
        content: &[u8],
    ) -> std::io::Result<bool> {
        let behaviour = self.behaviour.clone();
        let range = Self::range(request, content.len()).filter(|_| !behaviour.no_ranges);
        let (from, to) = range.unwrap_or((0, content.len()));
        let mut body = content[from..to].to_vec();
        if behaviour.corrupt {
            body.iter_mut().for_each(|b| *b ^= 1);
        }
        let length = body.len();
        let is_head = request.method == "HEAD";
        let breaks = behaviour.breaks_after.filter(|n| {
            !is_head
                && *n < length
                && self.n_broken.fetch_add(1, Ordering::SeqCst) < behaviour.n_breaks
        });
        if let Some(n) = breaks {
            body.truncate(n);
        }
        let headers = [
            ("etag", format!("\"{}\"", etag(path, content))),
            ("x-repo-commit", COMMIT.to_owned()),
            ("accept-ranges", "bytes".to_owned()),
        ];
        let status = if range.is_some() && !is_head {
            206
        } else {
            200
        };
        answer(stream, status, &headers, None, length)?;
        for part in body.chunks(64 << 10).filter(|_| !is_head) {
            thread::sleep(Duration::from_millis(behaviour.pause));
            stream.write_all(part)?;
        }
        Ok(breaks.is_none())
    }

    fn hub(&self, stream: &mut TcpStream, request: &Request) -> std::io::Result<bool> {
        let behaviour = self.behaviour.clone();
        if self.n_requests.fetch_add(1, Ordering::SeqCst) < behaviour.n_limited {
            answer(stream, 429, &[("retry-after", "1".to_owned())], None, 0)?;
            return Ok(true);
        }
        let given = request.headers.get("authorization").map(String::as_str);
        if behaviour
            .token
            .is_some_and(|t| given != Some(&format!("Bearer {t}")))
        {
            answer(
                stream,
                401,
                &[("x-error-code", "RepoNotFound".to_owned())],
                None,
                0,
            )?;
            return Ok(true);
        }
        if let Some((status, code)) = behaviour.refusal {
            answer(
                stream,
                status,
                &[("x-error-code", code.to_owned())],
                None,
                0,
            )?;
            return Ok(true);
        }
        let path = request.path.split('?').next().unwrap_or_default();
        if path.starts_with("/api/models/owner/repo/tree/") {
            let entry = |(path, content): &(String, Vec<u8>)| {
                let (size, tag) = (content.len(), etag(path, content));
                let mut entry = serde_json::json!({ "type": "file", "path": path, "size": size, "oid": &tag[..40] });
                if is_large(path) {
                    entry["lfs"] =
                        serde_json::json!({ "oid": tag, "size": size, "pointerSize": 134 });
                }
                entry
            };
            let entries: Vec<_> = self.files.iter().map(entry).collect();
            let body = serde_json::Value::from(entries).to_string();
            answer(
                stream,
                200,
                &[("content-type", "application/json".to_owned())],
                Some(body.as_bytes()),
                body.len(),
            )?;
            return Ok(true);
        }
        if path.starts_with("/api/models/owner/repo") {
            let siblings: Vec<_> = self
                .files
                .iter()
                .map(|(path, _)| serde_json::json!({ "rfilename": path }))
                .collect();
            let body =
                serde_json::json!({ "id": "owner/repo", "sha": COMMIT, "siblings": siblings })
                    .to_string();
            answer(
                stream,
                200,
                &[("content-type", "application/json".to_owned())],
                Some(body.as_bytes()),
                body.len(),
            )?;
            return Ok(true);
        }
        if path.starts_with("/owner/old") || path.starts_with("/api/models/owner/old") {
            answer(
                stream,
                307,
                &[(
                    "location",
                    request.path.replacen("owner/old", "owner/repo", 1),
                )],
                None,
                0,
            )?;
            return Ok(true);
        }
        let file = path
            .strip_prefix("/owner/repo/resolve/")
            .and_then(|rest| rest.split_once('/'))
            .map(|(_, file)| file);
        match file.and_then(|file| self.files.iter().find(|(path, _)| path == file)) {
            Some((path, content)) if is_large(path) => {
                let n = self.n_locations.fetch_add(1, Ordering::SeqCst);
                let location = format!("{}/{path}?signature={n}", self.store);
                let headers = [
                    ("location", location),
                    ("x-repo-commit", COMMIT.to_owned()),
                    ("x-linked-etag", format!("\"{}\"", etag(path, content))),
                    ("x-linked-size", content.len().to_string()),
                ];
                answer(stream, 302, &headers, None, 0)?;
                Ok(true)
            }
            Some((path, content)) => self.bytes(stream, request, path, content),
            None => {
                let code = if file.is_some() {
                    "EntryNotFound"
                } else {
                    "RepoNotFound"
                };
                answer(
                    stream,
                    404,
                    &[
                        ("x-error-code", code.to_owned()),
                        ("x-repo-commit", COMMIT.to_owned()),
                    ],
                    None,
                    0,
                )?;
                Ok(true)
            }
        }
    }

    fn store(&self, stream: &mut TcpStream, request: &Request) -> std::io::Result<bool> {
        let expires = self.behaviour.expires;
        let (path, query) = request
            .path
            .trim_start_matches('/')
            .split_once('?')
            .unwrap_or_default();
        if request.headers.contains_key("authorization") || (expires && query == "signature=0") {
            answer(stream, 403, &[], None, 0)?;
            return Ok(true);
        }
        let content = self
            .files
            .iter()
            .find(|(p, _)| p == path)
            .expect("a file of the store");
        self.bytes(stream, request, path, &content.1)
    }
}

fn serve(listener: TcpListener, state: Arc<State>, is_hub: bool) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                let mut writer = stream.try_clone().expect("a second handle");
                let mut reader = BufReader::new(stream);
                while let Some(request) = read_request(&mut reader) {
                    let goes_on = if is_hub {
                        state.hub(&mut writer, &request)
                    } else {
                        state.store(&mut writer, &request)
                    };
                    state.log.lock().expect("log").push(request);
                    if !goes_on.unwrap_or(false) {
                        let _ = writer.shutdown(std::net::Shutdown::Both);
                        break;
                    }
                }
            });
        }
    });
}

impl Server {
    pub(crate) fn start(files: &[(&str, Vec<u8>)], behaviour: Behaviour) -> Self {
        let hub = TcpListener::bind("127.0.0.1:0").expect("a port");
        let store = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = |l: &TcpListener| format!("http://{}", l.local_addr().expect("an address"));
        let (endpoint, store_address) = (address(&hub), address(&store));
        let log = Arc::new(Mutex::new(Vec::new()));
        let state = Arc::new(State {
            files: files
                .iter()
                .map(|(p, b)| ((*p).to_owned(), b.clone()))
                .collect(),
            behaviour,
            log: Arc::clone(&log),
            store: store_address,
            n_requests: AtomicUsize::new(0),
            n_broken: AtomicUsize::new(0),
            n_locations: AtomicUsize::new(0),
        });
        serve(hub, Arc::clone(&state), true);
        serve(store, state, false);
        Self { endpoint, log }
    }

    /// Requests of a method with a text in their path.
    pub(crate) fn count(&self, method: &str, path: &str) -> usize {
        self.log
            .lock()
            .expect("log")
            .iter()
            .filter(|r| r.method == method && r.path.contains(path))
            .count()
    }
}
