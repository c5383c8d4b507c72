//! Other forms of tools in chat completions: `functions`, which OpenAI had before `tools`, and tools that take free text.
//!
//! A request with them becomes one with functions as tools, and answers are written in the client's form. Not here: the
//! same tools in the shape of responses.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::responses::{INPUT, free_text, free_text_schema};
use crate::http::context::RequestContext;
use crate::http::error::{Error, refuse};
use crate::request::fields::{BodyFields, fields};
use crate::request::json_access::{JsonMap, given, malformed, object_at, text_at};
use crate::response::completion_parser::CompletionDelta;
use crate::response::output_parsing::call_json;
use crate::response::running_completions::TOOL_CALLS;

fields! {
    pub(crate) struct FunctionFields {
        /// OpenAI's field before `tools`; an answer then has `function_call`.
        functions: Option<Vec<Value>>,
        /// `none`, `auto` or the name of one of `functions`.
        function_call: Option<Value>,
    }
}

#[derive(Debug, Default)]
pub(crate) struct ToolForms {
    /// Whether an answer has `function_call` in the place of `tool_calls`.
    is_old: bool,
    /// The names of the tools that take free text.
    custom: HashSet<String>,
    /// For each completion, its open call with free text: number and arguments so far.
    open: HashMap<u32, (u32, String)>,
}

/// The request with all tools as functions, and the forms in which the client has them.
pub(crate) fn rewritten(mut body: BodyFields) -> Result<(BodyFields, ToolForms), Error> {
    let mut forms = ToolForms::default();
    let mut out = JsonMap::new();
    let older: FunctionFields = body.take()?;
    let choice = older.function_call;
    match older.functions.filter(|functions| !functions.is_empty()) {
        Some(functions) => {
            if body.has("tools") {
                return refuse("functions", " and `tools` are mutually exclusive");
            }
            forms.is_old = true;
            add_functions(&functions, choice.as_ref(), &mut out)?;
        }
        None => match choice.as_ref().map(Value::as_str) {
            None | Some(Some("none" | "auto")) => {}
            Some(_) => {
                return refuse("function_call", " needs `functions`");
            }
        },
    }
    if let Some(tools) = body.get("tools").and_then(Value::as_array) {
        let tools = tools.iter().enumerate();
        let tools = tools.map(|(i, tool)| forms.tool(&format!("tools[{i}]"), tool));
        out.insert("tools".into(), tools.collect::<Result<_, _>>()?);
    }
    if let Some(choice) = body.get("tool_choice") {
        out.insert("tool_choice".into(), named("tool_choice", choice));
    }
    if let Some(messages) = body.get("messages").and_then(Value::as_array) {
        let mut messages = messages.clone();
        let mut n_calls = 0;
        for (i, message) in messages.iter_mut().enumerate() {
            rewrite(&format!("messages[{i}]"), message, &mut n_calls);
        }
        out.insert("messages".into(), messages.into());
    }
    Ok((body.with(out), forms))
}

fn add_functions(
    functions: &[Value],
    choice: Option<&Value>,
    out: &mut JsonMap,
) -> Result<(), Error> {
    let record = RequestContext::current();
    record.rename("tools", "functions");
    let mut tools = Vec::new();
    for (i, function) in functions.iter().enumerate() {
        let at = format!("functions[{i}]");
        object_at(&at, function)?;
        record.rename(format!("tools[{i}].function"), at);
        tools.push(json!({ "type": "function", "function": function }));
    }
    out.insert("tools".into(), tools.into());
    let choice = match choice {
        None => None,
        Some(Value::String(text)) if ["none", "auto"].contains(&text.as_str()) => {
            Some(text.as_str().into())
        }
        Some(choice @ Value::Object(fields)) => {
            text_at("function_call", fields, "name")?;
            Some(json!({ "type": "function", "function": choice }))
        }
        Some(_) => {
            return Err(malformed(
                "function_call",
                "`none`, `auto` or a function's name",
            ));
        }
    };
    if let Some(choice) = choice {
        out.insert("tool_choice".into(), choice);
        record.rename("tool_choice", "function_call");
        record.rename("tool_choice.function", "function_call");
    }
    // An answer has room for one call.
    out.insert("parallel_tool_calls".into(), false.into());
    Ok(())
}

/// A choice of tools that names functions in the place of tools that take free text.
fn named(at: &str, choice: &Value) -> Value {
    let mut choice = choice.clone();
    if choice["type"] == "custom" {
        RequestContext::current().rename(format!("{at}.function"), format!("{at}.custom"));
        return json!({ "type": "function", "function": choice["custom"] });
    }
    let allowed = choice.pointer_mut("/allowed_tools/tools");
    let allowed = allowed.and_then(Value::as_array_mut).into_iter().flatten();
    for (i, tool) in allowed.enumerate() {
        *tool = named(&format!("{at}.allowed_tools.tools[{i}]"), tool);
    }
    choice
}

fn rewrite(at: &str, message: &mut Value, n_calls: &mut usize) {
    let Some(fields) = message.as_object_mut() else {
        return;
    };
    let record = RequestContext::current();
    // Templates may require ids of nine letters and digits.
    if fields.get("function_call").is_some_and(Value::is_object) {
        *n_calls += 1;
        let function = fields.remove("function_call").unwrap_or_default();
        let call =
            json!({ "id": format!("{n_calls:09}"), "type": "function", "function": function });
        fields.insert("tool_calls".into(), json!([call]));
        let sent = format!("{at}.function_call");
        record.rename(format!("{at}.tool_calls[0].function"), sent);
    }
    if fields.get("role").is_some_and(|role| role == "function") {
        fields.insert("role".into(), "tool".into());
        let id = format!("{n_calls:09}");
        fields.entry("tool_call_id").or_insert(id.into());
    }
    let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut);
    for (i, call) in calls.into_iter().flatten().enumerate() {
        if call["type"] == "custom" {
            let at = format!("{at}.tool_calls[{i}]");
            record.rename(format!("{at}.function"), format!("{at}.custom"));
            let (name, input) = (&call["custom"]["name"], &call["custom"]["input"]);
            let function = json!({ "name": name, "arguments": { INPUT: input } });
            *call = json!({ "id": call["id"], "type": "function", "function": function });
        }
    }
}

impl ToolForms {
    /// A tool as a function.
    fn tool(&mut self, at: &str, tool: &Value) -> Result<Value, Error> {
        if tool["type"] != "custom" {
            return Ok(tool.clone());
        }
        let place = format!("{at}.function");
        let at = format!("{at}.custom");
        RequestContext::current().rename(place, at.as_str());
        let own = object_at(&at, tool.get("custom"))?;
        let name = text_at(&at, own, "name")?;
        self.custom.insert(name.to_owned());
        let schema = free_text_schema(&at, own);
        let mut function = json!({ "name": name, "parameters": schema });
        if let Some(description) = given(own, "description") {
            function["description"] = description.clone();
        }
        Ok(json!({ "type": "function", "function": function }))
    }

    /// A choice of an answer in the client's form.
    pub(crate) fn rewrite_choice(&self, choice: &mut Value) {
        let calls = choice.pointer_mut("/message/tool_calls");
        for call in calls.and_then(Value::as_array_mut).into_iter().flatten() {
            let name = call["function"]["name"].as_str().unwrap_or_default();
            if self.custom.contains(name) {
                let input = call["function"]["arguments"].as_str();
                let input = free_text(input.unwrap_or_default());
                let custom = json!({ "name": name, "input": input });
                *call = json!({ "id": call["id"], "type": "custom", "custom": custom });
            }
        }
        if self.is_old && choice["message"]["tool_calls"].is_array() {
            let message = choice["message"].as_object_mut();
            let calls = message.and_then(|message| message.remove("tool_calls"));
            let calls = calls.unwrap_or_default();
            choice["message"]["function_call"] = calls[0]["function"].clone();
            if let Some(reason) = choice["finish_reason"].as_str() {
                choice["finish_reason"] = self.finish_reason(reason).into();
            }
        }
    }

    pub(crate) fn finish_reason<'a>(&self, reason: &'a str) -> &'a str {
        match reason {
            TOOL_CALLS if self.is_old => "function_call",
            reason => reason,
        }
    }

    /// The delta of a piece of a call; `None` if nothing is sent yet.
    pub(crate) fn delta(&mut self, choice: u32, piece: &CompletionDelta) -> Option<Value> {
        match piece {
            CompletionDelta::Call(_, _, name) if self.is_old => {
                Some(json!({ "function_call": { "name": name, "arguments": "" } }))
            }
            CompletionDelta::Arguments(_, text) if self.is_old => {
                Some(json!({ "function_call": { "arguments": text } }))
            }
            CompletionDelta::Call(index, id, name) if self.custom.contains(name) => {
                self.open.insert(choice, (*index, String::new()));
                let custom = json!({ "name": name, "input": "" });
                let call = json!({ "index": index, "id": id, "type": "custom", "custom": custom });
                Some(json!({ "tool_calls": [call] }))
            }
            CompletionDelta::Call(index, id, name) => {
                let mut call = call_json(id, name, "");
                call["index"] = (*index).into();
                Some(json!({ "tool_calls": [call] }))
            }
            CompletionDelta::Arguments(index, text) => match self.open.get_mut(&choice) {
                // Free text is known only when the arguments are complete.
                Some((_, arguments)) => {
                    arguments.push_str(text);
                    None
                }
                None => Some(
                    json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] }),
                ),
            },
            CompletionDelta::Content(..) | CompletionDelta::Reasoning(_) => None,
        }
    }

    /// The delta that ends an open call with free text, before another piece or the end of the completion.
    pub(crate) fn close(&mut self, choice: u32) -> Option<Value> {
        let (index, arguments) = self.open.remove(&choice)?;
        let custom = json!({ "input": free_text(&arguments) });
        Some(json!({ "tool_calls": [{ "index": index, "custom": custom }] }))
    }
}
