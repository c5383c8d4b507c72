//! The conversation of a request: its messages, and the other inputs of the chat template.

use serde_json::{Map, Value};

use crate::engine::serving::Conversation;
use crate::text::calls::Dialect;

use super::error::{Error, quoted};
use super::fields::fields;
use super::tools::{Tools, check_calls, with_arguments};

/// Maximum number of messages.
const MAX_MESSAGES: usize = 16 << 10;

fields! {
    pub(super) struct Messages {
        messages: Vec<Value>,
        tools: Option<Value>,
        tool_choice: Option<Value>,
        parallel_tool_calls: Option<bool>,
        chat_template_kwargs: Option<Map<String, Value>>,
        /// How much is reasoned, for templates that let callers choose.
        reasoning_effort: Option<String>,
        /// Tokens that a block of reasoning may have.
        thinking_budget: Option<u64>,
        /// Whether the response has the reasoning (vLLM).
        include_reasoning: Option<bool>,
        /// `none` leaves reasoning in the content (llama.cpp).
        reasoning_format: Option<String>,
        /// Whether the prompt ends with the start of the assistant's message.
        add_generation_prompt: Option<bool>,
        continue_final_message: Option<bool>,
    }
}

/// The accepted values of `reasoning_effort`.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// Template variables that switch reasoning on and off.
const SWITCHES: &[&str] = &["enable_thinking", "thinking"];
/// Template variables that are set from other fields.
const OURS: &[&str] = &[
    "messages",
    "tools",
    "bos_token",
    "eos_token",
    "add_generation_prompt",
    "continue_final_message",
];

impl Messages {
    /// Checks that do not depend on the model.
    ///
    /// # Errors
    /// A field has an unaccepted value; the error names it.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.check_messages()?;
        self.tools()?;
        self.check_reasoning()?;
        if self.continue_final_message == Some(true) && self.add_generation_prompt == Some(true) {
            let message =
                "`continue_final_message` and `add_generation_prompt` cannot both be true";
            return Err(Error::value("continue_final_message", message));
        }
        Ok(())
    }

    /// The tools of the request.
    ///
    /// # Errors
    /// A tool or a choice is malformed.
    pub(super) fn tools(&self) -> Result<Tools, Error> {
        let given = |value: &'_ Option<Value>| value.clone().filter(|value| !value.is_null());
        let (tools, choice) = (given(&self.tools), given(&self.tool_choice));
        Tools::parse(tools.as_ref(), choice.as_ref(), self.parallel_tool_calls)
    }

    fn check_reasoning(&self) -> Result<(), Error> {
        let effort = self.reasoning_effort.as_deref();
        if let Some(effort) = effort.filter(|effort| !EFFORTS.contains(effort)) {
            let (found, expected) = (quoted(effort), EFFORTS.join("`, `"));
            let message = format!("`reasoning_effort` is `{found}`, expected one of `{expected}`");
            return Err(Error::value("reasoning_effort", message));
        }
        for (name, value) in self.chat_template_kwargs.iter().flatten() {
            let param = format!("chat_template_kwargs.{}", quoted(name));
            if OURS.contains(&name.as_str()) {
                let message = format!("`{param}` is not the caller's to set");
                return Err(Error::value(&param, message));
            }
            if SWITCHES.contains(&name.as_str()) && !value.is_boolean() && !value.is_null() {
                let message = format!("`{param}` is {}, expected true or false", of_json(value));
                return Err(Error::value(&param, message));
            }
        }
        Ok(())
    }

    /// Whether reasoning is allowed by both the effort and the template's switches.
    pub(super) fn lets_reason(&self) -> bool {
        let is_off = |name: &&str| {
            let kwargs = self.chat_template_kwargs.as_ref();
            kwargs.and_then(|kwargs| kwargs.get(*name)) == Some(&Value::Bool(false))
        };
        self.reasoning_effort.as_deref() != Some("none") && !SWITCHES.iter().any(is_off)
    }

    /// Whether reasoning is separated from content.
    pub(super) fn parts_reasoning(&self) -> bool {
        self.reasoning_format.as_deref() != Some("none")
    }

    /// Whether the response contains the reasoning.
    pub(super) fn shows_reasoning(&self) -> bool {
        self.include_reasoning != Some(false)
    }

    /// Maximum number of tokens of a block of reasoning.
    pub(super) fn budget(&self) -> Option<usize> {
        let budget = self.thinking_budget?;
        Some(usize::try_from(budget).unwrap_or(usize::MAX))
    }

    /// The start of the answer, if the last message is continued.
    pub(super) fn continued(&self) -> Option<&str> {
        let last = self
            .messages
            .last()
            .filter(|_| self.continue_final_message == Some(true))?;
        Some(
            last.get("content")
                .and_then(Value::as_str)
                .unwrap_or_default(),
        )
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
                    format!("`{param}` is missing or not a string"),
                ));
            }
            for name in ["reasoning_content", "reasoning", "tool_call_id"] {
                let value = fields.get(name);
                if value.is_some_and(|value| !value.is_string() && !value.is_null()) {
                    let param = format!("{param}.{name}");
                    return Err(Error::value(&param, format!("`{param}` is not a string")));
                }
            }
            if let Some(calls) = fields.get("tool_calls").filter(|calls| !calls.is_null()) {
                check_calls(&param, calls)?;
            }
            match fields.get("content") {
                None | Some(Value::Null | Value::String(_)) => {}
                Some(Value::Array(parts)) => check_parts(&param, parts)?,
                Some(_) => {
                    let param = format!("{param}.content");
                    let message = format!("`{param}` is neither a string nor an array of parts");
                    return Err(Error::value(&param, message));
                }
            }
        }
        Ok(())
    }

    /// The input of the chat template.
    pub(super) fn conversation(&self, tools: &Tools, dialect: &Dialect) -> Conversation {
        let messages = self
            .messages
            .iter()
            .map(|message| for_template(message, dialect));
        let mut kwargs = self.chat_template_kwargs.clone().unwrap_or_default();
        let mut set = |name: &str, value: Value| {
            kwargs.entry(name).or_insert(value);
        };
        match self.reasoning_effort.as_deref() {
            None => {}
            Some("none") => SWITCHES.iter().for_each(|name| set(name, false.into())),
            // Templates know three efforts.
            Some("minimal") => set("reasoning_effort", "low".into()),
            Some("xhigh" | "max") => set("reasoning_effort", "high".into()),
            Some(effort) => set("reasoning_effort", effort.into()),
        }
        Conversation {
            messages: messages.collect(),
            tools: tools.all.clone(),
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message == Some(true),
            kwargs,
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

/// A message as templates expect it: a single text as content, reasoning under each name in use, the arguments of calls
/// in the form of this template, and only roles that the template has.
fn for_template(message: &Value, dialect: &Dialect) -> Value {
    let mut message = message.clone();
    if message["role"] == "developer" && !dialect.has_developer {
        message["role"] = "system".into();
    }
    let text = |name: &str| message.get(name).filter(|value| value.is_string());
    let reasoning = text("reasoning_content").or(text("reasoning")).cloned();
    if let Some(reasoning) = reasoning {
        for name in ["reasoning_content", "reasoning", "thinking"] {
            message[name] = reasoning.clone();
        }
    }
    let has_calls = message.get("tool_calls").is_some_and(Value::is_array);
    if has_calls && message.get("content").is_none_or(Value::is_null) {
        message["content"] = "".into();
    }
    with_arguments(&mut message, dialect.takes_text);
    if let Some(parts) = message.get("content").and_then(Value::as_array) {
        let texts = parts.iter().filter_map(|part| part.get("text"));
        let text: String = texts.filter_map(Value::as_str).collect();
        message["content"] = Value::String(text);
    }
    message
}

/// The type of a JSON value, in words.
fn of_json(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
