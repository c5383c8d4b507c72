//! Stored responses: `GET` and `DELETE /v1/responses/{id}`, `POST /v1/responses/{id}/cancel`,
//! `GET /v1/responses/{id}/input_items`.
//!
//! A response is found with the API key that it was made with. What is kept: `storage::response_store`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use serde_json::json;

use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, refuse};
use crate::http::json::Json;
use crate::http::transport::{StreamFraming, event_response};
use crate::request::page_query::{PageQuery, query};
use crate::storage::response_store::Missing;

type Id = Result<Path<String>, PathRejection>;

/// The id in a path, and who asks. An id that is not UTF-8 names nothing.
fn named(id: Id) -> (String, String) {
    let id = id.map_or_else(|_| String::new(), |Path(id)| id);
    (RequestContext::current().owner(), id)
}

fn missing(id: &str) -> impl FnOnce(Missing) -> Error {
    |why| Error::ResponseNotFound {
        id: id.to_owned(),
        why: why.why(),
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct GetQuery {
    #[serde(default)]
    stream: bool,
    starting_after: Option<usize>,
}

pub(crate) async fn get(
    State(pool): State<Arc<Pool>>,
    id: Id,
    asked: Result<Query<GetQuery>, QueryRejection>,
) -> Result<Response, Error> {
    let (asked, (owner, id)) = (query(asked)?, named(id));
    if asked.stream {
        let start = asked
            .starting_after
            .map_or(0, |last| last.saturating_add(1));
        return stream(pool, owner, id, start);
    }
    let response = pool.responses.get(&owner, &id).map_err(missing(&id))?;
    Ok(Json(response).into_response())
}

/// The events of a background response from number `start`, those that are still to come included.
pub(super) fn stream(
    pool: Arc<Pool>,
    owner: String,
    id: String,
    start: usize,
) -> Result<Response, Error> {
    let kept = pool.responses.events(&owner, &id, start);
    if kept.map_err(missing(&id))?.is_none() {
        return refuse(
            "stream",
            " needs a response that was created with `background` and `stream`",
        );
    }
    let events = stream::unfold(
        (pool, owner, id, start),
        |(pool, owner, id, start)| async move {
            loop {
                // A response that was removed has no more events.
                let kept = pool.responses.events(&owner, &id, start).ok()??;
                if !kept.events.is_empty() {
                    let next = start + kept.events.len();
                    return Some((kept.events, (pool, owner, id, next)));
                }
                let mut changes = kept.changes;
                if kept.is_over || changes.changed().await.is_err() {
                    return None;
                }
            }
        },
    );
    Ok(event_response(
        StreamFraming::Sse,
        events.map(|events| Ok::<Bytes, Infallible>(events.concat().into())),
    ))
}

pub(crate) async fn delete(State(pool): State<Arc<Pool>>, id: Id) -> Result<Json, Error> {
    let (owner, id) = named(id);
    pool.responses.remove(&owner, &id).map_err(missing(&id))?;
    Ok(Json(
        json!({ "id": id, "object": "response", "deleted": true }),
    ))
}

pub(crate) async fn cancel(State(pool): State<Arc<Pool>>, id: Id) -> Result<Json, Error> {
    let (owner, id) = named(id);
    let store = &pool.responses;
    match store.is_running(&owner, &id).map_err(missing(&id))? {
        None => {
            return invalid(
                "id",
                "Cannot cancel a response that was not created with `background`",
            );
        }
        Some(false) => {}
        Some(true) => {
            let mut response = store.get(&owner, &id).map_err(missing(&id))?;
            response["status"] = "cancelled".into();
            store.advance(&owner, &id, None, Some(&response), true);
        }
    }
    store.get(&owner, &id).map(Json).map_err(missing(&id))
}

pub(crate) async fn input_items(
    State(pool): State<Arc<Pool>>,
    id: Id,
    asked: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json, Error> {
    let (asked, (owner, id)) = (query(asked)?, named(id));
    let items = pool.responses.items(&owner, &id, false);
    let items = items.map_err(|(id, why)| missing(&id)(why))?;
    asked.page(items, 20, 100).map(Json)
}
