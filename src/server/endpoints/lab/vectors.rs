//! Vectors that requests may name: `GET /v1/lab/vectors` lists them, `POST` adds some, `DELETE /v1/lab/vectors/{id}`
//! removes vectors that were added so.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, json};

use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid};
use crate::http::json::Json;
use crate::request::fields::{Fields, fields};
use lab_base::weights::safetensors;
use lab_base::weights::safetensors::Dtype;
use lab_core::artifacts::vectors::SaveError;

use super::artifacts::id_of;
use crate::request::lab::objects::Vector;

pub(crate) const ROUTE: &str = "/v1/lab/vectors";

fields! {
    pub(crate) struct VectorsUpload {
        /// Their id: letters, digits, `-` and `_`.
        id: String,
        /// The bytes of a safetensors or GGUF file, in base64.
        file: Option<String>,
        /// One vector for every point: numbers, or an object with `data`, `shape` and `dtype`.
        vector: Option<Vector>,
        /// Vectors by their layers (`"3"`) or points (`"layers.3.attn.out"`).
        vectors: Option<BTreeMap<String, Vector>>,
    }
}

pub(crate) async fn list(State(pool): State<Arc<Pool>>) -> Json {
    let client = RequestContext::current().client();
    let all = pool.config.vectors.list(client.viewer());
    Json(json!({ "object": "list", "data": all }))
}

pub(crate) async fn keep(
    State(pool): State<Arc<Pool>>,
    Fields(sent): Fields<VectorsUpload, true>,
) -> Result<Json, Error> {
    let bytes = match (sent.file, sent.vector, sent.vectors) {
        (Some(file), None, None) => BASE64_STANDARD.decode(file).map_err(|error| {
            Error::invalid_value("file", format!("`file` is not base64: {error}"))
        })?,
        (None, Some(vector), None) => packed(vec![("vector".to_owned(), vector)])?,
        (None, None, Some(vectors)) => packed(vectors)?,
        _ => {
            return invalid("vectors", "expected one of `file`, `vector` and `vectors`");
        }
    };
    let owner = RequestContext::current().owner();
    let stored = pool.config.vectors.save(&owner, &sent.id, &bytes);
    let stored = stored.map_err(|refused| match refused {
        SaveError::Id(message) => Error::invalid_value("id", format!("`id`: {message}")),
        SaveError::Content(message) => Error::invalid_value("vectors", message),
        SaveError::Io(error) => Error::engine(format!("vectors were not written: {error}")),
    })?;
    Ok(Json(json!(stored)))
}

/// The rows as a safetensors file.
fn packed(rows: impl IntoIterator<Item = (String, Vector)>) -> Result<Vec<u8>, Error> {
    let fault = |message: String| Error::invalid_value("vectors", format!("`vectors`: {message}"));
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, vector) in rows {
        let rows = match vector {
            Vector::Id(_) => Err("expected numbers".into()),
            Vector::Row(row) => Ok(vec![row]),
            Vector::Rows(rows) => Ok(rows),
            Vector::Packed(packed) => packed.rows(),
        };
        let rows = rows.map_err(|message| fault(format!("{name}: {message}")))?;
        let [row] = rows.as_slice() else {
            let n = rows.len();
            return Err(fault(format!("{name} has {n} rows, expected one")));
        };
        entries.push((name, Dtype::F32, vec![row.len() as u64]));
        data.extend(row.iter().flat_map(|e| e.to_le_bytes()));
    }
    let mut bytes = safetensors::head(Map::new(), entries).map_err(fault)?;
    bytes.append(&mut data);
    Ok(bytes)
}

pub(crate) async fn delete(
    State(pool): State<Arc<Pool>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json, Error> {
    let id = id_of(id);
    let client = RequestContext::current().client();
    match pool.config.vectors.remove(client.viewer(), &id) {
        true => Ok(Json(
            json!({ "id": id, "object": "lab.vectors", "deleted": true }),
        )),
        false => Err(Error::NotFound { what: "vector", id }),
    }
}
