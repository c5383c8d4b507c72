//! The result of pooling: `POST /pooling`, in vLLM's shape.
//!
//! The result of a model for a text is its vector, the scores of its classes, or the scores of the classes for each token.
//! The last has no endpoint of its own.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use crate::served::ServedModel;
use lab_core::engine::PooledOutput;

use super::rerank::{input_results, input_texts, label, list, softmax};
use crate::Pool;
use crate::http::error::{Error, invalid};
use crate::http::json::Json;
use crate::request::fields::{Fields, fields};
use crate::request::passages::TextTruncation;
use crate::response::pooled;

fields! {
    pub(crate) struct PoolingFields {
        model: Option<String>,
        /// A text, token ids, or several of either.
        input: Value,
        /// What is wanted: `embed`, `classify` or `token_classify`; default: what the model gives.
        task: Option<String>,
        /// Whether the scores of classes become probabilities; default: true.
        use_activation: Option<bool>,
        ..truncation: TextTruncation,
    }
}

/// The name of what a model gives, as vLLM's `task`.
fn task(pooled: PooledOutput) -> &'static str {
    match pooled {
        PooledOutput::Vector(_) => "embed",
        PooledOutput::Scores { .. } => "classify",
        PooledOutput::TokenScores(_) => "token_classify",
    }
}

pub(crate) async fn pooling(
    State(pool): State<Arc<Pool>>,
    Fields(request): Fields<PoolingFields>,
) -> Result<Json, Error> {
    request.truncation.check()?;
    let texts = input_texts(&request.input)?;
    let served = pool.get_or_default(request.model.as_deref()).await?;
    let given = match &served.pooled {
        Ok(given) => *given,
        Err(why) => return Err(pooled::unsupported(&served, why)),
    };
    if let Some(asked) = request.task.filter(|asked| asked != task(given)) {
        let message = format!(
            "`task` is `{asked}`, and `{}` is for `{}`",
            served.name,
            task(given)
        );
        return invalid("task", message);
    }
    let is_for_classes = !matches!(given, PooledOutput::Vector(_));
    let results = input_results(&served, &request.truncation, texts, is_for_classes).await?;
    let is_raw = request.use_activation == Some(false);
    let data = results.all.iter().enumerate().map(|(index, values)| {
        json!({ "index": index, "object": "pooling", "data": shown(given, values, is_raw) })
    });
    let data: Value = data.collect();
    let mut answer = list(&served, "pool-", &data, results.n_tokens);
    if let Some(labels) = labels(&served, given) {
        answer["labels"] = labels;
    }
    Ok(Json(answer))
}

fn labels(served: &ServedModel, given: PooledOutput) -> Option<Value> {
    let n_classes = match given {
        PooledOutput::Vector(_) => return None,
        PooledOutput::Scores { n_classes, .. } | PooledOutput::TokenScores(n_classes) => n_classes,
    };
    Some(
        (0..n_classes as usize)
            .map(|class| label(served, class))
            .collect(),
    )
}

/// What the model gave for a text: an array, or one for each token.
fn shown(given: PooledOutput, values: &[f32], is_raw: bool) -> Value {
    let scores = |values: &[f32]| match is_raw {
        true => json!(values),
        false => json!(softmax(values)),
    };
    match given {
        PooledOutput::Vector(_) => json!(values),
        PooledOutput::Scores {
            are_probabilities: true,
            ..
        } => json!(values),
        PooledOutput::Scores { .. } => scores(values),
        PooledOutput::TokenScores(n_classes) => {
            let tokens = values.chunks((n_classes as usize).max(1));
            tokens.map(scores).collect()
        }
    }
}
