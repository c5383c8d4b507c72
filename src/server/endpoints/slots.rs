//! `POST /slots/{id}?action=save|restore|erase`, in llama-server's shape: the last prefix of a slot to a file, and back.
//!
//! Requests have no slots of their own here. A slot is the number that `id_slot` names, or the place that the request took; what
//! is restored comes into the prefix cache, where every request finds it.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::header;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use lab_core::engine::{SlotError, SlotFailure, SlotFile};

use crate::Pool;
use crate::http::error::{Error, invalid, quoted};
use crate::http::json::Json;
use crate::request::fields::{BodyFields, fields, read_body};
use crate::served::DEFAULT_MODEL;

/// The route of one slot.
pub(crate) const ROUTE: &str = "/slots/{id}";

#[derive(Debug, Deserialize)]
pub(crate) struct SlotQuery {
    action: Option<String>,
    model: Option<String>,
}

fields! {
    pub(crate) struct SlotFields {
        /// The model; default: the only one.
        model: Option<String>,
        /// Name of the file in the folder `--slot-save-path`; for `save` and `restore`.
        filename: Option<String>,
    }
}

/// The fields of a body. There may be none, as from a program; a page sends JSON.
async fn fields_of(request: Request) -> Result<SlotFields, Error> {
    let (head, body) = request.into_parts();
    let body: Bytes = read_body(body).await?;
    let is_absent = body.is_empty() && !head.headers.contains_key(header::ORIGIN);
    match is_absent {
        true => BodyFields::new(Map::new()).whole(),
        false => BodyFields::read(&head.headers, &body)?.whole(),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "errors are mapped by it")]
fn fault(failure: SlotFailure) -> Error {
    let message = match &failure {
        SlotFailure::Name => format!("`filename`: expected {failure}"),
        _ => failure.to_string(),
    };
    match failure {
        SlotFailure::NoFolder | SlotFailure::Slot(SlotError::NotShared) => {
            Error::unsupported("action", format!("`action`: {message}"))
        }
        SlotFailure::Slot(SlotError::Unknown | SlotError::Empty) => {
            Error::invalid_value("id", format!("the slot: {message}"))
        }
        SlotFailure::Name => Error::invalid_value("filename", message),
        SlotFailure::File(_) | SlotFailure::Ended => {
            Error::invalid_value("filename", format!("`filename`: {message}"))
        }
    }
}

pub(crate) async fn slot(
    State(pool): State<Arc<Pool>>,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<SlotQuery>, QueryRejection>,
    request: Request,
) -> Result<Json, Error> {
    let fields = fields_of(request).await?;
    let query = query.map_err(|rejection| Error::invalid_value("action", rejection.body_text()))?;
    let id = id.map_or_else(|_| String::new(), |Path(id)| id);
    let Ok(slot) = id.parse::<usize>() else {
        let found = quoted(&id);
        return invalid(
            "id",
            format!("the slot is {found}, expected a number from 0 on"),
        );
    };
    let action = query.action.as_deref().unwrap_or_default().to_owned();
    if !["save", "restore", "erase"].contains(&action.as_str()) {
        let found = quoted(&action);
        return invalid(
            "action",
            format!("`action` is `{found}`, expected save, restore or erase"),
        );
    }
    if action != "erase" && fields.filename.is_none() {
        return Err(Error::missing("filename"));
    }
    let name = fields.model.as_deref().or(query.model.as_deref());
    let served = pool.get(name.unwrap_or(DEFAULT_MODEL)).await?;
    let filename = fields.filename.unwrap_or_default();
    let began = Instant::now();
    // Slots are read and written between steps of the engine.
    let work = tokio::task::spawn_blocking(move || {
        let handle = &served.handle;
        let ms = || began.elapsed().as_secs_f64() * 1e3;
        let answer = |name: &str, file: SlotFile, bytes: &str, time: &str| -> Value {
            json!({
                "id_slot": slot, "filename": &filename, name: file.n_tokens, bytes: file.bytes,
                "timings": { time: ms() },
            })
        };
        match action.as_str() {
            "save" => handle
                .save_slot(slot, &filename)
                .map(|file| answer("n_saved", file, "n_written", "save_ms")),
            "restore" => handle
                .restore_slot(slot, &filename)
                .map(|file| answer("n_restored", file, "n_read", "restore_ms")),
            _ => handle
                .erase_slot(slot)
                .map(|n| json!({ "id_slot": slot, "n_erased": n })),
        }
    });
    let done = work.await.map_err(|_| SlotFailure::Ended);
    done.and_then(|done| done).map(Json).map_err(fault)
}
