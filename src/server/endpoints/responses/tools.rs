//! The tools of a responses request, which a model calls as functions, and the items that calls of them become.
//!
//! A tool that is called with free text is a function of one argument; a function within a namespace is one whose name
//! starts with that of the namespace. Names of models have at most 64 characters of a small alphabet. Not here: how a
//! model writes a call.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, quoted};
use crate::request::json_access::{JsonMap, given, malformed, object_at, text_at};
use crate::request::object_fields::{ObjectFields, has_word, ignore_unknown};
use lab_base::chat::tool_calls::completed_arguments;

/// The name of the argument of a tool that takes free text.
pub(crate) const INPUT: &str = "input";
/// The namespace of functions that are in none.
const NO_SPACE: &str = "functions";
/// The name of a tool by which the client finds further tools.
const SEARCH: &str = "tool_search";
/// Maximum size of the name of a function, in bytes.
const MAX_NAME: usize = 64;
/// Tools that only OpenAI runs; they are never called here.
const HOSTED: &str = "web_search web_search_preview file_search code_interpreter image_generation local_shell \
    shell mcp computer computer_use computer_use_preview apply_patch";

const FUNCTION: &str = "type name description parameters strict format execution tools";
/// All functions of a request are offered at once.
const IDLE: &str = "allowed_callers defer_loading output_schema";
const KINDS: &str = "function custom namespace";
/// The fields of a tool that the client runs.
pub(super) const TOOLS: ObjectFields = ObjectFields {
    kinds: KINDS,
    known: FUNCTION,
    idle: IDLE,
    inner: &[(
        "tools",
        &ObjectFields {
            kinds: KINDS,
            known: FUNCTION,
            idle: IDLE,
            inner: &[],
        },
    )],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolKind {
    Function,
    /// With free text.
    Custom,
    /// A search of further tools, which the client makes.
    Search,
}

/// A tool as the client knows it.
#[derive(Clone, Debug)]
pub(super) struct ClientTool {
    pub(super) kind: ToolKind,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct OfferedTools {
    /// In the shape of chat completions.
    pub(super) functions: Vec<Value>,
    /// By the name under which the model calls them.
    callees: HashMap<String, ClientTool>,
    /// The names for the model, by namespace and name.
    names: HashMap<(Option<String>, String), String>,
}

impl OfferedTools {
    /// Adds a tool, or those of a namespace. One that only OpenAI runs or that nobody knows is left out, and the response
    /// names it.
    pub(super) fn add(&mut self, at: &str, tool: &Value) -> Result<(), Error> {
        let fields = object_at(at, tool)?;
        match text_at(at, fields, "type")? {
            "namespace" => {
                let namespace = text_at(at, fields, "name")?;
                let at = format!("{at}.tools");
                let tools = match given(fields, "tools") {
                    None => &[][..],
                    Some(Value::Array(tools)) => tools,
                    Some(_) => return Err(malformed(&at, "an array of tools")),
                };
                let mut tools = tools.iter().enumerate();
                tools.try_for_each(|(i, tool)| {
                    let at = format!("{at}[{i}]");
                    self.add_one(&at, object_at(&at, tool)?, Some(namespace))
                })
            }
            _ => self.add_one(at, fields, None),
        }
    }

    fn add_one(&mut self, at: &str, tool: &JsonMap, namespace: Option<&str>) -> Result<(), Error> {
        let namespace = namespace.filter(|space| *space != NO_SPACE);
        let mut function = JsonMap::new();
        if let Some(description) = given(tool, "description") {
            function.insert("description".into(), description.clone());
        }
        let is_of_client = given(tool, "execution").is_some_and(|who| who == "client");
        let (kind, name) = match text_at(at, tool, "type")? {
            "function" => {
                for name in ["parameters", "strict"] {
                    if let Some(value) = given(tool, name) {
                        function.insert(name.into(), value.clone());
                    }
                }
                (ToolKind::Function, text_at(at, tool, "name")?)
            }
            "custom" => {
                function.insert("parameters".into(), free_text_schema(at, tool));
                (ToolKind::Custom, text_at(at, tool, "name")?)
            }
            SEARCH if is_of_client => {
                if let Some(parameters) = given(tool, "parameters") {
                    function.insert("parameters".into(), parameters.clone());
                }
                (ToolKind::Search, SEARCH)
            }
            kind if has_word(HOSTED, kind) => {
                RequestContext::current().ignore("tools");
                return Ok(());
            }
            _ => return ignore_unknown(at.to_owned(), None),
        };
        let callee = ClientTool {
            kind,
            name: name.to_owned(),
            namespace: namespace.map(str::to_owned),
        };
        let key = (callee.namespace.clone(), callee.name.clone());
        if namespace.is_some() && self.names.contains_key(&key) {
            let param = format!("{at}.name");
            let message = format!("`{param}`: the namespace has another `{}`", quoted(name));
            return invalid(param, message);
        }
        let flat = self.free_name(&flat(namespace, name), namespace.is_some());
        function.insert("name".into(), flat.as_str().into());
        let function = json!({ "type": "function", "function": function });
        let place = format!("tools[{}].function", self.functions.len());
        RequestContext::current().rename(place, at);
        self.functions.push(function);
        self.names.insert(key, flat.clone());
        self.callees.insert(flat, callee);
        Ok(())
    }

    /// Adds the tools that a search found, except those that are offered already.
    pub(super) fn add_found(&mut self, at: &str, tools: Option<&Value>) -> Result<(), Error> {
        for (i, tool) in tools
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .enumerate()
        {
            let mut tool = tool.clone();
            let space = match tool["type"] == "namespace" {
                true => tool["name"].as_str().map(str::to_owned),
                false => None,
            };
            let space = space.filter(|space| space != NO_SPACE);
            let is_new = |own: &Value| {
                let name = own["name"].as_str().unwrap_or_default();
                !self.names.contains_key(&(space.clone(), name.to_owned()))
            };
            let is_known = tool.get("tools").is_none() && !is_new(&tool);
            if is_known {
                continue;
            }
            if let Some(inner) = tool.get_mut("tools").and_then(Value::as_array_mut) {
                inner.retain(is_new);
            }
            self.add(&format!("{at}[{i}]"), &tool)?;
        }
        Ok(())
    }

    /// A name for the model that no other tool has. `may_change`: the client does not see the name.
    fn free_name(&self, flat: &str, may_change: bool) -> String {
        let mut name = flat.to_owned();
        for n in 2.. {
            if !may_change || !self.callees.contains_key(&name) {
                break;
            }
            let ending = format!("_{n}");
            name = flat
                .chars()
                .take(MAX_NAME - ending.len())
                .collect::<String>()
                + &ending;
        }
        name
    }

    /// The name under which the model calls a tool, also one that is not offered any more.
    pub(super) fn name(&self, namespace: Option<&str>, name: &str) -> String {
        let namespace = namespace.filter(|space| *space != NO_SPACE);
        let key = (namespace.map(str::to_owned), name.to_owned());
        let known = self.names.get(&key).cloned();
        known.unwrap_or_else(|| flat(namespace, name))
    }

    pub(super) fn into_callees(self) -> ClientTools {
        ClientTools(self.callees)
    }
}

/// The tools by the names under which the model calls them.
#[derive(Debug, Default)]
pub(super) struct ClientTools(HashMap<String, ClientTool>);

impl ClientTools {
    pub(super) fn of(&self, name: &str) -> ClientTool {
        let known = self.0.get(name).cloned();
        known.unwrap_or_else(|| ClientTool {
            kind: ToolKind::Function,
            name: name.to_owned(),
            namespace: None,
        })
    }
}

/// One name of a namespace and a name. The name of a function outside of namespaces stays as it is.
fn flat(namespace: Option<&str>, name: &str) -> String {
    let Some(namespace) = namespace else {
        return name.to_owned();
    };
    let between = match namespace.ends_with('_') || name.starts_with('_') {
        true => "",
        false => "__",
    };
    let whole = format!("{namespace}{between}{name}");
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let plain: String = whole
        .chars()
        .map(|c| if is_part(c) { c } else { '_' })
        .collect();
    if plain.len() <= MAX_NAME {
        return plain;
    }
    let mut hash = DefaultHasher::new();
    whole.hash(&mut hash);
    let ending = format!("_{:08x}", hash.finish() as u32);
    // The end of a name tells more than its start.
    let start = plain.len() - (MAX_NAME - ending.len());
    format!("{}{ending}", &plain[start..])
}

/// The choice of tools in the shape of chat completions.
pub(super) fn choice(choice: &Value, offered: &OfferedTools) -> Result<Value, Error> {
    const AT: &str = "tool_choice";
    let named = |at: &str, value: &Value| {
        let fields = object_at(at, value)?;
        let name = match text_at(at, fields, "type")? {
            "function" | "custom" => text_at(at, fields, "name")?,
            SEARCH => SEARCH,
            _ => return Err(malformed(&format!("{at}.type"), "`function` or `custom`")),
        };
        let namespace = given(fields, "namespace").and_then(Value::as_str);
        let name = offered.name(namespace, name);
        Ok(json!({ "type": "function", "function": { "name": name } }))
    };
    let fields = match choice {
        Value::Object(fields) => fields,
        other => return Ok(other.clone()),
    };
    let record = RequestContext::current();
    if given(fields, "type").is_none_or(|kind| kind != "allowed_tools") {
        record.rename(format!("{AT}.function"), AT);
        return named(AT, choice);
    }
    let tools = fields.get("tools").and_then(Value::as_array);
    let tools = tools.ok_or_else(|| malformed(&format!("{AT}.tools"), "an array of tools"))?;
    let tools = tools.iter().enumerate();
    record.rename(format!("{AT}.allowed_tools"), AT);
    let tools = tools.map(|(i, tool)| {
        let place = format!("{AT}.allowed_tools.tools[{i}].function");
        let at = format!("{AT}.tools[{i}]");
        record.rename(place, at.as_str());
        named(&at, tool)
    });
    let tools: Vec<Value> = tools.collect::<Result<_, _>>()?;
    let allowed = json!({ "mode": fields.get("mode"), "tools": tools });
    Ok(json!({ "type": "allowed_tools", "allowed_tools": allowed }))
}

/// The schema of a tool at a place that takes free text. Other formats of the text have no effect.
pub(crate) fn free_text_schema(at: &str, tool: &JsonMap) -> Value {
    if given(tool, "format").is_some_and(|format| format["type"] != "text") {
        RequestContext::current().ignore(&format!("{at}.format"));
    }
    json!({
        "type": "object", "properties": { INPUT: { "type": "string" } },
        "required": [INPUT], "additionalProperties": false,
    })
}

pub(super) fn with_text(text: &str) -> Value {
    json!({ INPUT: text })
}

/// The free text in the arguments of a call, where it is the only argument.
pub(crate) fn free_text(arguments: &str) -> String {
    let arguments: Value =
        serde_json::from_str(&completed_arguments(arguments)).unwrap_or_default();
    arguments[INPUT].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Value {
        json!({ "type": "function", "name": name, "parameters": { "type": "object" } })
    }

    fn add(offered: &mut OfferedTools, at: &str, tool: &Value) {
        let added = RequestContext::detached().enter(|| offered.add(at, tool));
        added.expect("sound");
    }

    fn names(offered: &OfferedTools) -> Vec<&str> {
        let all = offered.functions.iter();
        all.filter_map(|own| own["function"]["name"].as_str())
            .collect()
    }

    #[test]
    fn functions_of_namespaces_have_names_of_their_own_and_come_back() {
        let space = |name: &str, tools: Vec<Value>| json!({ "type": "namespace", "name": name, "description": "d", "tools": tools });
        let long = "n".repeat(80);
        let mut offered = OfferedTools::default();
        for (i, tool) in [
            function("read"),
            space("fs", vec![function("read"), function("write")]),
            space("mcp__git__", vec![function("log")]),
            space("functions", vec![function("shell")]),
            space("a", vec![function("b__c")]),
            space("a__b", vec![function("c")]),
            space(&long, vec![function("one"), function("two")]),
            space("ü x", vec![json!({ "type": "custom", "name": "patch" })]),
            json!({ "type": "tool_search", "execution": "client", "parameters": {} }),
            json!({ "type": "web_search" }),
        ]
        .iter()
        .enumerate()
        {
            add(&mut offered, &format!("tools[{i}]"), tool);
        }
        let found = names(&offered);
        let expected = [
            "read",
            "fs__read",
            "fs__write",
            "mcp__git__log",
            "shell",
            "a__b__c",
            "a__b__c_2",
        ];
        assert_eq!(found[..7], expected);
        assert!(found.iter().all(|name| name.len() <= MAX_NAME), "{found:?}");
        assert_eq!(found[9..], ["__x__patch", "tool_search"]);
        let distinct: std::collections::HashSet<_> = found.iter().collect();
        assert_eq!(distinct.len(), found.len());
        let long_one = found[7].to_owned();
        assert_eq!(offered.name(Some("a__b"), "c"), "a__b__c_2");
        assert_eq!(offered.name(Some("gone"), "f"), "gone__f");
        assert_eq!(offered.name(Some("functions"), "shell"), "shell");
        let callees = offered.into_callees();
        let of = |name: &str| {
            let callee = callees.of(name);
            (callee.kind, callee.namespace, callee.name)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of("read"), (ToolKind::Function, None, "read".into()));
        assert_eq!(
            of("a__b__c_2"),
            (ToolKind::Function, some("a__b"), "c".into())
        );
        assert_eq!(of("shell"), (ToolKind::Function, None, "shell".into()));
        assert_eq!(
            of(&long_one),
            (ToolKind::Function, some(&long), "one".into())
        );
        assert_eq!(
            of("__x__patch"),
            (ToolKind::Custom, some("ü x"), "patch".into())
        );
        assert_eq!(of("tool_search").0, ToolKind::Search);
    }

    #[test]
    fn tools_that_a_search_found_are_offered_once() {
        let mut offered = OfferedTools::default();
        add(&mut offered, "tools[0]", &function("a"));
        let found = json!([
            function("a"), function("b"),
            { "type": "namespace", "name": "s", "tools": [function("a"), function("b")] },
        ]);
        let mut search = |found: &Value| {
            let added = || offered.add_found("input[0].tools", Some(found));
            RequestContext::detached().enter(added)
        };
        assert!(search(&found).is_ok() && search(&found).is_ok());
        assert!(search(&json!([{}])).is_err());
        assert_eq!(names(&offered), ["a", "b", "s__a", "s__b"]);
    }
}
