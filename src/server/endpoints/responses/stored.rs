//! Stored responses: `GET` and `DELETE /v1/responses/{id}`, `POST /v1/responses/{id}/cancel`,
//! `GET /v1/responses/{id}/input_items`.
//!
//! A response is found with the API key that it was made with. What is kept: `response::response_store`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, refuse};
use crate::http::json::Json;
use crate::http::transport::{StreamFraming, event_response};
use crate::response::response_store::Missing;

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

fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Error> {
    let fault = |rejection: QueryRejection| Error::invalid_value("query", rejection.body_text());
    query.map(|Query(query)| query).map_err(fault)
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

/// Which part of a list is wanted.
#[derive(Debug, Deserialize)]
pub(crate) struct PageQuery {
    limit: Option<usize>,
    order: Option<String>,
    after: Option<String>,
}

impl PageQuery {
    /// The part of a list, in OpenAI's shape. `all` are in the order of their creation.
    pub(crate) fn page(&self, mut all: Vec<Value>, max: usize) -> Result<Value, Error> {
        let limit = self.limit.unwrap_or(20);
        if !(1..=max).contains(&limit) {
            return refuse("limit", format!(" is {limit}, expected 1 to {max}"));
        }
        match self.order.as_deref() {
            None | Some("desc") => all.reverse(),
            Some("asc") => {}
            Some(_) => return refuse("order", ": expected `asc` or `desc`"),
        }
        let start = match &self.after {
            None => 0,
            Some(after) => match all.iter().position(|one| one["id"] == after.as_str()) {
                Some(i) => i + 1,
                None => return refuse("after", " names nothing in this list"),
            },
        };
        let has_more = all.len() - start > limit;
        let data: Vec<Value> = all.into_iter().skip(start).take(limit).collect();
        let id = |one: Option<&Value>| one.map(|one| one["id"].clone());
        Ok(json!({
            "object": "list", "first_id": id(data.first()), "last_id": id(data.last()),
            "has_more": has_more, "data": data,
        }))
    }
}

pub(crate) async fn input_items(
    State(pool): State<Arc<Pool>>,
    id: Id,
    asked: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json, Error> {
    let (asked, (owner, id)) = (query(asked)?, named(id));
    let items = pool.responses.items(&owner, &id, false);
    let items = items.map_err(|(id, why)| missing(&id)(why))?;
    asked.page(items, 100).map(Json)
}
