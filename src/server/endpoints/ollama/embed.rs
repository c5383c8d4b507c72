//! `POST /api/embed` and its older form `POST /api/embeddings`: vectors of texts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::Pool;
use crate::endpoints::embeddings::{Embedded, EmbeddingFields};
use crate::http::context::RequestContext;
use crate::http::error::Error;
use crate::http::json::Json;
use crate::request::fields::{BodyFields, FieldDoc, RequestPart as _, fields, joined};
use crate::request::json_access::JsonMap;
use crate::served::DEFAULT_MODEL;

use super::keep_alive;
use super::response::nanoseconds;

fields! {
    struct CommonEmbedFields {
        /// Whether a text that does not fit is cut rather than refused; default: true.
        truncate: Option<bool>,
        /// Without effect on vectors.
        options: Option<Map<String, Value>>,
        /// Time without use after which the model is unloaded, in seconds or as `5m`; 0 = after this request, below 0 =
        /// never.
        keep_alive: Option<Value>,
    }
}

fields! {
    struct EmbedFields {
        /// A text or several. Without a text the model is only loaded.
        input: Option<Value>,
        ..common: CommonEmbedFields,
    }
}

fields! {
    struct OldEmbedFields {
        /// Without a text the model is only loaded.
        prompt: Option<String>,
        ..common: CommonEmbedFields,
    }
}

/// The fields of `/api/embed`.
pub(crate) fn embed_fields() -> Vec<FieldDoc> {
    joined(
        EmbedFields::documented(),
        vec![EmbeddingFields::documented()],
    )
}

/// The fields of `/api/embeddings`, where `prompt` is the text.
pub(crate) fn old_embed_fields() -> Vec<FieldDoc> {
    joined(
        OldEmbedFields::documented(),
        vec![EmbeddingFields::documented()],
    )
}

#[derive(Serialize)]
struct EmbedResponse {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

#[derive(Serialize)]
struct OldEmbedResponse {
    embedding: Vec<f32>,
}

/// The vectors of a request, the model that made them and for how long it stays loaded.
struct Vectors {
    model: String,
    served: String,
    embedded: Option<Embedded>,
    keep_alive: Option<Duration>,
}

impl CommonEmbedFields {
    /// The vectors of `input`; none if it has no text.
    async fn vectors(
        self,
        pool: &Arc<Pool>,
        body: BodyFields,
        input: Option<Value>,
        normalize: bool,
    ) -> Result<Vectors, Error> {
        let record = RequestContext::current();
        for name in self.options.iter().flat_map(Map::keys) {
            record.ignore(&format!("options.{name}"));
        }
        let keep_alive = self
            .keep_alive
            .as_ref()
            .map(keep_alive::parse)
            .transpose()?;
        let model = body.get("model").and_then(Value::as_str);
        let model = model.unwrap_or(DEFAULT_MODEL).to_owned();
        let is_empty = |input: &Value| *input == json!("") || *input == json!([]);
        let input = input.filter(|input| !is_empty(input));
        let mut out = JsonMap::new();
        out.insert("truncate".into(), (self.truncate != Some(false)).into());
        if !body.has("normalize") {
            out.insert("normalize".into(), normalize.into());
        }
        let has_text = input.is_some();
        out.insert("input".into(), input.unwrap_or_else(|| json!(["-"])));
        let request: EmbeddingFields = body.with(out).whole()?;
        request.refuse_lab()?;
        let (embedded, served) = if has_text {
            let embedded = request.embed(pool).await?;
            let served = embedded.served.name.clone();
            (Some(embedded), served)
        } else {
            (None, pool.get(&model).await?.name.clone())
        };
        Ok(Vectors {
            model,
            served,
            embedded,
            keep_alive,
        })
    }
}

pub(crate) async fn embed(
    State(pool): State<Arc<Pool>>,
    mut body: BodyFields,
) -> Result<Response, Error> {
    let started = Instant::now();
    let own: EmbedFields = body.take()?;
    let found = own.common.vectors(&pool, body, own.input, true).await?;
    let (embeddings, n_tokens, load) = found.embedded.map_or_else(
        || (Vec::new(), 0, started.elapsed()),
        |embedded| (embedded.vectors, embedded.n_tokens, embedded.load),
    );
    let response = EmbedResponse {
        model: found.model,
        embeddings,
        total_duration: nanoseconds(started.elapsed()),
        load_duration: nanoseconds(load),
        prompt_eval_count: n_tokens,
    };
    let response = Json(response).into_response();
    Ok(keep_alive::apply(
        &pool,
        &found.served,
        found.keep_alive,
        response,
    ))
}

pub(crate) async fn embeddings(
    State(pool): State<Arc<Pool>>,
    mut body: BodyFields,
) -> Result<Response, Error> {
    let own: OldEmbedFields = body.take()?;
    if own.prompt.is_some() {
        RequestContext::current().rename("input", "prompt");
    }
    let input = own.prompt.map(Value::from);
    let input = input.or_else(|| body.take_one("input"));
    let found = own.common.vectors(&pool, body, input, false).await?;
    let vector = found
        .embedded
        .and_then(|all| all.vectors.into_iter().next());
    let response = OldEmbedResponse {
        embedding: vector.unwrap_or_default(),
    };
    let response = Json(response).into_response();
    Ok(keep_alive::apply(
        &pool,
        &found.served,
        found.keep_alive,
        response,
    ))
}
