//! The tools of a request, the choice of tools that must be called, and the calls in a conversation.
//!
//! Everything is checked before a template reads it. Not here: how calls are written and parsed.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use lab_base::chat::template::keep_long_integers;
use lab_base::chat::tool_calls::{ChatDialect, Tool, completed_arguments};

use super::json_access::{malformed, object_at};
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, quoted, refuse};

const MAX_TOOLS: usize = 256;
/// Maximum size of the name of a tool, in bytes.
const MAX_NAME: usize = 64;

#[derive(Clone, Debug, PartialEq)]
enum ToolChoice {
    None,
    Auto,
    Required,
}

#[derive(Clone, Debug)]
pub(crate) struct Tools {
    /// The tools as the client sent them, for the template.
    pub(crate) all: Value,
    pub(crate) callable: Arc<Vec<Tool>>,
    choice: ToolChoice,
    /// Whether arguments must match their schemas even if no call is required.
    pub(crate) is_strict: bool,
    /// Whether the answer may have several calls.
    pub(crate) many: bool,
}

impl Tools {
    pub(crate) fn parse(
        tools: Option<&Value>,
        choice: Option<&Value>,
        many: Option<bool>,
    ) -> Result<Self, Error> {
        let (all, is_strict) = match tools {
            None => (Vec::new(), false),
            Some(tools) => offered(tools)?,
        };
        let (choice, names) = chosen(choice, !all.is_empty())?;
        let mut callable = all;
        if let Some(names) = names {
            for (name, param) in &names {
                if !callable.iter().any(|tool| tool.name == *name) {
                    let message =
                        format!("`{param}`: there is no tool `{}` in `tools`", quoted(name));
                    return invalid("tool_choice", message);
                }
            }
            callable.retain(|tool| names.iter().any(|(name, _)| *name == tool.name));
        }
        if choice == ToolChoice::None {
            callable.clear();
        }
        let mut all = tools.filter(|_| choice != ToolChoice::None).cloned();
        for tool in all.iter_mut().filter_map(Value::as_array_mut).flatten() {
            tool["type"] = "function".into();
        }
        Ok(Self {
            all: all.filter(|all| all != &json!([])).unwrap_or_default(),
            callable: Arc::new(callable),
            choice,
            is_strict,
            many: many.unwrap_or(true),
        })
    }

    pub(crate) fn must_call(&self) -> bool {
        self.choice == ToolChoice::Required
    }
}

/// Whether an object with a function says that it is one, or says nothing of its type.
fn is_function(fields: &Map<String, Value>) -> bool {
    match fields.get("type") {
        None | Some(Value::Null) => fields.get("function").is_some_and(Value::is_object),
        Some(kind) => kind == "function",
    }
}

fn offered(tools: &Value) -> Result<(Vec<Tool>, bool), Error> {
    let all = tools
        .as_array()
        .ok_or_else(|| malformed("tools", "an array"))?;
    if all.len() > MAX_TOOLS {
        let message = format!(
            "`tools` has {} tools, expected at most {MAX_TOOLS}",
            all.len()
        );
        return invalid("tools", message);
    }
    let (mut out, mut is_strict) = (Vec::<Tool>::new(), false);
    for (i, tool) in all.iter().enumerate() {
        let at = format!("tools[{i}]");
        let fields = object_at(&at, Some(tool))?;
        if !is_function(fields) {
            let param = format!("{at}.type");
            let message = format!("`{param}`: only tools of type `function` are served");
            return Err(Error::unsupported(&param, message));
        }
        let at = format!("{at}.function");
        let function = object_at(&at, fields.get("function"))?;
        let name = name(&format!("{at}.name"), function.get("name"))?;
        if out.iter().any(|tool| tool.name == name) {
            let param = format!("{at}.name");
            return refuse(&param, format!(": another tool is called `{name}`"));
        }
        let given = |key: &str| function.get(key).filter(|value| !value.is_null());
        let parameters = match given("parameters") {
            Some(parameters) if !parameters.is_object() => {
                return Err(malformed(
                    &format!("{at}.parameters"),
                    "a JSON Schema, which is an object",
                ));
            }
            parameters => parameters.cloned(),
        };
        match given("strict") {
            None => {}
            Some(Value::Bool(strict)) => is_strict |= strict,
            Some(_) => return Err(malformed(&format!("{at}.strict"), "true or false")),
        }
        if given("description").is_some_and(|text| !text.is_string()) {
            return Err(malformed(&format!("{at}.description"), "a string"));
        }
        out.push(Tool {
            name,
            parameters: parameters.unwrap_or_else(|| json!({ "type": "object", "properties": {} })),
        });
    }
    Ok((out, is_strict))
}

fn name(param: &str, value: Option<&Value>) -> Result<String, Error> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let name = value.and_then(Value::as_str);
    let name =
        name.filter(|name| (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_part));
    name.map(str::to_owned).ok_or_else(|| {
        malformed(
            param,
            "1 to 64 characters, each a letter, a digit, `_`, `-` or `.`",
        )
    })
}

/// Names of tools, with their places in the request.
type NamedTools = Vec<(String, String)>;

/// The choice, and the names of the callable tools if it restricts them.
fn chosen(
    choice: Option<&Value>,
    has_tools: bool,
) -> Result<(ToolChoice, Option<NamedTools>), Error> {
    const PARAM: &str = "tool_choice";
    let expected = "`none`, `auto`, `required`, a tool or `allowed_tools`";
    let needs_tools = |choice: ToolChoice| match has_tools {
        true => Ok(choice),
        false => invalid(PARAM, "`tool_choice` needs `tools`"),
    };
    let mode = |param: &str, value: Option<&Value>| match value.and_then(Value::as_str) {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("required") => needs_tools(ToolChoice::Required),
        _ => Err(malformed(param, "`auto` or `required`")),
    };
    let fields = match choice {
        None => return Ok((ToolChoice::Auto, None)),
        Some(Value::String(text)) if text == "none" => return Ok((ToolChoice::None, None)),
        Some(Value::String(text)) if ["auto", "required"].contains(&text.as_str()) => {
            return Ok((mode(PARAM, choice)?, None));
        }
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(malformed(PARAM, expected)),
    };
    let tool = |at: &str, fields: &Map<String, Value>| {
        let at = format!("{at}.function");
        let function = object_at(&at, fields.get("function"))?;
        let param = format!("{at}.name");
        let name = name(&param, function.get("name"))?;
        Ok::<_, Error>((name, param))
    };
    match fields.get("type").and_then(Value::as_str) {
        _ if is_function(fields) => {
            let named = tool(PARAM, fields)?;
            Ok((needs_tools(ToolChoice::Required)?, Some(vec![named])))
        }
        Some("allowed_tools") => {
            let at = format!("{PARAM}.allowed_tools");
            let allowed = object_at(&at, fields.get("allowed_tools"))?;
            let choice = mode(&format!("{at}.mode"), allowed.get("mode"))?;
            let at = format!("{at}.tools");
            let tools = allowed.get("tools").and_then(Value::as_array);
            let tools = tools.filter(|all| (1..=MAX_TOOLS).contains(&all.len()));
            let tools = tools.ok_or_else(|| malformed(&at, "an array of 1 to 256 tools"))?;
            let names = tools.iter().enumerate().map(|(i, own)| {
                let at = format!("{at}[{i}]");
                tool(&at, object_at(&at, Some(own))?)
            });
            Ok((choice, Some(names.collect::<Result<_, _>>()?)))
        }
        _ => Err(malformed(
            &format!("{PARAM}.type"),
            "`function` or `allowed_tools`",
        )),
    }
}

/// Checks the calls of a message; `at` is the place of the message.
pub(crate) fn check_calls(at: &str, calls: &Value) -> Result<(), Error> {
    let at = format!("{at}.tool_calls");
    let all = calls.as_array().ok_or_else(|| malformed(&at, "an array"))?;
    for (i, call) in all.iter().enumerate() {
        let at = format!("{at}[{i}]");
        let fields = object_at(&at, Some(call))?;
        let kind = fields.get("type").filter(|kind| !kind.is_null());
        if kind.is_some_and(|kind| kind != "function") {
            return Err(malformed(&format!("{at}.type"), "`function`"));
        }
        if fields
            .get("id")
            .is_some_and(|id| !id.is_string() && !id.is_null())
        {
            return Err(malformed(&format!("{at}.id"), "a string"));
        }
        let at = format!("{at}.function");
        let function = object_at(&at, fields.get("function"))?;
        let has_name = function
            .get("name")
            .and_then(Value::as_str)
            .is_some_and(|name| !name.is_empty());
        if !has_name {
            return Err(malformed(&format!("{at}.name"), "the name of a tool"));
        }
        let at = format!("{at}.arguments");
        match function.get("arguments") {
            None | Some(Value::Null | Value::Object(_)) => {}
            // A call that was cut off has no valid JSON.
            Some(Value::String(_)) => {}
            Some(_) => return Err(malformed(&at, "a string with a JSON object")),
        }
    }
    Ok(())
}

/// Converts the arguments of a message's calls to the form that the template takes. Of arguments that are not JSON, a
/// template that takes objects gets what can be read.
pub(crate) fn with_arguments(message: &mut Value, takes_text: bool) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
            continue;
        };
        let arguments = function.get("arguments").cloned().unwrap_or_default();
        let object = match &arguments {
            Value::String(text) => read(text),
            Value::Null => Some(json!({})),
            object => Some(object.clone()),
        };
        let arguments = match (takes_text, object, arguments) {
            (true, None, text) => text,
            (true, Some(object), _) => Value::String(object.to_string()),
            (false, Some(object), _) => object,
            (false, None, text) => {
                RequestContext::current().ignore("messages.tool_calls.function.arguments");
                let text = completed_arguments(text.as_str().unwrap_or_default());
                read(&text).unwrap_or_else(|| json!({}))
            }
        };
        function.insert("arguments".into(), arguments);
        call["type"] = "function".into();
    }
}

/// Arguments as an object; `None` if they are not one. Some clients write an empty text for no arguments.
fn read(arguments: &str) -> Option<Value> {
    match arguments.trim() {
        "" => Some(json!({})),
        text => {
            let object = serde_json::from_str(&keep_long_integers(text)).ok();
            object.filter(Value::is_object)
        }
    }
}

/// Names what the template of a model does not show of tools as fields without effect: the tools, or calls and results
/// in the conversation. Required calls are enforced all the same, by a grammar.
pub(crate) fn ignore_hidden(tools: &Tools, messages: &[Value], dialect: &ChatDialect) {
    let record = RequestContext::current();
    if !tools.all.is_null() && !dialect.shows_tools {
        record.ignore("tools");
    }
    let calls = |message: &Value| {
        message["tool_calls"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    };
    if !dialect.shows_calls && messages.iter().any(calls) {
        record.ignore("messages.tool_calls");
    }
    if !dialect.shows_results && messages.iter().any(|message| message["role"] == "tool") {
        record.ignore("messages.tool_call_id");
    }
}

/// The tools in the form that the template takes: whole, if it refuses a tool that has only a name.
pub(crate) fn for_template(tools: &Value, dialect: &ChatDialect) -> Value {
    let mut tools = tools.clone();
    let all = tools.as_array_mut().filter(|_| dialect.needs_whole_tools);
    for tool in all.into_iter().flatten() {
        let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) else {
            continue;
        };
        for (name, value) in [
            ("description", json!("")),
            ("parameters", json!({ "type": "object", "properties": {} })),
        ] {
            if function.get(name).is_none_or(Value::is_null) {
                function.insert(name.into(), value);
            }
        }
    }
    tools
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Value {
        json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object" } } })
    }

    fn refused(tools: &Value, choice: &Value) -> String {
        match Tools::parse(Some(tools), Some(choice), None).expect_err("refused") {
            Error::Field { param, .. } => param,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn choices_say_what_may_be_called() {
        let tools = json!([tool("a"), tool("b")]);
        let names = |choice: Value| {
            let tools = Tools::parse(Some(&tools), Some(&choice), None).expect("well formed");
            let names: Vec<String> = tools.callable.iter().map(|t| t.name.clone()).collect();
            (names.join(" "), tools.must_call(), tools.all.is_null())
        };
        assert_eq!(names(json!("auto")), ("a b".into(), false, false));
        assert_eq!(names(json!("none")), (String::new(), false, true));
        assert_eq!(names(json!("required")), ("a b".into(), true, false));
        let b = json!({ "type": "function", "function": { "name": "b" } });
        assert_eq!(names(b.clone()), ("b".into(), true, false));
        for (mode, must) in [("auto", false), ("required", true)] {
            let choice =
                json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": [b] } });
            assert_eq!(names(choice), ("b".into(), must, false));
        }
    }

    #[test]
    fn what_is_malformed_is_named_by_its_place() {
        let a = tool("a");
        // Tools, choice, and the place of the mistake.
        let cases = json!([
            [{}, "auto", "tools"],
            [[1], "auto", "tools[0]"],
            [[{ "type": "function" }], "auto", "tools[0].function"],
            [[{ "type": "web_search" }], "auto", "tools[0].type"],
            [[a, tool("b c")], "auto", "tools[1].function.name"],
            [[a, a], "auto", "tools[1].function.name"],
            [[{ "function": { "name": "a", "parameters": [] } }], "auto", "tools[0].function.parameters"],
            [[{ "type": "function", "function": { "name": "a", "strict": 1 } }], "auto", "tools[0].function.strict"],
            [[a], "any", "tool_choice"],
            [[a], 1, "tool_choice"],
            [[a], { "type": "function", "function": { "name": "b" } }, "tool_choice"],
            [[a], { "type": "function", "name": "a" }, "tool_choice.function"],
            [[a], { "type": "allowed_tools", "allowed_tools": { "mode": "none" } }, "tool_choice.allowed_tools.mode"],
            [[], "required", "tool_choice"],
        ]);
        for case in cases.as_array().expect("an array") {
            assert_eq!(refused(&case[0], &case[1]), case[2], "{case}");
        }
    }

    #[test]
    fn arguments_take_the_form_of_the_template() {
        let message = |arguments: Value| json!({ "tool_calls": [{ "function": { "name": "a", "arguments": arguments } }] });
        for given in [json!("{\"x\": 1}"), json!({ "x": 1 })] {
            let mut text = message(given.clone());
            with_arguments(&mut text, true);
            assert_eq!(text["tool_calls"][0]["function"]["arguments"], "{\"x\":1}");
            let mut object = message(given);
            with_arguments(&mut object, false);
            assert_eq!(
                object["tool_calls"][0]["function"]["arguments"],
                json!({ "x": 1 })
            );
        }
    }
}
