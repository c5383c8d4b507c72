//! Scores of classification heads: `POST /v1/rerank` (and `/rerank`), `POST /v1/score` and `POST /classify`.
//!
//! `/v1/rerank` has the shape that most services share, `/rerank` with `texts` that of TEI; `/v1/score` and `/classify`
//! have vLLM's. Not here: how texts and pairs are tokenized (`request::passages`).

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::served::ServedModel;
use lab_core::engine::PooledOutput;

use crate::Pool;
use crate::http::error::{Error, invalid, refuse};
use crate::http::json::Json;
use crate::request::fields::{FieldType, Fields, fields};
use crate::request::generation::ReportOptions;
use crate::request::input::{TextOrTokens, texts_or_tokens};
use crate::request::object_fields::ObjectFields;
use crate::request::passages::{FirstText, PassageTokenizer, TextTruncation};
use crate::response::envelope::Envelope;
use crate::response::pooled::{self, MAX_TEXTS, PooledResults};

fields! {
    pub(crate) struct RerankFields prunes SHAPES {
        model: Option<String>,
        /// What the documents are compared with.
        query: String,
        /// Texts, or objects with `text`; or `texts`.
        documents: Option<Vec<Document>>,
        /// Documents, in the shape of TEI.
        texts: Option<Vec<Document>>,
        /// Number of documents that are returned, the best ones; default: all.
        top_n: Option<u64>,
        /// Whether results have the documents.
        return_documents: Option<bool>,
        /// The same, in the shape of TEI.
        return_text: Option<bool>,
        /// Whether scores are those of the model rather than between 0 and 1.
        raw_scores: Option<bool>,
        ..truncation: TextTruncation,
    }
}

fields! {
    pub(crate) struct ScoreFields {
        model: Option<String>,
        /// The first texts: one for all pairs, or as many as there are second ones.
        text_1: OneOrMany,
        /// The second texts, one or several.
        text_2: OneOrMany,
        /// Whether scores are those of the model rather than between 0 and 1.
        raw_scores: Option<bool>,
        ..truncation: TextTruncation,
    }
}

fields! {
    pub(crate) struct ClassifyFields {
        model: Option<String>,
        /// A text, token ids, or several of either.
        input: Value,
        /// Whether the scores become probabilities; default: true.
        use_activation: Option<bool>,
        ..truncation: TextTruncation,
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or an object with `text`")]
pub(crate) enum Document {
    Plain(String),
    Object { text: String },
}

const DOCUMENT: ObjectFields = ObjectFields::of("text");
const SHAPES: &[(&str, &ObjectFields)] = &[("documents", &DOCUMENT), ("texts", &DOCUMENT)];

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl FieldType for OneOrMany {}

impl OneOrMany {
    fn all(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

impl Document {
    fn text(self) -> String {
        match self {
            Self::Plain(text) | Self::Object { text } => text,
        }
    }
}

/// Whether the scores of a model are probabilities already. It has one class, or two whose scores are the probabilities
/// of relevant and not relevant.
fn scores_probabilities(served: &ServedModel) -> Result<bool, Error> {
    let why = match &served.pooled {
        Ok(
            scores @ PooledOutput::Scores {
                are_probabilities, ..
            },
        ) if scores.scores_pairs() => return Ok(*are_probabilities),
        Ok(PooledOutput::Scores { n_classes, .. }) => {
            format!("a reranker needs 1 class, the model has {n_classes}; see `/classify`")
        }
        _ => "it has no classification head, which gives the score of a pair".into(),
    };
    Err(pooled::unsupported(served, &why))
}

/// The score of a pair. The score of a head with one class is a log-odds.
fn pair_score(values: &[f32], is_final: bool) -> f64 {
    let score = f64::from(values.first().copied().unwrap_or(0.0));
    match is_final {
        true => score,
        false => 1.0 / (1.0 + (-score).exp()),
    }
}

/// The model's scores of pairs; `first` and `second` are the fields of the texts.
async fn pairs(
    served: &ServedModel,
    truncation: &TextTruncation,
    (first, firsts): (&'static str, &[String]),
    (second, seconds): (&'static str, &[String]),
) -> Result<PooledResults, Error> {
    let passages = {
        let reader = PassageTokenizer::new(served, truncation, second)?;
        let firsts = firsts.iter().map(|text| reader.first(text, first));
        let firsts: Vec<FirstText> = firsts.collect::<Result<_, _>>()?;
        let pairs = firsts.iter().cycle().zip(seconds).enumerate();
        let passage = |(i, (one, text)): (usize, (&FirstText, &String))| {
            reader.pair(one, text, &format!("{second}[{i}]"))
        };
        pairs.map(passage).collect::<Result<_, _>>()?
    };
    pooled::results(served, passages, None, second).await
}

fn check_count(field: &str, n: usize) -> Result<(), Error> {
    if (1..=MAX_TEXTS).contains(&n) {
        return Ok(());
    }
    refuse(field, format!(" has {n} texts, expected 1 to {MAX_TEXTS}"))
}

/// The field that has the texts of `/classify` and `/pooling`.
const INPUT: &str = "input";

pub(crate) fn input_texts(input: &Value) -> Result<Vec<TextOrTokens>, Error> {
    let texts = texts_or_tokens(INPUT, input)?;
    check_count(INPUT, texts.len())?;
    Ok(texts)
}

/// The results of a model for the texts of `input`. `adds_special`: they get special tokens.
pub(crate) async fn input_results(
    served: &ServedModel,
    truncation: &TextTruncation,
    texts: Vec<TextOrTokens>,
    adds_special: bool,
) -> Result<PooledResults, Error> {
    let passages = {
        let tokenizer = PassageTokenizer::new(served, truncation, INPUT)?;
        let passage = |text| tokenizer.single(("", text), adds_special, INPUT);
        texts.into_iter().map(passage).collect::<Result<_, _>>()?
    };
    pooled::results(served, passages, None, INPUT).await
}

/// A response with a list of results, whose id starts with `prefix`.
pub(crate) fn list(
    served: &Arc<ServedModel>,
    prefix: &str,
    data: &Value,
    n_tokens: usize,
) -> Value {
    let envelope = Envelope::new(Arc::clone(served), prefix, ReportOptions::default());
    json!({
        "id": envelope.id, "object": "list", "created": envelope.created, "model": served.name,
        "data": data, "usage": usage(n_tokens),
    })
}

fn usage(n_tokens: usize) -> Value {
    json!({ "prompt_tokens": n_tokens, "total_tokens": n_tokens })
}

pub(crate) async fn rerank(
    State(pool): State<Arc<Pool>>,
    Fields(request): Fields<RerankFields>,
) -> Result<Json, Error> {
    request.truncation.check()?;
    let (field, documents, is_tei) = match (request.documents, request.texts) {
        (Some(documents), None) => ("documents", documents, false),
        (None, Some(texts)) => ("texts", texts, true),
        (Some(_), Some(_)) => {
            return invalid("texts", "`documents` and `texts` are mutually exclusive");
        }
        (None, None) => {
            return Err(Error::missing("documents"));
        }
    };
    check_count(field, documents.len())?;
    let top_n = request.top_n.unwrap_or(u64::MAX);
    if top_n == 0 {
        return refuse("top_n", " is 0, expected at least 1");
    }
    let served = pool.get_or_default(request.model.as_deref()).await?;
    let is_final = scores_probabilities(&served)? || request.raw_scores == Some(true);
    let documents: Vec<String> = documents.into_iter().map(Document::text).collect();
    let query = [request.query];
    let (first, second) = (("query", &query[..]), (field, &documents[..]));
    let results = pairs(&served, &request.truncation, first, second).await?;
    let scores = results.all.iter().map(|v| pair_score(v, is_final));
    let mut scored: Vec<(usize, f64)> = scores.enumerate().collect();
    // The sort is stable: equal scores keep the order of the documents.
    scored.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    scored.truncate(usize::try_from(top_n).unwrap_or(usize::MAX));
    let returns = request.return_documents == Some(true) || request.return_text == Some(true);
    let entries = scored.into_iter().map(|(index, score)| {
        let mut entry = match is_tei {
            true => json!({ "index": index, "score": score }),
            false => json!({ "index": index, "relevance_score": score }),
        };
        if returns {
            let text = &documents[index];
            match is_tei {
                true => entry["text"] = json!(text),
                false => entry["document"] = json!({ "text": text }),
            }
        }
        entry
    });
    let entries: Value = entries.collect();
    if is_tei {
        return Ok(Json(entries));
    }
    let id = Envelope::new(Arc::clone(&served), "rerank-", ReportOptions::default());
    Ok(Json(json!({
        "id": id.id, "object": "list", "model": served.name, "results": entries,
        "usage": usage(results.n_tokens),
    })))
}

pub(crate) async fn score(
    State(pool): State<Arc<Pool>>,
    Fields(request): Fields<ScoreFields>,
) -> Result<Json, Error> {
    request.truncation.check()?;
    let (first, second) = (request.text_1.all(), request.text_2.all());
    check_count("text_1", first.len())?;
    check_count("text_2", second.len())?;
    if first.len() != 1 && first.len() != second.len() {
        let message = format!(
            "`text_1` has {} texts, expected one or {}, as many as `text_2`",
            first.len(),
            second.len()
        );
        return invalid("text_1", message);
    }
    let served = pool.get_or_default(request.model.as_deref()).await?;
    let is_final = scores_probabilities(&served)? || request.raw_scores == Some(true);
    let (first, second) = (("text_1", &first[..]), ("text_2", &second[..]));
    let results = pairs(&served, &request.truncation, first, second).await?;
    let data = results.all.iter().enumerate().map(|(index, values)| {
        json!({ "index": index, "object": "score", "score": pair_score(values, is_final) })
    });
    let data: Value = data.collect();
    Ok(Json(list(&served, "score-", &data, results.n_tokens)))
}

pub(crate) async fn classify(
    State(pool): State<Arc<Pool>>,
    Fields(request): Fields<ClassifyFields>,
) -> Result<Json, Error> {
    request.truncation.check()?;
    let texts = input_texts(&request.input)?;
    let served = pool.get_or_default(request.model.as_deref()).await?;
    let are_probabilities = match served.pooled {
        Ok(PooledOutput::Scores {
            are_probabilities, ..
        }) => are_probabilities,
        Ok(PooledOutput::TokenScores(_)) => {
            let why = "it scores the classes of each token; see `/pooling`";
            return Err(pooled::unsupported(&served, why));
        }
        _ => {
            let why = "it has no classification head";
            return Err(pooled::unsupported(&served, why));
        }
    };
    let results = input_results(&served, &request.truncation, texts, true).await?;
    let is_raw = are_probabilities || request.use_activation == Some(false);
    let data = results.all.iter().enumerate().map(|(index, values)| {
        let probs = if is_raw {
            values.clone()
        } else {
            softmax(values)
        };
        let best = (0..probs.len()).max_by(|a, b| probs[*a].total_cmp(&probs[*b]));
        json!({
            "index": index, "label": best.map(|best| label(&served, best)),
            "probs": probs, "num_classes": probs.len(),
        })
    });
    let data: Value = data.collect();
    Ok(Json(list(&served, "classify-", &data, results.n_tokens)))
}

pub(crate) fn label(served: &ServedModel, class: usize) -> String {
    let label = served.labels.get(class).cloned();
    label.unwrap_or_else(|| format!("LABEL_{class}"))
}

/// The probabilities of classes; of a single class, the probability of its log-odds.
pub(crate) fn softmax(values: &[f32]) -> Vec<f32> {
    if let [one] = values {
        return vec![(1.0 / (1.0 + (-f64::from(*one)).exp())) as f32];
    }
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers = values.iter().map(|v| f64::from(v - most).exp());
    let total: f64 = powers.clone().sum();
    powers.map(|power| (power / total) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one() {
        let found = softmax(&[1000.0, 1000.0]);
        assert_eq!(found, [0.5, 0.5]);
        assert_eq!(softmax(&[0.0]), [0.5]);
    }
}
