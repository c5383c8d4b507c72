//! The folder of a path, and its configuration.

use std::path::Path;

use serde_json::Value as Json;

use super::{CONFIG, Error, json};
use lab_base::weights;
use lab_base::weights::safetensors::read_small;

/// Maximum size of a configuration in bytes; one that `bench convert` writes contains the vocabulary.
pub(super) const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// The folder itself, or the folder of a single file.
pub fn folder_of(path: &Path) -> &Path {
    match path.is_dir() {
        true => path,
        false => path.parent().unwrap_or(Path::new(".")),
    }
}

/// Whether a path is a folder, or a single file, that needs a map.
pub fn is_folder(path: &Path) -> bool {
    let is_file = path
        .extension()
        .is_some_and(|ending| ending == weights::safetensors::ENDING);
    path.is_dir() || is_file
}

/// Whether a folder looks like a model's folder.
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
