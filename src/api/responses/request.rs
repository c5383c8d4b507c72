//! Converts the fields of a responses request into those of chat completions.
//!
//! Fields that only this shape has are checked here, so that errors name the places that the client wrote; all others
//! are passed on unchanged.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::api::dialogue;
use crate::api::error::{Error, quoted};
use crate::api::fields::{Body, Field, fields};
use crate::api::generation::check_top;
use crate::api::places::{object, text, unserved, wrong};
use crate::api::record::Record;

fields! {
    struct Own {
        input: Value,
        instructions: Option<String>,
        tools: Option<Vec<Value>>,
        tool_choice: Option<Value>,
        max_output_tokens: Option<u64>,
        reasoning: Option<Map<String, Value>>,
        text: Option<Map<String, Value>>,
        include: Option<Vec<String>>,
        top_logprobs: Option<u32>,
        /// Without effect: nothing is stored, which the response says.
        store: Option<bool>,
        metadata: Option<Map<String, Value>>,
        /// A conversation that is too long is refused.
        truncation: Option<String>,
        max_tool_calls: Option<u64>,
        previous_response_id: Option<Value>,
        conversation: Option<Value>,
        prompt: Option<Value>,
        background: Option<bool>,
    }
}

type Fields = Map<String, Value>;

/// The documented fields of a request.
pub(in crate::api) fn fields() -> Vec<Field> {
    let mut fields = dialogue::fields_with::<Own>();
    // The messages are made from `input`.
    fields.retain(|field| field.name != "messages");
    fields
}

/// A request rewritten as a chat completion.
pub(super) struct Rewritten {
    pub(super) body: Body,
    /// The fields that the response repeats.
    pub(super) echo: Fields,
    /// The names of the tools that take free text.
    pub(super) custom: HashSet<String>,
    /// The length of the list of most probable tokens, if log-probabilities are requested.
    pub(super) top_logprobs: Option<usize>,
}

/// Values of `include` for items and parts that only OpenAI's own services produce.
const INCLUDES: &[&str] = &[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];
const LOGPROBS: &str = "message.output_text.logprobs";

fn given<'a>(fields: &'a Fields, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// The chat completion request that corresponds to this request.
///
/// # Errors
/// A field is missing, wrong or not supported; the error names its place.
pub(super) fn rewritten(mut body: Body) -> Result<Rewritten, Error> {
    let own: Own = body.take()?;
    own.check()?;
    let mut out = Fields::new();
    let mut messages = Vec::new();
    if let Some(instructions) = &own.instructions {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    match &own.input {
        Value::String(text) => messages.push(json!({ "role": "user", "content": text })),
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                add_item(&format!("input[{i}]"), item, &mut messages)?;
            }
        }
        _ => return Err(wrong("input", "a string or an array of items")),
    }
    out.insert("messages".into(), messages.into());
    let mut custom = HashSet::new();
    let mut tools = Vec::new();
    for (i, tool) in own.tools.iter().flatten().enumerate() {
        tools.extend(one_tool(&format!("tools[{i}]"), tool, &mut custom)?);
    }
    if !tools.is_empty() {
        out.insert("tools".into(), tools.into());
    }
    if let Some(choice) = &own.tool_choice {
        out.insert("tool_choice".into(), one_choice(choice)?);
    }
    if let Some(most) = own.max_output_tokens {
        out.insert("max_completion_tokens".into(), most.into());
    }
    if let Some(effort) = own.reasoning.as_ref().and_then(|r| given(r, "effort")) {
        out.insert("reasoning_effort".into(), effort.clone());
    }
    if let Some(text) = &own.text {
        add_format(text, &mut out)?;
    }
    let top_logprobs = own.n_top_logprobs()?;
    let echo = own.echo(&body);
    Ok(Rewritten {
        body: body.with(out),
        echo,
        custom,
        top_logprobs,
    })
}

impl Own {
    fn check(&self) -> Result<(), Error> {
        let whole = "nothing is stored: send the conversation whole, in `input`";
        for (name, value) in [
            ("previous_response_id", &self.previous_response_id),
            ("conversation", &self.conversation),
        ] {
            if value.as_ref().is_some_and(|value| !value.is_null()) {
                return Err(unserved(name, whole));
            }
        }
        if self.prompt.as_ref().is_some_and(|value| !value.is_null()) {
            return Err(unserved("prompt", "there are no stored prompts"));
        }
        if self.background == Some(true) {
            return Err(unserved(
                "background",
                "a response is made while its client waits",
            ));
        }
        match self.truncation.as_deref() {
            None | Some("disabled" | "auto") => {}
            Some(_) => return Err(wrong("truncation", "`disabled` or `auto`")),
        }
        let record = Record::current();
        for (name, is_set) in [
            ("store", self.store == Some(true)),
            ("metadata", self.metadata.is_some()),
            ("truncation", self.truncation.as_deref() == Some("auto")),
            ("max_tool_calls", self.max_tool_calls.is_some()),
        ] {
            if is_set {
                record.ignore(name);
            }
        }
        for (i, name) in self.include.iter().flatten().enumerate() {
            if name != LOGPROBS && !INCLUDES.contains(&name.as_str()) {
                let param = format!("include[{i}]");
                return Err(unserved(
                    &param,
                    &format!("`{}` is not known", quoted(name)),
                ));
            }
        }
        Ok(())
    }

    /// The length of the list of most probable tokens, if log-probabilities are requested.
    fn n_top_logprobs(&self) -> Result<Option<usize>, Error> {
        let includes = self.include.iter().flatten().any(|name| name == LOGPROBS);
        if let Some(top) = self.top_logprobs {
            check_top("top_logprobs", top)?;
        }
        let top = self.top_logprobs.filter(|top| includes || *top > 0);
        Ok(top.or(includes.then_some(0)).map(|top| top as usize))
    }

    /// The fields that the response repeats, with their defaults.
    fn echo(&self, body: &Body) -> Fields {
        let number = |name: &str| body.get(name).cloned().unwrap_or_default();
        let of = |fields: &Option<Fields>, name: &str| {
            let value = fields.as_ref().and_then(|fields| fields.get(name));
            value.cloned().unwrap_or_default()
        };
        let format = match of(&self.text, "format") {
            Value::Null => json!({ "type": "text" }),
            format => format,
        };
        let echo = json!({
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata.clone().unwrap_or_default(),
            "parallel_tool_calls": body.get("parallel_tool_calls") != Some(&Value::Bool(false)),
            "previous_response_id": null,
            "reasoning": { "effort": of(&self.reasoning, "effort"), "summary": null },
            "store": false,
            "temperature": number("temperature"),
            "text": { "format": format, "verbosity": of(&self.text, "verbosity") },
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": self.tools.clone().unwrap_or_default(),
            "top_logprobs": self.top_logprobs.unwrap_or(0),
            "top_p": number("top_p"),
            "truncation": "disabled",
        });
        match echo {
            Value::Object(fields) => fields,
            _ => Fields::new(),
        }
    }
}

/// The assistant message that the current items belong to; it is added if the last message is another's.
fn assistant(messages: &mut Vec<Value>) -> &mut Value {
    if messages
        .last()
        .is_none_or(|last| last["role"] != "assistant")
    {
        messages.push(json!({ "role": "assistant", "content": "" }));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn append(message: &mut Value, field: &str, text: &str) {
    match &mut message[field] {
        Value::String(before) => before.push_str(text),
        empty => *empty = text.into(),
    }
}

/// Adds an input item to the messages. All text, reasoning and calls of the assistant between two messages of others
/// form one message.
fn add_item(at: &str, item: &Value, messages: &mut Vec<Value>) -> Result<(), Error> {
    let fields = object(at, item)?;
    match fields.get("type").map_or(Some("message"), Value::as_str) {
        Some("message") => {
            let role = text(at, fields, "role")?;
            let content = parts_text(&format!("{at}.content"), fields.get("content"))?;
            match role {
                "assistant" => append(assistant(messages), "content", &content),
                "user" | "system" | "developer" => {
                    messages.push(json!({ "role": role, "content": content }));
                }
                _ => {
                    let expected = "`user`, `assistant`, `system` or `developer`";
                    return Err(wrong(&format!("{at}.role"), expected));
                }
            }
        }
        Some("reasoning") => {
            let content = given(fields, "content").or(given(fields, "summary"));
            let content = parts_text(&format!("{at}.content"), content.or(Some(&json!([]))))?;
            if !content.is_empty() {
                append(assistant(messages), "reasoning_content", &content);
            }
        }
        Some(kind @ ("function_call" | "custom_tool_call")) => {
            let arguments = match kind {
                "function_call" => text(at, fields, "arguments")?.into(),
                _ => json!({ INPUT: text(at, fields, "input")? }),
            };
            let call = json!({
                "id": text(at, fields, "call_id")?, "type": "function",
                "function": { "name": text(at, fields, "name")?, "arguments": arguments },
            });
            let message = assistant(messages);
            match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => message["tool_calls"] = json!([call]),
            }
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let content = parts_text(&format!("{at}.output"), fields.get("output"))?;
            let id = text(at, fields, "call_id")?;
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
        }
        Some("item_reference") => {
            let what = "nothing is stored: send the item itself";
            return Err(unserved(&format!("{at}.type"), what));
        }
        kind => {
            let found = kind.map_or_else(|| "?".into(), quoted);
            let what = format!("items of type `{found}` are not served");
            return Err(unserved(&format!("{at}.type"), &what));
        }
    }
    Ok(())
}

/// The text of content parts.
fn parts_text(at: &str, content: Option<&Value>) -> Result<String, Error> {
    const KINDS: [&str; 5] = [
        "input_text",
        "output_text",
        "text",
        "summary_text",
        "reasoning_text",
    ];
    let parts = match content {
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        _ => return Err(wrong(at, "a string or an array of parts")),
    };
    let one = |(k, part): (usize, &Value)| {
        let at = format!("{at}[{k}]");
        let fields = object(&at, part)?;
        match text(&at, fields, "type")? {
            "refusal" => text(&at, fields, "refusal").map(str::to_owned),
            kind if KINDS.contains(&kind) => text(&at, fields, "text").map(str::to_owned),
            kind => {
                let what = format!("parts of type `{}` are not served", quoted(kind));
                Err(unserved(&format!("{at}.type"), &what))
            }
        }
    };
    parts.iter().enumerate().map(one).collect()
}

/// The name of the argument of a tool that takes free text.
pub(super) const INPUT: &str = "input";

/// A tool in the shape of chat completions; `None` for a tool that only OpenAI runs, which is never called here.
fn one_tool(at: &str, tool: &Value, custom: &mut HashSet<String>) -> Result<Option<Value>, Error> {
    const HOSTED: &[&str] = &[
        "web_search",
        "web_search_preview",
        "file_search",
        "code_interpreter",
        "image_generation",
        "local_shell",
        "shell",
        "mcp",
        "computer_use_preview",
        "apply_patch",
        "namespace",
        "tool_search",
    ];
    let fields = object(at, tool)?;
    let mut function = Fields::new();
    match text(at, fields, "type")? {
        "function" => {
            for name in ["name", "description", "parameters", "strict"] {
                if let Some(value) = given(fields, name) {
                    function.insert(name.into(), value.clone());
                }
            }
        }
        "custom" => {
            let name = text(at, fields, "name")?;
            custom.insert(name.to_owned());
            function.insert("name".into(), name.into());
            if let Some(description) = given(fields, "description") {
                function.insert("description".into(), description.clone());
            }
            let schema = json!({
                "type": "object", "properties": { INPUT: { "type": "string" } },
                "required": [INPUT], "additionalProperties": false,
            });
            function.insert("parameters".into(), schema);
        }
        kind if HOSTED.contains(&kind) => {
            Record::current().ignore("tools");
            return Ok(None);
        }
        kind => {
            let what = format!("tools of type `{}` are not known", quoted(kind));
            return Err(unserved(&format!("{at}.type"), &what));
        }
    }
    Ok(Some(json!({ "type": "function", "function": function })))
}

fn one_choice(choice: &Value) -> Result<Value, Error> {
    const AT: &str = "tool_choice";
    let named = |at: &str, value: &Value| {
        let fields = object(at, value)?;
        match text(at, fields, "type")? {
            "function" | "custom" => {
                let name = text(at, fields, "name")?;
                Ok(json!({ "type": "function", "function": { "name": name } }))
            }
            _ => Err(wrong(&format!("{at}.type"), "`function` or `custom`")),
        }
    };
    let fields = match choice {
        Value::Object(fields) => fields,
        other => return Ok(other.clone()),
    };
    if given(fields, "type").is_none_or(|kind| kind != "allowed_tools") {
        return named(AT, choice);
    }
    let tools = fields.get("tools").and_then(Value::as_array);
    let tools = tools.ok_or_else(|| wrong(&format!("{AT}.tools"), "an array of tools"))?;
    let tools = tools.iter().enumerate();
    let tools = tools.map(|(i, tool)| named(&format!("{AT}.tools[{i}]"), tool));
    let tools: Vec<Value> = tools.collect::<Result<_, _>>()?;
    let allowed = json!({ "mode": fields.get("mode"), "tools": tools });
    Ok(json!({ "type": "allowed_tools", "allowed_tools": allowed }))
}

/// Adds the format of the text.
fn add_format(text_fields: &Fields, out: &mut Fields) -> Result<(), Error> {
    const AT: &str = "text.format";
    if given(text_fields, "verbosity").is_some() {
        Record::current().ignore("text.verbosity");
    }
    let Some(format) = given(text_fields, "format") else {
        return Ok(());
    };
    let fields = object(AT, format)?;
    let format = match text(AT, fields, "type")? {
        "json_schema" => {
            let mut schema = fields.clone();
            schema.remove("type");
            json!({ "type": "json_schema", "json_schema": schema })
        }
        kind @ ("text" | "json_object") => json!({ "type": kind }),
        _ => {
            let expected = "`text`, `json_object` or `json_schema`";
            return Err(wrong(&format!("{AT}.type"), expected));
        }
    };
    out.insert("response_format".into(), format);
    Ok(())
}
