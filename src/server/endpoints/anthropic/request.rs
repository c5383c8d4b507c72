//! Converts the fields of a message request into those of chat completions.
//!
//! JsonMap that only this shape has are checked here, so that errors name the places that the client wrote; all others
//! are passed on unchanged.

use serde_json::{Map, Value, json};

use crate::endpoints::chat_request;
use crate::http::context::RequestContext;
use crate::http::error::{Error, quoted};
use crate::request::fields::{BodyFields, FieldDoc, fields, integral};
use crate::request::json_access::{JsonMap, malformed, object_at, text_at, unsupported};
use crate::request::media::image_part;
use crate::request::object_fields::{ObjectFields, has_word, ignore_unknown};
use crate::request::parts::ContentParts;

use super::client_tools;

fields! {
    struct MessageFields prunes SHAPES {
        messages: Vec<Value>,
        system: Option<Value>,
        tools: Option<Vec<Value>>,
        tool_choice: Option<Map<String, Value>>,
        thinking: Option<Map<String, Value>>,
        stop_sequences: Option<Vec<String>>,
        max_tokens: Option<i64>,
        output_config: Option<Map<String, Value>>,
        /// The name of `output_config.format` before it had its place there.
        output_format: Option<Value>,
        /// Refused: conversations are not kept. Anthropic's clients then send them whole.
        thread: Option<Value>,
    }
}

/// Some clients put a block into the system prompt that differs with every request and is not meant for the model. In
/// the prompt it would defeat the prefix cache.
const BILLING: &str = "x-anthropic-billing-header:";

/// Blocks of the assistant that only Anthropic's services make or read.
const HOSTED: &str = "server_tool_use web_search_tool_result web_fetch_tool_result code_execution_tool_result \
    bash_code_execution_tool_result text_editor_code_execution_tool_result \
    tool_search_tool_result container_upload compaction fallback";

const BLOCKS: ObjectFields = ObjectFields {
    kinds: "text image thinking redacted_thinking tool_use tool_result",
    idle: "cache_control citations is_error caller",
    inner: &[("content", &TEXTS), ("source", &SOURCE)],
    ..ObjectFields::of("type text source thinking signature data id name input tool_use_id content")
};
const TEXTS: ObjectFields = ObjectFields {
    kinds: "text image",
    idle: "cache_control citations",
    inner: &[("source", &SOURCE)],
    ..ObjectFields::of("type text source")
};
const SOURCE: ObjectFields = ObjectFields::of("type media_type data url file_id");
const MESSAGES: ObjectFields = ObjectFields {
    inner: &[("content", &BLOCKS)],
    ..ObjectFields::of("role content")
};
const TOOLS: ObjectFields = ObjectFields {
    idle: "allowed_callers cache_control defer_loading eager_input_streaming input_examples \
        max_characters",
    ..ObjectFields::of("type name description input_schema strict")
};
const FORMAT: ObjectFields = ObjectFields::of("type schema");
const SHAPES: &[(&str, &ObjectFields)] = &[
    ("system", &TEXTS),
    ("messages", &MESSAGES),
    ("tools", &TOOLS),
    (
        "tool_choice",
        &ObjectFields::of("type name disable_parallel_tool_use"),
    ),
    (
        "thinking",
        &ObjectFields {
            idle: "display",
            ..ObjectFields::of("type budget_tokens")
        },
    ),
    (
        "output_config",
        &ObjectFields {
            inner: &[("format", &FORMAT)],
            ..ObjectFields::of("effort format")
        },
    ),
    ("output_format", &FORMAT),
];

pub(crate) fn fields() -> Vec<FieldDoc> {
    chat_request::fields_with::<MessageFields>()
}

/// The chat completion request that corresponds to a message request. `counts`: only the tokens of its prompt are
/// counted.
pub(super) fn rewritten(mut body: BodyFields, counts: bool) -> Result<BodyFields, Error> {
    let own: MessageFields = body.take()?;
    if own.thread.is_some() {
        return Err(Error::ThreadUnsupported);
    }
    if own.max_tokens.is_none() && !counts {
        return Err(Error::missing("max_tokens"));
    }
    let mut out = JsonMap::new();
    let mut messages = Vec::new();
    if let Some(system) = &own.system {
        let text = system_text(system)?;
        if !text.is_empty() {
            messages.push(json!({ "role": "system", "content": text }));
        }
    }
    if own.messages.is_empty() {
        return Err(malformed("messages", "at least one message"));
    }
    for (i, message) in own.messages.iter().enumerate() {
        add_message(&format!("messages[{i}]"), message, &mut messages)?;
    }
    // A final message of the assistant is the start of the answer.
    if messages
        .last()
        .is_some_and(|last| last["role"] == "assistant")
    {
        out.insert("continue_final_message".into(), true.into());
    }
    out.insert("messages".into(), messages.into());
    if let Some(tools) = &own.tools {
        let tools = tools.iter().enumerate();
        let tools = tools.map(|(i, tool)| one_tool(&format!("tools[{i}]"), tool));
        out.insert("tools".into(), tools.collect::<Result<_, _>>()?);
    }
    if let Some(choice) = &own.tool_choice {
        add_choice(choice, &mut out)?;
    }
    add_thinking(own.thinking.as_ref(), &mut out)?;
    add_output(
        own.output_config.as_ref(),
        own.output_format.as_ref(),
        &mut out,
    )?;
    if let Some(stops) = own.stop_sequences {
        out.insert("stop".into(), stops.into());
    }
    if let Some(most) = own.max_tokens {
        out.insert("max_tokens".into(), most.into());
    }
    let record = RequestContext::current();
    // The system prompt and the results of tools are messages of their own.
    record.rename_whole("messages", "messages");
    for (name, sent) in [
        ("stop", "stop_sequences"),
        ("thinking_budget", "thinking.budget_tokens"),
        (
            "parallel_tool_calls",
            "tool_choice.disable_parallel_tool_use",
        ),
    ] {
        if out.contains_key(name) {
            record.rename(name, sent);
        }
    }
    // What the client says of reasoning beyond Anthropic's fields holds too.
    if own.thinking.is_none() {
        out.retain(|name, _| {
            !["reasoning_effort", "include_reasoning"].contains(&name.as_str()) || !body.has(name)
        });
    }
    if let (Some(Value::Object(switches)), Some(Value::Object(given))) = (
        out.get_mut("chat_template_kwargs"),
        body.get("chat_template_kwargs"),
    ) {
        switches.extend(given.clone());
    }
    Ok(body.with(out))
}

fn system_text(system: &Value) -> Result<String, Error> {
    let parts = match system {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => {
            return Err(malformed(
                "system",
                "a string or an array of blocks of type `text`",
            ));
        }
    };
    let mut texts = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let at = format!("system[{i}]");
        let text = text_block(&at, part)?;
        if !text.starts_with(BILLING) {
            texts.push(text);
        }
    }
    Ok(texts.join("\n"))
}

fn text_block<'a>(at: &str, block: &'a Value) -> Result<&'a str, Error> {
    let fields = object_at(at, block)?;
    match text_at(at, fields, "type")? {
        "text" => text_at(at, fields, "text"),
        _ => Err(unsupported(
            &format!("{at}.type"),
            "only blocks of type `text` are served here",
        )),
    }
}

/// Adds the chat messages that a message becomes: one for each tool result, then the message itself.
fn add_message(at: &str, message: &Value, out: &mut Vec<Value>) -> Result<(), Error> {
    let fields = object_at(at, message)?;
    let role = text_at(at, fields, "role")?;
    if !["user", "assistant", "system"].contains(&role) {
        return Err(malformed(&format!("{at}.role"), "`user` or `assistant`"));
    }
    let at = format!("{at}.content");
    let blocks = match fields.get("content") {
        Some(Value::String(text)) => {
            out.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
        Some(Value::Array(blocks)) => blocks.as_slice(),
        None | Some(Value::Null) => &[],
        Some(_) => return Err(malformed(&at, "a string or an array of blocks")),
    };
    let mut own = MessageParts::default();
    let mut has_results = false;
    for (k, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{k}]");
        let fields = object_at(&at, block)?;
        match (text_at(&at, fields, "type")?, role) {
            ("thinking", "assistant") => own.reasoning.push_str(text_at(&at, fields, "thinking")?),
            // Only its author can decrypt it.
            ("redacted_thinking", "assistant") => {}
            // Another server's tool, which Anthropic called, is a tool of the conversation as the client's are.
            ("tool_use" | "mcp_tool_use", "assistant") => {
                let empty = JsonMap::new();
                let input = match fields.get("input") {
                    None | Some(Value::Null) => &empty,
                    input => object_at(&format!("{at}.input"), input)?,
                };
                own.calls.push(json!({
                    "id": text_at(&at, fields, "id")?, "type": "function",
                    "function": { "name": text_at(&at, fields, "name")?, "arguments": input },
                }));
            }
            ("tool_result", "user") | ("mcp_tool_result", "assistant") => {
                has_results = true;
                if role == "assistant" && !own.is_empty() {
                    out.push(std::mem::take(&mut own).message(role, out.len()));
                }
                let content = result_parts(&at, fields)?.into_content(out.len());
                out.push(json!({
                    "role": "tool", "tool_call_id": text_at(&at, fields, "tool_use_id")?,
                    "content": content,
                }));
            }
            // A summary of what was before it.
            ("compaction", "assistant") if fields.get("content").is_some_and(Value::is_string) => {
                own.content.push_text(text_at(&at, fields, "content")?);
            }
            (kind, "assistant") if has_word(HOSTED, kind) => RequestContext::current().ignore(&at),
            (kind, "assistant") if kind != "text" => ignore_unknown(at, None)?,
            _ => add_block(&at, fields, &mut own.content)?,
        }
    }
    if !has_results || !own.is_empty() {
        out.push(own.message(role, out.len()));
    }
    Ok(())
}

/// A message of the conversation, as far as its blocks were read.
#[derive(Default)]
struct MessageParts {
    content: ContentParts,
    reasoning: String,
    calls: Vec<Value>,
}

impl MessageParts {
    fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// The message, which is to have this index.
    fn message(self, role: &str, index: usize) -> Value {
        let content = self.content.into_content(index);
        let mut message = json!({ "role": role, "content": content });
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into();
        }
        message
    }
}

/// Adds what the model sees of a block.
fn add_block(at: &str, fields: &JsonMap, out: &mut ContentParts) -> Result<(), Error> {
    let mut body = ContentParts::default();
    match text_at(at, fields, "type")? {
        "text" => body.push_text(text_at(at, fields, "text")?),
        "image" => {
            let (part, place) = image(at, fields)?;
            out.push_medium(part, place);
            return Ok(());
        }
        "search_result" => body.extend(result_parts(at, fields)?),
        "document" => {
            let at = format!("{at}.source");
            let source = object_at(&at, fields.get("source"))?;
            match text_at(&at, source, "type")? {
                "text" => body.push_text(text_at(&at, source, "data")?),
                "content" => body.extend(result_parts(&at, source)?),
                kind => {
                    let what = format!("documents of type `{}` are not served", quoted(kind));
                    return Err(unsupported(&format!("{at}.type"), &what));
                }
            }
        }
        "tool_reference" => {
            RequestContext::current().ignore(at);
            return Ok(());
        }
        kind => {
            let what = format!("blocks of type `{}` are not served here", quoted(kind));
            return Err(unsupported(&format!("{at}.type"), &what));
        }
    }
    let heads = ["title", "source", "context"];
    let heads = heads.iter().filter_map(|name| fields.get(*name)?.as_str());
    for head in heads {
        out.push_text(head);
        out.push_text("\n");
    }
    out.extend(body);
    Ok(())
}

/// A picture as a part of a message, and the place of its source.
fn image(at: &str, fields: &JsonMap) -> Result<(Value, String), Error> {
    let at = format!("{at}.source");
    let source = object_at(&at, fields.get("source"))?;
    Ok(match text_at(&at, source, "type")? {
        "base64" => {
            let data = text_at(&at, source, "data")?;
            (
                image_part(&format!("data:;base64,{data}")),
                format!("{at}.data"),
            )
        }
        "url" => (
            image_part(text_at(&at, source, "url")?),
            format!("{at}.url"),
        ),
        kind => {
            let what = format!(
                "sources of type `{}` are not served, expected `base64` or `url`",
                quoted(kind)
            );
            return Err(unsupported(&format!("{at}.type"), &what));
        }
    })
}

/// What the model sees of a tool result, or of another object with blocks.
fn result_parts(at: &str, fields: &JsonMap) -> Result<ContentParts, Error> {
    let at = format!("{at}.content");
    let mut out = ContentParts::default();
    match fields.get("content") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => out.push_text(text),
        Some(Value::Array(parts)) => {
            for (k, part) in parts.iter().enumerate() {
                let at = format!("{at}[{k}]");
                add_block(&at, object_at(&at, part)?, &mut out)?;
            }
        }
        Some(_) => return Err(malformed(&at, "a string or an array of blocks")),
    }
    Ok(out)
}

fn one_tool(at: &str, tool: &Value) -> Result<Value, Error> {
    let fields = object_at(at, tool)?;
    let kind = fields.get("type").filter(|kind| !kind.is_null());
    let mut function = json!({ "name": text_at(at, fields, "name")? });
    match (kind.and_then(Value::as_str), fields.get("input_schema")) {
        (None | Some("custom"), Some(schema @ Value::Object(_)))
            if kind.is_none_or(Value::is_string) =>
        {
            function["parameters"] = schema.clone();
        }
        (Some("custom") | None, _) if kind.is_none_or(Value::is_string) => {
            let expected = "a JSON Schema, which is an object";
            return Err(malformed(&format!("{at}.input_schema"), expected));
        }
        (kind, _) => {
            let known = kind.and_then(client_tools::find);
            let what = "only tools that the client runs are served: with `input_schema`, `bash`, `text_editor`, `memory`";
            let (description, schema) =
                known.ok_or_else(|| unsupported(&format!("{at}.type"), what))?;
            function["description"] = description.into();
            function["parameters"] = schema;
        }
    }
    for name in ["description", "strict"] {
        if let Some(value) = fields.get(name).filter(|value| !value.is_null()) {
            function[name] = value.clone();
        }
    }
    let record = RequestContext::current();
    record.rename(format!("{at}.function"), at);
    let schema = format!("{at}.input_schema");
    record.rename(format!("{at}.function.parameters"), schema);
    Ok(json!({ "type": "function", "function": function }))
}

fn add_choice(choice: &JsonMap, out: &mut JsonMap) -> Result<(), Error> {
    const AT: &str = "tool_choice";
    let choose = match text_at(AT, choice, "type")? {
        kind @ ("auto" | "none") => kind.into(),
        "any" => "required".into(),
        "tool" => {
            let name = text_at(AT, choice, "name")?;
            RequestContext::current().rename(format!("{AT}.function"), AT);
            json!({ "type": "function", "function": { "name": name } })
        }
        _ => {
            let expected = "`auto`, `any`, `tool` or `none`";
            return Err(malformed(&format!("{AT}.type"), expected));
        }
    };
    out.insert(AT.into(), choose);
    if choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true)) {
        out.insert("parallel_tool_calls".into(), false.into());
    }
    Ok(())
}

/// Adds the fields of reasoning. As in Anthropic's API, reasoning is off unless it is requested.
fn add_thinking(thinking: Option<&JsonMap>, out: &mut JsonMap) -> Result<(), Error> {
    const AT: &str = "thinking";
    let kind = thinking
        .map(|thinking| text_at(AT, thinking, "type"))
        .transpose()?;
    let is_on = match kind {
        None | Some("disabled") => false,
        Some("enabled" | "adaptive") => true,
        Some(_) => {
            let expected = "`enabled`, `adaptive` or `disabled`";
            return Err(malformed(&format!("{AT}.type"), expected));
        }
    };
    if !is_on {
        out.insert("reasoning_effort".into(), "none".into());
        out.insert("include_reasoning".into(), false.into());
        return Ok(());
    }
    let budget = thinking.and_then(|thinking| thinking.get("budget_tokens"));
    if let Some(budget) = budget.filter(|budget| !budget.is_null()) {
        let budget = integral(budget.clone()).as_u64();
        let budget = budget
            .ok_or_else(|| malformed("thinking.budget_tokens", "a whole number, 0 or more"))?;
        out.insert("thinking_budget".into(), budget.into());
    }
    let switches = json!({ "enable_thinking": true, "thinking": true });
    out.insert("chat_template_kwargs".into(), switches);
    Ok(())
}

fn add_output(
    config: Option<&JsonMap>,
    format: Option<&Value>,
    out: &mut JsonMap,
) -> Result<(), Error> {
    let given = |name: &str| {
        let value = config.and_then(|config| config.get(name));
        value.filter(|value| !value.is_null())
    };
    if let Some(effort) = given("effort") {
        // Without reasoning, effort has no meaning.
        match out.get("reasoning_effort") {
            Some(_) => RequestContext::current().ignore("output_config.effort"),
            None => {
                out.insert("reasoning_effort".into(), effort.clone());
                RequestContext::current().rename("reasoning_effort", "output_config.effort");
            }
        }
    }
    let place = match given("format") {
        Some(_) => "output_config.format",
        None => "output_format",
    };
    let Some(format) = given("format").or(format) else {
        return Ok(());
    };
    let fields = object_at(place, format)?;
    if text_at(place, fields, "type")? != "json_schema" {
        return Err(malformed(&format!("{place}.type"), "`json_schema`"));
    }
    let schema = fields.get("schema").filter(|schema| schema.is_object());
    let schema = schema.ok_or_else(|| malformed(&format!("{place}.schema"), "a JSON Schema"))?;
    let schema = json!({ "name": "output", "schema": schema, "strict": true });
    let format = json!({ "type": "json_schema", "json_schema": schema });
    out.insert("response_format".into(), format);
    let record = RequestContext::current();
    record.rename("response_format", place);
    record.rename("response_format.json_schema", place);
    Ok(())
}
