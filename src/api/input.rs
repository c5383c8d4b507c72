//! Texts in a request: a text, token ids, or several of either.

use serde_json::Value;

use crate::engine::serving::Served;

use super::error::Error;

/// A text as the client sent it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

/// The texts of a field: a text, token ids, or several of either.
///
/// # Errors
/// Another value, with its place.
pub(super) fn inputs(param: &str, value: &Value) -> Result<Vec<Input>, Error> {
    let many = match value {
        Value::String(text) => return Ok(vec![Input::Text(text.clone())]),
        Value::Array(many) if !many.is_empty() => many,
        Value::Null => return Err(Error::missing(param)),
        _ => {
            let message = "expected a text, an array of token ids, or an array of texts or of arrays of token ids";
            return Err(Error::kind(param, message));
        }
    };
    if many[0].is_number() {
        return Ok(vec![Input::Tokens(ids(param, many)?)]);
    }
    let one = |(i, value): (usize, &Value)| {
        let param = format!("{param}[{i}]");
        match value {
            Value::String(text) => Ok(Input::Text(text.clone())),
            Value::Array(tokens) => Ok(Input::Tokens(ids(&param, tokens)?)),
            _ => Err(Error::kind(
                param,
                "expected a text or an array of token ids",
            )),
        }
    };
    many.iter().enumerate().map(one).collect()
}

fn ids(param: &str, values: &[Value]) -> Result<Vec<u32>, Error> {
    let id = |(i, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| Error::kind(format!("{param}[{i}]"), "expected a token id"))
    };
    values.iter().enumerate().map(id).collect()
}

/// Checks that token ids are those of the model's vocabulary.
///
/// # Errors
/// The first that is not.
pub(super) fn check_ids(param: &str, tokens: &[u32], served: &Served) -> Result<(), Error> {
    let n_vocab = served.handle.tokenizer().vocab_len();
    match tokens.iter().find(|id| **id as usize >= n_vocab) {
        None => Ok(()),
        Some(id) => {
            let message = format!("`{param}`: {id} is not a token id below {n_vocab}");
            Err(Error::value(param, message))
        }
    }
}
