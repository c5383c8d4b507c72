//! Names of models in requests: which model a name means, and how strictly that is taken.

use std::sync::{Arc, PoisonError};

use crate::http::context::RequestContext;
use crate::http::error::{Error, quoted};
use lab_core::arch::nearest;

use super::{HostMode, ModelEntry, Pool};
use crate::served::DEFAULT_MODEL;

/// The tag that clients of Ollama append to a name without a tag.
pub(crate) const LATEST: &str = ":latest";

/// What the server refuses rather than serves as well as it can.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strictness {
    /// Fields of requests that are not known.
    pub fields: bool,
    /// Names that are not those of the only model.
    pub model: bool,
}

impl Pool {
    /// A model by its name, or that of one of its adapters, with its own name. An empty name is as none.
    pub(super) fn entry(&self, name: &str) -> Result<(String, Arc<ModelEntry>), Error> {
        let places = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let name = if name.is_empty() { DEFAULT_MODEL } else { name };
        let own = |name: &str| places.get_key_value(name);
        let only = places.first_key_value().filter(|_| places.len() == 1);
        let found = own(name)
            .or_else(|| own(self.config.aliases.get(name)?))
            .or_else(|| {
                let name = name.strip_suffix(LATEST)?;
                own(name).or_else(|| own(self.config.aliases.get(name)?))
            })
            .or_else(|| {
                let names = [Some(name), name.strip_suffix(LATEST)];
                let is_named =
                    |place: &ModelEntry| names.into_iter().flatten().any(|n| place.has_adapter(n));
                places.iter().find(|(_, place)| is_named(place))
            })
            .or(only
                .filter(|_| name == DEFAULT_MODEL || self.config.mode == HostMode::EngineProcess));
        match found {
            Some((name, place)) => Ok((name.clone(), Arc::clone(place))),
            None => {
                let names = places
                    .keys()
                    .chain(self.config.aliases.keys())
                    .map(String::as_str);
                Err(unknown_model(name, names))
            }
        }
    }

    pub(crate) fn own_name(&self, name: &str) -> Result<String, Error> {
        permitted(self.entry(name)?.0)
    }

    /// The own name of the model that answers a request with this name. Where one model is served, not a folder of
    /// models, it answers to every name, and the record of the request says so, unless the server is strict.
    pub(crate) fn serving_name(&self, name: &str) -> Result<String, Error> {
        let places = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let is_only =
            places.len() == 1 && self.config.collection.is_none() && !self.config.strictness.model;
        // Where names tell adapters apart, the model does not answer for one that is not loaded.
        let is_only = is_only && self.config.lora_dir.is_none();
        let only = places.keys().next().filter(|_| is_only).cloned();
        drop(places);
        match (self.entry(name), only) {
            (Err(_), Some(only)) => {
                RequestContext::current().set_substituted_model(name, &only);
                permitted(only)
            }
            (found, _) => permitted(found?.0),
        }
    }
}

/// A model by its own name, if the client of the request may use it.
fn permitted(model: String) -> Result<String, Error> {
    let client = RequestContext::current().client();
    if client.may_use(&model) {
        return Ok(model);
    }
    let (client, model) = (client.in_words(), quoted(&model));
    Err(Error::Forbidden {
        code: "model_not_allowed",
        message: format!("{client} may not use the model `{model}`"),
    })
}

fn unknown_model<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Error {
    const MAX: usize = 10;
    let names: Vec<&str> = names.collect();
    let shown = names
        .iter()
        .take(MAX)
        .map(|name| format!("`{}`", quoted(name)));
    let shown: Vec<String> = shown.collect();
    let models = match (shown.len(), names.len()) {
        (0, _) => "there are no models".to_owned(),
        (n, all) if n < all => {
            let (shown, more) = (shown.join(", "), all - n);
            format!("the models are {shown} and {more} more")
        }
        (1, _) => format!("the only model is {}", shown[0]),
        _ => format!("the models are {}", shown.join(", ")),
    };
    Error::UnknownModel {
        n_models: names.len(),
        near: nearest(name, names).map(str::to_owned),
        name: name.to_owned(),
        models,
    }
}
