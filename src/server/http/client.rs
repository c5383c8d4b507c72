//! Which client sent a request, and what it may: as a server knows it by the API key, and tells its engine processes.

use std::num::NonZeroU32;

use axum::http::HeaderValue;
use serde::{Deserialize, Serialize};

use lab_core::artifacts::owner::Viewer;
use lab_core::engine::Client;

/// Digits of the digest that stands for a key without a name.
pub(super) const N_DIGITS: usize = 32;

/// The name of a client in place of its owner; none for a key without a name.
pub(crate) fn name_of(owner: &str) -> Option<&str> {
    Some(owner).filter(|owner| !owner.is_empty() && !is_digits(owner))
}

pub(super) fn is_digits(owner: &str) -> bool {
    owner.len() == N_DIGITS && owner.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The limits of an API key. What is not set is not limited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeyLimits {
    pub(crate) requests_per_minute: Option<NonZeroU32>,
    /// Tokens of prompts and completions, for each model.
    pub(crate) tokens_per_minute: Option<NonZeroU32>,
    /// Maximum part of the queue of a model, above 0 and at most 1.
    pub(crate) queue_share: Option<f64>,
    /// Maximum number of tokens of a completion.
    pub(crate) max_tokens: Option<NonZeroU32>,
    /// Names of models; one that ends in `*` stands for all that start so.
    pub(crate) models: Option<Vec<String>>,
}

/// A client with an API key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeyHolder {
    /// What stands for it in stores and in the log.
    pub(crate) owner: String,
    /// Whether it may do what concerns all clients.
    pub(crate) manages: bool,
    pub(crate) limits: KeyLimits,
}

impl KeyHolder {
    /// The client in words.
    pub(crate) fn in_words(&self) -> String {
        name_of(&self.owner)
            .map_or_else(|| "this key".to_owned(), |name| format!("the key `{name}`"))
    }

    /// Whether it may use a model.
    pub(crate) fn may_use(&self, model: &str) -> bool {
        let is_it = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => model.starts_with(start),
            None => model == pattern,
        };
        let models = self.limits.models.as_ref();
        models.is_none_or(|models| models.iter().any(is_it))
    }

    /// The client as an engine knows it.
    pub(crate) fn of_engine(&self) -> Client {
        Client {
            name: self.owner.as_str().into(),
            queue_share: self.limits.queue_share,
        }
    }

    /// Whose files it sees.
    pub(crate) fn viewer(&self) -> Viewer<'_> {
        Viewer {
            owner: &self.owner,
            sees_all: self.manages,
        }
    }

    /// The client for an engine process, which needs to know nothing of models.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let mut told = self.clone();
        told.limits.models = None;
        HeaderValue::try_from(serde_json::to_string(&told).ok()?).ok()
    }

    pub(crate) fn of_header(value: &HeaderValue) -> Option<Self> {
        serde_json::from_slice(value.as_bytes()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_process_knows_what_the_server_does() {
        let client = KeyHolder {
            owner: "a.b".into(),
            manages: true,
            limits: KeyLimits {
                tokens_per_minute: NonZeroU32::new(5),
                queue_share: Some(0.25),
                ..KeyLimits::default()
            },
        };
        let header = client.header().expect("plain text");
        assert_eq!(KeyHolder::of_header(&header), Some(client));
        assert_eq!(KeyHolder::of_header(&HeaderValue::from_static("x")), None);
    }

    #[test]
    fn models_are_names_or_how_names_start() {
        let with = |models: &[&str]| KeyHolder {
            limits: KeyLimits {
                models: Some(models.iter().map(|name| (*name).to_owned()).collect()),
                ..KeyLimits::default()
            },
            ..KeyHolder::default()
        };
        assert!(KeyHolder::default().may_use("m"));
        assert!(with(&["m"]).may_use("m") && !with(&["m"]).may_use("m2"));
        assert!(with(&["x", "m*"]).may_use("m2") && !with(&["x", "m*"]).may_use("n"));
        assert!(!with(&[]).may_use("m") && with(&["*"]).may_use("m"));
    }
}
