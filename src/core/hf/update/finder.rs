//! Finds the updates of a map: the modules that its rules use, and the resulting updates, or the reason why there are none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::super::apply::{RuleAt, view};
use super::super::config::{Config, ConfigScope, fill_expressions, fill_indices};
use super::super::definition::{ElementSlice, Map, Repeat, TensorGroup, TensorOrigin, TensorRule};
use super::super::recipe::{ELEMENT, ElementFn, INDEX};
use super::product::{LowRankProduct, ProductPart, sizes};
use super::{ModuleUpdate, ShapeFn};
use crate::arch::Spanned;
use lab_base::weights::TensorEntry;
use lab_base::weights::safetensors::Checkpoint;

/// Maximum number of layers, above that of any real model.
const MAX_LAYERS: u64 = 4096;
/// Suffix of a stored matrix, after the name of its module.
pub(super) const ENDING: &str = ".weight";

/// The updates that a map finds.
#[derive(Debug, Default)]
pub(super) struct FoundUpdates {
    pub(super) updates: Vec<TensorUpdate>,
    /// The parts of the model that are left out, and their numbers of modules.
    pub(super) left_out: Vec<(String, usize)>,
}

/// The update of a tensor of the architecture.
#[derive(Debug, PartialEq)]
pub(super) struct TensorUpdate {
    pub(super) name: String,
    pub(super) is_table: bool,
    pub(super) product: Arc<LowRankProduct>,
}

impl TensorUpdate {
    pub(super) fn entries(self) -> [TensorEntry; 2] {
        self.product.entries(&self.name, self.is_table)
    }
}

/// The reason why a map gives no updates.
pub(super) enum UpdateError {
    /// The map does not have a module.
    Unknown(String),
    /// The result of the map is not an update of a weight of the model.
    Unfit(String),
    /// Any other reason, such as a configuration with too little information.
    Other(String),
}

impl From<String> for UpdateError {
    fn from(message: String) -> Self {
        Self::Other(message)
    }
}

impl From<&str> for UpdateError {
    fn from(message: &str) -> Self {
        Self::Other(message.to_owned())
    }
}

impl UpdateError {
    /// The fault with the place before the message.
    pub(super) fn at(self, place: &str) -> Self {
        let with = |message: String| format!("`{place}`: {message}");
        match self {
            Self::Unknown(message) => Self::Unknown(with(message)),
            Self::Unfit(message) => Self::Unfit(with(message)),
            Self::Other(message) => Self::Other(with(message)),
        }
    }
}

/// The work of finding updates.
pub(super) struct UpdateFinder<'a> {
    map: &'a Map,
    config: &'a Config<'a>,
    /// The stored tensors of the model, if it is a folder.
    checkpoint: Option<&'a Checkpoint>,
    /// The modules by their names, without possible prefixes.
    modules: HashMap<&'a str, &'a ModuleUpdate>,
    used: BTreeSet<&'a str>,
    /// Names of tensors that already have an update.
    names: BTreeSet<String>,
    updates: Vec<TensorUpdate>,
    shape_of: ShapeFn<'a>,
}

/// A stored matrix of a rule, and its update if it has one.
struct RulePart<'a, 'r> {
    name: String,
    taken: &'r ElementSlice,
    module: Option<&'a ModuleUpdate>,
}

impl<'a> UpdateFinder<'a> {
    pub(super) fn new(
        map: &'a Map,
        config: &'a Config<'a>,
        modules: &'a [ModuleUpdate],
        shape_of: ShapeFn<'a>,
    ) -> Result<Self, UpdateError> {
        let mut by_name = HashMap::new();
        for module in modules {
            if let Some(other) = by_name.insert(config.bare(&module.name), module) {
                return Err(UpdateError::Other(format!(
                    "`{}` and `{}` are the same module of the model",
                    other.name, module.name
                )));
            }
        }
        Ok(Self {
            map,
            config,
            checkpoint: Some(config.checkpoint).filter(|c| c.tensors().next().is_some()),
            modules: by_name,
            used: BTreeSet::new(),
            names: BTreeSet::new(),
            updates: Vec::new(),
            shape_of,
        })
    }

    pub(super) fn all(mut self, common: &Map) -> Result<FoundUpdates, UpdateError> {
        let config = self.config;
        let mut fault = None;
        let map = self.map;
        for group in map.chain().chain([common]).flat_map(|map| &map.groups) {
            let plain = config.plain();
            let Some((count, first)) = &group.layers else {
                self.group(group, &plain, &mut fault);
                continue;
            };
            let first = first.as_ref();
            let first = first.map_or(Ok(0), |first| plain.size(&first.value))?;
            let count = plain.size(&count.value)?.min(MAX_LAYERS);
            for il in first..count {
                self.group(group, &plain.with("il", il), &mut fault);
            }
        }
        let left_out = self.left_out()?;
        if let Some(fault) = fault {
            return Err(fault);
        }
        if self.updates.is_empty() {
            let parts: Vec<&str> = left_out.iter().map(|(part, _)| part.as_str()).collect();
            return Err(UpdateError::Unfit(format!(
                "it updates nothing but the {}, which a text model does not have",
                parts.join(", ")
            )));
        }
        self.updates.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(FoundUpdates {
            updates: self.updates,
            left_out,
        })
    }

    /// The parts of the model to which unused modules belong, and their numbers of modules.
    fn left_out(&self) -> Result<Vec<(String, usize)>, UpdateError> {
        let unused = self.modules.values().map(|module| module.name.as_str());
        let mut unused: Vec<&str> = unused.filter(|name| !self.used.contains(name)).collect();
        unused.sort_unstable();
        let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
        for name in unused {
            let stored = format!("{name}{ENDING}");
            let fits = |patterns: &[Spanned<String>]| {
                let mut patterns = patterns.iter();
                patterns.any(|pattern| {
                    let patterns = self.config.patterns(&pattern.value);
                    self.config.fits(&patterns, &stored)
                })
            };
            let mut parts = self.map.parts.iter();
            let part = match parts.find(|(_, patterns)| fits(patterns)) {
                Some((part, _)) => part.as_str(),
                None if fits(&self.map.ignored_tensors) => "matrices without a use",
                None => {
                    return Err(UpdateError::Unknown(format!(
                        "no tensor of the model is made of its module `{name}`"
                    )));
                }
            };
            *left_out.entry(part.to_owned()).or_default() += 1;
        }
        Ok(left_out.into_iter().collect())
    }

    /// Adds the updates of a group of tensors. Only the first fault is kept.
    fn group(
        &mut self,
        group: &TensorGroup,
        at: &ConfigScope<'_>,
        fault: &mut Option<UpdateError>,
    ) {
        for rule in &group.tensors {
            let name =
                fill_expressions(&group.prefix, at) + &fill_indices(&rule.name.value, &at.indices);
            let has_ending = rule.name.value.contains('.');
            let name = if has_ending {
                name
            } else {
                format!("{name}{ENDING}")
            };
            let of = RuleAt {
                group,
                rule,
                at,
                ending: if has_ending { "" } else { ENDING },
            };
            if !self.names.contains(&name)
                && let Err(found) = self.rule(of, &name)
            {
                fault.get_or_insert(found.at(&name));
            }
        }
    }

    fn rule(&mut self, of: RuleAt<'_, '_>, name: &str) -> Result<(), UpdateError> {
        let RuleAt { rule, at, .. } = of;
        let TensorOrigin::Of(made) = &rule.made else {
            return Ok(());
        };
        // A missing count of the configuration is a problem only if modules need it.
        let count = match &made.repeat {
            None => None,
            Some(Repeat {
                count, is_stack, ..
            }) => match (at.size(count), (self.shape_of)(name)) {
                (Ok(n), Some((shape, _))) if !is_stack || shape.get(2) == Some(&n) => Some(n),
                _ => return Ok(()),
            },
        };
        let first = made
            .repeat
            .as_ref()
            .and_then(|repeat| repeat.first.as_ref());
        let Ok(first) = first.map_or(Ok(0), |first| at.size(first)) else {
            return Ok(());
        };
        let found = self.map.roots.iter().find_map(|root| {
            let mut sources = Vec::new();
            for part in &made.parts {
                let from = fill_expressions(&of.group.from, of.at);
                let template = format!("{root}{from}{}{}", part.from.value, of.ending);
                let template = fill_indices(&template, &at.indices);
                for e in first..first.saturating_add(count.unwrap_or(1)) {
                    let name = fill_indices(&template, &[("e", e)]);
                    let module = name.strip_suffix(ENDING);
                    let module = module.map(|module| self.config.bare(module));
                    let module = module.and_then(|module| self.modules.get(module));
                    sources.push(RulePart {
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
        let used = sources.iter().filter_map(|s| s.module);
        let used: Vec<&str> = used.map(|module| module.name.as_str()).collect();
        let is_active = self.is_active(of, name);
        // A module counts as used even if it is not known whether its rule applies.
        if !matches!(is_active, Ok(false)) {
            self.used.extend(used);
        }
        if !is_active? {
            return Ok(());
        }
        if rule.unit_rows {
            return Err("its rows are divided by their lengths, which is not linear".into());
        }
        if made.times.is_some() {
            return Err("its elements have factors of their own, so that the product of the update is not of low rank".into());
        }
        if made.is_beside {
            return Err("its parts stand side by side in each row".into());
        }
        let base = (self.shape_of)(name)
            .map(|(shape, _)| shape)
            .unwrap_or_default();
        let slopes = match &rule.each {
            None => vec![1.0],
            Some(each) => ElementFn::new(at.bind(each, &[ELEMENT, INDEX])?)
                .slopes(base.last().copied().unwrap_or(1))?
                .ok_or("its elements are changed in a way that is not linear")?,
        };
        let n_stacked = count.filter(|_| made.is_stack());
        let update = self.update(name, &sources, n_stacked, slopes, at)?;
        self.names.insert(name.to_owned());
        self.updates.push(update);
        Ok(())
    }

    /// Whether a rule applies. If the configuration does not decide, the only rule of an existing tensor applies.
    fn is_active(&self, of: RuleAt<'_, '_>, name: &str) -> Result<bool, String> {
        let Some(when) = &of.rule.when else {
            return Ok(true);
        };
        let is_same = |other: &&TensorRule| other.name.value == of.rule.name.value;
        let is_only = of.group.tensors.iter().filter(is_same).count() == 1;
        of.at
            .truth(when)
            .or_else(|error| match is_only && self.checkpoint.is_none() {
                true => Ok((self.shape_of)(name).is_some()),
                false => Err(error),
            })
    }

    /// The two matrices of the update of a tensor of the architecture.
    fn update(
        &self,
        name: &str,
        sources: &[RulePart<'a, '_>],
        n_stacked: Option<u64>,
        slopes: Vec<f64>,
        at: &ConfigScope<'_>,
    ) -> Result<TensorUpdate, UpdateError> {
        let (base, is_table) = (self.shape_of)(name).ok_or_else(|| {
            UpdateError::Unfit("the model has no such weight, and the adapter updates it".into())
        })?;
        let of = |dim: usize| base.get(dim).copied().unwrap_or(1);
        let target = [of(2), of(1), of(0)];
        let mut parts = Vec::with_capacity(sources.len());
        let mut missing = None;
        for (i, source) in sources.iter().enumerate() {
            let part = self.part(source, at)?;
            if part.is_none() && missing.replace(i).is_some() && n_stacked.is_none() {
                return Err(UpdateError::Other(format!(
                    "it is made of `{}` and other matrices, more than one of which has no update, so it is not known which rows belong to which",
                    source.name
                )));
            }
            parts.push(part);
        }
        let sizes: Vec<[u64; 3]> = parts.iter().flatten().map(|part| part.shape).collect();
        let first = sizes.first().copied().unwrap_or_default();
        if n_stacked.is_some() && first[0] != 1 {
            return Err("matrices of experts have two axes".into());
        }
        // Parts are concatenated along the slowest axis that they have.
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
            return Err(UpdateError::Unfit(format!(
                "its updates are of {found:?} (experts or heads, rows, columns), expected {target:?}"
            )));
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
        Ok(TensorUpdate {
            name: name.to_owned(),
            is_table,
            product: Arc::new(LowRankProduct::new(blocks, rank, target, slopes)),
        })
    }

    /// The update of a stored matrix as a part of the architecture's tensor; none if there is no update and the size is
    /// not known.
    fn part(
        &self,
        source: &RulePart<'a, '_>,
        at: &ConfigScope<'_>,
    ) -> Result<Option<ProductPart>, String> {
        let place = |error: String| format!("`{}`: {error}", source.name);
        let stored = self.config.stored(&source.name);
        let stored = stored.map(|(_, stored)| stored.shape.clone());
        let Some(module) = source.module else {
            let Some(shape) = stored else { return Ok(None) };
            let view = view(source.taken, &shape, at).map_err(place)?;
            return Ok(Some(ProductPart::without_update(sizes(&view))));
        };
        let straight = [module.up.shape[0], module.down.shape[1]];
        let transposed = [straight[1], straight[0]];
        let is_transposed = match stored.as_deref() {
            None => module.is_transposed,
            Some(shape) if shape == transposed && shape == straight => module.is_transposed,
            Some(shape) if shape == straight => false,
            Some(shape) if shape == transposed => true,
            Some(shape) => {
                return Err(place(format!(
                    "the update is of {straight:?}, the stored matrix of {shape:?}"
                )));
            }
        };
        let shape = if is_transposed { transposed } else { straight };
        let view = view(source.taken, &shape, at).map_err(place)?;
        let block = ProductPart::new(module, is_transposed, &view, shape[1]);
        block.map(Some).map_err(place)
    }
}
