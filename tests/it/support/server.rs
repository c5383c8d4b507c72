//! A running server, and requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

/// A running server, ended with the test. Errors in its log fail the test, unless it expects them.
pub struct Server {
    pub child: Child,
    pub address: String,
    log: Option<JoinHandle<String>>,
    expects_errors: bool,
}

impl Server {
    /// A server that several tests use, which need no options; it ends with the last of them.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().expect("no test panics within");
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start(&[]));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// A server of one process.
    pub fn start(extra: &[&str]) -> Self {
        Self::split(&[&["--in-process"], extra].concat())
    }

    /// A server whose models have processes of their own.
    pub fn split(extra: &[&str]) -> Self {
        Self::with(extra, &[])
    }

    /// The same with variables of the environment.
    pub fn with(extra: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
        command.envs(environment.iter().copied());
        Self::of(command, extra)
    }

    /// A server that a script of `sh` starts, which gets its command line as arguments.
    pub fn by(script: &str, extra: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_bench")]);
        Self::of(command, extra)
    }

    fn of(mut command: Command, extra: &[&str]) -> Self {
        let mut child = command
            .args(["serve", "--port", "0", "--threads", "1"])
            .args(extra)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut stderr = child.stderr.take().expect("piped");
        let log = std::thread::spawn(move || {
            let mut log = Vec::new();
            // What came until the end is worth reading.
            let _ = stderr.read_to_end(&mut log);
            String::from_utf8_lossy(&log).into_owned()
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .expect("the address")
            .to_owned();
        Self {
            child,
            address,
            log: Some(log),
            expects_errors: false,
        }
    }

    /// The same server, whose log may have errors.
    pub fn expecting_errors(mut self) -> Self {
        self.expects_errors = true;
        self
    }

    /// Waits until the server has ended by itself; its log.
    pub fn ended(mut self) -> String {
        assert!(self.child.wait().expect("it ends").success());
        let log = self.log.take().and_then(|log| log.join().ok());
        log.unwrap_or_default()
    }

    /// Ends the server at once; its log, all of it.
    pub fn log(mut self) -> String {
        let _ = self.child.kill();
        let log = self.log.take().and_then(|log| log.join().ok());
        log.unwrap_or_default()
    }

    pub fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &(impl AsRef<[u8]> + ?Sized),
    ) -> TcpStream {
        let body = body.as_ref();
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a timeout");
        let length = body.len();
        // In one piece: a server that needs no body may answer and close before more of it is sent.
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        );
        let sent = stream.write_all(&[request.as_bytes(), body].concat());
        sent.expect("the request is sent");
        stream
    }

    /// Status, head and body.
    pub fn raw(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &(impl AsRef<[u8]> + ?Sized),
    ) -> (u16, String, String) {
        let mut answer = Vec::new();
        self.send(method, path, kind, body)
            .read_to_end(&mut answer)
            .expect("an answer");
        let answer = String::from_utf8(answer).expect("UTF-8");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .expect("a status");
        let body = if head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked")
        {
            unchunk(body)
        } else {
            body.into()
        };
        (status, head.to_ascii_lowercase(), body)
    }

    pub fn json(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (status, _, body) = self.raw(method, path, "application/json", &text);
        (
            status,
            serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}")),
        )
    }

    /// The answer to a request that is served.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.json("POST", path, body);
        assert_eq!(status, 200, "{path} {body}: {answer}");
        answer
    }

    pub fn chat(&self, extra: Value) -> (u16, Value) {
        self.json("POST", "/v1/chat/completions", &request(extra))
    }

    /// The data of all events of a stream.
    pub fn stream(&self, extra: Value) -> Vec<String> {
        self.events("/v1/chat/completions", &request(extra))
    }

    /// The data of all events of a stream from `path`.
    pub fn events(&self, path: &str, body: &Value) -> Vec<String> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let (status, head, body) = self.raw("POST", path, "application/json", &body.to_string());
        assert_eq!(status, 200, "{body}");
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        body.split("\n\n")
            .filter(|event| !event.is_empty() && !event.starts_with(':'))
            .map(|event| {
                event
                    .strip_prefix("data: ")
                    .unwrap_or_else(|| panic!("an event of {event:?}"))
                    .to_owned()
            })
            .collect()
    }

    pub fn refused(
        &self,
        extra: impl Into<Value>,
        status: u16,
        code: &str,
        param: impl Into<Value>,
    ) {
        let (extra, param) = (extra.into(), param.into());
        let (found, body) = self.chat(extra.clone());
        let error = &body["error"];
        assert_eq!(found, status, "{extra}: {body}");
        assert_eq!(error["code"], code, "{extra}: {body}");
        assert_eq!(error["param"], param, "{extra}: {body}");
        for key in ["message", "type"] {
            assert!(error[key].is_string(), "{body}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log.take().and_then(|log| log.join().ok());
        let log = log.unwrap_or_default();
        if std::thread::panicking() {
            println!("{log}");
        } else if !self.expects_errors {
            let error = log.lines().find(|line| line.contains(" ERROR "));
            assert!(error.is_none(), "the log has an error: {error:?}");
        }
    }
}

fn unchunk(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk's size");
        out.push_str(&rest[..size]);
        body = &rest[size + 2..];
        if size == 0 {
            break;
        }
    }
    out
}

/// An object with further fields, or others in place of its own.
pub fn with(mut object: Value, extra: &Value) -> Value {
    for (key, value) in extra.as_object().expect("an object") {
        object[key] = value.clone();
    }
    object
}

/// The body of a chat request to the built-in model, with further fields.
fn request(extra: impl Into<Value>) -> Value {
    with(
        json!({
            "model": "tiny-chat",
            "messages": [{ "role": "user", "content": "2+2=?" }],
            "temperature": 0,
        }),
        &extra.into(),
    )
}
