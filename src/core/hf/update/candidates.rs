//! The maps for which an adapter may have been made, and the choice of the right one.
//!
//! A folder's map is known. A GGUF file has the map that it records, or that of a `config.json` in the folder of the
//! adapter, or that of the class that the adapter states. Without any of these, all maps of the architecture are tried,
//! with the configuration that follows from the parameters. They may differ: one permutes the rows of a matrix, another
//! does not, and both give an update of the right shape. Then the map with the architecture's name is assumed, with a
//! warning, unless a name of the model matches another map.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::arch::expr::Value;
use lab_base::weights::safetensors::Checkpoint;

use super::super::config::Config;
use super::super::definition::{Map, ParamValue, TextModel};
use super::super::library::name_of;
use super::super::modules::EmbeddingModules;
use super::super::{CONFIG, ChosenMap, Error, Maps, choose_map, folder_of, packed, read_config};
use super::{
    BaseModel, ENDING, FoundUpdates, ModuleUpdate, ShapeFn, UpdateError, UpdateFinder, UpdateTarget,
};

/// Maximum length of a chain of names that refer to each other.
const MAX_NAMES: usize = 8;

/// A map that may have the modules, with a configuration.
pub(super) struct CandidateMap {
    name: String,
    map: Map,
    text: Option<TextModel>,
    json: Json,
    checkpoint: Checkpoint,
    /// Whether the configuration is derived from the parameters and therefore incomplete.
    is_partial: bool,
    /// The integers that the configuration must have.
    expected: Vec<(String, Json)>,
}

impl CandidateMap {
    fn chosen(chosen: ChosenMap<'_>, json: Json) -> Self {
        Self {
            name: name_of(&chosen.source.path).to_owned(),
            map: chosen.map,
            text: chosen.text,
            json,
            checkpoint: chosen.checkpoint,
            is_partial: false,
            expected: Vec::new(),
        }
    }

    /// The updates that the map makes of the modules.
    pub(super) fn updates(
        &self,
        common: &Map,
        modules: &[ModuleUpdate],
        shape_of: ShapeFn<'_>,
    ) -> Result<FoundUpdates, UpdateError> {
        let modules = renamed(modules, self.text.as_ref());
        let config = match self.is_partial {
            true => Config::partial(&self.map, &self.json, &self.checkpoint),
            false => Config::new(&self.map, &self.json, &self.checkpoint),
        };
        let found = UpdateFinder::new(&self.map, &config, &modules, shape_of)?.all(common)?;
        let differs = |(key, value): &&(String, Json)| {
            let stated = config.value_if_read(key);
            stated.is_some_and(|stated| stated.is_i64() && *stated != *value)
        };
        match self.expected.iter().find(differs) {
            Some((key, value)) => Err(UpdateError::Other(format!(
                "`{key}` of the {CONFIG} in the adapter's folder is not {value}, which it is of the model"
            ))),
            None => Ok(found),
        }
    }

    /// Words that occur in the names of models of this map.
    fn words(&self) -> impl Iterator<Item = String> {
        let types = self.map.types.iter().map(|name| name.value.as_str());
        let classes = self.map.classes.iter().map(|class| {
            let class = class.value.as_str();
            let class = class.split("For").next().unwrap_or(class);
            class.strip_suffix("Model").unwrap_or(class)
        });
        types.chain(classes).map(str::to_lowercase)
    }

    /// The first of these names that matches this map.
    fn named<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let words: Vec<String> = self.words().filter(|word| !word.is_empty()).collect();
        let is_named = |name: &&&str| {
            let name = name.to_lowercase();
            words.iter().any(|word| name.contains(word.as_str()))
        };
        names.iter().find(is_named).copied()
    }
}

/// Modules with the names that they have in the text model within their model.
fn renamed(modules: &[ModuleUpdate], text: Option<&TextModel>) -> Vec<ModuleUpdate> {
    let name_of = |name: &str| {
        let name = text?.name_of(&format!("{name}{ENDING}"))?;
        name.strip_suffix(ENDING).map(str::to_owned)
    };
    let modules = modules.iter().map(|module| ModuleUpdate {
        name: name_of(&module.name).unwrap_or_else(|| module.name.clone()),
        ..module.clone()
    });
    modules.collect()
}

/// The maps that may have the modules, the most likely first.
pub(super) fn candidates(
    path: &Path,
    model: &UpdateTarget<'_>,
    maps: &Maps,
) -> Result<Vec<CandidateMap>, Error> {
    let origin = match model {
        UpdateTarget::Folder(base) => {
            let inner = EmbeddingModules::read(folder_of(base))?.transformer;
            let base = inner.as_deref().unwrap_or(base);
            let folder = folder_of(base);
            let mut json = read_config(&folder.join(CONFIG))?;
            let mut chosen = choose_map(folder, maps, &mut json, |_| Ok(Checkpoint::open(base)?))?;
            packed::PackedMatrices::take(&mut json, folder, &mut chosen.checkpoint)?;
            return Ok(vec![CandidateMap::chosen(chosen, json)]);
        }
        UpdateTarget::Arch(origin) => origin,
    };
    let refuse = |message: String| Error::Config {
        path: path.to_owned(),
        message,
    };
    let own = path.join(CONFIG);
    if own.is_file() {
        let mut json = read_config(&own)?;
        let chosen = choose_map(path, maps, &mut json, |_| Ok(Checkpoint::default()))?;
        let mut candidate = CandidateMap::chosen(chosen, json);
        origin.admit(&candidate, CONFIG).map_err(refuse)?;
        candidate.expected = known_keys(&candidate.map, maps.common(), origin.params);
        candidate.expected.retain(|(_, value)| value.is_i64());
        return Ok(vec![candidate]);
    }
    let mut found = maps.of_arch(origin.arch);
    if let Some(map) = origin.map {
        found.retain(|(name, _)| name == map);
        if found.is_empty() {
            return Err(refuse(format!(
                "the model was made with the map `{map}` of the architecture `{}`, which is not there: put the {CONFIG} of the base model into the adapter's folder",
                origin.arch
            )));
        }
    } else if let Some(class) = origin.class {
        let json = json!({ "architectures": [class] });
        match maps.of(path, &json) {
            // The class of the text model within it is not stated.
            Ok((_, map)) if map.text.is_some() => {}
            Ok((source, map)) => {
                let candidate = origin.candidate(name_of(&source.path), map, maps);
                let place = "the class in adapter_config.json";
                origin.admit(&candidate, place).map_err(refuse)?;
                return Ok(vec![candidate]);
            }
            // A map of another class may have the same modules.
            Err(error) => tracing::debug!(%error, "the adapter's class has no map"),
        }
    }
    found.sort_by_key(|(name, _)| name != origin.arch);
    let candidate = |(name, map): (String, Map)| origin.candidate(&name, map, maps);
    Ok(found.into_iter().map(candidate).collect())
}

impl BaseModel<'_> {
    fn candidate(&self, name: &str, map: Map, maps: &Maps) -> CandidateMap {
        CandidateMap {
            name: name.to_owned(),
            json: config_of(&known_keys(&map, maps.common(), self.params)),
            map,
            text: None,
            checkpoint: Checkpoint::default(),
            is_partial: true,
            expected: Vec::new(),
        }
    }

    /// Checks that the model may have been made with this map, to which `place` leads.
    fn admit(&self, candidate: &CandidateMap, place: &str) -> Result<(), String> {
        let CandidateMap { name, map, .. } = candidate;
        let archs = map.archs();
        if !archs.iter().any(|arch| arch == self.arch) {
            return Err(format!(
                "{place} is of the architecture `{}` (map `{name}`), the model is of `{}`",
                archs.join("` or `"),
                self.arch
            ));
        }
        match self.map.filter(|own| own != name) {
            Some(own) => Err(format!(
                "{place} leads to the map `{name}`, the model was made with `{own}`"
            )),
            None => Ok(()),
        }
    }
}

/// The keys of a configuration from which a map would make these parameters, for parameters that are plain keys.
fn known_keys(map: &Map, common: &Map, params: &BTreeMap<String, Value>) -> Vec<(String, Json)> {
    let mut known = Vec::new();
    for target in map.chain().chain([common]).flat_map(|map| &map.params) {
        let ParamValue::One(expr) = &target.value else {
            continue;
        };
        // A named value may be a key.
        let mut key = expr.as_name();
        for _ in 0..MAX_NAMES {
            let Some(value) = key.and_then(|key| map.values.get(key)) else {
                break;
            };
            key = value.as_name();
        }
        let value = params.get(&target.name.value).and_then(to_json);
        known.extend(key.map(str::to_owned).zip(value));
    }
    known
}

/// A configuration with these keys; the first value of a repeated key is used.
fn config_of(known: &[(String, Json)]) -> Json {
    let mut json = Json::Object(serde_json::Map::new());
    for (key, value) in known {
        let place = key.split('.').try_fold(&mut json, |at, part| {
            let fields = at.as_object_mut()?;
            let empty = || Json::Object(serde_json::Map::new());
            Some(fields.entry(part).or_insert_with(empty))
        });
        match place {
            Some(place) if place.as_object().is_some_and(serde_json::Map::is_empty) => {
                *place = value.clone();
            }
            _ => {}
        }
    }
    json
}

fn to_json(value: &Value) -> Option<Json> {
    Some(match value {
        Value::Bool(v) => (*v).into(),
        Value::Int(v) => (*v).into(),
        Value::Float(v) => (*v).into(),
        Value::Str(v) => v.as_str().into(),
        Value::List(items) => Json::Array(items.iter().map(to_json).collect::<Option<_>>()?),
    })
}

/// The results of the maps.
#[derive(Default)]
pub(super) struct MapAttempts {
    /// The result of the first map that fits, and all maps with the same result.
    found: Option<(Vec<CandidateMap>, FoundUpdates)>,
    /// Maps that have another result, or too little information, with the difference.
    rivals: Vec<(CandidateMap, String)>,
    /// The reasons why no map fits: `known` is that of the first map that has the modules, `unknown` that of the first
    /// one that does not.
    known: Option<String>,
    unknown: Option<String>,
}

impl MapAttempts {
    pub(super) fn add(
        &mut self,
        candidate: CandidateMap,
        found: Result<FoundUpdates, UpdateError>,
    ) {
        let CandidateMap {
            name, is_partial, ..
        } = &candidate;
        let found = match found {
            Ok(found) => found,
            Err(UpdateError::Unknown(message)) => {
                self.unknown
                    .get_or_insert_with(|| format!("{message} (map `{name}`)"));
                return;
            }
            Err(UpdateError::Unfit(message)) => {
                self.known
                    .get_or_insert_with(|| format!("{message} (map `{name}`)"));
                return;
            }
            Err(UpdateError::Other(message)) => {
                let advice = match is_partial {
                    true => {
                        "; with the model's config.json in the adapter's folder more would be known"
                    }
                    false => "",
                };
                let message = format!("{message} (map `{name}`){advice}");
                self.known.get_or_insert(message);
                let difference = "may give other updates".to_owned();
                self.rivals.push((candidate, difference));
                return;
            }
        };
        match &mut self.found {
            None => self.found = Some((vec![candidate], found)),
            Some((all, first)) if first.updates == found.updates => all.push(candidate),
            Some((_, first)) => {
                let mut pairs = first.updates.iter().zip(&found.updates);
                let other = pairs.find(|(a, b)| a != b);
                let target = other.map_or("some weights", |(a, _)| a.name.as_str());
                let difference = format!("gives another update of `{target}`");
                self.rivals.push((candidate, difference));
            }
        }
    }

    /// The result of the first map that fits.
    pub(super) fn only(self) -> Result<FoundUpdates, String> {
        match self.found {
            Some((_, found)) => Ok(found),
            None => Err(self.known.or(self.unknown).unwrap_or_else(|| {
                "no map knows the names of its modules for this architecture; an adapter converted to GGUF needs none".into()
            })),
        }
    }

    /// The result of the right map.
    pub(super) fn settle(
        mut self,
        origin: &BaseModel<'_>,
        path: &Path,
    ) -> Result<FoundUpdates, String> {
        let rivals = std::mem::take(&mut self.rivals);
        let (Some((agreeing, _)), Some((rival, difference))) = (&self.found, rivals.first()) else {
            return self.only();
        };
        let own = &agreeing[0];
        let advice = format!(
            "put the {CONFIG} of the base model into the adapter's folder, or open the base model's folder"
        );
        let differ = format!(
            "the map `{}` fits the adapter, and the map `{}` {difference}",
            own.name, rival.name
        );
        let named = rivals
            .iter()
            .find_map(|(rival, _)| Some((rival, rival.named(&origin.names)?)));
        if let Some((rival, name)) = named {
            return Err(format!(
                "{differ}; the map is ambiguous, for the name `{name}` suggests `{}`: {advice}",
                rival.name
            ));
        }
        if own.name != origin.arch {
            return Err(format!("{differ}; nothing says which is right: {advice}"));
        }
        match agreeing.iter().find_map(|map| map.named(&origin.names)) {
            Some(name) => tracing::debug!(
                "{}: the map `{}` by the name `{name}`",
                path.display(),
                own.name
            ),
            None => tracing::warn!(
                "{}: {differ}; the first is assumed, and to be sure {advice}",
                path.display()
            ),
        }
        self.only()
    }
}
