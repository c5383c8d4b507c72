//! Low-rank updates of stored matrices, as updates of ours.
//!
//! A map says of which stored matrices each of our tensors is made, in which order of elements
//! ([`rearrange`](super::rearrange)). An update of a stored matrix is a product `rows . cols` of a
//! matrix with one row for each of its rows and one with one column for each of its columns. So the
//! update of ours is a product again as long as each of our axes is made of axes of one side: what
//! happens to rows happens to `rows`, what happens to columns to `cols`. Parts one behind the other
//! have ranks of their own, one behind the other; experts have one each. What does not come apart like
//! this is refused by name. The elements are read when they are asked for ([`product`]).

mod product;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::arch::expr::Value;
use crate::weights::safetensors::{Checkpoint, Dtype};
use crate::weights::{Bytes, Entry, folder};

use super::apply::view;
use super::config::{At, Config, fill};
use super::definition::{Given, Group, Made, Map, Taken, TensorRule, TextModel};
use super::modules::Modules;
use super::recipe::{ELEMENT, Each, INDEX};
use super::{CONFIG, Chosen, Error, Maps, choose, folder_of, packed, read_config};
use product::{Block, Product, sizes};

/// Layers beyond any real model.
const MAX_LAYERS: u64 = 4096;
/// Most names that stand for each other.
const MAX_NAMES: usize = 8;
/// What a stored matrix of a module is called behind the module's name.
const ENDING: &str = ".weight";

/// One of the two matrices of an update, as it is stored.
#[derive(Clone, Debug)]
pub struct Factor {
    /// The file.
    pub file: Bytes,
    /// Where the matrix begins in it.
    pub offset: usize,
    /// Element type.
    pub dtype: Dtype,
    /// Rows and columns.
    pub shape: [u64; 2],
}

/// The update `up . down` of a module's matrix: `down [rank, n_in]`, `up [n_out, rank]`.
#[derive(Clone, Debug)]
pub struct Module {
    /// The module, as the class of the model calls it.
    pub name: String,
    /// Multiplied first.
    pub down: Factor,
    /// Multiplied second.
    pub up: Factor,
    /// What the product is multiplied by.
    pub factor: f64,
    /// Whether the stored matrix is `[n_in, n_out]`, where its shape does not tell.
    pub is_turned: bool,
}

/// The model that updates are for.
pub enum Updated<'a> {
    /// A folder that a map is for.
    Folder(&'a Path),
    /// Of an architecture, with its parameters; stored under our names.
    Arch(&'a str, &'a BTreeMap<String, Value>),
}

/// Shape in ggml order of one of our tensors, and whether it is a table whose rows are looked up.
pub type ShapeOf<'a> = &'a dyn Fn(&str) -> Option<(Vec<u64>, bool)>;

/// The updates of our tensors that the modules of the folder at `path` make: `NAME.lora_a` and
/// `NAME.lora_b`, f32.
///
/// # Errors
/// Modules that the map of the model does not know, shapes that do not fit, and what is not a product
/// any more when the map has rearranged it.
pub fn updates(
    path: &Path,
    model: &Updated<'_>,
    maps: &Maps,
    modules: &[Module],
    shape_of: ShapeOf<'_>,
) -> Result<Vec<Entry>, Error> {
    let refuse = |message: String| Error::Config {
        path: path.to_owned(),
        message,
    };
    let mut first = None;
    let is_partial = matches!(model, Updated::Arch(..)) && !path.join(CONFIG).is_file();
    for (name, map, text, json, checkpoint) in candidates(path, model, maps)? {
        let modules = renamed(modules, text.as_ref());
        let config = match is_partial {
            true => Config::partial(&map, &json, &checkpoint),
            false => Config::new(&map, &json, &checkpoint),
        };
        let mut work = Work {
            map: &map,
            config: &config,
            checkpoint: Some(&checkpoint).filter(|c| c.tensors().next().is_some()),
            modules: modules.iter().map(|m| (m.name.as_str(), m)).collect(),
            used: BTreeSet::new(),
            names: BTreeSet::new(),
            entries: Vec::new(),
            shape_of,
        };
        match work.all(maps.common()) {
            Ok(()) => {
                tracing::debug!(map = name, "names of the adapter's modules");
                return Ok(work.entries);
            }
            // Another map may know the names. One that knows them, and fails, is right.
            Err(Fault::Unknown(message)) => {
                first = first.or(Some(format!("{message} (map `{name}`)")));
            }
            Err(Fault::Other(message)) => {
                let advice = match is_partial {
                    true => "; with the model's config.json beside the adapter more would be known",
                    false => "",
                };
                return Err(refuse(format!("{message} (map `{name}`){advice}")));
            }
        }
    }
    Err(refuse(first.unwrap_or_else(|| {
        "no map knows the names of its modules for this architecture; an adapter converted to GGUF needs none".into()
    })))
}

/// Why a map gives no updates.
enum Fault {
    /// It does not know a module.
    Unknown(String),
    Other(String),
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self::Other(message)
    }
}

type Candidate = (String, Map, Option<TextModel>, Json, Checkpoint);

/// Modules with the names that they have in the text model of their model.
fn renamed(modules: &[Module], text: Option<&TextModel>) -> Vec<Module> {
    let name_of = |name: &str| {
        let name = text?.name_of(&format!("{name}{ENDING}"))?;
        name.strip_suffix(ENDING).map(str::to_owned)
    };
    let modules = modules.iter().map(|module| Module {
        name: name_of(&module.name).unwrap_or_else(|| module.name.clone()),
        ..module.clone()
    });
    modules.collect()
}

/// The maps that may know the modules, the likeliest first, each with a configuration.
fn candidates(path: &Path, model: &Updated<'_>, maps: &Maps) -> Result<Vec<Candidate>, Error> {
    let candidate = |chosen: Chosen<'_>, json: Json| {
        let name = chosen.source.path.clone();
        vec![(name, chosen.map, chosen.text, json, chosen.checkpoint)]
    };
    let (arch, params) = match model {
        Updated::Folder(base) => {
            let inner = Modules::read(folder_of(base))?.transformer;
            let base = inner.as_deref().unwrap_or(base);
            let folder = folder_of(base);
            let mut json = read_config(&folder.join(CONFIG))?;
            let mut chosen = choose(folder, maps, &mut json, |_| Ok(Checkpoint::open(base)?))?;
            packed::Table::take(&mut json, folder, &mut chosen.checkpoint)?;
            return Ok(candidate(chosen, json));
        }
        Updated::Arch(arch, params) => (*arch, *params),
    };
    // The configuration of the model may lie beside the adapter.
    let beside = path.join(CONFIG);
    if beside.is_file() {
        let mut json = read_config(&beside)?;
        let chosen = choose(path, maps, &mut json, |_| Ok(Checkpoint::default()))?;
        return Ok(candidate(chosen, json));
    }
    let mut found = maps.of_arch(arch);
    found.sort_by_key(|(name, _)| name != arch);
    let candidate = |(name, map): (String, Map)| {
        let json = config_of(&map, maps.common(), params);
        (name, map, None, json, Checkpoint::default())
    };
    Ok(found.into_iter().map(candidate).collect())
}

/// Whether a folder's tensors have our names.
pub fn has_our_names(path: &Path) -> bool {
    let json = read_config(&folder_of(path).join(CONFIG));
    json.is_ok_and(|json| folder::is_config(&json))
}

/// The configuration from which a map would make these parameters, as far as it names its keys.
fn config_of(map: &Map, common: &Map, params: &BTreeMap<String, Value>) -> Json {
    let mut json = Json::Object(serde_json::Map::new());
    for target in map.params.iter().chain(&common.params) {
        let Given::One(expr) = &target.value else {
            continue;
        };
        // A named value may stand for a key.
        let mut key = expr.as_name();
        for _ in 0..MAX_NAMES {
            let Some(value) = key.and_then(|key| map.values.get(key)) else {
                break;
            };
            key = value.as_name();
        }
        let value = params.get(&target.name.value).and_then(to_json);
        let (Some(key), Some(value)) = (key, value) else {
            continue;
        };
        let parts: Vec<&str> = key.split('.').collect();
        let place = parts.iter().try_fold(&mut json, |at, part| {
            let fields = at.as_object_mut()?;
            let empty = || Json::Object(serde_json::Map::new());
            Some(fields.entry(*part).or_insert_with(empty))
        });
        match place {
            Some(place) if place.as_object().is_some_and(serde_json::Map::is_empty) => {
                *place = value;
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

/// The work of finding updates.
struct Work<'a> {
    map: &'a Map,
    config: &'a Config<'a>,
    /// What is stored of the model, where it is a folder.
    checkpoint: Option<&'a Checkpoint>,
    modules: HashMap<&'a str, &'a Module>,
    used: BTreeSet<&'a str>,
    /// Our names that are taken.
    names: BTreeSet<String>,
    entries: Vec<Entry>,
    shape_of: ShapeOf<'a>,
}

/// A stored matrix of a rule, and its update if it has one.
struct Source<'a, 'r> {
    name: String,
    taken: &'r Taken,
    module: Option<&'a Module>,
}

impl<'a> Work<'a> {
    fn all(&mut self, common: &Map) -> Result<(), Fault> {
        let config = self.config;
        for group in self.map.groups.iter().chain(&common.groups) {
            let plain = config.plain();
            let Some((count, first)) = &group.layers else {
                self.group(group, &plain)?;
                continue;
            };
            let first = first.as_ref().map_or(Ok(0), |first| plain.size(first))?;
            let count = plain.size(count)?.min(MAX_LAYERS);
            for il in first..count {
                self.group(group, &plain.with("il", il))?;
            }
        }
        let unknown = self.modules.keys().find(|name| !self.used.contains(*name));
        match unknown {
            Some(name) => Err(Fault::Unknown(format!(
                "no tensor of the model is made of its module `{name}`"
            ))),
            None => Ok(()),
        }
    }

    fn group(&mut self, group: &Group, at: &At<'_>) -> Result<(), String> {
        for rule in &group.tensors {
            let name = fill(&format!("{}{}", group.prefix, rule.name.value), &at.indices);
            let has_ending = rule.name.value.contains('.');
            let name = if has_ending {
                name
            } else {
                format!("{name}{ENDING}")
            };
            if !self.names.contains(&name) {
                self.rule(group, rule, &name, !has_ending, at)
                    .map_err(|error| format!("`{name}`: {error}"))?;
            }
        }
        Ok(())
    }

    fn rule(
        &mut self,
        group: &Group,
        rule: &TensorRule,
        name: &str,
        adds_ending: bool,
        at: &At<'_>,
    ) -> Result<(), String> {
        let Made::Of(of) = &rule.made else {
            return Ok(());
        };
        // A count that the configuration lacks is a problem only where modules wait for it.
        let n_stacked = match &of.stack {
            None => None,
            Some(stack) => match (at.size(stack), (self.shape_of)(name)) {
                (Ok(n), Some((shape, _))) if shape.get(2) == Some(&n) => Some(n),
                _ => return Ok(()),
            },
        };
        let ending = if adds_ending { ENDING } else { "" };
        let found = self.map.roots.iter().find_map(|root| {
            let mut sources = Vec::new();
            for part in &of.parts {
                let template = format!("{root}{}{}{ending}", group.from, part.from.value);
                let template = fill(&template, &at.indices);
                for e in 0..n_stacked.unwrap_or(1) {
                    let name = fill(&template, &[("e", e)]);
                    let module = name.strip_suffix(ENDING);
                    let module = module.and_then(|module| self.modules.get(module));
                    sources.push(Source {
                        module: module.copied(),
                        name,
                        taken: &part.taken,
                    });
                }
            }
            let is_updated = sources.iter().any(|source| source.module.is_some());
            is_updated.then_some(sources)
        });
        let Some(sources) = found else { return Ok(()) };
        if !self.is_active(group, rule, name, at)? {
            return Ok(());
        }
        if rule.unit_rows {
            return Err("its rows are divided by their lengths, which is not linear".into());
        }
        let base = (self.shape_of)(name)
            .map(|(shape, _)| shape)
            .unwrap_or_default();
        let slopes = match &rule.each {
            None => vec![1.0],
            Some(each) => Each::new(at.bind(each, &[ELEMENT, INDEX])?)
                .slopes(base.last().copied().unwrap_or(1))?
                .ok_or("its elements are changed in a way that is not linear")?,
        };
        let used = sources.iter().filter_map(|s| s.module);
        self.used.extend(used.map(|module| module.name.as_str()));
        let update = self.update(name, &sources, n_stacked, slopes, at)?;
        self.names.insert(name.to_owned());
        self.entries.extend(update);
        Ok(())
    }

    /// Whether a rule holds. Where the configuration does not tell, the only rule of a tensor that is
    /// there does.
    fn is_active(
        &self,
        group: &Group,
        rule: &TensorRule,
        name: &str,
        at: &At<'_>,
    ) -> Result<bool, String> {
        let Some(when) = &rule.when else {
            return Ok(true);
        };
        let is_same = |other: &&TensorRule| other.name.value == rule.name.value;
        let is_only = group.tensors.iter().filter(is_same).count() == 1;
        at.truth(when)
            .or_else(|error| match is_only && self.checkpoint.is_none() {
                true => Ok((self.shape_of)(name).is_some()),
                false => Err(error),
            })
    }

    /// The two matrices of the update of one of our tensors.
    fn update(
        &self,
        name: &str,
        sources: &[Source<'a, '_>],
        n_stacked: Option<u64>,
        slopes: Vec<f64>,
        at: &At<'_>,
    ) -> Result<[Entry; 2], String> {
        let (base, is_table) = (self.shape_of)(name)
            .ok_or("the model has no such weight, and the adapter updates it")?;
        let of = |dim: usize| base.get(dim).copied().unwrap_or(1);
        let target = [of(2), of(1), of(0)];
        let mut parts = Vec::with_capacity(sources.len());
        let mut missing = None;
        for (i, source) in sources.iter().enumerate() {
            let part = self.part(source, at)?;
            if part.is_none() && missing.replace(i).is_some() && n_stacked.is_none() {
                return Err(format!(
                    "it is made of `{}` and other matrices, more than one of which has no update: which rows are whose is not known",
                    source.name
                ));
            }
            parts.push(part);
        }
        let sizes: Vec<[u64; 3]> = parts.iter().flatten().map(|part| part.shape).collect();
        let first = sizes.first().copied().unwrap_or_default();
        if n_stacked.is_some() && first[0] != 1 {
            return Err("matrices of experts have two axes".into());
        }
        // Parts follow each other along the slowest axis that they have.
        let axis = if first[0] > 1 || of(2) > 1 { 0 } else { 1 };
        let mut found = first;
        if let Some(n) = n_stacked {
            found[0] = n;
        } else {
            found[axis] = sizes.iter().map(|size| size[axis]).sum();
        }
        let left = match missing.filter(|_| n_stacked.is_none()) {
            Some(_) => target[axis].saturating_sub(found[axis]),
            None => 0,
        };
        found[axis] += left;
        let is_same = sizes.iter().all(|size| {
            (0..3).all(|dim| size[dim] == first[dim] || (dim == axis && n_stacked.is_none()))
        });
        if found != target || !is_same {
            return Err(format!(
                "its updates are of {found:?} (experts or heads, rows, columns), expected {target:?}"
            ));
        }
        let (mut begin, mut rank) = (0, 0);
        let mut blocks = Vec::new();
        for (i, part) in (0..).zip(parts) {
            let Some(mut part) = part else {
                begin += left;
                continue;
            };
            if n_stacked.is_some() {
                part.begin[0] = i;
                rank = rank.max(part.rank);
            } else {
                part.begin[axis] = begin;
                begin += part.shape[axis];
                part.first_rank = rank;
                rank += part.rank;
            }
            blocks.push(part);
        }
        let product = Arc::new(Product::new(blocks, rank, target, slopes));
        Ok(product.entries(name, is_table))
    }

    /// What an update of a stored matrix is within our tensor; none if there is no update and nothing
    /// says how large it is.
    fn part(&self, source: &Source<'a, '_>, at: &At<'_>) -> Result<Option<Block>, String> {
        let place = |error: String| format!("`{}`: {error}", source.name);
        let checkpoint = self.checkpoint;
        let stored = checkpoint.and_then(|checkpoint| checkpoint.get(&source.name));
        let stored = stored.map(|stored| stored.shape.clone());
        let Some(module) = source.module else {
            let Some(shape) = stored else { return Ok(None) };
            let view = view(source.taken, &shape, at).map_err(place)?;
            let mut block = Block::without_update(sizes(&view));
            block.rank = 0;
            return Ok(Some(block));
        };
        let straight = [module.up.shape[0], module.down.shape[1]];
        let turned = [straight[1], straight[0]];
        let is_turned = match stored.as_deref() {
            None => module.is_turned,
            Some(shape) if shape == turned && shape == straight => module.is_turned,
            Some(shape) if shape == straight => false,
            Some(shape) if shape == turned => true,
            Some(shape) => {
                return Err(place(format!(
                    "the update is of {straight:?}, the stored matrix of {shape:?}"
                )));
            }
        };
        let shape = if is_turned { turned } else { straight };
        let view = view(source.taken, &shape, at).map_err(place)?;
        let block = Block::new(module, is_turned, &view, shape[1]);
        block.map(Some).map_err(place)
    }
}
