//! `POST /v1/embeddings`: embedding vectors of texts, in the shape of OpenAI's API.
//!
//! A vector is the result of the model's own pooling. `dimensions` truncates it and normalises it to length 1 again,
//! for models that were trained so that the first elements carry most of the information.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::{Value, json};

use crate::served::ServedModel;
use lab_core::engine::Passage;
use lab_core::engine::PooledOutput;

use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, quoted, refuse};
use crate::http::json::JsonText;
use crate::request::fields::{Fields, fields};
use crate::request::input::{TextOrTokens, texts_or_tokens};
use crate::request::lab::{LabField, LabRequest};
use crate::request::passages::{PassageTokenizer, TextTruncation};
use crate::response::pooled::{self, MAX_TEXTS};

const INPUT: &str = "input";
/// Maximum size in bytes of the prompt before each text.
const MAX_PROMPT_BYTES: usize = 4096;

fields! {
    pub(crate) struct EmbeddingFields {
        model: Option<String>,
        /// A text, token ids, or several of either.
        input: Value,
        /// `float` or `base64`: the elements as little-endian f32.
        encoding_format: Option<String>,
        /// Number of elements that are kept of a vector.
        dimensions: Option<u64>,
        /// Name of the model's prompt that is put before each text.
        prompt_name: Option<String>,
        /// Text that is put before each text.
        prompt: Option<String>,
        /// Whether vectors get the length 1; default: true.
        normalize: Option<bool>,
        /// Whether a text gets the special tokens that the vocabulary asks for.
        add_special_tokens: Option<bool>,
        ..truncation: TextTruncation,
        ..lab: LabField,
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: Vector,
    #[serde(skip_serializing_if = "Option::is_none")]
    lab: Option<JsonText>,
}

#[derive(Serialize)]
struct EmbeddingResponse {
    object: &'static str,
    data: Vec<Entry>,
    model: String,
    usage: Value,
}

/// The vectors of the texts of a request.
pub(crate) struct Embedded {
    pub(crate) served: Arc<ServedModel>,
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) n_tokens: usize,
    /// How long the request waited for the model.
    pub(crate) load: Duration,
    labs: Vec<JsonText>,
}

pub(crate) async fn embeddings(
    State(pool): State<Arc<Pool>>,
    Fields(request): Fields<EmbeddingFields>,
) -> Result<Response, Error> {
    let is_base64 = request.is_base64()?;
    let embedded = request.embed(&pool).await?;
    let n_tokens = embedded.n_tokens;
    let mut labs = embedded.labs.into_iter();
    let entry = |(index, vector): (usize, Vec<f32>)| Entry {
        object: "embedding",
        index,
        lab: labs.next(),
        embedding: match is_base64 {
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|v| v.to_le_bytes()).collect();
                Vector::Base64(BASE64_STANDARD.encode(bytes))
            }
            false => Vector::Float(vector),
        },
    };
    let answer = EmbeddingResponse {
        object: "list",
        data: embedded
            .vectors
            .into_iter()
            .enumerate()
            .map(entry)
            .collect(),
        model: embedded.served.name.clone(),
        usage: json!({ "prompt_tokens": n_tokens, "total_tokens": n_tokens }),
    };
    Ok(axum::Json(answer).into_response())
}

impl EmbeddingFields {
    /// Refuses lab plans, whose results a response cannot carry.
    pub(crate) fn refuse_lab(&self) -> Result<(), Error> {
        match self.lab.lab {
            None => Ok(()),
            Some(_) => Err(Error::unsupported(
                "lab",
                "`lab`: not supported by this endpoint",
            )),
        }
    }

    /// Checks the request and computes its vectors.
    pub(crate) async fn embed(mut self, pool: &Arc<Pool>) -> Result<Embedded, Error> {
        let lab = self.lab.lab.take().map(LabRequest::read).transpose()?;
        let lab = lab.map(Arc::new);
        self.truncation.check()?;
        self.check()?;
        let texts = self.texts()?;
        let started = Instant::now();
        let served = pool.get_or_default(self.model.as_deref()).await?;
        let load = started.elapsed();
        let width = match served.pooled.clone() {
            Ok(PooledOutput::Vector(width)) => width,
            Ok(PooledOutput::Scores { .. }) => {
                let why = "it gives scores of classes; see `/v1/rerank` and `/classify`";
                return Err(pooled::unsupported(&served, why));
            }
            Ok(PooledOutput::TokenScores(_)) => {
                let why = "it gives scores of classes for each token; see `/pooling`";
                return Err(pooled::unsupported(&served, why));
            }
            Err(why) => return Err(pooled::unsupported(&served, &why)),
        };
        let kept = self.kept(width)?;
        let passages = self.passages(&served, texts)?;
        let plan = lab.as_ref().map(|lab| lab.resolve(&served));
        let plan = plan.transpose()?;
        let results = pooled::results(&served, passages, plan.as_ref(), INPUT).await?;
        let mut labs = Vec::new();
        if let Some(request) = lab.as_ref() {
            for result in results.labs {
                let owner = RequestContext::current().owner();
                labs.push(request.text(result, owner, &served).await?);
            }
        }
        let mut vectors = results.all;
        for vector in &mut vectors {
            vector.truncate(kept);
            if self.normalize != Some(false) {
                normalise(vector);
            }
        }
        Ok(Embedded {
            served,
            vectors,
            n_tokens: results.n_tokens,
            load,
            labs,
        })
    }

    fn is_base64(&self) -> Result<bool, Error> {
        match self.encoding_format.as_deref() {
            None | Some("float") => Ok(false),
            Some("base64") => Ok(true),
            Some(other) => {
                let other = quoted(other);
                let message =
                    format!("`encoding_format` is `{other}`, expected `float` or `base64`");
                invalid("encoding_format", message)
            }
        }
    }

    /// Number of elements that are kept of vectors with `width` elements.
    fn kept(&self, width: u64) -> Result<usize, Error> {
        let kept = self.dimensions.unwrap_or(width);
        if !(1..=width).contains(&kept) {
            return refuse("dimensions", format!(" is {kept}, expected 1 to {width}"));
        }
        if kept < width && self.normalize == Some(false) {
            let message = "`normalize` cannot be false where `dimensions` cuts the vectors";
            return invalid("normalize", message);
        }
        Ok(kept as usize)
    }

    /// The texts of the request. An empty text is refused, as in OpenAI's API.
    fn texts(&self) -> Result<Vec<TextOrTokens>, Error> {
        let texts = texts_or_tokens(INPUT, &self.input)?;
        if texts.len() > MAX_TEXTS {
            let message = format!("{} texts, expected at most {MAX_TEXTS}", texts.len());
            return invalid(INPUT, message);
        }
        let is_empty = |text: &TextOrTokens| *text == TextOrTokens::Text(String::new());
        match texts.iter().position(is_empty) {
            None => Ok(texts),
            Some(i) => {
                let param = match self.input.is_array() {
                    true => format!("{INPUT}[{i}]"),
                    false => INPUT.to_owned(),
                };
                refuse(param, " is an empty text")
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        if self.prompt.is_some() && self.prompt_name.is_some() {
            let message = "`prompt` and `prompt_name` are mutually exclusive";
            return invalid("prompt_name", message);
        }
        if self
            .prompt
            .as_ref()
            .is_some_and(|text| text.len() > MAX_PROMPT_BYTES)
        {
            return refuse("prompt", format!(" has more than {MAX_PROMPT_BYTES} bytes"));
        }
        Ok(())
    }

    fn passages(
        &self,
        served: &ServedModel,
        texts: Vec<TextOrTokens>,
    ) -> Result<Vec<Passage>, Error> {
        let reader = PassageTokenizer::new(served, &self.truncation, INPUT)?;
        let prompt = match &self.prompt {
            Some(prompt) => prompt,
            None => {
                let name = self.prompt_name.as_deref();
                served.prompts.of(name).map_err(|why| {
                    let name = quoted(name.unwrap_or_default());
                    let message = format!("`prompt_name` is `{name}`: {why}");
                    Error::invalid_value("prompt_name", message)
                })?
            }
        };
        let adds_special = self.add_special_tokens != Some(false);
        let passage = |text: TextOrTokens| reader.single((prompt, text), adds_special, INPUT);
        texts.into_iter().map(passage).collect()
    }
}

/// Divides a vector by its Euclidean length. A zero vector stays zero.
fn normalise(vector: &mut [f32]) {
    let length: f64 = vector.iter().map(|v| f64::from(*v).powi(2)).sum();
    let length = length.sqrt().max(1e-12);
    vector
        .iter_mut()
        .for_each(|v| *v = (f64::from(*v) / length) as f32);
}
