//! Which process answers a request: this one, or the engine process of the model that it names.
//!
//! A stream that waits for a model to be loaded, in this process or another, is kept alive (`loading_stream`). A request for
//! which no model is found goes to the server's own handlers, which report what is wrong with it. Why there are engine
//! processes: `process`.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::loading_stream;
use super::routes::{self, AnsweredBy};
use super::state::AppState;
use crate::endpoints::adapters::{self, ModelQuery};
use crate::endpoints::ollama::keep_alive;
use crate::http::error::{Error, ForEngineProcess};
use crate::http::form;
use crate::pool::{HostMode, LoadedEngine};
use crate::process::EngineProcess;
use crate::process::forward::{EngineGone, forwarded};
use crate::request::fields::read_body;
use crate::served::DEFAULT_MODEL;

/// Forwards requests to the engine processes of their models, and keeps streams alive while their model is loaded.
pub(crate) async fn layer(server: Arc<AppState>, request: Request) -> Response {
    let pool = &server.pool;
    let owner = routes::answered_by(request.method(), request.uri().path());
    let is_split = pool.config.mode == HostMode::Server;
    let has_part = is_split || (owner == AnsweredBy::Model && pool.has_unloaded_model());
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
    let routing = match form::is_form(&head.headers) {
        true => Routing::of_form(&head.headers, body.clone()).await,
        false => Routing::of(&head.uri, &body),
    };
    let Routing { model, is_streamed } = routing;
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
        let (pool, name) = (Arc::clone(&call.server.pool), call.name.clone());
        let path = call.head.uri.path().to_owned();
        let load = move || name.and_then(|name| pool.loading(&name));
        return Box::pin(loading_stream::answer(&path, call.run(), load)).await;
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

    fn is_first(&self) -> bool {
        let name = self
            .name
            .as_ref()
            .filter(|_| self.owner == AnsweredBy::Model);
        name.is_some_and(|name| !self.server.pool.is_loaded(name))
    }

    async fn handle_here(&self) -> Response {
        Arc::clone(&self.server).handled(self.request()).await
    }

    /// The answer to the request, from the model's engine process or from a handler.
    async fn run(self) -> Response {
        let is_split = self.server.pool.config.mode == HostMode::Server;
        let Some(name) = self.name.as_ref().filter(|_| is_split) else {
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
                Ok(mut response) => {
                    keep_alive::take(&self.server.pool, name, &mut response);
                    return response;
                }
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
    /// Those of a form. Of one that is malformed, the handler says what is wrong.
    async fn of_form(headers: &HeaderMap, body: Bytes) -> Self {
        let parts = form::parts(headers, body).await.unwrap_or_default();
        let text = |name: &str| {
            let mut all = parts.iter().rev();
            let part = all.find(|part| part.name == name);
            part.and_then(|part| part.text().ok()).unwrap_or_default()
        };
        let model = Some(text("model")).filter(|model| !model.is_empty());
        Self {
            model: Some(model.unwrap_or_else(|| DEFAULT_MODEL.to_owned())),
            is_streamed: text("stream").eq_ignore_ascii_case("true"),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_named_by_the_body_or_the_query() {
        let of =
            |uri: &'static str, body: &str| Routing::of(&Uri::from_static(uri), body.as_bytes());
        for (uri, body, model) in [
            ("/v1/x", "{\"a\": [1], \"model\": \"m\"}", Some("m")),
            ("/v1/x", "{\"mod\\u0065l\": \"m\"}", Some("m")),
            ("/v1/x", "{\"model\": 1, \"model\": \"m\"}", Some("m")),
            ("/v1/x", "{\"model\": null}", Some(DEFAULT_MODEL)),
            ("/v1/x", "{}", Some(DEFAULT_MODEL)),
            ("/v1/x", "{\"model\": 1}", None),
            ("/props?model=a%20b", "", Some("a b")),
            ("/lora-adapters?model=m", "[]", Some("m")),
            ("/props", "", Some(DEFAULT_MODEL)),
        ] {
            assert_eq!(of(uri, body).model.as_deref(), model, "{uri} {body}");
        }
        let streamed = "{\"stream\": true, \"x\": {\"stream\": false}}";
        assert!(of("/v1/x", streamed).is_streamed);
        for other in ["{}", "{\"stream\": 1}", "{\"x\": {\"stream\": true}}", "[]"] {
            assert!(!of("/v1/x", other).is_streamed, "{other}");
        }
    }
}
