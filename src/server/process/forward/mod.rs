//! Forwards requests to the engine process of their model and passes the answers back unchanged.
//!
//! A stream that waits for a model to be loaded, in this process or another, is kept alive (`loading_stream`). A request for
//! which no model is found goes to the server's own handlers, which report what is wrong with it. When the process
//! dies, a request without an answer gets an error; a stream gets the error event of its dialect after its last whole
//! event. Why there are engine processes: `process`.

mod loading_stream;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::http::transport;
use crate::http::transport::send;

use crate::endpoints::adapters;
use crate::endpoints::adapters::ModelQuery;
use crate::http::app::{AppState, OWNER_HEADER};
use crate::http::context::RequestContext;
use crate::http::error::{Error, ForEngineProcess};
use crate::http::error_format::ErrorFormat;
use crate::http::routes;
use crate::http::routes::AnsweredBy;
use crate::http::transport::MAX_BODY_BYTES;
use crate::pool::{DEFAULT_MODEL, LoadedEngine};
use crate::process::EngineProcess;
use crate::request::fields::read_body;

/// Headers that belong to one connection, and those that only the server reads.
static OWN_HEADERS: &[&str] = &[
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "expect",
    "upgrade",
    "host",
    "origin",
    "authorization",
    "x-api-key",
    "api-key",
    "content-encoding",
];
/// Maximum number of bytes of an answer that are held before the first of them is sent.
const MAX_HELD: usize = 1 << 20;
/// Maximum wait for the metrics of an engine process.
const METRICS_TIME: Duration = Duration::from_secs(2);

/// Forwards requests to the engine processes of their models, and keeps streams alive while their model is loaded.
pub(crate) async fn layer(server: Arc<AppState>, request: Request) -> Response {
    let pool = &server.pool;
    let owner = routes::answered_by(request.method(), request.uri().path());
    let has_part = pool.is_split() || (owner == AnsweredBy::Model && pool.has_unloaded_model());
    if owner == AnsweredBy::Server || !has_part {
        return server.handled(request).await;
    }
    let (head, body) = request.into_parts();
    // Other bodies were read in time (`http::body`). The bodies of these methods have no meaning.
    let body = match head.method {
        Method::GET | Method::HEAD => Ok(Bytes::new()),
        _ => read_body(body).await,
    };
    let body = match body {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    let Routing { model, is_streamed } = Routing::of(&head.uri, &body);
    let call = RoutedRequest {
        owner,
        name: model.and_then(|name| match owner {
            AnsweredBy::Server => pool.own_name(&name).ok(),
            AnsweredBy::Model | AnsweredBy::Loaded => pool.serving_name(&name).ok(),
        }),
        head,
        body,
        server,
    };
    let may_wait = is_streamed && call.is_first() && routes::can_stream(call.head.uri.path());
    if may_wait {
        return Box::pin(loading_stream::answer(call)).await;
    }
    Box::pin(call.run()).await
}

/// A request whose body was read, and the route and handler that answer it.
struct RoutedRequest {
    server: Arc<AppState>,
    owner: AnsweredBy,
    /// The model that the request names, if it exists.
    name: Option<String>,
    head: Parts,
    body: Bytes,
}

impl RoutedRequest {
    fn request(&self) -> Request {
        Request::from_parts(self.head.clone(), Body::from(self.body.clone()))
    }

    /// Whether the model must first be loaded for this request.
    fn is_first(&self) -> bool {
        let name = self
            .name
            .as_ref()
            .filter(|_| self.owner == AnsweredBy::Model);
        name.is_some_and(|name| !self.server.pool.is_loaded(name))
    }

    /// The answer of this process's own handler.
    async fn handle_here(&self) -> Response {
        Arc::clone(&self.server).handled(self.request()).await
    }

    /// The answer to the request, from the model's engine process or from a handler.
    async fn run(self) -> Response {
        let Some(name) = self.name.as_ref().filter(|_| self.server.pool.is_split()) else {
            return self.handle_here().await;
        };
        if self.is_first() {
            // No model is loaded for a request that the checks of this process refuse.
            let response = self.handle_here().await;
            if response.extensions().get::<ForEngineProcess>().is_none() {
                return response;
            }
        }
        // At most two attempts: an idle process may have died unnoticed.
        for is_last in [false, true] {
            let process = match self.owner {
                AnsweredBy::Loaded => self.server.pool.process(name),
                _ => match self.server.pool.engine(name).await.map(LoadedEngine::parts) {
                    Ok((_, process)) => process,
                    Err(error) => return error.into_response(),
                },
            };
            let Some(process) = process else {
                break;
            };
            let answer = match self.sets_scales() {
                true => self.scaled(process).await,
                false => forwarded(process, self.request()).await,
            };
            match answer {
                Err(EngineGone(how)) if is_last => {
                    let name = name.clone();
                    return Error::EngineDied { name, how }.into_response();
                }
                Err(EngineGone(_)) => {}
                Ok(response) => return response,
            }
        }
        self.handle_here().await
    }

    fn sets_scales(&self) -> bool {
        self.head.method == Method::POST && self.head.uri.path() == adapters::ROUTE
    }

    /// Sets the adapter scales of a process, and keeps them for its successors.
    async fn scaled(&self, process: Arc<EngineProcess>) -> Result<Response, EngineGone> {
        let _turn = self.server.pool.scaling.lock().await;
        let response = forwarded(process, self.request()).await?;
        if let (Some(name), Ok(scales)) = (&self.name, adapters::scales(&self.body))
            && response.status().is_success()
        {
            self.server.pool.keep_scales(name, scales);
        }
        Ok(response)
    }
}

/// The fields of a request that decide which model answers it, and whether as a stream.
struct Routing {
    /// The name of the model; `None` if the field is not a text.
    model: Option<String>,
    is_streamed: bool,
}

impl Routing {
    fn of(uri: &Uri, body: &[u8]) -> Self {
        match serde_json::from_slice::<RoutingFields>(body) {
            Ok(RoutingFields { model, stream }) => Self {
                model: match model {
                    Value::Null => Some(DEFAULT_MODEL.to_owned()),
                    Value::String(name) => Some(name),
                    _ => None,
                },
                is_streamed: stream == Value::Bool(true),
            },
            Err(_) => {
                let which = Query::<ModelQuery>::try_from_uri(uri).ok();
                Self {
                    model: which.map(|which| which.name().to_owned()),
                    is_streamed: false,
                }
            }
        }
    }
}

/// The fields `model` and `stream` of an object; of repeated fields, the last one.
#[derive(Default)]
struct RoutingFields {
    model: Value,
    stream: Value,
}

impl<'de> Deserialize<'de> for RoutingFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = RoutingFields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RoutingFields, A::Error> {
                let mut fields = RoutingFields::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "model" => fields.model = map.next_value()?,
                        "stream" => fields.stream = map.next_value()?,
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A request that was not sent because the process was dead, with how it died.
struct EngineGone(String);

/// Sends a request to an engine process and returns its answer.
async fn forwarded(process: Arc<EngineProcess>, request: Request) -> Result<Response, EngineGone> {
    let record = RequestContext::current();
    let dialect = ErrorFormat::of(request.uri().path());
    let runtime = request.extensions().get::<Handle>().cloned();
    let (head, body) = request.into_parts();
    let mut sent = Request::new(body);
    *sent.method_mut() = head.method;
    *sent.uri_mut() = head.uri;
    *sent.headers_mut() = head.headers;
    for name in OWN_HEADERS {
        sent.headers_mut().remove(*name);
    }
    let host = HeaderValue::from_static("localhost");
    sent.headers_mut().insert(header::HOST, host);
    if let Ok(owner) = HeaderValue::from_str(&record.owner()) {
        sent.headers_mut().insert(OWNER_HEADER, owner);
    }
    let runtime = runtime.unwrap_or_else(Handle::current);
    let connections = Arc::clone(process.connections());
    let Ok(channel) = connections.open(&runtime).await else {
        return Err(EngineGone(process.death().await));
    };
    record.leave_log_to_engine();
    let begun = unless(process.lost(), send(connections, channel, sent)).await;
    let Some(Ok((mut head, answer))) = begun else {
        return Ok(died(&process, &record).await.into_response());
    };
    let is_stream = is_stream(&head.headers);
    let length = head.headers.remove(header::CONTENT_LENGTH);
    let length = length.map(|length| (header::CONTENT_LENGTH, length));
    for name in OWN_HEADERS {
        head.headers.remove(*name);
    }
    let body = match is_stream {
        true => {
            let lost = Box::pin(process.lost());
            let failed = move |n| last(process, record, dialect, n).boxed();
            transport::relay(answer, lost, Box::new(failed))
        }
        // The start of an answer that is not a stream is awaited, so that a small one is sent whole or not at all.
        false => match unless(process.lost(), start(answer)).await {
            Some(Ok((held, None))) => Body::from(held),
            Some(Ok((held, Some(rest)))) => {
                head.headers.extend(length);
                rest_of(process, record, held, rest)
            }
            _ => return Ok(died(&process, &record).await.into_response()),
        },
    };
    Ok(Response::from_parts(head, body))
}

/// The parts of an answer as they arrive.
type Rest = BoxStream<'static, Result<Bytes, hyper::Error>>;

/// The start of an answer, and the rest of a longer one.
async fn start(answer: transport::AnswerBody) -> Result<(Bytes, Option<Rest>), hyper::Error> {
    let (mut parts, mut held) = (answer.into_stream(), Vec::new());
    while held.len() < MAX_HELD {
        match parts.next().await {
            Some(part) => held.extend_from_slice(&part?),
            None => return Ok((held.into(), None)),
        }
    }
    Ok((held.into(), Some(parts)))
}

/// The body of an answer that is longer than what is held. If the process is lost, the connection breaks, so that no
/// client takes the answer for complete.
fn rest_of(
    process: Arc<EngineProcess>,
    record: Arc<RequestContext>,
    held: Bytes,
    rest: Rest,
) -> Body {
    let lost = Box::pin(process.lost());
    let rest = stream::unfold(Some((process, record, lost, rest)), |state| async {
        let (process, record, mut lost, mut rest) = state?;
        let broken: io::Error = match unless(&mut lost, rest.next()).await {
            Some(None) => return None,
            Some(Some(Ok(part))) => return Some((Ok(part), Some((process, record, lost, rest)))),
            Some(Some(Err(error))) => io::Error::other(error),
            None => io::ErrorKind::ConnectionAborted.into(),
        };
        died(&process, &record).await.log();
        Some((Err(broken), None))
    });
    Body::from_stream(stream::once(std::future::ready(Ok(held))).chain(rest))
}

/// The result of `work`; `None` if its process is lost first. The connections of that process then stay open.
async fn unless<T>(lost: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = lost => None,
    }
}

fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// The error for a request whose process died.
async fn died(process: &EngineProcess, record: &RequestContext) -> Error {
    let (name, how) = (process.name().to_owned(), process.death().await);
    record.engine_died(&name);
    Error::EngineDied { name, how }
}

/// The last event of a stream whose process died or was lost after `n_events` events.
async fn last(
    process: Arc<EngineProcess>,
    record: Arc<RequestContext>,
    dialect: ErrorFormat,
    n: usize,
) -> Bytes {
    let error = died(&process, &record).await;
    error.log();
    dialect.error_event(error.status(), &error.body(), n)
}

/// The metrics of an engine process; `None` if it does not report them in time. Does not count as use of the model.
pub(crate) async fn metrics(process: Arc<EngineProcess>) -> Option<String> {
    let connections = Arc::clone(process.connections());
    drop(process);
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = Uri::from_static("/metrics");
    let host = HeaderValue::from_static("localhost");
    request.headers_mut().insert(header::HOST, host);
    let asked = async {
        let channel = connections.open(&Handle::current()).await.ok()?;
        let (_, answer) = send(connections, channel, request).await.ok()?;
        let body = to_bytes(Body::from_stream(answer.into_stream()), MAX_BODY_BYTES);
        String::from_utf8(body.await.ok()?.to_vec()).ok()
    };
    tokio::time::timeout(METRICS_TIME, asked).await.ok()?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(uri: &'static str, body: &str) -> Option<String> {
        Routing::of(&Uri::from_static(uri), body.as_bytes()).model
    }

    #[test]
    fn the_model_is_named_by_the_body_or_the_query() {
        assert_eq!(
            of("/v1/x", "{\"a\": [1], \"model\": \"m\"}").as_deref(),
            Some("m")
        );
        assert_eq!(
            of("/v1/x", "{\"mod\\u0065l\": \"m\"}").as_deref(),
            Some("m")
        );
        assert_eq!(
            of("/v1/x", "{\"model\": 1, \"model\": \"m\"}").as_deref(),
            Some("m")
        );
        assert_eq!(
            of("/v1/x", "{\"model\": null}").as_deref(),
            Some(DEFAULT_MODEL)
        );
        assert_eq!(of("/v1/x", "{}").as_deref(), Some(DEFAULT_MODEL));
        assert_eq!(of("/v1/x", "{\"model\": 1}"), None);
        assert_eq!(of("/props?model=a%20b", "").as_deref(), Some("a b"));
        assert_eq!(of("/lora-adapters?model=m", "[]").as_deref(), Some("m"));
        assert_eq!(of("/props", "").as_deref(), Some(DEFAULT_MODEL));
        let is_streamed = |body: &str| {
            let uri = Uri::from_static("/v1/x");
            Routing::of(&uri, body.as_bytes()).is_streamed
        };
        assert!(is_streamed(
            "{\"stream\": true, \"x\": {\"stream\": false}}"
        ));
        for other in ["{}", "{\"stream\": 1}", "{\"x\": {\"stream\": true}}", "[]"] {
            assert!(!is_streamed(other), "{other}");
        }
    }

    #[test]
    fn an_error_ends_a_stream_in_its_dialect() {
        let error = Error::EngineDied {
            name: "m".into(),
            how: "SIGKILL".into(),
        };
        let failed = |path: &str| {
            let text = ErrorFormat::of(path).error_event(error.status(), &error.body(), 7);
            let text = std::str::from_utf8(&text).expect("UTF-8");
            let (_, data) = text.split_once("data: ").expect("data");
            let is_named = text.starts_with("event: error\n");
            let data: Value = serde_json::from_str(data).expect("JSON");
            (is_named, data)
        };
        let (is_named, data) = failed("/v1/chat/completions");
        assert!(!is_named);
        assert_eq!(data["error"]["code"], "engine_died");
        let (is_named, data) = failed("/v1/messages");
        assert!(is_named);
        assert_eq!(data["error"]["type"], "api_error");
        let (is_named, data) = failed("/v1/responses");
        assert!(is_named);
        assert_eq!(
            (&data["code"], &data["sequence_number"]),
            (&json!("engine_died"), &json!(7))
        );
    }
}
