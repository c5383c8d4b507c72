//! The prompts of an embedding model: texts that are put before a text, by the name of its purpose.
//!
//! Those of `config_sentence_transformers.json`, which sentence-transformers writes alongside `modules.json`.
//! Not here: where they are put.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::weights::safetensors::{is_named, read_small};

/// The file that holds them.
const FILE: &str = "config_sentence_transformers.json";
/// Largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// Prompts by name.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Prompts {
    /// The texts.
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
    /// The name of the one that is used where none is named.
    #[serde(default)]
    pub default_prompt_name: Option<String>,
}

impl Prompts {
    /// The prompts of a folder; none if it has no such file. A file that cannot be read is logged: the model
    /// runs without it.
    pub(crate) fn read(folder: &Path) -> Self {
        let path = folder.join(FILE);
        if !is_named(&path) {
            return Self::default();
        }
        let read = read_small(&path, MAX_BYTES).map_err(|error| error.to_string());
        let parsed = read.and_then(|text| {
            serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))
        });
        parsed.unwrap_or_else(|error| {
            tracing::warn!(error, "the prompts of the folder are not used");
            Self::default()
        })
    }

    /// The prompt of a name, or the one that is used where none is named; empty if there is none.
    ///
    /// # Errors
    /// The names that there are, if the name is not among them.
    pub fn of(&self, name: Option<&str>) -> Result<&str, String> {
        match (name, &self.default_prompt_name) {
            (Some(name), _) => self.prompts.get(name).map(String::as_str).ok_or_else(|| {
                let names: Vec<&str> = self.prompts.keys().map(String::as_str).collect();
                match names.is_empty() {
                    true => "the model has no prompts".to_owned(),
                    false => format!("expected one of {}", names.join(", ")),
                }
            }),
            (None, Some(default)) => Ok(self.prompts.get(default).map_or("", String::as_str)),
            (None, None) => Ok(""),
        }
    }
}
