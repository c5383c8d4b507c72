//! What requests for embeddings and for scores share: the model lookup, and its results per text.

use std::sync::Arc;

use crate::served::ServedModel;
use lab_core::engine::{Event, LabPlan, LabResult, Passage, Usage};

use crate::http::context::RequestContext;
use crate::http::error::Error;

/// Maximum number of texts per request, as in OpenAI's API.
pub(crate) const MAX_TEXTS: usize = 2048;

pub(crate) struct PooledResults {
    /// The vector or scores of each text.
    pub(crate) all: Vec<Vec<f32>>,
    pub(crate) labs: Vec<LabResult>,
    pub(crate) n_tokens: usize,
}

/// The error for a model that does not support the endpoint.
pub(crate) fn unsupported(served: &ServedModel, why: &str) -> Error {
    Error::Field {
        param: "model".into(),
        message: format!("`{}` is not for this endpoint: {why}", served.name),
        code: "unsupported_model",
    }
}

/// Submits texts to the engine and waits for the result of each. `field` is the field that holds them.
pub(crate) async fn results(
    served: &ServedModel,
    passages: Vec<Passage>,
    lab: Option<&Arc<LabPlan>>,
    field: &'static str,
) -> Result<PooledResults, Error> {
    let n = passages.len();
    let record = RequestContext::current();
    record.model(&served.name);
    let n_tokens = passages.iter().map(|passage| passage.tokens.len()).sum();
    record.take_tokens(&served.rates, n_tokens)?;
    let handle = served.handle.of_client(record.client_of_engine());
    let receivers = handle.submit_passages(passages, lab, record.adapter().as_deref());
    let receivers = receivers.map_err(|rejected| {
        Error::from(rejected)
            .with_trained_length(served)
            .with_prompt_field(field)
    })?;
    let (mut all, mut total) = (Vec::with_capacity(n), Usage::default());
    let mut labs = Vec::new();
    for mut events in receivers {
        let mut is_done = false;
        while let Some(event) = events.recv().await {
            record.event(&event);
            match event {
                Event::Pooled(values) => all.push(values),
                Event::Lab(result) => labs.push(*result),
                Event::Done { usage, .. } => {
                    total.prompt_tokens += usage.prompt_tokens;
                    total.cached_tokens += usage.cached_tokens;
                    record.usage(total);
                    is_done = true;
                }
                Event::Failed(failure) => return Err(failure.into()),
                // Pooling generates no text.
                Event::Prompt(_)
                | Event::Progress(_)
                | Event::Text { .. }
                | Event::Ended(_)
                | Event::DenoisingStep { .. } => {}
            }
        }
        if !is_done {
            return Err(Error::engine("the engine ended before all texts were read"));
        }
    }
    Ok(PooledResults {
        all,
        labs,
        n_tokens: total.prompt_tokens,
    })
}
