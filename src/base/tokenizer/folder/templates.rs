//! The chat templates of a folder: an unnamed one, and named ones.
//!
//! `chat_template.jinja` (with `additional_chat_templates/NAME.jinja` next to it) takes precedence over `chat_template`
//! in `tokenizer_config.json`, and that over `chat_template.json`.

use serde_json::Value as Json;

use crate::weights::{Array, Metadata, Value};

use super::Error;
use super::files::{FolderFiles, JsonObject};

const KEY: &str = "tokenizer.chat_template";
const NAMES: &str = "tokenizer.chat_templates";
const DEFAULT: &str = "default";

pub(super) fn write(files: &FolderFiles, metadata: &mut Metadata) -> Result<(), Error> {
    let mut names = Vec::new();
    for (name, template) in find(files)? {
        if name == DEFAULT {
            metadata.insert(KEY, Value::Str(template));
            continue;
        }
        // The name is part of a key, so other characters than letters and digits are replaced.
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        metadata.insert(format!("{KEY}.{name}"), Value::Str(template));
        names.push(name);
    }
    names.sort_unstable();
    names.dedup();
    if !names.is_empty() {
        metadata.insert(NAMES, Value::Array(Array::Str(names.iter().collect())));
    }
    Ok(())
}

fn find(files: &FolderFiles) -> Result<Vec<(String, String)>, Error> {
    const FOLDER: &str = "additional_chat_templates";
    const ENDING: &str = ".jinja";
    if let Some(template) = files.text("chat_template.jinja")? {
        let mut found = vec![(DEFAULT.to_owned(), template)];
        for name in files.names_in(FOLDER, ENDING)? {
            let template = files.text(format!("{FOLDER}/{name}"))?.unwrap_or_default();
            found.push((name.trim_end_matches(ENDING).to_owned(), template));
        }
        return Ok(found);
    }
    let found = in_object(&files.tokenizer_config)?;
    if !found.is_empty() {
        return Ok(found);
    }
    in_object(&files.chat_template)
}

fn in_object(object: &JsonObject) -> Result<Vec<(String, String)>, Error> {
    const KEY: &str = "chat_template";
    let Some(value) = object.get(KEY) else {
        return Ok(Vec::new());
    };
    if let Some(template) = value.as_str() {
        return Ok(vec![(DEFAULT.to_owned(), template.to_owned())]);
    }
    let named = |entry: &Json| {
        let text = |key| Some(entry.get(key)?.as_str()?.to_owned());
        Some((text("name")?, text("template")?))
    };
    value
        .as_array()
        .and_then(|entries| entries.iter().map(named).collect())
        .ok_or_else(|| {
            let expected = "a string, or a list of objects with `name` and `template`";
            object.wrong_type(KEY, value, expected)
        })
}
