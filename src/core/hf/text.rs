//! Models that contain a text model: its configuration is an object of their configuration, and its tensors have a
//! prefix.
//!
//! The map of the text model's own class applies to it. The other tensors and keys belong to other parts of the model,
//! which [`super::open()`] reports once.

use serde_json::Value as Json;

use crate::arch::SourceFile;
use crate::arch::expr::Value;
use lab_base::weights::safetensors::Checkpoint;

use super::Maps;
use super::config::Config;
use super::definition::{Map, TextModel};
use super::json::object;

/// The map of the text model in a model with the map `outer`. The checkpoint's tensors get the names that they have in
/// the text model.
pub(super) fn inside<'m>(
    maps: &'m Maps,
    outer: &Map,
    text: &TextModel,
    json: &Json,
    checkpoint: &mut Checkpoint,
) -> Result<(&'m SourceFile, Map), String> {
    let mut objects = text.objects.iter();
    let nested = objects.find(|name| object(json, name).is_some_and(Json::is_object));
    let inner = nested.and_then(|name| object(json, name)).unwrap_or(json);
    let names = inner.get("architectures").and_then(Json::as_array);
    let classes: Vec<&str> = names
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .collect();
    let model_type = inner.get("model_type").and_then(Json::as_str);
    let stated = || -> Result<_, String> {
        let Some(class) = &text.class else {
            return Ok(None);
        };
        match class.evaluate(&Config::new(outer, json, checkpoint).plain())? {
            Value::Str(class) => Ok(maps.of_text(&[&class], &[])),
            other => Err(format!("`{class}` is {other}, expected a class")),
        }
    };
    let found = match maps.of_text(&classes, model_type.as_slice()) {
        Some(found) => Some(found),
        None => stated()?,
    };
    let place = nested.map_or("the configuration", String::as_str);
    let (source, mut map) = found.ok_or_else(|| {
        let class = classes.first().copied().or(model_type);
        let class = class.unwrap_or("no class");
        format!("its text model `{place}` ({class}) is not supported: no map is for it")
    })?;
    map.nested = nested.cloned().into_iter().collect();
    map.is_part = nested.is_some();
    map.outer.clone_from(&outer.outer);
    map.parts.splice(0..0, outer.parts.iter().cloned());
    map.ignored_tensors
        .extend(outer.ignored_tensors.iter().cloned());
    map.ignored_keys.extend(outer.ignored_keys.iter().cloned());
    checkpoint.rename(|stored| text.name_of(stored));
    Ok((source, map))
}

impl TextModel {
    /// The name of a stored tensor in the text model, by the longest prefix; none if it does not change.
    pub(super) fn name_of(&self, stored: &str) -> Option<String> {
        let rules = self.names.iter();
        let fitting = rules.flat_map(|(own, others)| {
            let others = others.iter();
            others.filter_map(move |other| Some((other.len(), own, stored.strip_prefix(other)?)))
        });
        let (_, own, rest) = fitting.max_by_key(|(len, ..)| *len)?;
        Some(format!("{own}{rest}"))
    }
}
