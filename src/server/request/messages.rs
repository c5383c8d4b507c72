//! The conversation of a request: its messages, and the other inputs of the chat template.

use serde_json::{Map, Value, json};

use crate::served::{Conversation, ServedModel};
use lab_base::chat::tool_calls::ChatDialect;
use lab_core::arch::nearest;

use super::fields::fields;
use super::json_access::malformed;
use super::media::{MediaPrompt, MessageMedium, PreparedMedia, media_of};
use super::object_fields::{ObjectFields, has_word, ignore_unknown};
use super::tools::{self, Tools, check_calls, ignore_hidden, with_arguments};
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, quoted, refuse};

/// Maximum number of fields of messages that are looked up in a template.
const MAX_LOOKED_UP: usize = 256;
const MAX_MESSAGES: usize = 16 << 10;

fields! {
    pub(crate) struct Messages prunes SHAPES {
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

const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// Template variables that switch reasoning on and off.
const SWITCHES: &[&str] = &["enable_thinking", "thinking"];
/// Template variables that are set from other fields.
const RESERVED: &str =
    "messages tools bos_token eos_token add_generation_prompt continue_final_message";

/// The fields of a message of OpenAI's API, of its answers too, and those of reasoning.
const MESSAGE: &str = "annotations audio content function_call name reasoning reasoning_content refusal role \
    thinking tool_call_id tool_calls";
const ROLES: &str = "system developer user assistant tool function";
const PARTS: ObjectFields = ObjectFields {
    kinds: "text input_text output_text refusal thinking reasoning image_url input_image audio_url input_audio",
    idle: "annotations cache_control citations detail logprobs signature uuid",
    inner: &[
        ("image_url", &IMAGE),
        ("audio_url", &IMAGE),
        ("input_audio", &ObjectFields::of("data format")),
    ],
    ..ObjectFields::of("type text refusal thinking reasoning image_url audio_url input_audio")
};
const IMAGE: ObjectFields = ObjectFields {
    idle: "detail",
    ..ObjectFields::of("url")
};
const CALLS: ObjectFields = ObjectFields {
    idle: "index",
    inner: &[
        ("function", &ObjectFields::of("name arguments")),
        ("custom", &ObjectFields::of("name input")),
    ],
    ..ObjectFields::of("id type function custom")
};
/// The parts of a message that others define. Its own fields depend on the chat template, which reads them.
const INNER: ObjectFields = ObjectFields {
    inner: &[("content", &PARTS), ("tool_calls", &CALLS)],
    ..ObjectFields::of("")
};
const TOOLS: ObjectFields = ObjectFields {
    kinds: "- function custom",
    idle: "cache_control",
    inner: &[
        ("function", &FUNCTION),
        ("custom", &ObjectFields::of("name description format")),
    ],
    ..ObjectFields::of("type function custom")
};
/// transformers also describes what a function returns, which some templates show.
const FUNCTION: ObjectFields = ObjectFields::of("name description parameters strict return");
const CHOSEN: ObjectFields = ObjectFields {
    inner: &[("function", &NAMED), ("custom", &NAMED)],
    ..ObjectFields::of("type function custom")
};
const NAMED: ObjectFields = ObjectFields::of("name");
const CHOICE: ObjectFields = ObjectFields {
    inner: &[
        ("function", &NAMED),
        ("custom", &NAMED),
        ("allowed_tools", &ALLOWED),
    ],
    ..ObjectFields::of("type function custom allowed_tools")
};
const ALLOWED: ObjectFields = ObjectFields {
    inner: &[("tools", &CHOSEN)],
    ..ObjectFields::of("mode tools")
};

const SHAPES: &[(&str, &ObjectFields)] = &[
    ("messages", &INNER),
    ("tools", &TOOLS),
    ("tool_choice", &CHOICE),
];

impl Messages {
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_messages()?;
        self.tools()?;
        self.check_reasoning()?;
        if self.continue_final_message == Some(true) && self.add_generation_prompt == Some(true) {
            let message =
                "`continue_final_message` and `add_generation_prompt` cannot both be true";
            return invalid("continue_final_message", message);
        }
        Ok(())
    }

    pub(crate) fn tools(&self) -> Result<Tools, Error> {
        let (tools, choice) = (self.tools.as_ref(), self.tool_choice.as_ref());
        Tools::parse(tools, choice, self.parallel_tool_calls)
    }

    fn check_reasoning(&self) -> Result<(), Error> {
        let effort = self.reasoning_effort.as_deref();
        if let Some(effort) = effort.filter(|effort| !EFFORTS.contains(effort)) {
            let (found, expected) = (quoted(effort), EFFORTS.join("`, `"));
            let message = format!("`reasoning_effort` is `{found}`, expected one of `{expected}`");
            return invalid("reasoning_effort", message);
        }
        // Other formats are names of what is done anyway.
        let format = self.reasoning_format.as_deref();
        if format.is_some_and(|format| !["none", "auto"].contains(&format)) {
            RequestContext::current().ignore("reasoning_format");
        }
        for (name, value) in self.chat_template_kwargs.iter().flatten() {
            let param = format!("chat_template_kwargs.{}", quoted(name));
            if has_word(RESERVED, name) {
                return refuse(&param, " is not the caller's to set");
            }
            if SWITCHES.contains(&name.as_str()) && !value.is_boolean() && !value.is_null() {
                let message = format!("`{param}` is {}, expected true or false", of_json(value));
                return invalid(&param, message);
            }
        }
        Ok(())
    }

    /// Whether reasoning is allowed by both the effort and the template's switches.
    pub(crate) fn allows_reasoning(&self) -> bool {
        let is_off = |name: &&str| {
            let kwargs = self.chat_template_kwargs.as_ref();
            kwargs.and_then(|kwargs| kwargs.get(*name)) == Some(&Value::Bool(false))
        };
        self.reasoning_effort.as_deref() != Some("none") && !SWITCHES.iter().any(is_off)
    }

    pub(crate) fn separates_reasoning(&self) -> bool {
        self.reasoning_format.as_deref() != Some("none")
    }

    pub(crate) fn shows_reasoning(&self) -> bool {
        self.include_reasoning != Some(false)
    }

    pub(crate) fn reasoning_budget(&self) -> Option<usize> {
        let budget = self.thinking_budget?;
        Some(usize::try_from(budget).unwrap_or(usize::MAX))
    }

    /// The start of the answer, if the last message is continued.
    pub(crate) fn continued_text(&self) -> Option<&str> {
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
            return refuse("messages", " is empty, expected at least one message");
        }
        if self.messages.len() > MAX_MESSAGES {
            let message = format!(
                "`messages` has {} messages, expected at most {MAX_MESSAGES}",
                self.messages.len()
            );
            return invalid("messages", message);
        }
        for (i, message) in self.messages.iter().enumerate() {
            let param = format!("messages[{i}]");
            let Some(fields) = message.as_object() else {
                return refuse(&param, " is not an object");
            };
            if !fields.get("role").is_some_and(Value::is_string) {
                let param = format!("{param}.role");
                return refuse(&param, " is missing or not a string");
            }
            for name in ["reasoning_content", "reasoning", "tool_call_id"] {
                let value = fields.get(name);
                if value.is_some_and(|value| !value.is_string() && !value.is_null()) {
                    let param = format!("{param}.{name}");
                    return refuse(&param, " is not a string");
                }
            }
            if let Some(calls) = fields.get("tool_calls").filter(|calls| !calls.is_null()) {
                check_calls(&param, calls)?;
            }
            match fields.get("content") {
                None | Some(Value::Null | Value::String(_)) => {}
                Some(Value::Array(parts)) => {
                    check_parts(&param, parts, fields["role"] == "assistant")?;
                }
                Some(_) => {
                    let param = format!("{param}.content");
                    return refuse(&param, " is neither a string nor an array of parts");
                }
            }
        }
        Ok(())
    }

    /// The text of the prompt as the template renders it, and the prompt with its media.
    ///
    /// Where the template shows no media of the results of tools, they are part of the message of the user that follows.
    pub(crate) fn prompt(
        &self,
        tools: &Tools,
        served: &ServedModel,
        media: PreparedMedia,
    ) -> Result<(String, MediaPrompt), Error> {
        let mut conversation = self.conversation(tools, served)?;
        let render = |conversation: &Conversation| -> Result<_, Error> {
            let text = served.chat_text(conversation)?;
            let expanded = media.expanded(served, &text);
            let expanded = expanded.or_else(|error| refuse("messages", format!(": {error}")))?;
            Ok((text, expanded))
        };
        let rendered = render(&conversation);
        let rendered = match rendered {
            Err(_) if !media.is_empty() && move_media_of_tools(&mut conversation.messages) => {
                render(&conversation)
            }
            rendered => rendered,
        };
        let (text, expanded) = rendered?;
        let tokens = served.prompt_of(&expanded)?;
        Ok((text, media.prompt(served, "messages", tokens)?))
    }

    /// The media of the conversation, in their order.
    pub(crate) fn media(&self) -> Result<Vec<MessageMedium<'_>>, Error> {
        let mut all = Vec::new();
        for (i, message) in self.messages.iter().enumerate() {
            let parts = message["content"].as_array().into_iter().flatten();
            for (k, part) in parts.enumerate() {
                let param = format!("messages[{i}].content[{k}]");
                all.extend(MessageMedium::read(&param, part)?);
            }
        }
        Ok(all)
    }

    pub(crate) fn conversation(
        &self,
        tools: &Tools,
        served: &ServedModel,
    ) -> Result<Conversation, Error> {
        self.check_for_template(served)?;
        let dialect = &served.dialect;
        ignore_hidden(tools, &self.messages, dialect);
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
        Ok(Conversation {
            messages: messages.collect(),
            tools: tools::for_template(&tools.all, dialect),
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message == Some(true),
            kwargs,
        })
    }

    /// Checks the roles and the names of fields, which a template may add to.
    fn check_for_template(&self, served: &ServedModel) -> Result<(), Error> {
        let is_quoted = |word: &str| {
            let mentions = |quote: char| served.template_mentions(&format!("{quote}{word}{quote}"));
            mentions('\'') || mentions('"')
        };
        let reads = |name: &str| is_quoted(name) || served.template_mentions(&format!(".{name}"));
        let mut n_left = MAX_LOOKED_UP;
        for (i, message) in self.messages.iter().enumerate() {
            let role = message.get("role").and_then(Value::as_str);
            let other = role.filter(|role| !has_word(ROLES, role) && !is_quoted(role));
            if let Some(role) = other {
                let param = format!("messages[{i}].role");
                let (role, expected) = (quoted(role), "`system`, `developer`, `user`, `assistant`");
                let message = format!("`{param}` is `{role}`, expected {expected} or `tool`");
                return invalid(param, message);
            }
            let fields = message.as_object().into_iter().flatten();
            let others = fields
                .filter(|(name, value)| !has_word(MESSAGE, name) && !value.is_null())
                .take(n_left);
            for (name, _) in others {
                n_left -= 1;
                if reads(name) {
                    continue;
                }
                let near = nearest(name, MESSAGE.split(' '));
                let place = |name: &str| format!("messages[{i}].{}", quoted(name));
                ignore_unknown(place(name), near.map(place))?;
            }
        }
        Ok(())
    }
}

/// Checks the parts of a message; `has_thought`: they may be reasoning too.
fn check_parts(message: &str, parts: &[Value], has_thought: bool) -> Result<(), Error> {
    for (k, part) in parts.iter().enumerate() {
        let param = format!("{message}.content[{k}]");
        if MessageMedium::read(&param, part)?.is_some() {
            continue;
        }
        let is_reasoning = has_thought && of_thought(part);
        let Some(names) = names_of_text(part).filter(|_| is_reasoning || !of_thought(part)) else {
            let message = format!(
                "`{param}`: only parts of type `text`, `image_url`, `audio_url` and `input_audio` are served"
            );
            return Err(Error::unsupported(&param, message));
        };
        if text_of(part).is_none() {
            return Err(malformed(&format!("{param}.{}", names[0]), "a string"));
        }
    }
    Ok(())
}

fn of_thought(part: &Value) -> bool {
    part["type"] == "thinking" || part["type"] == "reasoning"
}

/// The fields that may have the text of a part of a message; `None` if it is of another kind.
fn names_of_text(part: &Value) -> Option<&'static [&'static str]> {
    Some(match part.get("type")?.as_str()? {
        "text" | "input_text" | "output_text" => &["text"],
        "refusal" => &["refusal"],
        "thinking" => &["thinking", "text"],
        "reasoning" => &["reasoning", "text"],
        _ => return None,
    })
}

fn text_of(part: &Value) -> Option<&str> {
    let mut names = names_of_text(part)?.iter();
    names.find_map(|name| part.get(*name)?.as_str())
}

/// A message as templates expect it: a single text as content, reasoning under each name in use, the arguments of calls
/// in the form of this template, only roles that the template has, and no fields that say nothing.
fn for_template(sent: &Value, dialect: &ChatDialect) -> Value {
    let has_media = |parts: &Vec<Value>| parts.iter().any(|part| media_of(part).is_some());
    let parts = sent["content"].as_array().filter(|parts| has_media(parts));
    let mut message = match (parts, sent.as_object()) {
        // Files in a message may be large: they are not copied.
        (Some(parts), Some(fields)) => {
            let fields = fields.iter().map(|(name, value)| match name.as_str() {
                "content" => (name.clone(), with_media(parts)),
                _ => (name.clone(), value.clone()),
            });
            Value::Object(fields.collect())
        }
        _ => sent.clone(),
    };
    if message["role"] == "developer" && !dialect.has_developer {
        message["role"] = "system".into();
    }
    if let Some(fields) = message.as_object_mut() {
        let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        fields.retain(|name, value| !value.is_null() && (name != "tool_calls" || !is_empty(value)));
    }
    let mut thought = String::new();
    let content = match &sent["content"] {
        Value::Array(parts) => {
            let (thoughts, texts): (Vec<_>, Vec<_>) =
                parts.iter().partition(|part| of_thought(part));
            thought = thoughts.into_iter().filter_map(text_of).collect();
            texts.into_iter().filter_map(text_of).collect()
        }
        Value::String(text) => text.clone(),
        _ => message["refusal"].as_str().unwrap_or_default().to_owned(),
    };
    if parts.is_none() {
        message["content"] = content.as_str().into();
    }
    let text = |name: &str| message.get(name).and_then(Value::as_str);
    let reasoning = text("reasoning_content").or(text("reasoning"));
    let reasoning = reasoning.or(Some(thought.as_str()).filter(|thought| !thought.is_empty()));
    if let Some(mut reasoning) = reasoning.map(str::to_owned) {
        let has_calls = message.get("tool_calls").is_some();
        if dialect.joins_reasoning && has_calls && !reasoning.is_empty() && !content.is_empty() {
            reasoning = format!("{reasoning}\n{content}");
            message["content"] = "".into();
        }
        for name in ["reasoning_content", "reasoning", "thinking"] {
            message[name] = reasoning.as_str().into();
        }
    }
    with_arguments(&mut message, dialect.takes_text);
    if dialect.needs_parts && message["content"].is_string() {
        let text = message["content"].take();
        message["content"] = json!([{ "type": "text", "text": text }]);
    }
    message
}

/// The parts of a message with media, as templates expect them.
fn with_media(parts: &[Value]) -> Value {
    let parts = parts.iter().filter(|part| !of_thought(part));
    let parts = parts.map(|part| match media_of(part) {
        Some(media) => json!({ "type": media.name() }),
        None => json!({ "type": "text", "text": text_of(part).unwrap_or_default() }),
    });
    parts.collect()
}

/// Moves the media of the results of tools into the message of the user that follows them, or into a new one. Returns whether
/// there are any.
fn move_media_of_tools(messages: &mut Value) -> bool {
    let Some(all) = messages.as_array_mut() else {
        return false;
    };
    let is_medium = |part: &Value| part["type"] != "text";
    let (mut out, mut moved): (Vec<Value>, Vec<Value>) = Default::default();
    let mut has_moved = false;
    for mut message in std::mem::take(all) {
        if message["role"] == "tool" || message["role"] == "function" {
            if let Value::Array(parts) = &mut message["content"] {
                let (media, texts): (Vec<_>, Vec<_>) = parts.drain(..).partition(is_medium);
                has_moved |= !media.is_empty();
                moved.extend(media);
                let texts = texts.iter().filter_map(|part| part["text"].as_str());
                message["content"] = texts.collect::<String>().into();
            }
        } else if !moved.is_empty() {
            let mut parts = std::mem::take(&mut moved);
            if message["role"] == "user" {
                match message["content"].take() {
                    Value::Array(own) => parts.extend(own),
                    text => parts.push(json!({ "type": "text", "text": text })),
                }
                message["content"] = parts.into();
            } else {
                out.push(json!({ "role": "user", "content": parts }));
            }
        }
        out.push(message);
    }
    if !moved.is_empty() {
        out.push(json!({ "role": "user", "content": moved }));
    }
    *all = out;
    has_moved
}

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
