//! Log-probabilities from a llama-server, either a running one or one that is started here.
//!
//! Each position is a separate request with the tokens up to it, because llama-server reports probabilities only for
//! generated tokens. A started program ends when this value is dropped.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::cli::Failure;

pub(super) const PROGRAM: &str = "llama-server";
/// Length of the compared lists of tokens.
pub(super) const N_TOP: usize = 20;
/// The bias that forces a token to be sampled.
const FORCED: f32 = 1e6;
/// Maximum time for loading a model, and for one answer.
const PATIENCE: Duration = Duration::from_secs(300);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct LlamaServer {
    /// The host and port.
    address: String,
    runtime: Runtime,
    /// The process, if it was started here.
    child: Option<Child>,
}

impl Drop for LlamaServer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // A process that has already ended needs no kill.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl LlamaServer {
    /// The server at `http://HOST:PORT`, or the program `program_or_url` with this model. A program that is started
    /// here gets a context of `n_ctx` tokens and an f32 cache, and no flash attention.
    pub(super) fn open(program_or_url: &str, model: &Path, n_ctx: usize) -> Result<Self, Failure> {
        let start = |error| {
            anyhow::anyhow!(
                "`{program_or_url}`: {error}; `--llama PATH` names a llama-server, `--llama http://HOST:PORT` one that runs"
            )
        };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().map_err(start)?;
        if let Some(address) = program_or_url.strip_prefix("http://") {
            let server = Self {
                address: address.trim_end_matches('/').to_owned(),
                runtime,
                child: None,
            };
            server.ask("/health", None)?;
            return Ok(server);
        }
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = port.map_err(start)?.port().to_string();
        let n_ctx = n_ctx.to_string();
        let mut command = Command::new(program_or_url);
        command.arg("-m").arg(model);
        command.args(["--host", "127.0.0.1", "--port", &port]);
        command.args(["-c", &n_ctx, "-np", "1"]);
        command.args(["-fa", "off", "-ctk", "f32", "-ctv", "f32", "--no-webui"]);
        let shown = format!("{command:?}");
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        quiet.stderr(Stdio::null());
        let child = command.spawn().map_err(start)?;
        let mut server = Self {
            address: format!("127.0.0.1:{port}"),
            runtime,
            child: Some(child),
        };
        server.wait(&shown)?;
        Ok(server)
    }

    /// Waits until the started program has loaded its model.
    fn wait(&mut self, command: &str) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let ended = self.child.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = ended {
                anyhow::bail!("the llama-server ended with {status}: `{command}` shows why");
            }
            match self.ask("/health", None) {
                Err(fault) if begun.elapsed() > PATIENCE => return Err(fault),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// The likeliest tokens after each of `tokens`, with their log-probabilities. llama-server reports no probabilities
    /// with a generated token that ends inside a character. So it is made to generate `plain`, a token whose text is
    /// whole characters. This does not change the probabilities, which are those before sampling.
    pub(super) fn tops(
        &self,
        tokens: &[u32],
        plain: Option<u32>,
    ) -> Result<Vec<Vec<(u32, f32)>>, Failure> {
        (1..=tokens.len())
            .map(|end| self.top(&tokens[..end], plain))
            .collect()
    }

    fn top(&self, tokens: &[u32], plain: Option<u32>) -> Result<Vec<(u32, f32)>, Failure> {
        let bias: Vec<_> = plain.map(|id| json!([id, FORCED])).into_iter().collect();
        let request = json!({
            "prompt": tokens,
            "n_predict": 1,
            "n_probs": N_TOP,
            "temperature": 0,
            "ignore_eos": true,
            "logit_bias": bias,
            "cache_prompt": false,
            "post_sampling_probs": false,
        });
        let answer = self.ask("/completion", Some(&request))?;
        let listed = answer["completion_probabilities"][0]["top_logprobs"].as_array();
        let entry = |entry: &Value| {
            let id = entry["id"].as_u64().and_then(|id| u32::try_from(id).ok())?;
            Some((id, entry["logprob"].as_f64()? as f32))
        };
        let entries =
            listed.and_then(|entries| entries.iter().map(entry).collect::<Option<Vec<_>>>());
        entries.filter(|entries| !entries.is_empty()).ok_or_else(|| {
            self.fault("the answer has no `completion_probabilities` with `top_logprobs` of `id` and `logprob`")
        })
    }

    fn fault(&self, message: impl std::fmt::Display) -> Failure {
        anyhow::anyhow!("the llama-server at {}: {message}", self.address)
    }

    /// The answer to a request: GET, or POST with a body.
    fn ask(&self, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let asked =
            async { tokio::time::timeout(PATIENCE, exchange(&self.address, path, body)).await };
        match self.runtime.block_on(asked) {
            Ok(answer) => answer.map_err(|error| self.fault(error)),
            Err(_) => Err(self.fault(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
    }
}

async fn exchange(address: &str, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
    let socket = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    let method = if body.is_some() { "POST" } else { "GET" };
    let request = Request::builder().method(method).uri(path);
    let request = request.header(HOST, address);
    let request = request.header(CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body.map(Value::to_string).unwrap_or_default()))?;
    let answered = async move {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let bytes = axum::body::to_bytes(Body::new(answer.into_body()), MAX_ANSWER).await?;
        Ok::<_, Failure>((status, bytes))
    };
    // The connection ends when the sender is dropped. The receiver of the answer gets its errors.
    let (answer, _) = tokio::join!(answered, connection);
    let (status, bytes) = answer?;
    if !status.is_success() {
        let text: String = String::from_utf8_lossy(&bytes).chars().take(300).collect();
        anyhow::bail!("{path}: {status} {text}");
    }
    Ok(serde_json::from_slice(&bytes)?)
}
