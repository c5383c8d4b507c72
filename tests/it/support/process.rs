//! Engine processes of a server: their states, their streams, and how they are killed.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::command::{made_up, scratch, text};
use crate::support::server::Server;

pub(crate) const JSON: &str = "application/json";

/// Processes that a process started, with their command lines.
pub(crate) fn children(parent: u32) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("it is readable") {
        let path = entry.expect("it is readable").path();
        let id = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        let (Some(id), Ok(stat)) = (id, std::fs::read_to_string(path.join("stat"))) else {
            continue;
        };
        // After the name, which may have anything in it: state, parent.
        let rest = stat.rsplit_once(')').expect("a name").1;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        if fields[1] == parent.to_string() && fields[0] != "Z" {
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            found.push((id, line));
        }
    }
    found
}

/// The engine process of a model.
pub(crate) fn engine(server: &Server, model: &str) -> u32 {
    let all = children(server.child.id());
    let own = format!("--name={model} ");
    let found = all.iter().find(|(_, line)| line.contains(&own));
    found.unwrap_or_else(|| panic!("{model}: {all:?}")).0
}

pub(crate) fn kill(id: u32, signal: Signal) {
    let id = Pid::from_raw(id as i32).expect("a process");
    kill_process(id, signal).expect("it is there");
}

/// Resident memory of a process in KiB; 0 if it is gone.
pub(crate) fn resident(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A model of 28 MB that takes seconds for a long completion.
pub(crate) fn model() -> &'static [u8] {
    static MODEL: OnceLock<Vec<u8>> = OnceLock::new();
    MODEL.get_or_init(|| {
        let vocab = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-chat.gguf");
        let sets = [
            "block_count=8",
            "n_embd=384",
            "n_ff=1152",
            "n_ctx_train=4096",
        ];
        let mut arguments = vec!["--vocab", vocab, "--type", "f16"];
        arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
        let folder = scratch();
        let path = made_up(folder.path(), "llama", &arguments);
        std::fs::read(path).expect("it is readable")
    })
}

pub(crate) fn two_models(folder: &Path, extra: &[&str]) -> Server {
    for name in ["one.gguf", "two.gguf"] {
        std::fs::write(folder.join(name), model()).expect("written");
    }
    let options = [&["--models", text(folder)], extra].concat();
    Server::split(&options)
}

pub(crate) fn state(server: &Server, model: &str) -> Value {
    let (status, model) = server.json("GET", &format!("/v1/models/{model}"), &Value::Null);
    assert_eq!(status, 200, "{model}");
    model
}

/// A long completion.
pub(crate) fn long(model: &str) -> Value {
    json!({
        "model": model, "prompt": "1 2 3", "max_tokens": 600, "temperature": 0, "ignore_eos": true,
        "stream": true,
    })
}

/// A stream that is under way: its first event was read.
pub(crate) struct Stream(BufReader<TcpStream>);

impl Stream {
    pub(crate) fn start(server: &Server, path: &str, body: &Value) -> Self {
        let mut reader = BufReader::new(server.send("POST", path, JSON, &body.to_string()));
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(reader.read_line(&mut line).expect("a line") > 0, "no event");
        }
        Self(reader)
    }

    /// What follows, and the name and the data of the last event but `[DONE]`. It must end as a body does.
    pub(crate) fn rest(mut self) -> (String, String, Value) {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).expect("the rest");
        assert!(rest.ends_with("0\r\n\r\n"), "cut off: {rest:?}");
        let lines: Vec<&str> = rest.lines().collect();
        let is_data = |line: &&str| line.starts_with("data: {");
        let at = lines.iter().rposition(is_data).expect("data");
        let data = serde_json::from_str(&lines[at]["data: ".len()..]).expect("whole JSON");
        let name = at.checked_sub(1).map_or("", |before| lines[before]);
        (rest.clone(), name.to_owned(), data)
    }
}
