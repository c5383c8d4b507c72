//! Tools whose schemas Anthropic defines and whose calls the client runs: a shell, an editor of text files, a memory.
//!
//! Models of others learn of them by a description and a JSON Schema, with the arguments that Anthropic documents.

use serde_json::{Map, Value, json};

/// Arguments: name, type and description.
const PATH: &str = "path string path of the file or folder";
const TEXT: &str = "file_text string `create`: the text of the file";
const OLD: &str = "old_str string `str_replace`: the text to replace, which occurs once";
const NEW: &str = "new_str string `str_replace`: the text in its place";
const LINE: &str =
    "insert_line integer `insert`: the line after which the text is inserted, 0 for the start";
const INSERT: &str = "insert_text string `insert`: the text to insert";
const RANGE: &str =
    "view_range array `view`: the first and the last line to show, from 1, -1 for the end";

/// The description and the JSON Schema of a tool of this type; `None` for tools that Anthropic runs.
pub(super) fn find(kind: &str) -> Option<(&'static str, Value)> {
    let (name, date) = kind.rsplit_once('_')?;
    if date.len() != 8 || !date.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match name {
        "bash" => {
            let command = "command string the command to run";
            let restart = "restart boolean true: starts the shell anew";
            let schema = schema("", &[command, restart], &[]);
            Some(("Runs commands in a shell that stays open.", schema))
        }
        "text_editor" => {
            let commands = match date < "20250429" {
                true => "view create str_replace insert undo_edit",
                false => "view create str_replace insert",
            };
            let insert = match date < "20250728" {
                true => {
                    "new_str string `str_replace`: the text in its place; `insert`: the text to insert"
                }
                false => INSERT,
            };
            let all = [PATH, TEXT, OLD, NEW, LINE, insert, RANGE];
            let schema = schema(commands, &all, &["command", "path"]);
            Some(("Shows, creates and edits text files.", schema))
        }
        "memory" => {
            let [before, after] = [
                "old_path string `rename`: the path before",
                "new_path string `rename`: the path after",
            ];
            let all = [PATH, TEXT, OLD, NEW, LINE, INSERT, RANGE, before, after];
            let commands = "view create str_replace insert delete rename";
            let schema = schema(commands, &all, &["command"]);
            let description =
                "Keeps notes in files below /memories from one conversation to the next.";
            Some((description, schema))
        }
        _ => None,
    }
}

/// The schema of these arguments. The commands are separated by spaces; empty for no argument `command`.
fn schema(commands: &str, arguments: &[&str], required: &[&str]) -> Value {
    let mut properties = Map::new();
    if !commands.is_empty() {
        let commands: Vec<&str> = commands.split(' ').collect();
        let command = json!({ "type": "string", "enum": commands });
        properties.insert("command".into(), command);
    }
    for argument in arguments {
        let mut words = argument.splitn(3, ' ');
        let mut word = || words.next().unwrap_or_default();
        let (name, kind, description) = (word(), word(), word());
        let mut own = json!({ "type": kind, "description": description });
        if kind == "array" {
            own["items"] = json!({ "type": "integer" });
        }
        properties.insert(name.into(), own);
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
