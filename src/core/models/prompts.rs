//! The prompts of an embedding model: texts that precede an input text, by the name of the purpose.
//!
//! They come from `config_sentence_transformers.json`, which sentence-transformers writes next to `modules.json`. This
//! module does not insert them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use lab_base::weights::safetensors::{is_named, read_small};

/// The file that has the prompts.
const FILE: &str = "config_sentence_transformers.json";
const MAX_BYTES: u64 = 1 << 20;

/// Prompts by name.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Prompts {
    /// The texts.
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
    /// The name of the prompt that is used if a request names none.
    #[serde(default)]
    pub default_prompt_name: Option<String>,
}

impl Prompts {
    /// The prompts of a folder; empty if it has no such file. A file that cannot be read is logged, and the model runs
    /// without prompts.
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

    /// The prompt of this name, or the default prompt without a name; empty if there is none.
    ///
    /// # Errors
    /// The name does not exist; the error lists those that do.
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
