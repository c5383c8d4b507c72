//! The lines of a batch: requests in a file, and their results.
//!
//! Shapes: OpenAI's API reference, batches. `bench batch` reads and writes the same lines.

use std::collections::HashSet;
use std::io::{self, BufRead};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};

use crate::http::context::IGNORED;
use crate::http::error::quoted;
use crate::http::local_client::LocalClient;
use crate::storage::file_store::new_id;

/// The endpoints whose requests a batch may have.
pub(crate) const ENDPOINTS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
];
/// The endpoints of these whose requests have a priority.
const GENERATING: [&str; 3] = [ENDPOINTS[0], ENDPOINTS[1], ENDPOINTS[3]];
/// Maximum number of faults of lines that are reported.
const MAX_FAULTS: usize = 100;
/// Maximum number of attempts of a request that the server refuses for a time, unless too many are waiting.
const MAX_ATTEMPTS: usize = 10;
const LONGEST_PAUSE: u64 = 60;

/// A request of a batch.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    /// The name by which its result is found.
    pub custom_id: String,
    url: String,
    body: Map<String, Value>,
}

/// A fault of a line.
#[derive(Clone, Debug)]
pub(crate) struct LineFault {
    /// Number of the line, from 1.
    pub(crate) line: usize,
    pub(crate) message: String,
}

/// The result of a request.
#[derive(Clone, Debug)]
pub struct BatchResult {
    /// Whether the request was answered, not refused.
    pub is_ok: bool,
    /// The result as a line without its end.
    pub line: Value,
    /// The fields of the request's body without effect, separated by commas, as the header `x-bench-ignored` has them.
    pub ignored: Option<String>,
}

impl BatchRequest {
    /// Reads a line. `endpoint`: the only endpoint that requests may have.
    pub(crate) fn read(line: &[u8], endpoint: Option<&str>) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(line).map_err(|e| format!("is not JSON: {e}"))?;
        let text = |name: &str| {
            let text = value[name].as_str();
            text.ok_or_else(|| format!("`{name}` is missing or wrong, expected a string"))
        };
        let custom_id = text("custom_id")?.to_owned();
        let method = text("method")?;
        if method != "POST" {
            return Err(format!("`method` is `{}`, expected `POST`", quoted(method)));
        }
        let url = text("url")?;
        let expected: Vec<&str> = match endpoint {
            Some(endpoint) => vec![endpoint],
            None => ENDPOINTS.to_vec(),
        };
        if !expected.contains(&url) {
            let (url, expected) = (quoted(url), expected.join("`, `"));
            return Err(format!("`url` is `{url}`, expected `{expected}`"));
        }
        let body = value["body"].as_object();
        let body = body.ok_or("`body` is missing or wrong, expected an object")?;
        if body.get("stream") == Some(&Value::Bool(true)) {
            return Err("`body.stream` is true, expected false: results are whole".into());
        }
        Ok(Self {
            custom_id,
            url: url.to_owned(),
            body: body.clone(),
        })
    }

    /// Sends the request for the client `owner`, with lower priority than others unless it says otherwise. It is sent
    /// again while the server has no place for it.
    pub async fn answered(mut self, client: &LocalClient, owner: &str) -> BatchResult {
        if GENERATING.contains(&self.url.as_str()) {
            self.body.entry("priority").or_insert_with(|| 1.into());
        }
        let body = Value::Object(self.body).to_string();
        let mut n_attempts = 0;
        let (head, body) = loop {
            let mut request = Request::post(self.url.as_str())
                .body(Body::from(body.clone()))
                .expect("the path of a route");
            let kind = HeaderValue::from_static("application/json");
            request.headers_mut().insert(header::CONTENT_TYPE, kind);
            let (head, body) = client.send(owner, request).await.into_parts();
            n_attempts += 1;
            match pause(&head.headers) {
                Some(pause)
                    if head.status == StatusCode::TOO_MANY_REQUESTS
                        || n_attempts < MAX_ATTEMPTS =>
                {
                    tokio::time::sleep(pause).await;
                }
                _ => break (head, to_bytes(body, usize::MAX).await.unwrap_or_default()),
            }
        };
        let id = head.headers.get("x-request-id");
        let id = id.and_then(|id| id.to_str().ok());
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let ignored = head.headers.get(IGNORED);
        let ignored = ignored.and_then(|names| names.to_str().ok());
        BatchResult {
            is_ok: head.status.is_success(),
            ignored: ignored.map(str::to_owned),
            line: json!({
                "id": new_id("batch_req_"), "custom_id": self.custom_id,
                "response": { "status_code": head.status.as_u16(), "request_id": id, "body": body },
                "error": null,
            }),
        }
    }
}

/// The time after which a refused request may succeed.
fn pause(headers: &HeaderMap) -> Option<Duration> {
    let is_useful = headers.get("x-should-retry")? == "true";
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let seconds: u64 = seconds.parse().ok()?;
    is_useful.then(|| Duration::from_secs(seconds.min(LONGEST_PAUSE)))
}

/// The requests of a file. Empty lines have none.
pub(crate) fn requests(
    file: impl BufRead,
    endpoint: Option<&str>,
) -> impl Iterator<Item = io::Result<Result<BatchRequest, LineFault>>> {
    let lines = file.split(b'\n').enumerate();
    let lines = lines.filter(|(_, line)| {
        let is_empty = |line: &Vec<u8>| line.trim_ascii().is_empty();
        !line.as_ref().is_ok_and(is_empty)
    });
    lines.map(move |(i, line)| {
        let fault = |message| LineFault {
            line: i + 1,
            message,
        };
        line.map(|line| BatchRequest::read(&line, endpoint).map_err(fault))
    })
}

/// Reads all requests of a file. Returns their number, or the first faults.
pub(crate) fn check(
    file: impl BufRead,
    endpoint: Option<&str>,
) -> io::Result<Result<usize, Vec<LineFault>>> {
    let (mut faults, mut ids) = (Vec::new(), HashSet::new());
    for (i, request) in requests(file, endpoint).enumerate() {
        match request? {
            Err(fault) => faults.push(fault),
            Ok(request) if ids.contains(&request.custom_id) => faults.push(LineFault {
                line: i + 1,
                message: format!("`custom_id` `{}` is used twice", quoted(&request.custom_id)),
            }),
            Ok(request) => drop(ids.insert(request.custom_id)),
        }
        if faults.len() == MAX_FAULTS {
            break;
        }
    }
    Ok(match faults.is_empty() {
        true => Ok(ids.len()),
        false => Err(faults),
    })
}

/// The requests of a file, for `bench batch`.
///
/// # Errors
/// The file cannot be read, or lines of it are wrong: each with its number.
pub fn checked_lines<R: BufRead>(
    open: impl Fn() -> io::Result<R>,
) -> Result<Vec<BatchRequest>, String> {
    let read = |error: io::Error| error.to_string();
    let checked = check(open().map_err(read)?, None).map_err(read)?;
    checked.map_err(|faults| {
        let faults = faults.iter();
        let faults = faults.map(|fault| format!("line {}: {}", fault.line, fault.message));
        faults.collect::<Vec<_>>().join("\n")
    })?;
    let all = requests(open().map_err(read)?, None);
    all.map(|request| request.map_err(read)?.map_err(|fault| fault.message))
        .collect()
}
