//! The folder of a path, and the configuration in it.

use std::path::Path;

use serde_json::Value as Json;

use super::{CONFIG, Error, json};
use crate::weights;
use crate::weights::safetensors::read_small;

/// Maximum bytes of a configuration; one that `bench convert` writes holds the vocabulary.
pub(super) const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// The folder itself, or that of a single file.
pub fn folder_of(path: &Path) -> &Path {
    match path.is_dir() {
        true => path,
        false => path.parent().unwrap_or(Path::new(".")),
    }
}

/// Whether a path is a folder, or a single file, that a map is needed for.
pub fn is_folder(path: &Path) -> bool {
    let is_file = path
        .extension()
        .is_some_and(|ending| ending == weights::safetensors::ENDING);
    path.is_dir() || is_file
}

/// Whether a folder looks like that of a model.
pub fn is_model(path: &Path) -> bool {
    path.is_dir() && path.join(CONFIG).is_file()
}

pub(super) fn read_config(path: &Path) -> Result<Json, Error> {
    let text = read_small(path, MAX_CONFIG_BYTES)?;
    let refuse = |message: String| Error::Config {
        path: path.to_owned(),
        message,
    };
    let text = std::str::from_utf8(&text).map_err(|error| refuse(error.to_string()))?;
    let json: Json =
        serde_json::from_str(&json::plain_json(text)).map_err(|error| refuse(error.to_string()))?;
    match json.is_object() {
        true => Ok(json),
        false => Err(refuse("expected an object".into())),
    }
}
