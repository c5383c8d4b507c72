//! A conversation in a request: its messages, and what the chat template is told besides.

use serde_json::{Map, Value};

use crate::engine::serving::Conversation;

use super::error::Error;
use super::fields::fields;

/// Maximum number of messages.
const MAX_MESSAGES: usize = 16 << 10;

fields! {
    pub(super) struct Messages {
        messages: Vec<Value>,
        tools: Option<Value>,
        tool_choice: Option<Value>,
        chat_template_kwargs: Option<Map<String, Value>>,
        /// Whether the prompt ends with the start of the assistant's message.
        add_generation_prompt: Option<bool>,
        continue_final_message: Option<bool>,
    }
}

impl Messages {
    /// Checks that do not depend on the model.
    ///
    /// # Errors
    /// A field that is not accepted, by its name.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.check_messages()?;
        let is_set = |v: &&Value| v.as_array().is_none_or(|a| !a.is_empty());
        if self.tools.as_ref().filter(is_set).is_some() {
            return Err(Error::unsupported("tools", "`tools` are not served yet"));
        }
        let is_free = |choice: &Value| choice == "none" || choice == "auto";
        if self.tool_choice.as_ref().is_some_and(|c| !is_free(c)) {
            let message = "`tool_choice` is not served yet";
            return Err(Error::unsupported("tool_choice", message));
        }
        if self.continue_final_message == Some(true) && self.add_generation_prompt == Some(true) {
            let message =
                "`continue_final_message` and `add_generation_prompt` cannot both be true";
            return Err(Error::value("continue_final_message", message));
        }
        Ok(())
    }

    fn check_messages(&self) -> Result<(), Error> {
        if self.messages.is_empty() {
            let message = "`messages` is empty, expected at least one message";
            return Err(Error::value("messages", message));
        }
        if self.messages.len() > MAX_MESSAGES {
            let message = format!(
                "`messages` has {} messages, expected at most {MAX_MESSAGES}",
                self.messages.len()
            );
            return Err(Error::value("messages", message));
        }
        for (i, message) in self.messages.iter().enumerate() {
            let param = format!("messages[{i}]");
            let Some(fields) = message.as_object() else {
                return Err(Error::value(&param, format!("`{param}` is not an object")));
            };
            if !fields.get("role").is_some_and(Value::is_string) {
                let param = format!("{param}.role");
                return Err(Error::value(
                    &param,
                    format!("`{param}` is missing or no text"),
                ));
            }
            match fields.get("content") {
                None | Some(Value::Null | Value::String(_)) => {}
                Some(Value::Array(parts)) => check_parts(&param, parts)?,
                Some(_) => {
                    let param = format!("{param}.content");
                    let message = format!("`{param}` is neither text nor an array of parts");
                    return Err(Error::value(&param, message));
                }
            }
        }
        Ok(())
    }

    /// The input of the template.
    pub(super) fn conversation(&self) -> Conversation {
        let messages = self.messages.iter().map(with_plain_content).collect();
        Conversation {
            messages: Value::Array(messages),
            tools: Value::Null,
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message == Some(true),
            kwargs: self.chat_template_kwargs.clone().unwrap_or_default(),
        }
    }
}

fn check_parts(message: &str, parts: &[Value]) -> Result<(), Error> {
    for (k, part) in parts.iter().enumerate() {
        let is_text = part.get("type").and_then(Value::as_str) == Some("text");
        if !is_text || !part.get("text").is_some_and(Value::is_string) {
            let param = format!("{message}.content[{k}]");
            let message = format!("`{param}`: only parts of type `text` are served");
            return Err(Error::unsupported(&param, message));
        }
    }
    Ok(())
}

/// A message whose text parts are joined: templates expect one text.
fn with_plain_content(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(parts) = message.get("content").and_then(Value::as_array) {
        let texts = parts.iter().filter_map(|part| part.get("text"));
        let text: String = texts.filter_map(Value::as_str).collect();
        message["content"] = Value::String(text);
    }
    message
}
