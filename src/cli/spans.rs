//! Spans of requests by OTLP: of each line that the log has of a request, one span goes to the collector that the environment
//! names (`OTEL_EXPORTER_OTLP_ENDPOINT` and its like, as OpenTelemetry defines them). A `traceparent` of the client is its parent. Its children
//! are the queue, the prompt's passes and those that make the completion.
//!
//! Of a request that an engine process answers, that process has the line, and the span. Not here: the lines (`lab_server`).

use std::fmt::Debug;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context as LayerContext;
use tracing_subscriber::registry::LookupSpan;

use super::Failure;

/// Maximum time to send spans.
const SEND_TIME: Duration = Duration::from_secs(10);

/// Maximum time to send the last ones, by which the end of a process is delayed.
const END_TIME: Duration = Duration::from_secs(2);

static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

/// What makes spans of the lines of requests.
///
/// # Errors
/// A variable of the environment has a wrong value.
pub(super) fn layer<S>() -> Result<impl Layer<S>, Failure>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(SEND_TIME))
        .http_status_as_error(false)
        .build();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client(agent.into()))
        .build();
    let exporter = exporter.map_err(|error| anyhow::anyhow!("OTEL_EXPORTER_OTLP_…: {error}"))?;
    // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override what is set here.
    let resource = match std::env::var_os("OTEL_SERVICE_NAME") {
        None => Resource::builder().with_service_name("bench"),
        Some(_) => Resource::builder(),
    };
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource.with_attribute(version).build())
        .build();
    let tracer = provider.tracer("bench");
    let _ = PROVIDER.set(provider);
    let of_requests = Targets::new().with_target("request", Level::INFO);
    Ok(RequestSpans { tracer }.with_filter(of_requests))
}

/// Sends what has not been sent.
pub(super) fn flush() {
    if let Some(provider) = PROVIDER.get() {
        // Nobody can be told that a collector is gone.
        let _ = provider.shutdown_with_timeout(END_TIME);
    }
}

/// The HTTP client of the program, for OpenTelemetry. It waits, on the thread that exports.
#[derive(Debug)]
struct Client(ureq::Agent);

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let response = self.0.run(request.map(|body| body.to_vec()))?;
        let (head, mut body) = response.into_parts();
        // An answer says what was refused, in some bytes.
        let body = body.with_config().limit(1 << 20).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

struct RequestSpans {
    tracer: SdkTracer,
}

impl<S: Subscriber> Layer<S> for RequestSpans {
    fn on_event(&self, event: &Event<'_>, _: LayerContext<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        // Other lines about requests have no time.
        let Some(took) = line.milliseconds else {
            return;
        };
        let ended = SystemTime::now();
        let took = Duration::try_from_secs_f64(took / 1e3).unwrap_or_default();
        let began = ended.checked_sub(took).unwrap_or(ended);
        // A route, not a path: there are not many.
        let route = if line.route.is_empty() {
            &line.path
        } else {
            &line.route
        };
        let children = line.children(began);
        let mut attributes = line.attributes;
        attributes.push(KeyValue::new("http.route", route.clone()));
        let builder = self
            .tracer
            .span_builder(format!("{} {route}", line.method))
            .with_kind(SpanKind::Server)
            .with_start_time(began)
            .with_attributes(attributes);
        let ids = TraceId::from_hex(&line.trace_id)
            .ok()
            .zip(SpanId::from_hex(&line.parent_id).ok());
        let parent = ids.map_or_else(Context::new, |(trace, span)| {
            let flags = if line.is_sampled {
                TraceFlags::SAMPLED
            } else {
                TraceFlags::NOT_SAMPLED
            };
            let parent = SpanContext::new(trace, span, flags, true, TraceState::NONE);
            Context::new().with_remote_span_context(parent)
        });
        let mut span = self.tracer.build_with_context(builder, &parent);
        if let Some(first) = line.first_token {
            let at = began + Duration::try_from_secs_f64(first / 1e3).unwrap_or_default();
            span.add_event_with_timestamp("gen_ai.first_token", at, Vec::new());
        }
        let own = Context::new().with_remote_span_context(span.span_context().clone());
        for child in children {
            let builder = self.tracer.span_builder(child.name);
            let builder = builder
                .with_kind(SpanKind::Internal)
                .with_start_time(child.began)
                .with_attributes(child.attributes);
            let mut span = self.tracer.build_with_context(builder, &own);
            span.end_with_timestamp(child.ended);
        }
        if line.status >= 500 {
            span.set_status(Status::error(line.finish));
        }
        span.end_with_timestamp(ended);
    }
}

/// The phases of a request in their order, each with the field of its time and what vLLM calls that, and with the attributes that
/// are about it.
const PHASES: [(&str, &str, &str, &[&str]); 3] = [
    ("queue", "queue_ms", "gen_ai.latency.time_in_queue", &[]),
    (
        "prefill",
        "prefill_ms",
        "gen_ai.latency.time_in_model_prefill",
        &[INPUT_TOKENS, CACHED_TOKENS],
    ),
    (
        "decode",
        "decode_ms",
        "gen_ai.latency.time_in_model_decode",
        &[OUTPUT_TOKENS],
    ),
];
const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
const CACHED_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";

/// A phase of a request.
struct Child {
    name: &'static str,
    began: SystemTime,
    ended: SystemTime,
    attributes: Vec<KeyValue>,
}

/// The fields of a line.
#[derive(Default)]
struct Line {
    method: String,
    path: String,
    route: String,
    status: u64,
    finish: String,
    milliseconds: Option<f64>,
    first_token: Option<f64>,
    trace_id: String,
    parent_id: String,
    is_sampled: bool,
    /// Milliseconds before the queue, and in the phases after that.
    prepare: Option<f64>,
    phases: [f64; PHASES.len()],
    /// In the words of OpenTelemetry's conventions, and of vLLM's for latencies.
    attributes: Vec<KeyValue>,
}

impl Line {
    /// The phases of a request that began then; none if it has no completion.
    fn children(&self, began: SystemTime) -> Vec<Child> {
        let after = |time: SystemTime, milliseconds: f64| {
            time + Duration::try_from_secs_f64(milliseconds / 1e3).unwrap_or_default()
        };
        let Some(prepare) = self.prepare else {
            return Vec::new();
        };
        let mut at = after(began, prepare);
        let phases = PHASES.iter().zip(self.phases);
        let phases = phases.map(|((name, _, _, about), milliseconds)| {
            let began = at;
            at = after(began, milliseconds);
            let own = self.attributes.iter();
            let own = own.filter(|attribute| about.contains(&attribute.key.as_str()));
            Child {
                name,
                began,
                ended: at,
                attributes: own.cloned().collect(),
            }
        });
        phases.collect()
    }

    fn add(&mut self, name: &'static str, value: impl Into<Value>) {
        self.attributes.push(KeyValue::new(name, value));
    }

    fn text(&mut self, name: &str, value: String) {
        match name {
            "method" => {
                self.add("http.request.method", value.clone());
                self.method = value;
            }
            "path" => {
                self.add("url.path", value.clone());
                self.path = value;
            }
            "route" => self.route = value,
            "trace_id" => self.trace_id = value,
            "parent_id" => self.parent_id = value,
            "id" => self.add("gen_ai.request.id", value),
            "model" => self.add("gen_ai.response.model", value),
            "client" => self.add("client.address", value),
            "key" => self.add("enduser.id", value),
            "finish" => {
                self.add("gen_ai.response.finish_reasons", value.clone());
                self.finish = value;
            }
            _ => {}
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.text(field.name(), format!("{value:?}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "sampled" {
            self.is_sampled = value;
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let number = i64::try_from(value).unwrap_or(i64::MAX);
        match field.name() {
            "status" => {
                self.add("http.response.status_code", number);
                self.status = value;
            }
            "prompt_tokens" => self.add(INPUT_TOKENS, number),
            "cached_tokens" => self.add(CACHED_TOKENS, number),
            "completion_tokens" => self.add(OUTPUT_TOKENS, number),
            _ => {}
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        match field.name() {
            "ms" => {
                self.add("gen_ai.latency.e2e", value / 1e3);
                self.milliseconds = Some(value);
            }
            "first_token_ms" => {
                self.add("gen_ai.latency.time_to_first_token", value / 1e3);
                self.first_token = Some(value);
            }
            "prepare_ms" => self.prepare = Some(value),
            name => {
                let mut phases = PHASES.iter().enumerate();
                if let Some((at, phase)) = phases.find(|(_, phase)| phase.1 == name) {
                    self.add(phase.2, value / 1e3);
                    self.phases[at] = value;
                }
            }
        }
    }
}
