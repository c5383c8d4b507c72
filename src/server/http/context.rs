//! The record of a request: how strictly it is read, fields without effect, and the data of its line in the log.
//!
//! A record belongs to the task that runs a handler; `RunningCompletions` hold it while they run. The line is written when the
//! last owner drops the record, so that requests whose client left get a line too.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lab_base::util::lock::lock;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;

use lab_core::engine::{Client, Event, Usage};

use super::client::{KeyHolder, name_of};
use super::proxies::{RequestSource, queue_name};
use super::quoted::quoted;
use super::trace_parent::TraceParent;
use super::transport::StreamFraming;
use crate::rate_limits::{Allowance, Exceeded, RateLimits};

/// Routes that monitoring asks every few seconds, without a key.
pub(crate) const STATES: [&str; 4] = ["/health", "/healthz", "/readyz", "/livez"];

/// The response header that lists the fields of the request without effect.
pub(crate) const IGNORED: HeaderName = HeaderName::from_static("x-bench-ignored");
/// The response header of a request that names another model than the one that answers.
const MODEL: HeaderName = HeaderName::from_static("x-bench-model");
/// The header by which the server tells an engine process which of the clients with API keys sent a request.
pub(crate) const CLIENT_HEADER: HeaderName = HeaderName::from_static("x-bench-client");
/// Maximum size of the list of fields without effect, in bytes.
const MAX_IGNORED: usize = 1024;
/// Maximum number of fields without effect whose names are kept.
const MAX_NAMES: usize = 128;

tokio::task_local! {
    static RECORD: Arc<RequestContext>;
}

#[derive(Debug)]
pub(crate) struct RequestContext {
    id: String,
    method: String,
    path: String,
    /// The pattern of its route.
    route: &'static str,
    /// The address of the client; none for a program that connected to a socket in the file system.
    address: Option<IpAddr>,
    /// The span of the client.
    trace: Option<TraceParent>,
    /// Whether fields that are not known are refused.
    is_strict: bool,
    /// Which of the clients with API keys sent the request; unset where there are no keys.
    client: OnceLock<KeyHolder>,
    /// Where the tokens of its completions count.
    rates: OnceLock<Arc<RateLimits>>,
    started: Instant,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    status: StatusCode,
    model: Option<String>,
    /// Fields without effect, as a header can carry them.
    ignored: BTreeSet<String>,
    n_ignored: usize,
    /// The model that the request names, if another one answers.
    requested: Option<String>,
    /// What is left of the limits of the client.
    allowances: Vec<(&'static str, Allowance)>,
    /// The id of the adapter that the request names as its model.
    adapter: Option<usize>,
    usage: Option<Usage>,
    phases: Option<Phases>,
    first: Option<Duration>,
    /// Each finish reason once, in the order of its first occurrence.
    finish: Vec<&'static str>,
    /// The places of fields that the request has under other names.
    renamed: Vec<Renamed>,
    is_answered: bool,
    /// Whether an engine process writes the line in the log.
    is_elsewhere: bool,
}

/// When the completions of a request were in the queue, in prefill and in decode, since the request began: the first begin and the
/// last end of each.
#[derive(Clone, Copy, Debug)]
struct Phases {
    queue: Duration,
    prefill: Duration,
    decode: Duration,
    end: Duration,
}

impl Phases {
    /// Those of a completion that ends now.
    fn of(usage: &Usage, end: Duration) -> Self {
        let decode = end.saturating_sub(usage.decode);
        let prefill = decode.saturating_sub(usage.prefill);
        Self {
            queue: prefill.saturating_sub(usage.queue),
            prefill,
            decode,
            end,
        }
    }

    fn with(self, other: Self) -> Self {
        Self {
            queue: self.queue.min(other.queue),
            prefill: self.prefill.min(other.prefill),
            decode: self.decode.min(other.decode),
            end: self.end.max(other.end),
        }
    }
}

#[derive(Debug)]
struct Renamed {
    place: String,
    sent: String,
    /// Whether the places within it are the same.
    keeps_inner: bool,
}

impl Renamed {
    /// The place as the request has it, if it is this one or within it.
    fn sent(&self, place: &str) -> Option<String> {
        let inner = place.strip_prefix(&self.place)?;
        let is_inner = inner.is_empty() || inner.starts_with(['.', '[']);
        let inner = if self.keeps_inner { inner } else { "" };
        is_inner.then(|| format!("{}{inner}", self.sent))
    }
}

impl RequestContext {
    /// The record of a request to a route, from an address.
    pub(crate) fn of(
        request: &Request,
        is_strict: bool,
        route: &'static str,
        address: Option<IpAddr>,
    ) -> Self {
        let header = |name: &str| {
            let text = request.headers().get(name);
            text.and_then(|text| text.to_str().ok()).unwrap_or_default()
        };
        let (method, path) = (request.method().as_str(), request.uri().path());
        let mut record = Self::new(header("x-request-id"), method, path, is_strict);
        (record.route, record.address) = (route, address);
        record.trace = TraceParent::of(header("traceparent"));
        record
    }

    fn new(id: &str, method: &str, path: &str, is_strict: bool) -> Self {
        Self {
            id: id.to_owned(),
            method: method.to_owned(),
            path: path.to_owned(),
            route: "",
            address: None,
            trace: None,
            is_strict,
            client: OnceLock::new(),
            rates: OnceLock::new(),
            started: Instant::now(),
            notes: Mutex::default(),
        }
    }

    /// The record of the request that this task serves. Work without a request enters [`Self::detached`] first.
    pub(crate) fn current() -> Arc<Self> {
        let current = RECORD.try_with(Arc::clone);
        debug_assert!(current.is_ok(), "no record is entered");
        current.unwrap_or_else(|_| {
            tracing::error!("the work of a request runs outside of its record");
            Self::detached()
        })
    }

    /// A record for work without a request. It is discarded, and strict: nobody would see what it names.
    pub(crate) fn detached() -> Arc<Self> {
        Arc::new(Self::new("", "", "", true))
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// Notes which of the clients with API keys sent the request. Only the first call counts.
    pub(crate) fn set_client(&self, client: KeyHolder) {
        self.client.get_or_init(|| client);
    }

    /// Which client sent the request. Where there are no keys, all are one, which may do everything.
    pub(crate) fn client(&self) -> KeyHolder {
        let known = self.client.get().cloned();
        known.unwrap_or_else(|| KeyHolder {
            manages: true,
            ..KeyHolder::default()
        })
    }

    /// The client as the queue of an engine knows it: by its key, or else by its address.
    pub(crate) fn client_of_engine(&self) -> Client {
        let known = self.client.get().map(KeyHolder::of_engine);
        known.unwrap_or_else(|| Client {
            name: self.address.map(queue_name).unwrap_or_default().into(),
            ..Client::default()
        })
    }

    pub(crate) fn address_header(&self) -> Option<HeaderValue> {
        self.address.and_then(RequestSource::header)
    }

    /// The client for an engine process, if there are keys.
    pub(crate) fn client_header(&self) -> Option<HeaderValue> {
        self.client.get().and_then(KeyHolder::header)
    }

    /// Whether the request may manage models, as far as its key matters.
    pub(crate) fn manages(&self) -> bool {
        self.client.get().is_none_or(|client| client.manages)
    }

    pub(crate) fn owner(&self) -> String {
        let client = self.client.get();
        client.map_or_else(String::new, |client| client.owner.clone())
    }

    /// Counts the request among those that its client may send in a minute.
    ///
    /// # Errors
    /// The client has sent as many.
    pub(crate) fn take_request(&self, rates: &RateLimits) -> Result<(), Exceeded> {
        self.take(
            "requests",
            rates,
            |client| client.limits.requests_per_minute,
            1,
        )
    }

    /// Counts the tokens of prompts among those that its client may use in a minute, and from now on those of completions.
    ///
    /// # Errors
    /// The client has used as many.
    pub(crate) fn take_tokens(&self, rates: &Arc<RateLimits>, n: usize) -> Result<(), Exceeded> {
        self.take("tokens", rates, |client| client.limits.tokens_per_minute, n)?;
        self.rates.get_or_init(|| Arc::clone(rates));
        Ok(())
    }

    fn take(
        &self,
        what: &'static str,
        rates: &RateLimits,
        limit: fn(&KeyHolder) -> Option<NonZeroU32>,
        n: usize,
    ) -> Result<(), Exceeded> {
        let Some(client) = self.client.get() else {
            return Ok(());
        };
        let Some(limit) = limit(client) else {
            return Ok(());
        };
        let (left, taken) = rates.take(&client.owner, limit.get(), n);
        let mut notes = self.notes();
        notes.allowances.retain(|(other, _)| *other != what);
        notes.allowances.push((what, left));
        drop(notes);
        taken.map_err(|after| Exceeded {
            client: client.in_words(),
            what,
            limit: limit.get(),
            after,
        })
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) async fn scope<F: Future>(self: Arc<Self>, work: F) -> F::Output {
        RECORD.scope(self, work).await
    }

    /// Runs work that does not wait as part of the request.
    pub(crate) fn enter<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        RECORD.sync_scope(Arc::clone(self), work)
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        lock(&self.notes)
    }

    pub(crate) fn ignore(&self, name: &str) {
        let mut notes = self.notes();
        let name = header_safe(name);
        if notes.ignored.len() < MAX_NAMES {
            notes.ignored.insert(name);
        } else if !notes.ignored.contains(&name) {
            notes.n_ignored += 1;
        }
    }

    /// Records that the request has a field, and what is within it, under another name: errors name it so.
    pub(crate) fn rename(&self, place: impl Into<String>, sent: impl Into<String>) {
        self.renamed(place.into(), sent.into(), true);
    }

    /// Records that a field was made out of another one, in which the places are others.
    pub(crate) fn rename_whole(&self, place: impl Into<String>, sent: impl Into<String>) {
        self.renamed(place.into(), sent.into(), false);
    }

    fn renamed(&self, place: String, sent: String, keeps_inner: bool) {
        self.notes().renamed.push(Renamed {
            place,
            sent,
            keeps_inner,
        });
    }

    /// The place of a field as the request has it.
    pub(crate) fn as_sent(&self, place: &str) -> String {
        let notes = self.notes();
        let found = notes.renamed.iter().filter_map(|renamed| {
            let sent = renamed.sent(place)?;
            Some((renamed.place.len(), sent))
        });
        let longest = found.max_by_key(|(length, _)| *length);
        longest.map_or_else(|| place.to_owned(), |(_, sent)| sent)
    }

    /// A message in which the places between backquotes are those of the request.
    pub(crate) fn with_sent(&self, message: &str) -> String {
        let parts = message.split('`').enumerate();
        let parts = parts.map(|(i, part)| match i % 2 {
            0 => part.to_owned(),
            _ => self.as_sent(part),
        });
        parts.collect::<Vec<_>>().join("`")
    }

    pub(crate) fn set_substituted_model(&self, requested: &str, served: &str) {
        let (requested, served) = (header_safe(&quoted(requested)), header_safe(served));
        self.notes().requested = Some(format!("requested {requested}, served {served}"));
    }

    pub(crate) fn set_adapter(&self, id: usize) {
        self.notes().adapter = Some(id);
    }

    /// The adapter that the request names as its model, with its scale.
    pub(crate) fn adapter(&self) -> Option<Vec<(usize, f32)>> {
        self.notes().adapter.map(|id| vec![(id, 1.0)])
    }

    /// Records that an engine process serves the request, and writes its line.
    pub(crate) fn leave_log_to_engine(&self) {
        self.notes().is_elsewhere = true;
    }

    pub(crate) fn engine_died(&self, model: &str) {
        let mut notes = self.notes();
        notes.is_elsewhere = false;
        notes.model = Some(model.to_owned());
        notes.finish("error");
    }

    pub(crate) fn fail(&self) {
        self.notes().finish("error");
    }

    pub(crate) fn model(&self, name: &str) {
        self.notes().model = Some(name.to_owned());
    }

    pub(crate) fn usage(&self, usage: Usage) {
        self.notes().usage = Some(usage);
    }

    /// Logs the start of the reasoning of a completion, at the level `debug` only.
    pub(crate) fn log_reasoning(&self, text: &str) {
        if !text.is_empty() {
            tracing::debug!(target: "request", id = self.id, reasoning = text);
        }
    }

    pub(crate) fn event(&self, event: &Event) {
        let mut notes = self.notes();
        match event {
            Event::Text { tokens, .. } => {
                notes.first.get_or_insert_with(|| self.started.elapsed());
                if let (Some(rates), Some(client)) = (self.rates.get(), self.client.get()) {
                    rates.charge(&client.owner, tokens.len());
                }
            }
            Event::Done { reason, usage, .. } => {
                notes.finish(reason.as_str());
                let own = Phases::of(usage, self.started.elapsed());
                notes.phases = Some(notes.phases.map_or(own, |others| others.with(own)));
            }
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

/// Text as a header and a line of the log can carry it: other characters are percent-encoded, and so is what separates
/// names.
fn header_safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' | b',' | b'"' => out.push_str(&format!("%{byte:02X}")),
            0x21..=0x7e => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

impl Notes {
    /// The fields without effect, as many as a header should carry.
    fn ignored(&self) -> Option<String> {
        let mut out = String::new();
        let mut n_more = self.n_ignored;
        for name in &self.ignored {
            match out.len() + name.len() {
                0..MAX_IGNORED if out.is_empty() => out.push_str(name),
                0..MAX_IGNORED => out.extend([", ", name]),
                _ => n_more += 1,
            }
        }
        if n_more > 0 {
            out.push_str(&format!(", and {n_more} more"));
        }
        (!out.is_empty()).then_some(out)
    }

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

impl Drop for RequestContext {
    fn drop(&mut self) {
        if self.path.is_empty() {
            return;
        }
        let notes = self.notes.get_mut().unwrap_or_else(PoisonError::into_inner);
        if notes.is_elsewhere {
            return;
        }
        let (usage, phases, took) = (notes.usage, notes.phases, self.started.elapsed());
        let milliseconds = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
        // The rate counts only the time in which tokens arrived.
        let rate = usage.zip(notes.first).map(|(usage, first)| {
            let time = took.saturating_sub(first).as_secs_f64().max(1e-4);
            (usage.completion_tokens.saturating_sub(1) as f64 / time * 10.0).round() / 10.0
        });
        let (ignored, trace) = (notes.ignored(), self.trace.as_ref());
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: "request",
                    id = self.id,
                    method = self.method,
                    path = quoted(&self.path),
                    route = (self.route != self.path).then_some(self.route),
                    client = self.address.map(tracing::field::display),
                    status = notes.is_answered.then_some(notes.status.as_u16()),
                    key = self.client.get().and_then(|client| name_of(&client.owner)),
                    model = notes.model,
                    prompt_tokens = usage.map(|usage| usage.prompt_tokens),
                    cached_tokens = usage.map(|usage| usage.cached_tokens),
                    completion_tokens = usage.map(|usage| usage.completion_tokens),
                    first_token_ms = notes.first.map(milliseconds),
                    prepare_ms = phases.map(|phases| milliseconds(phases.queue)),
                    queue_ms = phases.map(|phases| milliseconds(phases.prefill - phases.queue)),
                    prefill_ms = phases.map(|phases| milliseconds(phases.decode - phases.prefill)),
                    decode_ms = phases.map(|phases| milliseconds(phases.end - phases.decode)),
                    tokens_per_second = rate,
                    finish = notes.ending(),
                    ms = milliseconds(took),
                    ignored,
                    requested = notes.requested,
                    trace_id = trace.map(|trace| trace.trace_id.as_str()),
                    parent_id = trace.map(|trace| trace.parent_id.as_str()),
                    sampled = trace.map(|trace| trace.is_sampled),
                )
            };
        }
        match self.path.as_str() {
            path if path == "/metrics" || STATES.contains(&path) => line!(debug),
            _ => line!(info),
        }
    }
}

/// Keeps the record of a request, and reports the fields without effect to the client.
pub(crate) async fn layer<F: Future<Output = Response>>(
    request: Request,
    record: RequestContext,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let record = Arc::new(record);
    let mut response = Arc::clone(&record).scope(next(request)).await;
    let mut notes = record.notes();
    notes.status = response.status();
    notes.is_answered = true;
    let headers = response.headers_mut();
    for (name, text) in [(IGNORED, notes.ignored()), (MODEL, notes.requested.clone())] {
        // What the engine process of the model says is more complete.
        if let Some(Ok(value)) = text.map(|text| HeaderValue::from_str(&text))
            && !headers.contains_key(&name)
        {
            headers.insert(name, value);
        }
    }
    for (what, left) in &notes.allowances {
        for (part, value) in [
            ("limit", left.limit.to_string()),
            ("remaining", left.remaining.to_string()),
            ("reset", format!("{:.3}s", left.reset.as_secs_f64())),
        ] {
            let name = HeaderName::try_from(format!("x-ratelimit-{part}-{what}"));
            if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
    }
    if StreamFraming::of(headers).is_some() {
        // Proxies must not buffer a stream.
        let name = HeaderName::from_static("x-accel-buffering");
        headers.insert(name, HeaderValue::from_static("no"));
    }
    drop(notes);
    response
}
