//! The library of maps: those built into the program and those of the user's folders.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::arch::expr::Value;
use crate::arch::{Diagnostic, Diagnostics, Library, LibraryError, SourceFile, Spanned, nearest};

use super::definition::Map;
use super::missing::missing_feature_of;
use super::parameters::key_of;
use super::{CONFIG, Error, read};

include!(concat!(env!("OUT_DIR"), "/embedded_stmaps.rs"));

/// Ending of a map's file name.
pub const ENDING: &str = ".arch.stmap.toml";

/// Ending of the file name of a tower's map.
pub const TOWER_ENDING: &str = ".tower.stmap.toml";

/// Ending of the file name of a map of folders to a drafter.
const DRAFTER_ENDING: &str = ".drafter.stmap.toml";

/// Ending of the file name of the map of a projector file.
pub const MMPROJ_ENDING: &str = ".mmproj.stmap.toml";

/// All known maps, by name.
#[derive(Clone, Debug)]
pub struct Maps {
    /// What has the keys that the maps read, for messages.
    configuration: &'static str,
    common: Map,
    common_source: SourceFile,
    sources: BTreeMap<String, SourceFile>,
}

impl Maps {
    /// The built-in maps and those in `folders`, which replace maps of the same name.
    ///
    /// # Errors
    /// The folder cannot be read, or the text that all maps share has problems.
    pub fn open(folders: &[PathBuf]) -> Result<Self, LibraryError> {
        Self::of_files(folders, (EMBEDDED_STMAPS, ENDING))
    }

    /// The built-in maps of towers and those in `folders`.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub fn towers(folders: &[PathBuf]) -> Result<Self, LibraryError> {
        Self::of_files(folders, (EMBEDDED_TOWER_STMAPS, TOWER_ENDING))
    }

    /// The built-in maps of folders to drafters and those in `folders`.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub fn drafters(folders: &[PathBuf]) -> Result<Self, LibraryError> {
        Self::of_files(folders, (EMBEDDED_DRAFTER_STMAPS, DRAFTER_ENDING))
    }

    /// The built-in maps of projector files and those in `folders`.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub fn mmproj(folders: &[PathBuf]) -> Result<Self, LibraryError> {
        let maps = Self::of_files(folders, (EMBEDDED_MMPROJ_STMAPS, MMPROJ_ENDING))?;
        Ok(Self {
            configuration: "the file",
            ..maps
        })
    }

    fn of_files(
        folders: &[PathBuf],
        (embedded, ending): (&[(&str, &str)], &str),
    ) -> Result<Self, LibraryError> {
        let common_source = SourceFile::embedded("stmaps/common.toml", EMBEDDED_COMMON);
        let common = read::parse_common(&common_source.path, &common_source.text)?;
        let mut sources = BTreeMap::new();
        for (name, text) in embedded {
            let source = SourceFile::embedded(format!("stmaps/{name}{ending}"), text);
            sources.insert((*name).to_owned(), source);
        }
        sources.extend(crate::arch::sources_in(folders, ending)?);
        Ok(Self {
            configuration: CONFIG,
            common,
            common_source,
            sources,
        })
    }

    pub(super) fn common(&self) -> &Map {
        &self.common
    }

    pub(super) fn common_source(&self) -> &SourceFile {
        &self.common_source
    }

    /// Names and texts of the maps, in the order of the names.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &SourceFile)> {
        self.sources
            .iter()
            .map(|(name, source)| (name.as_str(), source))
    }

    /// The classes of every valid map, and the problems of the others.
    pub fn classes(&self) -> (Vec<(String, String)>, Vec<Diagnostics>) {
        let mut classes = Vec::new();
        let mut broken = Vec::new();
        for (name, source) in &self.sources {
            match self.parse(source) {
                Ok(map) => classes.extend(
                    map.classes
                        .into_iter()
                        .map(|class| (class.value, name.clone())),
                ),
                Err(problems) => broken.push(problems),
            }
        }
        (classes, broken)
    }

    /// The valid maps of an architecture, with their names.
    pub(super) fn of_arch(&self, arch: &str) -> Vec<(String, Map)> {
        let names = [arch];
        let is_of = |map: &Map| map.archs().iter().any(|name| name == arch);
        let maps = self.sound(&names).filter(|(.., map)| is_of(map));
        maps.map(|(name, _, map)| (name.clone(), map)).collect()
    }

    /// The map for a configuration. A broken map affects only its own classes.
    pub(super) fn of(&self, path: &Path, json: &Json) -> Result<(&SourceFile, Map), Error> {
        let refuse = |message: String| Error::NoMap {
            path: path.to_owned(),
            message,
        };
        let names = json.get("architectures").and_then(Json::as_array);
        let classes: Vec<&str> = names
            .into_iter()
            .flatten()
            .filter_map(Json::as_str)
            .collect();
        if classes.is_empty() {
            return Err(refuse("`architectures` names no class".into()));
        }
        let types: Vec<&str> = json
            .get("model_type")
            .and_then(Json::as_str)
            .into_iter()
            .collect();
        let wanted = self.served(&classes);
        let mut best: Option<(usize, &SourceFile, Map)> = None;
        for (_, source) in self.naming(&wanted) {
            match self.parse(source) {
                Ok(map) => {
                    let names = map.classes.iter().map(|class| &class.value);
                    let ranks = names.filter_map(|n| wanted.iter().position(|w| w == n));
                    match ranks.min() {
                        // The map is for the class itself, so no other map is nearer.
                        Some(0) => return Ok(self.of_type((source, map), &types)),
                        Some(rank) if best.as_ref().is_none_or(|(other, ..)| rank < *other) => {
                            best = Some((rank, source, map));
                        }
                        Some(_) | None => {}
                    }
                }
                // The broken map's classes cannot be read, but its text contains this class.
                Err(problems) if classes.iter().any(|class| source.text.contains(class)) => {
                    return Err(Error::BrokenMap(problems));
                }
                Err(_) => {}
            }
        }
        if let Some((_, source, map)) = best {
            return Ok(self.of_type((source, map), &types));
        }
        if let Some(need) = missing_feature_of(&wanted) {
            let classes = classes.join("`, `");
            return Err(refuse(format!(
                "no map is for `{classes}` yet, which needs {need} (--archs DIR adds maps of your own)"
            )));
        }
        // A common ending such as `ForCausalLM` does not make classes similar.
        let family = |class: &'_ str| class.split("For").next().map_or(0, str::len);
        let known = self.classes().0;
        let known = || known.iter().map(|(class, _)| class.as_str());
        let families = known().map(|class| &class[..family(class)]);
        let near = nearest(&classes[0][..family(classes[0])], families);
        let near = near
            .and_then(|near| {
                let own = known().filter(|class| class[..family(class)] == *near);
                nearest(classes[0], own.clone()).or_else(|| own.clone().next())
            })
            .map(|near| format!("; the nearest is `{near}`"))
            .unwrap_or_default();
        Err(refuse(format!(
            "no map is for `{}`{near} (--archs DIR adds maps of your own)",
            classes.join("`, `")
        )))
    }

    /// The maps of towers of a model with this configuration, one for each tower. A map with types is for towers of these
    /// types alone.
    ///
    /// # Errors
    /// A map whose text names one of the classes is broken.
    pub(super) fn of_towers(&self, json: &Json) -> Result<Vec<(&SourceFile, Map)>, Error> {
        let names = json.get("architectures").and_then(Json::as_array);
        let classes = names.into_iter().flatten().filter_map(Json::as_str);
        let classes: Vec<&str> = classes.collect();
        let mut found = Vec::new();
        for (_, source) in self.naming(&classes) {
            let map = self.parse(source).map_err(Error::BrokenMap)?;
            let own = match map.nested.is_empty() {
                true => Some(json),
                false => map.nested_in(json).map(|(_, object)| object),
            };
            let own = own.and_then(|own| own.get("model_type")?.as_str());
            let is_of_type = map.types.is_empty() || contains(&map.types, own.as_slice());
            if is_of_type && contains(&map.classes, &classes) {
                found.push((source, map));
            }
        }
        Ok(found)
    }

    /// The map for a type of projector whose keys are in an object.
    ///
    /// # Errors
    /// A map whose text names the type is broken.
    pub(super) fn of_projector(
        &self,
        kind: &str,
        object: &str,
    ) -> Result<Option<(&SourceFile, Map)>, Error> {
        for (_, source) in self.naming(&[kind]) {
            let map = self.parse(source).map_err(Error::BrokenMap)?;
            if contains(&map.classes, &[kind]) && map.nested == [object] {
                return Ok(Some((source, map)));
            }
        }
        Ok(None)
    }

    /// The map for the configuration of a text model within another model, by its class or, if that fails, by its type.
    pub(super) fn of_text(
        &self,
        classes: &[&str],
        model_type: &[&str],
    ) -> Option<(&SourceFile, Map)> {
        let of_class = self.find(classes, |map| &map.classes);
        match of_class {
            Some(found) => Some(self.of_type(found, model_type)),
            None => self.find(model_type, |map| &map.types),
        }
    }

    /// The map of a class, or that of the type of the configuration if it says more: transformers computes several types
    /// with one class, and stores the tensors of each under names of its own.
    fn of_type<'m>(
        &'m self,
        (source, map): (&'m SourceFile, Map),
        model_type: &[&str],
    ) -> (&'m SourceFile, Map) {
        let is_open = map.text.is_none() && !map.types.is_empty();
        let other = match is_open && !contains(&map.types, model_type) {
            true => self.find(model_type, |map| &map.types),
            false => None,
        };
        other.unwrap_or((source, map))
    }

    /// The first map of a text model among whose names one of these is.
    fn find(
        &self,
        names: &[&str],
        of: fn(&Map) -> &[Spanned<String>],
    ) -> Option<(&SourceFile, Map)> {
        let is_it = |map: &Map| map.text.is_none() && contains(of(map), names);
        let mut maps = self.sound(names);
        maps.find_map(|(_, source, map)| is_it(&map).then_some((source, map)))
    }

    /// All valid maps of text models, with their names.
    pub(super) fn of_texts(&self) -> impl Iterator<Item = (&str, Map)> {
        let maps = self.sources.iter();
        let maps =
            maps.filter_map(|(name, source)| Some((name.as_str(), self.parse(source).ok()?)));
        maps.filter(|(_, map)| map.text.is_none())
    }

    /// The objects of a configuration that may be the configuration of a text model.
    pub(super) fn text_objects(&self) -> BTreeSet<String> {
        let maps = self.sources.values();
        let texts = maps.filter_map(|source| self.parse(source).ok()?.text);
        texts.flat_map(|text| text.objects).collect()
    }

    /// The text of a map.
    pub fn source(&self, name: &str) -> Option<&SourceFile> {
        self.sources.get(name)
    }

    /// The maps whose texts contain one of these names. Parsing a map takes far longer than searching its text.
    fn naming(&self, names: &[impl AsRef<str>]) -> impl Iterator<Item = (&String, &SourceFile)> {
        let has =
            |source: &SourceFile| names.iter().any(|name| source.text.contains(name.as_ref()));
        self.sources.iter().filter(move |(_, source)| has(source))
    }

    /// The valid maps whose texts contain one of these names, with their names.
    pub(super) fn sound(
        &self,
        names: &[&str],
    ) -> impl Iterator<Item = (&String, &SourceFile, Map)> {
        let maps = self.naming(names);
        maps.filter_map(|(name, source)| Some((name, source, self.parse(source).ok()?)))
    }

    /// Checks the text of a map, whose base may be any of these, and the names of its parameters if its architecture
    /// does not depend on the folder.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn check(&self, source: &SourceFile, archs: &Library) -> Result<(), Diagnostics> {
        let map = self.parse(source)?;
        // An inherited name has its place in another text.
        let own = read::parse(&source.path, &source.text)?;
        let is_own = own.arch.is_some();
        let Some(arch) = &map.arch else { return Ok(()) };
        let Some(Value::Str(name)) = arch.value.as_literal() else {
            return Ok(());
        };
        let problems = match archs.get(name) {
            Ok(def) => {
                let params = map.params.iter();
                params
                    .filter_map(|param| key_of(param, &def).err())
                    .collect()
            }
            Err(LibraryError::Unknown { .. }) if is_own => {
                let known = archs.sources().map(|(name, _)| name);
                vec![Diagnostic::unknown(
                    arch.span.clone(),
                    "architecture",
                    name,
                    known,
                )]
            }
            // The definition reports its own problems.
            Err(_) => return Ok(()),
        };
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Diagnostics::new(&source.path, &source.text, problems)),
        }
    }

    fn parse(&self, source: &SourceFile) -> Result<Map, Diagnostics> {
        self.parse_within(source, &[])
    }

    /// Reads a map that others extend: those named in `outer`, from the outermost on.
    fn parse_within(&self, source: &SourceFile, outer: &[&str]) -> Result<Map, Diagnostics> {
        let mut map = read::parse(&source.path, &source.text)?;
        map.configuration = self.configuration;
        let Some(name) = &map.extends else {
            return Ok(map.completed(None, &self.common));
        };
        let refuse = |problem| Diagnostics::new(&source.path, &source.text, vec![problem]);
        let open = [outer, &[name_of(&source.path)]].concat();
        if open.contains(&name.value.as_str()) {
            let message = format!("`{}` would extend itself", name.value);
            return Err(refuse(Diagnostic::new(name.span.clone(), message)));
        }
        let Some(base) = self.sources.get(&name.value) else {
            let known = self.sources.keys().map(String::as_str);
            let span = name.span.clone();
            return Err(refuse(Diagnostic::unknown(span, "map", &name.value, known)));
        };
        let inner = self.parse_within(base, &open)?;
        Ok(map.completed(Some((base.clone(), inner)), &self.common))
    }

    /// The given classes, then the classes whose maps also serve them.
    fn served(&self, classes: &[&str]) -> Vec<String> {
        let mut all: Vec<String> = classes.iter().map(|class| (*class).to_owned()).collect();
        let mut endings: Vec<_> = self.common.endings.iter().collect();
        endings.sort_by_key(|(ending, _)| std::cmp::Reverse(ending.len()));
        for class in classes {
            for (ending, others) in &endings {
                let stem = class.strip_suffix(ending.as_str());
                let others = others.iter();
                let others = others.map(|other| stem.map(|stem| format!("{stem}{other}")));
                all.extend(others.flatten());
            }
        }
        all
    }
}

/// The name of a map, from the path of its file.
pub(super) fn name_of(path: &str) -> &str {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    let name = name.strip_suffix(ENDING).unwrap_or(name);
    let name = name.strip_suffix(TOWER_ENDING).unwrap_or(name);
    let name = name.strip_suffix(DRAFTER_ENDING).unwrap_or(name);
    name.strip_suffix(MMPROJ_ENDING).unwrap_or(name)
}

/// Whether `any` contains one of the names.
fn contains(names: &[Spanned<String>], any: &[&str]) -> bool {
    names.iter().any(|name| any.contains(&name.value.as_str()))
}
