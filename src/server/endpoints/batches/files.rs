//! `POST` and `GET /v1/files`, `GET` and `DELETE /v1/files/{id}`, `GET /v1/files/{id}/content`: files of clients.
//!
//! A file is found with the API key that it was stored with. What is kept: `storage::file_store`.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, quoted};
use crate::http::file_body::file_body;
use crate::http::form;
use crate::http::json::Json;
use crate::request::fields::read_body;
use crate::request::object_fields::has_word;
use crate::request::page_query::{PageQuery, query};
use crate::storage::batch_store::BatchStore;
use crate::storage::file_store::FileError;

pub(crate) const ROUTE: &str = "/v1/files";
/// Maximum size of a file that is uploaded, in bytes. It is held in memory while it is received.
const MAX_UPLOAD: u64 = 200 << 20;
/// What files may be for. Only batches use them here.
const PURPOSES: &str = "batch user_data assistants fine-tune vision evals";
const MAX_NAME: usize = 512;

/// Maximum size of the body of an upload.
pub(crate) fn max_upload(pool: &Pool) -> usize {
    /// For what a form has besides the file.
    const REST: u64 = 64 << 10;
    let all = pool.config.batches.as_ref();
    let all = all.map_or(0, |batches| batches.files.max_bytes());
    usize::try_from(all.min(MAX_UPLOAD) + REST).unwrap_or(usize::MAX)
}

pub(super) fn store(pool: &Pool) -> Result<&BatchStore, Error> {
    let missing = || Error::NoRoute(RequestContext::current().path().to_owned());
    pool.config.batches.as_ref().ok_or_else(missing)
}

pub(super) fn unknown(id: &str) -> Error {
    Error::NotFound {
        what: "file",
        id: id.to_owned(),
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io(_) => Self::engine(error),
            FileError::Full { .. } | FileError::TooMany => Self::Field {
                param: "file".into(),
                message: error.to_string(),
                code: "storage_full",
            },
        }
    }
}

pub(super) type Id = Result<Path<String>, PathRejection>;

/// The id in a path, and who asks. An id that is not UTF-8 names nothing.
pub(super) fn named(id: Id) -> (String, String) {
    let id = id.map_or_else(|_| String::new(), |Path(id)| id);
    (RequestContext::current().owner(), id)
}

pub(crate) async fn upload(State(pool): State<Arc<Pool>>, request: Request) -> Result<Json, Error> {
    let store = store(&pool)?;
    let (head, body) = request.into_parts();
    let parts = form::parts(&head.headers, read_body(body).await?).await?;
    let (mut purpose, mut file) = (None, None);
    for part in parts {
        match part.name.as_str() {
            "purpose" => purpose = Some(part.text()?),
            "file" => file = Some((part.file_name.unwrap_or_else(|| "file".into()), part.data)),
            other => RequestContext::current().ignore(&quoted(other)),
        }
    }
    let purpose = purpose.ok_or_else(|| Error::missing("purpose"))?;
    if !has_word(PURPOSES, &purpose) {
        let (purpose, known) = (quoted(&purpose), PURPOSES.replace(' ', "`, `"));
        let message = format!("`purpose` is `{purpose}`, expected one of `{known}`");
        return invalid("purpose", message);
    }
    let (name, data) = file.ok_or_else(|| Error::missing("file"))?;
    let name: String = name.chars().take(MAX_NAME).collect();
    let owner = RequestContext::current().owner();
    let stored =
        crate::http::json::block_in_place(|| store.files.create(&owner, &name, &purpose, &data));
    Ok(Json(stored?.json()))
}

#[derive(Debug, Deserialize)]
pub(crate) struct ListQuery {
    purpose: Option<String>,
}

pub(crate) async fn list(
    State(pool): State<Arc<Pool>>,
    page: Result<Query<PageQuery>, QueryRejection>,
    wanted: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json, Error> {
    const MAX: usize = 10_000;
    let (page, wanted) = (query(page)?, query(wanted)?.purpose);
    let all = store(&pool)?.files.list(&RequestContext::current().owner());
    let is_wanted = |purpose: &str| wanted.as_deref().is_none_or(|wanted| wanted == purpose);
    let all = all.iter().filter(|file| is_wanted(&file.purpose));
    let all: Vec<Value> = all.map(|file| file.json()).collect();
    page.page(all, MAX, MAX).map(Json)
}

pub(crate) async fn get(State(pool): State<Arc<Pool>>, id: Id) -> Result<Json, Error> {
    let (owner, id) = named(id);
    let file = store(&pool)?.files.get(&owner, &id);
    Ok(Json(file.ok_or_else(|| unknown(&id))?.json()))
}

pub(crate) async fn content(State(pool): State<Arc<Pool>>, id: Id) -> Result<Response, Error> {
    let (owner, id) = named(id);
    let found = store(&pool)?.files.open_data(&owner, &id);
    let (file, data) = found.ok_or_else(|| unknown(&id))?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, file.n_bytes.to_string()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"{}\"", file.id),
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    Ok((headers, file_body(data, file.n_bytes)).into_response())
}

pub(crate) async fn delete(State(pool): State<Arc<Pool>>, id: Id) -> Result<Json, Error> {
    let (owner, id) = named(id);
    match store(&pool)?.files.remove(&owner, &id) {
        true => Ok(Json(json!({ "id": id, "object": "file", "deleted": true }))),
        false => Err(unknown(&id)),
    }
}
