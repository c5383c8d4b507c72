//! The maps that fit a folder of an unknown class best, and the draft of a new map.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use serde_json::Value as Json;
use toml::de::DeTable;
use tracing::subscriber::{NoSubscriber, with_default};

use crate::arch::Library;
use lab_base::weights::Weights;
use lab_base::weights::safetensors::Checkpoint;

use super::apply::{MapAttempt, attempt};
use super::config::Config;
use super::definition::{Map, TensorOrigin};
use super::library::Maps;
use super::packed::PackedMatrices;
use super::{CONFIG, Error, folder_of, read_config};

/// The result of applying a map to a folder.
#[derive(Debug)]
pub struct MapFit {
    /// Name of the map.
    pub map: String,
    /// The architecture of the map.
    pub arch: String,
    /// Whether the map has the name that the folder gives as `model_type`.
    pub is_named: bool,
    /// The part of the folder for which the map has rules.
    pub weights: Weights,
    /// The requirements of the map that the folder does not meet, merged over layers.
    pub problems: Vec<String>,
    /// Stored tensors that no rule uses, with `{il}` and `{e}` for their first two numbers, and the shape of one of
    /// them, slowest dimension first.
    pub unused: Vec<String>,
    /// Keys of the configuration that are not read, with their values.
    pub unread: Vec<String>,
    /// The number of those stored tensors in `unused` whose last part has the name that a rule without tensors expects.
    pub n_renamed: usize,
    /// Tensors of the architecture, without their endings, whose rules find nothing stored.
    pub unmade: BTreeMap<String, UnmadeTensor>,
}

/// A tensor of an architecture whose rules find nothing stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnmadeTensor {
    /// Whether an unused stored tensor has the last part of the name that a rule expects.
    pub is_renamed: bool,
    /// Whether the conditions of its rules, in the first layer, do not hold.
    pub is_inactive: bool,
}

/// A folder of an unknown class.
#[derive(Debug)]
pub struct UnknownFolder {
    /// Names in `architectures` of its configuration.
    pub classes: Vec<String>,
    /// The object that contains the configuration of the text model, if it is not the whole configuration.
    pub nested: Option<String>,
    /// The prefix that most stored names have, if no map knows it.
    pub prefix: Option<String>,
}

/// Applies every map to a folder as if it were for the folder's class.
///
/// # Errors
/// The folder lacks files, or files are malformed.
pub fn fits(
    path: &Path,
    maps: &Maps,
    archs: &Library,
) -> Result<(UnknownFolder, Vec<MapFit>), Error> {
    let folder = folder_of(path);
    let mut json = read_config(&folder.join(CONFIG))?;
    let mut checkpoint = Checkpoint::open(path)?;
    let packed = PackedMatrices::take(&mut json, folder, &mut checkpoint)?;
    let names = json.get("architectures").and_then(Json::as_array);
    let names = names.into_iter().flatten().filter_map(Json::as_str);
    let classes = names.map(str::to_owned).collect();
    let mut objects = maps.text_objects().into_iter();
    let nested = objects.find(|name| json.get(name).is_some_and(Json::is_object));
    let contents = OpenedFolder {
        label: path.display().to_string(),
        json,
        checkpoint,
        packed,
    };
    let prefix = prefix_of(&contents.checkpoint, &maps.common().prefixes);
    let mut found = Vec::new();
    for (name, mut map) in maps.of_texts() {
        if map.nested.is_empty() {
            map.nested.extend(nested.clone());
        }
        map.prefixes.extend(prefix.clone());
        // Warnings of a map that is only tried are meaningless for the folder.
        let silent = NoSubscriber::default();
        let result = with_default(silent, || fit(name, &map, maps.common(), archs, &contents));
        found.extend(result?);
    }
    let folder = UnknownFolder {
        classes,
        nested,
        prefix,
    };
    Ok((folder, found))
}

/// The first part of most stored names, with its dot, unless it is one of the known prefixes.
fn prefix_of(checkpoint: &Checkpoint, known: &[String]) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, _) in checkpoint.tensors() {
        if let Some(end) = name.find('.') {
            *counts.entry(&name[..=end]).or_default() += 1;
        }
    }
    let (prefix, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let is_most = 2 * count > checkpoint.tensors().count();
    let is_new = known.iter().all(|other| other != prefix);
    (is_most && is_new).then(|| prefix.to_owned())
}

/// Whether a map is named after the type of a model.
fn is_named(name: &str, map: &Map, json: &Json) -> bool {
    let plain = |text: &str| text.replace('-', "_");
    let types = json.get("model_type").and_then(Json::as_str);
    types.is_some_and(|of| plain(of) == plain(name) || map.types.iter().any(|own| own.value == of))
}

struct OpenedFolder {
    label: String,
    json: Json,
    checkpoint: Checkpoint,
    packed: PackedMatrices,
}

/// Applies a map to a folder; none if the map's architecture follows from keys that the folder lacks.
fn fit(
    name: &str,
    map: &Map,
    common: &Map,
    archs: &Library,
    folder: &OpenedFolder,
) -> Result<Option<MapFit>, Error> {
    let config = Config::new(map, &folder.json, &folder.checkpoint);
    let Ok(arch) = config.arch() else {
        return Ok(None);
    };
    let def = archs.get(&arch)?;
    let MapAttempt {
        metadata,
        entries,
        problems,
        unmapped,
    } = attempt(map, common, &def, &config, &folder.packed);
    let problems = problems.into_iter().flatten();
    let left: BTreeSet<&str> = unmapped.tensors.iter().map(String::as_str).collect();
    let mut unused: BTreeMap<String, &[u64]> = BTreeMap::new();
    for (name, stored) in folder.checkpoint.tensors() {
        let name = folder.checkpoint.stored_name(name);
        if left.contains(name) {
            unused.entry(pattern(name)).or_insert(&stored.shape);
        }
    }
    let made: BTreeSet<String> = entries
        .iter()
        .map(|entry| without_ending(&pattern(&entry.name)).to_owned())
        .collect();
    let (n_renamed, unmade) = compared(map, &config, &made, unused.keys());
    let unused = unused.into_iter();
    Ok(Some(MapFit {
        map: name.to_owned(),
        arch,
        is_named: is_named(name, map, &folder.json),
        weights: Weights::of(folder.label.clone(), metadata, entries)?,
        problems: problems.map(|problem| problem.message).collect(),
        unused: unused
            .map(|(name, shape)| format!("{name} {shape:?}"))
            .collect(),
        unread: unmapped.keys,
        n_renamed,
        unmade,
    }))
}

/// Compares the rules that find nothing stored with the stored names that no rule uses: the number of the names that
/// such a rule knows by their last part, and the tensors of the rules. `made`: the tensors that exist.
fn compared<'n>(
    map: &Map,
    config: &Config<'_>,
    made: &BTreeSet<String>,
    unused: impl Iterator<Item = &'n String>,
) -> (usize, BTreeMap<String, UnmadeTensor>) {
    let stored: Vec<(usize, String)> = unused.map(|name| last_part(name)).collect();
    let plain = config.plain();
    let first = plain.with("il", 0);
    let mut expected = BTreeSet::new();
    let mut unmade: BTreeMap<String, UnmadeTensor> = BTreeMap::new();
    for group in map.chain().flat_map(|map| &map.groups) {
        for rule in &group.tensors {
            let name = pattern(&filled(&format!("{}{}", group.prefix, rule.name.value)));
            let name = without_ending(&name).to_owned();
            let TensorOrigin::Of(of) = &rule.made else {
                continue;
            };
            if made.contains(&name) {
                continue;
            }
            let names = of.parts.iter();
            let names =
                names.map(|part| last_part(&filled(&format!("{}{}", group.from, part.from.value))));
            let names: Vec<_> = names.collect();
            let is_new = !unmade.contains_key(&name);
            let tensor = unmade.entry(name).or_default();
            tensor.is_renamed |= names.iter().any(|name| stored.contains(name));
            let when = rule.when.as_ref().map(|when| first.truth(when));
            tensor.is_inactive = (is_new || tensor.is_inactive) && when == Some(Ok(false));
            expected.extend(names);
        }
    }
    let n_renamed = stored.iter().filter(|name| expected.contains(name)).count();
    (n_renamed, unmade)
}

/// The number of indices in a stored name, and its last part that is no index.
fn last_part(name: &str) -> (usize, String) {
    let name = pattern(name);
    let (indices, parts): (Vec<&str>, Vec<&str>) = without_ending(&name)
        .split('.')
        .partition(|part| part.starts_with('{'));
    let last = parts.last().copied().unwrap_or_default();
    (indices.len(), last.to_owned())
}

/// A name without the ending that rules may leave out.
fn without_ending(name: &str) -> &str {
    let ends = [".weight", ".bias"];
    ends.iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(name)
}

/// A name of a rule with a number in place of each index and expression.
fn filled(name: &str) -> String {
    let mut out = String::new();
    let mut rest = name;
    while let Some((head, tail)) = rest.split_once('{') {
        out.push_str(head);
        out.push('0');
        rest = tail.split_once('}').map_or("", |(_, tail)| tail);
    }
    out + rest
}

/// A stored name with `{il}` and `{e}` in place of its first two numbers.
fn pattern(name: &str) -> String {
    let mut indices = ["{il}", "{e}"].into_iter();
    let parts = name.split('.').map(|part| {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        match is_number {
            true => indices.next().unwrap_or(part),
            false => part,
        }
    });
    parts.collect::<Vec<_>>().join(".")
}

/// The text of a map that extends another for the classes of a folder.
pub fn draft_extending_map(base: &str, folder: &UnknownFolder) -> String {
    let base = Json::from(base);
    format!("extends = {base}\n{}", own_keys(folder, ""))
}

/// The keys in which the map of a folder differs from any other; `text` is the text of the map that it begins with.
fn own_keys(folder: &UnknownFolder, text: &str) -> String {
    let mut out = format!("classes = {}\n", list(&folder.classes));
    if let Some(nested) = &folder.nested {
        out.push_str(&format!("nested = {}\n", Json::from(nested.as_str())));
    }
    let prefix = folder.prefix.as_ref();
    if let Some(prefix) = prefix.filter(|prefix| !text.contains(&format!("\"{prefix}"))) {
        out.push_str(&format!(
            "prefixes = {}\n",
            list(std::slice::from_ref(prefix))
        ));
    }
    out
}

/// The text of a map with another architecture and other classes, without its first comment.
pub fn draft_map(text: &str, arch: &str, folder: &UnknownFolder) -> String {
    let start = text
        .split_inclusive('\n')
        .take_while(|line| line.starts_with('#') || line.trim().is_empty())
        .map(str::len)
        .sum::<usize>();
    let text = text.get(start..).unwrap_or_default();
    let root = DeTable::parse_recoverable(text).0;
    let entry = |key: &str| -> Option<Range<usize>> {
        let (name, value) = root.get_ref().get_key_value(key)?;
        // The removed range includes the comment that follows the value.
        let end = value.span().end;
        let end = text[end..].find('\n').map_or(text.len(), |at| end + at + 1);
        Some(name.span().start..end)
    };
    let own = own_keys(folder, text);
    let mut gone: Vec<Range<usize>> = ["arch", "classes", "model_types", "nested", "prefixes"]
        .iter()
        .filter(|key| **key != "nested" || folder.nested.is_some())
        .filter(|key| **key != "prefixes" || own.contains("prefixes"))
        .filter_map(|key| entry(key))
        .collect();
    gone.sort_by_key(|range| range.start);
    let mut out = format!("arch = {}\n{own}", Json::from(arch));
    let mut at = 0;
    for range in gone {
        out.push_str(&text[at..range.start]);
        at = range.end;
    }
    out + &text[at..]
}

/// Names as a TOML list.
fn list(names: &[String]) -> String {
    let names = names
        .iter()
        .map(|name| Json::from(name.as_str()).to_string());
    format!("[{}]", names.collect::<Vec<_>>().join(", "))
}
