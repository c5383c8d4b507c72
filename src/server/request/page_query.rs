//! The queries of lists, which are sent in pages.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::error::{Error, refuse};

pub(crate) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Error> {
    let fault = |rejection: QueryRejection| Error::invalid_value("query", rejection.body_text());
    query.map(|Query(query)| query).map_err(fault)
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
    pub(crate) fn page(
        &self,
        mut all: Vec<Value>,
        default: usize,
        max: usize,
    ) -> Result<Value, Error> {
        let limit = self.limit.unwrap_or(default);
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
