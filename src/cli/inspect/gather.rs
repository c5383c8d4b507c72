//! Gathers all findings that are possible, even if the model cannot be planned.

use super::super::Failure;
use super::super::options::{Defaults, LoadOptions};
use super::findings::Findings;
use super::planning::planned;
use crate::files::models::{self, Definitions, Opened, Source, tokenizer_of, unread_keys};
use crate::model::Options;
use crate::text::tokenizer::Tokenizer;
use crate::weights::{self, TensorType};

/// All findings that are possible.
pub(in crate::cli) fn findings(source: &Source, load: &LoadOptions) -> Result<Findings, Failure> {
    // Without `strict`, unread keys are reported and not refused.
    let definitions = Definitions {
        strict: false,
        ..load.model.opening.definitions()?
    };
    let unplanned = match load.open_with(source, &definitions) {
        Ok(opened) => return of_opened(load, opened),
        Err(error) => error,
    };
    // A file with an unknown architecture, or without tensors, can be inspected too.
    let (label, header, tokenizer) = match models::read(source, &definitions) {
        Ok(contents) => {
            let weights = &contents.weights;
            let header = (weights.metadata().clone(), weights.tensors().to_vec());
            let label = weights.label().to_owned();
            (
                label,
                header,
                contents.tokenizer().map_err(|e| e.to_string()),
            )
        }
        Err(broken) => {
            let Source::File(path) = source else {
                return Err(broken.into());
            };
            let Ok(header) = weights::gguf::header(path) else {
                return Err(broken.into());
            };
            let tokenizer = Tokenizer::from_metadata(&header.0);
            let tokenizer = tokenizer.map_err(|e| e.to_string());
            (path.display().to_string(), header, tokenizer)
        }
    };
    let why = unplanned.to_string();
    Ok(Findings::new(label, header, tokenizer, why))
}

fn of_opened(load: &LoadOptions, mut opened: Opened) -> Result<Findings, Failure> {
    load.model.check(&opened)?;
    let defaults = Defaults {
        kv_type: TensorType::F16,
        flash_attn: true,
        max_ctx: super::super::serve::MAX_CTX,
        n_batch: Options::N_BATCH,
    };
    let options = load.resolve(&opened, defaults);
    let placed = load.place(&mut opened, &options);
    let tokenizer = tokenizer_of(opened.vocabulary, &opened.weights);
    let tokenizer = tokenizer.map_err(|error| error.to_string());
    let weights = &opened.weights;
    let header = (weights.metadata().clone(), weights.tensors().to_vec());
    let label = weights.label().to_owned();
    let mut found = Findings::new(label, header, tokenizer, String::new());
    found.unread = unread_keys(&opened.plan, &found.metadata);
    let weights = (weights, opened.adapters.as_slice());
    let planned = |()| planned(opened.plan, weights, options, load.ctx, &found);
    found.planned = placed.map(planned).map_err(|error| error.to_string());
    Ok(found)
}
