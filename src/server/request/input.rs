//! The texts in a request: one text, token ids, or several of either.

use serde_json::Value;

use crate::served::ServedModel;

use crate::http::error::{Error, refuse};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TextOrTokens {
    Text(String),
    Tokens(Vec<u32>),
}

/// The texts of a field: one text, token ids, or several of either.
pub(crate) fn texts_or_tokens(param: &str, value: &Value) -> Result<Vec<TextOrTokens>, Error> {
    let many = match value {
        Value::String(text) => return Ok(vec![TextOrTokens::Text(text.clone())]),
        Value::Array(many) if !many.is_empty() => many,
        Value::Null => return Err(Error::missing(param)),
        _ => {
            let message = "expected a string, an array of token ids, or an array of strings or of arrays of token ids";
            return Err(Error::wrong_type(param, message));
        }
    };
    if many[0].is_number() {
        return Ok(vec![TextOrTokens::Tokens(ids(param, many)?)]);
    }
    let one = |(i, value): (usize, &Value)| {
        let param = format!("{param}[{i}]");
        match value {
            Value::String(text) => Ok(TextOrTokens::Text(text.clone())),
            Value::Array(tokens) => Ok(TextOrTokens::Tokens(ids(&param, tokens)?)),
            _ => Err(Error::wrong_type(
                param,
                "expected a string or an array of token ids",
            )),
        }
    };
    many.iter().enumerate().map(one).collect()
}

/// The prompts of a field in llama-server's form: a prompt is a text, token ids, or an array that mixes both; a text
/// may be an object with `prompt_string`. An array without numbers holds several prompts.
pub(crate) fn mixed_prompts(param: &str, value: &Value) -> Result<Vec<Vec<TextOrTokens>>, Error> {
    let many = match value {
        Value::Array(many) if many.iter().all(|one| !one.is_number()) => many,
        Value::Null => return Err(Error::missing(param)),
        one => return Ok(vec![sequence(param, one)?]),
    };
    if many.is_empty() {
        return refuse(param, " is empty");
    }
    let one = |(i, value): (usize, &Value)| sequence(&format!("{param}[{i}]"), value);
    many.iter().enumerate().map(one).collect()
}

fn sequence(param: &str, value: &Value) -> Result<Vec<TextOrTokens>, Error> {
    let Value::Array(parts) = value else {
        return Ok(vec![TextOrTokens::Text(text(param, value)?)]);
    };
    let mut out = Vec::new();
    for run in parts.chunk_by(|a, b| a.is_number() && b.is_number()) {
        let at = out.len();
        out.push(match run {
            [one] if !one.is_number() => TextOrTokens::Text(text(&format!("{param}[{at}]"), one)?),
            run => TextOrTokens::Tokens(ids(param, run)?),
        });
    }
    Ok(out)
}

fn text(param: &str, value: &Value) -> Result<String, Error> {
    let media = value.get("multimodal_data").and_then(Value::as_array);
    if value
        .get("multimodal_data")
        .is_some_and(|data| !data.is_null())
        && media.is_none_or(|media| !media.is_empty())
    {
        let message = "pictures and sound are not supported";
        return Err(Error::unsupported(param, format!("`{param}`: {message}")));
    }
    let found = value
        .as_str()
        .or_else(|| value.get("prompt_string")?.as_str());
    let expected = "expected a string, an array of token ids and strings, or an array of these";
    found
        .map(str::to_owned)
        .ok_or_else(|| Error::wrong_type(param, expected))
}

fn ids(param: &str, values: &[Value]) -> Result<Vec<u32>, Error> {
    let id = |(i, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| Error::wrong_type(format!("{param}[{i}]"), "expected a token id"))
    };
    values.iter().enumerate().map(id).collect()
}

pub(crate) fn check_ids(param: &str, tokens: &[u32], served: &ServedModel) -> Result<(), Error> {
    let n_vocab = served.handle.tokenizer().vocab_len();
    match tokens.iter().find(|id| **id as usize >= n_vocab) {
        None => Ok(()),
        Some(id) => refuse(param, format!(": {id} is not a token id below {n_vocab}")),
    }
}

const MAX_TEXTS: usize = 64;
const MAX_TEXT_BYTES: usize = 1024;

pub(crate) fn check_strings(name: &str, texts: &[String]) -> Result<(), Error> {
    let fault = |message: String| refuse(name, format!(": {message}"));
    if texts.len() > MAX_TEXTS {
        return fault(format!(
            "{} strings, expected at most {MAX_TEXTS}",
            texts.len()
        ));
    }
    if texts.iter().any(|text| text.len() > MAX_TEXT_BYTES) {
        return fault(format!("a string of more than {MAX_TEXT_BYTES} bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_and_tokens_in_turns_are_one_prompt() {
        let text = |text: &str| TextOrTokens::Text(text.into());
        let of = |value: Value| mixed_prompts("prompt", &value).map_err(|error| error.to_string());
        assert_eq!(of(json!("a")), Ok(vec![vec![text("a")]]));
        assert_eq!(
            of(json!([1, 2])),
            Ok(vec![vec![TextOrTokens::Tokens(vec![1, 2])]])
        );
        let mixed = vec![
            text("a"),
            TextOrTokens::Tokens(vec![1, 2]),
            text("b"),
            text("c"),
        ];
        assert_eq!(of(json!(["a", 1, 2, "b", "c"])), Ok(vec![mixed.clone()]));
        let all = json!([["a", 1, 2, "b", "c"], "a", { "prompt_string": "b" }]);
        assert_eq!(of(all), Ok(vec![mixed, vec![text("a")], vec![text("b")]]));
        let cases = json!([
            [[[1, -2]], "`prompt[0][1]`"],
            [[true, 1], "`prompt[0]`"],
            [{ "prompt_string": "a", "multimodal_data": ["x"] }, "`prompt`"],
            [["a", [1, {}]], "`prompt[1][1]`"],
        ]);
        for case in cases.as_array().expect("an array") {
            let error = of(case[0].clone()).expect_err("a fault");
            assert!(
                error.starts_with(case[1].as_str().expect("a text")),
                "{case}: {error}"
            );
        }
        assert!(of(json!([])).is_err() && of(Value::Null).is_err());
    }
}
