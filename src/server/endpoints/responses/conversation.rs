//! The conversation of a responses request: its items as messages of chat completions.
//!
//! Items that only OpenAI's services make or read are left out, and the response names them. Not here: references to
//! items of earlier responses (`state`), tools, and the other fields.

use serde_json::{Value, json};

use crate::http::context::RequestContext;
use crate::http::error::{Error, quoted};
use crate::request::json_access::{JsonMap, given, malformed, object_at, text_at, unsupported};
use crate::request::media::{SentFile, file_of, image_part};
use crate::request::object_fields::{ObjectFields, has_word, ignore_unknown};
use crate::request::parts::ContentParts;

use super::tools::{OfferedTools, TOOLS, with_text};

/// Items that only OpenAI's services make or read, and marks of its clients.
const HOSTED: &str = "web_search_call file_search_call code_interpreter_call image_generation_call computer_call \
    computer_call_output mcp_list_tools mcp_approval_request mcp_approval_response compaction \
    compaction_summary compaction_trigger context_compaction agent_message ghost_snapshot";
const PARTS: ObjectFields = ObjectFields {
    kinds: "input_text output_text text summary_text reasoning_text refusal input_image input_audio input_file",
    // The first two are in every part of an answer that comes back.
    known: "annotations logprobs type text refusal image_url input_audio file_id file_data file_url filename",
    idle: "cache_control detail",
    inner: &[("input_audio", &ObjectFields::of("data format"))],
};
/// The fields of the items that become messages, calls and results.
pub(super) const ITEMS: ObjectFields = ObjectFields {
    kinds: "- message reasoning function_call function_call_output custom_tool_call \
        custom_tool_call_output local_shell_call local_shell_call_output tool_search_call \
        tool_search_output additional_tools mcp_call item_reference",
    known: "type id status role content summary encrypted_content phase call_id name namespace \
        arguments input output error action execution tools server_label approval_request_id",
    idle: "internal_chat_message_metadata_passthrough",
    inner: &[
        ("content", &PARTS),
        ("summary", &PARTS),
        ("output", &PARTS),
        ("tools", &TOOLS),
    ],
};

const EARLIER_ITEMS: &str = "previous_response_id.items";

/// The messages of a conversation, whose `earlier` items come before those of `input`, and the tools that its items add
/// to those offered.
pub(super) fn messages(
    instructions: Option<&str>,
    earlier: &[Value],
    input: &Value,
    offered: &mut OfferedTools,
) -> Result<Vec<Value>, Error> {
    let mut messages = Vec::new();
    if let Some(instructions) = instructions {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    let text = json!([{ "role": "user", "content": input }]);
    let items = match input {
        Value::String(_) => text.as_array(),
        items => items.as_array(),
    };
    let items = items.ok_or_else(|| malformed("input", "a string or an array of items"))?;
    let places = [(EARLIER_ITEMS, earlier), ("input", items)];
    let all = || {
        places.iter().flat_map(|(place, items)| {
            let items = items.iter().enumerate();
            items.map(move |(i, item)| (format!("{place}[{i}]"), item))
        })
    };
    for (at, item) in all() {
        let is_of = |kind: &str| item["type"] == kind;
        if is_of("tool_search_output") || is_of("additional_tools") {
            offered.add_found(&format!("{at}.tools"), item.get("tools"))?;
        }
    }
    for (at, item) in all() {
        add_item(&at, item, offered, &mut messages)?;
    }
    Ok(messages)
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

/// Adds a call to the message of the assistant. Arguments are JSON text or an object.
fn add_call(messages: &mut Vec<Value>, id: &str, name: &str, arguments: Value) {
    let mut call = json!({ "id": id, "type": "function", "function": { "name": name } });
    call["function"]["arguments"] = arguments;
    let message = assistant(messages);
    match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        Some(calls) => calls.push(call),
        None => message["tool_calls"] = json!([call]),
    }
}

fn add_result(messages: &mut Vec<Value>, id: &str, content: impl Into<Value>) {
    let content = content.into();
    messages.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
}

/// The id of a call, which old items have instead.
fn call_id<'a>(at: &str, fields: &'a JsonMap) -> Result<&'a str, Error> {
    let id = given(fields, "call_id").or(given(fields, "id"));
    let id = id.and_then(Value::as_str);
    id.ok_or_else(|| malformed(&format!("{at}.call_id"), "a string"))
}

/// Adds an input item to the messages. All text, reasoning and calls of the assistant between two messages of others
/// form one message.
fn add_item(
    at: &str,
    item: &Value,
    offered: &OfferedTools,
    messages: &mut Vec<Value>,
) -> Result<(), Error> {
    let fields = object_at(at, item)?;
    match given(fields, "type").map_or(Some("message"), Value::as_str) {
        Some("message") => {
            let role = text_at(at, fields, "role")?;
            let place = format!("{at}.content");
            let content = content_parts(&place, fields.get("content"))?;
            match role {
                "assistant" => append(assistant(messages), "content", text_of(&place, &content)?),
                "user" | "system" | "developer" => {
                    let content = content.into_content(messages.len());
                    messages.push(json!({ "role": role, "content": content }));
                }
                _ => {
                    let expected = "`user`, `assistant`, `system` or `developer`";
                    return Err(malformed(&format!("{at}.role"), expected));
                }
            }
        }
        Some("reasoning") => {
            let content = given(fields, "content").or(given(fields, "summary"));
            let place = format!("{at}.content");
            let content = content_parts(&place, content)?;
            let text = text_of(&place, &content)?;
            if !text.is_empty() {
                append(assistant(messages), "reasoning_content", text);
            }
        }
        Some(kind @ ("function_call" | "custom_tool_call")) => {
            let arguments = match kind {
                "function_call" => text_at(at, fields, "arguments")?.into(),
                _ => with_text(text_at(at, fields, "input")?),
            };
            let namespace = given(fields, "namespace").and_then(Value::as_str);
            let name = offered.name(namespace, text_at(at, fields, "name")?);
            add_call(messages, text_at(at, fields, "call_id")?, &name, arguments);
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let content = content_parts(&format!("{at}.output"), fields.get("output"))?;
            let content = content.into_content(messages.len());
            add_result(messages, text_at(at, fields, "call_id")?, content);
        }
        // The client ran these, and their results are part of the conversation.
        Some("local_shell_call" | "shell_call" | "apply_patch_call") => {
            let kind = text_at(at, fields, "type")?;
            let action = given(fields, "action").or(given(fields, "operation"));
            let action = action.cloned().unwrap_or_else(|| json!({}));
            let name = kind.trim_end_matches("_call");
            add_call(messages, call_id(at, fields)?, name, action);
        }
        Some("local_shell_call_output" | "shell_call_output" | "apply_patch_call_output") => {
            add_result(
                messages,
                call_id(at, fields)?,
                result_text(given(fields, "output")),
            );
        }
        Some("tool_search_call") => {
            let arguments = given(fields, "arguments").cloned();
            let arguments = arguments.unwrap_or_else(|| json!({}));
            add_call(messages, call_id(at, fields)?, "tool_search", arguments);
        }
        Some("tool_search_output") => {
            add_result(
                messages,
                call_id(at, fields)?,
                result_text(given(fields, "tools")),
            );
        }
        Some("additional_tools") => {}
        // OpenAI called the tool of another server. The call and its result are one item.
        Some("mcp_call") => {
            let id = call_id(at, fields)?;
            let server = given(fields, "server_label").and_then(Value::as_str);
            let name = offered.name(server, text_at(at, fields, "name")?);
            let arguments = given(fields, "arguments").cloned();
            add_call(messages, id, &name, arguments.unwrap_or_else(|| json!({})));
            let result = given(fields, "output").or(given(fields, "error"));
            add_result(messages, id, result_text(result));
        }
        Some(kind) if has_word(HOSTED, kind) => RequestContext::current().ignore(at),
        Some("item_reference") => return Err(unsupported(at, "no items are stored here")),
        Some(_) => ignore_unknown(at.to_owned(), None)?,
        None => return Err(malformed(&format!("{at}.type"), "a string")),
    }
    Ok(())
}

/// A result as text: JSON, unless it is text already.
fn result_text(result: Option<&Value>) -> String {
    match result {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// The text of content, which has no media.
fn text_of<'c>(at: &str, content: &'c ContentParts) -> Result<&'c str, Error> {
    match content.is_text() {
        true => Ok(content.text()),
        false => Err(unsupported(at, "pictures and sounds are not served here")),
    }
}

fn content_parts(at: &str, content: Option<&Value>) -> Result<ContentParts, Error> {
    let mut out = ContentParts::default();
    match content {
        Some(Value::String(text)) => out.push_text(text),
        Some(Value::Array(parts)) => {
            for (k, part) in parts.iter().enumerate() {
                add_part(&format!("{at}[{k}]"), part, &mut out)?;
            }
        }
        None | Some(Value::Null) => {}
        Some(_) => return Err(malformed(at, "a string or an array of parts")),
    }
    Ok(out)
}

fn add_part(at: &str, part: &Value, out: &mut ContentParts) -> Result<(), Error> {
    const TEXTS: &str = "input_text output_text text summary_text reasoning_text";
    let fields = object_at(at, part)?;
    match text_at(at, fields, "type")? {
        "refusal" => out.push_text(text_at(at, fields, "refusal")?),
        kind if has_word(TEXTS, kind) => out.push_text(text_at(at, fields, "text")?),
        "input_image" => {
            refuse_file_id(at, fields)?;
            let url = given(fields, "image_url");
            let url = url.and_then(|url| url.as_str().or_else(|| url["url"].as_str()));
            let place = format!("{at}.image_url");
            let url = url.ok_or_else(|| malformed(&place, "an address or a data URL"))?;
            out.push_medium(image_part(url), place);
        }
        "input_audio" => out.push_medium(part.clone(), format!("{at}.input_audio.data")),
        "input_file" => {
            refuse_file_id(at, fields)?;
            if given(fields, "file_data").is_none() && given(fields, "file_url").is_some() {
                let what = "files are not fetched, only pictures (`input_image`); send `file_data`";
                return Err(unsupported(&format!("{at}.file_url"), what));
            }
            let data = text_at(at, fields, "file_data")?;
            let place = format!("{at}.file_data");
            match file_of(&place, data)? {
                SentFile::Medium(part) => out.push_medium(part, place),
                SentFile::Text(text) => {
                    let name = given(fields, "filename").and_then(Value::as_str);
                    out.push_text(&name.map_or_else(String::new, |name| format!("{name}\n")));
                    out.push_text(&text);
                }
            }
        }
        kind => {
            let what = format!("parts of type `{}` are not served", quoted(kind));
            return Err(unsupported(&format!("{at}.type"), &what));
        }
    }
    Ok(())
}

/// Refuses the id of a file, in whose place `state` has put the file where files are stored.
fn refuse_file_id(at: &str, fields: &JsonMap) -> Result<(), Error> {
    match given(fields, "file_id") {
        None => Ok(()),
        Some(_) => Err(unsupported(
            &format!("{at}.file_id"),
            "no files are stored here",
        )),
    }
}
