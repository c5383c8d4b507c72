//! Tools whose schemas Anthropic defines and whose calls the client runs: a shell, an editor of text files, a memory.
//!
//! Models of others learn of them by a description and a JSON Schema, with the arguments that Anthropic documents.

use serde_json::{Map, Value, json};

/// An argument: name, type and description.
type Argument = (&'static str, &'static str, &'static str);

const PATH: Argument = ("path", "string", "path of the file or folder");
const TEXT: Argument = ("file_text", "string", "`create`: the text of the file");
const OLD: Argument = (
    "old_str",
    "string",
    "`str_replace`: the text to replace, which occurs once",
);
const NEW: Argument = ("new_str", "string", "`str_replace`: the text in its place");
const LINE: Argument = (
    "insert_line",
    "integer",
    "`insert`: the line after which the text is inserted, 0 for the start",
);
const INSERT: Argument = ("insert_text", "string", "`insert`: the text to insert");
const RANGE: Argument = (
    "view_range",
    "array",
    "`view`: the first and the last line to show, from 1, -1 for the end",
);

/// The description and the JSON Schema of a tool of this type; `None` for tools that Anthropic runs.
pub(super) fn find(kind: &str) -> Option<(&'static str, Value)> {
    let (name, date) = kind.rsplit_once('_')?;
    if date.len() != 8 || !date.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match name {
        "bash" => {
            let command = ("command", "string", "the command to run");
            let restart = ("restart", "boolean", "true: starts the shell anew");
            let schema = schema(&[], &[command, restart], &[]);
            Some(("Runs commands in a shell that stays open.", schema))
        }
        "text_editor" => {
            let undo = if date < "20250429" {
                &["undo_edit"][..]
            } else {
                &[]
            };
            let commands = [&["view", "create", "str_replace", "insert"][..], undo].concat();
            let insert = match date < "20250728" {
                true => (
                    "new_str",
                    "string",
                    "`str_replace`: the text in its place; `insert`: the text to insert",
                ),
                false => INSERT,
            };
            let all = [PATH, TEXT, OLD, NEW, LINE, insert, RANGE];
            let schema = schema(&commands, &all, &["command", "path"]);
            Some(("Shows, creates and edits text files.", schema))
        }
        "memory" => {
            let commands = [
                "view",
                "create",
                "str_replace",
                "insert",
                "delete",
                "rename",
            ];
            let moves = [
                ("old_path", "string", "`rename`: the path before"),
                ("new_path", "string", "`rename`: the path after"),
            ];
            let all = [PATH, TEXT, OLD, NEW, LINE, INSERT, RANGE];
            let schema = schema(&commands, &[&all[..], &moves].concat(), &["command"]);
            Some((
                "Keeps notes in files below /memories from one conversation to the next.",
                schema,
            ))
        }
        _ => None,
    }
}

fn schema(commands: &[&str], arguments: &[Argument], required: &[&str]) -> Value {
    let mut properties = Map::new();
    if !commands.is_empty() {
        properties.insert(
            "command".into(),
            json!({ "type": "string", "enum": commands }),
        );
    }
    for (name, kind, description) in arguments {
        let mut own = json!({ "type": kind, "description": description });
        if *kind == "array" {
            own["items"] = json!({ "type": "integer" });
        }
        properties.insert((*name).into(), own);
    }
    json!({ "type": "object", "properties": properties, "required": required })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_clients_have_schemas_and_others_have_none() {
        for kind in [
            "bash_20250124",
            "text_editor_20250728",
            "text_editor_20250124",
            "memory_20250818",
        ] {
            let (_, schema) = find(kind).unwrap_or_else(|| panic!("{kind}"));
            assert!(schema["properties"]["command"].is_object(), "{schema}");
        }
        for kind in ["web_search_20250305", "bash", "bash_1", "computer_20250124"] {
            assert!(find(kind).is_none(), "{kind}");
        }
    }
}
