//! `logit_bias` of a request, an object of tokens or texts or an array of pairs, and the tokens of a vocabulary that it
//! applies to.
//!
//! Invariant: a list of biases names each token once.

use std::collections::BTreeMap;

use serde::Deserialize;

use lab_base::tokenizer;

use super::input::check_strings;
use crate::http::error::{Error, invalid, refuse};

/// The bias that bans a token, whatever its logit.
const BAN: f64 = -100.0;

#[derive(Debug)]
pub(crate) enum BiasTarget {
    Token(u64),
    Text(String),
}

/// The biases of a request: an object of tokens or texts (OpenAI), or pairs of a token or text and a bias, where
/// `false` bans (llama-server).
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected an object of token ids and numbers, or an array of pairs of a token id or a string and a number"
)]
pub(crate) enum BiasList {
    Object(BTreeMap<String, Bias>),
    Pairs(Vec<(Key, Bias)>),
}

/// The first element of a pair.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Key {
    Token(u64),
    Text(String),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Bias {
    Number(f64),
    Flag(bool),
}

impl BiasList {
    pub(crate) fn list(self, name: &str) -> Result<Vec<(BiasTarget, f64)>, Error> {
        let bias = |bias: Bias| match bias {
            Bias::Number(bias) => Ok(bias),
            Bias::Flag(false) => Ok(BAN),
            Bias::Flag(true) => Err(Error::wrong_type(
                name,
                "found `true`, expected a number or false",
            )),
        };
        let of_text = |text: String| match text.parse() {
            Ok(id) => BiasTarget::Token(id),
            Err(_) => BiasTarget::Text(text),
        };
        match self {
            Self::Object(fields) => fields
                .into_iter()
                .map(|(key, value)| Ok((of_text(key), bias(value)?)))
                .collect(),
            Self::Pairs(pairs) => pairs
                .into_iter()
                .map(|(key, value)| {
                    let biased = match key {
                        Key::Token(id) => BiasTarget::Token(id),
                        Key::Text(text) => BiasTarget::Text(text),
                    };
                    Ok((biased, bias(value)?))
                })
                .collect(),
        }
    }
}

/// The biases of the tokens of a vocabulary; `tokens` returns the tokens of a text. If several biases name a token, the
/// last one applies.
pub(crate) fn token_biases(
    name: &str,
    all: &[(BiasTarget, f64)],
    n_vocab: usize,
    tokens: impl Fn(&str) -> Result<Vec<u32>, tokenizer::Error>,
) -> Result<Vec<(u32, f32)>, Error> {
    if all.len() > n_vocab {
        let message = format!("`{name}`: more biases than the {n_vocab} tokens there are");
        return invalid(name, message);
    }
    let mut by_id = BTreeMap::new();
    for (biased, bias) in all {
        if !(-100.0..=100.0).contains(bias) {
            return refuse(name, format!(": {bias} is not in -100 to 100"));
        }
        let ids = match biased {
            BiasTarget::Token(id) => vec![u32::try_from(*id).unwrap_or(u32::MAX)],
            BiasTarget::Text(text) => {
                check_strings(name, std::slice::from_ref(text))?;
                tokens(text).map_err(|error| Error::invalid_value(name, error.to_string()))?
            }
        };
        if let Some(id) = ids.iter().find(|id| **id as usize >= n_vocab) {
            return refuse(name, format!(": `{id}` is not a token id below {n_vocab}"));
        }
        let is_ban = *bias == BAN;
        let bias = if is_ban {
            f32::NEG_INFINITY
        } else {
            *bias as f32
        };
        by_id.extend(ids.into_iter().map(|id| (id, bias)));
    }
    Ok(by_id.into_iter().collect())
}
