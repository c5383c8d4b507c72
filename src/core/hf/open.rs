//! Opens a folder by its map.

use std::path::Path;

use super::chosen::choose_map;
use super::config_file::read_config;
use super::error::left_out_parts;
use super::{CONFIG, Error, Maps, apply, config, folder_of, library, modules, packed};
use serde_json::Value as Json;

use super::definition::Map;
use crate::arch::{self, Diagnostics, SourceFile};
use lab_base::weights;
use lab_base::weights::safetensors::Checkpoint;
use lab_base::weights::{Weights, folder};

/// Metadata key of the map with which the weights were made.
pub const MAP_KEY: &str = "bench.map";

/// What a folder has for a model of texts.
#[derive(Debug)]
pub struct OpenedFolder {
    pub weights: Weights,
    /// The parts of the model that are not among these weights, and their number of tensors.
    pub left_out: Option<String>,
}

/// Opens a folder, or a single file of tensors in the folder of its configuration. With `allow_unmapped`, tensors and
/// keys that the map does not mention are only logged.
///
/// # Errors
/// The folder lacks files, its class has no map, or the map does not fit.
pub fn open(
    path: &Path,
    maps: &Maps,
    archs: &arch::Library,
    allow_unmapped: bool,
) -> Result<OpenedFolder, Error> {
    let modules = modules::EmbeddingModules::read(folder_of(path))?;
    let inner = modules.transformer.clone();
    let path = inner.as_deref().unwrap_or(path);
    let folder = folder_of(path);
    let mut json = read_config(&folder.join(CONFIG))?;
    if folder::is_config(&json) {
        let weights = folder::open(path, &json, &Checkpoint::open(path)?)?;
        let left_out = None;
        return Ok(OpenedFolder { weights, left_out });
    }
    let chosen = choose_map(folder, maps, &mut json, |json| {
        let mut checkpoint = Checkpoint::open(path)?;
        modules.join(json, &mut checkpoint)?;
        Ok(checkpoint)
    })?;
    apply_map(
        path,
        json,
        (maps, archs),
        chosen.source,
        &chosen.map,
        chosen.checkpoint,
        allow_unmapped,
    )
}

/// Opens the towers of a folder by the maps for its class, in the order of the maps' names; none if no map is for it.
///
/// # Errors
/// The folder lacks files, or a map does not fit.
pub fn open_towers(
    path: &Path,
    maps: &Maps,
    towers: &arch::Library,
    allow_unmapped: bool,
) -> Result<Vec<Weights>, Error> {
    let folder = folder_of(path);
    let json = read_config(&folder.join(CONFIG))?;
    let found = maps.of_towers(&json)?;
    let open = |(source, mut map): (&SourceFile, Map)| {
        // The other keys and tensors are those of the text model and of other towers.
        map.is_part = true;
        map.is_tower = true;
        let checkpoint = Checkpoint::open(path)?;
        let opened = apply_map(
            path,
            json.clone(),
            (maps, towers),
            source,
            &map,
            checkpoint,
            allow_unmapped,
        )?;
        Ok(opened.weights)
    };
    found.into_iter().map(open).collect()
}

/// Applies a map to a folder with this configuration.
fn apply_map(
    path: &Path,
    mut json: Json,
    (maps, archs): (&Maps, &arch::Library),
    source: &SourceFile,
    map: &Map,
    mut checkpoint: Checkpoint,
    allow_unmapped: bool,
) -> Result<OpenedFolder, Error> {
    let folder = folder_of(path);
    let packed = packed::PackedMatrices::take(&mut json, folder, &mut checkpoint)?;
    let config = config::Config::new(map, &json, &checkpoint);
    let arch = config.arch().map_err(|message| Error::Config {
        path: folder.join(CONFIG),
        message: format!("{}: `arch`: {message}", source.path),
    })?;
    let def = archs.get(&arch)?;
    let applied = apply::apply(map, maps.common(), &def, &config, &packed);
    let applied = applied.map_err(|problems| Error::Map {
        folder: folder.to_owned(),
        problems: std::iter::once(source)
            .chain(map.base_sources())
            .chain([maps.common_source()])
            .zip(problems)
            .filter(|(_, problems)| !problems.is_empty())
            .map(|(source, problems)| Diagnostics::new(&source.path, &source.text, problems))
            .collect(),
    })?;
    if applied.unmapped != apply::Unmapped::default() {
        let apply::Unmapped { tensors, keys } = applied.unmapped;
        let has_tensors = !tensors.is_empty();
        let error = Error::Unmapped {
            folder: folder.to_owned(),
            map: source.path.clone(),
            tensors,
            keys,
        };
        // A key of a tower that nobody knows is no reason to read no pictures.
        let goes_on = allow_unmapped || map.is_tower && !has_tensors;
        match goes_on {
            // The rest of the folder is for other maps.
            true if map.is_part => tracing::debug!(%error, "goes on"),
            true => tracing::warn!(%error, "goes on"),
            false => return Err(error),
        }
    }
    let left_out = (!applied.left_out.is_empty()).then(|| {
        let (parts, n) = left_out_parts(&applied.left_out);
        format!("{parts} ({n} tensors)")
    });
    packed.log(folder);
    let label = path.display().to_string();
    let mut metadata = applied.metadata;
    let name = library::name_of(&source.path).to_owned();
    metadata.insert(MAP_KEY, weights::Value::Str(name));
    let weights = Weights::of(label, metadata, applied.entries)?;
    let weights = weights.with_files(checkpoint.files().cloned());
    let weights = weights.with_origins(applied.origins);
    Ok(OpenedFolder { weights, left_out })
}
