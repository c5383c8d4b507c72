//! The state of `/v1/responses`, on the way of a request to its model: what it refers to is put into it, and its response
//! is stored. So the process of the model needs no state.
//!
//! The id in `previous_response_id` becomes an object with that id and the items of the conversation before `input`.
//! `background: true` becomes the id of a response that is streamed into the store. Neither is what a client may send.

use std::io::Read as _;
use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::StreamExt;
use lab_base::util::clock::unix_seconds;
use serde_json::{Value, json};

use super::{dialogue, request, stored};
use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::{Error, quoted};
use crate::http::json::Json;
use crate::http::random::random;
use crate::http::transport::is_event_stream;
use crate::pool::HostMode;
use crate::request::fields::{BodyFields, read_body};
use crate::request::json_access::{JsonMap, given, malformed, object_at, text_at, unsupported};
use crate::served::DEFAULT_MODEL;
use crate::storage::response_store::{NewResponse, Refused};

/// The routes whose responses are stored; the others count tokens.
const CREATE: [&str; 2] = ["/v1/responses", "/responses"];
/// Maximum size of the files that a request names, in bytes.
const MAX_FILES_BYTES: u64 = 32 << 20;
const COUNT: [&str; 2] = ["/v1/responses/input_tokens", "/responses/input_tokens"];

/// The request as its model gets it, and what is stored of it.
struct Resolved {
    body: JsonMap,
    is_changed: bool,
    /// What is stored; `None` if nothing is.
    new: Option<NewResponse>,
}

/// Passes a request to `next`. One for a response is resolved first, and its response is stored.
pub(crate) async fn layer<F>(
    pool: Arc<Pool>,
    request: Request,
    next: impl FnOnce(Request) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = Response> + Send + 'static,
{
    let path = request.uri().path();
    let is_creation = CREATE.contains(&path);
    let is_own = (is_creation || COUNT.contains(&path)) && *request.method() == Method::POST;
    if !is_own || pool.config.mode == HostMode::EngineProcess {
        return next(request).await;
    }
    let (head, body) = request.into_parts();
    let body = match read_body(body).await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    // The handler says what is wrong with a body that is no object.
    let Ok(fields) = serde_json::from_slice::<JsonMap>(&body) else {
        return next(Request::from_parts(head, body.into())).await;
    };
    let Resolved {
        body: fields,
        is_changed,
        new,
    } = match resolved(&pool, fields, is_creation) {
        Ok(resolved) => resolved,
        Err(error) => return error.into_response(),
    };
    if is_creation && fields.get("background") == Some(&Value::Bool(true)) {
        let started = background(&pool, head, &body, fields, new, next);
        return started.unwrap_or_else(IntoResponse::into_response);
    }
    let body = if is_changed {
        json_bytes(&fields)
    } else {
        body
    };
    let response = next(with_body(head, body)).await;
    match new {
        Some(new) if response.status() == StatusCode::OK => kept(&pool, new, response).await,
        _ => response,
    }
}

fn json_bytes(fields: &JsonMap) -> Bytes {
    serde_json::to_vec(fields)
        .expect("it was read from JSON")
        .into()
}

fn with_body(mut head: Parts, body: Bytes) -> Request {
    head.headers
        .insert(header::CONTENT_LENGTH, body.len().into());
    Request::from_parts(head, Body::from(body))
}

fn resolved(pool: &Pool, mut body: JsonMap, is_creation: bool) -> Result<Resolved, Error> {
    let owner = RequestContext::current().owner();
    let mut is_changed = resolve_references(pool, &owner, &mut body)?;
    let previous = match given(&body, "previous_response_id") {
        None => None,
        Some(Value::String(id)) => Some(id.clone()),
        Some(_) => {
            let message = "expected the id of a response";
            return Err(Error::wrong_type("previous_response_id", message));
        }
    };
    if let Some(id) = &previous {
        let items = earlier_items(pool, &owner, id)?;
        let earlier = json!({ "id": id, "items": items });
        body.insert("previous_response_id".into(), earlier);
        is_changed = true;
    }
    let is_wanted = given(&body, "store") != Some(&Value::Bool(false));
    let is_kept = is_wanted && pool.responses.is_on();
    match given(&body, "background") {
        None | Some(Value::Bool(false)) => {}
        Some(Value::Bool(true)) if is_kept => {}
        Some(Value::Bool(true)) => {
            let why = match is_wanted {
                true => "this server stores no responses (`--response-store 0`)",
                false => "needs `store`",
            };
            return Err(unsupported("background", why));
        }
        Some(_) => return Err(Error::wrong_type("background", "expected a boolean")),
    }
    if is_wanted && !is_kept {
        // The response says what is done.
        body.insert("store".into(), false.into());
        is_changed = true;
    }
    let body_owner = owner.clone();
    let new = (is_creation && is_kept).then(|| NewResponse {
        owner,
        id: String::new(),
        previous,
        input: Arc::new(input_items(body.get("input"))),
    });
    // What is stored has the ids.
    is_changed |= resolve_files(pool, &body_owner, &mut body)?;
    Ok(Resolved {
        body,
        is_changed,
        new,
    })
}

/// Puts the files that parts name by their ids into their places. Returns whether there are any.
fn resolve_files(pool: &Pool, owner: &str, body: &mut JsonMap) -> Result<bool, Error> {
    let Some(store) = &pool.config.batches else {
        return Ok(false);
    };
    let mut left = MAX_FILES_BYTES;
    let mut is_changed = false;
    let mut resolve = |at: &str, items: Option<&mut Value>| -> Result<(), Error> {
        let items = items.and_then(Value::as_array_mut).into_iter().flatten();
        for (i, item) in items.enumerate() {
            for name in ["content", "output"] {
                let parts = item.get_mut(name).and_then(Value::as_array_mut);
                for (k, part) in parts.into_iter().flatten().enumerate() {
                    let place = match part["type"].as_str() {
                        Some("input_image") => "image_url",
                        Some("input_file") => "file_data",
                        _ => continue,
                    };
                    let Some(fields) = part.as_object_mut() else {
                        continue;
                    };
                    let Some(id) = given(fields, "file_id").and_then(Value::as_str) else {
                        continue;
                    };
                    let at = format!("{at}[{i}].{name}[{k}].file_id");
                    let (file, data) = store.files.open_data(owner, id).ok_or_else(|| {
                        let message = format!("`{at}`: there is no file `{}`", quoted(id));
                        Error::invalid_value(&at, message)
                    })?;
                    if file.n_bytes > left {
                        let message = format!(
                            "`{at}`: the files up to here have more than {MAX_FILES_BYTES} bytes"
                        );
                        return Err(Error::invalid_value(&at, message));
                    }
                    left -= file.n_bytes;
                    let mut bytes = Vec::new();
                    data.take(file.n_bytes)
                        .read_to_end(&mut bytes)
                        .map_err(Error::engine)?;
                    fields.remove("file_id");
                    let data = format!("data:;base64,{}", BASE64_STANDARD.encode(bytes));
                    fields.insert(place.into(), data.into());
                    fields.entry("filename").or_insert_with(|| file.name.into());
                    is_changed = true;
                }
            }
        }
        Ok(())
    };
    crate::http::json::block_in_place(|| {
        resolve("input", body.get_mut("input"))?;
        let previous = body.get_mut("previous_response_id");
        let items = previous.and_then(|previous| previous.get_mut("items"));
        resolve("previous_response_id.items", items)
    })?;
    Ok(is_changed)
}

/// The items of the conversation that a response ended.
fn earlier_items(pool: &Pool, owner: &str, id: &str) -> Result<Vec<Value>, Error> {
    let refused = |message: String, code: &'static str| Error::Field {
        param: "previous_response_id".into(),
        message,
        code,
    };
    if pool.responses.is_running(owner, id) == Ok(Some(true)) {
        let message = format!(
            "The previous response '{}' is still in progress",
            quoted(id)
        );
        return Err(refused(message, "previous_response_in_progress"));
    }
    let items = pool.responses.items(owner, id, true);
    items.map_err(|(missing, why)| {
        let missing = quoted(&missing);
        let message = format!(
            "Previous response with id '{missing}' not found: {}; send the conversation whole, in `input`",
            why.why()
        );
        refused(message, "previous_response_not_found")
    })
}

/// Whether an item names another one. Without a type it has an id, and no role as a message has.
fn is_reference(item: &Value) -> bool {
    match &item["type"] {
        Value::Null => item["role"].is_null() && item["id"].is_string(),
        kind => kind == "item_reference",
    }
}

/// Puts the items that the input refers to into their places. Returns whether there are any.
fn resolve_references(pool: &Pool, owner: &str, body: &mut JsonMap) -> Result<bool, Error> {
    let mut is_changed = false;
    let items = body.get_mut("input").and_then(Value::as_array_mut);
    for (i, item) in items.into_iter().flatten().enumerate() {
        if !is_reference(item) {
            continue;
        }
        let at = format!("input[{i}]");
        let id = text_at(&at, object_at(&at, &*item)?, "id")?.to_owned();
        let found = pool.responses.item(owner, &id);
        *item = found.ok_or_else(|| Error::ItemNotFound {
            param: format!("{at}.id"),
            id,
        })?;
        is_changed = true;
    }
    Ok(is_changed)
}

/// The items of an input, each with an id.
fn input_items(input: Option<&Value>) -> Vec<Value> {
    let text = input.and_then(Value::as_str);
    let text = text.map(|text| json!({ "role": "user", "content": text }));
    let items = input.and_then(Value::as_array).into_iter().flatten();
    text.iter().chain(items).map(whole_item).collect()
}

/// An item with the fields that a client may leave out.
fn whole_item(item: &Value) -> Value {
    let mut item = item.clone();
    let Some(fields) = item.as_object_mut() else {
        return item;
    };
    if given(fields, "type").is_none() {
        fields.insert("type".into(), "message".into());
    }
    let is_message = fields["type"] == "message";
    if given(fields, "id").is_none() {
        let kind = if is_message { "msg" } else { "item" };
        fields.insert("id".into(), new_id(kind).into());
    }
    if is_message && let Some(Value::String(text)) = fields.get("content") {
        let part = match fields.get("role") {
            Some(role) if role == "assistant" => {
                json!({ "type": "output_text", "text": text, "annotations": [] })
            }
            _ => json!({ "type": "input_text", "text": text }),
        };
        fields.insert("content".into(), json!([part]));
    }
    item
}

fn new_id(kind: &str) -> String {
    format!("{kind}_{:016x}{:016x}", random(), random())
}

/// Stores a response as it is sent.
async fn kept(pool: &Arc<Pool>, mut new: NewResponse, response: Response) -> Response {
    let (head, body) = response.into_parts();
    let keep = {
        let pool = Arc::clone(pool);
        move |response: &Value| {
            new.id = response["id"].as_str().unwrap_or_default().to_owned();
            pool.responses.keep(&new, response);
        }
    };
    if !is_event_stream(&head.headers) {
        let mut keep = keep;
        let Ok(body) = to_bytes(body, usize::MAX).await else {
            return Error::engine("the response broke off").into_response();
        };
        if let Ok(response) = serde_json::from_slice(&body) {
            keep(&response);
        }
        return Response::from_parts(head, body.into());
    }
    let (mut events, mut keep) = (EventReader::default(), keep);
    let parts = body.into_data_stream().map(move |part| {
        // The client may refer to the response once it has seen its end.
        for event in part.iter().flat_map(|part| events.read(part)) {
            if event.is_last()
                && let Some(response) = event.response()
            {
                keep(&response);
            }
        }
        part
    });
    Response::from_parts(head, Body::from_stream(parts))
}

/// An event of a stream: its name and data, and its whole text.
struct ReadEvent {
    name: String,
    data: String,
    text: Bytes,
}

impl ReadEvent {
    /// Whether it ends a response.
    fn is_last(&self) -> bool {
        const LAST: [&str; 4] = [
            "response.completed",
            "response.incomplete",
            "response.failed",
            "error",
        ];
        LAST.contains(&self.name.as_str())
    }

    /// The response that it carries.
    fn response(&self) -> Option<Value> {
        let mut data: Value = serde_json::from_str(&self.data).ok()?;
        let response = data.get_mut("response").map(Value::take);
        response.filter(Value::is_object)
    }
}

/// Cuts the text of a stream into its events.
#[derive(Default)]
struct EventReader {
    held: Vec<u8>,
    /// Number of held bytes in which there is no end of an event.
    n_read: usize,
}

impl EventReader {
    /// The events that new bytes complete; comments are left out.
    fn read(&mut self, bytes: &[u8]) -> Vec<ReadEvent> {
        self.held.extend_from_slice(bytes);
        let (mut events, mut start) = (Vec::new(), 0);
        let mut from = self.n_read;
        while let Some(end) = self.held[from..]
            .windows(2)
            .position(|pair| pair == b"\n\n")
        {
            let end = from + end + 2;
            let text = String::from_utf8_lossy(&self.held[start..end]).into_owned();
            let field = |name: &str| {
                let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
                lines.next().map(str::to_owned)
            };
            if let (Some(name), Some(data)) = (field("event: "), field("data: ")) {
                let text = text.into();
                events.push(ReadEvent { name, data, text });
            }
            (start, from) = (end, end);
        }
        self.held.drain(..start);
        self.n_read = self.held.len().saturating_sub(1);
        events
    }
}

/// Starts a response that is made without its client.
fn background<F>(
    pool: &Arc<Pool>,
    head: Parts,
    sent: &[u8],
    mut fields: JsonMap,
    new: Option<NewResponse>,
    next: impl FnOnce(Request) -> F + Send + 'static,
) -> Result<Response, Error>
where
    F: Future<Output = Response> + Send + 'static,
{
    let Some(mut new) = new else {
        return Err(malformed("background", "a response that is stored"));
    };
    // The content type is checked too.
    BodyFields::read(&head.headers, sent)?;
    let model = given(&fields, "model").and_then(Value::as_str);
    let model = pool.serving_name(model.unwrap_or(DEFAULT_MODEL))?;
    let is_streamed = given(&fields, "stream") == Some(&Value::Bool(true));
    new.id = new_id("resp");
    fields.insert("background".into(), new.id.clone().into());
    // What no model could answer is refused now.
    let checked = request::rewritten(BodyFields::new(fields.clone()))?;
    dialogue(checked.body)?;
    fields.insert("stream".into(), true.into());
    let mut queued = json!({
        "id": new.id, "object": "response", "created_at": unix_seconds(), "status": "queued",
        "completed_at": null, "error": null, "incomplete_details": null, "model": model,
        "output": [],
    });
    for (name, value) in checked.echo {
        queued[name.as_str()] = value;
    }
    queued["usage"] = Value::Null;
    let started = pool.responses.start(&new, &queued, is_streamed);
    let mut is_running = started.map_err(|refused| match refused {
        Refused::Busy { limit } => Error::Busy { limit },
        Refused::Full => Error::invalid_value(
            "input",
            "the request does not fit among the stored responses (`--response-store`)",
        ),
    })?;
    let answered = match is_streamed {
        true => stored::stream(Arc::clone(pool), new.owner.clone(), new.id.clone(), 0)?,
        false => Json(queued.clone()).into_response(),
    };
    let request = with_body(head, json_bytes(&fields));
    let work = run(Arc::clone(pool), new, queued, next(request));
    tokio::spawn(RequestContext::current().scope(async move {
        tokio::select! {
            biased;
            // An end of it is the end of the work too.
            _ = is_running.wait_for(|is_running| !is_running) => {}
            () = work => {}
        }
    }));
    Ok(answered)
}

/// Writes a response into the store while it is made.
async fn run(
    pool: Arc<Pool>,
    new: NewResponse,
    queued: Value,
    answer: impl Future<Output = Response>,
) {
    let (owner, id, store) = (&new.owner, &new.id, &pool.responses);
    let failed = |error: &Value| {
        let mut response = store.get(owner, id).unwrap_or_else(|_| queued.clone());
        response["status"] = "failed".into();
        response["error"] = json!({
            "code": error["code"].as_str().unwrap_or("server_error"), "message": error["message"],
        });
        response
    };
    let answer = answer.await;
    if !is_event_stream(answer.headers()) {
        let body = to_bytes(answer.into_body(), usize::MAX).await;
        let body: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
        store.advance(owner, id, None, Some(&failed(&body["error"])), true);
        return;
    }
    let (mut parts, mut events) = (
        answer.into_body().into_data_stream(),
        EventReader::default(),
    );
    while let Some(Ok(part)) = parts.next().await {
        for event in events.read(&part) {
            let response = match event.name.as_str() {
                "error" => {
                    let error: Value = serde_json::from_str(&event.data).unwrap_or_default();
                    Some(failed(&error))
                }
                "response.in_progress" => event.response(),
                _ if event.is_last() => event.response(),
                _ => None,
            };
            let is_over = event.is_last();
            if !store.advance(owner, id, Some(event.text), response.as_ref(), is_over) {
                return;
            }
        }
    }
    let error = json!({ "message": "the response broke off" });
    store.advance(owner, id, None, Some(&failed(&error)), true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_wherever_their_text_is_cut() {
        let text = b": a comment\n\nevent: a\ndata: {\"x\":\"\\n\"}\n\n:\n\nevent: error\ndata: {\"response\":{}}\n\nevent: cut";
        for size in 1..text.len() {
            let mut reader = EventReader::default();
            let parts = text.chunks(size);
            let events: Vec<ReadEvent> = parts.flat_map(|part| reader.read(part)).collect();
            let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
            assert_eq!(names, ["a", "error"], "{size}");
            assert_eq!(events[0].text, "event: a\ndata: {\"x\":\"\\n\"}\n\n");
            assert_eq!(events[1].response(), Some(json!({})));
            assert!(events[1].is_last() && !events[0].is_last());
            assert_eq!(reader.held, b"event: cut");
        }
    }

    #[test]
    fn stored_items_have_ids_types_and_parts() {
        let items = input_items(Some(&json!("a")));
        assert_eq!(
            items[0]["content"],
            json!([{ "type": "input_text", "text": "a" }])
        );
        let input = json!([
            { "role": "assistant", "content": "b" }, { "id": "x", "type": "function_call_output", "output": "c" }, 3,
        ]);
        let items = input_items(Some(&input));
        assert_eq!(items[0]["content"][0]["type"], "output_text");
        assert!(
            items[0]["id"]
                .as_str()
                .is_some_and(|id| id.starts_with("msg_"))
        );
        assert_eq!((&items[1], &items[2]), (&input[1], &input[2]));
        assert!(input_items(None).is_empty());
    }
}
