//! The record of a request: fields without effect, and the data of its line in the log.
//!
//! A record belongs to the task that runs a handler; `Answers` hold it while they run. The line is written when the
//! last owner drops the record, so that requests whose client left get a line too.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

use crate::engine::{Event, Usage};

use super::answers::finish_reason;

/// The response header that lists the fields of the request without effect.
const IGNORED: HeaderName = HeaderName::from_static("x-bench-ignored");

tokio::task_local! {
    static RECORD: Arc<Record>;
}

/// The record of one request.
#[derive(Debug)]
pub(super) struct Record {
    id: String,
    method: String,
    path: String,
    started: Instant,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    status: StatusCode,
    model: Option<String>,
    ignored: BTreeSet<&'static str>,
    usage: Option<Usage>,
    /// Time to the first text.
    first: Option<Duration>,
    /// Each finish reason once, in the order of its first occurrence.
    finish: Vec<&'static str>,
    is_answered: bool,
    /// Whether an engine process writes the line in the log.
    is_elsewhere: bool,
}

impl Record {
    fn of(request: &Request) -> Self {
        let id = request.headers().get("x-request-id");
        let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
        Self::new(id, request.method().as_str(), request.uri().path())
    }

    fn new(id: &str, method: &str, path: &str) -> Self {
        Self {
            id: id.to_owned(),
            method: method.to_owned(),
            path: path.to_owned(),
            started: Instant::now(),
            notes: Mutex::default(),
        }
    }

    /// The record of the request that this task serves. Outside of a request, a new record that is discarded.
    pub(super) fn current() -> Arc<Self> {
        let current = RECORD.try_with(Arc::clone);
        current.unwrap_or_else(|_| Arc::new(Self::new("", "", "")))
    }

    /// Runs a future as part of the request.
    pub(super) async fn scope<F: Future>(self: Arc<Self>, work: F) -> F::Output {
        RECORD.scope(self, work).await
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a field that has no effect.
    pub(super) fn ignore(&self, name: &'static str) {
        self.notes().ignored.insert(name);
    }

    /// Records that an engine process serves the request, and writes its line.
    pub(super) fn hand_over(&self) {
        self.notes().is_elsewhere = true;
    }

    /// Records that the engine process of the model died.
    pub(super) fn engine_died(&self, model: &str) {
        let mut notes = self.notes();
        notes.is_elsewhere = false;
        notes.model = Some(model.to_owned());
        notes.finish("error");
    }

    /// Records an error after the status was sent.
    pub(super) fn fail(&self) {
        self.notes().finish("error");
    }

    /// Records the model that serves the request.
    pub(super) fn model(&self, name: &str) {
        self.notes().model = Some(name.to_owned());
    }

    /// Records the usage of its completions so far.
    pub(super) fn usage(&self, usage: Usage) {
        self.notes().usage = Some(usage);
    }

    /// Logs the start of the reasoning of a completion, at the level `debug` only.
    pub(super) fn thought(&self, text: &str) {
        if !text.is_empty() {
            tracing::debug!(target: "request", id = self.id, reasoning = text);
        }
    }

    /// Records an event of one of its completions.
    pub(super) fn event(&self, event: &Event) {
        let mut notes = self.notes();
        match event {
            Event::Text { .. } => {
                notes.first.get_or_insert_with(|| self.started.elapsed());
            }
            Event::Done { reason, .. } => notes.finish(finish_reason(*reason)),
            Event::Failed(_) => notes.finish("error"),
            Event::Prompt(_)
            | Event::Progress(_)
            | Event::Ended(_)
            | Event::Pooled(_)
            | Event::Lab(_)
            | Event::DenoisingStep { .. } => {}
        }
    }
}

impl Notes {
    fn finish(&mut self, reason: &'static str) {
        if !self.finish.contains(&reason) {
            self.finish.push(reason);
        }
    }

    /// The finish reasons of the completions; `None` for a request without completions.
    fn ending(&self) -> Option<String> {
        self.model.as_ref()?;
        if self.is_answered && !self.status.is_success() {
            return None;
        }
        Some(match self.finish.as_slice() {
            [] => "cancelled".to_owned(),
            all => all.join(","),
        })
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.path.is_empty() {
            return;
        }
        let notes = self.notes.get_mut().unwrap_or_else(PoisonError::into_inner);
        if notes.is_elsewhere {
            return;
        }
        let (usage, took) = (notes.usage, self.started.elapsed());
        let milliseconds = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
        // The rate counts only the time in which tokens arrived.
        let rate = usage.zip(notes.first).map(|(usage, first)| {
            let time = took.saturating_sub(first).as_secs_f64().max(1e-4);
            (usage.completion_tokens.saturating_sub(1) as f64 / time * 10.0).round() / 10.0
        });
        let ignored: Vec<&str> = notes.ignored.iter().copied().collect();
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: "request",
                    id = self.id,
                    method = self.method,
                    path = super::error::quoted(&self.path),
                    status = notes.is_answered.then_some(notes.status.as_u16()),
                    model = notes.model,
                    prompt_tokens = usage.map(|usage| usage.prompt_tokens),
                    cached_tokens = usage.map(|usage| usage.cached_tokens),
                    completion_tokens = usage.map(|usage| usage.completion_tokens),
                    first_token_ms = notes.first.map(milliseconds),
                    tokens_per_second = rate,
                    finish = notes.ending(),
                    ms = milliseconds(took),
                    ignored = (!ignored.is_empty()).then(|| ignored.join(",")),
                )
            };
        }
        match self.path.as_str() {
            // Monitoring asks for these every few seconds.
            "/health" | "/metrics" => line!(debug),
            _ => line!(info),
        }
    }
}

/// Keeps the record of a request, and reports the fields without effect to the client.
pub(super) async fn layer<F: Future<Output = Response>>(
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let record = Arc::new(Record::of(&request));
    let mut response = Arc::clone(&record).scope(next(request)).await;
    let mut notes = record.notes();
    notes.status = response.status();
    notes.is_answered = true;
    let ignored: Vec<&str> = notes.ignored.iter().copied().collect();
    let headers = response.headers_mut();
    if !ignored.is_empty()
        && let Ok(value) = HeaderValue::from_str(&ignored.join(", "))
    {
        headers.insert(IGNORED, value);
    }
    let kind = headers.get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        // Proxies must not buffer a stream.
        let name = HeaderName::from_static("x-accel-buffering");
        headers.insert(name, HeaderValue::from_static("no"));
    }
    drop(notes);
    response
}
