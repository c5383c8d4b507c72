//! From a Hugging Face folder to the tensors and parameters of an architecture, by a map.
//!
//! A map (`stmaps/*.arch.stmap.toml`) names its classes, says how parameters follow from `config.json`,
//! and of which stored tensors each tensor of the architecture is made, in which order of elements. All
//! of these are expressions over the configuration, so a map serves every size of a model. The result is
//! [`Weights`] like those of a file; no later module distinguishes them. Tensors
//! that are stored as they are needed stay in the mapped file; the others are lazy tensors
//! ([`recipe`]). Pure except for reading the folder.

mod apply;
mod config;
mod definition;
mod json;
mod library;
mod missing;
mod modules;
mod nearest;
mod packed;
mod parameters;
mod read;
mod rearrange;
mod recipe;
#[cfg(test)]
mod tests;
mod text;
mod tied;
mod unit_rows;
pub mod update;
mod values;

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::arch::{self, Diagnostics, LibraryError};
use crate::weights::folder;
use crate::weights::safetensors::{Checkpoint, read_small};
use crate::weights::{self, Weights};

pub use library::{ENDING, Maps};
pub use missing::{Need, missing};
pub use nearest::{Folder, MapFit, begun, fits};
pub use read::schema;

/// Metadata key: the map that the weights were made with.
pub const MAP_KEY: &str = "bench.map";
/// Name of the configuration in a folder.
const CONFIG: &str = "config.json";
/// Maximum bytes of a configuration; one that `bench convert` writes holds the vocabulary.
const MAX_CONFIG_BYTES: u64 = 64 << 20;
/// Maximum number of names that a message lists.
const MAX_LISTED: usize = 12;

/// Why a folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the folder.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The configuration is malformed.
    #[error("{}: {message}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Found and expected.
        message: String,
    },
    /// No map is for the classes that the configuration names.
    #[error("{}: {message}", path.display())]
    NoMap {
        /// The configuration.
        path: PathBuf,
        /// The classes, and what is nearest or missing.
        message: String,
    },
    /// The map does not fit the folder, or has problems itself.
    #[error("{}: {}", folder.display(), joined(problems))]
    Map {
        /// The folder.
        folder: PathBuf,
        /// All problems, by the files in which they lie.
        problems: Vec<Diagnostics>,
    },
    /// The architecture of the map.
    #[error(transparent)]
    Arch(#[from] LibraryError),
    /// The folder holds tensors or keys that the map does not mention.
    #[error("{}: {}", folder.display(), unmapped(map, tensors, keys))]
    Unmapped {
        /// The folder.
        folder: PathBuf,
        /// The file of the map.
        map: String,
        /// Stored tensors.
        tensors: Vec<String>,
        /// Keys of the configuration.
        keys: Vec<String>,
    },
}

fn joined(problems: &[Diagnostics]) -> String {
    let texts: Vec<String> = problems.iter().map(Diagnostics::to_string).collect();
    texts.join("\n\n")
}

fn unmapped(map: &str, tensors: &[String], keys: &[String]) -> String {
    let list = |what: &str, names: &[String]| {
        let shown = names.len().min(MAX_LISTED);
        let more = match names.len() - shown {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        format!("{what} {}{more}", names[..shown].join(", "))
    };
    let mut parts = Vec::new();
    if !tensors.is_empty() {
        parts.push(list("the tensors", tensors));
    }
    if !keys.is_empty() {
        parts.push(list(&format!("the {CONFIG} keys"), keys));
    }
    format!(
        "{map} does not speak of {}; --allow-unmapped goes on without them",
        parts.join(", nor of ")
    )
}

/// Opens a folder, or a single file of tensors in the folder of its configuration. With
/// `allow_unmapped`, tensors and keys that the map does not mention are only logged.
///
/// # Errors
/// A folder that lacks files, a class without a map, a map that does not fit.
pub fn open(
    path: &Path,
    maps: &Maps,
    archs: &arch::Library,
    allow_unmapped: bool,
) -> Result<Weights, Error> {
    let modules = modules::Modules::read(folder_of(path))?;
    let inner = modules.transformer.clone();
    let path = inner.as_deref().unwrap_or(path);
    let folder = folder_of(path);
    let mut json = read_config(&folder.join(CONFIG))?;
    if folder::is_config(&json) {
        return Ok(folder::open(path, &json, &Checkpoint::open(path)?)?);
    }
    let chosen = choose(folder, maps, &mut json, |json| {
        let mut checkpoint = Checkpoint::open(path)?;
        modules.join(json, &mut checkpoint)?;
        Ok(checkpoint)
    })?;
    let (source, map, mut checkpoint) = (chosen.source, chosen.map, chosen.checkpoint);
    let packed = packed::Table::take(&mut json, folder, &mut checkpoint)?;
    let config = config::Config::new(&map, &json, &checkpoint);
    let arch = config.arch().map_err(|message| Error::Config {
        path: folder.join(CONFIG),
        message: format!("{}: `arch`: {message}", source.path),
    })?;
    let def = archs.get(&arch)?;
    let applied = apply::apply(&map, maps.common(), &def, &config, &packed);
    let applied = applied.map_err(|problems| Error::Map {
        folder: folder.to_owned(),
        problems: [source, maps.common_source()]
            .into_iter()
            .zip(problems)
            .filter(|(_, problems)| !problems.is_empty())
            .map(|(source, problems)| Diagnostics::new(&source.path, &source.text, problems))
            .collect(),
    })?;
    if applied.unmapped != apply::Unmapped::default() {
        let apply::Unmapped { tensors, keys } = applied.unmapped;
        let error = Error::Unmapped {
            folder: folder.to_owned(),
            map: source.path.clone(),
            tensors,
            keys,
        };
        match allow_unmapped {
            true => tracing::warn!(%error, "goes on"),
            false => return Err(error),
        }
    }
    if !applied.left_out.is_empty() {
        let (parts, counts): (Vec<&str>, Vec<usize>) = applied
            .left_out
            .iter()
            .map(|(part, n)| (part.as_str(), *n))
            .unzip();
        let (parts, n) = (parts.join(", "), counts.iter().sum::<usize>());
        let folder = folder.display();
        tracing::warn!("{folder}: opened as a text model without its {parts} ({n} tensors)");
    }
    packed.log(folder);
    let label = path.display().to_string();
    let mut metadata = applied.metadata;
    let name = library::name_of(&source.path).to_owned();
    metadata.insert(MAP_KEY, weights::Value::Str(name));
    let weights = Weights::of(label, metadata, applied.entries)?;
    let weights = weights.with_files(checkpoint.files().cloned());
    Ok(weights.with_origins(applied.origins))
}

/// A map and what it is applied to.
struct Chosen<'m> {
    source: &'m arch::Source,
    map: definition::Map,
    /// The text model that the map is for, if the model contains one.
    text: Option<definition::TextModel>,
    /// The stored tensors, under the names that they have in that model.
    checkpoint: Checkpoint,
}

/// The map for a folder with this configuration, to which `checkpoint` may add.
fn choose<'m>(
    folder: &Path,
    maps: &'m Maps,
    json: &mut Json,
    checkpoint: impl FnOnce(&mut Json) -> Result<Checkpoint, Error>,
) -> Result<Chosen<'m>, Error> {
    let path = folder.join(CONFIG);
    let (source, map) = maps.of(&path, json)?;
    let mut checkpoint = checkpoint(json)?;
    let (source, map, text) = match &map.text {
        None => (source, map, None),
        Some(text) => {
            let inside = text::inside(maps, &map, text, json, &mut checkpoint);
            let (source, inner) = inside.map_err(|message| Error::Config { path, message })?;
            (source, inner, Some(text.clone()))
        }
    };
    Ok(Chosen {
        source,
        map,
        text,
        checkpoint,
    })
}

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

fn read_config(path: &Path) -> Result<Json, Error> {
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
