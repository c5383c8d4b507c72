//! Opens the towers in a GGUF file of a multimodal projector (mmproj), as llama.cpp's converters write them.
//!
//! The file takes the place of a folder: its keys are the configuration, and its tensors are those that a map
//! (`stmaps/*.mmproj.stmap.toml`) reads. The classes of such a map are types of projectors. It says too what the
//! configuration of the image processor or of the feature extractor would be, since the file has none.

use std::path::Path;

use serde_json::{Map as JsonMap, Value as Json, json};

use super::json::insert;
use super::open::{AppliedMap, apply_map, refuse_unmapped};
use super::{Error, Maps, packed};
use crate::arch;
use lab_base::weights::safetensors::Checkpoint;
use lab_base::weights::{self, Array, Metadata, Value, Weights};

/// The prefix of all keys.
const PREFIX: &str = "clip.";

/// Objects of keys, each of one kind of media, with the key that says whether the file has a tower for it.
const TOWERS: [(&str, &str); 2] = [
    ("clip.vision", "clip.has_vision_encoder"),
    ("clip.audio", "clip.has_audio_encoder"),
];

/// Maximum number of elements of an array that maps read.
const MAX_ELEMENTS: usize = 4096;

/// A tower of a projector file.
#[derive(Debug)]
pub struct ProjectorTower {
    pub weights: Weights,
    /// What the configuration files of a folder with a processor would say.
    pub processor: Json,
}

/// Opens the towers of a projector file. With `allow_unmapped`, tensors that no map mentions are only logged.
///
/// # Errors
/// The file is malformed or has no tower, no map is for a type of projector, or a map does not fit.
pub fn open_mmproj(
    path: &Path,
    maps: &Maps,
    towers: &arch::Library,
    allow_unmapped: bool,
) -> Result<Vec<ProjectorTower>, Error> {
    let file = weights::open(path)?;
    let json = configuration(file.metadata());
    let checkpoint = Checkpoint::of_weights(path, &file);
    let packed = packed::PackedMatrices::of_blocks(&file);
    let no_map = |message: String| Error::NoMap {
        path: path.to_owned(),
        message,
    };
    let mut opened = Vec::new();
    let mut left: Option<(String, Vec<String>)> = None;
    for (object, key) in TOWERS {
        if file.metadata().bool(key) != Some(true) {
            continue;
        }
        let own = format!("{object}.projector_type");
        let kind = file.metadata().str(&own);
        let kind = kind.or_else(|| file.metadata().str("clip.projector_type"));
        let kind = kind.ok_or_else(|| no_map(format!("missing metadata key `{own}`")))?;
        let found = maps.of_projector(kind, object)?;
        let (source, mut map) = found.ok_or_else(|| {
            no_map(format!(
                "no map is for the projector `{kind}` yet (--archs DIR adds maps of your own)"
            ))
        })?;
        map.is_part = true;
        let AppliedMap {
            weights,
            unmapped,
            processor,
            ..
        } = apply_map(
            path,
            &json,
            (maps, towers),
            source,
            &map,
            &checkpoint,
            &packed,
        )?;
        if !unmapped.keys.is_empty() {
            let keys = unmapped.keys.join(", ");
            tracing::warn!(
                keys,
                "metadata of the projector that nothing reads: the result may not be what it asks for"
            );
        }
        // The tensors of one tower are unknown to the map of the other.
        left = Some(match left {
            None => (source.path.clone(), unmapped.tensors),
            Some((map, mut tensors)) => {
                tensors.retain(|name| unmapped.tensors.contains(name));
                (map, tensors)
            }
        });
        opened.push(ProjectorTower { weights, processor });
    }
    let Some((map, tensors)) = left else {
        return Err(no_map(
            "the file has no tower for pictures and none for sounds".into(),
        ));
    };
    refuse_unmapped(path, map, (tensors, Vec::new()), allow_unmapped)?;
    Ok(opened)
}

/// The keys of the file as the object of a configuration; their dots lead into objects.
fn configuration(metadata: &Metadata) -> Json {
    let mut root = JsonMap::new();
    for (key, value) in metadata.iter() {
        if let Some(value) = key.starts_with(PREFIX).then(|| as_json(value)).flatten() {
            insert(&mut root, key, value);
        }
    }
    Json::Object(root)
}

/// A value as JSON; none for one that no map reads.
fn as_json(value: &Value) -> Option<Json> {
    Some(match value {
        Value::Bool(truth) => json!(truth),
        Value::Str(text) => json!(text),
        Value::Array(Array::Array(_)) => return None,
        Value::Array(array) if array.len() > MAX_ELEMENTS => return None,
        Value::Array(array) => {
            let items = (0..array.len()).map(|i| as_json(&array.get(i)?));
            Json::Array(items.collect::<Option<_>>()?)
        }
        number => match number.as_i64() {
            Some(number) => json!(number),
            None => json!(number.as_f64()?),
        },
    })
}
