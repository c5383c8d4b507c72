//! The map for a folder, and the data to which it is applied.

use std::path::Path;

use serde_json::Value as Json;

use super::config_file::read_config;
use super::library::name_of;
use super::{CONFIG, Error, Maps, definition, text};
use crate::arch;
use lab_base::weights::safetensors::Checkpoint;

/// A map and the data to which it is applied.
pub(super) struct ChosenMap<'m> {
    pub(super) source: &'m arch::SourceFile,
    pub(super) map: definition::Map,
    /// The place of the text model to which the map applies, if the model contains one.
    pub(super) text: Option<definition::TextModel>,
    /// The stored tensors, under the names that they have in the text model.
    pub(super) checkpoint: Checkpoint,
}

/// The name of the map for a folder, by its configuration alone.
///
/// # Errors
/// The configuration is malformed, or no map is for its class.
pub fn map_of(folder: &Path, maps: &Maps) -> Result<String, Error> {
    let path = folder.join(CONFIG);
    let json = read_config(&path)?;
    let (source, _) = maps.of(&path, &json)?;
    Ok(name_of(&source.path).to_owned())
}

/// The map for a folder with this configuration. Tensors may be added to `checkpoint`.
pub(super) fn choose_map<'m>(
    folder: &Path,
    maps: &'m Maps,
    json: &mut Json,
    checkpoint: impl FnOnce(&mut Json) -> Result<Checkpoint, Error>,
) -> Result<ChosenMap<'m>, Error> {
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
    Ok(ChosenMap {
        source,
        map,
        text,
        checkpoint,
    })
}
