//! The input of a rendering: the conversation and the variables.

use minijinja::{Error, Value};

use super::{Moment, RenderError, budget, dict};
use crate::util::wording::json_kind;

#[derive(Debug, Clone)]
pub struct RenderInput<'a> {
    /// The conversation: an array of messages.
    pub messages: &'a serde_json::Value,
    /// The tools of the request; absent or null for none.
    pub tools: Option<&'a serde_json::Value>,
    /// Documents for retrieval; absent or null for none (`kwargs` may hold them instead).
    pub documents: Option<&'a serde_json::Value>,
    /// Whether the prompt of an assistant turn is added at the end.
    pub add_generation_prompt: bool,
    /// Whether the last message is left open: text after its content is cut.
    pub continue_final_message: bool,
    /// Further variables, in order.
    pub kwargs: &'a serde_json::Map<String, serde_json::Value>,
    /// Text of the beginning-of-sequence token.
    pub bos_token: &'a str,
    /// Text of the end-of-sequence token.
    pub eos_token: &'a str,
    /// The time that `strftime_now` prints.
    pub now: Moment,
}

/// Refuses messages that are not a list of objects.
pub(super) fn check_messages(messages: &serde_json::Value) -> Result<(), RenderError> {
    let Some(all) = messages.as_array() else {
        return Err(RenderError::Messages {
            at: String::new(),
            expected: "a list of messages",
            found: json_kind(messages),
        });
    };
    if let Some(at) = all.iter().position(|message| !message.is_object()) {
        return Err(RenderError::Messages {
            found: json_kind(&all[at]),
            at: format!("[{at}]"),
            expected: "an object",
        });
    }
    Ok(())
}

/// The variables of a rendering. As in Hugging Face, `kwargs` override the tokens, but never the conversation itself.
pub(super) fn context(input: &RenderInput<'_>, messages: &serde_json::Value) -> Value {
    let now = input.now;
    let strftime = move |format: &str| {
        // No directive produces more than this multiple of its own length.
        budget::made(format.len().saturating_mul(12))?;
        Ok::<_, Error>(now.strftime(format))
    };
    let mut variables = vec![
        ("bos_token", input.bos_token.into()),
        ("eos_token", input.eos_token.into()),
        ("strftime_now", Value::from_function(strftime)),
        ("documents", ().into()),
    ];
    let kwargs = input.kwargs.iter();
    variables.extend(kwargs.map(|(name, json)| (name.as_str(), dict::from_json(json))));
    let documents = input.documents.map(dict::from_json);
    variables.extend(documents.map(|documents| ("documents", documents)));
    variables.extend([
        ("messages", dict::from_json(messages)),
        ("tools", input.tools.map_or(().into(), dict::from_json)),
        ("add_generation_prompt", input.add_generation_prompt.into()),
    ]);
    Value::from_pairs(variables)
}

/// The text that `continue_final_message` continues: the last message's content, or its last part with a text.
pub(super) fn final_text(messages: &mut serde_json::Value) -> Option<&mut String> {
    match messages.as_array_mut()?.last_mut()?.get_mut("content")? {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Array(parts) => {
            let texts = parts
                .iter_mut()
                .rev()
                .filter_map(|part| part.get_mut("text"));
            let mut texts = texts.filter_map(|text| match text {
                serde_json::Value::String(text) => Some(text),
                _ => None,
            });
            texts.next()
        }
        _ => None,
    }
}
