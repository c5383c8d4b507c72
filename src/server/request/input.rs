//! The texts in a request: one text, token ids, or several of either.

use serde_json::Value;

use crate::served::ServedModel;

use super::json_access::malformed;
use super::media::{MessageMedium, PreparedMedia};
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

/// What stands in a prompt of llama-server's form for a medium.
pub(crate) const MEDIA_MARKER: &str = "<__media__>";

/// A prompt in llama-server's form.
#[derive(Debug)]
pub(crate) struct MixedPrompt<'a> {
    /// Texts and token ids in turns.
    pub(crate) parts: Vec<TextOrTokens>,
    /// The media of its only text, which has a marker for each.
    pub(crate) media: Vec<MessageMedium<'a>>,
}

/// The prompts of a field in llama-server's form: a prompt is a text, token ids, or an array that mixes both; a text
/// may be an object with `prompt_string`, a whole prompt also with `multimodal_data`. An array without numbers holds several prompts.
pub(crate) fn mixed_prompts<'a>(
    param: &str,
    value: &'a Value,
) -> Result<Vec<MixedPrompt<'a>>, Error> {
    let many = match value {
        Value::Array(many) if many.iter().all(|one| !one.is_number()) => many,
        Value::Null => return Err(Error::missing(param)),
        one => return Ok(vec![sequence(param, one)?]),
    };
    if many.is_empty() {
        return refuse(param, " is empty");
    }
    let one = |(i, value): (usize, &'a Value)| sequence(&format!("{param}[{i}]"), value);
    many.iter().enumerate().map(one).collect()
}

fn sequence<'a>(param: &str, value: &'a Value) -> Result<MixedPrompt<'a>, Error> {
    let Value::Array(parts) = value else {
        return Ok(MixedPrompt {
            parts: vec![TextOrTokens::Text(text(param, value)?)],
            media: media(param, value)?,
        });
    };
    let mut out = Vec::new();
    for run in parts.chunk_by(|a, b| a.is_number() && b.is_number()) {
        let at = out.len();
        out.push(match run {
            [one] if !one.is_number() => {
                let param = format!("{param}[{at}]");
                if !media(&param, one)?.is_empty() {
                    let param = format!("{param}.multimodal_data");
                    return refuse(param, " is not possible beside token ids or other texts");
                }
                TextOrTokens::Text(text(&param, one)?)
            }
            run => TextOrTokens::Tokens(ids(param, run)?),
        });
    }
    Ok(MixedPrompt {
        parts: out,
        media: Vec::new(),
    })
}

/// The media of a prompt that is an object.
fn media<'a>(param: &str, value: &'a Value) -> Result<Vec<MessageMedium<'a>>, Error> {
    let param = format!("{param}.multimodal_data");
    let all = match value.get("multimodal_data") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(all) => all
            .as_array()
            .ok_or_else(|| malformed(&param, "an array"))?,
    };
    let one = |(i, data): (usize, &'a Value)| {
        let param = format!("{param}[{i}]");
        let data = data
            .as_str()
            .ok_or_else(|| malformed(&param, "a text in base64"))?;
        Ok(MessageMedium::of_base64(param, data))
    };
    all.iter().enumerate().map(one).collect()
}

/// The text of a prompt in which each marker is what stands for its medium in prompts of the model.
pub(crate) fn with_markers(
    param: &str,
    text: &str,
    media: &PreparedMedia,
    served: &ServedModel,
) -> Result<String, Error> {
    let (mut out, mut rest) = (String::new(), text);
    let found = text.matches(MEDIA_MARKER).count();
    let markers: Vec<&str> = media.markers(served).collect();
    if found != markers.len() {
        let n = markers.len();
        return refuse(
            param,
            format!(" has {found} markers `{MEDIA_MARKER}`, expected {n}: one for each medium"),
        );
    }
    for marker in markers {
        let Some((before, after)) = rest.split_once(MEDIA_MARKER) else {
            break;
        };
        out.extend([before, marker]);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn text(param: &str, value: &Value) -> Result<String, Error> {
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
        let of = |value: Value| {
            let prompts = mixed_prompts("prompt", &value).map_err(|error| error.to_string())?;
            let prompts = prompts.into_iter().map(|prompt| prompt.parts);
            Ok::<_, String>(prompts.collect::<Vec<_>>())
        };
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
            [{ "prompt_string": "a", "multimodal_data": "x" }, "`prompt.multimodal_data`"],
            [{ "prompt_string": "a", "multimodal_data": [1] }, "`prompt.multimodal_data[0]`"],
            [["a", 1, { "prompt_string": "a", "multimodal_data": ["x"] }], "`prompt[2].multimodal_data`"],
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
        let value = json!([{ "prompt_string": "a", "multimodal_data": ["eA==", "eQ=="] }, "b"]);
        let prompts = mixed_prompts("prompt", &value).expect("two prompts");
        let n_media = prompts.iter().map(|prompt| prompt.media.len());
        assert_eq!(n_media.collect::<Vec<_>>(), [2, 0]);
    }
}
